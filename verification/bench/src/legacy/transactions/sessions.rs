//! Sessions of a mobility management entity (paper 3, section 4): 1 to 4 KB, one key, three tags,
//! two of them unique. Attach, detach, and a change of what no tag is made of, beside the same
//! bytes without tags.

pub mod blocks;
pub mod probe;
pub mod herd;

use super::chase::Chase;
use super::desk::{Desk, missing, wrong};
use super::findings::{Goal, Row, Unit};
use crate::legacy::content::first_word;
use crate::legacy::micro::clock::Clock;
use crate::machine::{Machine, bytes_text};
use crate::stat::{median, sequence_average};
use crate::table::{latency_text, rate_text};
use herd::{AREAS, Bodies, Herd, Subscriber};
use nearstate_model::Result;
use nearstate_store::{Namespace, Schema, Session, TagSchema, Values};

/// What a session takes at most with its key, its tags and its share of the indexes, on average.
const SESSION_ROOM: u64 = 4 << 10;

/// Operations between two looks at the clock: what they need lies in the first two caches.
const STRETCH: usize = 1000;

/// The walk that shows what a miss costs goes over no more memory than this: from there on a
/// longer one costs nearly the same.
const CHASE_MOST: u64 = 4 << 30;

/// So many sessions, with all that belongs to them, lie in the caches of most machines.
const HOT_MOST: u64 = 1000;

/// So many do not, on any machine that we know of.
const COLD_LEAST: u64 = 500_000;

/// The tag that is not unique.
#[derive(Clone, Copy, Debug)]
struct Third {
    name: &'static str,
    is_ordered_and_counted: bool,
}

const THIRDS: [Third; 2] = [
    Third { name: "area plain", is_ordered_and_counted: false },
    Third { name: "area ordered, counted", is_ordered_and_counted: true },
];

impl Third {
    fn tags(self) -> Vec<TagSchema> {
        let unique =
            |name: &str| TagSchema { name: name.to_owned(), is_unique: true, ..Default::default() };
        let area = TagSchema {
            name: "area".to_owned(),
            is_ordered: self.is_ordered_and_counted,
            is_counted: self.is_ordered_and_counted,
            ..Default::default()
        };
        vec![unique("guti"), unique("teid"), area]
    }
}

/// A way to keep a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// With three tags.
    Tagged,
    /// Put and deleted, as a record without tags.
    Bare,
    /// The same in a transaction.
    Transaction,
}

const HOWS: [(How, &str); 3] = [
    (How::Tagged, "three tags"),
    (How::Bare, "bare"),
    (How::Transaction, "bare, in a transaction"),
];

/// What is timed, in nanoseconds for each operation.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    attach: f64,
    change: f64,
    detach: f64,
}

/// The namespaces, and who is in them.
#[derive(Debug)]
struct Entity {
    session: Session,
    tagged: Namespace,
    bare: Namespace,
    herds: [Herd; 2],
    bodies: Bodies,
    clock: Clock,
}

impl Entity {
    fn herd(&mut self, how: How) -> &mut Herd {
        let [tagged, bare] = &mut self.herds;
        if how == How::Tagged { tagged } else { bare }
    }

    /// Puts a session, a new one or over an old one.
    #[inline]
    fn put(&mut self, how: How, subscriber: &Subscriber) -> Result<()> {
        let value = self.bodies.next(subscriber);
        match how {
            How::Tagged => probe::put_with_tags(&self.session, self.tagged, subscriber, value),
            How::Bare => probe::put_bare(&self.session, self.bare, subscriber, value),
            How::Transaction => {
                probe::put_in_transaction(&self.session, self.bare, subscriber, value)
            }
        }
    }

    #[inline]
    fn delete(&mut self, how: How, subscriber: &Subscriber) -> Result<()> {
        let was_there = match how {
            How::Tagged => probe::delete_with_tags(&self.session, self.tagged, subscriber),
            How::Bare => probe::delete_bare(&self.session, self.bare, subscriber),
            How::Transaction => probe::delete_in_transaction(&self.session, self.bare, subscriber),
        }?;
        if was_there { Ok(()) } else { Err(missing()) }
    }

