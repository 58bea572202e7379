/* Tests of watches and the commit stream. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

/* Reached only by a failing test. */
#define LONG_MS 60000
#define EVENTS 10000

static bool is(ns_bytes bytes, const char *text)
{
    size_t len = strlen(text);
    return bytes.len == len && (len == 0 || memcmp(bytes.data, text, len) == 0);
}

static ns_watch *watch(ns_namespace namespace, ns_watch_filter filter)
{
    ns_watch *opened;
    OK(ns_watch_open(session, namespace, filter, &opened));
    return opened;
}

static bool nothing(ns_watch *opened)
{
    ns_watch_event event;
    return ns_watch_next(opened, &event) == NS_NOT_FOUND;
}

static bool see_name(void *context, ns_bytes name)
{
    CHECK(is(name, "auth"));
    *(int *)context += 1;
    return true;
}

static bool see_pair(void *context, ns_bytes name, ns_bytes value)
{
    CHECK(is(name, "cell"));
    *(char *)context = (char)value.data[0];
    return true;
}

static void a_watch_reports_changes_in_order(void)
{
    ns_watch_event event;
    int names = 0;
    char before = 0, after = 0;
    ns_watch_filter five = {.kind = NS_FILTER_TAG, .tag = {ns_text("cell"), ns_text("5")}};
    ns_watch *all = watch(values, (ns_watch_filter){0}), *tagged = watch(values, five);
    ns_watch *key = watch(values, (ns_watch_filter){.kind = NS_FILTER_KEY, .key = ns_text("ue")});
    ns_watch *prefix = watch(values,
                             (ns_watch_filter){.kind = NS_FILTER_PREFIX, .key = ns_text("x")});
    ns_watch *patched = watch(blocks, (ns_watch_filter){0});
    ns_tag cell = {ns_text("cell"), ns_text("4")};
    CHECK(nothing(all) && ns_watch_wait(all, 0) == NS_NOT_FOUND);
    OK(ns_put_with_metadata(session, values, ns_text("ue"), ns_text("v"),
                            (ns_metadata){&cell, 1, 0}, NULL));
    OK(ns_watch_wait(all, LONG_MS));
    OK(ns_watch_next(all, &event));
    CHECK(event.kind == NS_EVENT_CREATED && is(event.key, "ue") && event.version != 0);
    CHECK(!event.is_truncated && event.lost == 0);
    uint64_t version = event.version;
    cell.value = ns_text("5");
    OK(ns_put_with_metadata(session, values, ns_text("ue"), ns_text("w"),
                            (ns_metadata){&cell, 1, 0}, NULL));
    OK(ns_watch_next(tagged, &event));
    CHECK(event.kind == NS_EVENT_UPDATED && event.version > version);
    OK(ns_watch_tags_before(tagged, see_pair, &before));
    OK(ns_watch_tags_after(tagged, see_pair, &after));
    CHECK(before == '4' && after == '5');
    OK(ns_delete(session, values, ns_text("ue")));
    OK(ns_watch_next(tagged, &event));
    CHECK(event.kind == NS_EVENT_DELETED && nothing(tagged) && nothing(prefix));
    for (uint32_t kind = NS_EVENT_CREATED; kind <= NS_EVENT_DELETED; kind++) {
        OK(ns_watch_next(key, &event));
        CHECK(event.kind == kind);
    }
    OK(ns_put_with_metadata(session, values, ns_text("x"), ns_text("w"),
                            (ns_metadata){NULL, 0, 1}, NULL));
    OK(ns_collect_expired(session, 10, NULL, NULL));
    OK(ns_watch_next(prefix, &event));
    OK(ns_watch_next(prefix, &event));
    CHECK(event.kind == NS_EVENT_EXPIRED && is(event.key, "x"));
    ns_block_change change = {ns_text("auth"), ns_text("k"), false};
    OK(ns_patch(session, blocks, ns_text("ue"), (ns_block_change_list){&change, 1}, NULL));
    OK(ns_watch_next(patched, &event));
    OK(ns_watch_blocks(patched, see_name, &names));
    CHECK(names == 1);
    ns_watch *const open[] = {all, tagged, key, prefix, patched};
    for (size_t index = 0; index < LEN(open); index++)
        OK(ns_watch_close(open[index]));
    OK(ns_watch_close(NULL));
}

