/* Tests of records for update: `for_update TEST PATH`, with the path of a region that does not
 * exist. */
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

enum { PROFILE, BEARER, HANDOVERS, NAMES };

static ns_block_layout *names;

static void open_names(void)
{
    ns_bytes list[NAMES] = {ns_text("profile"), ns_text("bearer"), ns_text("handovers")};
    OK(ns_block_layout_open(session, (ns_name_list){list, NAMES}, &names));
}

static void close_names(void)
{
    ns_block_layout_close(names);
    names = NULL;
    ns_block_layout_close(NULL);
}

static bool is(ns_bytes bytes, const char *text)
{
    return bytes.len == strlen(text) && memcmp(bytes.data, text, bytes.len) == 0;
}

static ns_indexed_change at(size_t place, const char *text)
{
    ns_indexed_change change = {place, ns_text(text)};
    return change;
}

/* Writes a record of two blocks and returns its version. */
static uint64_t start_context(const char *key)
{
    uint64_t version;
    ns_block_change both[] = {
        {ns_text("profile"), ns_text("gold"), false},
        {ns_text("bearer"), ns_text("5"), false},
    };
    OK(ns_patch(session, blocks, ns_text(key), (ns_block_change_list){both, LEN(both)}, &version));
    return version;
}

static void hold_blocks(const char *key, const char *profile, const char *bearer)
{
    ns_view view;
    ns_bytes block;
    OK(ns_get(session, blocks, ns_text(key), &view));
    OK(ns_view_block(&view, ns_text("profile"), &block));
    CHECK(is(block, profile));
    OK(ns_view_block(&view, ns_text("bearer"), &block));
    CHECK(is(block, bearer));
    ns_view_release(&view);
}

struct amf {
    ns_session *session;
    ns_namespace contexts;
    ns_block_layout *names;
};

/* The example of clients/c/README.md. */
static ns_status hand_over(struct amf *amf, ns_bytes supi, ns_bytes bearer, uint64_t *version)
{
    ns_record_for_update context;
    ns_bytes groups[NAMES];
    ns_status status = ns_get_for_update(amf->session, amf->contexts, supi, &context);
    if (status != NS_OK)
        return status;
    status = ns_record_for_update_blocks(&context, amf->names, NAMES, groups);
    if (status == NS_OK && groups[PROFILE].data == NULL)
        status = NS_NOT_FOUND; /* It has no such block. */
    if (status == NS_OK) {
        ns_indexed_change change = {BEARER, bearer};
        ns_indexed_change_list changes = {&change, 1};
        status = ns_record_for_update_patch(&context, amf->names, changes, version);
    }
    ns_record_for_update_release(&context);
    return status;
}

static void the_example_of_the_guide_works(void)
{
    struct amf amf = {session, blocks, names};
    ns_block_change other = {ns_text("other"), ns_text("o"), false};
    uint64_t first = start_context("imsi-1"), version;
    OK(hand_over(&amf, ns_text("imsi-1"), ns_text("6"), &version));
    CHECK(version > first);
    hold_blocks("imsi-1", "gold", "6");
    CHECK(hand_over(&amf, ns_text("absent"), ns_text("6"), &version) == NS_NOT_FOUND);
    OK(ns_patch(session, blocks, ns_text("imsi-2"), (ns_block_change_list){&other, 1}, NULL));
    CHECK(hand_over(&amf, ns_text("imsi-2"), ns_text("6"), &version) == NS_NOT_FOUND);
}

