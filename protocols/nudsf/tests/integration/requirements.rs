//! The requirements of a conformant data repository, each with the tests that prove it. A
//! requirement without a test fails the build, as does an operation of the contract without one.

use std::fmt::Write as _;

use nearstate_nudsf::OPERATIONS;

use crate::contract::operations;
use crate::openapi::{page_section, tests};

/// The id, what is required, and the prefixes of the tests that prove it.
type Requirement = (&'static str, &'static str, &'static [&'static str]);

const REQUIREMENTS: &[Requirement] = &[
    ("req01", "HTTP/2 with prior knowledge and over TLS; media types", &["req01_", "dr09_"]),
    (
        "req02",
        "every operation; `Location` of what is created, except timers",
        &["req02_", "dr04_put_creates"],
    ),
    (
        "req03",
        "strong entity tags, conditional requests",
        &["dr03_", "dr04_cond", "dr07_", "dr10_", "dr14_", "dr18_"],
    ),
    ("req04", "writes are atomic; a patch of a record is applied as a whole or not", &["dr05_"]),
    (
        "req05",
        "`get-previous` in the same step",
        &["req05_", "dr04_put_replaces", "dr06_", "dr20_"],
    ),
    ("req06", "filters, counts, limits", &["dr01_", "dr02_"]),
    ("req07", "schemas: unique keys and presence", &["req07_", "dr19_"]),
    ("req08", "`ttl`: the record does not exist from that time on", &["req08_"]),
    ("req09", "subscriptions with filter and expiry", &["dr15_", "dr16_"]),
    ("req10", "timers: tags, repetitions, deletion after their expiry", &["tm0"]),
    ("features", "negotiation of `supportedFeatures`", &["req_features_"]),
    (
        "delivery",
        "notifications at least once, in order of each record, retried, bounded",
        &["req_after_kills", "req_changes_of_every", "req_a_target_that", "req_slow_dead"],
    ),
    ("req11", "realms and storages are configuration; others are unknown", &["req11_"]),
    ("req12", "access tokens: 401, 403", &["req12_"]),
    ("req13", "registration with the NRF", &["req13_"]),
    ("sbi", "`3gpp-Sbi-*` headers, overload", &["req_sbi_"]),
    (
        "limits",
        "hostile peers are bounded",
        &["req_large_", "req_slow_", "req_http_2_floods", "req_hostile_"],
    ),
    (
        "replicated",
        "a write to a storage whose commits wait is answered when it is replicated",
        &["req_replicated_"],
    ),
    (
        "refused",
        "a write whose response cannot be sent changes nothing",
        &["dr04_a_write_whose", "req_hostile_a_client_that_reads_no"],
    ),
    (
        "end",
        "a node that ends answers the requests in progress, in bounded time",
        &["req_http_2_a_", "req_replicated_a_node_that_ends"],
    ),
    ("one record", "one record, three interfaces", &["req_a_record_of_", "req_what_nudsf_"]),
];

#[test]
fn req02_every_operation_of_the_contract_is_in_the_table_with_its_method_and_path() {
    for (service, prefix, count) in [("nudsf-dr", "dr", 20), ("nudsf-timer", "tm", 6)] {
        let root = format!("/{service}/v1/{{realmId}}/{{storageId}}");
        let known = operations().into_iter().filter_map(|(id, method, path)| {
            Some((id.to_owned(), method.to_owned(), path.strip_prefix(&root)?.to_owned()))
        });
        let mut known: Vec<_> = known.collect();
        let served = OPERATIONS.iter().filter(|spec| spec.tests.starts_with(prefix));
        let mut served: Vec<_> = served
            .map(|spec| (spec.id.to_owned(), spec.method.to_string(), spec.path.to_owned()))
            .collect();
        known.sort();
        served.sort();
        assert_eq!(known.len(), count, "{service}");
        assert_eq!(served, known);
    }
}

#[test]
fn req_every_requirement_has_a_test_and_the_page_lists_them() {
    let tests = tests();
    let mut table = String::from("| id | requirement | tests |\n|---|---|---|\n");
    for (id, text, prefixes) in REQUIREMENTS {
        let mut named = String::new();
        for prefix in *prefixes {
            let count = tests.iter().filter(|test| test.starts_with(prefix)).count();
            assert!(count > 0, "{id}: no test begins with {prefix}");
            write!(named, " `{prefix}*` ({count})").unwrap();
        }
        writeln!(table, "| {id} | {text} |{named} |").unwrap();
    }
    page_section("requirements", &table);
}