static bool go_on(void *context, ns_bytes name)
{
    ns_watch_event event;
    ns_watch *walked = context;
    int fd;
    CHECK(is(name, "auth"));
    IS(NS_BAD_ARGUMENT, ns_watch_next(walked, &event));
    IS(NS_BAD_ARGUMENT, ns_watch_fd(walked, &fd));
    IS(NS_BAD_ARGUMENT, ns_watch_close(walked));
    return true;
}

static void a_watch_rejects_invalid_arguments(void)
{
    ns_watch *opened;
    ns_watch_event event;
    ns_namespace counters;
    int fd;
    OK(ns_namespace_open(session, ns_text("counters"), NS_KIND_COUNTERS, &counters));
    IS(NS_WRONG_KIND, ns_watch_open(session, counters, (ns_watch_filter){0}, &opened));
    ns_watch_filter wrong[] = {
        {.kind = 4},
        {.kind = NS_FILTER_PREFIX, .key = {NULL, 3}},
        {.kind = NS_FILTER_TAG, .tag = {ns_text(""), ns_text("x")}},
        {.kind = NS_FILTER_TAG, .tag = {{NULL, 1}, ns_text("x")}},
    };
    for (size_t index = 0; index < LEN(wrong); index++)
        IS(NS_BAD_ARGUMENT, ns_watch_open(session, values, wrong[index], &opened));
    ns_watch_filter none = {.kind = NS_FILTER_KEY,
                            .key = {(const uint8_t *)"", NS_KEY_BYTES_MAX + 1}};
    IS(NS_KEY_TOO_LARGE, ns_watch_open(session, values, none, &opened));
    IS(NS_BAD_ARGUMENT, ns_watch_open(session, values, (ns_watch_filter){0}, NULL));
    IS(NS_BAD_ARGUMENT, ns_watch_open(NULL, values, (ns_watch_filter){0}, &opened));
    IS(NS_BAD_ARGUMENT, ns_watch_next(NULL, &event));
    IS(NS_BAD_ARGUMENT, ns_watch_wait(NULL, 0));
    IS(NS_BAD_ARGUMENT, ns_watch_fd(NULL, &fd));
    opened = watch(blocks, (ns_watch_filter){0});
    IS(NS_BAD_ARGUMENT, ns_watch_next(opened, NULL));
    IS(NS_BAD_ARGUMENT, ns_watch_fd(opened, NULL));
    IS(NS_BAD_ARGUMENT, ns_watch_blocks(opened, go_on, opened)); /* There is no event yet. */
    ns_block_change change = {ns_text("auth"), ns_text("k"), false};
    OK(ns_patch(session, blocks, ns_text("ue"), (ns_block_change_list){&change, 1}, NULL));
    OK(ns_watch_next(opened, &event));
    IS(NS_BAD_ARGUMENT, ns_watch_blocks(opened, NULL, NULL));
    IS(NS_BAD_ARGUMENT, ns_watch_tags_after(opened, NULL, NULL));
    OK(ns_watch_blocks(opened, go_on, opened));
    OK(ns_watch_close(opened));
}

static int loop_of(ns_watch *const *watches, size_t len)
{
    int events = epoll_create1(EPOLL_CLOEXEC);
    CHECK(events >= 0);
    for (size_t index = 0; index < len; index++) {
        struct epoll_event wanted = {.events = EPOLLIN, .data = {.u64 = index}};
        int fd = -1, again = -2;
        OK(ns_watch_fd(watches[index], &fd));
        OK(ns_watch_fd(watches[index], &again));
        CHECK(fd == again && epoll_ctl(events, EPOLL_CTL_ADD, fd, &wanted) == 0);
    }
    return events;
}

/* The sum of the readable watches: 1 for the first, 2 for the second. */
static int ringing(int events, int timeout_ms)
{
    struct epoll_event told[4];
    int sum = 0, count;
    do
        count = epoll_wait(events, told, 4, timeout_ms);
    while (count < 0 && errno == EINTR);
    CHECK(count >= 0);
    for (int index = 0; index < count; index++)
        sum += (int)told[index].data.u64 + 1;
    return sum;
}

