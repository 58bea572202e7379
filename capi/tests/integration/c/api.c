/* Tests of the C API: `api TEST PATH`, with the path of a region that does not exist. Exits with 0
 * if the test passes, otherwise prints the failed line. */
#include <stdalign.h>
#include <sys/wait.h>
#include <unistd.h>

/* Network functions include these headers too: no name may clash. */
#include <arpa/nameser.h>
#include <resolv.h>

#include "fixture.h"

/* Counts the allocations of this process, including those of the library. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

static size_t allocations;

void *malloc(size_t bytes)
{
    allocations += 1;
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocations += 1;
    return __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    allocations += 1;
    return __libc_realloc(old, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    allocations += 1;
    *memory = __libc_memalign(alignment, bytes);
    return *memory == NULL ? 12 : 0;
}

static bool is(ns_bytes bytes, const void *data, size_t len)
{
    return bytes.len == len && (len == 0 || memcmp(bytes.data, data, len) == 0);
}

static void every_byte_of_a_value_counts(void)
{
    ns_view view;
    uint64_t first, second;
    OK(ns_put(session, values, some("k\0k", 3), some("a\0b", 3), &first));
    OK(ns_put(session, values, some("k\0l", 3), some("", 0), NULL));
    OK(ns_get(session, values, some("k\0k", 3), &view));
    CHECK(is(view.value, "a\0b", 3) && is(view.key, "k\0k", 3) && view.version == first);
    OK(ns_put(session, values, some("k\0k", 3), some("other", 5), &second));
    CHECK(second > first && is(view.value, "a\0b", 3)); /* A view does not change. */
    ns_view_release(&view);
    OK(ns_get_whole(session, values, some("k\0k", 3), &view));
    CHECK(is(view.value, "other", 5) && is(view.key, "k\0k", 3) && view.version == second);
    ns_view_release(&view);
    OK(ns_get(session, values, some("k\0l", 3), &view));
    CHECK(view.value.len == 0 && view.version != 0);
    ns_view_release(&view);
    CHECK(ns_get_whole(session, values, some("k", 1), &view) == NS_NOT_FOUND);
    CHECK(ns_get(session, values, some("k", 1), &view) == NS_NOT_FOUND);
    ns_view_release(&view); /* Releasing an empty view is allowed. */
}

static void conditions_apply_to_the_current_record(void)
{
    ns_bytes key = ns_text("k");
    uint64_t version, seen = 7;
    CHECK(ns_put_if_version(session, values, key, key, 1, &seen) == NS_REFUSED && seen == 0);
    CHECK(ns_put_if_value(session, values, key, key, some("", 0), NULL) == NS_REFUSED);
    OK(ns_put_if_absent(session, values, key, some("a\0b", 3), &version));
    CHECK(ns_put_if_absent(session, values, key, key, &seen) == NS_REFUSED && seen == version);
    CHECK(ns_put_if_value(session, values, key, key, some("a\0c", 3), &seen) == NS_REFUSED);
    OK(ns_put_if_value(session, values, key, some("d", 1), some("a\0b", 3), &seen));
    CHECK(seen > version);
    CHECK(ns_put_if_version(session, values, key, key, version, &version) == NS_REFUSED);
    CHECK(version == seen);
    OK(ns_put_if_version(session, values, key, some("e", 1), version, &version));
    CHECK(ns_delete_if_version(session, values, key, seen, &seen) == NS_REFUSED);
    CHECK(seen == version);
    CHECK(ns_delete_if_value(session, values, key, some("e\0", 2), NULL) == NS_REFUSED);
    OK(ns_delete_if_value(session, values, key, some("e", 1), NULL));
    CHECK(ns_delete(session, values, key) == NS_NOT_FOUND);
    CHECK(ns_delete_if_version(session, values, key, seen, &seen) == NS_REFUSED && seen == 0);
    OK(ns_put(session, values, key, key, &version));
    OK(ns_delete_if_version(session, values, key, version, &seen));
    CHECK(seen == version);
    OK(ns_put(session, values, key, key, NULL));
    OK(ns_delete(session, values, key));
}

static void a_copy_into_a_small_buffer_reports_the_size(void)
{
    uint8_t room[8] = {9, 9, 9, 9, 9, 9, 9, 9};
    ns_buffer buffer = {room, 2, 77, 77};
    uint64_t version;
    CHECK(ns_get_copy(session, values, ns_text("k"), &buffer) == NS_NOT_FOUND);
    OK(ns_put(session, values, ns_text("k"), some("a\0b", 3), &version));
    CHECK(ns_get_copy(session, values, ns_text("k"), &buffer) == NS_TOO_SMALL);
    CHECK(buffer.len == 3 && buffer.version == version && room[0] == 9);
    buffer.capacity = buffer.len;
    OK(ns_get_copy(session, values, ns_text("k"), &buffer));
    CHECK(memcmp(room, "a\0b\t", 4) == 0 && buffer.len == 3 && buffer.data == room);
    buffer.data = NULL;
    CHECK(ns_get_copy(session, values, ns_text("k"), &buffer) == NS_BAD_ARGUMENT);
    buffer.capacity = 0;
    CHECK(ns_get_copy(session, values, ns_text("k"), &buffer) == NS_TOO_SMALL);
    OK(ns_put(session, values, ns_text("k"), some(NULL, 0), NULL));
    OK(ns_get_copy(session, values, ns_text("k"), &buffer));
    CHECK(buffer.len == 0);
}