    /// So many attach, so many sessions change, so many detach.
    fn turn(&mut self, how: How, ops: u64) -> Result<Times> {
        let (mut attach_ns, mut change_ns, mut detach_ns) = (0, 0, 0);
        let stretch = (self.herd(how).len() / 4).clamp(1, STRETCH);
        let mut rest = usize::try_from(ops).unwrap_or(usize::MAX);
        while rest > 0 {
            let count = stretch.min(rest);
            rest -= count;
            let arrivals = self.herd(how).arrivals(count);
            let changed = self.herd(how).some(count);
            let departures = self.herd(how).departures(count);
            let begin_ns = self.clock.now_ns();
            arrivals.iter().try_for_each(|subscriber| self.put(how, subscriber))?;
            let came_ns = self.clock.now_ns();
            changed.iter().try_for_each(|subscriber| self.put(how, subscriber))?;
            let put_ns = self.clock.now_ns();
            departures.iter().try_for_each(|subscriber| self.delete(how, subscriber))?;
            let left_ns = self.clock.now_ns();
            attach_ns += came_ns - begin_ns;
            change_ns += put_ns - came_ns;
            detach_ns += left_ns - put_ns;
        }
        let [attach, change, detach] =
            [attach_ns, change_ns, detach_ns].map(|ns| sequence_average(ns, ops));
        Ok(Times { attach, change, detach })
    }

    fn load(&mut self, records: u64, done: impl Fn(u64)) -> Result<()> {
        for how in [How::Tagged, How::Bare] {
            let mut rest = usize::try_from(records).unwrap_or(usize::MAX);
            while rest > 0 {
                let arrivals = self.herd(how).arrivals(STRETCH.min(rest));
                rest -= arrivals.len();
                arrivals.iter().try_for_each(|subscriber| self.put(how, subscriber))?;
                done(arrivals.len() as u64);
            }
        }
        Ok(())
    }

    /// Each session is found by its unique tags, all of them by their areas, and nobody is found
    /// who has left.
    fn verify(&mut self) -> Result<()> {
        let session = &self.session;
        let [tagged, bare] = &mut self.herds;
        for (herd, namespace) in [(&*tagged, self.tagged), (&*bare, self.bare)] {
            let count = session.count(namespace)?;
            if count != herd.len() as u64 {
                let text = format!("{} sessions were left and {count} are there", herd.len());
                return Err(wrong(&text));
            }
        }
        for subscriber in tagged.some(10_000) {
            for (tag, value) in [("guti", &subscriber.guti[..]), ("teid", &subscriber.teid[..])] {
                let view = session.find(self.tagged, tag, value)?.ok_or_else(missing)?;
                if view.bytes().len() != subscriber.bytes
                    || first_word(view.bytes()) != subscriber.serial
                {
                    return Err(wrong("a unique tag leads to another session"));
                }
            }
        }
        let mut found = 0;
        for area in 0..AREAS {
            let [code, ..] = area.to_le_bytes();
            let value = [0x62, 0xf2, 0x10, 0, code];
            let mut met = 0;
            session.find_all(self.tagged, "area", Values::Equal(&value), |_| {
                met += 1;
                true
            })?;
            if session.count_tagged(self.tagged, "area", &value)? != met {
                return Err(wrong("the count of an area is not what is found in it"));
            }
            found += met;
        }
        if found != tagged.len() as u64 {
            return Err(wrong(&format!("{} sessions, {found} found by area", tagged.len())));
        }
        let gone = tagged.departures(1000);
        for subscriber in &gone {
            if !session.delete(self.tagged, &subscriber.key)? {
                return Err(missing());
            }
            if session.find(self.tagged, "guti", &subscriber.guti)?.is_some()
                || session.find(self.tagged, "teid", &subscriber.teid)?.is_some()
            {
                return Err(wrong("a session that has left is found by its tag"));
            }
        }
        Ok(())
    }
}

/// With so many sessions, or as many as fit.
///
/// # Errors
/// What the region said, and `Backend` if it does not hold what it must.
pub fn run(desk: &mut Desk<'_>, records: u64) -> Result<()> {
    let records = fitting(desk, records);
    let bytes = chase_bytes(records);
    let place = desk.place(bytes.saturating_mul(2))?;
    let mut chase = Chase::lay(place, bytes, desk.options.seed)?;
    desk.collapse(chase.place(), &format!("the walk beside {records} sessions"))?;
    for third in THIRDS {
        tagged(desk, records, third, &mut chase)?;
    }
    blocks::run(desk, records)?;
    chase.close()
}

/// The walk goes over as much as the tagged sessions take, about.
fn chase_bytes(records: u64) -> u64 {
    records.saturating_mul(3 << 10).min(CHASE_MOST)
}

