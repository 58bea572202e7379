//! Walks as work in slices.

use super::{Area, takes};
use crate::commands::chance;
use crate::commands::keys::word;
use crate::commands::scanning::Options;
use crate::records::Records;
use crate::refusal::Refusal;
use crate::reply::{Protocol, Reply};
use crate::server::Server;
use crate::work::{Progress, SLICE_BUCKETS, Work};
use nearstate_store::{Buckets, Session, View};
use std::collections::VecDeque;

/// What a part of an answer has at least, but for the last one: what a connection sends at once.
const PART_BYTES: usize = 64 << 10;

/// Buckets whose records one slice deletes: some fifty.
const DELETE_BUCKETS: u64 = 16;

/// Buckets that `SCAN` looks at for each record that it is to find, as in Redis: a namespace that
/// has lost most of its records keeps its buckets.
const BUCKETS_FOR_EACH: u64 = 10;

/// Where the bucket ends in a cursor and the namespace begins: 2^40 buckets are more than a region
/// has lines.
const CURSOR_BITS: u32 = 40;

/// Namespaces that are walked through one after the other.
#[derive(Debug)]
struct Path {
    areas: VecDeque<Area>,
    buckets: Option<Buckets>,
    /// What it took at first: more than it takes now.
    bytes: usize,
}

/// What the list of namespaces takes.
fn bytes_of(areas: &[Area]) -> usize {
    areas.iter().map(|area| size_of::<Area>() + area.prefix.len()).sum()
}

impl Path {
    fn new(areas: Vec<Area>) -> Self {
        let bytes = bytes_of(&areas);
        Self { areas: areas.into(), buckets: None, bytes }
    }

    /// What it takes.
    const fn kept(&self) -> usize {
        self.bytes
    }

    /// The present namespace and what is left to look at there; `None` at the end.
    fn here(&mut self, session: &Session) -> Result<Option<(&Area, &mut Buckets)>, Refusal> {
        let Some(area) = self.areas.front() else { return Ok(None) };
        if self.buckets.is_none() {
            self.buckets = Some(session.buckets(area.namespace)?);
        }
        Ok(self.buckets.as_mut().map(|buckets| (area, buckets)))
    }

    /// On to the next namespace.
    fn leave(&mut self) {
        self.areas.pop_front();
        self.buckets = None;
    }

    /// A slice. False at the end.
    fn step(
        &mut self,
        session: &Session,
        most: u64,
        mut each: impl FnMut(&Area, View<'_>),
    ) -> Result<bool, Refusal> {
        let Some((area, buckets)) = self.here(session)? else { return Ok(false) };
        let has_more = session.walk_buckets(area.namespace, buckets, most, |view| {
            each(area, view);
            Ok(())
        })?;
        if !has_more {
            self.leave();
        }
        Ok(!self.areas.is_empty())
    }
}

/// Elements of an answer whose number is known only at its end: in parts, so that each is given
/// back as it goes out.
#[derive(Debug, Default)]
struct Elements {
    parts: VecDeque<Vec<u8>>,
    count: usize,
    /// Of all parts.
    bytes: usize,
}

impl Elements {
    fn push(&mut self, bytes: &[u8]) {
        match self.parts.back_mut() {
            Some(part) if part.len() < PART_BYTES => {}
            full => {
                // A long answer takes its bytes and no more.
                full.into_iter().for_each(Vec::shrink_to_fit);
                self.parts.push_back(Vec::new());
            }
        }
        if let Some(part) = self.parts.back_mut() {
            let before = part.len();
            // A bulk is the same in both protocols.
            Reply::new(part, Protocol::Resp2).bulk(bytes);
            self.bytes += part.len() - before;
        }
        self.count += 1;
    }

    /// Hands a part on. `Done` with the last one.
    fn hand_on(&mut self, reply: &mut Reply<'_>) -> Progress {
        if let Some(part) = self.parts.pop_front() {
            self.bytes -= part.len();
            reply.made(&part);
        }
        if self.parts.is_empty() { Progress::Done } else { Progress::More }
    }
}

/// `KEYS`
#[derive(Debug)]
pub(super) struct Listing {
    path: Path,
    pattern: Option<Vec<u8>>,
    found: Elements,
    said: Vec<u8>,
    is_walked: bool,
}

impl Listing {
    pub(super) fn new(areas: Vec<Area>, pattern: Option<&[u8]>) -> Self {
        let pattern = pattern.map(<[u8]>::to_vec);
        let (found, said) = (Elements::default(), Vec::new());
        Self { path: Path::new(areas), pattern, found, said, is_walked: false }
    }
}

impl Work for Listing {
    fn step(
        &mut self,
        records: &Records,
        _: &Server,
        reply: &mut Reply<'_>,
    ) -> Result<Progress, Refusal> {
        if self.is_walked {
            return Ok(self.found.hand_on(reply));
        }
        let Self { path, pattern, found, said, .. } = self;
        let has_more = path.step(records.session(), SLICE_BUCKETS, |area, view| {
            if area.say(view.key(), said) && takes(pattern.as_deref(), said) {
                found.push(said);
            }
        })?;
        if has_more {
            return Ok(Progress::More);
        }
        self.is_walked = true;
        reply.array(self.found.count);
        Ok(self.found.hand_on(reply))
    }

