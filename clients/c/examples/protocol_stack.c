/* A protocol stack whose sessions live in transactional memory: an intrusive, doubly linked list of
 * idle sessions and a chained hash table of established ones, as BSD's <sys/queue.h> builds them,
 * with 64-bit addresses instead of pointers. Several processes serve it at the same time. A process
 * that is killed between any two instructions leaves every chain intact.
 *
 *   protocol_stack work PATH      serves packets forever; kill it
 *   protocol_stack verify PATH    verifies all structures at one instant, while workers run
 *   protocol_stack audit PATH     the same without workers, and detects leaked objects
 *   protocol_stack demo PATH      runs two workers and kills one of them repeatedly
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <nearstate.h>

/* ---- What the port needs: opening, and <sys/queue.h> over addresses ------------------------- */

/* Each step of a transaction can fail with NS_CONFLICT. The function then returns that status, and
 * ns_transact runs it again, so no step is left half done. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        int32_t tried_ = (int32_t)(call);                                                          \
        if (tried_ != NS_OK)                                                                       \
            return tried_;                                                                         \
    } while (0)

/* `const struct x *p = a pointer` becomes OPEN_READ(txn, address, p). */
#define OPEN_READ(txn, address, pointer)                                                           \
    do {                                                                                           \
        const void *place_;                                                                        \
        TRY(ns_txn_open_read((txn), (address), sizeof *(pointer), &place_));                       \
        (pointer) = place_;                                                                        \
    } while (0)

#define OPEN_WRITE(txn, address, pointer)                                                          \
    do {                                                                                           \
        void *place_;                                                                              \
        TRY(ns_txn_open_write((txn), (address), sizeof *(pointer), &place_));                      \
        (pointer) = place_;                                                                        \
    } while (0)

/* A list: `head` points to a list that is open for writing, `node` is an address. */
#define TR_LIST_HEAD                                                                               \
    struct {                                                                                       \
        ns_address first, last;                                                                    \
    }

#define TR_LIST_ENTRY                                                                              \
    struct {                                                                                       \
        ns_address next, previous;                                                                 \
    }

#define TR_LIST_INSERT_TAIL(txn, type, head, node, field)                                          \
    do {                                                                                           \
        struct type *node_, *other_;                                                               \
        OPEN_WRITE(txn, node, node_);                                                              \
        node_->field.next = 0;                                                                     \
        node_->field.previous = (head)->last;                                                      \
        if ((head)->last != 0) {                                                                   \
            OPEN_WRITE(txn, (head)->last, other_);                                                 \
            other_->field.next = (node);                                                           \
        } else {                                                                                   \
            (head)->first = (node);                                                                \
        }                                                                                          \
        (head)->last = (node);                                                                     \
    } while (0)

#define TR_LIST_REMOVE(txn, type, head, node, field)                                               \
    do {                                                                                           \
        struct type *other_;                                                                       \
        const struct type *node_;                                                                  \
        OPEN_READ(txn, node, node_);                                                               \
        if (node_->field.next != 0) {                                                              \
            OPEN_WRITE(txn, node_->field.next, other_);                                            \
            other_->field.previous = node_->field.previous;                                        \
        } else {                                                                                   \
            (head)->last = node_->field.previous;                                                  \
        }                                                                                          \
        if (node_->field.previous != 0) {                                                          \
            OPEN_WRITE(txn, node_->field.previous, other_);                                        \
            other_->field.next = node_->field.next;                                                \
        } else {                                                                                   \
            (head)->first = node_->field.next;                                                     \
        }                                                                                          \
    } while (0)

/* ---- The stack's state ---------------------------------------------------------------------- */

#define BUCKETS 16
#define SESSIONS_MIN 8
#define SESSIONS_MAX 64

struct session {
    uint64_t teid; /* 0: idle. */
    uint64_t moves;
    ns_address chain;  /* The next session of its bucket. */
    TR_LIST_ENTRY idle;
    char peer[48];
};

/* Data that two workers change concurrently is in two objects: conflicts are per object. */
struct idle {
    TR_LIST_HEAD list;
};

struct bucket {
    ns_address first;
};

struct totals {
    uint64_t sessions;
};

/* The root: a record refers to it, and it refers to everything else. It never changes. */
struct stack {
    ns_address idle;
    ns_address totals;
    ns_address buckets[BUCKETS];
};