static void a_value_is_written_unless_the_record_changed(void)
{
    ns_record_for_update record;
    uint64_t first, second, version = 7;
    CHECK(ns_get_for_update(session, values, ns_text("k"), &record) == NS_NOT_FOUND);
    CHECK(record.view.version == 0 && record.view.value.len == 0);
    ns_record_for_update_release(&record); /* Releasing an empty record is allowed. */
    OK(ns_put(session, values, ns_text("k"), some("a\0b", 3), &first));

    OK(ns_get_for_update(session, values, ns_text("k"), &record));
    CHECK(record.view.version == first && is(record.view.key, "k"));
    CHECK(record.view.value.len == 3 && memcmp(record.view.value.data, "a\0b", 3) == 0);
    OK(ns_record_for_update_put(&record, ns_text("next"), &second));
    /* The version that was read does not change. */
    CHECK(second > first && record.view.value.len == 3);
    CHECK(ns_record_for_update_put(&record, ns_text("again"), &version) == NS_REFUSED);
    CHECK(version == second); /* One change per read. */
    ns_record_for_update_release(&record);

    OK(ns_get_for_update(session, values, ns_text("k"), &record));
    OK(ns_put(session, values, ns_text("k"), ns_text("faster"), &first));
    CHECK(ns_record_for_update_put(&record, ns_text("late"), &version) == NS_REFUSED
          && version == first);
    OK(ns_delete(session, values, ns_text("k")));
    CHECK(ns_record_for_update_put(&record, ns_text("late"), &version) == NS_REFUSED
          && version == 0);
    OK(ns_put(session, values, ns_text("k"), ns_text("next"), NULL));
    CHECK(ns_record_for_update_put(&record, ns_text("late"), NULL) == NS_REFUSED);
    ns_record_for_update_release(&record);
}

static void blocks_are_addressed_by_the_index_of_their_names(void)
{
    ns_record_for_update record;
    ns_bytes shown[NAMES + 1];
    uint64_t first = start_context("imsi-1"), version;
    shown[NAMES] = ns_text("untouched");

    OK(ns_get_for_update(session, blocks, ns_text("imsi-1"), &record));
    OK(ns_record_for_update_blocks(&record, names, NAMES, shown));
    CHECK(is(shown[PROFILE], "gold") && is(shown[BEARER], "5"));
    CHECK(shown[HANDOVERS].data == NULL && is(shown[NAMES], "untouched"));
    ns_indexed_change changes[] = {at(BEARER, "6"), at(HANDOVERS, "")};
    OK(ns_record_for_update_patch(&record, names, (ns_indexed_change_list){changes, 2}, &version));
    CHECK(version > first && is(shown[BEARER], "5"));
    ns_record_for_update_release(&record);
    hold_blocks("imsi-1", "gold", "6");

    OK(ns_get_for_update(session, blocks, ns_text("imsi-1"), &record));
    CHECK(record.view.version == version);
    OK(ns_record_for_update_blocks(&record, names, NAMES, shown));
    CHECK(shown[HANDOVERS].data != NULL && shown[HANDOVERS].len == 0); /* It exists and is empty. */
    shown[BEARER] = ns_text("untouched");
    OK(ns_record_for_update_blocks(&record, names, 1, shown));
    CHECK(is(shown[PROFILE], "gold") && is(shown[BEARER], "untouched"));
    OK(ns_record_for_update_blocks(&record, names, 0, NULL));
    OK(ns_record_for_update_patch(&record, names, (ns_indexed_change_list){NULL, 0}, NULL));
    ns_record_for_update_release(&record);
    hold_blocks("imsi-1", "gold", "6");
}

static void the_maximum_number_of_blocks_is_changed_in_one_step(void)
{
    static char texts[NS_BLOCKS_MAX][8];
    static ns_bytes list[NS_BLOCKS_MAX], shown[NS_BLOCKS_MAX];
    static ns_indexed_change changes[NS_BLOCKS_MAX];
    ns_block_layout *many;
    ns_record_for_update record;
    for (size_t place = 0; place < NS_BLOCKS_MAX; place++) {
        snprintf(texts[place], sizeof texts[place], "b%zu", place);
        list[place] = ns_text(texts[place]);
        changes[place] = at(place, texts[place]);
    }
    OK(ns_block_layout_open(session, (ns_name_list){list, NS_BLOCKS_MAX}, &many));
    for (size_t count = 15; count <= 18; count++) {
        const char key[] = {'k', (char)('0' + count), 0};
        ns_block_change one = {list[0], ns_text("old"), false};
        OK(ns_patch(session, blocks, ns_text(key), (ns_block_change_list){&one, 1}, NULL));
        OK(ns_get_for_update(session, blocks, ns_text(key), &record));
        OK(ns_record_for_update_patch(&record, many, (ns_indexed_change_list){changes, count},
                                      NULL));
        ns_record_for_update_release(&record);
        OK(ns_get_for_update(session, blocks, ns_text(key), &record));
        OK(ns_record_for_update_blocks(&record, many, NS_BLOCKS_MAX, shown));
        for (size_t place = 0; place < NS_BLOCKS_MAX; place++)
            CHECK(place < count ? is(shown[place], texts[place]) : shown[place].data == NULL);
        ns_record_for_update_release(&record);
    }
    OK(ns_get_for_update(session, blocks, ns_text("k?"), &record));
    OK(ns_record_for_update_patch(&record, many, (ns_indexed_change_list){changes, NS_BLOCKS_MAX},
                                  NULL));
    ns_record_for_update_release(&record);
    ns_block_layout_close(many);
}

