//! A simulator node: one process that runs sequences of accesses and measures them. Paper 1's
//! simulation application (§4.2.2).
//!
//! A sequence is timed as a whole, which gives the paper's sequence average. Where one access
//! takes longer than reading the clock by far (every write, every access to a server), each one is
//! stamped in the same pass. Reads from memory are too fast for that: their sequences run without
//! a clock inside, and one further sequence is stamped for the percentiles. What a stamp itself
//! costs is measured first and subtracted.

use crate::legacy::content::{KEY_BYTES, Source, belongs_to, certified, first_word, key, mix};
use crate::legacy::protocol::{BATCH_KEYS, Kind, Mode, Plan, Said, Touch, monotonic_ns};
use crate::legacy::targets::Connection;
use crate::legacy::targets::redis::RedisConnection;
use crate::legacy::targets::region::RegionConnection;
use crate::stat::Latencies;
use nearstate_model::{Error, Result};
use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// Operations between two lines about progress.
const PROGRESS_OPS: u64 = 512;

/// Values whose key is compared with their content before or after a run.
const PROOF_RECORDS: u64 = 256;

/// Pairs on one line of a histogram.
const PAIRS: usize = 256;

/// The life of a node: reads its plan from `input`, tells everything on `output`.
///
/// # Errors
/// What went wrong; it was told on `output` too.
pub fn serve(mut input: impl BufRead, mut output: impl Write) -> Result<()> {
    let outcome = begin(&mut input, &mut output);
    if let Err(e) = &outcome {
        let _ = say(&mut output, &Said::Error(e.to_string()));
    }
    outcome
}

fn begin(input: &mut impl BufRead, output: &mut impl Write) -> Result<()> {
    let mut line = String::new();
    input.read_line(&mut line).map_err(|e| lost(&e))?;
    let plan = Plan::parse(&line)?;
    match plan.target.as_str() {
        "region" => {
            let connection = RegionConnection::open(&plan.address)?;
            Node::new(plan, connection).run(input, output)
        }
        "redis" | "redis-unix" => {
            let connection = RedisConnection::open(&plan.address)?;
            Node::new(plan, connection).run(input, output)
        }
        other => {
            Err(Error::BadArgument { detail: format!("a node cannot reach a target {other:?}") })
        }
    }
}

/// One node at work.
struct Node<C> {
    plan: Plan,
    connection: C,
    source: Source,
    /// The keys of this node in record order.
    keys: Keys,
    /// The same keys in the order in which they are asked for.
    keys_shuffled: Keys,
    meter: Meter,
    copied: Vec<u8>,
}

impl<C: Connection> Node<C> {
    fn new(plan: Plan, connection: C) -> Self {
        let bytes = usize::try_from(plan.record_bytes).unwrap_or(usize::MAX);
        let source = Source::new(plan.seed, plan.node + 1, bytes);
        let keys = Keys::of(&plan);
        let keys_shuffled = keys.shuffled(plan.seed.wrapping_add(plan.node));
        let meter = Meter::new(&plan, C::IS_SLOW);
        Self { plan, connection, source, keys, keys_shuffled, meter, copied: Vec::new() }
    }

    fn run(mut self, input: &mut impl BufRead, output: &mut impl Write) -> Result<()> {
        let is_write = self.plan.kind.mode() == Mode::Write;
        let stamps_at_once = is_write || C::IS_SLOW;
        if !is_write {
            // The proof alone warms a connection; memory has to be mapped page by page.
            self.prove()?;
            if self.plan.warm_up && !C::IS_SLOW {
                self.pass(output)?;
            }
        }
        self.meter.values = 0;
        say(output, &Said::Ready)?;
        wait_for_go(input)?;
        let start_ns = monotonic_ns();
        self.meter.is_stamping = stamps_at_once;
        for number in 0..self.plan.loops {
            if number > 0 && self.plan.interval_us > 0 {
                std::thread::sleep(Duration::from_micros(self.plan.interval_us));
            }
            let total_ns = self.pass(output)?;
            say(output, &Said::Sequence(number, total_ns))?;
        }
        say(output, &Said::Span(start_ns, monotonic_ns()))?;
        if !stamps_at_once {
            self.meter.is_stamping = true;
            self.pass(output)?;
        }
        let (values, sum) = (self.meter.values, self.meter.sum);
        if is_write {
            self.prove()?;
        }
        self.tell_histogram(output)?;
        say(output, &Said::Verified(values, sum))?;
        say(output, &Said::Done)
    }

