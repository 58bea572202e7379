//! Reading a record, alone, in a scope and in batches: the hot path of every reader.

use nearstate_memory::{BucketLine, Cell, IndexTable, Pin, Probe};
use nearstate_model::{Error, Result};

use crate::record::Kind;
use crate::record::view::View;
use crate::session::{Namespace, Session, removed, wrong_kind};

/// Keys of a batch that are prefetched together: about the number of cache misses that a core can
/// have in flight.
pub(crate) const BATCH: usize = 16;

/// Cache lines of a record that a batch prefetches: the header with a short key, and the start of
/// the value.
pub(crate) const BATCH_LINES: u64 = 2;
const _: () = assert!(BATCH > 0 && BATCH_LINES > 0, "a batch asks for the lines of its records");

/// Records of a batch whose remaining lines are requested before the current one is read.
const WHOLE_AHEAD: usize = 2;
const _: () = assert!(WHOLE_AHEAD < BATCH, "a batch reads ahead within its keys");

/// Reads of one namespace under one pin: less work for each read.
///
/// From [`Session::read_scope`]. The memory of the versions that are live meanwhile is not reused
/// until it is dropped, so it is for the work at hand, such as one message.
#[derive(Debug)]
pub struct ReadScope<'s> {
    session: &'s Session,
    table: &'s IndexTable,
    namespace: Namespace,
    _pin: Pin<'s>,
}

impl ReadScope<'_> {
    /// As [`Session::get`].
    ///
    /// # Errors
    /// As [`Session::get`].
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the path of every read: its answer would travel through memory"
    )]
    pub fn get(&self, key: &[u8]) -> Result<Option<View<'_>>> {
        self.read::<false>(key)
    }

    /// As [`Session::get_whole`].
    ///
    /// # Errors
    /// As [`Session::get`].
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the path of every read: its answer would travel through memory"
    )]
    pub fn get_whole(&self, key: &[u8]) -> Result<Option<View<'_>>> {
        self.read::<true>(key)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every read")]
    fn read<const WHOLE: bool>(&self, key: &[u8]) -> Result<Option<View<'_>>> {
        let Self { session, table, namespace, .. } = self;
        session.member.check_usable()?;
        let found = session.find_record::<WHOLE>(table, key)?;
        view_of(session, found, table, *namespace, |cell, value| {
            View::protected(cell, value, namespace.kind)
        })
    }
}