static void view_functions_accept_a_record_for_update(void)
{
    ns_record_for_update record, moved;
    ns_bytes block;
    uint64_t expires;
    start_context("imsi-1");
    OK(ns_get_for_update(session, blocks, ns_text("imsi-1"), &record));
    OK(ns_view_block(&record.view, ns_text("profile"), &block));
    CHECK(is(block, "gold"));
    OK(ns_view_expires(&record.view, &expires));
    CHECK(expires == 0);
    ns_view_release(&record.view); /* It belongs to the record: no effect. */
    moved = record;
    OK(ns_view_block(&moved.view, ns_text("bearer"), &block));
    CHECK(is(block, "5"));
    ns_indexed_change change = at(BEARER, "6");
    OK(ns_record_for_update_patch(&moved, names, (ns_indexed_change_list){&change, 1}, NULL));
    ns_record_for_update_release(&moved);
    IS(NS_BAD_ARGUMENT, ns_view_block(&moved.view, ns_text("profile"), &block));
    hold_blocks("imsi-1", "gold", "6");
}

static void released_records_are_rejected(void)
{
    ns_record_for_update record, never = {0};
    ns_bytes shown[NAMES];
    ns_indexed_change change = at(BEARER, "6");
    ns_indexed_change_list one = {&change, 1};
    start_context("imsi-1");
    OK(ns_get_for_update(session, blocks, ns_text("imsi-1"), &record));
    ns_record_for_update_release(&record);
    ns_record_for_update_release(&record);
    ns_record_for_update_release(NULL);
    ns_record_for_update_release(&never);
    IS(NS_BAD_ARGUMENT, ns_record_for_update_put(&record, ns_text("v"), NULL));
    IS(NS_BAD_ARGUMENT, ns_record_for_update_patch(&record, names, one, NULL));
    IS(NS_BAD_ARGUMENT, ns_record_for_update_blocks(&record, names, NAMES, shown));
    IS(NS_BAD_ARGUMENT, ns_record_for_update_patch(&never, names, one, NULL));
    CHECK(record.view.version == 0 && record.view.value.data == NULL);
    hold_blocks("imsi-1", "gold", "5");
}

static void a_session_stays_open_while_a_record_is_held(void)
{
    ns_session *other;
    ns_namespace theirs;
    ns_block_layout *their_names;
    ns_record_for_update record, gone;
    ns_bytes name = ns_text("profile"), shown[NAMES];
    ns_indexed_change change = at(0, "silver");
    ns_indexed_change_list one = {&change, 1};
    start_context("imsi-1");
    OK(ns_session_open(region, &other));
    OK(ns_namespace_open(other, ns_text("blocks"), NS_KIND_BLOCKS, &theirs));
    OK(ns_block_layout_open(other, (ns_name_list){&name, 1}, &their_names));
    IS(NS_BAD_ARGUMENT, ns_get_for_update(other, blocks, ns_text("imsi-1"), &record));
    OK(ns_get_for_update(other, theirs, ns_text("imsi-1"), &record));
    IS(NS_BAD_ARGUMENT, ns_session_close(other));
    /* A layout is valid only in its session. */
    IS(NS_BAD_ARGUMENT, ns_record_for_update_patch(&record, names, one, NULL));
    IS(NS_BAD_ARGUMENT, ns_record_for_update_blocks(&record, names, 1, shown));
    OK(ns_record_for_update_patch(&record, their_names, one, NULL));
    ns_record_for_update_release(&record);
    OK(ns_get_for_update(other, theirs, ns_text("imsi-1"), &gone));
    ns_record_for_update_release(&gone);
    OK(ns_session_close(other)); /* Its layout may be closed later. */
    IS(NS_BAD_ARGUMENT, ns_record_for_update_patch(&gone, their_names, one, NULL));
    OK(ns_get_for_update(session, blocks, ns_text("imsi-1"), &record));
    IS(NS_BAD_ARGUMENT, ns_record_for_update_patch(&record, their_names, one, NULL));
    ns_record_for_update_release(&record);
    ns_block_layout_close(their_names);
    hold_blocks("imsi-1", "silver", "5");
}