struct worker {
    ns_region *region;
    ns_session *session;
    ns_namespace names;
    uint64_t dice;
    uint64_t runs;
    uint64_t moves;
};

static uint64_t roll(struct worker *worker, uint64_t sides)
{
    worker->dice ^= worker->dice << 13;
    worker->dice ^= worker->dice >> 7;
    worker->dice ^= worker->dice << 17;
    return worker->dice % sides;
}

static int32_t open_stack(struct worker *worker, ns_txn *txn, const struct stack **stack)
{
    ns_view record;
    ns_address address;
    TRY(ns_txn_get(txn, worker->names, ns_text("stack"), &record));
    if (record.value.len != sizeof address)
        return NS_DAMAGED;
    memcpy(&address, record.value.data, sizeof address);
    OPEN_READ(txn, address, *stack);
    return NS_OK;
}

/* Creates the stack unless it exists. */
static int32_t found(void *context, ns_txn *txn)
{
    struct worker *worker = context;
    ns_view record;
    ns_address address;
    struct stack *stack;
    int32_t there = ns_txn_get(txn, worker->names, ns_text("stack"), &record);
    if (there != NS_NOT_FOUND)
        return there;
    TRY(ns_txn_alloc(txn, sizeof *stack, &address));
    OPEN_WRITE(txn, address, stack);
    TRY(ns_txn_alloc(txn, sizeof(struct idle), &stack->idle));
    TRY(ns_txn_alloc(txn, sizeof(struct totals), &stack->totals));
    for (int number = 0; number < BUCKETS; number++)
        TRY(ns_txn_alloc(txn, sizeof(struct bucket), &stack->buckets[number]));
    ns_bytes value = {(const uint8_t *)&address, sizeof address};
    return ns_txn_put(txn, worker->names, ns_text("stack"), value);
}

/* Moves a session from the list to the table. */
static int32_t establish(struct worker *worker, ns_txn *txn, const struct stack *stack)
{
    struct idle *idle;
    struct session *session;
    struct bucket *bucket;
    OPEN_WRITE(txn, stack->idle, idle);
    ns_address node = idle->list.first;
    if (node == 0)
        return NS_OK;
    TR_LIST_REMOVE(txn, session, &idle->list, node, idle);
    OPEN_WRITE(txn, node, session);
    memset(&session->idle, 0, sizeof session->idle);
    session->teid = 1 + roll(worker, UINT32_MAX);
    session->moves += 1;
    snprintf(session->peer, sizeof session->peer, "10.%u.%u.%u:2152", (unsigned)roll(worker, 256),
             (unsigned)roll(worker, 256), (unsigned)roll(worker, 256));
    OPEN_WRITE(txn, stack->buckets[session->teid % BUCKETS], bucket);
    session->chain = bucket->first;
    bucket->first = node;
    return NS_OK;
}

/* Moves the last session of a chain from the table to the list. */
static int32_t release(struct worker *worker, ns_txn *txn, const struct stack *stack)
{
    const struct bucket *bucket;
    struct bucket *changed;
    const struct session *seen;
    struct session *session;
    struct idle *idle;
    ns_address before = 0, node;
    uint64_t number = roll(worker, BUCKETS);
    OPEN_READ(txn, stack->buckets[number], bucket);
    node = bucket->first;
    if (node == 0)
        return NS_OK;
    OPEN_READ(txn, node, seen);
    for (int length = 1; seen->chain != 0; length++) {
        if (length == SESSIONS_MAX)
            return NS_DAMAGED; /* A cycle: the list is damaged. */
        before = node;
        node = seen->chain;
        OPEN_READ(txn, node, seen);
    }
    if (before == 0) {
        OPEN_WRITE(txn, stack->buckets[number], changed);
        changed->first = 0;
    } else {
        OPEN_WRITE(txn, before, session);
        session->chain = 0;
    }
    OPEN_WRITE(txn, node, session);
    session->teid = 0;
    session->chain = 0;
    session->moves += 1;
    OPEN_WRITE(txn, stack->idle, idle);
    TR_LIST_INSERT_TAIL(txn, session, &idle->list, node, idle);
    return NS_OK;
}