/// As many sessions as leave a third of the free memory to others.
fn fitting(desk: &mut Desk<'_>, records: u64) -> u64 {
    let free = Machine::look().memory_bytes_available;
    let need = |records: u64| {
        chase_bytes(records).saturating_add(records.saturating_mul(2 * SESSION_ROOM))
    };
    if need(records) <= free / 3 * 2 {
        return records;
    }
    let less = (free / 3 * 2).saturating_sub(CHASE_MOST) / (2 * SESSION_ROOM);
    let less = (less / 10_000 * 10_000).clamp(1000, records.max(1000));
    desk.caveats.push(format!(
        "{records} sessions do not fit in {} of free memory: {less} instead",
        bytes_text(free)
    ));
    less
}

/// Rows of one form of the third tag.
struct Rows {
    attach: Row,
    change: Row,
    detach: Row,
    miss: Row,
    lines: Row,
}

impl Rows {
    fn new(records: u64, third: Third, chase: &Chase) -> Self {
        let name = third.name;
        let rate = |what: &str| Row::new(&format!("{what} ({name})"), records, Unit::Rate);
        let mut attach = rate("attach: insert of a session of 1 to 4 KB, three tags");
        if records <= HOT_MOST {
            attach.goals = vec![Goal::AtLeast(1e6)];
        }
        let text = format!("one miss in a walk over {}", chase.footprint());
        let miss = Row::new(&text, records, Unit::Ns);
        let text = format!("misses that three tags add to a bare insert ({name})");
        let mut lines = Row::new(&text, records, Unit::Count);
        if records >= COLD_LEAST {
            lines.goals = vec![Goal::AtMost(8.0)];
        }
        let (change, detach) = (rate("change of a part without a tag"), rate("detach"));
        Self { attach, change, detach, miss, lines }
    }

    fn add(&mut self, times: &[Times; 3], miss: f64) {
        for ((_, name), times) in HOWS.iter().zip(times) {
            self.attach.add(name, 1e9 / times.attach);
            self.change.add(name, 1e9 / times.change);
            self.detach.add(name, 1e9 / times.detach);
        }
        self.miss.add("dependent loads", miss);
        let [with, without, _] = times;
        let lines = |with: f64, without: f64| (with - without) / miss;
        self.lines.add("insert", lines(with.attach, without.attach));
        self.lines.add("change", lines(with.change, without.change));
        self.lines.add("delete", lines(with.detach, without.detach));
    }

    fn summary(&self) -> String {
        let middle = |row: &Row| {
            let rates = row.arms.iter().map(|arm| format!("{}/s", rate_text(arm.median())));
            rates.collect::<Vec<_>>().join(" : ")
        };
        let miss = self.miss.arms.first().map_or(0.0, |arm| median(&arm.samples));
        let lines = self.lines.arms.first().map_or(0.0, |arm| median(&arm.samples));
        format!(
            "insert {}, change {}, delete {}, a miss {}, {lines:.1} misses",
            middle(&self.attach),
            middle(&self.change),
            middle(&self.detach),
            latency_text(miss)
        )
    }
}

fn tagged(desk: &mut Desk<'_>, records: u64, third: Third, chase: &mut Chase) -> Result<()> {
    let place = desk.place(records.saturating_mul(4 * SESSION_ROOM))?;
    let session = place.region.session()?;
    let schema = Schema { tags: third.tags(), ..Default::default() };
    let seed = desk.options.seed;
    let mut entity = Entity {
        tagged: session.namespace("session", &schema)?,
        bare: session.namespace("bare", &Schema::default())?,
        session,
        herds: [Herd::new(seed), Herd::new(seed + 1)],
        bodies: Bodies::new(seed),
        clock: desk.options.clock,
    };
    let step = desk.display.begin(format!("loading {records} sessions twice"), 2 * records);
    entity.load(records, |loaded| step.done(loaded))?;
    step.finish();
    desk.collapse(&place, &format!("{records} sessions twice, {}", third.name))?;
    let mut rows = Rows::new(records, third, chase);
    let (rounds, ops) = (desk.options.rounds(), desk.options.ops());
    let title = format!("{records} sessions, {}", third.name);
    let step = desk.display.begin(title, rounds);
    for _ in 0..rounds {
        chase.steps(ops / 10, || desk.options.clock.now_ns())?;
        let miss = chase.steps(ops, || desk.options.clock.now_ns())?;
        let mut times = [Times::default(); 3];
        for ((how, _), times) in HOWS.iter().zip(&mut times) {
            // The first turn brings back what the other arm has driven out of the caches.
            entity.turn(*how, ops / 5)?;
            *times = entity.turn(*how, ops)?;
        }
        rows.add(&times, miss);
        step.done(1);
    }
    step.finish_run(&rows.summary());
    entity.verify()?;
    desk.rows.extend([rows.attach, rows.change, rows.detach, rows.miss, rows.lines]);
    drop(entity);
    place.close_and_check()
}
