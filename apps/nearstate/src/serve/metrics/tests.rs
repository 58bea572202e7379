//! The metrics page as a scraper reads it.

use super::encode::{BOUNDS, buckets};
use super::*;
use nearstate_node::clock::Clock;
use nearstate_node::metrics::Distribution;
use nearstate_node::{CoreParts, NodeMetrics};
use nearstate_resp::acl::Users;
use nearstate_resp::server::RespSettings;
use nearstate_resp::table::TABLE;
use nearstate_store::{CreateOptions, Schema};
use std::collections::BTreeSet;
use std::fmt::Write as _;

fn page(metrics: &ServerMetrics) -> String {
    let region = metrics.0.region.clone();
    let core = Core::new(CoreParts::single(region, Clock::new_virtual()));
    let mut report = metrics.report(&core.unwrap());
    let mut text = String::new();
    while report.step(&mut text) {}
    text
}

/// `name{label="value",..} number`, with escapes in values.
fn is_sample(line: &str) -> bool {
    let name = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(0);
    let mut rest = &line[name..];
    if let Some(labels) = rest.strip_prefix('{') {
        let mut is_quoted = false;
        let mut is_escaped = false;
        let end = labels.find(|c: char| {
            let was_escaped = std::mem::replace(&mut is_escaped, is_quoted && c == '\\');
            if c == '"' && !was_escaped {
                is_quoted = !is_quoted;
            }
            is_escaped &= !was_escaped;
            c == '}' && !is_quoted
        });
        let Some(end) = end else { return false };
        rest = &labels[end + 1..];
    }
    name > 0 && rest.strip_prefix(' ').is_some_and(|number| number.parse::<f64>().is_ok())
}

#[test]
fn every_line_is_valid_for_any_name_and_the_page_is_terminated() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    let view = session.namespace("a\"b\\c\nd}{=", &Schema::default()).unwrap();
    session.put(view, b"key", b"value").unwrap();
    let server = Arc::new(RespServer::new(RespSettings::new(Users::open(&TABLE))));
    let metrics = ServerMetrics::new(region, server);
    assert_eq!(metrics.readiness(), Err("starting".to_owned()));
    metrics.begin(NodeMetrics::default());
    assert_eq!(metrics.readiness(), Ok(()));
    let page = page(&metrics);
    let mut families = BTreeSet::new();
    for line in page.lines() {
        match line.strip_prefix("# TYPE ") {
            Some(family) => assert!(families.insert(family.to_owned()), "twice: {family}"),
            None if line.starts_with('#') => {}
            None => assert!(is_sample(line), "{line:?}"),
        }
    }
    assert!(page.ends_with("# EOF\n") && page.matches("# EOF").count() == 1);
    let escaped = "nearstate_namespace_records{namespace=\"a\\\"b\\\\c\\nd}{=\"} 1\n";
    assert!(page.contains(escaped), "{page}");
    assert!(page.contains("nearstate_region_sessions 2\n"), "{page}");
    assert!(page.contains("nearstate_region_records 1\n"), "{page}");
    assert!(families.contains("nearstate_resp_request_seconds histogram"), "{families:?}");
    metrics.end();
    assert_eq!(metrics.readiness(), Err("shutting down".to_owned()));
}

#[test]
fn the_documentation_lists_every_metric() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let metrics = ServerMetrics::new(
        region,
        Arc::new(RespServer::new(RespSettings::new(Users::open(&TABLE)))),
    );
    let mut table = "| name | kind | what |\n|---|---|---|\n".to_owned();
    let mut help = "";
    let page = page(&metrics);
    for line in page.lines() {
        if let Some(text) = line.strip_prefix("# HELP ") {
            help = text.split_once(' ').unwrap().1;
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' '))
        {
            let total = if kind == "counter" { "_total" } else { "" };
            writeln!(table, "| `{name}{total}` | {kind} | {help} |").unwrap();
        }
    }
    let documentation = include_str!("../../../../../docs/operate/serve.md");
    assert!(documentation.contains(&table), "docs/operate/serve.md should contain:\n{table}");
}

#[test]
fn a_value_counts_in_the_first_bucket_with_a_greater_or_equal_bound() {
    let seen = Distribution {
        counts: vec![(1_000, 1), (1_001, 2), (9_999, 3), (10_000_000_000, 4), (u64::MAX, 5)],
        sum: 0,
    };
    let filled: Vec<_> = buckets(&seen).into_iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(filled, [(1e-6, 1), (2e-6, 2), (1e-5, 3), (10.0, 4), (f64::INFINITY, 5)]);
    assert!(BOUNDS.is_sorted());
}

#[test]
fn the_namespaces_with_the_most_records_are_listed() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let session = region.session().unwrap();
    for number in 0..300_u32 {
        let namespace = session.namespace(&format!("ns{number}"), &Schema::default()).unwrap();
        for record in 0..number / 100 {
            session.put(namespace, &record.to_le_bytes(), b"v").unwrap();
        }
    }
    let metrics = ServerMetrics::new(
        region,
        Arc::new(RespServer::new(RespSettings::new(Users::open(&TABLE)))),
    );
    let page = page(&metrics);
    let named = |what: &str| page.matches(&format!("\nnearstate_namespace_{what}{{")).count();
    assert_eq!([named("records"), named("bytes"), named("tags"), named("buckets")], [256; 4]);
    assert!(page.contains("nearstate_region_namespaces_omitted 44\n"), "{page}");
    assert!(page.contains("nearstate_region_records 300\n"), "{page}");
    assert!(page.contains("nearstate_namespace_records{namespace=\"ns299\"} 2\n"), "{page}");
    assert!(!page.contains("\"ns99\""), "it has no records, and is newer than others");
}
