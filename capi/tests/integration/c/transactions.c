/* Tests of transactions and objects: `transactions TEST PATH`, with the path of a region that does
 * not exist. Exits with 0 if the test passes, otherwise prints the failed line. */
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

static uint64_t expiry_of(const ns_view *view)
{
    uint64_t expires_ms = UINT64_MAX;
    OK(ns_view_expires(view, &expires_ms));
    return expires_ms;
}

static ns_session *other;
static ns_namespace others_values;

static bool is(ns_bytes bytes, const char *text)
{
    return bytes.len == strlen(text) && memcmp(bytes.data, text, bytes.len) == 0;
}

static void open_other(void)
{
    OK(ns_session_open(region, &other));
    OK(ns_namespace_open(other, ns_text("values"), NS_KIND_VALUE, &others_values));
}

static void close_other(void)
{
    OK(ns_session_close(other));
}

static bool has(const char *key, const char *value)
{
    ns_view view;
    ns_status status = ns_get(other, others_values, ns_text(key), &view);
    if (value == NULL)
        return status == NS_NOT_FOUND;
    bool told = status == NS_OK && is(view.value, value);
    ns_view_release(&view);
    return told;
}

static bool count_pair(void *context, ns_bytes name, ns_bytes bytes)
{
    CHECK(name.len > 0 && bytes.data != NULL);
    *(int *)context += 1;
    return true;
}

static void a_transaction_is_atomic(void)
{
    ns_txn *txn;
    ns_view record;
    ns_bytes block;
    int met = 0;
    ns_block_change changes[] = {
        {ns_text("auth"), ns_text("k"), false},
        {ns_text("location"), ns_text("cell 5"), false},
    };
    OK(ns_put(session, values, ns_text("old"), ns_text("1"), NULL));
    for (int round = 0; round < 2; round++) {
        OK(ns_txn_begin(session, &txn));
        OK(ns_txn_put(txn, values, ns_text("a"), ns_text("1")));
        OK(ns_txn_patch(txn, blocks, ns_text("ue"), (ns_block_change_list){changes, 2}));
        OK(ns_txn_get(txn, values, ns_text("old"), &record));
        CHECK(is(record.value, "1") && record.version != 0 && expiry_of(&record) == 0);
        OK(ns_txn_delete(txn, values, ns_text("old")));
        CHECK(ns_txn_get(txn, values, ns_text("old"), &record) == NS_NOT_FOUND);
        CHECK(ns_txn_delete(txn, values, ns_text("old")) == NS_NOT_FOUND);
        /* Only the transaction sees its own writes. */
        OK(ns_txn_get(txn, values, ns_text("a"), &record));
        CHECK(is(record.value, "1") && record.version == 0);
        OK(ns_txn_get(txn, blocks, ns_text("ue"), &record));
        OK(ns_view_block(&record, ns_text("location"), &block));
        CHECK(is(block, "cell 5") && record.value.len == 0);
        CHECK(ns_view_block(&record, ns_text("qos"), &block) == NS_NOT_FOUND);
        CHECK(has("a", NULL) && has("old", "1"));
        if (round == 0)
            OK(ns_txn_abort(txn));
        else
            OK(ns_txn_commit(txn));
        CHECK(round == 0 ? has("a", NULL) && has("old", "1") : has("a", "1") && has("old", NULL));
    }
    OK(ns_txn_begin(session, &txn));
    OK(ns_txn_get(txn, blocks, ns_text("ue"), &record));
    OK(ns_view_blocks(&record, count_pair, &met));
    CHECK(met == 2);
    OK(ns_txn_commit(txn));
}