/* Writes a record `count` times in another process. */
static pid_t elsewhere(const char *name, uint32_t times)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0)
        return child;
    ns_region *own;
    ns_session *writer;
    ns_namespace namespace;
    OK(ns_region_attach(path, NULL, &own));
    OK(ns_session_open(own, &writer));
    OK(ns_namespace_open(writer, ns_text(name), NS_KIND_VALUE, &namespace));
    for (uint32_t time = 0; time < times; time++)
        OK(ns_put(writer, namespace, some(&time, sizeof time), ns_text("v"), NULL));
    OK(ns_session_close(writer));
    _exit(0);
}

static void ended_well(pid_t child)
{
    int told = -1;
    CHECK(waitpid(child, &told, 0) == child && told == 0);
}

static void an_event_loop_waits_for_two_watches_at_once(void)
{
    ns_namespace more;
    ns_watch_event event;
    OK(ns_namespace_open(session, ns_text("more"), NS_KIND_VALUE, &more));
    ns_watch *watches[] = {watch(values, (ns_watch_filter){0}), watch(more, (ns_watch_filter){0})};
    int events = loop_of(watches, 2);
    CHECK(ringing(events, 0) == 0);
    ended_well(elsewhere("more", 1));
    CHECK(ringing(events, LONG_MS) == 2 && ringing(events, 0) == 2);
    OK(ns_watch_next(watches[1], &event));
    CHECK(nothing(watches[1]) && ringing(events, 0) == 0);
    /* Many events: none is lost, and every wakeup arrives. */
    pid_t writer = elsewhere("values", EVENTS);
    for (uint32_t told = 0; told < EVENTS;) {
        CHECK(ringing(events, LONG_MS) == 1);
        while (ns_watch_next(watches[0], &event) == NS_OK) {
            uint32_t number;
            CHECK(event.kind == NS_EVENT_CREATED && event.key.len == sizeof number);
            memcpy(&number, event.key.data, sizeof number);
            CHECK(number == told && event.version != 0);
            told += 1;
        }
    }
    ended_well(writer);
    CHECK(nothing(watches[0]) && ringing(events, 0) == 0);
    close(events);
    OK(ns_watch_close(watches[0]));
    OK(ns_watch_close(watches[1]));
}

static void a_slow_watcher_learns_how_many_events_it_lost(void)
{
    ns_watch_event event;
    ns_watch *slow = watch(values, (ns_watch_filter){0});
    int events = loop_of(&slow, 1);
    ended_well(elsewhere("values", 4 * EVENTS));
    CHECK(ringing(events, LONG_MS) == 1);
    OK(ns_watch_next(slow, &event));
    CHECK(event.kind == NS_EVENT_LOST && event.lost == 4 * EVENTS && event.key.len == 0);
    IS(NS_BAD_ARGUMENT, ns_watch_blocks(slow, see_name, NULL));
    CHECK(nothing(slow) && ringing(events, 0) == 0);
    OK(ns_put(session, values, ns_text("k"), ns_text("v"), NULL));
    CHECK(ringing(events, LONG_MS) == 1);
    OK(ns_watch_next(slow, &event));
    CHECK(event.kind == NS_EVENT_CREATED && is(event.key, "k"));
    close(events);
    OK(ns_watch_close(slow));
}

static void *return_argument(void *argument)
{
    return argument;
}

/* A thread of a child gets the place and the number of one of the parent's threads, if its stack
 * has the same size. Closing the handle of that one must not detach it. */
static void start_thread(pthread_t *thread)
{
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0);
    CHECK(pthread_attr_setstacksize(&attributes, 128 << 10) == 0);
    CHECK(pthread_create(thread, &attributes, return_argument, NULL) == 0);
    CHECK(pthread_attr_destroy(&attributes) == 0);
}