impl Session {
    /// The record of a key as a zero-copy view, or `None`.
    ///
    /// No lock, no system call, no store to a cache line that another member reads or writes
    /// (except the pin of this one, which others only read when they reclaim). Linearizable. Cost:
    /// at most two dependent cache misses. The lines of the key and of the start of the value are
    /// requested together; [`Session::get_whole`] requests all lines.
    ///
    /// # Errors
    /// `WrongKind` in a namespace of counters, `Damaged`, `Forked`. A key that is too long has no
    /// record.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the path of every read: its answer would travel through memory"
    )]
    pub fn get(&self, namespace: Namespace, key: &[u8]) -> Result<Option<View<'_>>> {
        self.read::<false>(namespace, key)
    }

    /// As [`Session::get`], for a caller that reads the whole value: all its lines are requested
    /// before the first arrives. The lengths of records that were read so before are the guess.
    ///
    /// # Errors
    /// As [`Session::get`].
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the path of every read: its answer would travel through memory"
    )]
    pub fn get_whole(&self, namespace: Namespace, key: &[u8]) -> Result<Option<View<'_>>> {
        self.read::<true>(namespace, key)
    }

    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every read")]
    fn read<const WHOLE: bool>(
        &self,
        namespace: Namespace,
        key: &[u8],
    ) -> Result<Option<View<'_>>> {
        check_kind(namespace)?;
        let table = self.table(namespace)?;
        let pin = self.member.pin()?;
        let found = self.find_record::<WHOLE>(table, key)?;
        view_of(self, found, table, namespace, |cell, value| {
            View::new(pin, cell, value, namespace.kind)
        })
    }

    /// Requests all lines of a record, or those of its start, and finds it. The caller holds a pin.
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "the path of every read")]
    fn find_record<const WHOLE: bool>(
        &self,
        table: &IndexTable,
        key: &[u8],
    ) -> Result<Option<(Cell<'_>, &[u8])>> {
        let hash = self.hash(key);
        if WHOLE {
            self.member.find_whole(table, hash, key)
        } else {
            self.member.find(table, hash, key)
        }
    }

    /// Copies the value of a key into `out` (cleared first) and returns its version, or `None`.
    ///
    /// # Errors
    /// As [`Session::get`].
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the path of every read: its answer would travel through memory"
    )]
    pub fn get_copy(
        &self,
        namespace: Namespace,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<u64>> {
        out.clear();
        let Some(view) = self.get_whole(namespace, key)? else { return Ok(None) };
        out.extend_from_slice(view.bytes());
        // A lost page reads as zeros, which are not the value.
        self.member.check_not_truncated()?;
        Ok(Some(view.version()))
    }

    /// Begins to read records of a namespace under one pin. Each read takes less work than
    /// [`Session::get`].
    ///
    /// ```
    /// # use nearstate_store::{CreateOptions, Region, Schema};
    /// # fn main() -> nearstate_store::Result<()> {
    /// # let dir = tempfile::tempdir().expect("a folder");
    /// # let region = Region::create(&dir.path().join("ue"), &CreateOptions::default())?;
    /// # let session = region.session()?;
    /// # let ue = session.namespace("ue", &Schema::default())?;
    /// # session.put_batch(ue, &[(b"imsi-1", b"registered"), (b"imsi-2", b"idle")])?;
    /// let reads = session.read_scope(ue)?;
    /// let (one, two) = (reads.get(b"imsi-1")?, reads.get(b"imsi-2")?);
    /// assert!(one.is_some_and(|view| view.bytes() == b"registered") && two.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Session::get`].
    #[inline]
    pub fn read_scope(&self, namespace: Namespace) -> Result<ReadScope<'_>> {
        check_kind(namespace)?;
        let table = self.table(namespace)?;
        Ok(ReadScope { session: self, table, namespace, _pin: self.member.pin()? })
    }

    /// Reads many keys: the cache misses of 16 keys at a time overlap. Calls `each` with the number
    /// of the key and its record. The lines of the start of each value are requested. A write by
    /// `each` may show from the next 16 keys on.
    ///
    /// # Errors
    /// As [`Session::get`].
    #[inline]
    pub fn get_batch(
        &self,
        namespace: Namespace,
        keys: &[&[u8]],
        each: impl FnMut(usize, Option<View<'_>>),
    ) -> Result<()> {
        self.read_batch::<false>(namespace, keys, each)
    }

    /// As [`Session::get_batch`], for a caller that reads each whole value.
    ///
    /// # Errors
    /// As [`Session::get`].
    #[inline]
    pub fn get_batch_whole(
        &self,
        namespace: Namespace,
        keys: &[&[u8]],
        each: impl FnMut(usize, Option<View<'_>>),
    ) -> Result<()> {
        self.read_batch::<true>(namespace, keys, each)
    }

    #[inline]
    fn read_batch<const WHOLE: bool>(
        &self,
        namespace: Namespace,
        keys: &[&[u8]],
        mut each: impl FnMut(usize, Option<View<'_>>),
    ) -> Result<()> {
        check_kind(namespace)?;
        let (table, member) = (self.table(namespace)?, &self.member);
        let _held = member.pin()?;
        for (round, keys) in keys.chunks(BATCH).enumerate() {
            let mut buckets = [BucketLine::NONE; BATCH];
            for (bucket, key) in buckets.iter_mut().zip(keys) {
                *bucket = member.prefetch_bucket(table, self.hash(key));
            }
            let mut probes = [Probe::NOWHERE; BATCH];
            for ((probe, bucket), _) in probes.iter_mut().zip(&buckets).zip(keys) {
                *probe = member.probe(*bucket, BATCH_LINES);
            }
            // Once for all probes, which have read from the index.
            check_current(table, namespace)?;
            // Before `each`, which may read other records.
            if !member.protects_probes() {
                probes = [Probe::NOWHERE; BATCH];
            }
            let mut ahead = probes.iter();
            if WHOLE {
                for probe in ahead.by_ref().take(WHOLE_AHEAD) {
                    member.prefetch_rest(*probe, BATCH_LINES);
                }
            }
            let known = buckets.iter().zip(&probes);
            for (index, (key, (bucket, probe))) in keys.iter().zip(known).enumerate() {
                if WHOLE && let Some(probe) = ahead.next() {
                    member.prefetch_rest(*probe, BATCH_LINES);
                }
                // `each` may have forked.
                member.check_usable()?;
                let found = match member.find_probed(*probe, bucket.hash(), key) {
                    Some((cell, value)) => Some((cell, value)),
                    None => self.find_again(table, namespace, key)?,
                };
                if WHOLE && let Some((cell, _)) = &found {
                    member.note_whole(cell);
                }
                let view = current_view(self, found, |cell, value| {
                    View::protected(cell, value, namespace.kind)
                })?;
                debug_assert!(index < BATCH, "key {index} of a batch of {BATCH}");
                each(round * BATCH + index, view);
            }
        }
        member.check_not_truncated()
    }

    /// Finds a record of a batch to which no probe has led. Out of line: beside the usual path it
    /// would take the registers of that.
    #[cold]
    #[inline(never)]
    fn find_again(
        &self,
        table: &IndexTable,
        namespace: Namespace,
        key: &[u8],
    ) -> Result<Option<(Cell<'_>, &[u8])>> {
        let found = self.member.find(table, self.hash(key), key)?;
        check_current(table, namespace)?;
        Ok(found)
    }
}

/// The view of what a look-up has found.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every read")]
fn view_of<'s>(
    session: &'s Session,
    found: Option<(Cell<'s>, &'s [u8])>,
    table: &IndexTable,
    namespace: Namespace,
    view: impl FnOnce(Cell<'s>, &'s [u8]) -> View<'s>,
) -> Result<Option<View<'s>>> {
    check_current(table, namespace)?;
    current_view(session, found, view)
}