static void metadata_belongs_to_its_record(void)
{
    ns_txn *txn;
    ns_view record;
    int met = 0;
    ns_tag tags[] = {{ns_text("imsi"), ns_text("001")}, {ns_text("cell"), ns_text("5")}};
    ns_metadata metadata = {tags, 2, 0}, many = {tags, SIZE_MAX, 0}, none = {NULL, 2, 0};
    ns_metadata past = {NULL, 0, 1};
    OK(ns_txn_begin(session, &txn));
    OK(ns_txn_put_with_metadata(txn, values, ns_text("ue"), ns_text("v"), metadata));
    IS(NS_BAD_ARGUMENT, ns_txn_put_with_metadata(txn, values, ns_text("ue"), ns_text("v"), many));
    IS(NS_BAD_ARGUMENT, ns_txn_put_with_metadata(txn, values, ns_text("ue"), ns_text("v"), none));
    OK(ns_txn_commit(txn));
    metadata.expires_ms = 4102444800000; /* 2100 */
    OK(ns_txn_begin(session, &txn));
    OK(ns_txn_get(txn, values, ns_text("ue"), &record));
    OK(ns_view_tags(&record, count_pair, &met));
    CHECK(met == 2 && expiry_of(&record) == 0);
    OK(ns_txn_set_metadata(txn, values, ns_text("ue"), metadata));
    CHECK(ns_txn_set_metadata(txn, values, ns_text("absent"), metadata) == NS_NOT_FOUND);
    OK(ns_txn_commit(txn));
    OK(ns_txn_begin(session, &txn));
    OK(ns_txn_get(txn, values, ns_text("ue"), &record));
    CHECK(expiry_of(&record) == metadata.expires_ms && is(record.value, "v"));
    OK(ns_txn_put_with_metadata(txn, values, ns_text("ue"), ns_text("v"), past));
    OK(ns_txn_commit(txn));
    CHECK(has("ue", NULL)); /* It has expired. */
}

static void a_conflict_is_a_status_and_changes_nothing(void)
{
    ns_txn *txn;
    ns_view record;
    OK(ns_put(session, values, ns_text("a"), ns_text("1"), NULL));
    OK(ns_txn_begin(session, &txn));
    OK(ns_txn_get(txn, values, ns_text("a"), &record));
    OK(ns_txn_put(txn, values, ns_text("b"), ns_text("1")));
    OK(ns_put(other, others_values, ns_text("a"), ns_text("2"), NULL));
    CHECK(is(record.value, "1")); /* What it has read does not move. */
    IS(NS_CONFLICT, ns_txn_commit(txn));
    CHECK(has("b", NULL) && has("a", "2"));
    /* A read that is inconsistent with earlier ones fails at once. */
    OK(ns_txn_begin(session, &txn));
    OK(ns_txn_get(txn, values, ns_text("a"), &record));
    OK(ns_put(other, others_values, ns_text("a"), ns_text("3"), NULL));
    IS(NS_CONFLICT, ns_txn_get(txn, values, ns_text("b"), &record));
    IS(NS_CONFLICT, ns_txn_commit(txn));
}

struct run {
    int runs;
    int conflicts;
    int32_t answer;
    ns_address address;
};

static int32_t add(void *context, ns_txn *txn)
{
    struct run *run = (struct run *)context;
    ns_view record;
    void *memory;
    run->runs += 1;
    IS(NS_BAD_ARGUMENT, ns_txn_commit(txn));
    IS(NS_BAD_ARGUMENT, ns_txn_abort(txn));
    CHECK(ns_session_close(session) == NS_BAD_ARGUMENT);
    OK(ns_txn_get(txn, values, ns_text("a"), &record));
    OK(ns_txn_put(txn, values, ns_text("b"), record.value));
    OK(ns_txn_alloc(txn, 8, &run->address));
    OK(ns_txn_open_write(txn, run->address, 8, &memory));
    memcpy(memory, "written", 8);
    if (run->runs <= run->conflicts)
        OK(ns_put(other, others_values, ns_text("a"), ns_text("new"), NULL));
    if (run->runs == 2)
        return ns_txn_get(txn, values, ns_text("c"), &record); /* This call detects the conflict. */
    return run->answer;
}

/* The first run meets a conflict and aborts with another status; the second one commits. */
static int32_t gives_up_after_a_conflict(void *context, ns_txn *txn)
{
    struct run *run = (struct run *)context;
    ns_view record;
    run->runs += 1;
    OK(ns_txn_get(txn, values, ns_text("a"), &record));
    OK(ns_txn_put(txn, values, ns_text("b"), record.value));
    if (run->runs == 1) {
        OK(ns_put(other, others_values, ns_text("a"), ns_text("new"), NULL));
        if (ns_txn_get(txn, values, ns_text("c"), &record) != NS_OK)
            return NS_NOT_FOUND;
    }
    return NS_OK;
}

static void the_status_of_a_run_that_met_a_conflict_is_not_returned(void)
{
    struct run run = {0, 0, NS_OK, 0};
    OK(ns_put(session, values, ns_text("a"), ns_text("old"), NULL));
    OK(ns_transact(session, gives_up_after_a_conflict, &run));
    CHECK(run.runs == 2 && has("b", "new"));
}