static void a_forked_child_must_open_a_new_watch(void)
{
    ns_watch_event event;
    ns_watch *ringing_one = watch(values, (ns_watch_filter){0}),
        *plain = watch(values, (ns_watch_filter){0});
    int fd;
    ns_receipt_set *set;
    ns_receipt receipt = {0};
    uint32_t state;
    OK(ns_watch_fd(ringing_one, &fd));
    OK(ns_receipt_set_open(session, &set));
    OK(ns_receipt_set_fd(set, &fd));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(ns_watch_next(ringing_one, &event) == NS_FORKED);
        CHECK(ns_watch_next(plain, &event) == NS_FORKED);
        CHECK(ns_watch_wait(plain, LONG_MS) == NS_FORKED);
        CHECK(ns_watch_fd(plain, &fd) == NS_FORKED);
        IS(NS_FORKED, ns_receipt_set_fd(set, &fd));
        IS(NS_FORKED, ns_receipt_set_add(set, receipt));
        IS(NS_FORKED, ns_receipt_set_remove(set, receipt));
        IS(NS_FORKED, ns_receipt_set_next(set, &receipt, &state));
        pthread_t threads[2];
        start_thread(&threads[0]);
        start_thread(&threads[1]);
        OK(ns_watch_close(ringing_one)); /* The child has no thread of it. */
        OK(ns_watch_close(plain));
        OK(ns_receipt_set_close(set));
        CHECK(pthread_join(threads[0], NULL) == 0);
        CHECK(pthread_join(threads[1], NULL) == 0);
        _exit(0);
    }
    ended_well(child);
    struct pollfd signalled = {.fd = fd, .events = POLLIN};
    CHECK(poll(&signalled, 1, 0) == 0);
    OK(ns_receipt_set_close(set));
    OK(ns_put(session, values, ns_text("k"), ns_text("v"), NULL));
    int events = loop_of(&ringing_one, 1);
    CHECK(ringing(events, LONG_MS) == 1);
    close(events);
    /* A watch outlives its session. */
    OK(ns_session_close(session));
    OK(ns_watch_next(ringing_one, &event));
    OK(ns_watch_close(ringing_one));
    OK(ns_watch_close(plain));
    OK(ns_session_open(region, &session));
}

struct told {
    ns_stream *stream;
    int records;
    int blocks;
    char cell;
};

static bool see_block(void *context, ns_bytes name, const ns_bytes *block)
{
    struct told *told = context;
    CHECK(is(name, "auth") ? block != NULL && is(*block, "k") : is(name, "old") && block == NULL);
    told->blocks += 1;
    return true;
}

static bool see_record(void *context, const ns_stream_record *record)
{
    struct told *told = context;
    ns_stream_entry entry;
    IS(NS_BAD_ARGUMENT, ns_stream_next(told->stream, &entry));
    IS(NS_BAD_ARGUMENT, ns_stream_close(told->stream));
    CHECK(record->version != 0);
    if (record->handle.id == values.id) {
        CHECK(record->op == NS_STREAM_OP_PUT && is(record->key, "ue") && is(record->value, "v"));
        CHECK(record->has_metadata && record->expires_ms == 4102444800000);
        OK(ns_stream_record_tags(record, see_pair, &told->cell));
        OK(ns_stream_record_blocks(record, see_block, told));
    } else {
        CHECK(record->handle.id == blocks.id && record->op == NS_STREAM_OP_PATCHED);
        CHECK(!record->has_metadata && !record->is_replacement);
        OK(ns_stream_record_blocks(record, see_block, told));
    }
    told->records += 1;
    return true;
}

static bool see_deletion(void *context, const ns_stream_record *record)
{
    CHECK(record->op == NS_STREAM_OP_DELETED && is(record->key, "ue") && record->value.len == 0);
    *(int *)context += 1;
    return true;
}