struct met {
    size_t count;
    size_t absent;
    size_t stop_after;
    size_t wrong;
};

static bool meet_numbered(void *context, size_t index, const ns_view *view)
{
    struct met *met = (struct met *)context;
    uint32_t number = (uint32_t)index;
    met->wrong += index != met->count;
    if (view == NULL)
        met->absent += 1;
    else
        met->wrong += !is(view->value, &number, sizeof number);
    met->count += 1;
    return met->count != met->stop_after;
}

static void a_batch_reports_every_key_in_order(void)
{
    uint32_t numbers[100];
    ns_bytes items[101];
    ns_key_list keys = {items, 101};
    struct met met = {0, 0, 0, 0};
    for (uint32_t number = 0; number < 100; number++) {
        numbers[number] = number;
        items[number] = some(&numbers[number], sizeof number);
        OK(ns_put(session, values, items[number], items[number], NULL));
    }
    items[100] = ns_text("absent");
    OK(ns_get_batch(session, values, keys, meet_numbered, &met));
    CHECK(met.count == 101 && met.absent == 1 && met.wrong == 0);
    met = (struct met){0, 0, 20, 0};
    OK(ns_get_batch(session, values, keys, meet_numbered, &met));
    CHECK(met.count == 20);
    items[30] = some(NULL, 0);
    OK(ns_put(session, values, items[30], ns_text("no key"), NULL));
    OK(ns_delete(session, values, items[30]));
    items[30].len = NS_KEY_BYTES_MAX + 1;
    CHECK(ns_get_batch(session, values, keys, meet_numbered, &met) == NS_KEY_TOO_LARGE);
    keys = (ns_key_list){NULL, 0};
    OK(ns_get_batch(session, values, keys, meet_numbered, &met));
}

static void reading_allocates_nothing(void)
{
    uint32_t number = 0;
    ns_bytes key = some(&number, sizeof number);
    ns_key_list keys = {&key, 1};
    ns_block_change change = {ns_text("part"), ns_text("v"), false};
    struct met met = {0, 0, 0, 0};
    uint8_t room[16];
    ns_buffer buffer = {room, sizeof room, 0, 0};
    ns_view view;
    ns_bytes block, name = ns_text("part");
    ns_indexed_change placed = {0, ns_text("w")};
    ns_block_layout *names;
    ns_record_for_update record;
    CHECK(allocations > 0); /* Calls of the library are counted: opening allocates. */
    OK(ns_put(session, values, key, key, NULL));
    OK(ns_patch(session, blocks, key, (ns_block_change_list){&change, 1}, NULL));
    /* The first call learns the layout of the record. */
    OK(ns_block_layout_open(session, (ns_name_list){&name, 1}, &names));
    OK(ns_get_for_update(session, blocks, key, &record));
    OK(ns_record_for_update_blocks(&record, names, 1, &block));
    ns_record_for_update_release(&record);
    size_t before = allocations;
    for (int round = 0; round < 1000; round++) {
        OK(ns_get(session, values, key, &view));
        ns_view_release(&view);
        OK(ns_get(session, blocks, key, &view));
        OK(ns_view_block(&view, ns_text("part"), &block));
        ns_view_release(&view);
        OK(ns_get_for_update(session, blocks, key, &record));
        OK(ns_record_for_update_blocks(&record, names, 1, &block));
        OK(ns_record_for_update_patch(&record, names, (ns_indexed_change_list){&placed, 1}, NULL));
        ns_record_for_update_release(&record);
        CHECK(ns_get(session, values, ns_text("none"), &view) == NS_NOT_FOUND);
        OK(ns_get_copy(session, values, key, &buffer));
        met.count = 0;
        OK(ns_get_batch(session, values, keys, meet_numbered, &met));
        CHECK(met.wrong == 0 && met.absent == 0);
    }
    CHECK(allocations == before);
    ns_block_layout_close(names);
}

static bool count_block(void *context, ns_bytes name, ns_bytes block)
{
    struct met *met = (struct met *)context;
    met->wrong += name.len == 0 || block.data == NULL;
    met->count += 1;
    return true;
}

