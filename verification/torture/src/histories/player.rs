//! A process of a history: it is told on its standard input which round to play, plays it, writes
//! down what it did, and says so on its standard output.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};

use nearstate_store::{BlockChange, Condition, Outcome, Region, Session};

use super::history::{Line, Sight, Written};
use super::model::{ACCOUNTS, BLOCKS, FIRSTS, Model, NAMES, NODES, PLAIN, Payload, RECORDS};
use super::pad::{Ground, Pad, Places, Stop, encode};
use crate::clock::now_ns;
use crate::dice::Dice;

/// The file of a player.
pub(crate) fn path_of(folder: &Path, player: u16) -> PathBuf {
    folder.join(format!("history-{player}"))
}

/// Words of a round: `ROUND MODEL SEED OPERATIONS START_NS FIRST_VALUE`.
struct Round {
    number: u64,
    model: Model,
    seed: u64,
    operations: u64,
    start_ns: u64,
    first: u64,
}

impl Round {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let number = words.next()?.parse().ok()?;
        let model = Model::named(words.next()?)?;
        let mut word = || words.next()?.parse().ok();
        let (seed, operations, start_ns, first) = (word()?, word()?, word()?, word()?);
        Some(Self { number, model, seed, operations, start_ns, first })
    }
}

/// Plays every round that standard input names, until it ends.
pub(crate) fn run(folder: &Path, me: u16) -> Result<(), String> {
    let region = Region::attach(&folder.join("region")).map_err(|e| format!("attach: {e}"))?;
    let session = region.session().map_err(|e| format!("session: {e}"))?;
    let places = Places::open(&session)?;
    let path = path_of(folder, me);
    let file = OpenOptions::new().append(true).create(true).open(&path);
    let mut file = file.map_err(|e| format!("{}: {e}", path.display()))?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| format!("standard input: {e}"))?;
        let round = Round::parse(&line).ok_or_else(|| format!("no round: {line:?}"))?;
        let ground = Ground { session: &session, places, model: round.model, round: round.number };
        let mut player = Player {
            ground: &ground,
            session: &session,
            file: &mut file,
            dice: Dice::new(&[round.seed, round.number, u64::from(me)]),
            op: 0,
            value: round.first,
        };
        player.say(&Line::Round(round.first >> 16 & 63))?;
        while now_ns() < round.start_ns {
            std::hint::spin_loop();
        }
        player.play(round.operations).map_err(|stop| match stop {
            Stop::Conflict => "a conflict where there can be none".to_owned(),
            Stop::Bad(text) => format!("{} round {}: {text}", round.model.name(), round.number),
        })?;
        let mut out = std::io::stdout().lock();
        let said = writeln!(out, "done {}", round.number).and_then(|()| out.flush());
        said.map_err(|e| format!("standard output: {e}"))?;
    }
    Ok(())
}

struct Player<'g> {
    ground: &'g Ground<'g>,
    session: &'g Session,
    file: &'g mut File,
    dice: Dice,
    op: u64,
    value: u64,
}

/// The most values that one operation writes.
const VALUES_PER_OP: u64 = 32;

type Work<'g> = fn(&mut Player<'g>, &mut Pad<'g>) -> Result<(), Stop>;

impl<'g> Player<'g> {
    fn say(&mut self, line: &Line) -> Result<(), String> {
        self.file.write_all(line.text().as_bytes()).map_err(|e| format!("history: {e}"))
    }

