//! The side that follows: connects, applies, acknowledges, and connects again.

use std::fmt;
use std::io;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_store::{FollowPosition, FollowState, Follower, LogIdentity, Region, Session};
use nearstate_wire::{
    Acknowledgement, FrameReader, FrameWriter, Hello, Message, PositionMessage, Refusal,
    RefusalReason, Start, Welcome,
};
use tokio_rustls::rustls::Connection;

use super::client_tls::ClientTls;
use super::convert::{absent_of, id_bytes, identity_of, namespace_of, record_of, records_of};
use super::limits::{BEAT_INTERVAL, CONNECT_MAX, HELLO_MAX, RETRY_MAX, RETRY_MIN, SILENCE_MAX};
use super::stopwatch::Stopwatch;
use super::stream::PeerStream;

/// What to follow, and how.
pub struct FollowConfig<'c> {
    /// `host:port` of the source.
    pub source: &'c str,
    /// TLS, which the source must have if this is set.
    pub tls: Option<&'c ClientTls>,
    /// The name of this host in messages.
    pub name: &'c str,
    /// Discard what the region has followed before, and get all records again.
    pub discards: bool,
    /// Called for what happens, and about ten times a second with the progress.
    pub on_event: &'c mut dyn FnMut(&FollowEvent<'_>),
    /// Looked at about ten times a second: the follower ends when it returns true.
    pub is_over: &'c dyn Fn() -> bool,
}

impl fmt::Debug for FollowConfig<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FollowConfig").field("source", &self.source).finish_non_exhaustive()
    }
}

/// What happens to a follower.
#[derive(Clone, Debug)]
pub enum FollowEvent<'a> {
    /// It is connected.
    Connected {
        /// The name of the source.
        source: &'a str,
        /// True if it gets all records first.
        joins: bool,
    },
    /// It has everything up to this position.
    Joined {
        /// The position.
        position: u64,
    },
    /// The connection has ended. It connects again after a pause.
    Disconnected {
        /// The reason.
        reason: &'a str,
        /// The pause.
        retry: Duration,
    },
    /// How far it is.
    Progress(FollowProgress),
}

/// How far a follower is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FollowProgress {
    /// True while it gets all records.
    pub is_joining: bool,
    /// Records that were applied while it joined.
    pub records: u64,
    /// Transactions that were applied.
    pub entries: u64,
    /// The last position that was applied.
    pub position: u64,
    /// The end of the source's log, as it was told last.
    pub tail: u64,
}

/// Why a connection has ended.
enum Ended {
    /// The follower was told to end.
    Over,
    /// Another connection may succeed.
    Retry(String),
    /// No other connection will.
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        // Another process is in the way.
        let is_temporary =
            matches!(error, Error::Stalled { .. } | Error::Deadline { .. } | Error::Behind { .. });
        if is_temporary { Self::Retry(error.to_string()) } else { Self::Failed(error) }
    }
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Self::Retry(error.to_string())
    }
}

/// Follows until it is told to end.
///
/// # Errors
/// What another connection does not change: `BadArgument` (a refusal of the source, a region that
/// another process follows with, or that has records of its own), `Damaged` (the region is not a
/// copy of the source's), and failures of the region.
pub fn follow(region: &Region, config: &mut FollowConfig<'_>) -> Result<()> {
    let session = region.session()?;
    let heap_bytes = region.inspect()?.bytes_max;
    let mut follower = session.follow()?;
    let mut progress = FollowProgress::default();
    let mut retry = RETRY_MIN;
    while !(config.is_over)() {
        let mut connection = match connect(config) {
            Ok(stream) => FollowerConnection {
                link: stream,
                frames: FrameWriter::default(),
                received: FrameReader::default(),
                session: &session,
                heap_bytes,
                progress: &mut progress,
                heard: Stopwatch::start(),
                told: Stopwatch::start(),
            },
            Err(Ended::Failed(error)) => return Err(error),
            Err(Ended::Over) => return Ok(()),
            Err(Ended::Retry(reason)) => {
                pause(config, &reason, &mut retry);
                continue;
            }
        };
        let ended = connection.run(config, &mut follower);
        if connection.progress.entries + connection.progress.records > 0 {
            retry = RETRY_MIN;
        }
        match ended {
            Ended::Over => return Ok(()),
            Ended::Failed(error) => {
                connection.refuse(&error.to_string());
                return Err(error);
            }
            Ended::Retry(reason) => {
                connection.refuse(&reason);
                pause(config, &reason, &mut retry);
            }
        }
    }
    Ok(())
}

