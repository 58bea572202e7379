//! `MONITOR`: clients that receive each request of all clients as a line.

use crate::parse::Args;
use crate::pubsub::mailbox::{Delivery, Mailbox, Message, MessageBudget, MessageKind};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The longest line. The rest of a longer request is left out: one value may have 128 MiB, and the
/// core that executes the request writes the line.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// The monitoring clients.
#[derive(Debug, Default)]
pub struct Monitors {
    /// True if there are any. Written under the lock.
    is_any: AtomicBool,
    mailboxes: Mutex<BTreeMap<u64, Arc<Mailbox>>>,
}

impl Monitors {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Mailbox>>> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client.
    pub fn add(&self, id: u64, mailbox: &Arc<Mailbox>) {
        let mut mailboxes = self.lock();
        mailboxes.insert(id, Arc::clone(mailbox));
        self.is_any.store(true, Ordering::Release);
    }

    /// Removes a client, if it monitors.
    pub fn remove(&self, id: u64) {
        if !self.is_any() {
            return;
        }
        let mut mailboxes = self.lock();
        mailboxes.remove(&id);
        self.is_any.store(!mailboxes.is_empty(), Ordering::Release);
    }

    /// True if requests are monitored. Takes no lock.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Acquire)
    }

    /// Sends a request to all monitoring clients. `at_micros` is the time since 1970.
    #[cold]
    pub fn send(&self, budget: &Arc<MessageBudget>, at_micros: u64, address: &str, args: Args<'_>) {
        let line = line(at_micros, address, args);
        let message = Arc::new(Message::of_kind(budget, MessageKind::Monitor, &line));
        for mailbox in self.lock().values() {
            mailbox.put(Delivery { message: Arc::clone(&message), pattern: None });
        }
    }
}

/// `1700000000.000000 [0 127.0.0.1:40001] "SET" "k" "v"`, as Redis writes it.
fn line(at_micros: u64, address: &str, args: Args<'_>) -> Vec<u8> {
    let (seconds, micros) = (at_micros / 1_000_000, at_micros % 1_000_000);
    let mut line = format!("{seconds}.{micros:06} [0 {address}]").into_bytes();
    for (number, arg) in args.iter().enumerate() {
        line.extend_from_slice(b" \"");
        let room = LINE_BYTES_MAX.saturating_sub(line.len()) / 4;
        let shown = arg.get(..room).unwrap_or(arg);
        for byte in shown {
            escape(*byte, &mut line);
        }
        line.push(b'"');
        if shown.len() < arg.len() {
            let bytes = arg.len() - shown.len();
            let args = args.len() - number - 1;
            let rest = format!(" ... ({bytes} more bytes, {args} more arguments)");
            line.extend_from_slice(rest.as_bytes());
            break;
        }
    }
    line
}

fn escape(byte: u8, line: &mut Vec<u8>) {
    match byte {
        b'\\' | b'"' => line.extend_from_slice(&[b'\\', byte]),
        b'\n' => line.extend_from_slice(b"\\n"),
        b'\r' => line.extend_from_slice(b"\\r"),
        b'\t' => line.extend_from_slice(b"\\t"),
        7 => line.extend_from_slice(b"\\a"),
        8 => line.extend_from_slice(b"\\b"),
        b' '..=b'~' => line.push(byte),
        _ => line.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::OwnedArgs;

    fn text(args: &[&[u8]]) -> String {
        let args: OwnedArgs = args.iter().copied().collect();
        String::from_utf8(line(1_700_000_000_000_042, "10.0.0.1:5", args.args()))
            .unwrap_or_else(|_| unreachable!("escaped"))
    }

    #[test]
    fn a_line_shows_the_request_in_the_notation_of_redis() {
        let expected = r#"1700000000.000042 [0 10.0.0.1:5] "set" "k" "a\"\\\n\r\t\a\b\x00\xff""#;
        assert_eq!(text(&[b"set", b"k", b"a\"\\\n\r\t\x07\x08\x00\xff"]), expected);
    }

    #[test]
    fn a_long_request_is_cut() {
        let large = vec![0; 1 << 20];
        let shown = text(&[b"mset", b"k", &large, b"l", b"m"]);
        assert!(shown.len() < LINE_BYTES_MAX + 100, "{}", shown.len());
        assert!(shown.ends_with(" more bytes, 2 more arguments)"));
        let many: Vec<&[u8]> = (0..100_000).map(|_| &b"argument"[..]).collect();
        assert!(text(&many).len() < LINE_BYTES_MAX + 100);
    }
}