static void a_patch_changes_only_its_blocks(void)
{
    static uint8_t large[1 << 20];
    memset(large, 5, sizeof large);
    ns_block_change both[] = {{ns_text("large"), some(large, sizeof large), false},
                        {ns_text("small"), some("a\0b", 3), false}};
    ns_block_change change = {ns_text("small"), some("c", 1), false};
    ns_block_change removal = {ns_text("large"), some(NULL, 99), true};
    uint64_t version, seen;
    ns_view view;
    ns_bytes block;
    struct met met = {0, 0, 0, 0};
    ns_bytes key = ns_text("ue");
    OK(ns_patch_if_absent(session, blocks, key, (ns_block_change_list){both, 2}, &version));
    CHECK(ns_patch_if_absent(session, blocks, key, (ns_block_change_list){both, 2}, NULL)
          == NS_REFUSED);
    OK(ns_patch_if_version(session, blocks, key, (ns_block_change_list){&change, 1}, version,
                           &seen));
    CHECK(seen > version);
    CHECK(ns_patch_if_version(session, blocks, key, (ns_block_change_list){&change, 1}, version,
                              NULL)
          == NS_REFUSED);
    OK(ns_get(session, blocks, key, &view));
    CHECK(view.value.len == 0);
    OK(ns_view_block(&view, ns_text("large"), &block));
    CHECK(is(block, large, sizeof large));
    OK(ns_patch(session, blocks, key, (ns_block_change_list){&removal, 1}, NULL));
    CHECK(is(block, large, sizeof large)); /* The view still protects it. */
    OK(ns_view_blocks(&view, count_block, &met));
    CHECK(met.count == 2 && met.wrong == 0);
    CHECK(ns_view_block(&view, ns_text("none"), &block) == NS_NOT_FOUND);
    ns_view_release(&view);
    CHECK(ns_view_block(&view, ns_text("small"), &block) == NS_BAD_ARGUMENT);
    OK(ns_get(session, blocks, key, &view));
    CHECK(ns_view_block(&view, ns_text("large"), &block) == NS_NOT_FOUND);
    ns_view_release(&view);
    CHECK(ns_put(session, blocks, key, key, NULL) == NS_WRONG_KIND);
    CHECK(ns_patch(session, values, key, (ns_block_change_list){&change, 1}, NULL)
          == NS_WRONG_KIND);
}

static bool count_key(void *context, ns_bytes key)
{
    struct met *met = (struct met *)context;
    met->wrong += key.len == 0;
    met->count += 1;
    return met->count != met->stop_after;
}

static bool delete_it(void *context, const ns_view *view)
{
    struct met *met = (struct met *)context;
    met->wrong += ns_delete(session, values, view->key) != NS_OK;
    /* A session cannot be closed in its own iteration, nor can a borrowed view be released. */
    met->wrong += ns_session_close(session) != NS_BAD_ARGUMENT;
    ns_view copy = *view;
    ns_view_release(&copy);
    met->count += 1;
    return true;
}

static size_t listed(ns_status (*list)(ns_session *, ns_namespace, ns_bytes, ns_key_fn, void *),
                     const char *pattern, size_t stop_after)
{
    struct met met = {0, 0, stop_after, 0};
    OK(list(session, values, ns_text(pattern), count_key, &met));
    CHECK(met.wrong == 0);
    return met.count;
}

static void iterations_report_existing_records(void)
{
    struct met met = {0, 0, 0, 0};
    uint64_t records;
    for (int number = 0; number < 50; number++) {
        char name[16];
        snprintf(name, sizeof name, "ue-%d", number);
        OK(ns_put(session, values, ns_text(name), ns_text("v"), NULL));
    }
    OK(ns_put(session, values, ns_text("ue*"), ns_text("v"), NULL));
    CHECK(listed(ns_list_prefix, "", 0) == 51);
    CHECK(listed(ns_list_prefix, "ue-4", 0) == 11);
    CHECK(listed(ns_list_prefix, "ue*", 0) == 1);
    CHECK(listed(ns_list_glob, "ue*", 0) == 51);
    CHECK(listed(ns_list_glob, "ue-?", 0) == 10);
    CHECK(listed(ns_list_glob, "ue-[34]?", 0) == 20);
    CHECK(listed(ns_list_glob, "*", 5) == 5);
    OK(ns_count(session, values, &records));
    CHECK(records == 51);
    OK(ns_scan(session, values, delete_it, &met));
    CHECK(met.count == 51 && met.wrong == 0);
    OK(ns_count(session, values, &records));
    CHECK(records == 0);
}

static bool release_it(void *view, ns_bytes name, ns_bytes block)
{
    CHECK(is(name, "auth", 4) || is(name, "policy", 6));
    IS(NS_BAD_ARGUMENT, ns_view_release(view));
    CHECK(is(block, "kept", 4));
    return true;
}

static bool release_its_record(void *record, ns_bytes name, ns_bytes block)
{
    (void)name;
    IS(NS_BAD_ARGUMENT, ns_record_for_update_release(record));
    CHECK(is(block, "kept", 4));
    return true;
}

static void a_view_is_not_released_while_its_parts_are_reported(void)
{
    ns_view view;
    ns_record_for_update record;
    ns_block_change changes[] = {{ns_text("auth"), ns_text("kept"), false},
                                 {ns_text("policy"), ns_text("kept"), false}};
    OK(ns_patch(session, blocks, ns_text("ue"), (ns_block_change_list){changes, 2}, NULL));
    OK(ns_get(session, blocks, ns_text("ue"), &view));
    OK(ns_view_blocks(&view, release_it, &view));
    OK(ns_view_tags(&view, release_it, &view));
    OK(ns_view_release(&view));
    OK(ns_get_for_update(session, blocks, ns_text("ue"), &record));
    OK(ns_view_blocks(&record.view, release_its_record, &record));
    OK(ns_record_for_update_release(&record));
}

