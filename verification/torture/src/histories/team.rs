//! The processes of the rounds: started, killed, started again, asked to end.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::game::{By, Found, Options, first_value};
use super::model::Model;
use super::player::path_of;
use crate::clock::now_ns;
use crate::dice::Dice;
use crate::spawn::{Starter, was_killed};

/// Nobody says anything for so long: something hangs.
const SILENCE_NS: u64 = 30_000_000_000;

/// Between the word and the beginning of a round: everybody has read the word by then.
const HEAD_START_NS: u64 = 150_000;

/// Kills in one round fall into so much time after its beginning.
const KILLS_WITHIN_NS: u64 = 4_000_000;

/// Starts of one process in one round.
const STARTS_MAX: u64 = 60;

/// What a process said: that it has played a round, or nothing any more.
#[derive(Clone, Copy, Debug)]
enum Said {
    Done(u64),
    Gone,
}

struct Player {
    number: u16,
    start: u64,
    child: Child,
    is_done: bool,
    deaths: Vec<u64>,
    read: u64,
}

/// What one player left of a round.
pub(crate) struct Ended {
    pub(crate) player: u16,
    pub(crate) text: String,
    pub(crate) deaths: Vec<u64>,
}

pub(crate) struct Team<'r> {
    options: &'r Options,
    starter: &'r Starter,
    players: Vec<Player>,
    said: Receiver<(u16, u64, Said)>,
    say: Sender<(u16, u64, Said)>,
    starts: u64,
    dice: Dice,
    pub(crate) kills: u64,
}

impl<'r> Team<'r> {
    pub(crate) fn new(options: &'r Options, starter: &'r Starter) -> Self {
        let (say, said) = channel();
        let dice = Dice::new(&[options.seed, 4 << 32]);
        Self { options, starter, players: Vec::new(), said, say, starts: 0, dice, kills: 0 }
    }

    pub(crate) fn start_all(&mut self) -> Result<(), Found> {
        for number in 0..self.options.players {
            // The files of the last batch were read.
            let _ = fs::remove_file(path_of(&self.options.folder, number));
            let (start, child) = self.start(number, false)?;
            let deaths = Vec::new();
            self.players.push(Player { number, start, child, is_done: true, deaths, read: 0 });
        }
        Ok(())
    }