    fn kept(&self) -> usize {
        self.path.kept() + self.found.bytes + self.pattern.as_ref().map_or(0, Vec::len)
    }
}

/// `SCAN`
#[derive(Debug)]
pub(super) struct Scanning {
    areas: Vec<Area>,
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
    found: Elements,
    said: Vec<u8>,
    is_walked: bool,
}

impl Scanning {
    pub(super) fn new(areas: Vec<Area>, cursor: u64, options: Options<'_>) -> Self {
        Self {
            bytes: bytes_of(&areas),
            areas,
            area: usize::try_from(cursor >> CURSOR_BITS).unwrap_or(usize::MAX),
            bucket: cursor & ((1 << CURSOR_BITS) - 1),
            records_left: options.count,
            buckets_left: options.count.saturating_mul(BUCKETS_FOR_EACH),
            pattern: options.pattern.map(<[u8]>::to_vec),
            form: options.form.map(<[u8]>::to_vec),
            found: Elements::default(),
            said: Vec::new(),
            is_walked: false,
        }
    }

    /// Looks at some buckets, and says how many; `None` once this call has looked at enough, or
    /// there is no more.
    fn look(&mut self, session: &Session) -> Result<Option<u64>, Refusal> {
        let Self { pattern, form, found, said, .. } = self;
        let Some(area) = self.areas.get(self.area) else { return Ok(None) };
        // Three to four records stand in a bucket.
        let most = (self.records_left / 4).clamp(1, SLICE_BUCKETS);
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

impl Work for Scanning {
    fn step(
        &mut self,
        records: &Records,
        _: &Server,
        reply: &mut Reply<'_>,
    ) -> Result<Progress, Refusal> {
        if self.is_walked {
            return Ok(self.found.hand_on(reply));
        }
        let mut left = SLICE_BUCKETS;
        while let Some(looked) = self.look(records.session())? {
            left = left.saturating_sub(looked);
            if left == 0 {
                return Ok(Progress::More);
            }
        }
        self.is_walked = true;
        reply.array(2);
        reply.bulk(self.cursor().to_string().as_bytes());
        reply.array(self.found.count);
        Ok(self.found.hand_on(reply))
    }

    fn kept(&self) -> usize {
        let asked = [&self.pattern, &self.form].into_iter().flatten().map(Vec::len).sum::<usize>();
        self.bytes + self.found.bytes + asked
    }
}

/// `RANDOMKEY`: from a bucket by chance on to the first record.
#[derive(Debug)]
pub(super) struct Picking {
    areas: Vec<Area>,
    /// What those take.
    bytes: usize,
    area: usize,
    bucket: u64,
    /// Buckets and namespaces that were not looked at yet: after all of them there is no key.
    left: u64,
}

impl Picking {
    pub(super) fn new(session: &Session, areas: Vec<Area>) -> Result<Self, Refusal> {
        let mut counts = Vec::with_capacity(areas.len());
        for area in &areas {
            counts.push(session.buckets(area.namespace)?.count());
        }
        let all = counts.iter().sum::<u64>();
        let mut bucket = chance::next().checked_rem(all).unwrap_or_default();
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

    fn look(&mut self, session: &Session) -> Result<Option<Vec<u8>>, Refusal> {
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
                if chance::below(count) == 0 {
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

impl Work for Picking {
    fn step(
        &mut self,
        records: &Records,
        _: &Server,
        reply: &mut Reply<'_>,
    ) -> Result<Progress, Refusal> {
        for _ in 0..SLICE_BUCKETS {
            let picked = self.look(records.session())?;
            self.left = self.left.saturating_sub(1);
            if picked.is_some() || self.left == 0 {
                reply.bulk_or_nil(picked.as_deref());
                return Ok(Progress::Done);
            }
        }
        Ok(Progress::More)
    }

    fn kept(&self) -> usize {
        self.bytes
    }
}

/// `DBSIZE`
#[derive(Debug)]
pub(super) struct Counting {
    path: Path,
    count: u64,
}

impl Counting {
    pub(super) fn new(areas: Vec<Area>) -> Self {
        Self { path: Path::new(areas), count: 0 }
    }
}

impl Work for Counting {
    fn step(
        &mut self,
        records: &Records,
        _: &Server,
        reply: &mut Reply<'_>,
    ) -> Result<Progress, Refusal> {
        let session = records.session();
        // The records are not touched: several times as many buckets take no longer.
        let mut left = SLICE_BUCKETS * 4;
        while let Some((area, buckets)) = self.path.here(session)? {
            if left == 0 {
                return Ok(Progress::More);
            }
            let before = buckets.left();
            self.count += session.count_buckets(area.namespace, buckets, left)?;
            left = left.saturating_sub((before - buckets.left()).max(1));
            if buckets.left() == 0 {
                self.path.leave();
            }
        }
        reply.count(usize::try_from(self.count).unwrap_or(usize::MAX));
        Ok(Progress::Done)
    }

    fn kept(&self) -> usize {
        self.path.kept()
    }
}

/// `FLUSHALL`
#[derive(Debug)]
pub(super) struct Deleting {
    path: Path,
}

impl Deleting {
    pub(super) fn new(areas: Vec<Area>) -> Self {
        Self { path: Path::new(areas) }
    }
}

impl Work for Deleting {
    fn step(
        &mut self,
        records: &Records,
        _: &Server,
        reply: &mut Reply<'_>,
    ) -> Result<Progress, Refusal> {
        let session = records.session();
        let mut keys = Vec::new();
        let has_more = self.path.step(session, DELETE_BUCKETS, |area, view| {
            keys.push((area.namespace, view.key().to_vec()));
        })?;
        for (namespace, key) in keys {
            session.delete(namespace, &key)?;
        }
        if has_more {
            return Ok(Progress::More);
        }
        reply.ok();
        Ok(Progress::Done)
    }

    fn kept(&self) -> usize {
        self.path.kept()
    }
}