    /// Reads some records by key, unmeasured, and checks that each value is the one of its key.
    fn prove(&mut self) -> Result<()> {
        let step = (self.plan.count / PROOF_RECORDS).max(1);
        for at in (0..self.plan.count).step_by(usize::try_from(step).unwrap_or(1)) {
            let record = self.plan.first + at;
            let key = self.keys.get(at);
            let is_there = self.connection.copy(key, &mut self.copied)?;
            let is_its_own = belongs_to(&self.copied, self.plan.seed, record);
            if !is_there || certified(&self.copied).is_none() || !is_its_own {
                return Err(Error::Damaged {
                    detail: format!("record {record} is absent or holds another record's value"),
                });
            }
        }
        Ok(())
    }

    /// One sequence; returns how long it took, in nanoseconds, without the stamps.
    fn pass(&mut self, output: &mut impl Write) -> Result<u64> {
        self.meter.begin();
        match self.plan.kind {
            Kind::Put => self.put(output)?,
            Kind::Copy => self.copy(output)?,
            Kind::View => self.view(output)?,
            Kind::Batch => self.batch(output)?,
            Kind::Chain => self.chain(output)?,
            Kind::Step => self.step(output)?,
            Kind::PutHeld => {
                return Err(Error::BadArgument {
                    detail: "only WhiteDB has a lock to hold over a sequence".to_owned(),
                });
            }
        }
        Ok(self.meter.end())
    }

    fn put(&mut self, output: &mut impl Write) -> Result<()> {
        let records = (self.plan.first..self.plan.first + self.plan.count).cycle();
        let keys = self.keys.iter().cycle();
        for (record, key) in records.zip(keys).take(self.meter.ops) {
            self.connection.put(key, self.source.value(record))?;
            self.meter.done(1, output)?;
        }
        Ok(())
    }

    fn copy(&mut self, output: &mut impl Write) -> Result<()> {
        for key in self.keys_shuffled.iter().cycle().take(self.meter.ops) {
            if !self.connection.copy(key, &mut self.copied)? {
                return Err(absent(key));
            }
            self.meter.touch(&self.copied)?;
            self.meter.done(1, output)?;
        }
        Ok(())
    }

    fn view(&mut self, output: &mut impl Write) -> Result<()> {
        let Self { keys_shuffled, connection, meter, .. } = self;
        for key in keys_shuffled.iter().cycle().take(meter.ops) {
            match connection.view(key, |value| meter.touch(value))? {
                Some(touched) => touched?,
                None => return Err(absent(key)),
            }
            meter.done(1, output)?;
        }
        Ok(())
    }

    fn batch(&mut self, output: &mut impl Write) -> Result<()> {
        let Self { keys_shuffled, connection, meter, .. } = self;
        let mut keys = keys_shuffled.iter().cycle();
        let mut left = meter.ops;
        let mut some: Vec<&[u8]> = Vec::with_capacity(BATCH_KEYS);
        while left > 0 {
            some.clear();
            some.extend(keys.by_ref().take(left.min(BATCH_KEYS)));
            let mut touched = Ok(());
            let there = connection.batch(&some, |value| {
                if touched.is_ok() {
                    touched = meter.touch(value);
                }
            })?;
            touched?;
            if there != some.len() {
                return Err(absent(some.first().copied().unwrap_or_default()));
            }
            left -= some.len();
            meter.done(some.len() as u64, output)?;
        }
        Ok(())
    }

