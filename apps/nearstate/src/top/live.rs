//! The live display: polls in a separate thread, draws, and reads keys. The terminal is restored on
//! every exit: by key, signal, error or panic. A guard ends the process if the terminal is gone.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use nearstate_model::{Error, Result};
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::terminal::disable_raw_mode;
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::keys::{KeyCommand, Shown};
use super::live_text::LiveText;
use super::now;
use super::report::{NamespaceOrder, TopReport};
use super::screen::{ScreenState, draw};
use super::snapshot::Snapshot;
use super::sources::{Poll, TopSources};

/// Maximum delay until a key, a signal or a poll result is handled.
const TICK: Duration = Duration::from_millis(50);

/// How long the display may take to end. It does not return from reading a terminal that is gone,
/// nor from writing to one that is stopped.
const END_MAX: Duration = Duration::from_secs(3);

/// Number of intervals in the history graph: the columns of a wide screen.
const HISTORY_MAX: usize = 512;

/// The terminal in raw mode. Dropping it restores the terminal.
struct TerminalGuard(DefaultTerminal);

impl TerminalGuard {
    /// Initializes the terminal. A panic restores it before its message is printed.
    fn take() -> Result<Self> {
        ratatui::try_init().map(Self).map_err(|e| {
            // The initialization may have failed halfway.
            let _ = ratatui::try_restore();
            failed("cannot draw in this terminal", &e)
        })
    }
}

impl Drop for TerminalGuard {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        // Errors are ignored: the terminal may no longer exist.
        let _ = ratatui::try_restore();
    }
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::System {
        detail: format!("{what}; use `--once` or `--json` without a terminal"),
        errno: error.raw_os_error().unwrap_or_default(),
    }
}

/// The state of the display.
#[derive(Debug, Default)]
struct LiveState {
    last: Option<Snapshot>,
    report: TopReport,
    history: Vec<f64>,
    faults: Vec<String>,
    /// When all sources were last read.
    seen: Option<Instant>,
    order: NamespaceOrder,
    is_paused: bool,
    has_help: bool,
}

impl Shown<Poll> for LiveState {
    /// Adds a poll result. Data of a source that cannot be read is kept.
    fn take(&mut self, poll: Poll) {
        let report = TopReport::between(self.last.as_ref(), &poll.snapshot);
        self.history.extend(report.pace());
        let many = self.history.len().saturating_sub(HISTORY_MAX);
        self.history.drain(..many);
        if poll.faults.is_empty() {
            self.seen = Some(Instant::now());
        }
        self.faults = poll.faults;
        self.last = Some(poll.snapshot);
        if self.is_paused {
            return;
        }
        self.report = TopReport {
            seconds: report.seconds,
            node: report.node.or(self.report.node.take()),
            region: report.region.or(self.report.region.take()),
        };
        self.report.order(self.order);
    }

    fn execute(&mut self, command: KeyCommand) -> bool {
        match command {
            KeyCommand::End => return true,
            KeyCommand::Pause => self.is_paused = !self.is_paused,
            KeyCommand::Sort => {
                self.order = self.order.next();
                self.report.order(self.order);
            }
            KeyCommand::Help => self.has_help = !self.has_help,
            // The screen has no more lines than the terminal.
            KeyCommand::Up | KeyCommand::Down => {}
        }
        false
    }
}

impl LiveState {
    fn shown(&self, address: Option<SocketAddr>) -> ScreenState<'_> {
        let age = self.seen.map(|seen| seen.elapsed()).filter(|_| !self.faults.is_empty());
        ScreenState {
            report: &self.report,
            history: &self.history,
            faults: &self.faults,
            address,
            now: now(),
            age,
            order: self.order,
            is_paused: self.is_paused,
            has_help: self.has_help,
        }
    }
}

/// Runs until a key or a signal stops it.
pub(super) fn run(mut sources: TopSources, interval: Duration) -> Result<()> {
    let address = sources.node();
    on_terminal(
        interval,
        move || sources.poll(),
        |terminal, polls, is_over| {
            show(terminal, polls, is_over, LiveState::default(), |state, frame| {
                draw(frame, &state.shown(address));
            })
        },
    )
}

/// The same for a text: what `next` returns in each interval. The keys scroll it.
pub(super) fn run_text(
    first: String,
    interval: Duration,
    next: impl FnMut() -> String + Send + 'static,
) -> Result<()> {
    on_terminal(interval, next, |terminal, polls, is_over| {
        show(terminal, polls, is_over, LiveText::new(first), LiveText::draw)
    })
}

/// Polls in a thread of its own, and takes the terminal while `show` runs.
fn on_terminal<T: Send + 'static>(
    interval: Duration,
    poll: impl FnMut() -> T + Send + 'static,
    show: impl FnOnce(&mut DefaultTerminal, &Receiver<T>, &AtomicBool) -> Result<()>,
) -> Result<()> {
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&is_over))
            .map_err(|e| failed("cannot wait for signals", &e))?;
    }
    let is_ending = Arc::clone(&is_over);
    let guarding = std::thread::Builder::new()
        .name("ns-top-guard".to_owned())
        .spawn(move || guard(&is_ending))
        .map_err(|e| failed("cannot start a thread", &e))?;
    // It ends with the process.
    drop(guarding);
    // At most one result is queued: a slow terminal sees fewer results, but never an outdated one.
    let (polled, polls) = sync_channel(1);
    let (stop, stopped) = sync_channel::<()>(0);
    let looking = std::thread::Builder::new()
        .name("ns-top-poll".to_owned())
        .spawn(move || poll_loop(poll, interval, &polled, &stopped))
        .map_err(|e| failed("cannot start a thread", &e))?;
    let outcome = TerminalGuard::take().and_then(|mut screen| {
        let outcome = show(&mut screen.0, &polls, &is_over);
        drop(screen);
        outcome
    });
    drop(polls);
    drop(stop);
    // A poll may be in progress. It is bounded, and its thread is not joined.
    drop(looking);
    outcome
}