static void a_function_is_retried_until_it_commits(void)
{
    struct run run = {0, 3, NS_OK, 0};
    uint64_t objects, bytes;
    OK(ns_put(session, values, ns_text("a"), ns_text("old"), NULL));
    OK(ns_transact(session, add, &run));
    CHECK(run.runs == 4 && has("b", "new"));
    OK(ns_object_count(other, &objects, &bytes));
    CHECK(objects == 1 && bytes == 8); /* Nothing remains of the three aborted runs. */
    OK(ns_object_count(other, &objects, NULL));
    IS(NS_BAD_ARGUMENT, ns_object_count(other, NULL, &bytes));
    OK(ns_delete(session, values, ns_text("b")));
    /* The function may abort with any status. */
    run = (struct run){0, 0, NS_NOT_FOUND, 0};
    CHECK(ns_transact(session, add, &run) == NS_NOT_FOUND && run.runs == 1 && has("b", NULL));
    run = (struct run){0, 0, 4711, 0};
    IS(NS_BAD_ARGUMENT, ns_transact(session, add, &run));
    CHECK(strstr(ns_last_error(), "4711") != NULL && run.runs == 1 && has("b", NULL));
    run = (struct run){10, 1000000, NS_OK, 0};
    IS(NS_DEADLINE, ns_transact(session, add, &run));
    CHECK(run.runs == 1010 && has("b", NULL));
    IS(NS_BAD_ARGUMENT, ns_transact(session, NULL, &run));
    IS(NS_BAD_ARGUMENT, ns_transact(NULL, add, &run));
    OK(ns_object_count(other, &objects, NULL));
    CHECK(objects == 1);
}

struct hand_over {
    ns_namespace contexts, by_teid;
    ns_bytes supi, old_teid, new_teid;
};

static int32_t hand_over(void *context, ns_txn *txn)
{
    struct hand_over *ue = context;
    ns_view record;
    int32_t status = ns_txn_get(txn, ue->contexts, ue->supi, &record);
    if (status == NS_OK)
        status = ns_txn_put(txn, ue->by_teid, ue->new_teid, ue->supi);
    if (status == NS_OK)
        status = ns_txn_delete(txn, ue->by_teid, ue->old_teid);
    return status;
}

static void the_example_of_the_guide_works(void)
{
    struct hand_over ue = {values, values, ns_text("supi"), ns_text("teid 1"), ns_text("teid 2")};
    CHECK(ns_transact(session, hand_over, &ue) == NS_NOT_FOUND);
    OK(ns_put(session, values, ue.supi, ns_text("context"), NULL));
    CHECK(ns_transact(session, hand_over, &ue) == NS_NOT_FOUND && has("teid 2", NULL));
    OK(ns_put(session, values, ue.old_teid, ue.supi, NULL));
    OK(ns_transact(session, hand_over, &ue));
    CHECK(has("teid 1", NULL) && has("teid 2", "supi"));
}

struct node {
    ns_address next;
    uint64_t number;
    char text[200];
};

static bool meet_object(void *context, ns_address address, ns_bytes object)
{
    CHECK(address != 0 && (uintptr_t)object.data % 16 == 0);
    *(size_t *)context += object.len;
    return true;
}

