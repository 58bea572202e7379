//! The log: one line per event on standard error. Each kind of event has a permanent id, which
//! operators look up in `docs/operate/logs.md`.
//!
//! A separate thread writes the lines, so that no core waits for the reader of standard error.
//! Lines that do not fit into its queue are dropped and counted; a later line reports the count.
//! The number of lines of each kind is limited ([`LogRate`]).

mod events;

pub(crate) use events::*;

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::settings::{LogFormat, LogLevel};

/// Lines queued for standard error: 200 KB at 200 bytes each. Further lines are dropped.
const QUEUED_MAX: usize = 1024;

/// How many lines of one kind are written in a period. Further ones are counted, and the next line
/// that is written reports the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRate {
    /// Ten per second. More than that is a malfunction or an attack.
    TenPerSecond,
    /// One per minute: an event that a busy machine causes all the time.
    OnePerMinute,
    /// One per minute for each cause: the reason, and the address without its port.
    OncePerCause,
}

impl LogRate {
    const fn lines_and_period(self) -> (u32, Duration) {
        match self {
            Self::TenPerSecond => (10, Duration::from_secs(1)),
            Self::OnePerMinute | Self::OncePerCause => (1, RATE_PERIOD_MAX),
        }
    }
}

/// The longest period of a rate.
const RATE_PERIOD_MAX: Duration = Duration::from_secs(60);

/// Kinds of events and causes whose numbers of lines are counted.
const RATES_MAX: usize = 256;

/// What an event of the rate [`LogRate::OncePerCause`] is counted with.
fn cause(event: &LogEvent, fields: &LogFields<'_>) -> String {
    if event.rate != LogRate::OncePerCause {
        return String::new();
    }
    let mut text = String::new();
    for (name, value) in fields {
        let value = value.to_string();
        let is_address = *name == "address";
        let host = value.rsplit_once(':').filter(|_| is_address).map_or(&*value, |(host, _)| host);
        text.extend([host, "\n"]);
    }
    text
}

/// How long the end of the process waits for the last lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// A kind of event.
#[derive(Debug)]
pub(crate) struct LogEvent {
    /// Its permanent id.
    pub(crate) id: &'static str,
    /// Its severity.
    pub(crate) level: LogLevel,
    /// How often it is written.
    pub(crate) rate: LogRate,
    /// What happened.
    pub(crate) message: &'static str,
    /// What an operator can do about it, for the documentation.
    #[cfg_attr(not(test), expect(dead_code, reason = "a test compares docs/operate/logs.md"))]
    pub(crate) advice: &'static str,
}

/// The fields of one event.
pub(crate) type LogFields<'f> = [(&'f str, &'f dyn Display)];

enum WriterMessage {
    Line(String),
    Flush(SyncSender<()>),
}

struct Logger {
    /// A [`LogLevel`], which may change.
    level: AtomicU8,
    format: LogFormat,
    lines: SyncSender<WriterMessage>,
    rates: Mutex<BTreeMap<(&'static str, String), EventRate>>,
    lost: AtomicU64,
}

/// The number of lines of one kind in the current period.
struct EventRate {
    since: Instant,
    written: u32,
    suppressed: u64,
}

static LOGGER: OnceLock<Logger> = OnceLock::new();

/// Starts logging. Without it, or if the thread cannot be started, nothing is logged.
pub(crate) fn start(level: LogLevel, format: LogFormat) {
    let (lines, written) = sync_channel(QUEUED_MAX);
    let writer = std::thread::Builder::new().name("ns-log".to_owned());
    if writer.spawn(move || write_lines(&written)).is_ok() {
        let rates = Mutex::default();
        let _ = LOGGER.set(Logger {
            level: AtomicU8::new(level as u8),
            format,
            lines,
            rates,
            lost: AtomicU64::new(0),
        });
    }
}

fn write_lines(messages: &Receiver<WriterMessage>) {
    while let Ok(message) = messages.recv() {
        match message {
            WriterMessage::Line(text) => {
                let _ = std::io::stderr().write_all(text.as_bytes());
            }
            WriterMessage::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

/// Logs an event. Never blocks.
pub(crate) fn emit(event: &'static LogEvent, fields: &LogFields<'_>) {
    let Some(logger) = LOGGER.get() else { return };
    if event.level as u8 > logger.level.load(Ordering::Relaxed) {
        return;
    }
    let of = cause(event, fields);
    let Some(suppressed) = logger.check_rate((event, of), Instant::now()) else { return };
    let mut fields = fields.to_vec();
    if suppressed > 0 {
        fields.push(("suppressed", &suppressed));
    }
    let lost = logger.lost.swap(0, Ordering::Relaxed);
    if lost > 0 {
        fields.push(("lost_before", &lost));
    }
    let text = match logger.format {
        LogFormat::Text => text_line(event, &fields),
        LogFormat::Json => json_line(event, &fields, SystemTime::now()),
    };
    if logger.lines.try_send(WriterMessage::Line(text)).is_err() {
        logger.lost.fetch_add(lost + 1, Ordering::Relaxed);
    }
}

/// Changes the least severe level that is logged.
pub(crate) fn set_level(level: LogLevel) {
    if let Some(logger) = LOGGER.get() {
        logger.level.store(level as u8, Ordering::Relaxed);
    }
}

/// Waits until the queued lines are written, at most [`FLUSH_TIMEOUT`].
pub(crate) fn flush() {
    let Some(logger) = LOGGER.get() else { return };
    let (done, is_done) = sync_channel(1);
    if logger.lines.try_send(WriterMessage::Flush(done)).is_ok() {
        let _ = is_done.recv_timeout(FLUSH_TIMEOUT);
    }
}

impl Logger {
    /// Returns the number of lines of this kind that were suppressed since the last one, or `None`
    /// if this one is to be suppressed too.
    fn check_rate(&self, (event, cause): (&'static LogEvent, String), now: Instant) -> Option<u64> {
        let (lines_max, period) = event.rate.lines_and_period();
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        if rates.len() >= RATES_MAX {
            rates.retain(|_, rate| now.saturating_duration_since(rate.since) < RATE_PERIOD_MAX);
        }
        // Too many causes count as one.
        let cause = if rates.len() >= RATES_MAX { String::new() } else { cause };
        let rate = rates.entry((event.id, cause)).or_insert_with(|| EventRate {
            since: now,
            written: 0,
            suppressed: 0,
        });
        if now.saturating_duration_since(rate.since) >= period {
            (rate.since, rate.written) = (now, 0);
        }
        if rate.written >= lines_max {
            rate.suppressed += 1;
            return None;
        }
        rate.written += 1;
        Some(std::mem::take(&mut rate.suppressed))
    }
}

/// `level id message key=value ..`
fn text_line(event: &LogEvent, fields: &LogFields<'_>) -> String {
    let mut line = format!("{} {} {}", event.level.name(), event.id, event.message);
    for (name, value) in fields {
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

fn json_line(event: &LogEvent, fields: &LogFields<'_>, now: SystemTime) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut line = serde_json::Map::new();
    line.insert("time_ms".to_owned(), u64::try_from(since.as_millis()).unwrap_or(0).into());
    line.insert("level".to_owned(), event.level.name().into());
    line.insert("id".to_owned(), event.id.into());
    line.insert("message".to_owned(), event.message.into());
    for (name, value) in fields {
        let text = value.to_string();
        let value = text.parse::<u64>().map_or_else(|_| text.into(), Into::into);
        line.insert((*name).to_owned(), value);
    }
    format!("{}\n", serde_json::Value::Object(line))
}

#[cfg(test)]
mod tests;
