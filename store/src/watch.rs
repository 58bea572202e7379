//! Watches: a session reads the changes of the records that its filter selects.
//!
//! A watched namespace has one ring, to which its writers append an event for each change. A watch
//! reads the ring at its own pace and returns the events that match its filter. The cost of a
//! writer does not depend on the number of watches. A slow watch reports how many events it missed.

mod notify;
pub(crate) mod event;

use std::time::Duration;

use nearstate_memory::layout::namespace_flags;
use nearstate_memory::{
    RingRead, RingReader, RingStart, RingWaiter, is_end_of_namespace, namespace_removed, wait_any,
};
use nearstate_model::{Error, Result, invariant};

use crate::record::Kind;
use crate::session::{Namespace, Session, check_key};
use crate::watch::event::{Event, NAME_BYTES_MAX};

/// Events that one call skips before it returns to its caller: about a millisecond.
const SKIPPED_MAX: u32 = 8192;

/// The events that a watch returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// Events of all records.
    Namespace,
    /// Events of the record with this key.
    Key(Vec<u8>),
    /// Events of the records whose keys start with these bytes.
    Prefix(Vec<u8>),
    /// Events of the records that have this value of a tag before or after the change. This
    /// includes the change that adds the value and the one that removes it.
    Tag {
        /// The tag's name.
        name: String,
        /// The value.
        value: Vec<u8>,
    },
}

impl Filter {
    fn check(&self) -> Result<()> {
        match self {
            Self::Namespace | Self::Prefix(_) => Ok(()),
            Self::Key(key) => check_key(key),
            Self::Tag { name, .. } => match name.len() {
                1..=NAME_BYTES_MAX => Ok(()),
                bytes => Err(Error::BadArgument {
                    detail: format!("a tag's name of {bytes} bytes: it has 1 to {NAME_BYTES_MAX}"),
                }),
            },
        }
    }

    /// True if a watch with this filter returns the event. A truncated event, whose tags are
    /// unknown, matches every tag.
    pub fn matches(&self, event: &Event<'_>) -> bool {
        match self {
            Self::Namespace => true,
            Self::Key(key) => event.key == key,
            Self::Prefix(prefix) => event.key.starts_with(prefix),
            Self::Tag { name, value } => {
                let mut tags = event.tags_before().chain(event.tags_after());
                event.is_truncated || tags.any(|tag| tag == (name.as_str(), value.as_slice()))
            }
        }
    }
}

/// An item of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice<'w> {
    /// A change of a record that matches the filter.
    Event(Event<'w>),
    /// The watcher was too slow, or the key of a record is too long for the ring: this many events
    /// of the namespace are lost, including events that the filter does not select. Read the
    /// watched records again. Later events follow.
    Lost {
        /// How many.
        events: u64,
    },
}

/// A watch on some records. It is independent of the session that created it and may move to
/// another thread. It leaves nothing in the region when it is dropped or its process is killed. A
/// clone continues from the same position.
#[derive(Clone, Debug)]
pub struct Watch {
    reader: RingReader,
    namespace: u32,
    filter: Filter,
    bytes: Vec<u8>,
    /// The namespace was removed, and its last event was read.
    is_over: bool,
}

impl Session {
    /// Watches records of a namespace. The watch returns every change that begins after this call,
    /// in the order of the commits, and perhaps some of the changes that run concurrently with it.
    /// To follow records from a known state, watch first and then read them.
    ///
    /// The first watch of a namespace takes memory of the heap permanently: a thirty-second of the
    /// heap, divided by the number of the namespace, and at most 1 MiB, at least 4 KiB. An event
    /// that is larger than a quarter of it even without names and tags, because of a long key, is
    /// reported as lost. From then on each change is a transaction that appends to one ring, whose
    /// lock all writers of the namespace share, even when no watch is left.
    ///
    /// A record past its time is reported as expired when a session collects, deletes or replaces
    /// it, not before.
    ///
    /// # Errors
    /// `WrongKind` in a namespace of counters, `KeyTooLarge`, `BadArgument` for a tag without a
    /// name or a namespace that was removed, `Full`, `Stalled`, `Damaged`, `Forked`.
    pub fn watch(&self, namespace: Namespace, filter: Filter) -> Result<Watch> {
        filter.check()?;
        if namespace.kind == Kind::Counters {
            return Err(Error::WrongKind {
                detail: "adding to a counter makes no event: read it (Session::read_counter)"
                    .to_owned(),
            });
        }
        let table = self.table(namespace)?;
        let ring_bytes = self.member.watch_ring_bytes(table);
        let ring = self.member.open_watch_ring(table, ring_bytes)?;
        // The ring was created first, so that a writer that sees the flag finds it.
        self.member.set_namespace_flag(namespace.index, namespace_flags::WATCHED)?;
        // Waits for writers that checked the flags before.
        self.member.drain_writers(table)?;
        invariant!(namespace.kind != Kind::Counters, "adds to counters have no events");
        let reader = self.member.ring_reader(ring, RingStart::Tail)?;
        self.member.check_namespace(namespace.index)?;
        Ok(Watch { reader, namespace: namespace.index, filter, bytes: Vec::new(), is_over: false })
    }
}

