//! Sliced tasks of the commands that scan namespaces.

use crate::commands::deferred_array::{DeferredArray, ElementSource};
use crate::commands::key_iterator::{KeyIterator, NamespaceKeys, list_bytes, matches};
use crate::commands::keys::type_name;
use crate::commands::random;
use crate::commands::scan_options::ScanOptions;
use crate::records::KeyedRecords;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::ErrorReply;
use crate::server::RespServer;
use crate::sliced_task::{SLICE_BUCKETS, SlicedTask, TaskProgress};
use nearstate_model::Error;
use nearstate_node::executor::is_due;
use nearstate_store::{Namespace, Session};

/// Buckets per slice of a deletion: about fifty records.
const DELETE_BUCKETS: u64 = 16;

/// Buckets that `SCAN` reads per requested record, as in Redis: a namespace whose records were
/// deleted keeps its buckets.
const BUCKETS_FOR_EACH: u64 = 10;

/// Buckets between two checks of the clock.
const BUCKETS_PER_PART: u64 = 8;

/// Position of the namespace's place in a cursor, above the bucket: 2^40 buckets are more than a
/// region has cache lines.
const CURSOR_BITS: u32 = 40;

/// The keys of `KEYS`.
#[derive(Debug)]
pub(super) struct KeysSource {
    iterator: KeyIterator,
}

impl KeysSource {
    pub(super) fn new(namespaces: Vec<NamespaceKeys>, pattern: Option<&[u8]>) -> Self {
        Self { iterator: KeyIterator::new(namespaces, pattern) }
    }
}

impl ElementSource for KeysSource {
    fn read(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        found: &mut DeferredArray,
    ) -> Result<bool, ErrorReply> {
        let has_more =
            self.iterator.walk_keys(records.session(), SLICE_BUCKETS, |key_text, _| {
                found.push(key_text);
                Ok(())
            })?;
        Ok(!has_more)
    }

    fn memory_bytes(&self) -> usize {
        self.iterator.memory_bytes()
    }
}

/// The cursor and the keys of `SCAN`.
#[derive(Debug)]
pub(super) struct ScanSource {
    namespaces: Vec<NamespaceKeys>,
    /// Memory of the namespaces.
    bytes: usize,
    /// Position of the current namespace in the list, and its next bucket.
    namespace_keys: usize,
    bucket: u64,
    /// Number of records and of buckets that remain to be read.
    records_left: u64,
    buckets_left: u64,
    pattern: Option<Vec<u8>>,
    form: Option<Vec<u8>>,
    key_text: Vec<u8>,
}

impl ScanSource {
    pub(super) fn new(
        namespaces: Vec<NamespaceKeys>,
        cursor: u64,
        options: ScanOptions<'_>,
    ) -> Self {
        // Namespaces that are removed between two calls leave the list: the cursor holds a place in
        // the catalog, and not a position in the list.
        let (place, bucket) = (cursor >> CURSOR_BITS, cursor & ((1 << CURSOR_BITS) - 1));
        let namespace_keys =
            namespaces.partition_point(|keys| u64::from(keys.namespace.place()) < place);
        let continued =
            namespaces.get(namespace_keys).map(|keys| u64::from(keys.namespace.place()));
        Self {
            bytes: list_bytes(&namespaces),
            namespaces,
            namespace_keys,
            bucket: if continued == Some(place) { bucket } else { 0 },
            records_left: options.count,
            buckets_left: options.count.saturating_mul(BUCKETS_FOR_EACH),
            pattern: options.pattern.map(<[u8]>::to_vec),
            form: options.record_type.map(<[u8]>::to_vec),
            key_text: Vec::new(),
        }
    }

