//! Round after round: processes play on a few records, some are killed and started again, and what
//! they wrote down is judged.

use std::fs;
use std::time::Instant;

use nearstate_store::{CreateOptions, Region, Session};

use super::checker::{Checker, Ruling};
use super::game::{By, Found, Options, Totals, first_value};
use super::history::{History, Op, Written};
use super::model::Model;
use super::pad::{Ground, Pad, Places, Stop};
use super::team::{Ended, Team};
use crate::clock::now_ns;
use crate::dice::Dice;
use crate::spawn::Starter;
use crate::verify::check_clean;

/// Number of the process that prepares a round and reads its end.
const REFEREE: u64 = 255;

struct Rounds<'r> {
    options: &'r Options,
    checker: Checker,
    team: Team<'r>,
    dice: Dice,
    totals: Totals,
    referee: Option<(Session, Places)>,
}

/// Plays, and calls `tick` after every round.
///
/// # Errors
/// One sentence: what must not be was found; the folder is kept, with the history.
pub fn play(
    options: &Options,
    starter: &Starter,
    tick: &mut dyn FnMut(&Totals),
) -> Result<Totals, String> {
    let begun = Instant::now();
    let folder = &options.folder;
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut rounds = Rounds {
        options,
        checker: Checker::start()?,
        team: Team::new(options, starter),
        dice: Dice::new(&[options.seed, 3 << 32]),
        totals: Totals::default(),
        referee: None,
    };
    let done = rounds.all(tick);
    let Rounds { mut totals, team, .. } = rounds;
    drop(team);
    totals.seconds = begun.elapsed().as_secs_f64();
    match done {
        Ok(()) => {
            fs::remove_dir_all(folder).map_err(|e| format!("cannot clean up: {e}"))?;
            Ok(totals)
        }
        Err(Found(by, text)) => Err(format!(
            "{by:?}: {text}\n(round {} of seed {}; everything is in {})",
            totals.rounds,
            options.seed,
            folder.display()
        )),
    }
}

