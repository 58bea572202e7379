//! The log: a line for each event, on the standard error. Each kind of event has an id that never
//! changes, so that an operator can look it up (`docs/operate/logs.md`) and search for it.
//!
//! Lines are written by a thread of their own: a core that says something must not wait for whoever
//! reads the standard error. What does not fit its queue is counted and told later, and of each
//! kind a few lines a second are written, however often it happens.

mod events;

pub(crate) use events::*;

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::settings::{Form, Level};

/// Lines that wait for the standard error. At 200 bytes each it is 200 KB; a reader that has
/// stopped costs no more.
const WAITING_MAX: usize = 1024;

/// Lines of one kind in a second. Whoever makes us write more is a fault, or means us ill.
const OF_A_KIND_MAX: u32 = 10;

/// How long the end of the process waits for the last lines.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// A kind of event.
#[derive(Debug)]
pub(crate) struct Event {
    /// Its name for ever.
    pub(crate) id: &'static str,
    /// How bad it is.
    pub(crate) level: Level,
    /// What has happened.
    pub(crate) message: &'static str,
    /// What an operator may do about it; for the documentation.
    #[cfg_attr(not(test), expect(dead_code, reason = "docs/operate/logs.md is held against it"))]
    pub(crate) advice: &'static str,
}

/// What belongs to one event.
pub(crate) type Facts<'f> = [(&'f str, &'f dyn Display)];

enum Line {
    Text(String),
    Flush(SyncSender<()>),
}

struct Log {
    least: Level,
    form: Form,
    lines: SyncSender<Line>,
    kinds: Mutex<BTreeMap<&'static str, Kind>>,
    lost: AtomicU64,
}

/// How often one kind of event has been written in this second.
struct Kind {
    since: Instant,
    written: u32,
    suppressed: u64,
}

static LOG: OnceLock<Log> = OnceLock::new();

/// Begins to log. Before that, and if no thread can be had, nothing is written.
pub(crate) fn start(least: Level, form: Form) {
    let (lines, written) = sync_channel(WAITING_MAX);
    let writer = std::thread::Builder::new().name("near-log".to_owned());
    if writer.spawn(move || write(&written)).is_ok() {
        let kinds = Mutex::default();
        let _ = LOG.set(Log { least, form, lines, kinds, lost: AtomicU64::new(0) });
    }
}

fn write(lines: &Receiver<Line>) {
    while let Ok(line) = lines.recv() {
        match line {
            Line::Text(text) => {
                let _ = std::io::stderr().write_all(text.as_bytes());
            }
            Line::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

/// Says that something has happened. Never waits for whoever reads.
pub(crate) fn say(event: &'static Event, facts: &Facts<'_>) {
    let Some(log) = LOG.get() else { return };
    if event.level > log.least {
        return;
    }
    let Some(suppressed) = log.admit(event.id, Instant::now()) else { return };
    let mut facts = facts.to_vec();
    if suppressed > 0 {
        facts.push(("suppressed", &suppressed));
    }
    let lost = log.lost.swap(0, Ordering::Relaxed);
    if lost > 0 {
        facts.push(("lost_before", &lost));
    }
    let text = match log.form {
        Form::Text => text_line(event, &facts),
        Form::Json => json_line(event, &facts, SystemTime::now()),
    };
    if log.lines.try_send(Line::Text(text)).is_err() {
        log.lost.fetch_add(lost + 1, Ordering::Relaxed);
    }
}

/// Waits until what was said is written, for a moment.
pub(crate) fn flush() {
    let Some(log) = LOG.get() else { return };
    let (done, is_done) = sync_channel(1);
    if log.lines.try_send(Line::Flush(done)).is_ok() {
        let _ = is_done.recv_timeout(FLUSH_MAX);
    }
}

impl Log {
    /// Whether one more of a kind is written now; and how many were not since the last one.
    fn admit(&self, id: &'static str, now: Instant) -> Option<u64> {
        let mut kinds = self.kinds.lock().unwrap_or_else(PoisonError::into_inner);
        let kind =
            kinds.entry(id).or_insert_with(|| Kind { since: now, written: 0, suppressed: 0 });
        if now.saturating_duration_since(kind.since) >= Duration::from_secs(1) {
            (kind.since, kind.written) = (now, 0);
        }
        if kind.written >= OF_A_KIND_MAX {
            kind.suppressed += 1;
            return None;
        }
        kind.written += 1;
        Some(std::mem::take(&mut kind.suppressed))
    }
}

/// `level id message key=value ..`
fn text_line(event: &Event, facts: &Facts<'_>) -> String {
    let mut line = format!("{} {} {}", event.level.name(), event.id, event.message);
    for (name, value) in facts {
        let value = value.to_string();
        let is_plain = !value.is_empty()
            && value.chars().all(|c| !c.is_whitespace() && !c.is_control() && c != '"' && c != '=');
        let _ = if is_plain {
            write!(line, " {name}={value}")
        } else {
            write!(line, " {name}={value:?}")
        };
    }
    line.push('\n');
    line
}

fn json_line(event: &Event, facts: &Facts<'_>, now: SystemTime) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut line = serde_json::Map::new();
    line.insert("time_ms".to_owned(), u64::try_from(since.as_millis()).unwrap_or(0).into());
    line.insert("level".to_owned(), event.level.name().into());
    line.insert("id".to_owned(), event.id.into());
    line.insert("message".to_owned(), event.message.into());
    for (name, value) in facts {
        let text = value.to_string();
        let value = text.parse::<u64>().map_or_else(|_| text.into(), Into::into);
        line.insert((*name).to_owned(), value);
    }
    format!("{}\n", serde_json::Value::Object(line))
}

#[cfg(test)]
mod tests;
