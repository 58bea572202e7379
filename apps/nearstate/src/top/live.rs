//! The picture in a terminal: looks in a thread of its own, draws, hears keys. The terminal is
//! given back as it was, however this ends: by a key, a signal, an error or a panic.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use nearstate_model::{Error, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::now;
use super::picture::{Order, Picture};
use super::screen::{Shown, draw};
use super::snapshot::Snapshot;
use super::source::{Look, Sources};

/// How long a key, a signal or a new look may wait to be seen.
const TICK: Duration = Duration::from_millis(50);

/// Intervals whose pace is kept: as many as a wide screen has columns.
const PACES_MAX: usize = 512;

/// The terminal, in the state that the picture needs. Dropped, it is as it was.
struct Screen(DefaultTerminal);

impl Screen {
    /// Takes the terminal. A panic gives it back before it says anything.
    fn take() -> Result<Self> {
        ratatui::try_init().map(Self).map_err(|e| {
            // It may have been half taken.
            let _ = ratatui::try_restore();
            failed("cannot draw in this terminal", &e)
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.show_cursor();
        // A terminal that is gone needs nothing any more.
        let _ = ratatui::try_restore();
    }
}

fn failed(what: &str, error: &std::io::Error) -> Error {
    Error::System {
        detail: format!("{what}; `--once` and `--json` need none"),
        errno: error.raw_os_error().unwrap_or_default(),
    }
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    End,
    Pause,
    Order,
    Help,
}

impl Wish {
    fn of(key: KeyEvent) -> Option<Self> {
        if key.kind == KeyEventKind::Release {
            return None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return (key.code == KeyCode::Char('c')).then_some(Self::End);
        }
        if key.code == KeyCode::Esc {
            return Some(Self::End);
        }
        match key.code.as_char()? {
            'q' => Some(Self::End),
            'p' | ' ' => Some(Self::Pause),
            's' => Some(Self::Order),
            '?' | 'h' => Some(Self::Help),
            _ => None,
        }
    }
}

/// What is shown, and what it is made of.
#[derive(Debug, Default)]
struct State {
    last: Option<Snapshot>,
    picture: Picture,
    paces: Vec<f64>,
    faults: Vec<String>,
    /// When everything was seen last.
    seen: Option<Instant>,
    order: Order,
    is_paused: bool,
    has_help: bool,
}

impl State {
    /// Takes a look in. What cannot be seen any more stays as it was.
    fn take(&mut self, look: Look) {
        let picture = Picture::between(self.last.as_ref(), &look.snapshot);
        self.paces.extend(picture.pace());
        let many = self.paces.len().saturating_sub(PACES_MAX);
        self.paces.drain(..many);
        if look.faults.is_empty() {
            self.seen = Some(Instant::now());
        }
        self.faults = look.faults;
        self.last = Some(look.snapshot);
        if self.is_paused {
            return;
        }
        self.picture = Picture {
            seconds: picture.seconds,
            node: picture.node.or(self.picture.node.take()),
            region: picture.region.or(self.picture.region.take()),
        };
        self.picture.order(self.order);
    }

    /// Does what a key asks for. True: the end.
    fn grant(&mut self, wish: Wish) -> bool {
        match wish {
            Wish::End => return true,
            Wish::Pause => self.is_paused = !self.is_paused,
            Wish::Order => {
                self.order = self.order.next();
                self.picture.order(self.order);
            }
            Wish::Help => self.has_help = !self.has_help,
        }
        false
    }

    fn shown(&self, address: Option<SocketAddr>) -> Shown<'_> {
        let age = self.seen.map(|seen| seen.elapsed()).filter(|_| !self.faults.is_empty());
        Shown {
            picture: &self.picture,
            paces: &self.paces,
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

/// Shows until a key or a signal ends it.
pub(super) fn run(mut sources: Sources, interval: Duration) -> Result<()> {
    let address = sources.node();
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&is_over))
            .map_err(|e| failed("cannot wait for signals", &e))?;
    }
    // One look waits at most: who draws slowly sees fewer, and none that is old.
    let (looked, looks) = sync_channel(1);
    let (stop, stopped) = sync_channel::<()>(0);
    let looking = std::thread::Builder::new()
        .name("near-top-look".to_owned())
        .spawn(move || look_on(&mut sources, interval, &looked, &stopped))
        .map_err(|e| failed("cannot begin a thread", &e))?;
    let outcome = Screen::take().and_then(|mut screen| {
        let outcome = show(&mut screen.0, &looks, &is_over, address);
        drop(screen);
        outcome
    });
    drop(looks);
    drop(stop);
    // A look may be under way; it is bounded, but nobody waits for it.
    drop(looking);
    outcome
}

fn look_on(
    sources: &mut Sources,
    interval: Duration,
    looked: &SyncSender<Look>,
    stopped: &Receiver<()>,
) {
    loop {
        let begun = Instant::now();
        if looked.send(sources.look()).is_err() {
            return;
        }
        match stopped.recv_timeout(interval.saturating_sub(begun.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn show(
    terminal: &mut DefaultTerminal,
    looks: &Receiver<Look>,
    is_over: &AtomicBool,
    address: Option<SocketAddr>,
) -> Result<()> {
    let mut state = State::default();
    let mut is_stale = true;
    while !is_over.load(Ordering::Relaxed) {
        match looks.try_recv() {
            Ok(look) => {
                state.take(look);
                is_stale = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => {
                let detail = "the thread that looks has ended: start anew".to_owned();
                return Err(Error::System { detail, errno: 0 });
            }
        }
        if is_stale {
            let shown = state.shown(address);
            terminal
                .draw(|frame| draw(frame, &shown))
                .map_err(|e| failed("cannot draw in this terminal", &e))?;
            is_stale = false;
        }
        let heard = read_input().map_err(|e| failed("cannot hear keys of this terminal", &e))?;
        match heard {
            Heard::Nothing => {}
            Heard::Wish(wish) if state.grant(wish) => return Ok(()),
            Heard::Wish(_) | Heard::Size => is_stale = true,
        }
    }
    Ok(())
}

/// What has come from the terminal.
enum Heard {
    Nothing,
    Size,
    Wish(Wish),
}

fn read_input() -> std::io::Result<Heard> {
    match event::poll(TICK) {
        Ok(false) => return Ok(Heard::Nothing),
        Ok(true) => {}
        // A signal: its flag is looked at next.
        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => return Ok(Heard::Nothing),
        Err(e) => return Err(e),
    }
    let event = event::read()?;
    if matches!(event, Event::Resize(..)) {
        return Ok(Heard::Size);
    }
    Ok(event.as_key_event().and_then(Wish::of).map_or(Heard::Nothing, Heard::Wish))
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::NodeSeen;
    use super::*;

    fn look(at: u64, requests: Option<u64>) -> Look {
        let node = requests.map(|requests| NodeSeen { requests, ..NodeSeen::default() });
        let at = Duration::from_secs(at);
        let faults = if node.is_some() { Vec::new() } else { vec!["away".to_owned()] };
        Look { snapshot: Snapshot { at, node, region: None }, faults }
    }

    fn key(code: KeyCode, modifiers: KeyModifiers) -> Option<Wish> {
        Wish::of(KeyEvent::new(code, modifiers))
    }

    #[test]
    fn keys_are_wishes() {
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Some(Wish::End));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(Wish::End));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), None);
        assert_eq!(key(KeyCode::Char('p'), KeyModifiers::CONTROL), None);
        assert_eq!(key(KeyCode::Char('?'), KeyModifiers::SHIFT), Some(Wish::Help));
        assert_eq!(key(KeyCode::Char('s'), KeyModifiers::NONE), Some(Wish::Order));
        assert_eq!(key(KeyCode::Char('p'), KeyModifiers::NONE), Some(Wish::Pause));
    }

    #[test]
    fn what_was_seen_last_stays_while_the_node_is_away_and_nothing_is_made_up_when_it_is_back() {
        let mut state = State::default();
        for (at, requests) in [(0, Some(0)), (1, Some(100))] {
            state.take(look(at, requests));
        }
        assert_eq!(state.picture.pace(), Some(100.0));
        assert!(state.shown(None).age.is_none());
        state.take(look(2, None));
        assert_eq!(state.picture.pace(), Some(100.0), "as it was seen last");
        assert_eq!(state.shown(None).faults, ["away"]);
        assert!(state.shown(None).age.is_some());
        state.take(look(3, Some(900)));
        assert_eq!(state.picture.pace(), None, "nobody has seen the interval's begin");
        assert!(state.shown(None).age.is_none());
        assert_eq!(state.paces, [100.0]);
    }

    #[test]
    fn a_pause_keeps_what_is_shown_and_goes_on_looking() {
        let mut state = State::default();
        state.take(look(0, Some(0)));
        assert!(!state.grant(Wish::Pause));
        state.take(look(1, Some(100)));
        assert_eq!(state.picture.pace(), None);
        assert!(!state.grant(Wish::Pause));
        state.take(look(2, Some(150)));
        assert_eq!((state.picture.pace(), state.paces.len()), (Some(50.0), 2));
        assert!(!state.grant(Wish::Help) && state.has_help);
        assert!(!state.grant(Wish::Order) && state.order == Order::Records);
        assert!(state.grant(Wish::End));
    }
}
