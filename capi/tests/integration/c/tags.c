/* Tests of tags, lookups, searches, expiry and counters. */
#include "fixture.h"

static ns_tag tag(const char *name, const char *value)
{
    ns_tag made = {ns_text(name), ns_text(value)};
    return made;
}

/* A session of an SMF: unique SUPI and TEID, a shared DNN, an ordered address. */
static const char *const names[] = {"supi", "teid", "dnn", "ip"};

static void declare(void)
{
    ns_tag_schema tags[] = {
        {ns_text("supi"), NS_TAG_UNIQUE | NS_TAG_REQUIRED},
        {ns_text("teid"), NS_TAG_UNIQUE},
        {ns_text("dnn"), NS_TAG_COUNTED},
        {ns_text("ip"), NS_TAG_ORDERED},
    };
    OK(ns_namespace_add_tags(session, values, (ns_tag_schema_list){tags, LEN(tags)}));
}

static ns_status put(const char *key, const char *const *of, uint64_t expires_ms)
{
    ns_tag tags[LEN(names)];
    for (size_t index = 0; index < LEN(names); index++)
        tags[index] = tag(names[index], of[index]);
    ns_metadata metadata = {tags, LEN(names), expires_ms};
    return ns_put_with_metadata(session, values, ns_text(key), ns_text("context"), metadata,
                                NULL);
}

static void fill(void)
{
    const char *const sessions[][4] = {
        {"001", "teid 1", "internet", "10.0.0.1"},
        {"002", "teid 2", "ims", "10.0.0.2"},
        {"003", "teid 3", "internet", "10.0.1.3"},
    };
    declare();
    OK(put("a", sessions[0], 0));
    OK(put("b", sessions[1], 0));
    OK(put("c", sessions[2], 0));
}

/* The keys reported by an iteration, in order. */
struct met {
    char keys[64];
    size_t most;
};

static bool meet(struct met *met, ns_bytes key)
{
    size_t len = strlen(met->keys);
    CHECK(key.len > 0 && len + key.len < sizeof met->keys);
    memcpy(met->keys + len, key.data, key.len);
    return met->most == 0 || strlen(met->keys) < met->most;
}

static bool meet_view(void *context, const ns_view *view)
{
    CHECK(view->version != 0 && view->value.len == strlen("context"));
    CHECK(ns_session_close(session) == NS_BAD_ARGUMENT);
    return meet(context, view->key);
}

static bool meet_key(void *context, ns_bytes key)
{
    return meet(context, key);
}

static bool finds(ns_lookup lookup, const char *keys)
{
    struct met met = {{0}, 0};
    OK(ns_find_all(session, values, lookup, meet_view, &met));
    return strcmp(met.keys, keys) == 0;
}

static bool count_pair(void *context, ns_bytes name, ns_bytes value)
{
    CHECK(name.len > 0 && value.len > 0);
    *(int *)context += 1;
    return true;
}

static void a_session_is_found_by_each_of_its_identities(void)
{
    ns_view view;
    int tags = 0;
    uint64_t expires_ms = 7;
    fill();
    OK(ns_find(session, values, tag("teid", "teid 2"), &view));
    CHECK(view.key.len == 1 && view.key.data[0] == 'b');
    OK(ns_view_tags(&view, count_pair, &tags));
    OK(ns_view_expires(&view, &expires_ms));
    CHECK(tags == 4 && expires_ms == 0);
    ns_view_release(&view);
    CHECK(ns_find(session, values, tag("teid", "teid 9"), &view) == NS_NOT_FOUND);
    CHECK(view.version == 0);
    /* Equality, prefix, range, and an early end. */
    CHECK(finds((ns_lookup){.tag = ns_text("dnn"), .kind = NS_LOOKUP_EQUAL,
                            .value = ns_text("internet")}, "ac"));
    CHECK(finds((ns_lookup){.tag = ns_text("ip"), .kind = NS_LOOKUP_PREFIX,
                            .value = ns_text("10.0.0.")}, "ab"));
    ns_lookup range = {.tag = ns_text("ip"), .kind = NS_LOOKUP_RANGE};
    CHECK(finds(range, "abc"));
    range.from = (ns_bound){NS_BOUND_EXCLUDED, ns_text("10.0.0.1")};
    CHECK(finds(range, "bc"));
    range.to = (ns_bound){NS_BOUND_INCLUDED, ns_text("10.0.0.2")};
    CHECK(finds(range, "b"));
    range.to = (ns_bound){NS_BOUND_EXCLUDED, ns_text("10.0.0.2")};
    CHECK(finds(range, ""));
    struct met first = {{0}, 1};
    range = (ns_lookup){.tag = ns_text("ip"), .kind = NS_LOOKUP_RANGE};
    OK(ns_find_all(session, values, range, meet_view, &first));
    CHECK(strcmp(first.keys, "a") == 0);
    uint64_t count = 0;
    OK(ns_count_tagged(session, values, tag("dnn", "internet"), &count));
    CHECK(count == 2);
    OK(ns_count_tagged(session, values, tag("ip", "10.0.0.9"), &count));
    CHECK(count == 0);
}