static void an_opened_object_does_not_move(void)
{
    ns_txn *txn;
    ns_address first, second;
    void *memory, *again, *part;
    const void *place, *before;
    size_t bytes;
    OK(ns_txn_begin(session, &txn));
    OK(ns_txn_alloc(txn, sizeof(struct node), &first));
    OK(ns_txn_alloc(txn, sizeof(struct node), &second));
    CHECK(first != 0 && second != 0 && first != second);
    OK(ns_txn_open_write(txn, first, sizeof(struct node), &memory));
    CHECK((uintptr_t)memory % 16 == 0);
    struct node *node = (struct node *)memory;
    CHECK(node->next == 0 && node->number == 0);
    node->next = second;
    node->number = 1;
    for (int count = 0; count < 100; count++) {
        ns_address more;
        OK(ns_txn_alloc(txn, 1000, &more));
        OK(ns_txn_open_write(txn, more, 1000, &again));
        OK(ns_txn_free(txn, more));
    }
    strcpy(node->text, "written late");
    OK(ns_txn_open_read(txn, first, sizeof(struct node), &place));
    CHECK(place == memory);
    OK(ns_txn_commit(txn));

    OK(ns_txn_begin(other, &txn));
    OK(ns_txn_object_size(txn, first, &bytes));
    CHECK(bytes == sizeof(struct node));
    OK(ns_txn_open_read(txn, first, sizeof(struct node), &before));
    const struct node *seen = (const struct node *)before;
    CHECK((uintptr_t)before % 16 == 0 && seen->next == second && seen->number == 1);
    CHECK(strcmp(seen->text, "written late") == 0);
    OK(ns_txn_open_read_range(txn, first, 8, 8, &place));
    CHECK((const char *)place == (const char *)before + 8);
    /* One range is opened, then another, then all: there is one copy. */
    OK(ns_txn_open_write_range(txn, first, 8, 8, &part));
    *(uint64_t *)part = 2;
    OK(ns_txn_open_write_range(txn, first, 0, 8, &again));
    *(ns_address *)again = 0;
    OK(ns_txn_open_write(txn, first, sizeof(struct node), &memory));
    CHECK(memory == again && (char *)memory + 8 == (char *)part);
    node = (struct node *)memory;
    CHECK(node->number == 2 && node->next == 0 && strcmp(node->text, "written late") == 0);
    /* The bytes in the region have not changed. */
    CHECK(seen->number == 1 && seen->next == second);
    OK(ns_txn_free(txn, second));
    OK(ns_txn_commit(txn));

    size_t all = 0;
    OK(ns_object_scan(session, meet_object, &all));
    CHECK(all == sizeof(struct node));
    IS(NS_BAD_ARGUMENT, ns_object_scan(session, NULL, &all));
    OK(ns_txn_begin(session, &txn));
    IS(NS_NO_OBJECT, ns_txn_open_read(txn, second, 1, &place));
    IS(NS_NO_OBJECT, ns_txn_open_write(txn, second, 1, &memory));
    IS(NS_NO_OBJECT, ns_txn_object_size(txn, second, &bytes));
    IS(NS_NO_OBJECT, ns_txn_free(txn, second));
    IS(NS_NO_OBJECT, ns_txn_free(txn, 0));
    IS(NS_BAD_ARGUMENT, ns_txn_open_read(txn, first, sizeof(struct node) + 1, &place));
    IS(NS_BAD_ARGUMENT, ns_txn_open_write_range(txn, first, SIZE_MAX, 8, &memory));
    IS(NS_BAD_ARGUMENT, ns_txn_open_read_range(txn, first, 8, SIZE_MAX, &place));
    IS(NS_VALUE_TOO_LARGE, ns_txn_alloc(txn, SIZE_MAX, &second));
    IS(NS_VALUE_TOO_LARGE, ns_txn_alloc(txn, NS_VALUE_BYTES_MAX + 1, &second));
    OK(ns_txn_open_read(txn, first, 0, &place));
    OK(ns_txn_abort(txn));
}