    fn chain(&mut self, output: &mut impl Write) -> Result<()> {
        let mut at = 0;
        for number in 0..self.meter.ops as u64 {
            let key = self.keys.get(at);
            let first = if C::IS_SLOW {
                if !self.connection.copy(key, &mut self.copied)? {
                    return Err(absent(key));
                }
                self.meter.touch(&self.copied)?;
                first_word(&self.copied)
            } else {
                let meter = &mut self.meter;
                let seen = self.connection.view(key, |value| {
                    meter.touch(value)?;
                    Ok::<u64, Error>(first_word(value))
                })?;
                seen.ok_or_else(|| absent(key))??
            };
            at = mix(first.wrapping_add(number)) % self.plan.count;
            self.meter.done(1, output)?;
        }
        Ok(())
    }

    fn step(&mut self, output: &mut impl Write) -> Result<()> {
        let Self { connection, meter, plan, .. } = self;
        let mut left = meter.ops;
        let mut skip = plan.first;
        while left > 0 {
            let before = left;
            let mut outcome = Ok(());
            connection.walk(|value| {
                if skip > 0 {
                    skip -= 1;
                    if skip == 0 {
                        // The way to this node's own records is not part of the measurement.
                        meter.begin();
                    }
                    return true;
                }
                outcome = meter.touch(value).and_then(|()| meter.done(1, output));
                left -= 1;
                left > 0 && outcome.is_ok()
            })?;
            outcome?;
            if left == before {
                return Err(Error::Damaged { detail: "a walk met no record".to_owned() });
            }
        }
        Ok(())
    }

    fn tell_histogram(&self, output: &mut impl Write) -> Result<()> {
        let mut latencies = Latencies::new();
        for (ns, count) in &self.meter.stamps {
            latencies.record(ns.saturating_sub(self.meter.stamp_ns) / count.max(&1), *count);
        }
        let pairs: Vec<(u64, u64)> = latencies.pairs().collect();
        for some in pairs.chunks(PAIRS) {
            say(output, &Said::Histogram(some.to_vec()))?;
        }
        Ok(())
    }
}

/// Times a pass, and its operations if it is stamping.
struct Meter {
    ops: usize,
    is_stamping: bool,
    is_slow: bool,
    touch: Touch,
    stamp_ns: u64,
    /// How long each stamped operation took, in nanoseconds, and for how many records.
    stamps: Vec<(u64, u64)>,
    stamps_before: usize,
    start: Instant,
    last: Instant,
    told: u64,
    values: u64,
    sum: u64,
}

impl Meter {
    fn new(plan: &Plan, is_slow: bool) -> Self {
        let ops = usize::try_from(plan.ops).unwrap_or(usize::MAX);
        let passes = if is_slow || plan.kind.mode() == Mode::Write { plan.loops } else { 1 };
        let room = ops.saturating_mul(usize::try_from(passes).unwrap_or(1));
        let now = Instant::now();
        let mut stamps = vec![(1, 1); room.min(1 << 28)]; // touched now, not while measuring
        stamps.clear();
        Self {
            ops,
            is_stamping: false,
            is_slow,
            touch: plan.touch,
            stamp_ns: stamp_ns(),
            stamps,
            stamps_before: 0,
            start: now,
            last: now,
            told: 0,
            values: 0,
            sum: 0,
        }
    }

    fn begin(&mut self) {
        self.stamps_before = self.stamps.len();
        self.start = Instant::now();
        self.last = self.start;
    }

    fn end(&mut self) -> u64 {
        let total_ns = nanoseconds(self.start, Instant::now());
        black_box(self.sum);
        let stamps = (self.stamps.len() - self.stamps_before) as u64;
        total_ns.saturating_sub(stamps * self.stamp_ns)
    }