static void a_taken_value_is_rejected_with_the_key_of_its_record(void)
{
    const char *const thief[] = {"004", "teid 2", "ims", "10.0.0.4"};
    fill();
    IS(NS_TAG_TAKEN, put("d", thief, 0));
    CHECK(strstr(ns_last_error(), "teid") != NULL);
    CHECK(ns_delete(session, values, ns_text("d")) == NS_NOT_FOUND);
    /* A required tag is missing, also with a plain put. */
    IS(NS_BAD_ARGUMENT, ns_put(session, values, ns_text("d"), ns_text("v"), NULL));
    /* A new tag that existing records violate is rejected completely. */
    ns_tag_schema one = {ns_text("dnn2"), NS_TAG_REQUIRED};
    IS(NS_BAD_ARGUMENT, ns_namespace_add_tags(session, values, (ns_tag_schema_list){&one, 1}));
    uint64_t count;
    IS(NS_BAD_ARGUMENT, ns_count_tagged(session, values, tag("dnn2", "x"), &count));
}

static bool see_tag(void *context, const ns_tag_schema *tag, uint32_t state)
{
    CHECK(state == NS_TAG_READY && tag->name.len > 0);
    *(uint32_t *)context = *(uint32_t *)context * 16 + tag->properties;
    return true;
}

static void a_put_keeps_the_metadata_of_its_record_if_it_says_so(void)
{
    static const uint64_t later = UINT64_C(1) << 42;
    ns_tag internet = tag("dnn", "internet");
    uint64_t first = 0, second = 0, count = 0, expires = 0;
    ns_view view;
    ns_namespace plain;
    fill();
    OK(ns_namespace_open(session, ns_text("plain"), NS_KIND_VALUE, &plain));
    OK(ns_put_with_metadata(session, plain, ns_text("k"), ns_text("1"),
                            (ns_metadata){NULL, 0, later}, &first));
    OK(ns_put_keeping_metadata(session, plain, ns_text("k"), ns_text("2"), &second));
    CHECK(first != 0 && second > first);
    OK(ns_get(session, plain, ns_text("k"), &view));
    OK(ns_view_expires(&view, &expires));
    CHECK(view.version == second && expires == later && view.value.data[0] == '2');
    ns_view_release(&view);
    OK(ns_put(session, plain, ns_text("k"), ns_text("3"), NULL));
    OK(ns_get(session, plain, ns_text("k"), &view));
    OK(ns_view_expires(&view, &expires));
    CHECK(expires == 0);
    ns_view_release(&view);
    OK(ns_put_keeping_metadata(session, plain, ns_text("new"), ns_text("1"), NULL));
    OK(ns_put_keeping_metadata(session, values, ns_text("a"), ns_text("moved"), NULL));
    OK(ns_count_tagged(session, values, internet, &count));
    CHECK(count == 2);
    OK(ns_get(session, values, ns_text("a"), &view));
    CHECK(view.value.len == 5);
    ns_view_release(&view);
    IS(NS_BAD_ARGUMENT,
       ns_put_keeping_metadata(session, values, some(NULL, 1), ns_text("v"), NULL));
}