static void null_is_rejected_everywhere(void)
{
    ns_bytes key = ns_text("k"), nothing = some(NULL, 5);
    ns_region *other;
    ns_session *opened;
    ns_namespace space;
    ns_view view = {0};
    ns_bytes block;
    ns_buffer buffer = {NULL, 0, 0, 0};
    ns_region_stats inspection;
    ns_check_report report;
    uint64_t number;
    ns_block_change change = {nothing, key, false};
    struct met met = {0, 0, 0, 0};
#define IS_WRONG(call) CHECK((call) == NS_BAD_ARGUMENT && strlen(ns_last_error()) > 0)
    IS_WRONG(ns_create_options_default(NULL));
    IS_WRONG(ns_region_create(NULL, NULL, &other));
    IS_WRONG(ns_region_create("", NULL, &other));
    IS_WRONG(ns_region_create(path, NULL, NULL));
    IS_WRONG(ns_region_attach_or_create(NULL, NULL, &other));
    IS_WRONG(ns_region_attach(NULL, NULL, &other));
    IS_WRONG(ns_region_attach(path, NULL, NULL));
    ns_attach_options attach;
    OK(ns_attach_options_default(&attach));
    CHECK(!attach.any_owner);
    attach.struct_bytes += 8;
    IS_WRONG(ns_region_attach(path, &attach, &other));
    IS_WRONG(ns_region_remove(path, &attach));
    IS_WRONG(ns_region_check(path, &attach, NULL, NULL, &report));
    IS_WRONG(ns_attach_options_default(NULL));
    IS_WRONG(ns_region_remove(NULL, NULL));
    IS_WRONG(ns_region_get_stats(NULL, &inspection));
    IS_WRONG(ns_region_get_stats(region, NULL));
    IS_WRONG(ns_region_members(NULL, NULL, NULL));
    IS_WRONG(ns_region_members(region, NULL, NULL));
    IS_WRONG(ns_region_check(NULL, NULL, NULL, NULL, &report));
    IS_WRONG(ns_region_check(path, NULL, NULL, NULL, NULL));
    IS_WRONG(ns_session_open(NULL, &opened));
    IS_WRONG(ns_session_open(region, NULL));
    IS_WRONG(ns_namespace_open(NULL, key, NS_KIND_VALUE, &space));
    IS_WRONG(ns_namespace_open(session, nothing, NS_KIND_VALUE, &space));
    IS_WRONG(ns_namespace_open(session, key, NS_KIND_VALUE, NULL));
    IS_WRONG(ns_get(NULL, values, key, &view));
    IS_WRONG(ns_get(session, values, nothing, &view));
    IS_WRONG(ns_get(session, values, key, NULL));
    IS_WRONG(ns_get_whole(NULL, values, key, &view));
    IS_WRONG(ns_get_whole(session, values, nothing, &view));
    IS_WRONG(ns_get_whole(session, values, key, NULL));
    IS_WRONG(ns_get_copy(NULL, values, key, &buffer));
    IS_WRONG(ns_get_copy(session, values, nothing, &buffer));
    IS_WRONG(ns_get_copy(session, values, key, NULL));
    IS_WRONG(ns_get_batch(NULL, values, (ns_key_list){&key, 1}, meet_numbered, &met));
    IS_WRONG(ns_get_batch(session, values, (ns_key_list){NULL, 1}, meet_numbered, &met));
    IS_WRONG(ns_get_batch(session, values, (ns_key_list){&nothing, 1}, meet_numbered, &met));
    IS_WRONG(ns_get_batch(session, values, (ns_key_list){&key, 1}, NULL, &met));
    IS_WRONG(ns_put(NULL, values, key, key, &number));
    IS_WRONG(ns_put(session, values, nothing, key, &number));
    IS_WRONG(ns_put(session, values, key, nothing, &number));
    IS_WRONG(ns_put_if_absent(NULL, values, key, key, &number));
    IS_WRONG(ns_put_if_version(NULL, values, key, key, 1, &number));
    IS_WRONG(ns_put_if_value(NULL, values, key, key, key, &number));
    IS_WRONG(ns_put_if_value(session, values, key, key, nothing, &number));
    IS_WRONG(ns_delete(NULL, values, key));
    IS_WRONG(ns_delete(session, values, nothing));
    IS_WRONG(ns_delete_if_version(NULL, values, key, 1, &number));
    IS_WRONG(ns_delete_if_value(session, values, key, nothing, &number));
    IS_WRONG(ns_patch(NULL, blocks, key, (ns_block_change_list){NULL, 0}, &number));
    IS_WRONG(ns_patch(session, blocks, key, (ns_block_change_list){NULL, 1}, &number));
    IS_WRONG(ns_patch(session, blocks, key, (ns_block_change_list){&change, 1}, &number));
    IS_WRONG(ns_patch_if_absent(NULL, blocks, key, (ns_block_change_list){NULL, 0}, &number));
    IS_WRONG(ns_patch_if_version(NULL, blocks, key, (ns_block_change_list){NULL, 0}, 1, &number));
    IS_WRONG(ns_scan(NULL, values, delete_it, &met));
    IS_WRONG(ns_scan(session, values, NULL, &met));
    IS_WRONG(ns_list_prefix(NULL, values, key, count_key, &met));
    IS_WRONG(ns_list_prefix(session, values, nothing, count_key, &met));
    IS_WRONG(ns_list_prefix(session, values, key, NULL, &met));
    IS_WRONG(ns_list_glob(NULL, values, key, count_key, &met));
    IS_WRONG(ns_list_glob(session, values, nothing, count_key, &met));
    IS_WRONG(ns_list_glob(session, values, key, NULL, &met));
    IS_WRONG(ns_count(NULL, values, &number));
    IS_WRONG(ns_count(session, values, NULL));
    IS_WRONG(ns_view_block(NULL, key, &block));
    IS_WRONG(ns_view_block(&view, key, &block));
    IS_WRONG(ns_view_block(&view, key, NULL));
    IS_WRONG(ns_view_blocks(NULL, count_block, &met));
    IS_WRONG(ns_view_blocks(&view, count_block, &met));
    IS_WRONG(ns_view_blocks(&view, NULL, &met));
    CHECK(met.count == 0);
    OK(ns_count(session, values, &number));
    CHECK(number == 0); /* Nothing was written. */
    /* Closing and releasing NULL does nothing. */
    OK(ns_session_close(NULL));
    OK(ns_region_detach(NULL));
    ns_view_release(NULL);
    ns_view_release(&view);
    CHECK(ns_text(NULL).len == 0);
}