static void the_stream_contains_every_commit_completely(void)
{
    ns_stream *stream;
    ns_stream_entry entry;
    ns_txn *txn;
    struct told told = {NULL, 0, 0, 0};
    int deletions = 0;
    ns_tag cell = {ns_text("cell"), ns_text("5")};
    ns_block_change first = {ns_text("old"), ns_text("o"), false};
    ns_block_change changes[] = {{ns_text("auth"), ns_text("k"), false},
                                 {ns_text("old"), {0}, true}};
    OK(ns_patch(session, blocks, ns_text("ue"), (ns_block_change_list){&first, 1}, NULL));
    OK(ns_namespace_enable_stream(session, values, NS_STREAM_FULL_OVERWRITE));
    OK(ns_namespace_enable_stream(session, blocks, NS_STREAM_FULL_OVERWRITE));
    OK(ns_stream_open(session, &stream));
    told.stream = stream;
    CHECK(ns_session_close(session) == NS_BAD_ARGUMENT);
    CHECK(ns_stream_next(stream, &entry) == NS_NOT_FOUND);
    IS(NS_BAD_ARGUMENT, ns_stream_records(stream, see_record, &told));
    OK(ns_txn_begin(session, &txn));
    ns_metadata metadata = {&cell, 1, 4102444800000};
    OK(ns_txn_put_with_metadata(txn, values, ns_text("ue"), ns_text("v"), metadata));
    OK(ns_txn_patch(txn, blocks, ns_text("ue"), (ns_block_change_list){changes, 2}));
    OK(ns_txn_commit(txn));
    ns_receipt of_put, of_delete, of_reads;
    uint32_t state = 0;
    OK(ns_receipt_of_commit(session, &of_put));
    OK(ns_delete(session, values, ns_text("ue")));
    OK(ns_receipt_of_commit(session, &of_delete));
    OK(ns_receipt_of_reads(session, &of_reads));
    /* Each declaration has drawn a position of its own. */
    CHECK(of_put.position > 0 && of_delete.position == of_put.position + 1);
    CHECK(of_reads.position == of_delete.position);
    IS(NS_BAD_ARGUMENT, ns_receipt_of_commit(session, NULL));
    IS(NS_BAD_ARGUMENT, ns_receipt_wait(session, of_put, 0, NULL));
    OK(ns_receipt_wait(session, of_put, 1, &state));
    CHECK(state == NS_RECEIPT_PENDING);
    OK(ns_stream_next(stream, &entry));
    CHECK(entry.lost == 0 && entry.number == of_put.position);
    OK(ns_stream_records(stream, see_record, &told));
    CHECK(told.records == 2 && told.blocks == 2 && told.cell == '5');
    IS(NS_BAD_ARGUMENT, ns_stream_records(stream, NULL, NULL));
    OK(ns_stream_acknowledge(stream));
    OK(ns_receipt_wait(session, of_put, 0, &state));
    CHECK(state == NS_RECEIPT_REPLICATED);
    OK(ns_receipt_wait(session, of_delete, 0, &state));
    CHECK(state == NS_RECEIPT_PENDING);
    OK(ns_stream_next(stream, &entry));
    CHECK(entry.number == of_delete.position);
    OK(ns_stream_close(stream));
    /* Transactions that were not acknowledged are read again. */
    OK(ns_stream_open(session, &stream));
    OK(ns_stream_next(stream, &entry));
    CHECK(entry.number == of_delete.position);
    OK(ns_stream_records(stream, see_deletion, &deletions));
    CHECK(deletions == 1 && ns_stream_next(stream, &entry) == NS_NOT_FOUND);
    OK(ns_stream_close(stream));
    OK(ns_stream_close(NULL));
}