static void tags_are_listed_as_they_were_declared(void)
{
    uint32_t seen = 0;
    declare();
    declare();
    OK(ns_namespace_tags(session, values, see_tag, &seen));
    CHECK(seen == 0x9142);
    IS(NS_BAD_ARGUMENT, ns_namespace_tags(session, values, NULL, NULL));
    ns_tag_schema other = {ns_text("supi"), NS_TAG_UNIQUE};
    IS(NS_BAD_ARGUMENT, ns_namespace_add_tags(session, values, (ns_tag_schema_list){&other, 1}));
    ns_tag_schema twice[] = {{ns_text("x"), 0}, {ns_text("x"), 0}};
    IS(NS_BAD_ARGUMENT, ns_namespace_add_tags(session, values, (ns_tag_schema_list){twice, 2}));
    other = (ns_tag_schema){ns_text("y"), 16};
    IS(NS_BAD_ARGUMENT, ns_namespace_add_tags(session, values, (ns_tag_schema_list){&other, 1}));
    other = (ns_tag_schema){ns_text(""), 0};
    IS(NS_BAD_NAME, ns_namespace_add_tags(session, values, (ns_tag_schema_list){&other, 1}));
    IS(NS_BAD_ARGUMENT,
       ns_namespace_add_tags(session, values, (ns_tag_schema_list){&other, SIZE_MAX}));
    IS(NS_BAD_ARGUMENT, ns_namespace_add_tags(session, values, (ns_tag_schema_list){NULL, 1}));
    OK(ns_namespace_add_tags(session, values, (ns_tag_schema_list){NULL, 0}));
}

static bool matches(const ns_search_condition *condition, const char *keys)
{
    struct met met = {{0}, 0};
    uint64_t count;
    OK(ns_search(session, values, condition, meet_key, &met));
    OK(ns_search_count(session, values, condition, &count));
    CHECK(count == strlen(met.keys));
    /* In unspecified order. */
    return strlen(met.keys) == strlen(keys) && strspn(met.keys, keys) == strlen(keys);
}

static ns_search_condition compare(uint32_t how, const char *name, const char *value)
{
    ns_search_condition made = {.kind = how, .tag = tag(name, value)};
    return made;
}

static void a_search_is_built_from_local_variables(void)
{
    fill();
    ns_search_condition internet = compare(NS_SEARCH_EQ, "dnn", "internet");
    ns_search_condition both[] = {internet, compare(NS_SEARCH_GTE, "ip", "10.0.1.")};
    ns_search_condition and = {.kind = NS_SEARCH_AND, .units = both, .units_len = 2};
    ns_search_condition or = {.kind = NS_SEARCH_OR, .units = both, .units_len = 2};
    ns_search_condition not = {.kind = NS_SEARCH_NOT, .units = &internet, .units_len = 1};
    ns_bytes keys[] = {ns_text("a"), ns_text("absent")};
    ns_search_condition records = {.kind = NS_SEARCH_RECORDS, .records = {keys, 2}};
    CHECK(matches(&internet, "ac") && matches(&and, "c") && matches(&or, "ac"));
    CHECK(matches(&not, "b") && matches(&records, "a"));
    ns_search_condition each[] = {
        compare(NS_SEARCH_NEQ, "supi", "001"), compare(NS_SEARCH_GT, "supi", "001"),
        compare(NS_SEARCH_LT, "supi", "002"), compare(NS_SEARCH_LTE, "supi", "001"),
    };
    CHECK(matches(&each[0], "bc") && matches(&each[1], "bc"));
    CHECK(matches(&each[2], "a") && matches(&each[3], "a"));
    /* Cycles, NULL and excessive depth are rejected. */
    ns_search_condition circle = {.kind = NS_SEARCH_NOT, .units = &circle, .units_len = 1};
    ns_search_condition wrong[] = {
        circle, {.kind = NS_SEARCH_AND, .units = NULL, .units_len = 1},
        {.kind = NS_SEARCH_AND, .units = both, .units_len = SIZE_MAX},
        {.kind = NS_SEARCH_OR}, {.kind = NS_SEARCH_NOT, .units = both, .units_len = 2},
        {.kind = NS_SEARCH_NOT}, {.kind = 0}, {.kind = 11},
        {.kind = NS_SEARCH_RECORDS, .records = {NULL, 1}},
        {.kind = NS_SEARCH_RECORDS, .records = {keys, SIZE_MAX}},
        {.kind = NS_SEARCH_EQ, .tag = {{NULL, 1}, ns_text("x")}},
        {.kind = NS_SEARCH_EQ, .tag = {ns_text(""), ns_text("x")}},
    };
    struct met met = {{0}, 0};
    for (size_t index = 0; index < LEN(wrong); index++)
        IS(NS_BAD_ARGUMENT, ns_search(session, values, &wrong[index], meet_key, &met));
    static ns_search_condition many[1024];
    for (size_t index = 0; index < LEN(many); index++)
        many[index] = internet;
    or = (ns_search_condition){.kind = NS_SEARCH_OR, .units = many, .units_len = LEN(many)};
    IS(NS_BAD_ARGUMENT, ns_search(session, values, &or, meet_key, &met));
    or.units_len -= 1;
    CHECK(matches(&or, "ac"));
    IS(NS_BAD_ARGUMENT, ns_search(session, values, NULL, meet_key, &met));
    IS(NS_BAD_ARGUMENT, ns_search(session, values, &internet, NULL, &met));
    IS(NS_BAD_ARGUMENT, ns_search_count(session, values, &internet, NULL));
    keys[0].len = NS_KEY_BYTES_MAX + 1;
    IS(NS_KEY_TOO_LARGE, ns_search(session, values, &records, meet_key, &met));
}