    /// Reads the value, so that it really was brought here, and checks that it is whole.
    #[inline]
    fn touch(&mut self, value: &[u8]) -> Result<()> {
        self.values += 1;
        let seen = match self.touch {
            Touch::All => certified(value),
            Touch::Word => Some(first_word(value) ^ u64::from(value.last().copied().unwrap_or(0))),
        };
        let Some(seen) = seen else {
            return Err(Error::Damaged {
                detail: "a value read is not one that was written".to_owned(),
            });
        };
        self.sum = black_box(self.sum.wrapping_add(seen));
        Ok(())
    }

    /// Counts an operation on so many records.
    #[inline]
    fn done(&mut self, records: u64, output: &mut impl Write) -> Result<()> {
        if self.is_stamping {
            let now = Instant::now();
            self.stamps.push((nanoseconds(self.last, now), records));
            self.last = now;
        }
        if self.is_slow { self.progress(records, output) } else { Ok(()) }
    }

    fn progress(&mut self, records: u64, output: &mut impl Write) -> Result<()> {
        self.told += records;
        if self.told < PROGRESS_OPS {
            return Ok(());
        }
        let told = std::mem::take(&mut self.told);
        say(output, &Said::Progress(told))
    }
}

/// What one reading of the clock adds to a stamped operation: the median of many, in nanoseconds.
fn stamp_ns() -> u64 {
    let mut last = Instant::now();
    let mut took: Vec<u64> = (0..1001)
        .map(|_| {
            let now = Instant::now();
            let ns = nanoseconds(last, now);
            last = now;
            ns
        })
        .collect();
    took.sort_unstable();
    took.get(500).copied().unwrap_or(0)
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

/// Keys of one length, one after the other.
struct Keys {
    bytes: Vec<u8>,
    stride: usize,
}

impl Keys {
    fn of(plan: &Plan) -> Self {
        let stride = plan.prefix.len() + KEY_BYTES;
        let mut bytes = Vec::new();
        let mut name = [0; KEY_BYTES];
        for record in plan.first..plan.first + plan.count {
            key(record, &mut name);
            bytes.extend_from_slice(plan.prefix.as_bytes());
            bytes.extend_from_slice(&name);
        }
        Self { bytes, stride }
    }

    fn shuffled(&self, seed: u64) -> Self {
        let mut order: Vec<&[u8]> = self.iter().collect();
        for at in (1..order.len()).rev() {
            let other = mix(seed.wrapping_add(at as u64)) % (at as u64 + 1);
            order.swap(at, usize::try_from(other).unwrap_or(0));
        }
        Self { bytes: order.concat(), stride: self.stride }
    }

    #[inline]
    fn get(&self, at: u64) -> &[u8] {
        let start = usize::try_from(at).unwrap_or(usize::MAX).saturating_mul(self.stride);
        self.bytes.get(start..start.saturating_add(self.stride)).unwrap_or_default()
    }

    fn iter(&self) -> std::slice::ChunksExact<'_, u8> {
        self.bytes.chunks_exact(self.stride)
    }
}

fn wait_for_go(input: &mut impl BufRead) -> Result<()> {
    let mut line = String::new();
    input.read_line(&mut line).map_err(|e| lost(&e))?;
    let at_ns: u64 = line
        .trim_end()
        .strip_prefix("go ")
        .and_then(|t| t.parse().ok())
        .ok_or_else(|| Error::Backend { detail: "the orchestrator is gone".to_owned() })?;
    std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(monotonic_ns())));
    Ok(())
}

fn say(output: &mut impl Write, said: &Said) -> Result<()> {
    writeln!(output, "{said}").and_then(|()| output.flush()).map_err(|e| lost(&e))
}

fn lost(e: &std::io::Error) -> Error {
    Error::Backend { detail: format!("the orchestrator is gone: {e}") }
}

fn absent(key: &[u8]) -> Error {
    Error::Damaged {
        detail: format!("key {:?} was loaded and is not found", String::from_utf8_lossy(key)),
    }
}
