//! The processes of the rounds: started, killed, restarted and stopped.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::model::HistoryModel;
use super::options::{Detector, HistoryOptions, Violation, first_value};
use super::process::path_of;
use crate::clock::now_ns;
use crate::rng::{Rng, percent, seeded};
use crate::spawn::{ChildCommand, was_killed};

/// Without a message for this long, a process hangs.
const SILENCE_NS: u64 = 30_000_000_000;

/// Between the command and the start of a round: every process has received the command by then.
const HEAD_START_NS: u64 = 150_000;

/// Kills of one round occur within this time after its start.
const KILLS_WITHIN_NS: u64 = 4_000_000;

/// Starts of one process in one round.
const STARTS_MAX: u64 = 60;

/// A message of a process: the end of a round, or its exit.
#[derive(Clone, Copy, Debug)]
enum ProcessMessage {
    Done(u64),
    Exited,
}

struct HistoryProcess {
    number: u16,
    start: u64,
    child: Child,
    is_done: bool,
    deaths: Vec<u64>,
    read: u64,
}

/// What the processes of one number recorded in a round.
pub(crate) struct ProcessRecord {
    pub(crate) player: u16,
    pub(crate) text: String,
    pub(crate) deaths: Vec<u64>,
}

pub(crate) struct ProcessGroup<'r> {
    options: &'r HistoryOptions,
    starter: &'r ChildCommand,
    players: Vec<HistoryProcess>,
    said: Receiver<(u16, u64, ProcessMessage)>,
    say: Sender<(u16, u64, ProcessMessage)>,
    starts: u64,
    rng: Rng,
    pub(crate) kills: u64,
}

impl<'r> ProcessGroup<'r> {
    pub(crate) fn new(options: &'r HistoryOptions, starter: &'r ChildCommand) -> Self {
        let (say, said) = channel();
        let rng = seeded(&[options.seed, 4 << 32]);
        Self { options, starter, players: Vec::new(), said, say, starts: 0, rng, kills: 0 }
    }

    pub(crate) fn start_all(&mut self) -> Result<(), Violation> {
        for number in 0..self.options.players {
            // The files of the last batch have been read.
            let _ = fs::remove_file(path_of(&self.options.folder, number));
            let (start, child) = self.start(number, false)?;
            let deaths = Vec::new();
            self.players.push(HistoryProcess {
                number,
                start,
                child,
                is_done: true,
                deaths,
                read: 0,
            });
        }
        Ok(())
    }