static void invalid_lookups_are_rejected(void)
{
    ns_view view;
    uint64_t count;
    struct met met = {{0}, 0};
    fill();
    IS(NS_BAD_ARGUMENT, ns_find(session, values, tag("dnn", "ims"), &view));
    IS(NS_BAD_ARGUMENT, ns_find(session, values, tag("none", "ims"), &view));
    IS(NS_BAD_ARGUMENT, ns_find(session, values, tag("supi", "1"), NULL));
    IS(NS_BAD_ARGUMENT, ns_find(NULL, values, tag("supi", "1"), &view));
    CHECK(view.version == 0);
    ns_tag absurd = {ns_text("supi"), some("x", SIZE_MAX)};
    IS(NS_VALUE_TOO_LARGE, ns_find(session, values, absurd, &view));
    absurd = (ns_tag){some("\xff\xfe", 2), ns_text("x")};
    IS(NS_BAD_ARGUMENT, ns_find(session, values, absurd, &view));
    ns_lookup wrong[] = {
        {.tag = ns_text("ip"), .kind = 0}, {.tag = ns_text("ip"), .kind = 4},
        {.tag = ns_text("dnn"), .kind = NS_LOOKUP_PREFIX, .value = ns_text("i")},
        {.tag = ns_text("ip"), .kind = NS_LOOKUP_RANGE, .from = {3, ns_text("x")}},
        {.tag = ns_text("ip"), .kind = NS_LOOKUP_RANGE, .to = {NS_BOUND_INCLUDED, {NULL, 3}}},
        {.tag = ns_text("none"), .kind = NS_LOOKUP_RANGE},
    };
    for (size_t index = 0; index < LEN(wrong); index++)
        IS(NS_BAD_ARGUMENT, ns_find_all(session, values, wrong[index], meet_view, &met));
    ns_lookup right = {.tag = ns_text("ip"), .kind = NS_LOOKUP_RANGE};
    IS(NS_BAD_ARGUMENT, ns_find_all(session, values, right, NULL, &met));
    IS(NS_BAD_ARGUMENT, ns_find_all(session, (ns_namespace){7}, right, meet_view, &met));
    /* A reversed range is empty. */
    right.from = (ns_bound){NS_BOUND_INCLUDED, ns_text("2")};
    right.to = (ns_bound){NS_BOUND_INCLUDED, ns_text("1")};
    CHECK(finds(right, ""));
    IS(NS_BAD_ARGUMENT, ns_count_tagged(session, values, tag("dnn", "ims"), NULL));
    IS(NS_BAD_ARGUMENT, ns_count_tagged(session, values, tag("none", "ims"), &count));
}

struct moved {
    ns_txn *txn;
    struct met met;
};

static bool end_it(void *context, ns_bytes key)
{
    struct moved *moved = context;
    IS(NS_BAD_ARGUMENT, ns_txn_commit(moved->txn));
    IS(NS_BAD_ARGUMENT, ns_txn_abort(moved->txn));
    return meet(&moved->met, key);
}

static void a_transaction_finds_by_tags_too(void)
{
    ns_view record;
    ns_bytes key;
    struct moved moved = {NULL, {{0}, 0}};
    fill();
    OK(ns_txn_begin(session, &moved.txn));
    OK(ns_txn_find(moved.txn, values, tag("teid", "teid 3"), &key, &record));
    CHECK(key.len == 1 && key.data[0] == 'c' && record.value.len == strlen("context"));
    CHECK(ns_txn_find(moved.txn, values, tag("teid", "?"), &key, NULL) == NS_NOT_FOUND);
    OK(ns_txn_find(moved.txn, values, tag("teid", "teid 3"), NULL, NULL));
    ns_lookup all = {.tag = ns_text("dnn"), .kind = NS_LOOKUP_EQUAL, .value = ns_text("internet")};
    OK(ns_txn_find_all(moved.txn, values, all, end_it, &moved));
    CHECK(strcmp(moved.met.keys, "ac") == 0);
    IS(NS_BAD_ARGUMENT, ns_txn_find_all(moved.txn, values, all, NULL, &moved));
    IS(NS_BAD_ARGUMENT, ns_txn_find(NULL, values, tag("teid", "x"), NULL, NULL));
    /* The session gets another TEID; the old one becomes free. */
    ns_tag tags[] = {tag("supi", "003"), tag("teid", "teid 4")};
    OK(ns_txn_set_metadata(moved.txn, values, key, (ns_metadata){tags, 2, 0}));
    OK(ns_txn_commit(moved.txn));
    ns_view view;
    CHECK(ns_find(session, values, tag("teid", "teid 3"), &view) == NS_NOT_FOUND);
    OK(ns_find(session, values, tag("teid", "teid 4"), &view));
    ns_view_release(&view);
}