/* Adds a new session to the list, or removes and frees one. */
static int32_t breathe(struct worker *worker, ns_txn *txn, const struct stack *stack)
{
    struct idle *idle;
    struct totals *totals;
    ns_address node;
    OPEN_WRITE(txn, stack->idle, idle);
    OPEN_WRITE(txn, stack->totals, totals);
    if (totals->sessions < SESSIONS_MIN
        || (totals->sessions < SESSIONS_MAX && roll(worker, 2) == 0)) {
        TRY(ns_txn_alloc(txn, sizeof(struct session), &node));
        TR_LIST_INSERT_TAIL(txn, session, &idle->list, node, idle);
        totals->sessions += 1;
        return NS_OK;
    }
    node = idle->list.first;
    if (node == 0)
        return NS_OK;
    TR_LIST_REMOVE(txn, session, &idle->list, node, idle);
    totals->sessions -= 1;
    return ns_txn_free(txn, node);
}

/* One packet, one transaction. */
static int32_t serve(void *context, ns_txn *txn)
{
    struct worker *worker = context;
    const struct stack *stack;
    worker->runs += 1;
    TRY(open_stack(worker, txn, &stack));
    switch (roll(worker, 8)) {
    case 0:
        return breathe(worker, txn, stack);
    case 1:
    case 2:
    case 3:
    case 4:
        return release(worker, txn, stack);
    default:
        return establish(worker, txn, stack);
    }
}

/* ---- Verification of all structures at one instant ----------------------------------------- */

struct walk {
    struct worker *worker;
    const char *fault;
    ns_address met[SESSIONS_MAX];
    size_t sessions;
    size_t idle;
    size_t chains[BUCKETS];
};

/* NS_REFUSED ends the transaction; `fault` has the reason. */
#define CHECK(claim)                                                                               \
    do {                                                                                           \
        if (!(claim)) {                                                                            \
            walk->fault = #claim;                                                                  \
            return NS_REFUSED;                                                                     \
        }                                                                                          \
    } while (0)

static int32_t meet(struct walk *walk, ns_address node)
{
    for (size_t other = 0; other < walk->sessions; other++)
        CHECK(walk->met[other] != node); /* No session is in two lists. */
    CHECK(walk->sessions < sizeof walk->met / sizeof walk->met[0]);
    walk->met[walk->sessions] = node;
    walk->sessions += 1;
    return NS_OK;
}

static int32_t walk_all(void *context, ns_txn *txn)
{
    struct walk *walk = context;
    const struct stack *stack;
    const struct idle *idle;
    const struct totals *totals;
    const struct bucket *bucket;
    const struct session *session;
    ns_address before = 0;
    walk->sessions = walk->idle = 0;
    memset(walk->chains, 0, sizeof walk->chains);
    TRY(open_stack(walk->worker, txn, &stack));
    OPEN_READ(txn, stack->idle, idle);
    for (ns_address node = idle->list.first; node != 0; node = session->idle.next) {
        TRY(meet(walk, node));
        OPEN_READ(txn, node, session);
        CHECK(session->teid == 0 && session->chain == 0);
        CHECK(session->idle.previous == before); /* Backward links match forward links. */
        before = node;
        walk->idle += 1;
    }
    CHECK(idle->list.last == before);
    for (size_t number = 0; number < BUCKETS; number++) {
        OPEN_READ(txn, stack->buckets[number], bucket);
        for (ns_address node = bucket->first; node != 0; node = session->chain) {
            TRY(meet(walk, node));
            OPEN_READ(txn, node, session);
            CHECK(session->teid != 0 && session->teid % BUCKETS == number);
            CHECK(session->idle.next == 0 && session->idle.previous == 0);
            CHECK(strncmp(session->peer, "10.", 3) == 0);
            walk->chains[number] += 1;
        }
    }
    OPEN_READ(txn, stack->totals, totals);
    CHECK(totals->sessions == walk->sessions);
    return NS_OK;
}

/* ---- The program ---------------------------------------------------------------------------- */

static int fail(const char *what, ns_status status)
{
    fprintf(stderr, "%s: %s: %s\n", what, ns_status_name(status), ns_last_error());
    return 1;
}

static ns_status start(struct worker *worker, const char *path)
{
    ns_create_options options;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    worker->dice = ((uint64_t)getpid() << 32 ^ (uint64_t)now.tv_nsec) | 1;
    ns_status status = ns_create_options_default(&options);
    if (status == NS_OK) {
        options.bytes_max = 64u << 20;
        status = ns_region_attach_or_create(path, &options, &worker->region);
    }
    if (status == NS_OK)
        status = ns_session_open(worker->region, &worker->session);
    if (status == NS_OK)
        status = ns_namespace_open(worker->session, ns_text("names"), NS_KIND_VALUE,
                                   &worker->names);
    if (status == NS_OK)
        status = ns_transact(worker->session, found, worker);
    return status;
}