static void excessive_lengths_are_rejected_before_anything_is_read(void)
{
    ns_bytes key = ns_text("k");
    ns_view view;
    uint64_t number;
    for (int shift = 0; shift < 3; shift++) {
        size_t len = shift == 0 ? SIZE_MAX : (size_t)1 << (61 + shift);
        ns_bytes absurd = some("k", len);
        ns_namespace space;
        ns_block_change change = {absurd, key, false};
        ns_block_change value = {key, absurd, false};
        struct met met = {0, 0, 0, 0};
        CHECK(ns_namespace_open(session, absurd, NS_KIND_VALUE, &space) == NS_BAD_NAME);
        CHECK(ns_get(session, values, absurd, &view) == NS_KEY_TOO_LARGE);
        CHECK(ns_put(session, values, absurd, key, NULL) == NS_KEY_TOO_LARGE);
        CHECK(ns_put(session, values, key, absurd, NULL) == NS_VALUE_TOO_LARGE);
        CHECK(ns_put_if_value(session, values, key, key, absurd, NULL) == NS_VALUE_TOO_LARGE);
        CHECK(ns_delete(session, values, absurd) == NS_KEY_TOO_LARGE);
        CHECK(ns_delete_if_value(session, values, key, absurd, NULL) == NS_VALUE_TOO_LARGE);
        CHECK(ns_get_batch(session, values, (ns_key_list){&key, len}, meet_numbered, &met)
              == NS_BAD_ARGUMENT);
        CHECK(ns_patch(session, blocks, key, (ns_block_change_list){&change, len}, NULL)
              == NS_TOO_MANY_BLOCKS);
        CHECK(ns_patch(session, blocks, key, (ns_block_change_list){&change, 1}, NULL)
              == NS_BAD_NAME);
        CHECK(ns_patch(session, blocks, key, (ns_block_change_list){&value, 1}, NULL)
              == NS_VALUE_TOO_LARGE);
        CHECK(ns_list_glob(session, values, absurd, count_key, &met) == NS_BAD_ARGUMENT);
        CHECK(ns_list_prefix(session, values, absurd, count_key, &met) == NS_BAD_ARGUMENT);
    }
    OK(ns_put(session, values, some("", 0), key, NULL));
    OK(ns_delete(session, values, some("", 0)));
    static uint8_t long_key[NS_KEY_BYTES_MAX + 1];
    OK(ns_put(session, values, some(long_key, NS_KEY_BYTES_MAX), key, NULL));
    CHECK(ns_put(session, values, some(long_key, sizeof long_key), key, NULL)
          == NS_KEY_TOO_LARGE);
    OK(ns_count(session, values, &number));
    CHECK(number == 1);
}