impl Rounds<'_> {
    fn all(&mut self, tick: &mut dyn FnMut(&Totals)) -> Result<(), Found> {
        self.open(true)?;
        while self.totals.rounds < self.options.rounds {
            let found = self.round();
            self.totals.rounds += 1;
            self.totals.kills = self.team.kills;
            self.settle(found)?;
            let is_last = self.totals.rounds == self.options.rounds;
            if is_last || self.totals.rounds.is_multiple_of(self.options.rounds_per_check) {
                let found = self.check();
                let is_damaged = found.is_err();
                self.settle(found)?;
                if !is_last {
                    self.open(is_damaged)?;
                }
            }
            tick(&self.totals);
        }
        Ok(())
    }

    /// A survey counts what is found; else it is the end.
    fn settle(&mut self, found: Result<(), Found>) -> Result<(), Found> {
        match found {
            Err(Found(by, text)) if self.options.is_survey => {
                *self.totals.caught.entry(by).or_default() += 1;
                self.totals.first.entry(by).or_insert(text);
                Ok(())
            }
            other => other,
        }
    }

    fn open(&mut self, is_new: bool) -> Result<(), Found> {
        let path = self.options.folder.join("region");
        let bad = |e: nearstate_store::Error| Found(By::Process, format!("region: {e}"));
        if is_new {
            let _ = fs::remove_file(&path);
            let options = CreateOptions { bytes_max: 256 << 20, ..CreateOptions::default() };
            drop(Region::create(&path, &options).map_err(bad)?);
        }
        let session = Region::attach(&path).and_then(|region| region.session()).map_err(bad)?;
        let places = Places::open(&session).map_err(|e| Found(By::Process, e))?;
        self.referee = Some((session, places));
        self.team.start_all()
    }

    /// Everybody ends, some of them by a kill, and the offline check looks at what they leave.
    fn check(&mut self) -> Result<(), Found> {
        let is_killed = self.options.kills_percent > 0 && self.dice.chance(50);
        self.team.end_all(is_killed)?;
        self.totals.kills = self.team.kills;
        self.referee = None;
        self.totals.checks += 1;
        check_clean(&self.options.folder.join("region")).map_err(|e| Found(By::Check, e))?;
        Ok(())
    }

    fn round(&mut self) -> Result<(), Found> {
        let number = self.totals.rounds;
        let all = Model::ALL;
        let model = self.options.model.unwrap_or_else(|| {
            all.get(self.dice.pick(4) as usize).copied().unwrap_or(Model::Registers)
        });
        let start = self.prepare(model, number).map_err(refereed)?;
        let name = format!("{}-{}-{number}", self.options.seed, model.name());
        let mut history = History::new(name, model, &start);
        let played = self.team.play(model, number, &mut self.dice);
        let last = self.read_end(model, number).map_err(refereed)?;
        self.clean(model, number).map_err(refereed)?;
        self.collect(&mut history, played?, last)?;
        self.judge(&history)
    }

    fn ground(&self, model: Model, round: u64) -> Result<Ground<'_>, Stop> {
        let (session, places) = self.referee.as_ref().ok_or_else(|| "no session".to_owned())?;
        Ok(Ground { session, places: *places, model, round })
    }

    /// Writes what the model begins with.
    fn prepare(&self, model: Model, round: u64) -> Result<Vec<Option<Written>>, Stop> {
        let ground = self.ground(model, round)?;
        let mut pad = Pad::new(&ground, first_value(round, REFEREE, 0))?;
        for key in 0..model.keys() {
            if let Some(payload) = model.start(key) {
                pad.put(key, payload)?;
            }
        }
        let written = pad.writes.clone();
        pad.commit()?;
        let of = |key| written.iter().find(|written| written.key == key).copied();
        Ok((0..model.keys()).map(of).collect())
    }

    /// What is there when everybody has ended, as one more transaction and as single reads.
    fn read_end(&self, model: Model, round: u64) -> Result<Vec<Op>, Stop> {
        let ground = self.ground(model, round)?;
        let client = u32::from(self.options.players);
        let op = |call, reads| Op {
            client,
            call,
            ret: now_ns(),
            is_unknown: false,
            reads,
            writes: Vec::new(),
        };
        let call = now_ns();
        let mut pad = Pad::new(&ground, 0)?;
        for key in 0..model.keys() {
            pad.get(key)?;
        }
        let reads = pad.sights();
        pad.commit()?;
        let mut ops = vec![op(call, reads)];
        for key in 0..model.keys() {
            let call = now_ns();
            let sight = ground.get(key)?;
            ops.push(op(call, vec![(key, sight)]));
        }
        Ok(ops)
    }

    fn clean(&self, model: Model, round: u64) -> Result<(), Stop> {
        let ground = self.ground(model, round)?;
        for key in 0..model.keys() {
            let place = ground.place(key);
            ground.session.delete(place.namespace, &place.key)?;
        }
        Ok(())
    }

    fn collect(
        &mut self,
        history: &mut History,
        played: Vec<Ended>,
        last: Vec<Op>,
    ) -> Result<(), Found> {
        for Ended { player, text, deaths } in played {
            let counted = history
                .take(u32::from(player), &text, &deaths)
                .map_err(|e| Found(By::Process, e))?;
            self.totals.ops += counted.ops;
            self.totals.done += counted.done;
            self.totals.refused += counted.refused;
            self.totals.unknown += counted.unknown;
        }
        self.totals.ops += last.len() as u64;
        history.ops.extend(last);
        history.bound_unknown();
        Ok(())
    }

    /// Both judges look at it, so that a survey tells what each of them finds.
    fn judge(&mut self, history: &History) -> Result<(), Found> {
        let folder = &self.options.folder;
        let page = folder.join(format!("{}.html", history.name));
        let ruling = self.checker.ask(history, &page).map_err(|error| Found(By::Process, error))?;
        let snapshots = history.judge_snapshots();
        self.totals.histories += u64::from(ruling != Ruling::Undecided);
        self.totals.undecided += u64::from(ruling == Ruling::Undecided);
        self.totals.snapshots += snapshots.as_ref().copied().unwrap_or(0);
        if ruling != Ruling::Illegal && snapshots.is_ok() {
            return Ok(());
        }
        let file = folder.join(format!("{}.json", history.name));
        let text = history.json(0, "").to_string();
        fs::write(&file, text).map_err(|e| Found(By::Process, e.to_string()))?;
        let broken = snapshots.err().map(|e| Found(By::Promise, e));
        if ruling == Ruling::Illegal {
            let text = format!(
                "history {} is not strictly serializable: {} and {}",
                history.name,
                file.display(),
                page.display()
            );
            self.settle(broken.map_or(Ok(()), Err))?;
            return Err(Found(By::History, text));
        }
        broken.map_or(Ok(()), Err)
    }
}

fn refereed(stop: Stop) -> Found {
    Found(
        By::Process,
        match stop {
            Stop::Conflict => "a conflict while nobody else writes".to_owned(),
            Stop::Bad(text) => format!("before or after a round: {text}"),
        },
    )
}
