/* Tests of the removal and of the limits of namespaces: `namespaces TEST PATH`, with the path of a
 * region that does not exist. */
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

int main(int argc, char **argv)
{
    const struct promise promises[] = {
        TEST(an_empty_namespace_is_removed_and_its_handle_is_refused),
        TEST(growth_above_a_limit_is_refused),
    };
    return keep(argc, argv, promises, LEN(promises));
}
