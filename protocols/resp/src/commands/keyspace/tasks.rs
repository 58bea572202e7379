//! Walks as work in slices.

use crate::commands::deferred_array::DeferredArray;
use crate::commands::keys::word;
use crate::commands::keyspace_walk::{NamespaceKeys, KeyspaceWalk, bytes_of, takes};
use crate::commands::random;
use crate::commands::scan_options::ScanOptions;
use crate::records::Records;
use crate::reply::Reply;
use crate::reply::error_reply::ErrorReply;
use crate::server::RespServer;
use crate::sliced_task::{TaskProgress, SLICE_BUCKETS, SlicedTask};
use nearstate_node::executor::is_due;
use nearstate_store::Session;

/// Buckets whose records one slice deletes: some fifty.
const DELETE_BUCKETS: u64 = 16;

/// Buckets that `SCAN` looks at for each record that it is to find, as in Redis: a namespace that
/// has lost most of its records keeps its buckets.
const BUCKETS_FOR_EACH: u64 = 10;

/// Buckets between two looks at the clock.
const BUCKETS_PER_LOOK: u64 = 8;

/// Where the bucket ends in a cursor and the namespace begins: 2^40 buckets are more than a region
/// has lines.
const CURSOR_BITS: u32 = 40;

/// `KEYS`
#[derive(Debug)]
pub(super) struct KeysTask {
    path: KeyspaceWalk,
    found: DeferredArray,
    is_walked: bool,
}

impl KeysTask {
    pub(super) fn new(areas: Vec<NamespaceKeys>, pattern: Option<&[u8]>) -> Self {
        Self { path: KeyspaceWalk::new(areas, pattern), found: DeferredArray::default(), is_walked: false }
    }
}

impl SlicedTask for KeysTask {
    fn step(
        &mut self,
        records: &Records,
        _: &RespServer,
        reply: &mut Reply<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        if self.is_walked {
            return Ok(self.found.hand_on(reply));
        }
        let Self { path, found, .. } = self;
        let has_more = path.find(records.session(), SLICE_BUCKETS, |said, _| {
            found.push(said);
            Ok(())
        })?;
        if has_more {
            return Ok(TaskProgress::More);
        }
        self.is_walked = true;
        reply.array(self.found.count());
        Ok(self.found.hand_on(reply))
    }

    fn kept(&self) -> usize {
        self.path.kept() + self.found.bytes()
    }

    fn collected(&self) -> usize {
        self.found.bytes()
    }
}

/// `SCAN`
#[derive(Debug)]
pub(super) struct ScanTask {
    areas: Vec<NamespaceKeys>,
    /// What those take.
    bytes: usize,
    /// The number of the namespace that is looked at, and the next bucket there.
    area: usize,
    bucket: u64,
    /// How many records, and how many buckets, are still to be looked at.
    records_left: u64,
    buckets_left: u64,
    pattern: Option<Vec<u8>>,
    form: Option<Vec<u8>>,
    found: DeferredArray,
    said: Vec<u8>,
    is_walked: bool,
}

impl ScanTask {
    pub(super) fn new(areas: Vec<NamespaceKeys>, cursor: u64, options: ScanOptions<'_>) -> Self {
        Self {
            bytes: bytes_of(&areas),
            areas,
            area: usize::try_from(cursor >> CURSOR_BITS).unwrap_or(usize::MAX),
            bucket: cursor & ((1 << CURSOR_BITS) - 1),
            records_left: options.count,
            buckets_left: options.count.saturating_mul(BUCKETS_FOR_EACH),
            pattern: options.pattern.map(<[u8]>::to_vec),
            form: options.form.map(<[u8]>::to_vec),
            found: DeferredArray::default(),
            said: Vec::new(),
            is_walked: false,
        }
    }

    /// Looks at some buckets, and says how many; `None` once this call has looked at enough, or
    /// there is no more.
    fn look(&mut self, session: &Session) -> Result<Option<u64>, ErrorReply> {
        let Self { pattern, form, found, said, .. } = self;
        let Some(area) = self.areas.get(self.area) else { return Ok(None) };
        // Three to four records stand in a bucket.
        let most = (self.records_left / 4).clamp(1, BUCKETS_PER_LOOK);
        let mut looked = 0;
        let next = session.walk_part(area.namespace, self.bucket, most, |view| {
            looked += 1;
            let is_form = |form: &Vec<u8>| word(view.form()).as_bytes().eq_ignore_ascii_case(form);
            let is_asked = form.as_ref().is_none_or(is_form);
            if is_asked && area.say(view.key(), said) && takes(pattern.as_deref(), said) {
                found.push(said);
            }
            Ok(())
        })?;
        (self.area, self.bucket) = match next {
            Some(next) => (self.area, next),
            None => (self.area + 1, 0),
        };
        self.records_left = self.records_left.saturating_sub(looked);
        self.buckets_left = self.buckets_left.saturating_sub(most);
        let is_enough = self.records_left == 0 || self.buckets_left == 0;
        Ok((!is_enough && self.area < self.areas.len()).then_some(most))
    }

    /// Where the next call goes on; 0 at the end.
    fn cursor(&self) -> u64 {
        if self.area >= self.areas.len() {
            return 0;
        }
        (self.area as u64) << CURSOR_BITS | self.bucket
    }
}