static void invalid_arguments_are_rejected_and_change_nothing(void)
{
    ns_record_for_update record, value;
    ns_block_layout *other;
    ns_namespace counters;
    ns_bytes key = ns_text("imsi-1"), nothing = some(NULL, 5), shown[NAMES + 1];
    ns_bytes twice[] = {ns_text("a"), ns_text("a")}, with_nul = some("a\0b", 3);
    ns_indexed_change both[] = {at(BEARER, "6"), at(BEARER, "7")}, beyond = at(NAMES, "6");
    ns_indexed_change wild = {BEARER, some(NULL, 5)},
        huge = {BEARER, some("", NS_VALUE_BYTES_MAX + 1)};
    uint64_t version = 7;
#define IS_WRONG(call) IS(NS_BAD_ARGUMENT, call)
    start_context("imsi-1");
    OK(ns_put(session, values, key, ns_text("v"), NULL));
    OK(ns_namespace_open(session, ns_text("counters"), NS_KIND_COUNTERS, &counters));
    IS_WRONG(ns_block_layout_open(NULL, (ns_name_list){&key, 1}, &other));
    IS_WRONG(ns_block_layout_open(session, (ns_name_list){&key, 1}, NULL));
    IS_WRONG(ns_block_layout_open(session, (ns_name_list){NULL, 1}, &other));
    IS_WRONG(ns_block_layout_open(session, (ns_name_list){&nothing, 1}, &other));
    IS(NS_BAD_ARGUMENT, ns_block_layout_open(session, (ns_name_list){twice, 2}, &other));
    CHECK(strstr(ns_last_error(), "block \"a\" is named twice") != NULL);
    IS(NS_BAD_NAME, ns_block_layout_open(session, (ns_name_list){&with_nul, 1}, &other));
    IS(NS_TOO_MANY_BLOCKS, ns_block_layout_open(session, (ns_name_list){&key, SIZE_MAX}, &other));

    IS_WRONG(ns_get_for_update(NULL, blocks, key, &record));
    IS_WRONG(ns_get_for_update(session, blocks, nothing, &record));
    IS_WRONG(ns_get_for_update(session, blocks, key, NULL));
    IS(NS_KEY_TOO_LARGE,
       ns_get_for_update(session, blocks, some("", NS_KEY_BYTES_MAX + 1), &record));
    IS(NS_WRONG_KIND, ns_get_for_update(session, counters, key, &record));
    IS_WRONG(ns_record_for_update_put(&record, key, NULL)); /* It is empty. */

    OK(ns_get_for_update(session, blocks, key, &record));
    OK(ns_get_for_update(session, values, key, &value));
    IS_WRONG(ns_record_for_update_blocks(NULL, names, NAMES, shown));
    IS_WRONG(ns_record_for_update_blocks(&record, NULL, NAMES, shown));
    IS_WRONG(ns_record_for_update_blocks(&record, names, NAMES, NULL));
    IS_WRONG(ns_record_for_update_blocks(&record, names, NAMES + 1, shown));
    IS_WRONG(ns_record_for_update_blocks(&record, names, SIZE_MAX, shown));
    OK(ns_record_for_update_blocks(&value, names, NAMES, shown));
    CHECK(shown[PROFILE].data == NULL);
    IS_WRONG(ns_record_for_update_put(NULL, key, &version));
    IS_WRONG(ns_record_for_update_put(&value, nothing, &version));
    IS(NS_VALUE_TOO_LARGE, ns_record_for_update_put(&value, huge.bytes, &version));
    IS(NS_WRONG_KIND, ns_record_for_update_put(&record, key, &version));
    IS_WRONG(ns_record_for_update_patch(NULL, names, (ns_indexed_change_list){both, 1}, &version));
    IS_WRONG(ns_record_for_update_patch(&record, NULL, (ns_indexed_change_list){both, 1},
                                        &version));
    IS_WRONG(ns_record_for_update_patch(&record, names, (ns_indexed_change_list){NULL, 1},
                                        &version));
    IS_WRONG(ns_record_for_update_patch(&record, names, (ns_indexed_change_list){both, 2},
                                        &version));
    IS_WRONG(ns_record_for_update_patch(&record, names, (ns_indexed_change_list){&beyond, 1},
                                        &version));
    IS_WRONG(ns_record_for_update_patch(&record, names, (ns_indexed_change_list){&wild, 1},
                                        &version));
    IS(NS_VALUE_TOO_LARGE,
       ns_record_for_update_patch(&record, names, (ns_indexed_change_list){&huge, 1}, &version));
    IS(NS_TOO_MANY_BLOCKS,
       ns_record_for_update_patch(&record, names, (ns_indexed_change_list){both, SIZE_MAX},
                                  &version));
    IS(NS_WRONG_KIND,
       ns_record_for_update_patch(&value, names, (ns_indexed_change_list){both, 1}, &version));
    CHECK(version == 7);
    /* No failed call used up the one change of these reads. */
    OK(ns_record_for_update_put(&value, ns_text("w"), NULL));
    OK(ns_record_for_update_patch(&record, names, (ns_indexed_change_list){both, 1}, NULL));
    ns_record_for_update_release(&record);
    ns_record_for_update_release(&value);
    hold_blocks("imsi-1", "gold", "6");
}