/// Reports the end of a connection, and waits before the next one.
fn pause(config: &mut FollowConfig<'_>, reason: &str, retry: &mut Duration) {
    (config.on_event)(&FollowEvent::Disconnected { reason, retry: *retry });
    let begin = Stopwatch::start();
    while begin.elapsed() < *retry && !(config.is_over)() {
        std::thread::park_timeout(BEAT_INTERVAL.min(*retry));
    }
    *retry = (*retry * 2).min(RETRY_MAX);
}

fn connect(config: &FollowConfig<'_>) -> std::result::Result<PeerStream, Ended> {
    let source = config.source;
    let Some((host, _)) = source.rsplit_once(':') else {
        let detail = format!("{source:?} is no address: give HOST:PORT");
        return Err(Ended::Failed(Error::BadArgument { detail }));
    };
    let addresses = source.to_socket_addrs();
    let mut last = format!("{source}: the name has no address");
    for address in addresses.map_err(|error| Ended::Retry(format!("{source}: {error}")))? {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(socket) => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let tls = config.tls.map(|tls| tls.connection(host)).transpose()?;
                return Ok(PeerStream::new(socket, tls.map(Connection::Client))?);
            }
            Err(error) => last = format!("{address}: {error}"),
        }
    }
    Err(Ended::Retry(last))
}

struct FollowerConnection<'f> {
    link: PeerStream,
    frames: FrameWriter,
    received: FrameReader,
    session: &'f Session,
    heap_bytes: u64,
    progress: &'f mut FollowProgress,
    heard: Stopwatch,
    /// When the progress was told.
    told: Stopwatch,
}

