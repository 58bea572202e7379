//! Lines, bounds, and the page that explains them.

use super::*;
use std::collections::BTreeSet;

const KIND: &Event =
    &Event { id: "NS-0000", level: Level::Warn, message: "it rains", advice: "Go inside." };

#[test]
fn a_line_of_text_is_one_line_whatever_stands_in_it() {
    let facts: &Facts<'_> = &[("plain", &7), ("hostile", &"a b\n\"c\"=\u{1b}[2J"), ("none", &"")];
    let line = text_line(KIND, facts);
    let wanted = "warn NS-0000 it rains plain=7 hostile=\"a b\\n\\\"c\\\"=\\u{1b}[2J\" none=\"\"\n";
    assert_eq!(line, wanted);
    let json = json_line(KIND, facts, SystemTime::UNIX_EPOCH + Duration::from_millis(5));
    let back: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(back["hostile"], "a b\n\"c\"=\u{1b}[2J");
    assert_eq!((back["plain"].as_u64(), back["time_ms"].as_u64()), (Some(7), Some(5)));
    assert_eq!(json.matches('\n').count(), 1);
}

#[test]
fn of_each_kind_a_few_lines_a_second_are_written_and_the_others_are_counted() {
    let (lines, _kept) = sync_channel(1);
    let log = Log {
        least: Level::Info,
        form: Form::Text,
        lines,
        kinds: Mutex::default(),
        lost: AtomicU64::new(0),
    };
    let begin = Instant::now();
    let admitted = (0..1000).filter(|_| log.admit("a", begin).is_some()).count();
    assert_eq!(admitted, OF_A_KIND_MAX as usize);
    assert_eq!(log.admit("b", begin), Some(0), "another kind is not held back");
    let later = begin + Duration::from_secs(1);
    assert_eq!(log.admit("a", later), Some(1000 - u64::from(OF_A_KIND_MAX)));
    assert_eq!(log.admit("a", later), Some(0));
}

#[test]
fn every_id_is_there_once_and_the_page_says_what_the_code_says() {
    let ids: BTreeSet<_> = ALL.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), ALL.len());
    assert!(ALL.is_sorted_by_key(|event| event.id));
    let mut table = "| id | level | message | what to do |\n|---|---|---|---|\n".to_owned();
    for event in ALL {
        let Event { id, level, message, advice } = event;
        writeln!(table, "| `{id}` | {} | {message} | {advice} |", level.name()).unwrap();
    }
    let page = include_str!("../../../../docs/operate/logs.md");
    assert!(page.contains(&table), "docs/operate/logs.md should contain:\n{table}");
}