    fn start(&mut self, number: u16, is_doomed: bool) -> Result<(u64, Child), Found> {
        self.starts += 1;
        let start = self.starts;
        let folder = &self.options.folder;
        let words = ["player", &folder.display().to_string(), &number.to_string(), "0", "0"];
        let jitter = self.options.jitter.to_string();
        let mut settings = vec![("NEARSTATE_JITTER", jitter.as_str())];
        let plan = if is_doomed { doom(&mut self.dice) } else { String::new() };
        if !plan.is_empty() {
            settings.push(("NEARSTATE_CRASH_AT", &plan));
        }
        let errors = folder.join(format!("player-{number}.errors"));
        let child = self.starter.start_piped(&words.map(str::to_owned), &settings, &errors);
        let mut child = child.map_err(process)?;
        let out = child.stdout.take().ok_or_else(|| process("no pipe".to_owned()))?;
        let say = self.say.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let round = line.strip_prefix("done ").and_then(|round| round.parse().ok());
                let _ = say.send((number, start, Said::Done(round.unwrap_or(u64::MAX))));
            }
            let _ = say.send((number, start, Said::Gone));
        });
        Ok((start, child))
    }

    /// Plays a round.
    pub(crate) fn play(
        &mut self,
        model: Model,
        round: u64,
        dice: &mut Dice,
    ) -> Result<Vec<Ended>, Found> {
        if self.players.len() != usize::from(self.options.players) {
            // Nobody's round would find nothing.
            return Err(process(format!("{} players are there", self.players.len())));
        }
        let start_ns = now_ns() + HEAD_START_NS;
        let seed = dice.word();
        for player in &mut self.players {
            (player.is_done, player.deaths) = (false, Vec::new());
            let word = word_of(player, (model, round), seed, self.options.operations, start_ns);
            tell(player, &word);
        }
        let mut kills: Vec<(u64, u16)> = Vec::new();
        if dice.chance(self.options.kills_percent) {
            for _ in 0..=dice.below(2) {
                let victim = u16::try_from(dice.below(self.players.len() as u64)).unwrap_or(0);
                kills.push((start_ns + dice.below(KILLS_WITHIN_NS), victim));
            }
            kills.sort_unstable_by(|a, b| b.cmp(a));
        }
        let mut played = Ok(());
        while played.is_ok() && self.players.iter().any(|player| !player.is_done) {
            let due = kills.last().copied();
            let now = now_ns();
            let until = due.map_or(now + SILENCE_NS, |(at, _)| at);
            let wait = Duration::from_nanos(until.saturating_sub(now));
            played = match (self.said.recv_timeout(wait), due) {
                (Ok((number, start, said)), _) => self.heard(number, start, said, (model, round)),
                (Err(RecvTimeoutError::Timeout), Some((_, victim))) => {
                    kills.pop();
                    self.kill(victim, (model, round))
                }
                (Err(_), _) => Err(process("nobody says anything any more".to_owned())),
            };
        }
        match played {
            Ok(()) => self.collect(),
            Err(found) => {
                // What the others are still writing must not get into the next round. One has ended
                // badly already: that is what was found.
                let _ = self.end_all(true);
                self.start_all()?;
                Err(found)
            }
        }
    }

    fn heard(
        &mut self,
        number: u16,
        start: u64,
        said: Said,
        game: (Model, u64),
    ) -> Result<(), Found> {
        let Some(player) = self.players.iter_mut().find(|player| player.number == number) else {
            return Ok(());
        };
        match said {
            _ if player.start != start => Ok(()), // Of one that was killed.
            Said::Done(round) => {
                player.is_done |= round == game.1;
                Ok(())
            }
            Said::Gone => {
                let status = player.child.wait().map_err(|e| process(format!("wait: {e}")))?;
                let died = if was_killed(status) {
                    self.kills += 1;
                    Ok(())
                } else {
                    let file = self.options.folder.join(format!("player-{number}.errors"));
                    let said = fs::read_to_string(&file).unwrap_or_default();
                    let _ = fs::remove_file(&file);
                    Err(process(format!("player {number} ended with {status}: {}", said.trim())))
                };
                self.replace(number, game, false)?;
                died
            }
        }
    }

    /// Kills a player that has something to do.
    fn kill(&mut self, victim: u16, game: (Model, u64)) -> Result<(), Found> {
        let player = self.players.iter_mut().find(|player| player.number == victim);
        let Some(player) = player.filter(|player| !player.is_done) else { return Ok(()) };
        let _ = player.child.kill();
        let status = player.child.wait().map_err(|e| process(format!("wait: {e}")))?;
        if !was_killed(status) {
            return Ok(()); // It ended by itself before; `Gone` is on its way.
        }
        self.kills += 1;
        let is_doomed = self.dice.chance(50);
        self.replace(victim, game, is_doomed)
    }

    /// Starts a dead player again, with half of its work to do.
    fn replace(&mut self, number: u16, game: (Model, u64), is_doomed: bool) -> Result<(), Found> {
        let died = now_ns();
        let (start, child) = self.start(number, is_doomed)?;
        let operations = self.options.operations / 2;
        let seed = self.dice.word();
        let Some(player) = self.players.iter_mut().find(|player| player.number == number) else {
            return Ok(());
        };
        player.deaths.push(died);
        (player.start, player.child) = (start, child);
        if player.deaths.len() as u64 > STARTS_MAX {
            return Err(process(format!("player {number} dies again and again")));
        }
        let word = word_of(player, game, seed, operations, 0);
        tell(player, &word);
        Ok(())
    }

    /// What everybody wrote since the last round.
    fn collect(&mut self) -> Result<Vec<Ended>, Found> {
        let mut all = Vec::new();
        for player in &mut self.players {
            let path = path_of(&self.options.folder, player.number);
            let mut text = String::new();
            let read = File::open(&path).and_then(|mut file| {
                file.seek(SeekFrom::Start(player.read))?;
                file.read_to_string(&mut text)
            });
            read.map_err(|e| process(format!("{}: {e}", path.display())))?;
            player.read += text.len() as u64;
            let deaths = std::mem::take(&mut player.deaths);
            all.push(Ended { player: player.number, text, deaths });
        }
        Ok(all)
    }

    /// Everybody ends: asked to, or killed.
    pub(crate) fn end_all(&mut self, is_killed: bool) -> Result<(), Found> {
        let mut ended = Ok(());
        for mut player in std::mem::take(&mut self.players) {
            if is_killed {
                let _ = player.child.kill();
                self.kills += 1;
            }
            drop(player.child.stdin.take());
            let status = player.child.wait().map_err(|e| process(format!("wait: {e}")))?;
            if !status.success() && !was_killed(status) {
                ended = Err(process(format!("player {} ended with {status}", player.number)));
            }
        }
        ended
    }
}

impl Drop for Team<'_> {
    fn drop(&mut self) {
        for player in &mut self.players {
            let _ = player.child.kill();
            let _ = player.child.wait();
        }
    }
}

fn process(text: String) -> Found {
    Found(By::Process, text)
}

fn word_of(
    player: &Player,
    (model, round): (Model, u64),
    seed: u64,
    operations: u64,
    start_ns: u64,
) -> String {
    let first = first_value(round, u64::from(player.number), player.deaths.len() as u64);
    format!("{round} {} {seed} {operations} {start_ns} {first}\n", model.name())
}

/// One that is dead does not listen: `Gone` says so.
fn tell(player: &mut Player, word: &str) {
    if let Some(questions) = &mut player.child.stdin {
        let _ = questions.write_all(word.as_bytes());
    }
}

/// Where a process kills itself: somewhere in a commit, or while it recovers another.
#[cfg(feature = "crash-points")]
fn doom(dice: &mut Dice) -> String {
    let is_it = |point: &&&str| {
        let parts = ["txn.", "line.", "lock.", "publish.", "recover.", "append."];
        parts.iter().any(|part| point.starts_with(part))
    };
    let points: Vec<&&str> = nearstate_store::crash::POINTS.iter().filter(is_it).collect();
    let number = usize::try_from(dice.below(points.len() as u64)).unwrap_or(0);
    let point = points.get(number).copied();
    let nth = if point.is_some_and(|point| point.starts_with("recover.")) {
        1
    } else {
        1 + dice.below(40)
    };
    point.map_or_else(String::new, |point| format!("{point}:{nth}"))
}

#[cfg(not(feature = "crash-points"))]
const fn doom(_: &mut Dice) -> String {
    String::new()
}