static void a_full_stream_refuses_commits_until_it_is_acknowledged(void)
{
    ns_stream *stream;
    ns_stream_entry entry;
    static uint8_t value[60000];
    uint64_t put = 0, told = 0;
    ns_status status;
    IS(NS_BAD_ARGUMENT, ns_namespace_enable_stream(session, values, 0));
    IS(NS_BAD_ARGUMENT, ns_namespace_enable_stream(NULL, values, NS_STREAM_FULL_REFUSE));
    IS(NS_BAD_ARGUMENT, ns_stream_open(session, NULL));
    IS(NS_BAD_ARGUMENT, ns_stream_next(NULL, &entry));
    IS(NS_BAD_ARGUMENT, ns_stream_acknowledge(NULL));
    OK(ns_namespace_enable_stream(session, values, NS_STREAM_FULL_REFUSE));
    OK(ns_stream_open(session, &stream));
    IS(NS_BAD_ARGUMENT, ns_stream_next(stream, NULL));
    do {
        status = ns_put(session, values, ns_text("k"), some(value, sizeof value), NULL);
        put += status == NS_OK;
    } while (status == NS_OK && put < 1000);
    CHECK(status == NS_BEHIND);
    while (ns_stream_next(stream, &entry) == NS_OK)
        told += entry.lost == 0;
    CHECK(told == put);
    OK(ns_stream_acknowledge(stream));
    OK(ns_put(session, values, ns_text("k"), some(value, sizeof value), NULL));
    /* A stream that overwrites reports the number of lost transactions. */
    OK(ns_namespace_enable_stream(session, values, NS_STREAM_FULL_OVERWRITE));
    for (put = 1; put <= 200; put++)
        OK(ns_put(session, values, ns_text("k"), some(value, sizeof value), NULL));
    ns_receipt last;
    uint32_t state = 0;
    OK(ns_receipt_of_commit(session, &last));
    OK(ns_stream_next(stream, &entry));
    CHECK(entry.lost > 0 && entry.lost <= 201);
    IS(NS_BAD_ARGUMENT, ns_stream_records(stream, see_record, NULL));
    for (put = entry.lost; ns_stream_next(stream, &entry) == NS_OK; put++)
        CHECK(entry.lost == 0);
    CHECK(put == 201);
    OK(ns_stream_acknowledge(stream));
    OK(ns_receipt_wait(session, last, 0, &state));
    CHECK(state == NS_RECEIPT_REPLICATED);
    last.position -= 200;
    OK(ns_receipt_wait(session, last, 0, &state));
    CHECK(state == NS_RECEIPT_LOST);
    OK(ns_stream_close(stream));
}

