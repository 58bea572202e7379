/* Tests of the list, the removal and the limits of namespaces: `namespaces TEST PATH`, with the
 * path of a region that does not exist. */
#include "fixture.h"

static void an_empty_namespace_is_removed_and_its_handle_is_refused(void)
{
    ns_namespace again;
    OK(ns_put(session, values, ns_text("key"), ns_text("value"), NULL));
    CHECK(ns_namespace_remove(session, values) == NS_REFUSED);
    OK(ns_delete(session, values, ns_text("key")));
    OK(ns_namespace_remove(session, values));
    IS(NS_BAD_ARGUMENT, ns_put(session, values, ns_text("key"), ns_text("value"), NULL));
    IS(NS_BAD_ARGUMENT, ns_namespace_remove(session, values));
    OK(ns_namespace_open(session, ns_text("values"), NS_KIND_VALUE, &again));
    CHECK(again.id != values.id);
    OK(ns_put(session, again, ns_text("key"), ns_text("value"), NULL));
    IS(NS_BAD_ARGUMENT, ns_namespace_remove(session, (ns_namespace){7}));
}

static void growth_above_a_limit_is_refused(void)
{
    static const uint8_t value[900] = {1};
    ns_namespace_usage usage;
    CHECK(ns_namespace_get_usage(session, values, &usage) == NS_NOT_FOUND);
    OK(ns_put(session, values, ns_text("one"), some(value, sizeof value), NULL));
    OK(ns_namespace_set_limits(session, values, 512, 1024));
    OK(ns_namespace_get_usage(session, values, &usage));
    CHECK(usage.used_bytes == 960 && usage.soft_bytes == 512 && usage.hard_bytes == 1024);
    CHECK(usage.is_complete);
    IS(NS_LIMIT_REACHED, ns_put(session, values, ns_text("two"), some(value, sizeof value), NULL));
    CHECK(strstr(ns_last_error(), "namespace \"values\" is full") != NULL);
    CHECK(strcmp(ns_status_name(NS_LIMIT_REACHED), "NS_LIMIT_REACHED") == 0);
    OK(ns_put(session, values, ns_text("one"), some(value, sizeof value), NULL));
    OK(ns_delete(session, values, ns_text("one")));
    OK(ns_namespace_get_usage(session, values, &usage));
    CHECK(usage.used_bytes == 0);
    IS(NS_BAD_ARGUMENT, ns_namespace_set_limits(session, values, 2048, 1024));
    OK(ns_namespace_set_limits(session, values, 0, 0));
    CHECK(ns_namespace_get_usage(session, values, &usage) == NS_NOT_FOUND);
    OK(ns_put(session, values, ns_text("two"), some(value, sizeof value), NULL));
}

struct listing {
    int calls;
    int seen;
    int most;
};

/* Compares a name, and opens and counts the namespace from within the iteration. */
static bool is_as_expected(void *context, const ns_namespace_info *info)
{
    struct listing *list = context;
    char name[32] = {0};
    ns_namespace opened;
    uint64_t records;
    list->calls++;
    CHECK(info->name.len < sizeof name);
    memcpy(name, info->name.data, info->name.len);
    if (strcmp(name, "values") == 0) {
        list->seen |= 1;
        CHECK(info->kind == NS_KIND_VALUE && info->records == 2 && !info->is_limited);
        CHECK(info->usage.used_bytes == 0 && info->usage.hard_bytes == 0);
    } else if (strcmp(name, "limited") == 0) {
        list->seen |= 2;
        CHECK(info->kind == NS_KIND_VALUE && info->records == 1 && info->is_limited);
        CHECK(info->usage.used_bytes == 64 && info->usage.soft_bytes == 512);
        CHECK(info->usage.hard_bytes == 1024 && info->usage.is_complete);
    } else if (strcmp(name, "numbers") == 0) {
        list->seen |= 4;
        CHECK(info->kind == NS_KIND_COUNTERS && info->records == 0 && !info->is_limited);
    }
    OK(ns_namespace_open(session, ns_text(name), info->kind, &opened));
    OK(ns_count(session, opened, &records));
    CHECK(records == info->records);
    return list->calls < list->most;
}

static void namespaces_are_listed_with_records_and_limits(void)
{
    ns_namespace limited, numbers;
    struct listing all = {0, 0, 1000}, first = {0, 0, 1};
    OK(ns_put(session, values, ns_text("one"), ns_text("1"), NULL));
    OK(ns_put(session, values, ns_text("two"), ns_text("2"), NULL));
    OK(ns_namespace_open(session, ns_text("limited"), NS_KIND_VALUE, &limited));
    OK(ns_put(session, limited, ns_text("one"), ns_text("1"), NULL));
    OK(ns_namespace_set_limits(session, limited, 512, 1024));
    OK(ns_namespace_open(session, ns_text("numbers"), NS_KIND_COUNTERS, &numbers));
    OK(ns_namespace_list(session, is_as_expected, &all));
    CHECK(all.seen == 7 && all.calls >= 3);
    OK(ns_namespace_list(session, is_as_expected, &first));
    CHECK(first.calls == 1);
    IS(NS_BAD_ARGUMENT, ns_namespace_list(session, NULL, &all));
}

int main(int argc, char **argv)
{
    const struct promise promises[] = {
        TEST(namespaces_are_listed_with_records_and_limits),
        TEST(an_empty_namespace_is_removed_and_its_handle_is_refused),
        TEST(growth_above_a_limit_is_refused),
    };
    return keep(argc, argv, promises, LEN(promises));
}
