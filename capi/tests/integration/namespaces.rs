//! List, removal and limits of namespaces, in C: `c/namespaces.c`.

crate::fixture::c_tests! {
    "c/namespaces.c":
    namespaces_are_listed_with_records_and_limits
    an_empty_namespace_is_removed_and_its_handle_is_refused
    growth_above_a_limit_is_refused
}