impl FollowerConnection<'_> {
    fn run(&mut self, config: &mut FollowConfig<'_>, follower: &mut Follower<'_>) -> Ended {
        match self.greet(config, follower).and_then(|()| self.apply_all(config, follower)) {
            Ok(never) => never,
            Err(ended) => ended,
        }
    }

    fn send(&mut self, message: &Message<'_>) -> std::result::Result<(), Ended> {
        let written = self.frames.write(message, self.link.output());
        written.map_err(|error| Ended::Retry(error.to_string()))
    }

    /// Tells the source why the connection ends.
    fn refuse(&mut self, text: &str) {
        let reason = RefusalReason::Failed;
        if self.send(&Message::Refusal(Refusal { reason, text })).is_ok() {
            self.link.finish(HELLO_MAX / 4);
        }
    }

    /// Sends the hello, and takes the welcome.
    fn greet(
        &mut self,
        config: &mut FollowConfig<'_>,
        follower: &mut Follower<'_>,
    ) -> std::result::Result<(), Ended> {
        let following = self.session.following()?;
        let (of, applied) = match following {
            Some(following)
                if matches!(following.state, FollowState::Full | FollowState::Extending)
                    && !config.discards =>
            {
                (following.source, following.applied)
            }
            Some(_) | None => (LogIdentity::default(), FollowPosition::default()),
        };
        self.send(&Message::Hello(Hello {
            source_id: id_bytes(of),
            incarnation: of.incarnation,
            position: applied.position,
            check: applied.check,
            heap_bytes: self.heap_bytes,
            name: config.name,
        }))?;
        let begin = Stopwatch::start();
        loop {
            self.link.exchange(&mut self.received)?;
            match self.received.next().map_err(|error| Ended::Retry(error.to_string()))? {
                Some(Message::Welcome(Welcome { source_id, incarnation, start, name, .. })) => {
                    let source = identity_of(source_id, incarnation);
                    let joins = start == Start::Join;
                    let is_other = following
                        .is_some_and(|known| known.source.region != source.region)
                        && following.is_some_and(|known| known.source != LogIdentity::default());
                    if is_other && !config.discards {
                        let detail = format!(
                            "{name} serves another region than the one that this region follows: \
                             start the follower with --discard to follow that one instead"
                        );
                        return Err(Ended::Failed(Error::BadArgument { detail }));
                    }
                    if !joins && (applied.position == 0 || of != source) {
                        let reason = "the source continues a log that this region does not have";
                        return Err(Ended::Retry(reason.to_owned()));
                    }
                    (config.on_event)(&FollowEvent::Connected { source: name, joins });
                    follower.begin_connection();
                    if joins {
                        follower.begin(source)?;
                    }
                    config.discards = false;
                    *self.progress = FollowProgress {
                        is_joining: joins,
                        position: if joins { 0 } else { applied.position },
                        ..FollowProgress::default()
                    };
                    self.heard = Stopwatch::start();
                    return Ok(());
                }
                Some(Message::Refusal(refusal)) => return Err(refused(&refusal)),
                Some(_) => return Err(Ended::Retry("the source sent no welcome".to_owned())),
                None => {}
            }
            let left = HELLO_MAX.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(Ended::Retry("the source sent no welcome in time".to_owned()));
            }
            self.link.wait(left)?;
        }
    }

    /// Applies what arrives until the connection ends.
    fn apply_all(
        &mut self,
        config: &mut FollowConfig<'_>,
        follower: &mut Follower<'_>,
    ) -> std::result::Result<Ended, Ended> {
        loop {
            let mut has_received = self.link.exchange(&mut self.received)?;
            if has_received {
                while has_received && !(config.is_over)() {
                    self.heard = Stopwatch::start();
                    self.apply_received(config, follower)?;
                    // Sends the acknowledgement.
                    has_received = self.link.exchange(&mut self.received)?;
                    self.tell(config);
                }
            } else {
                if self.heard.elapsed() > SILENCE_MAX {
                    let reason = format!("the source is silent for {SILENCE_MAX:?}");
                    return Err(Ended::Retry(reason));
                }
                self.link.wait(BEAT_INTERVAL)?;
            }
            self.tell(config);
            if (config.is_over)() {
                return Ok(Ended::Over);
            }
        }
    }

    /// Tells the progress, ten times a second.
    fn tell(&mut self, config: &mut FollowConfig<'_>) {
        if self.told.elapsed() >= BEAT_INTERVAL {
            self.told = Stopwatch::start();
            (config.on_event)(&FollowEvent::Progress(*self.progress));
        }
    }

    /// Applies all messages that have arrived, and acknowledges the last position.
    fn apply_received(
        &mut self,
        config: &mut FollowConfig<'_>,
        follower: &mut Follower<'_>,
    ) -> std::result::Result<(), Ended> {
        let mut acknowledged = None;
        let mut stamp_of_last = 0;
        let progress = &mut *self.progress;
        loop {
            let next = self.received.next();
            let Some(message) = next.map_err(|error| Ended::Retry(error.to_string()))? else {
                break;
            };
            match message {
                Message::Namespace(message) => follower.namespace(&namespace_of(&message)?)?,
                Message::Removed { number } => follower.remove_namespace(number)?,
                Message::Record(message) => {
                    follower.apply_joining(&record_of(message))?;
                    progress.records += 1;
                    progress.is_joining = true;
                }
                Message::Absent(message) => {
                    follower.apply_joining(&absent_of(&message))?;
                    progress.is_joining = true;
                }
                Message::Joined { position, check } => {
                    follower.complete(FollowPosition { position, check })?;
                    progress.is_joining = false;
                    progress.position = position;
                    acknowledged = Some(position);
                    (config.on_event)(&FollowEvent::Joined { position });
                }
                Message::Entry(message) => {
                    let place = FollowPosition { position: message.position, check: message.check };
                    follower.apply(&records_of(message))?;
                    follower.set_position(place)?;
                    progress.entries += 1;
                    progress.position = place.position;
                    acknowledged = Some(place.position);
                }
                Message::Position(PositionMessage { position, tail, stamp, .. }) => {
                    progress.tail = tail;
                    progress.position = progress.position.max(position);
                    acknowledged = Some(acknowledged.unwrap_or(0).max(position));
                    stamp_of_last = stamp;
                }
                Message::Refusal(refusal) => return Err(refused(&refusal)),
                Message::Hello(_) | Message::Welcome(_) | Message::Acknowledge(_) => {
                    let text = "the source sent a message that only a follower sends";
                    return Err(Ended::Retry(text.to_owned()));
                }
            }
        }
        let Some(position) = acknowledged else { return Ok(()) };
        self.send(&Message::Acknowledge(Acknowledgement { position, stamp: stamp_of_last }))
    }
}

/// What follows from a refusal of the source.
fn refused(refusal: &Refusal<'_>) -> Ended {
    let text = format!("the source refuses ({}): {}", refusal.reason.name(), refusal.text);
    match refusal.reason {
        RefusalReason::Busy | RefusalReason::Failed => Ended::Retry(text),
        RefusalReason::Format
        | RefusalReason::Heap
        | RefusalReason::Fork
        | RefusalReason::Follower
        | RefusalReason::Itself => {
            let detail = format!("{text}: {}", refusal.reason.remedy());
            Ended::Failed(Error::BadArgument { detail })
        }
    }
}