impl Watch {
    /// The next notice, or `None` if there is none at present. Never waits. The notice borrows the
    /// watch.
    ///
    /// # Errors
    /// `BadArgument`: the namespace was removed, and its last events were returned; `Damaged`,
    /// `Forked`. After `Damaged`, open a new watch and read the watched records again.
    #[expect(clippy::should_implement_trait, reason = "it lends: a notice ends before the next")]
    pub fn next(&mut self) -> Result<Option<Notice<'_>>> {
        self.next_or(|_| Ok(()))
    }

    /// As [`Watch::next`]. Before it returns `None`, it calls `none` with the position of the
    /// watch.
    ///
    /// # Errors
    /// As [`Watch::next`], and what `none` returns.
    pub fn next_or(
        &mut self,
        none: impl FnOnce(WatchPosition) -> Result<()>,
    ) -> Result<Option<Notice<'_>>> {
        let mut removed = None;
        let mut position = self.reader.position();
        for _ in 0..SKIPPED_MAX {
            invariant!(self.reader.position() >= position, "a watch goes back behind {position}");
            position = self.reader.position();
            if self.is_over {
                return Err(namespace_removed(self.namespace));
            }
            match self.reader.next(&mut self.bytes)? {
                RingRead::Empty => match (removed, self.reader.check_namespace(self.namespace)) {
                    (None, Ok(())) => break,
                    // Its last events precede its removal: they are in the ring by now.
                    (None, Err(error)) => {
                        removed = Some(error);
                        continue;
                    }
                    (Some(error), _) => return Err(error),
                },
                RingRead::Lost { entries } => {
                    // The end of the namespace may be among them.
                    self.is_over = self.reader.check_namespace(self.namespace).is_err();
                    return Ok(Some(Notice::Lost { events: entries }));
                }
                RingRead::Entry { .. } if is_end_of_namespace(&self.bytes, self.namespace) => {
                    // What follows in the ring is of the next namespace.
                    self.is_over = true;
                    continue;
                }
                RingRead::Entry { .. } if Event::is_omitted(&self.bytes) => {
                    Event::decode(&self.bytes)?;
                    return Ok(Some(Notice::Lost { events: 1 }));
                }
                RingRead::Entry { .. } => {}
            }
            if self.filter.matches(&Event::decode(&self.bytes)?) {
                return Ok(Some(Notice::Event(Event::decode(&self.bytes)?)));
            }
        }
        none(self.position())?;
        Ok(None)
    }

    /// Waits at most `timeout` for events: true if [`Watch::next`] has some to read, which its
    /// filter may reject. Sleeps on a futex in the region, for at most 100 ms at a time, so that a
    /// writer that was killed before its wake-up delays a watch by no more than that.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        self.reader.wait(timeout)
    }

    /// A waiter for this watch, for use by another thread (`WatchFd` of `nearstate-sdl` uses it).
    pub fn waiter(&self) -> Waiter {
        Waiter { ring: self.reader.waiter() }
    }

    /// The position up to which this watch has read.
    pub const fn position(&self) -> WatchPosition {
        WatchPosition { position: self.reader.position() }
    }
}

/// The position of a watch, for its [`Waiter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchPosition {
    position: u64,
}

/// Waits for a watch that another thread reads. It keeps the region mapped.
#[derive(Clone, Debug)]
pub struct Waiter {
    ring: RingWaiter,
}

impl Waiter {
    /// As [`Watch::wait`], for a watch at this position. Also ends, with false, when `is_over`
    /// returns true. `is_over` is called before each sleep, therefore after each [`Waiter::wake`].
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn wait(
        &self,
        at: WatchPosition,
        timeout: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<bool> {
        self.ring.wait(at.position, timeout, is_over)
    }

    /// As [`Waiter::wait`], for several watches: true if one of them has events to read.
    /// [`Waiter::wake`] of the first one makes it call `is_over`.
    ///
    /// An event of one of the first 128 watches ends the wait at once (before Linux 5.16 within
    /// 5 ms), an event of another one within 100 ms. Without watches it ends at once.
    ///
    /// # Errors
    /// `Damaged`, `Forked`, `System`.
    pub fn wait_any(
        waits: &[(Self, WatchPosition)],
        timeout: Duration,
        is_over: impl Fn() -> bool,
    ) -> Result<bool> {
        let waits: Vec<(RingWaiter, u64)> =
            waits.iter().map(|(waiter, at)| (waiter.ring.clone(), at.position)).collect();
        wait_any(&waits, timeout, is_over)
    }

    /// True if a watch at this position has events to read.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn has_more(&self, at: WatchPosition) -> Result<bool> {
        self.ring.is_beyond(at.position)
    }