impl SlicedTask for ScanTask {
    fn step(
        &mut self,
        records: &Records,
        _: &RespServer,
        reply: &mut Reply<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        if self.is_walked {
            return Ok(self.found.hand_on(reply));
        }
        let mut left = SLICE_BUCKETS;
        while let Some(looked) = self.look(records.session())? {
            left = left.saturating_sub(looked);
            if left == 0 || is_due() {
                return Ok(TaskProgress::More);
            }
        }
        self.is_walked = true;
        reply.array(2);
        reply.bulk(self.cursor().to_string().as_bytes());
        reply.array(self.found.count());
        Ok(self.found.hand_on(reply))
    }

    fn kept(&self) -> usize {
        let asked = [&self.pattern, &self.form].into_iter().flatten().map(Vec::len).sum::<usize>();
        self.bytes + self.found.bytes() + asked
    }

    fn collected(&self) -> usize {
        self.found.bytes()
    }
}

/// `RANDOMKEY`: from a bucket by chance on to the first record.
#[derive(Debug)]
pub(super) struct RandomKeyTask {
    areas: Vec<NamespaceKeys>,
    /// What those take.
    bytes: usize,
    area: usize,
    bucket: u64,
    /// Buckets and namespaces that were not looked at yet: after all of them there is no key.
    left: u64,
}

impl RandomKeyTask {
    pub(super) fn new(session: &Session, areas: Vec<NamespaceKeys>) -> Result<Self, ErrorReply> {
        let mut counts = Vec::with_capacity(areas.len());
        for area in &areas {
            counts.push(session.buckets(area.namespace)?.count());
        }
        let all = counts.iter().sum::<u64>();
        let mut bucket = random::next().checked_rem(all).unwrap_or_default();
        let mut area = 0;
        for count in &counts {
            if bucket < *count {
                break;
            }
            bucket -= count;
            area += 1;
        }
        // The first namespace is looked at from its beginning as well, at the end.
        let left = all + 2 * (areas.len() as u64 + 1);
        Ok(Self { bytes: bytes_of(&areas), areas, area, bucket, left })
    }

    fn look(&mut self, session: &Session) -> Result<Option<Vec<u8>>, ErrorReply> {
        let Some(area) = self.areas.get(self.area) else {
            (self.area, self.bucket) = (0, 0);
            return Ok(None);
        };
        let mut said = Vec::new();
        let mut picked = None;
        let mut count = 0;
        let next = session.walk_part(area.namespace, self.bucket, 1, |view| {
            if area.say(view.key(), &mut said) {
                count += 1;
                if random::below(count) == 0 {
                    picked = Some(said.clone());
                }
            }
            Ok(())
        })?;
        (self.area, self.bucket) = match next {
            Some(next) => (self.area, next),
            None => (self.area + 1, 0),
        };
        Ok(picked)
    }
}

impl SlicedTask for RandomKeyTask {
    fn step(
        &mut self,
        records: &Records,
        _: &RespServer,
        reply: &mut Reply<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        for _ in 0..SLICE_BUCKETS {
            let picked = self.look(records.session())?;
            self.left = self.left.saturating_sub(1);
            if picked.is_some() || self.left == 0 {
                reply.bulk_or_nil(picked.as_deref());
                return Ok(TaskProgress::Done);
            }
        }
        Ok(TaskProgress::More)
    }

    fn kept(&self) -> usize {
        self.bytes
    }
}

/// `DBSIZE`
#[derive(Debug)]
pub(super) struct DbsizeTask {
    path: KeyspaceWalk,
    count: u64,
}

impl DbsizeTask {
    pub(super) fn new(areas: Vec<NamespaceKeys>) -> Self {
        Self { path: KeyspaceWalk::new(areas, None), count: 0 }
    }
}

impl SlicedTask for DbsizeTask {
    fn step(
        &mut self,
        records: &Records,
        _: &RespServer,
        reply: &mut Reply<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        let session = records.session();
        // The records are not touched: several times as many buckets take no longer.
        let mut left = SLICE_BUCKETS * 4;
        while let Some((area, buckets)) = self.path.here(session)? {
            if left == 0 {
                return Ok(TaskProgress::More);
            }
            let before = buckets.left();
            self.count += session.count_buckets(area.namespace, buckets, left)?;
            left = left.saturating_sub((before - buckets.left()).max(1));
            if buckets.left() == 0 {
                self.path.leave();
            }
        }
        reply.count(usize::try_from(self.count).unwrap_or(usize::MAX));
        Ok(TaskProgress::Done)
    }

    fn kept(&self) -> usize {
        self.path.kept()
    }
}

/// `FLUSHALL`
#[derive(Debug)]
pub(super) struct FlushTask {
    path: KeyspaceWalk,
    gone: usize,
}

impl FlushTask {
    pub(super) fn new(areas: Vec<NamespaceKeys>) -> Self {
        Self { path: KeyspaceWalk::new(areas, None), gone: 0 }
    }
}

impl SlicedTask for FlushTask {
    fn step(
        &mut self,
        records: &Records,
        _: &RespServer,
        reply: &mut Reply<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        let session = records.session();
        let mut keys = Vec::new();
        let has_more = self.path.walk(session, DELETE_BUCKETS, |area, view| {
            keys.push((area.namespace, view.key().to_vec()));
        })?;
        for (namespace, key) in keys {
            let is_gone = session.delete(namespace, &key).map_err(|error| match self.gone {
                0 => ErrorReply::from(error),
                gone => ErrorReply::from(error).half_way(&format!(
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

    fn kept(&self) -> usize {
        self.path.kept()
    }
}
