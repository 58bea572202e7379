//! The format of lines, their rate limit, and the page that documents the events.

use super::*;
use std::collections::BTreeSet;

const EVENT: &LogEvent = &LogEvent {
    id: "NS-0000",
    level: LogLevel::Warn,
    rate: LogRate::TenPerSecond,
    message: "disk full",
    advice: "Delete files.",
};

#[test]
fn a_text_line_is_one_line_for_any_field_value() {
    let fields: &LogFields<'_> =
        &[("plain", &7), ("hostile", &"a b\n\"c\"=\u{1b}[2J"), ("none", &"")];
    let line = text_line(EVENT, fields);
    let wanted =
        "warn NS-0000 disk full plain=7 hostile=\"a b\\n\\\"c\\\"=\\u{1b}[2J\" none=\"\"\n";
    assert_eq!(line, wanted);
    let json = json_line(EVENT, fields, SystemTime::UNIX_EPOCH + Duration::from_millis(5));
    let back: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(back["hostile"], "a b\n\"c\"=\u{1b}[2J");
    assert_eq!((back["plain"].as_u64(), back["time_ms"].as_u64()), (Some(7), Some(5)));
    assert_eq!(json.matches('\n').count(), 1);
}

#[test]
fn lines_above_the_rate_limit_are_suppressed_and_counted() {
    let (lines, _kept) = sync_channel(1);
    let logger = Logger {
        level: AtomicU8::new(LogLevel::Info as u8),
        format: LogFormat::Text,
        lines,
        rates: Mutex::default(),
        lost: AtomicU64::new(0),
    };
    let begin = Instant::now();
    let check_cause = |event, fields: &LogFields<'_>, seconds| {
        logger.check_rate((event, cause(event, fields)), begin + Duration::from_secs(seconds))
    };
    let check = |event, seconds| check_cause(event, &[("reason", &"any")], seconds);
    let written = (0..1000).filter(|_| check(EVENT, 0).is_some()).count();
    assert_eq!(written, 10);
    assert_eq!(check(CORE_FAILED, 0), Some(0), "another kind is not suppressed");
    assert_eq!((check(EVENT, 1), check(EVENT, 1)), (Some(990), Some(0)));
    // A busy machine causes these all the time.
    let written = (0..600).filter(|second| check(LONG_POLL, second / 10).is_some()).count();
    assert_eq!((written, check(LONG_POLL, 60)), (1, Some(599)));
    // A host that is refused tries again and again, from another port each time.
    let refused = |port: u16, reason: &str, seconds| {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        check_cause(MEMBER_REFUSED, &[("address", &address), ("reason", &reason)], seconds)
    };
    let written = (0..600).filter(|port| refused(*port, "settings", 0).is_some()).count();
    assert_eq!(written, 1);
    assert_eq!(refused(1, "certificate", 0), Some(0), "another cause is not suppressed");
    assert_eq!((refused(1, "settings", 59), refused(1, "settings", 60)), (None, Some(600)));
    // Causes that never repeat do not fill the memory.
    let causes = (0..10_000).filter(|n: &u32| refused(1, &n.to_string(), 61).is_some()).count();
    assert!(causes <= RATES_MAX, "{causes} lines");
    assert!(logger.rates.lock().unwrap().len() <= RATES_MAX + 1);
}

#[test]
fn every_id_is_unique_and_the_page_documents_every_event() {
    let ids: BTreeSet<_> = ALL.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), ALL.len());
    assert!(ALL.is_sorted_by_key(|event| event.id));
    let mut table = "| id | level | message | what to do |\n|---|---|---|---|\n".to_owned();
    for event in ALL {
        let LogEvent { id, level, message, advice, .. } = event;
        writeln!(table, "| `{id}` | {} | {message} | {advice} |", level.name()).unwrap();
    }
    let page = include_str!("../../../../docs/operate/logs.md");
    assert!(page.contains(&table), "docs/operate/logs.md should contain:\n{table}");
}
