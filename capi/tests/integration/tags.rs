//! Tags, lookups, searches, expiry and counters as C meets them, promise by promise.

crate::fixture::kept_in_c! {
    "c/tags.c":
    a_session_is_found_by_each_of_its_identities
    a_value_that_is_taken_is_refused_with_its_holder
    tags_are_listed_as_they_were_declared
    a_search_is_put_together_where_it_is_used
    lookups_that_are_off_are_refused
    a_transaction_finds_by_tags_too
    a_record_past_its_time_is_gone_and_collected_once
    counters_add_up_and_are_no_records
}