static void an_expired_record_is_not_found_and_collected_once(void)
{
    const char *const old[] = {"009", "teid 9", "ims", "10.0.0.9"};
    size_t records = 7;
    bool has_more = true;
    ns_view view;
    fill();
    CHECK(ns_now_ms() > 1600000000000);
    uint64_t now_ms = 0;
    OK(ns_session_now_ms(session, &now_ms));
    CHECK(now_ms > 1600000000000);
    IS(NS_BAD_ARGUMENT, ns_session_now_ms(session, NULL));
    OK(put("old", old, 1));
    CHECK(ns_get(session, values, ns_text("old"), &view) == NS_NOT_FOUND);
    CHECK(ns_find(session, values, tag("teid", "teid 9"), &view) == NS_NOT_FOUND);
    OK(ns_collect_expired(session, 100, &records, &has_more));
    CHECK(records == 1 && !has_more);
    OK(ns_collect_expired(session, SIZE_MAX, &records, NULL));
    CHECK(records == 0);
    OK(ns_collect_expired(session, 0, NULL, &has_more));
    IS(NS_BAD_ARGUMENT, ns_collect_expired(NULL, 1, NULL, NULL));
    /* Its tag values are free. */
    OK(put("new", old, ns_now_ms() + 3600000));
    OK(ns_find(session, values, tag("teid", "teid 9"), &view));
    ns_view_release(&view);
}

static void counters_add_up_and_are_not_records(void)
{
    ns_namespace counters, again;
    ns_view view;
    int64_t sum = 0;
    OK(ns_namespace_open(session, ns_text("counters"), NS_KIND_COUNTERS, &counters));
    CHECK(ns_counter_read(session, counters, ns_text("ues"), &sum) == NS_NOT_FOUND);
    OK(ns_counter_add(session, counters, ns_text("ues"), 5));
    OK(ns_counter_add(session, counters, ns_text("ues"), -7));
    OK(ns_counter_read(session, counters, ns_text("ues"), &sum));
    CHECK(sum == -2);
    IS(NS_WRONG_KIND, ns_counter_add(session, values, ns_text("ues"), 1));
    IS(NS_WRONG_KIND, ns_counter_read(session, values, ns_text("ues"), &sum));
    OK(ns_counter_add(session, counters, ns_text(""), 1));
    IS(NS_BAD_ARGUMENT, ns_counter_read(session, counters, ns_text("ues"), NULL));
    IS(NS_WRONG_KIND, ns_put(session, counters, ns_text("ues"), ns_text("1"), NULL));
    ns_tag_schema one = {ns_text("x"), 0};
    IS(NS_WRONG_KIND, ns_namespace_add_tags(session, counters, (ns_tag_schema_list){&one, 1}));
    IS(NS_WRONG_KIND, ns_namespace_open(session, ns_text("counters"), NS_KIND_VALUE, &again));
    IS(NS_BAD_ARGUMENT, ns_namespace_open(session, ns_text("more"), 4, &again));
    OK(ns_delete(session, counters, ns_text("ues")));
    CHECK(ns_get(session, values, ns_text("ues"), &view) == NS_NOT_FOUND);
}

static const struct promise promises[] = {
    TEST(a_session_is_found_by_each_of_its_identities),
    TEST(a_taken_value_is_rejected_with_the_key_of_its_record),
    TEST(a_put_keeps_the_metadata_of_its_record_if_it_says_so),
    TEST(tags_are_listed_as_they_were_declared),
    TEST(a_search_is_built_from_local_variables),
    TEST(invalid_lookups_are_rejected),
    TEST(a_transaction_finds_by_tags_too),
    TEST(an_expired_record_is_not_found_and_collected_once),
    TEST(counters_add_up_and_are_not_records),
};

int main(int argc, char **argv)
{
    return keep(argc, argv, promises, LEN(promises));
}