/// Ends the display when the terminal is gone, and the process if the display does not end.
fn guard(is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
        if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
            is_over.store(true, Ordering::Relaxed);
        }
    }
    std::thread::sleep(END_MAX);
    // Of no effect if the terminal is gone.
    let _ = disable_raw_mode();
    std::process::exit(1);
}

fn poll_loop<T>(
    mut poll: impl FnMut() -> T,
    interval: Duration,
    polled: &SyncSender<T>,
    stopped: &Receiver<()>,
) {
    loop {
        let start = Instant::now();
        if polled.send(poll()).is_err() {
            return;
        }
        match stopped.recv_timeout(interval.saturating_sub(start.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn show<T, S: Shown<T>>(
    terminal: &mut DefaultTerminal,
    polls: &Receiver<T>,
    is_over: &AtomicBool,
    mut state: S,
    draw: impl Fn(&S, &mut Frame<'_>),
) -> Result<()> {
    let mut is_stale = true;
    while !is_over.load(Ordering::Relaxed) {
        match polls.try_recv() {
            Ok(poll) => {
                state.take(poll);
                is_stale = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                let detail =
                    "the polling thread has stopped: start `nearstate top` again".to_owned();
                return Err(Error::System { detail, errno: 0 });
            }
        }
        if is_stale {
            terminal
                .draw(|frame| draw(&state, frame))
                .map_err(|e| failed("cannot draw in this terminal", &e))?;
            is_stale = false;
        }
        let input = read_input().map_err(|e| failed("cannot read keys from this terminal", &e))?;
        match input {
            TerminalInput::Nothing => {}
            TerminalInput::KeyCommand(command) if state.execute(command) => return Ok(()),
            TerminalInput::KeyCommand(_) | TerminalInput::Size => is_stale = true,
        }
    }
    Ok(())
}

/// Input from the terminal.
enum TerminalInput {
    Nothing,
    Size,
    KeyCommand(KeyCommand),
}

fn read_input() -> std::io::Result<TerminalInput> {
    match event::poll(TICK) {
        Ok(false) => return Ok(TerminalInput::Nothing),
        Ok(true) => {}
        // A signal: its flag is checked next.
        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => return Ok(TerminalInput::Nothing),
        Err(e) => return Err(e),
    }
    let event = event::read()?;
    if matches!(event, Event::Resize(..)) {
        return Ok(TerminalInput::Size);
    }
    Ok(event
        .as_key_event()
        .and_then(KeyCommand::of)
        .map_or(TerminalInput::Nothing, TerminalInput::KeyCommand))
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::NodeSnapshot;
    use super::*;

    fn poll(at: u64, requests: Option<u64>) -> Poll {
        let node = requests.map(|requests| NodeSnapshot { requests, ..NodeSnapshot::default() });
        let at = Duration::from_secs(at);
        let faults = if node.is_some() { Vec::new() } else { vec!["away".to_owned()] };
        Poll { snapshot: Snapshot { at, node, region: None }, faults }
    }

    #[test]
    fn the_last_data_is_kept_while_the_node_is_unreachable_and_no_rate_is_invented_afterwards() {
        let mut state = LiveState::default();
        for (at, requests) in [(0, Some(0)), (1, Some(100))] {
            state.take(poll(at, requests));
        }
        assert_eq!(state.report.pace(), Some(100.0));
        assert!(state.shown(None).age.is_none());
        state.take(poll(2, None));
        assert_eq!(state.report.pace(), Some(100.0), "the last known value");
        assert_eq!(state.shown(None).faults, ["away"]);
        assert!(state.shown(None).age.is_some());
        state.take(poll(3, Some(900)));
        assert_eq!(state.report.pace(), None, "the start of the interval is unknown");
        assert!(state.shown(None).age.is_none());
        assert_eq!(state.history, [100.0]);
    }

    #[test]
    fn a_pause_freezes_the_display_and_polling_continues() {
        let mut state = LiveState::default();
        state.take(poll(0, Some(0)));
        assert!(!state.execute(KeyCommand::Pause));
        state.take(poll(1, Some(100)));
        assert_eq!(state.report.pace(), None);
        assert!(!state.execute(KeyCommand::Pause));
        state.take(poll(2, Some(150)));
        assert_eq!((state.report.pace(), state.history.len()), (Some(50.0), 2));
        assert!(!state.execute(KeyCommand::Help) && state.has_help);
        assert!(!state.execute(KeyCommand::Sort) && state.order == NamespaceOrder::Records);
        assert!(state.execute(KeyCommand::End));
    }
}