static void a_commit_waits_as_its_namespace_and_its_session_say(void)
{
    ns_namespace replicated, local;
    ns_stream *stream;
    ns_stream_entry entry;
    ns_receipt first, second, decided;
    ns_receipt_set *set;
    struct epoll_event ready;
    uint32_t policy = 0, state = 0;
    int fd = -1;
    OK(ns_namespace_open_with_policy(session, ns_text("r"), NS_KIND_VALUE, NS_POLICY_REPLICATED,
                                     &replicated));
    OK(ns_namespace_open_with_policy(session, ns_text("l"), NS_KIND_VALUE, NS_POLICY_LOCAL,
                                     &local));
    OK(ns_namespace_get_policy(session, replicated, &policy));
    CHECK(policy == NS_POLICY_REPLICATED);
    IS(NS_BAD_ARGUMENT, ns_namespace_set_policy(session, replicated, NS_POLICY_LOCAL));
    IS(NS_BAD_ARGUMENT, ns_namespace_set_policy(session, replicated, 0));
    IS(NS_BAD_ARGUMENT, ns_session_set_commit_wait(session, 0, 1));
    OK(ns_put(session, local, ns_text("k"), ns_text("v"), NULL));
    /* Nothing acknowledges: the commit stands, and says so. */
    OK(ns_session_set_commit_wait(session, NS_WAIT_BY_NAMESPACE, 1));
    IS(NS_NOT_REPLICATED, ns_put(session, replicated, ns_text("k"), ns_text("1"), NULL));
    OK(ns_receipt_of_commit(session, &first));
    CHECK(first.position != 0);
    OK(ns_session_set_commit_wait(session, NS_WAIT_NEVER, 1));
    OK(ns_put(session, replicated, ns_text("k"), ns_text("2"), NULL));
    OK(ns_receipt_of_commit(session, &second));
    OK(ns_namespace_set_policy(session, replicated, NS_POLICY_ASYNC));
    OK(ns_session_set_commit_wait(session, NS_WAIT_BY_NAMESPACE, 1));
    OK(ns_put(session, replicated, ns_text("k"), ns_text("3"), NULL));
    OK(ns_session_set_commit_wait(session, NS_WAIT_ALWAYS, 1));
    IS(NS_NOT_REPLICATED, ns_put(session, replicated, ns_text("k"), ns_text("4"), NULL));
    OK(ns_put(session, local, ns_text("k"), ns_text("v"), NULL));
    /* One of a log that this region has neither written nor taken over is not decided here. */
    ns_receipt foreign = second;
    CHECK(first.incarnation == second.incarnation && second.incarnation != 0);
    foreign.incarnation ^= (uint64_t)1 << 60;
    OK(ns_receipt_wait(session, foreign, LONG_MS, &state));
    CHECK(state == NS_RECEIPT_UNKNOWN);
    /* The owner has what it gave receipts for, and is the owner without a cluster. */
    OK(ns_read_wait_applied(session, second, 0));
    OK(ns_read_check_owner(session, replicated));
    IS(NS_OUTCOME_UNKNOWN, ns_read_wait_applied(session, foreign, LONG_MS));
    IS(NS_BAD_ARGUMENT, ns_read_wait_applied(NULL, second, 0));
    IS(NS_BAD_ARGUMENT, ns_read_check_owner(NULL, replicated));
    /* An event loop is told of both. */
    OK(ns_receipt_set_open(session, &set));
    OK(ns_receipt_set_fd(set, &fd));
    OK(ns_receipt_set_add(set, second));
    OK(ns_receipt_set_add(set, first));
    IS(NS_NOT_FOUND, ns_receipt_set_next(set, &decided, &state));
    int loop = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    CHECK(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(epoll_wait(loop, &ready, 1, 0) == 0);
    OK(ns_stream_open(session, &stream));
    while (ns_stream_next(stream, &entry) == NS_OK)
        ;
    OK(ns_stream_acknowledge(stream));
    for (int count = 0; count < 2;) {
        CHECK(epoll_wait(loop, &ready, 1, LONG_MS) == 1);
        while (ns_receipt_set_next(set, &decided, &state) == NS_OK) {
            CHECK(decided.position == (count == 0 ? first : second).position);
            CHECK(state == NS_RECEIPT_REPLICATED);
            count++;
        }
    }
    /* One that is decided, between two that are not. */
    ns_receipt before, after;
    OK(ns_session_set_commit_wait(session, NS_WAIT_NEVER, 1));
    OK(ns_put(session, replicated, ns_text("k"), ns_text("5"), NULL));
    OK(ns_receipt_of_commit(session, &before));
    OK(ns_put(session, replicated, ns_text("k"), ns_text("6"), NULL));
    OK(ns_receipt_of_commit(session, &after));
    CHECK(after.position > before.position);
    foreign.position = before.position;
    foreign.incarnation = before.incarnation + ((uint64_t)1 << 60);
    OK(ns_receipt_set_add(set, before));
    OK(ns_receipt_set_add(set, after));
    OK(ns_receipt_set_add(set, foreign));
    CHECK(epoll_wait(loop, &ready, 1, 0) == 1);
    OK(ns_receipt_set_next(set, &decided, &state));
    CHECK(decided.incarnation == foreign.incarnation && state == NS_RECEIPT_UNKNOWN);
    IS(NS_NOT_FOUND, ns_receipt_set_next(set, &decided, &state));
    OK(ns_receipt_set_remove(set, before));
    OK(ns_receipt_set_remove(set, after));
    close(loop);
    OK(ns_receipt_set_add(set, first));
    OK(ns_receipt_set_remove(set, first));
    CHECK(ns_receipt_set_remove(set, first) == NS_NOT_FOUND);
    IS(NS_NOT_FOUND, ns_receipt_set_next(set, &decided, &state));
    IS(NS_BAD_ARGUMENT, ns_receipt_set_remove(NULL, first));
    OK(ns_receipt_set_close(set));
    OK(ns_receipt_set_close(NULL));
    IS(NS_BAD_ARGUMENT, ns_receipt_set_next(NULL, &decided, &state));
    OK(ns_stream_close(stream));
    OK(ns_session_set_commit_wait(session, NS_WAIT_BY_NAMESPACE, 1000));
}

static const struct promise promises[] = {
    TEST(a_watch_reports_changes_in_order),
    TEST(a_watch_rejects_invalid_arguments),
    TEST(an_event_loop_waits_for_two_watches_at_once),
    TEST(a_slow_watcher_learns_how_many_events_it_lost),
    TEST(a_forked_child_must_open_a_new_watch),
    TEST(the_stream_contains_every_commit_completely),
    TEST(a_full_stream_refuses_commits_until_it_is_acknowledged),
    TEST(a_commit_waits_as_its_namespace_and_its_session_say),
};

int main(int argc, char **argv)
{
    return keep(argc, argv, promises, LEN(promises));
}