    /// Wakes all waiters of the namespace's events; each calls its `is_over`. A system call if any
    /// are asleep.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn wake(&self) -> Result<()> {
        self.ring.wake()
    }

    /// True in a process that is a fork of the one that attached.
    pub fn is_forked(&self) -> bool {
        self.ring.is_forked()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use nearstate_memory::CreateOptions;
    use nearstate_model::limits::EVENT_BYTES_MAX;

    use super::*;
    use crate::record::Form;
    use crate::session::{Region, Schema};
    use crate::watch::event::{Change, EventKind, TagValue};

    struct TestRegion {
        _dir: tempfile::TempDir,
        region: Region,
    }

    fn test_region() -> TestRegion {
        let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let dir = tempfile::tempdir_in(base).unwrap();
        let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
        let region = Region::create(&dir.path().join("region"), &options).unwrap();
        TestRegion { _dir: dir, region }
    }

    fn open(region: &Region) -> (Session, Namespace) {
        let session = region.session().unwrap();
        let ns = session.namespace("ue", &Schema::default()).unwrap();
        (session, ns)
    }

    /// Appends a change as its writer does.
    fn append(session: &Session, ns: Namespace, change: &Change<'_>) {
        let ring = session.member.watch_ring(session.table(ns).unwrap()).unwrap().unwrap();
        let mut bytes = Vec::new();
        change.encode(&mut bytes, EVENT_BYTES_MAX);
        assert!(session.member.append_to_ring(ring, &bytes).unwrap());
    }

    fn change(version: u64, key: &[u8]) -> Change<'_> {
        let (kind, form, none) = (EventKind::Updated, Form::Value, &[]);
        Change { kind, form, version, key, blocks: &[], is_cut: false, before: none, after: none }
    }

    /// The versions of all events that a watch returns.
    fn versions_of(watch: &mut Watch) -> Vec<u64> {
        let mut versions = Vec::new();
        while let Some(notice) = watch.next().unwrap() {
            let Notice::Event(event) = notice else { panic!("{notice:?}") };
            versions.push(event.version);
        }
        versions
    }

    #[test]
    fn each_watch_returns_the_events_of_its_filter_in_order() {
        let test = test_region();
        let (session, ns) = open(&test.region);
        let (other, _) = open(&test.region);
        let tag = |name: &str, value: &[u8]| Filter::Tag { name: name.into(), value: value.into() };
        let mut watches = [
            Filter::Namespace,
            Filter::Key(b"imsi-2".to_vec()),
            Filter::Prefix(b"imsi-".to_vec()),
            Filter::Prefix(Vec::new()),
            tag("slice", b"1"),
            tag("slice", b""),
            tag("dnn", b"1"),
        ]
        .map(|filter| session.watch(ns, filter).unwrap());
        let [one, two]: [&[TagValue<'_>]; 2] =
            [&[("slice", b"1"), ("slice", b"3")], &[("dnn", b"2"), ("slice", b"2")]];
        let large = vec![0; EVENT_BYTES_MAX];
        let changes = [
            Change { kind: EventKind::Created, after: one, ..change(1, b"imsi-1") },
            Change { before: one, after: two, ..change(2, b"imsi-1") },
            Change { before: two, after: two, ..change(3, b"imsi-2") },
            Change { kind: EventKind::Deleted, before: one, ..change(4, b"imsi-2") },
            Change { kind: EventKind::Expired, before: two, ..change(5, b"imsi") },
            Change { after: &[("dnn", b"1")], ..change(6, b"imsi-22") },
            // Too large, so its tags are left out: it matches every tag.
            Change { before: &[("x", &large)], ..change(7, b"imsi-2") },
        ];
        for (number, change) in changes.iter().enumerate() {
            append([&session, &other][number % 2], ns, change);
        }
        let expected: [&[u64]; 7] = [
            &[1, 2, 3, 4, 5, 6, 7],
            &[3, 4, 7],
            &[1, 2, 3, 4, 6, 7],
            &[1, 2, 3, 4, 5, 6, 7],
            &[1, 2, 4, 7],
            &[7],
            &[6, 7],
        ];
        for (watch, expected) in watches.iter_mut().zip(expected) {
            assert!(watch.wait(Duration::from_secs(60)).unwrap());
            assert_eq!(versions_of(watch), expected, "{:?}", watch.filter);
            assert!(!watch.wait(Duration::ZERO).unwrap());
        }
        // A new watch returns none of these events.
        assert_eq!(versions_of(&mut session.watch(ns, Filter::Namespace).unwrap()), []);
        // A watch outlives its session.
        drop(session);
        let [all, ..] = &mut watches;
        append(&other, ns, &Change { blocks: &["pdu", "auth"], ..change(8, b"k") });
        let Some(Notice::Event(event)) = all.next().unwrap() else { panic!("no event") };
        assert_eq!((event.key, event.kind), (b"k".as_slice(), EventKind::Updated));
        assert_eq!(event.blocks().collect::<Vec<_>>(), ["pdu", "auth"]);
    }

    #[test]
    fn a_slow_watch_reports_how_many_events_it_missed_and_continues() {
        let test = test_region();
        let (session, ns) = open(&test.region);
        let mut slow = session.watch(ns, Filter::Key(b"rare".to_vec())).unwrap();
        let value = [7; 1000];
        for version in 1..=5000 {
            let after = &[("tag", value.as_slice())];
            append(&session, ns, &Change { after, ..change(version, b"often") });
        }
        assert_eq!(slow.next().unwrap(), Some(Notice::Lost { events: 5000 }));
        assert_eq!(slow.next().unwrap(), None);
        append(&session, ns, &change(1, b"rare"));
        assert_eq!(versions_of(&mut slow), [1]);
    }

    #[test]
    fn a_call_skips_a_bounded_number_of_events_and_none_is_lost() {
        let test = test_region();
        let (session, ns) = open(&test.region);
        let mut watch = session.watch(ns, Filter::Key(b"rare".to_vec())).unwrap();
        for version in 0..u64::from(SKIPPED_MAX) + 10 {
            append(&session, ns, &change(version, b"often"));
        }
        append(&session, ns, &change(1, b"rare"));
        assert_eq!(watch.next().unwrap(), None, "the call has skipped its limit");
        assert!(watch.wait(Duration::from_secs(60)).unwrap(), "more events follow");
        assert_eq!(versions_of(&mut watch), [1]);
    }

    #[test]
    fn invalid_bytes_are_damage_and_later_events_are_returned() {
        let test = test_region();
        let (session, ns) = open(&test.region);
        let mut watch = session.watch(ns, Filter::Namespace).unwrap();
        let ring = session.member.watch_ring(session.table(ns).unwrap()).unwrap().unwrap();
        for bytes in [b"".as_slice(), b"not an event", &[1; 18]] {
            session.member.append_to_ring(ring, bytes).unwrap();
            assert!(matches!(watch.next(), Err(Error::Damaged { .. })));
        }
        append(&session, ns, &change(9, b"k"));
        assert_eq!(versions_of(&mut watch), [9]);
    }

    #[test]
    fn an_impossible_filter_is_refused() {
        let test = test_region();
        let (session, ns) = open(&test.region);
        for key in [vec![1; 4097], vec![1; 5000]] {
            let refused = session.watch(ns, Filter::Key(key)).unwrap_err();
            assert!(matches!(refused, Error::KeyTooLarge { .. }), "{refused}");
        }
        for bytes in [0, 256] {
            let filter = Filter::Tag { name: "n".repeat(bytes), value: Vec::new() };
            let refused = session.watch(ns, filter).unwrap_err().to_string();
            assert!(refused.contains("1 to 255"), "{refused}");
        }
        let table = session.table(ns).unwrap();
        assert_eq!(session.member.watch_ring(table), Ok(None), "no ring was created");
        let counters = session
            .namespace("count", &Schema { kind: Kind::Counters, ..Schema::default() })
            .unwrap();
        let refused = session.watch(counters, Filter::Namespace).unwrap_err();
        assert!(refused.to_string().contains("read_counter"), "{refused}");
        // A heap without space for a ring returns an error and stays usable.
        let (mut number, value) = (0_u64, vec![0; 60_000]);
        while session.put(ns, &number.to_le_bytes(), &value).is_ok() {
            number += 1;
        }
        let refused = session.watch(ns, Filter::Namespace).unwrap_err();
        assert!(matches!(refused, Error::Full { .. }), "{refused}");
        for number in 0..number {
            session.delete(ns, &number.to_le_bytes()).unwrap();
        }
        session.put(ns, b"k", b"v").unwrap();
    }
}