static void invalid_arguments_are_rejected(void)
{
    ns_namespace space;
    ns_session *other;
    ns_view view;
    ns_create_options options;
    ns_region *made;
    alignas(ns_view) uint8_t room[sizeof(ns_view) + 1];
    CHECK(ns_namespace_open(session, ns_text("x"), 0, &space) == NS_BAD_ARGUMENT);
    CHECK(ns_namespace_open(session, ns_text("x"), 99, &space) == NS_BAD_ARGUMENT);
    CHECK(ns_namespace_open(session, some("\xff\xfe", 2), NS_KIND_VALUE, &space)
          == NS_BAD_ARGUMENT);
    CHECK(ns_namespace_open(session, some("a\0b", 3), NS_KIND_VALUE, &space) == NS_BAD_NAME);
    CHECK(ns_namespace_open(session, ns_text("values"), NS_KIND_BLOCKS, &space) == NS_WRONG_KIND);
    OK(ns_namespace_open(session, ns_text("values"), NS_KIND_VALUE, &space));
    CHECK(space.id == values.id);
    /* A namespace is valid only in its session. */
    OK(ns_session_open(region, &other));
    CHECK(ns_get(other, values, ns_text("k"), &view) == NS_BAD_ARGUMENT);
    OK(ns_session_close(other));
    space.id += 99;
    CHECK(ns_get(session, space, ns_text("k"), &view) == NS_BAD_ARGUMENT);
    space.id = 0;
    CHECK(ns_put(session, space, ns_text("k"), ns_text("v"), NULL) == NS_BAD_ARGUMENT);
    CHECK(ns_get(session, values, ns_text("k"), (ns_view *)(void *)(room + 1)) == NS_BAD_ARGUMENT);

    OK(ns_create_options_default(&options));
    CHECK(ns_region_create(path, &options, &made) == NS_ALREADY_EXISTS);
    CHECK(ns_region_remove(path, NULL) == NS_IN_USE);
    options.struct_bytes = 8;
    CHECK(ns_region_create("/nowhere/region", &options, &made) == NS_BAD_ARGUMENT);
    OK(ns_create_options_default(&options));
    options.page = options.pin = 77;
    CHECK(ns_region_create("/nowhere/region", &options, &made) == NS_BAD_ARGUMENT);
    OK(ns_create_options_default(&options));
    options.numa = NS_NUMA_BIND;
    options.nodes_len = SIZE_MAX;
    CHECK(ns_region_create("/nowhere/region", &options, &made) == NS_BAD_ARGUMENT);
    char sample[4096];
    CHECK(snprintf(sample, sizeof sample, "%s.sample", path) < (int)sizeof sample);
    FILE *file = fopen(sample, "w");
    CHECK(file != NULL);
    for (int line = 0; line < 1000; line++)
        CHECK(fputs("Dear reader, this is no region.\n", file) >= 0);
    CHECK(fclose(file) == 0);
    CHECK(ns_region_attach(sample, NULL, &made) == NS_NOT_A_REGION);
    CHECK(strstr(ns_last_error(), "sample") != NULL);
    CHECK(ns_region_remove(sample, NULL) == NS_NOT_A_REGION);
    CHECK(remove(sample) == 0);
    CHECK(strcmp(ns_status_name(NS_FULL), "NS_FULL") == 0);
    CHECK(strcmp(ns_status_name(4711), "?") == 0);
}

static void a_session_stays_open_while_a_view_is_held(void)
{
    ns_view view, second;
    OK(ns_put(session, values, ns_text("k"), ns_text("v"), NULL));
    OK(ns_get(session, values, ns_text("k"), &view));
    OK(ns_get(session, values, ns_text("k"), &second));
    CHECK(ns_session_close(session) == NS_BAD_ARGUMENT);
    ns_view moved = view; /* A view may be moved; one copy is released. */
    ns_view_release(&moved);
    ns_view_release(&moved); /* The second release does nothing. */
    CHECK(ns_session_close(session) == NS_BAD_ARGUMENT);
    ns_view_release(&second);
    /* A region may be detached before its sessions are closed. */
    OK(ns_region_detach(region));
    OK(ns_put(session, values, ns_text("k"), ns_text("w"), NULL));
    ns_attach_options any_owner;
    OK(ns_attach_options_default(&any_owner));
    any_owner.any_owner = true;
    OK(ns_region_attach(path, &any_owner, &region));
}

static bool count_member(void *context, const ns_member *member)
{
    struct met *met = (struct met *)context;
    met->wrong += member->pid == 0 || member->name.len == 0 || !member->is_alive;
    met->count += 1;
    return true;
}

static void a_region_reports_its_statistics(void)
{
    ns_region_stats seen;
    struct met met = {0, 0, 0, 0};
    ns_check_report report;
    OK(ns_region_get_stats(region, &seen));
    CHECK(seen.bytes_max == 64u << 20 && seen.namespaces == 2 && seen.members_alive == 1);
    CHECK(seen.format >= 1 && seen.members_dead == 0 && seen.bytes_taken > 0);
    CHECK(seen.bytes_live + seen.bytes_retired + seen.bytes_kept + seen.bytes_free
          == seen.bytes_max);
    CHECK(LEN(seen.usable) == 5 && seen.usable[0].size == 64);
    for (size_t size = 0; size < LEN(seen.usable); size++) {
        CHECK(size == 0 || seen.usable[size].size > seen.usable[size - 1].size);
        CHECK(seen.usable[size].bytes <= seen.bytes_free);
        CHECK((seen.usable[size].bytes == 0) == (seen.bytes_free_largest < seen.usable[size].size));
    }
    OK(ns_region_members(region, count_member, &met));
    CHECK(met.count == 1 && met.wrong == 0);
    CHECK(ns_region_check(path, NULL, NULL, NULL, &report) == NS_IN_USE);
}