    fn start(&mut self, number: u16, has_crash_plan: bool) -> Result<(u64, Child), Violation> {
        self.starts += 1;
        let start = self.starts;
        let folder = &self.options.folder;
        let words = ["player", &folder.display().to_string(), &number.to_string(), "0", "0"];
        let jitter = self.options.jitter.to_string();
        let mut settings = vec![("NEARSTATE_JITTER", jitter.as_str())];
        let plan = if has_crash_plan { crash_plan(&mut self.rng) } else { String::new() };
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
                let _ = say.send((number, start, ProcessMessage::Done(round.unwrap_or(u64::MAX))));
            }
            let _ = say.send((number, start, ProcessMessage::Exited));
        });
        Ok((start, child))
    }

    /// Executes a round.
    pub(crate) fn play(
        &mut self,
        model: HistoryModel,
        round: u64,
        rng: &mut Rng,
    ) -> Result<Vec<ProcessRecord>, Violation> {
        if self.players.len() != usize::from(self.options.players) {
            // A round without all processes would prove nothing.
            return Err(process(format!("{} players are there", self.players.len())));
        }
        let start_ns = now_ns() + HEAD_START_NS;
        let seed = rng.u64(..);
        for player in &mut self.players {
            (player.is_done, player.deaths) = (false, Vec::new());
            let word = command_for(player, (model, round), seed, self.options.operations, start_ns);
            send(player, &word);
        }
        let mut kills: Vec<(u64, u16)> = Vec::new();
        if percent(rng, self.options.kills_percent) {
            for _ in 0..=rng.u64(..2) {
                let victim = rng.u16(..self.options.players);
                kills.push((start_ns + rng.u64(..KILLS_WITHIN_NS), victim));
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
                (Ok((number, start, said)), _) => {
                    self.on_message(number, start, said, (model, round))
                }
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
                // What the other processes still write must not become part of the next round.
                // Errors of this do not matter: the first violation is reported.
                let _ = self.end_all(true);
                self.start_all()?;
                Err(found)
            }
        }
    }

    fn on_message(
        &mut self,
        number: u16,
        start: u64,
        said: ProcessMessage,
        game: (HistoryModel, u64),
    ) -> Result<(), Violation> {
        let Some(player) = self.players.iter_mut().find(|player| player.number == number) else {
            return Ok(());
        };
        match said {
            _ if player.start != start => Ok(()), // Of one that was killed.
            ProcessMessage::Done(round) => {
                player.is_done |= round == game.1;
                Ok(())
            }
            ProcessMessage::Exited => {
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

    /// Kills a process that has not finished the round.
    fn kill(&mut self, victim: u16, game: (HistoryModel, u64)) -> Result<(), Violation> {
        let player = self.players.iter_mut().find(|player| player.number == victim);
        let Some(player) = player.filter(|player| !player.is_done) else { return Ok(()) };
        let _ = player.child.kill();
        let status = player.child.wait().map_err(|e| process(format!("wait: {e}")))?;
        if !was_killed(status) {
            return Ok(()); // It ended by itself before; `Gone` is on its way.
        }
        self.kills += 1;
        let has_crash_plan = percent(&mut self.rng, 50);
        self.replace(victim, game, has_crash_plan)
    }

    /// Restarts a dead process with half of its work.
    fn replace(
        &mut self,
        number: u16,
        game: (HistoryModel, u64),
        has_crash_plan: bool,
    ) -> Result<(), Violation> {
        let died = now_ns();
        let (start, child) = self.start(number, has_crash_plan)?;
        let operations = self.options.operations / 2;
        let seed = self.rng.u64(..);
        let Some(player) = self.players.iter_mut().find(|player| player.number == number) else {
            return Ok(());
        };
        player.deaths.push(died);
        (player.start, player.child) = (start, child);
        if player.deaths.len() as u64 > STARTS_MAX {
            return Err(process(format!("player {number} dies again and again")));
        }
        let word = command_for(player, game, seed, operations, 0);
        send(player, &word);
        Ok(())
    }

    /// What all processes recorded since the last round.
    fn collect(&mut self) -> Result<Vec<ProcessRecord>, Violation> {
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
            all.push(ProcessRecord { player: player.number, text, deaths });
        }
        Ok(all)
    }

    /// Ends all processes by a kill or by the end of their standard input.
    pub(crate) fn end_all(&mut self, is_killed: bool) -> Result<(), Violation> {
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

impl Drop for ProcessGroup<'_> {
    fn drop(&mut self) {
        for player in &mut self.players {
            let _ = player.child.kill();
            let _ = player.child.wait();
        }
    }
}

fn process(text: String) -> Violation {
    Violation(Detector::Process, text)
}

fn command_for(
    player: &HistoryProcess,
    (model, round): (HistoryModel, u64),
    seed: u64,
    operations: u64,
    start_ns: u64,
) -> String {
    let first = first_value(round, u64::from(player.number), player.deaths.len() as u64);
    format!("{round} {} {seed} {operations} {start_ns} {first}\n", model.name())
}

/// A dead process does not read: `Exited` reports it.
fn send(player: &mut HistoryProcess, word: &str) {
    if let Some(questions) = &mut player.child.stdin {
        let _ = questions.write_all(word.as_bytes());
    }
}

/// Where a process kills itself: in a commit, or while it recovers another process.
#[cfg(feature = "crash-points")]
fn crash_plan(rng: &mut Rng) -> String {
    let is_it = |point: &&&str| {
        let parts = ["txn.", "line.", "lock.", "publish.", "recover.", "append."];
        parts.iter().any(|part| point.starts_with(part))
    };
    let points: Vec<&&str> = nearstate_store::crash::POINTS.iter().filter(is_it).collect();
    let number = rng.usize(..points.len());
    let point = points.get(number).copied();
    let nth = if point.is_some_and(|point| point.starts_with("recover.")) {
        1
    } else {
        1 + rng.u64(..40)
    };
    point.map_or_else(String::new, |point| format!("{point}:{nth}"))
}

#[cfg(not(feature = "crash-points"))]
const fn crash_plan(_: &mut Rng) -> String {
    String::new()
}