    fn play(&mut self, operations: u64) -> Result<(), Stop> {
        let works: &[(u64, Work<'g>)] = match self.ground.model {
            Model::Registers => &[(50, Self::registers), (15, Self::look)],
            Model::Bank => &[(55, Self::transfer), (25, Self::look)],
            Model::Ring => {
                &[(20, Self::insert), (20, Self::remove), (15, Self::rotate), (25, Self::look)]
            }
            Model::Index => {
                &[(35, Self::rename), (10, Self::forget), (15, Self::by_name), (20, Self::look)]
            }
        };
        for _ in 0..operations {
            self.pause();
            let mut roll = self.dice.below(100);
            let work = works.iter().find(|(odds, _)| {
                let is_it = roll < *odds;
                roll = roll.saturating_sub(*odds);
                is_it
            });
            match work {
                Some((_, work)) => self.transact(*work)?,
                None if self.ground.model == Model::Registers => self.plain()?,
                None => self.plain_get()?,
            }
        }
        Ok(())
    }

    /// Sometimes others get to run, in the middle of things.
    fn pause(&mut self) {
        match self.dice.below(100) {
            0..=9 => std::thread::yield_now(),
            10..=12 => {
                let us = 10 + self.dice.below(150);
                std::thread::sleep(std::time::Duration::from_micros(us));
            }
            13..=40 => (0..self.dice.below(2000)).for_each(|_| std::hint::spin_loop()),
            _ => {}
        }
    }

    fn next_op(&mut self) -> (u64, u64) {
        self.op += 1;
        self.value += VALUES_PER_OP;
        (self.op, self.value)
    }

    /// One transaction, once: a conflict is an answer, and what it had read must fit together.
    fn transact(&mut self, work: Work<'g>) -> Result<(), Stop> {
        let (op, first) = self.next_op();
        let call = now_ns();
        let mut pad = Pad::new(self.ground, first)?;
        let done = work(self, &mut pad);
        self.pause();
        let reads = pad.sights();
        let is_read = pad.writes.is_empty();
        match done {
            Err(Stop::Bad(text)) => return Err(Stop::Bad(text)),
            Err(Stop::Conflict) => {
                self.say(&Line::Read { op, call, ret: now_ns(), reads })?;
                return Ok(());
            }
            Ok(()) if is_read => {
                pad.commit()?; // Cannot meet a conflict.
                self.say(&Line::Read { op, call, ret: now_ns(), reads })?;
                return Ok(());
            }
            Ok(()) => {}
        }
        let writes = pad.writes.clone();
        self.say(&Line::Intent { op, call, reads, writes })?;
        let done = pad.commit();
        let ret = now_ns();
        let line = match done {
            Ok(()) => Line::Done { op, ret, reads: Vec::new() },
            Err(Stop::Conflict) => Line::Nothing { op, ret, reads: Vec::new() },
            Err(bad) => return Err(bad),
        };
        Ok(self.say(&line)?)
    }

    fn key(&mut self) -> u32 {
        self.dice.pick(self.ground.model.keys())
    }

    fn registers(&mut self, pad: &mut Pad<'g>) -> Result<(), Stop> {
        for _ in 0..=self.dice.below(5) {
            let key = self.key();
            match self.dice.below(100) {
                0..=54 => drop(pad.get(key)?),
                55..=84 => pad.put(key, 0)?,
                85..=94 => pad.delete(key)?,
                _ => pad.delete_record(self.dice.pick(RECORDS))?,
            }
            self.pause();
        }
        Ok(())
    }

    /// Reads everything.
    fn look(&mut self, pad: &mut Pad<'g>) -> Result<(), Stop> {
        let keys = self.ground.model.keys();
        let from = self.dice.pick(keys);
        for key in 0..keys {
            pad.get((from + key) % keys)?;
            if key == keys / 2 {
                self.pause();
            }
        }
        Ok(())
    }

    /// An account without money is not there.
    fn transfer(&mut self, pad: &mut Pad<'g>) -> Result<(), Stop> {
        let (from, to) = (self.dice.pick(ACCOUNTS), self.dice.pick(ACCOUNTS));
        let (has, other) = (pad.get(from)?.unwrap_or(0), pad.get(to)?.unwrap_or(0));
        if from == to {
            return Ok(());
        }
        let amount = has.min(1 + self.dice.below(25));
        self.pause();
        for (account, has) in [(from, has - amount), (to, other + amount)] {
            if has > 0 {
                pad.put(account, has)?;
            } else {
                pad.delete(account)?;
            }
        }
        Ok(())
    }

    /// A node of the ring, some steps from the first one, and its successor.
    fn walk(&mut self, pad: &mut Pad<'g>) -> Result<(u32, u32), Stop> {
        let mut node = 0;
        for _ in 0..=self.dice.below(6) {
            let next = pad.get(node)?.and_then(|next| u32::try_from(next).ok());
            let next = next.ok_or_else(|| Stop::Bad(format!("the ring ends at {node}")))?;
            if self.dice.chance(40) {
                return Ok((node, next));
            }
            node = next;
        }
        let next = pad.get(node)?.and_then(|next| u32::try_from(next).ok());
        Ok((node, next.ok_or_else(|| Stop::Bad(format!("the ring ends at {node}")))?))
    }

    fn insert(&mut self, pad: &mut Pad<'g>) -> Result<(), Stop> {
        let (node, next) = self.walk(pad)?;
        let new = self.dice.pick(NODES);
        if pad.get(new)?.is_none() {
            pad.put(new, u64::from(next))?;
            pad.put(node, u64::from(new))?;
        }
        Ok(())
    }

    fn remove(&mut self, pad: &mut Pad<'g>) -> Result<(), Stop> {
        let (node, next) = self.walk(pad)?;
        if next != 0 && next != node {
            let after = pad.get(next)?.ok_or_else(|| format!("the ring ends at {next}"))?;
            self.pause();
            pad.delete(next)?;
            pad.put(node, after)?;
        }
        Ok(())
    }

    /// The two nodes behind one change places.
    fn rotate(&mut self, pad: &mut Pad<'g>) -> Result<(), Stop> {
        let (node, first) = self.walk(pad)?;
        let missing = || Stop::Bad("the ring has an end".to_owned());
        let second = pad.get(first)?.ok_or_else(missing)?;
        let second = u32::try_from(second).unwrap_or(u32::MAX);
        if first == node || second == node || first == second {
            return Ok(());
        }
        let after = pad.get(second)?.ok_or_else(missing)?;
        self.pause();
        pad.put(node, u64::from(second))?;
        pad.put(second, u64::from(first))?;
        pad.put(first, after)
    }

    /// Gives a record another name, if nobody has it.
    fn rename(&mut self, pad: &mut Pad<'g>) -> Result<(), Stop> {
        let (record, name) = (self.dice.pick(FIRSTS), FIRSTS + self.dice.pick(NAMES));
        if pad.get(name)?.is_some() {
            return Ok(());
        }
        if let Some(old) = pad.get(record)? {
            pad.delete(u32::try_from(old).unwrap_or(u32::MAX))?;
        }
        self.pause();
        pad.put(record, u64::from(name))?;
        pad.put(name, u64::from(record))
    }

    /// Deletes a record and its name.
    fn forget(&mut self, pad: &mut Pad<'g>) -> Result<(), Stop> {
        let record = self.dice.pick(FIRSTS);
        if let Some(name) = pad.get(record)? {
            pad.delete(record)?;
            pad.delete(u32::try_from(name).unwrap_or(u32::MAX))?;
        }
        Ok(())
    }

    fn by_name(&mut self, pad: &mut Pad<'g>) -> Result<(), Stop> {
        let name = FIRSTS + self.dice.pick(NAMES);
        if let Some(record) = pad.get(name)? {
            let back = pad.get(u32::try_from(record).unwrap_or(u32::MAX))?;
            if back != Some(u64::from(name)) {
                return Err(Stop::Bad(format!(
                    "name {name} leads to {record}, which has {back:?}"
                )));
            }
        }
        Ok(())
    }

    fn plain_get(&mut self) -> Result<(), Stop> {
        let (op, _) = self.next_op();
        let key = self.key();
        let call = now_ns();
        let sight = self.ground.get(key)?;
        Ok(self.say(&Line::Read { op, call, ret: now_ns(), reads: vec![(key, sight)] })?)
    }

    /// A read, or a write with reads right behind it: nothing is written down in between, so that a
    /// store which is still on its way would show.
    fn plain(&mut self) -> Result<(), Stop> {
        if self.dice.chance(35) {
            return self.plain_get();
        }
        let (op, value) = self.next_op();
        let key = self.key();
        let write = match self.dice.below(10) {
            0..=5 => Plain::Put,
            6..=7 if key < PLAIN => Plain::PutAbsent,
            _ => Plain::Delete,
        };
        let written = |key, value| Written { key, value, payload: 0 };
        let is_record = key >= PLAIN && write == Plain::Delete && self.dice.chance(50);
        let writes = match write {
            Plain::Put | Plain::PutAbsent => vec![written(key, value)],
            Plain::Delete if is_record => {
                let first = key - (key - PLAIN) % BLOCKS;
                (first..first + BLOCKS).map(|key| written(key, 0)).collect()
            }
            Plain::Delete => vec![written(key, 0)],
        };
        let reads = match write {
            Plain::PutAbsent => vec![(key, Sight::Exactly(0))],
            Plain::Put | Plain::Delete => Vec::new(),
        };
        let call = now_ns();
        self.say(&Line::Intent { op, call, reads, writes })?;
        let line = self.plain_write(op, write, (key, is_record), value)?;
        let mut lines = vec![line];
        for _ in 0..self.dice.below(3) {
            let (op, _) = self.next_op();
            let key = self.key();
            let call = now_ns();
            let sight = self.ground.get(key)?;
            lines.push(Line::Read { op, call, ret: now_ns(), reads: vec![(key, sight)] });
        }
        Ok(lines.iter().try_for_each(|line| self.say(line))?)
    }

    fn plain_write(
        &self,
        op: u64,
        write: Plain,
        (key, is_record): (u32, bool),
        value: u64,
    ) -> Result<Line, Stop> {
        let payload: Payload = 0;
        let place = self.ground.place(key);
        let (namespace, name) = (place.namespace, &place.key);
        let bytes = encode(value, payload);
        let none = Vec::new();
        if is_record {
            // Whether there was a record says nothing about its blocks: it may have none.
            self.session.delete(namespace, name)?;
            return Ok(Line::Done { op, ret: now_ns(), reads: none });
        }
        if let Some(block) = place.block {
            let bytes = (write == Plain::Put).then_some(&bytes[..]);
            let change = BlockChange { name: block, bytes };
            self.session.patch(namespace, name, &[change], Condition::Always)?;
            return Ok(Line::Done { op, ret: now_ns(), reads: none });
        }
        Ok(match write {
            Plain::Put => {
                self.session.put(namespace, name, &bytes)?;
                Line::Done { op, ret: now_ns(), reads: none }
            }
            Plain::PutAbsent => {
                match self.session.put_if(namespace, name, &bytes, Condition::Absent)? {
                    Outcome::Done { .. } => Line::Done { op, ret: now_ns(), reads: none },
                    Outcome::Refused { .. } => {
                        Line::Nothing { op, ret: now_ns(), reads: vec![(key, Sight::Some)] }
                    }
                }
            }
            Plain::Delete => {
                let was_there = self.session.delete(namespace, name)?;
                let sight = if was_there { Sight::Some } else { Sight::Exactly(0) };
                Line::Done { op, ret: now_ns(), reads: vec![(key, sight)] }
            }
        })
    }
}

/// A write beside any transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plain {
    Put,
    PutAbsent,
    Delete,
}