/* Also of records that were replaced and deleted, and of blocks. */
static void the_bytes_of_a_region_add_up(void)
{
    static char value[40000];
    ns_check_report report;
    ns_region_stats seen;
    for (int number = 0; number < 500; number++) {
        char key[16];
        snprintf(key, sizeof key, "k%d", number);
        ns_block_change change = {ns_text("auth"), some(value, 900), false};
        OK(ns_put(session, values, ns_text(key), some(value, (size_t)number * 80), NULL));
        OK(ns_patch(session, blocks, ns_text(key), (ns_block_change_list){&change, 1}, NULL));
        if (number % 3 == 0)
            OK(ns_delete(session, values, ns_text(key)));
    }
    OK(ns_region_get_stats(region, &seen));
    CHECK(seen.bytes_kept > 0 && seen.bytes_retired > 0);
    CHECK(seen.bytes_live + seen.bytes_retired + seen.bytes_kept + seen.bytes_free
          == seen.bytes_max);
    OK(ns_session_close(session));
    OK(ns_region_check(path, NULL, NULL, NULL, &report));
    CHECK(report.errors == 0 && report.bytes_total == seen.bytes_max);
    CHECK(report.bytes_live + report.bytes_index + report.bytes_free + report.bytes_held
              + report.bytes_leaked
          == report.bytes_total);
    OK(ns_session_open(region, &session));
}

/* The macros are of the same version as the library. */
static void the_version_of_the_header_is_that_of_the_library(void)
{
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", NS_VERSION_MAJOR, NS_VERSION_MINOR,
             NS_VERSION_PATCH);
    CHECK(strcmp(expected, ns_version()) == 0);
    CHECK(NS_TRANSACTION_RECORDS_MAX == 4096 && NS_TAGS_MAX == 64 && NS_TAGS_DECLARED_MAX == 32);
}

static bool no_tag(void *context, const ns_tag_schema *tag, uint32_t state)
{
    (void)context;
    (void)tag;
    (void)state;
    return true;
}

/* Also the calls that read nothing of a region, or only its catalog. */
static void a_forked_child_must_attach_again(void)
{
    ns_view view, held;
    ns_txn *reader;
    ns_bytes block;
    ns_receipt receipt;
    ns_region_stats stats;
    ns_namespace_usage usage;
    ns_namespace opened;
    struct met met = {0};
    uint64_t number;
    uint32_t state;
    OK(ns_put(session, values, ns_text("k"), ns_text("v"), NULL));
    OK(ns_get(session, values, ns_text("k"), &held));
    OK(ns_txn_begin(session, &reader));
    OK(ns_receipt_of_commit(session, &receipt));
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        IS(NS_FORKED, ns_get(session, values, ns_text("k"), &view));
        IS(NS_FORKED, ns_namespace_open(session, ns_text("values"), NS_KIND_VALUE, &opened));
        IS(NS_FORKED, ns_session_set_commit_wait(session, NS_WAIT_NEVER, 0));
        IS(NS_FORKED, ns_receipt_of_commit(session, &receipt));
        IS(NS_FORKED, ns_receipt_of_reads(session, &receipt));
        IS(NS_FORKED, ns_receipt_wait(session, receipt, 0, &state));
        IS(NS_FORKED, ns_namespace_get_policy(session, values, &state));
        IS(NS_FORKED, ns_namespace_get_usage(session, values, &usage));
        IS(NS_FORKED, ns_namespace_tags(session, values, no_tag, NULL));
        IS(NS_FORKED, ns_read_check_owner(session, values));
        IS(NS_FORKED, ns_collect_expired(session, 0, NULL, NULL));
        IS(NS_FORKED, ns_count(session, values, &number));
        IS(NS_FORKED, ns_view_block(&held, ns_text("b"), &block));
        IS(NS_FORKED, ns_view_expires(&held, &number));
        IS(NS_FORKED, ns_region_get_stats(region, &stats));
        IS(NS_FORKED, ns_region_members(region, count_member, &met));
        /* What it has inherited can be released. */
        IS(NS_FORKED, ns_txn_commit(reader));
        ns_view_release(&held);
        OK(ns_session_close(session));
        _exit(0);
    }
    int told = -1;
    CHECK(waitpid(child, &told, 0) == child && told == 0);
    OK(ns_txn_commit(reader));
    CHECK(held.value.len == 1 && held.value.data[0] == 'v');
    ns_view_release(&held);
    OK(ns_put(session, values, ns_text("k"), ns_text("w"), NULL));
}

/* Puts a large value, and truncates the file in the middle of it. */
static void truncate_in_the_middle(ns_bytes key)
{
    static uint8_t large[64 << 10];
    unsigned long long from, to, offset, at = 0;
    char line[4096];
    ns_view view;
    memset(large, 7, sizeof large);
    OK(ns_put(session, values, key, some(large, sizeof large), NULL));
    OK(ns_get(session, values, key, &view));
    unsigned long long middle = (unsigned long long)(uintptr_t)view.value.data + sizeof large / 2;
    ns_view_release(&view);
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        if (sscanf(line, "%llx-%llx %*s %llx", &from, &to, &offset) == 3 && from <= middle
            && middle < to)
            at = middle - from + offset;
    }
    fclose(maps);
    CHECK(at != 0 && truncate(path, (off_t)(at & ~4095ull)) == 0);
}

/* Ends a test whose region cannot be checked. */
static void end_without_check(void)
{
    CHECK(unlink(path) == 0);
    exit(0);
}

static size_t sum(ns_bytes bytes)
{
    size_t total = 0;
    for (size_t index = 0; index < bytes.len; index++)
        total += bytes.data[index];
    return total;
}

