//! Tags, lookups, searches, expiry and counters in C: `c/tags.c`.

crate::fixture::c_tests! {
    "c/tags.c":
    a_session_is_found_by_each_of_its_identities
    a_taken_value_is_rejected_with_the_key_of_its_record
    a_put_keeps_the_metadata_of_its_record_if_it_says_so
    tags_are_listed_as_they_were_declared
    a_search_is_built_from_local_variables
    invalid_lookups_are_rejected
    a_transaction_finds_by_tags_too
    an_expired_record_is_not_found_and_collected_once
    counters_add_up_and_are_not_records
}