/// As [`view_of`], after the check that the namespace was not removed.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every read")]
fn current_view<'s>(
    session: &'s Session,
    found: Option<(Cell<'s>, &'s [u8])>,
    view: impl FnOnce(Cell<'s>, &'s [u8]) -> View<'s>,
) -> Result<Option<View<'s>>> {
    let Some((cell, value)) = found else { return Ok(None) };
    if !cell.has_meta() {
        return Ok(Some(view(cell, value)));
    }
    session.member.note_metadata(&cell);
    match View::current_value(cell, value)? {
        Some(value) => Ok(Some(view(cell, value))),
        None => Ok(None),
    }
}

/// Checks that the namespace was not removed before the caller has read from its index.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every read")]
fn check_current(table: &IndexTable, namespace: Namespace) -> Result<()> {
    if table.is_current(namespace.index) { Ok(()) } else { Err(removed(namespace)) }
}

/// Checks that the records of a namespace have values.
#[inline(always)]
#[expect(clippy::inline_always, reason = "the path of every read")]
fn check_kind(namespace: Namespace) -> Result<()> {
    match namespace.kind {
        Kind::Value | Kind::Blocks | Kind::Mixed => Ok(()),
        Kind::Counters => Err(no_value()),
    }
}

#[cold]
fn no_value() -> Error {
    wrong_kind(Kind::Counters, "get the value", "")
}