    /// Reads some buckets and returns their number; `None` if the call has read enough or the scan
    /// is complete.
    fn read_part(
        &mut self,
        session: &Session,
        found: &mut DeferredArray,
    ) -> Result<Option<u64>, ErrorReply> {
        let Self { pattern, form, key_text, .. } = self;
        let Some(namespace_keys) = self.namespaces.get(self.namespace_keys) else {
            return Ok(None);
        };
        // A bucket has three to four records.
        let limit = (self.records_left / 4).clamp(1, BUCKETS_PER_PART);
        let mut read = 0;
        let namespace = namespace_keys.namespace;
        let next = session.walk_part(namespace, self.bucket, limit, |view| {
            read += 1;
            let is_form =
                |form: &Vec<u8>| type_name(view.form()).as_bytes().eq_ignore_ascii_case(form);
            let is_asked = form.as_ref().is_none_or(is_form);
            if is_asked
                && namespace_keys.write_key(view.key(), key_text)
                && matches(pattern.as_deref(), key_text)
            {
                found.push(key_text);
            }
            Ok(())
        });
        let next = unless_removed(session, namespace, next)?;
        (self.namespace_keys, self.bucket) = match next {
            Some(next) => (self.namespace_keys, next),
            None => (self.namespace_keys + 1, 0),
        };
        self.records_left = self.records_left.saturating_sub(read);
        self.buckets_left = self.buckets_left.saturating_sub(limit);
        let is_enough = self.records_left == 0 || self.buckets_left == 0;
        Ok((!is_enough && self.namespace_keys < self.namespaces.len()).then_some(limit))
    }

    /// Cursor of the next call; 0 at the end.
    fn cursor(&self) -> u64 {
        let Some(namespace_keys) = self.namespaces.get(self.namespace_keys) else { return 0 };
        u64::from(namespace_keys.namespace.place()) << CURSOR_BITS | self.bucket
    }
}

/// Where a walk continues. A namespace that was removed meanwhile has no keys.
fn unless_removed(
    session: &Session,
    namespace: Namespace,
    next: Result<Option<u64>, Error>,
) -> Result<Option<u64>, ErrorReply> {
    match next {
        Err(_) if !session.has_namespace(namespace) => Ok(None),
        next => Ok(next?),
    }
}