static void a_patch_keeps_tags_and_a_put_removes_them(void)
{
    ns_record_for_update record;
    ns_view view;
    ns_tag tag = {ns_text("teid"), ns_text("77")};
    ns_tag_schema schema = {ns_text("teid"), NS_TAG_UNIQUE};
    ns_metadata metadata = {&tag, 1, 0};
    ns_namespace both[] = {values, blocks};
    ns_indexed_change change = at(BEARER, "6");
    ns_txn *txn;
    start_context("k");
    OK(ns_put(session, values, ns_text("k"), ns_text("v"), NULL));
    for (size_t place = 0; place < LEN(both); place++) {
        OK(ns_namespace_add_tags(session, both[place], (ns_tag_schema_list){&schema, 1}));
        OK(ns_txn_begin(session, &txn));
        OK(ns_txn_set_metadata(txn, both[place], ns_text("k"), metadata));
        OK(ns_txn_commit(txn));
    }
    OK(ns_get_for_update(session, blocks, ns_text("k"), &record));
    OK(ns_record_for_update_patch(&record, names, (ns_indexed_change_list){&change, 1}, NULL));
    ns_record_for_update_release(&record);
    OK(ns_find(session, blocks, tag, &view));
    ns_view_release(&view);
    hold_blocks("k", "gold", "6");
    OK(ns_get_for_update(session, values, ns_text("k"), &record));
    OK(ns_record_for_update_put(&record, ns_text("w"), NULL));
    ns_record_for_update_release(&record);
    CHECK(ns_find(session, values, tag, &view) == NS_NOT_FOUND);
}

static void a_forked_child_changes_nothing(void)
{
    ns_record_for_update record;
    ns_indexed_change change = at(BEARER, "6");
    ns_indexed_change_list one = {&change, 1};
    int status;
    start_context("imsi-1");
    OK(ns_get_for_update(session, blocks, ns_text("imsi-1"), &record));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(ns_record_for_update_patch(&record, names, one, NULL) == NS_FORKED);
        ns_record_for_update_release(&record);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(ns_record_for_update_patch(&record, names, one, NULL));
    ns_record_for_update_release(&record);
    hold_blocks("imsi-1", "gold", "6");
}

static const struct promise promises[] = {
    TEST(the_example_of_the_guide_works),
    TEST(a_value_is_written_unless_the_record_changed),
    TEST(blocks_are_addressed_by_the_index_of_their_names),
    TEST(the_maximum_number_of_blocks_is_changed_in_one_step),
    TEST(view_functions_accept_a_record_for_update),
    TEST(released_records_are_rejected),
    TEST(a_session_stays_open_while_a_record_is_held),
    TEST(invalid_arguments_are_rejected_and_change_nothing),
    TEST(a_patch_keeps_tags_and_a_put_removes_them),
    TEST(a_forked_child_changes_nothing),
};

int main(int argc, char **argv)
{
    also_open = open_names;
    also_close = close_names;
    return keep(argc, argv, promises, LEN(promises));
}