/* Ends the iteration: nothing else is read of the region. */
static bool add_first_value(void *context, const ns_view *view)
{
    *(size_t *)context += sum(view->value);
    return false;
}

static void a_copy_from_a_truncated_file_is_not_a_value(void)
{
    static uint8_t room[64 << 10];
    ns_buffer buffer = {room, sizeof room, 0, 0};
    truncate_in_the_middle(ns_text("k"));
    OK(ns_session_check(session));
    IS(NS_DAMAGED, ns_get_copy(session, values, ns_text("k"), &buffer));
    IS(NS_DAMAGED, ns_session_check(session));
    end_without_check();
}

static void an_iteration_over_a_truncated_file_fails(void)
{
    size_t total = 0;
    truncate_in_the_middle(ns_text("k"));
    IS(NS_DAMAGED, ns_scan(session, values, add_first_value, &total));
    CHECK(total > 0 && total < 7 * (64 << 10));
    end_without_check();
}

static void a_view_of_a_truncated_file_is_noticed(void)
{
    ns_view view, shown;
    ns_txn *txn;
    truncate_in_the_middle(ns_text("k"));
    OK(ns_get(session, values, ns_text("k"), &view));
    OK(ns_txn_begin(session, &txn));
    OK(ns_txn_get(txn, values, ns_text("k"), &shown));
    CHECK(sum(view.value) < 7 * (64 << 10));
    IS(NS_DAMAGED, ns_session_check(session));
    IS(NS_DAMAGED, ns_txn_commit(txn));
    OK(ns_view_release(&view));
    end_without_check();
}

static bool none_is_listed(void *context, const ns_namespace_info *info)
{
    (void)context, (void)info;
    CHECK(false);
    return true;
}

/* Cuts the file behind its first page. The call is the first one that reads a missing page: zeros
 * say that nothing was ever logged. */
#define IS_DAMAGED_IN_A_CUT_REGION(call)                                                           \
    do {                                                                                           \
        pid_t child = fork();                                                                      \
        CHECK(child >= 0);                                                                         \
        if (child == 0) {                                                                          \
            char cut[4200];                                                                        \
            ns_namespace logged;                                                                   \
            ns_receipt receipt, reads;                                                             \
            uint32_t state = 0;                                                                    \
            (void)reads, (void)state;                                                              \
            snprintf(cut, sizeof cut, "%s-%d", path, __LINE__);                                    \
            path = cut;                                                                            \
            start_region();                                                                        \
            OK(ns_namespace_open_with_policy(session, ns_text("r"), NS_KIND_VALUE,                 \
                                             NS_POLICY_ASYNC, &logged));                           \
            OK(ns_put(session, logged, ns_text("k"), ns_text("v"), NULL));                         \
            OK(ns_receipt_of_commit(session, &receipt));                                           \
            CHECK(truncate(path, 4096) == 0);                                                      \
            IS(NS_DAMAGED, call);                                                                  \
            end_without_check();                                                                   \
        }                                                                                          \
        int ended = 0;                                                                             \
        CHECK(waitpid(child, &ended, 0) == child && ended == 0);                                   \
    } while (0)

static void in_a_truncated_file_nothing_counts_as_replicated(void)
{
    IS_DAMAGED_IN_A_CUT_REGION(ns_receipt_of_reads(session, &reads));
    IS_DAMAGED_IN_A_CUT_REGION(ns_receipt_of_commit(session, &reads));
    IS_DAMAGED_IN_A_CUT_REGION(ns_receipt_wait(session, receipt, 0, &state));
    IS_DAMAGED_IN_A_CUT_REGION(ns_receipt_wait(session, receipt, 1, &state));
    IS_DAMAGED_IN_A_CUT_REGION(ns_read_wait_applied(session, receipt, 0));
    IS_DAMAGED_IN_A_CUT_REGION(ns_namespace_list(session, none_is_listed, NULL));
}

static const struct promise promises[] = {
    TEST(every_byte_of_a_value_counts),
    TEST(conditions_apply_to_the_current_record),
    TEST(a_copy_into_a_small_buffer_reports_the_size),
    TEST(a_batch_reports_every_key_in_order),
    TEST(reading_allocates_nothing),
    TEST(a_patch_changes_only_its_blocks),
    TEST(iterations_report_existing_records),
    TEST(a_view_is_not_released_while_its_parts_are_reported),
    TEST(null_is_rejected_everywhere),
    TEST(excessive_lengths_are_rejected_before_anything_is_read),
    TEST(invalid_arguments_are_rejected),
    TEST(a_session_stays_open_while_a_view_is_held),
    TEST(a_region_reports_its_statistics),
    TEST(the_bytes_of_a_region_add_up),
    TEST(the_version_of_the_header_is_that_of_the_library),
    TEST(a_forked_child_must_attach_again),
    TEST(a_copy_from_a_truncated_file_is_not_a_value),
    TEST(an_iteration_over_a_truncated_file_fails),
    TEST(a_view_of_a_truncated_file_is_noticed),
    TEST(in_a_truncated_file_nothing_counts_as_replicated),
};

int main(int argc, char **argv)
{
    return keep(argc, argv, promises, LEN(promises));
}