static void stop(struct worker *worker)
{
    ns_session_close(worker->session);
    ns_region_detach(worker->region);
}

/* Packets come in bursts; the pauses let a verification complete. */
static int work(struct worker *worker)
{
    for (uint64_t burst = 0;; burst++) {
        for (int packet = 0; packet < 64; packet++) {
            ns_status status = ns_transact(worker->session, serve, worker);
            if (status != NS_OK)
                return fail("serve", status);
            worker->moves += 1;
        }
        if (burst % 8 == 0) {
            printf("worker %d: %" PRIu64 " packets, run again %" PRIu64 " times\n", (int)getpid(),
                   worker->moves, worker->runs - worker->moves);
            fflush(stdout);
        }
        usleep((useconds_t)roll(worker, 1000));
    }
}

static int verify(struct worker *worker, bool is_at_rest)
{
    static struct walk walk;
    uint64_t objects;
    walk = (struct walk){.worker = worker};
    ns_status status = NS_DEADLINE;
    /* After a thousand conflicts, verify again: the workers may be idle then. */
    for (int retry_policy = 0; status == NS_DEADLINE && retry_policy < 1000; retry_policy++)
        status = ns_transact(worker->session, walk_all, &walk);
    if (walk.fault != NULL) {
        fprintf(stderr, "BROKEN: %s\n", walk.fault);
        return 1;
    }
    if (status != NS_OK)
        return fail("verify", status);
    printf("whole: %zu idle, both ways; %zu established, in chains of", walk.idle,
           walk.sessions - walk.idle);
    for (size_t number = 0; number < BUCKETS; number++)
        printf(" %zu", walk.chains[number]);
    if (is_at_rest) {
        status = ns_object_count(worker->session, &objects, NULL);
        if (status != NS_OK)
            return fail("count", status);
        /* The stack, its list, its counters, its buckets, its sessions, and nothing else. */
        if (objects != 3 + BUCKETS + walk.sessions) {
            fprintf(stderr, "\nLEAKED: %" PRIu64 " objects for %zu sessions\n", objects,
                    walk.sessions);
            return 1;
        }
        printf("; none of %" PRIu64 " objects leaked", objects);
    }
    putchar('\n');
    return 0;
}

static int run(const char *word, const char *path)
{
    struct worker worker = {0};
    ns_status status = start(&worker, path);
    int told = status == NS_OK ? 2 : fail(path, status);
    if (status == NS_OK && strcmp(word, "work") == 0)
        told = work(&worker);
    else if (status == NS_OK)
        told = verify(&worker, strcmp(word, "audit") == 0);
    stop(&worker);
    return told;
}

/* A child process: nothing is attached before the fork. */
static pid_t spawn(const char *word, const char *path)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        exit(run(word, path));
    return child;
}

static int await(pid_t child)
{
    int told;
    return waitpid(child, &told, 0) == child && WIFEXITED(told) ? WEXITSTATUS(told) : -1;
}

static int demo(const char *path)
{
    pid_t survivor = spawn("work", path);
    int told = survivor < 0;
    srand((unsigned)getpid());
    for (int round = 1; told == 0 && round <= 20; round++) {
        pid_t victim = spawn("work", path);
        usleep(20000 + (useconds_t)(rand() % 30000));
        if (victim < 0 || kill(victim, SIGKILL) != 0)
            told = 1;
        await(victim);
        printf("killed worker %d, kill %d\n", (int)victim, round);
        if (told == 0)
            told = await(spawn("verify", path));
    }
    if (survivor > 0) {
        kill(survivor, SIGKILL);
        await(survivor);
    }
    return told == 0 ? await(spawn("audit", path)) : told;
}

int main(int argc, char **argv)
{
    static const char *const words[] = {"work", "verify", "audit", "demo"};
    for (size_t word = 0; argc == 3 && word < sizeof words / sizeof words[0]; word++) {
        if (strcmp(argv[1], words[word]) == 0)
            return word == 3 ? demo(argv[2]) : run(argv[1], argv[2]);
    }
    fprintf(stderr, "usage: %s work|verify|audit|demo PATH\n", argv[0]);
    return 2;
}