static void null_and_invalid_arguments_are_rejected(void)
{
    ns_txn *txn;
    ns_bytes key = ns_text("k"), nothing = some(NULL, 5), absurd = some("k", SIZE_MAX), block;
    ns_view record = {0};
    ns_metadata metadata = {NULL, 0, 0};
    ns_block_change_list none = {NULL, 0}, lost = {NULL, 1};
    ns_address address;
    size_t bytes;
    void *memory;
    const void *place;
    int met = 0;
    IS(NS_BAD_ARGUMENT, ns_txn_begin(NULL, &txn));
    IS(NS_BAD_ARGUMENT, ns_txn_begin(session, NULL));
    IS(NS_BAD_ARGUMENT, ns_txn_commit(NULL));
    OK(ns_txn_abort(NULL));
    OK(ns_txn_begin(session, &txn));
    IS(NS_BAD_ARGUMENT, ns_txn_get(NULL, values, key, &record));
    IS(NS_BAD_ARGUMENT, ns_txn_get(txn, values, nothing, &record));
    IS(NS_KEY_TOO_LARGE, ns_txn_get(txn, values, absurd, &record));
    IS(NS_BAD_ARGUMENT, ns_txn_get(txn, values, key, NULL));
    IS(NS_BAD_ARGUMENT, ns_txn_get(txn, others_values, key, &record));
    IS(NS_BAD_ARGUMENT, ns_txn_put(NULL, values, key, key));
    IS(NS_BAD_ARGUMENT, ns_txn_put(txn, values, nothing, key));
    IS(NS_BAD_ARGUMENT, ns_txn_put(txn, values, key, nothing));
    IS(NS_VALUE_TOO_LARGE, ns_txn_put(txn, values, key, absurd));
    IS(NS_WRONG_KIND, ns_txn_put(txn, blocks, key, key));
    IS(NS_BAD_ARGUMENT, ns_txn_put_with_metadata(NULL, values, key, key, metadata));
    IS(NS_BAD_ARGUMENT, ns_txn_set_metadata(NULL, values, key, metadata));
    IS(NS_BAD_ARGUMENT, ns_txn_patch(NULL, blocks, key, none));
    IS(NS_BAD_ARGUMENT, ns_txn_patch(txn, blocks, key, lost));
    IS(NS_WRONG_KIND, ns_txn_patch(txn, values, key, none));
    IS(NS_BAD_ARGUMENT, ns_txn_delete(NULL, values, key));
    IS(NS_BAD_ARGUMENT, ns_view_block(NULL, key, &block));
    IS(NS_BAD_ARGUMENT, ns_view_block(&record, key, &block));
    IS(NS_BAD_ARGUMENT, ns_view_blocks(&record, count_pair, &met));
    IS(NS_BAD_ARGUMENT, ns_view_tags(&record, count_pair, &met));
    IS(NS_BAD_ARGUMENT, ns_txn_alloc(NULL, 8, &address));
    IS(NS_BAD_ARGUMENT, ns_txn_alloc(txn, 8, NULL));
    OK(ns_txn_alloc(txn, 8, &address));
    IS(NS_BAD_ARGUMENT, ns_txn_open_read(NULL, address, 8, &place));
    IS(NS_BAD_ARGUMENT, ns_txn_open_read(txn, address, 8, NULL));
    IS(NS_BAD_ARGUMENT, ns_txn_open_write(NULL, address, 8, &memory));
    IS(NS_BAD_ARGUMENT, ns_txn_open_write(txn, address, 8, NULL));
    IS(NS_BAD_ARGUMENT, ns_txn_object_size(txn, address, NULL));
    IS(NS_BAD_ARGUMENT, ns_txn_object_size(NULL, address, &bytes));
    IS(NS_BAD_ARGUMENT, ns_txn_free(NULL, address));
    OK(ns_txn_put(txn, values, key, key));
    OK(ns_txn_get(txn, values, key, &record));
    IS(NS_BAD_ARGUMENT, ns_view_block(&record, key, NULL));
    IS(NS_BAD_ARGUMENT, ns_view_tags(&record, NULL, &met));
    CHECK(met == 0);
    OK(ns_txn_abort(txn));
    CHECK(has("k", NULL));
}

static void a_session_stays_open_while_a_transaction_is_open(void)
{
    ns_txn *one, *two;
    ns_view record;
    OK(ns_txn_begin(session, &one));
    OK(ns_txn_begin(session, &two));
    IS(NS_BAD_ARGUMENT, ns_session_close(session));
    OK(ns_txn_put(one, values, ns_text("a"), ns_text("1")));
    OK(ns_txn_put(two, values, ns_text("b"), ns_text("2")));
    CHECK(ns_txn_get(two, values, ns_text("a"), &record) == NS_NOT_FOUND);
    OK(ns_txn_commit(one));
    IS(NS_BAD_ARGUMENT, ns_session_close(session));
    IS(NS_CONFLICT, ns_txn_commit(two)); /* It had read that the record does not exist. */
    CHECK(has("a", "1") && has("b", NULL));
}

static void a_forked_child_cannot_commit(void)
{
    ns_txn *txn;
    ns_address address;
    OK(ns_txn_begin(session, &txn));
    OK(ns_txn_put(txn, values, ns_text("a"), ns_text("1")));
    OK(ns_txn_alloc(txn, 8, &address));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ns_txn *fresh;
        CHECK(ns_txn_begin(session, &fresh) == NS_FORKED);
        CHECK(ns_txn_alloc(txn, 8, &address) == NS_FORKED);
        CHECK(ns_txn_commit(txn) == NS_FORKED);
        _exit(0);
    }
    int told = -1;
    CHECK(waitpid(child, &told, 0) == child && told == 0 && has("a", NULL));
    OK(ns_txn_commit(txn));
    CHECK(has("a", "1"));
}

static const struct promise promises[] = {
    TEST(a_transaction_is_atomic),
    TEST(metadata_belongs_to_its_record),
    TEST(a_conflict_is_a_status_and_changes_nothing),
    TEST(the_status_of_a_run_that_met_a_conflict_is_not_returned),
    TEST(a_function_is_retried_until_it_commits),
    TEST(the_example_of_the_guide_works),
    TEST(an_opened_object_does_not_move),
    TEST(null_and_invalid_arguments_are_rejected),
    TEST(a_session_stays_open_while_a_transaction_is_open),
    TEST(a_forked_child_cannot_commit),
};

int main(int argc, char **argv)
{
    also_open = open_other;
    also_close = close_other;
    return keep(argc, argv, promises, LEN(promises));
}