impl ElementSource for ScanSource {
    fn read(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        found: &mut DeferredArray,
    ) -> Result<bool, ErrorReply> {
        let mut left = SLICE_BUCKETS;
        while let Some(read) = self.read_part(records.session(), found)? {
            left = left.saturating_sub(read);
            if left == 0 || is_due() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn write_head(&self, found: &DeferredArray, reply: &mut ReplyWriter<'_>) {
        reply.array(2);
        reply.bulk(self.cursor().to_string().as_bytes());
        reply.array(found.count());
    }

    fn memory_bytes(&self) -> usize {
        let filters = [&self.pattern, &self.form].into_iter().flatten().map(Vec::len);
        self.bytes + filters.sum::<usize>()
    }
}

/// `RANDOMKEY`: the first record after a random bucket.
#[derive(Debug)]
pub(super) struct RandomKeyTask {
    namespaces: Vec<NamespaceKeys>,
    /// Memory of the namespaces.
    bytes: usize,
    namespace_keys: usize,
    bucket: u64,
    /// Buckets and namespaces not read yet. After all of them there is no key.
    left: u64,
}

impl RandomKeyTask {
    pub(super) fn new(
        session: &Session,
        namespaces: Vec<NamespaceKeys>,
    ) -> Result<Self, ErrorReply> {
        let mut counts = Vec::with_capacity(namespaces.len());
        for namespace_keys in &namespaces {
            let namespace = namespace_keys.namespace;
            counts.push(match session.buckets(namespace) {
                Err(_) if !session.has_namespace(namespace) => 0,
                buckets => buckets?.count(),
            });
        }
        let all = counts.iter().sum::<u64>();
        let mut bucket = random::next().checked_rem(all).unwrap_or_default();
        let mut namespace_keys = 0;
        for count in &counts {
            if bucket < *count {
                break;
            }
            bucket -= count;
            namespace_keys += 1;
        }
        // The start of the first namespace is read at the end.
        let left = all + 2 * (namespaces.len() as u64 + 1);
        Ok(Self { bytes: list_bytes(&namespaces), namespaces, namespace_keys, bucket, left })
    }

    fn read_part(&mut self, session: &Session) -> Result<Option<Vec<u8>>, ErrorReply> {
        let Some(namespace_keys) = self.namespaces.get(self.namespace_keys) else {
            (self.namespace_keys, self.bucket) = (0, 0);
            return Ok(None);
        };
        let mut key_text = Vec::new();
        let mut picked = None;
        let mut count = 0;
        let namespace = namespace_keys.namespace;
        let next = session.walk_part(namespace, self.bucket, 1, |view| {
            if namespace_keys.write_key(view.key(), &mut key_text) {
                count += 1;
                if random::below(count) == 0 {
                    picked = Some(key_text.clone());
                }
            }
            Ok(())
        });
        (self.namespace_keys, self.bucket) = match unless_removed(session, namespace, next)? {
            Some(next) => (self.namespace_keys, next),
            None => (self.namespace_keys + 1, 0),
        };
        Ok(picked)
    }
}

impl SlicedTask for RandomKeyTask {
    fn step(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        for _ in 0..SLICE_BUCKETS {
            let picked = self.read_part(records.session())?;
            self.left = self.left.saturating_sub(1);
            if picked.is_some() || self.left == 0 {
                reply.bulk_or_nil(picked.as_deref());
                return Ok(TaskProgress::Done);
            }
        }
        Ok(TaskProgress::More)
    }

    fn memory_bytes(&self) -> usize {
        self.bytes
    }
}

/// `DBSIZE`
#[derive(Debug)]
pub(super) struct DbsizeTask {
    iterator: KeyIterator,
    count: u64,
}

impl DbsizeTask {
    pub(super) fn new(namespaces: Vec<NamespaceKeys>) -> Self {
        Self { iterator: KeyIterator::new(namespaces, None), count: 0 }
    }
}

impl SlicedTask for DbsizeTask {
    fn step(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        let session = records.session();
        // Records are not read, so several times as many buckets take the same time.
        let mut left = SLICE_BUCKETS * 4;
        while let Some((namespace_keys, buckets)) = self.iterator.current(session)? {
            if left == 0 {
                return Ok(TaskProgress::More);
            }
            let before = buckets.left();
            let namespace = namespace_keys.namespace;
            match session.count_buckets(namespace, buckets, left) {
                // It was removed meanwhile, and has no keys.
                Err(_) if !session.has_namespace(namespace) => continue,
                counted => self.count += counted?,
            }
            left = left.saturating_sub((before - buckets.left()).max(1));
            if buckets.left() == 0 {
                self.iterator.next_namespace();
            }
        }
        reply.count(usize::try_from(self.count).unwrap_or(usize::MAX));
        Ok(TaskProgress::Done)
    }

    fn memory_bytes(&self) -> usize {
        self.iterator.memory_bytes()
    }
}

/// `FLUSHALL`
#[derive(Debug)]
pub(super) struct FlushTask {
    iterator: KeyIterator,
    gone: usize,
}

impl FlushTask {
    pub(super) fn new(namespaces: Vec<NamespaceKeys>) -> Self {
        Self { iterator: KeyIterator::new(namespaces, None), gone: 0 }
    }
}

impl SlicedTask for FlushTask {
    fn step(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        let session = records.session();
        let mut keys = Vec::new();
        let has_more = self.iterator.walk(session, DELETE_BUCKETS, |namespace_keys, view| {
            keys.push((namespace_keys.namespace, view.key().to_vec()));
        })?;
        for (namespace, key) in keys {
            let is_gone = session.delete(namespace, &key).map_err(|error| match self.gone {
                0 => ErrorReply::from(error),
                gone => ErrorReply::from(error).after_partial_execution(&format!(
                    "{gone} keys are deleted, the others are not: send it again"
                )),
            })?;
            self.gone += usize::from(is_gone);
        }
        if has_more {
            return Ok(TaskProgress::More);
        }
        reply.ok();
        Ok(TaskProgress::Done)
    }

    fn memory_bytes(&self) -> usize {
        self.iterator.memory_bytes()
    }
}
