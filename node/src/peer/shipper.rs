//! One follower that is served: hello, then the log until the connection ends.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use nearstate_model::{Error, Result};
use nearstate_store::{
    FeedItem, FeedSink, FeedStart, FeedStep, FollowPosition, LogFeed, LogIdentity, Region, Session,
    now_ms_coarse,
};
use nearstate_wire::{
    FrameReader, FrameWriter, Hello, Message, PositionMessage, Refusal, RefusalReason, Start,
    Welcome,
};
use tokio_rustls::rustls::{Connection, ServerConnection};

use super::convert::{id_bytes, identity_of, send_item};
use super::events::{PeerConfig, PeerEvent};
use super::limits::{
    BEAT_INTERVAL, HELLO_MAX, LEFT_MAX, LOOK_INTERVAL, LOOK_SLEEP_MAX, LOOK_SLEEP_MIN,
    OUTPUT_BYTES_MAX, SPIN_MAX,
};
use super::stopwatch::Stopwatch;
use super::stream::PeerStream;

/// What the threads of a source share.
#[derive(Debug)]
pub(super) struct PeerShared {
    pub(super) config: PeerConfig,
    pub(super) region: Region,
    pub(super) is_over: AtomicBool,
    /// Connections that have not said hello.
    pub(super) ungreeted: AtomicUsize,
    pub(super) followers: Mutex<Vec<Arc<Served>>>,
    /// Followers that have left, for a log that keeps entries: name, last position, and when.
    pub(super) left: Mutex<Vec<(String, u64, Stopwatch)>>,
}

/// Counts a connection until it has said hello, or has ended.
struct Ungreeted<'s>(&'s PeerShared);

impl<'s> Ungreeted<'s> {
    fn new(shared: &'s PeerShared) -> Self {
        shared.ungreeted.fetch_add(1, Ordering::AcqRel);
        Self(shared)
    }
}

impl Drop for Ungreeted<'_> {
    fn drop(&mut self) {
        self.0.ungreeted.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Lists a follower as long as it is served.
struct Listed<'s>(&'s PeerShared, Arc<Served>);

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let Self(shared, served) = self;
        shared.followers().retain(|one| !Arc::ptr_eq(one, served));
        if shared.config.keeps && !served.is_joining.load(Ordering::Relaxed) {
            let position = served.acknowledged.load(Ordering::Relaxed);
            shared.left().push((served.name.clone(), position, Stopwatch::start()));
        }
    }
}

/// A follower that is served.
#[derive(Debug)]
pub(super) struct Served {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    pub(super) is_joining: AtomicBool,
    pub(super) acknowledged: AtomicU64,
    pub(super) tail: AtomicU64,
    pub(super) acknowledged_ms: AtomicU64,
}

impl PeerShared {
    pub(super) fn followers(&self) -> MutexGuard<'_, Vec<Arc<Served>>> {
        self.followers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn left(&self) -> MutexGuard<'_, Vec<(String, u64, Stopwatch)>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The position up to which no follower needs the log: of those that are served and full, and
    /// of those that have left lately. A follower that joins needs only what it was not sent:
    /// `own`, if there are no others.
    fn releasable(&self, own: u64) -> u64 {
        let mut left = self.left();
        left.retain(|(_, _, since)| since.elapsed() < LEFT_MAX);
        let full = |one: &Arc<Served>| {
            let is_full = !one.is_joining.load(Ordering::Relaxed);
            is_full.then(|| one.acknowledged.load(Ordering::Relaxed))
        };
        let positions = left.iter().map(|(_, position, _)| *position);
        let least = self.followers().iter().filter_map(full).chain(positions).min();
        least.map_or(own, |least| least.min(own))
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    pub(super) fn emit(&self, event: &PeerEvent<'_>) {
        (self.config.on_event)(event);
    }
}

/// Starts the thread of a connection.
pub(super) fn serve(
    shared: &Arc<PeerShared>,
    socket: TcpStream,
    address: SocketAddr,
) -> io::Result<JoinHandle<()>> {
    let tls = match &shared.config.tls {
        None => None,
        Some(tls) => {
            let config = tls.config();
            let connection = ServerConnection::new(config).map_err(io::Error::other)?;
            Some(Connection::Server(connection))
        }
    };
    let stream = PeerStream::new(socket, tls)?;
    let shared = Arc::clone(shared);
    let run = move || {
        let mut connection = SourceConnection {
            shared: &shared,
            address,
            link: FollowerOutput { stream, frames: FrameWriter::default() },
            received: FrameReader::of_follower(),
        };
        let ended = connection.run();
        if let Err(Ended { name, reason }) = ended {
            match name {
                Some(name) => shared.emit(&PeerEvent::Left { name: &name, reason: &reason }),
                None => shared.emit(&PeerEvent::Refused { address, reason: &reason }),
            }
        }
    };
    std::thread::Builder::new().name("ns-follower".to_owned()).spawn(run)
}

/// Why a connection has ended, and the name of the follower if it said hello.
struct Ended {
    name: Option<String>,
    reason: String,
}

impl Ended {
    fn before_hello(reason: impl fmt::Display) -> Self {
        Self { name: None, reason: reason.to_string() }
    }
}

/// Where messages are sent.
struct FollowerOutput {
    stream: PeerStream,
    frames: FrameWriter,
}

impl FollowerOutput {
    fn send(&mut self, message: &Message<'_>) -> Result<()> {
        let written = self.frames.write(message, self.stream.output());
        written.map_err(|error| Error::BadArgument { detail: error.to_string() })
    }
}

impl FeedSink for FollowerOutput {
    fn send(&mut self, item: FeedItem<'_>) -> Result<()> {
        send_item(item, now_ms_coarse(), &mut |message| Self::send(self, message))
    }

    fn is_full(&self) -> bool {
        self.stream.unsent() >= OUTPUT_BYTES_MAX
    }
}

/// What a follower has said.
struct Greeting {
    name: String,
    of: LogIdentity,
    applied: FollowPosition,
    heap_bytes: u64,
}

struct SourceConnection<'s> {
    shared: &'s PeerShared,
    address: SocketAddr,
    link: FollowerOutput,
    received: FrameReader,
}

impl SourceConnection<'_> {
    /// Sends a refusal, and ends the connection.
    fn refuse<T>(&mut self, reason: RefusalReason, text: &str) -> std::result::Result<T, Ended> {
        let _ = self.link.send(&Message::Refusal(Refusal { reason, text }));
        self.link.stream.finish(HELLO_MAX);
        Err(Ended::before_hello(format_args!("{}: {text}", reason.name())))
    }

    fn run(&mut self) -> std::result::Result<(), Ended> {
        let hello = {
            let _counted = Ungreeted::new(self.shared);
            self.hello()?
        };
        let region = &self.shared.region;
        let opened = region.session().and_then(|session| {
            let heap_bytes = region.inspect()?.bytes_max;
            let identity = session.log_identity()?;
            let is_follower = session.following()?.is_some();
            Ok((session, heap_bytes, identity, is_follower))
        });
        let (session, heap_bytes, identity, is_follower) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.refuse(RefusalReason::Failed, &error.to_string()),
        };
        if is_follower {
            let text = "this host follows another one";
            return self.refuse(RefusalReason::Follower, text);
        }
        if hello.heap_bytes < heap_bytes {
            let text = format!(
                "the follower's heap has {} bytes, and the source's {heap_bytes}",
                hello.heap_bytes
            );
            return self.refuse(RefusalReason::Heap, &text);
        }
        let (mut feed, start) = match session.log_feed(hello.of, hello.applied) {
            Ok(started) => started,
            Err(error @ Error::BadArgument { .. }) => {
                return self.refuse(RefusalReason::Fork, &error.to_string());
            }
            Err(error) => return self.refuse(RefusalReason::Failed, &error.to_string()),
        };
        let joins = start == FeedStart::Joins;
        let welcome = Welcome {
            source_id: id_bytes(identity),
            incarnation: identity.incarnation,
            start: if joins { Start::Join } else { Start::Continue },
            heap_bytes,
            name: &self.shared.config.name,
        };
        let served = Arc::new(Served {
            name: hello.name.clone(),
            address: self.address,
            is_joining: AtomicBool::new(joins),
            acknowledged: AtomicU64::new(if joins { 0 } else { hello.applied.position }),
            tail: AtomicU64::new(0),
            acknowledged_ms: AtomicU64::new(now_ms_coarse()),
        });
        {
            let mut followers = self.shared.followers();
            if followers.len() >= self.shared.config.followers_max {
                drop(followers);
                let reason = RefusalReason::Busy;
                return self.refuse(reason, reason.remedy());
            }
            followers.push(Arc::clone(&served));
        }
        self.shared.left().retain(|(name, _, _)| *name != hello.name);
        let _listed = Listed(self.shared, Arc::clone(&served));
        let _ = self.link.send(&Message::Welcome(welcome));
        let name = &hello.name;
        self.shared.emit(&PeerEvent::Connected { name, address: self.address, joins });
        let ended = self.ship(&session, &mut feed, &served);
        match ended {
            Ok(()) => Ok(()),
            Err(error) => Err(Ended { name: Some(hello.name), reason: error.to_string() }),
        }
    }

    /// Waits for the hello.
    fn hello(&mut self) -> std::result::Result<Greeting, Ended> {
        let begin = Stopwatch::start();
        loop {
            self.link.stream.exchange(&mut self.received).map_err(Ended::before_hello)?;
            match self.received.next() {
                Ok(Some(Message::Hello(Hello {
                    source_id,
                    incarnation,
                    position,
                    check,
                    heap_bytes,
                    name,
                }))) => {
                    return Ok(Greeting {
                        name: name.to_owned(),
                        of: identity_of(source_id, incarnation),
                        applied: FollowPosition { position, check },
                        heap_bytes,
                    });
                }
                Ok(Some(_)) => {
                    let text = "the first message is no hello";
                    return self.refuse(RefusalReason::Failed, text);
                }
                Ok(None) => {}
                Err(error) => {
                    let text = error.to_string();
                    return self.refuse(RefusalReason::Format, &text);
                }
            }
            let left = HELLO_MAX.saturating_sub(begin.elapsed());
            if left.is_zero() || self.shared.is_over() {
                return Err(Ended::before_hello("it has not said hello in time"));
            }
            let waited = self.link.stream.wait(left.min(LOOK_INTERVAL));
            waited.map_err(Ended::before_hello)?;
        }
    }

    /// Sends the log until the connection ends or the node stops.
    fn ship(
        &mut self,
        session: &Session,
        feed: &mut LogFeed<'_>,
        served: &Served,
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let mut pace = Pace::new();
        while !self.shared.is_over() {
            // A follower that declares tags is silent for long. One whose host is gone does not
            // acknowledge the beats: the kernel ends the connection.
            let has_received = self.link.stream.exchange(&mut self.received)?;
            if has_received {
                self.take_acknowledgements(session, feed, served)?;
            }
            if self.link.is_full() {
                self.link.stream.wait(LOOK_INTERVAL)?;
                continue;
            }
            let before = self.link.stream.unsent();
            let was_joining = feed.is_joining();
            let step = feed.step(pace.looks(), &mut self.link)?;
            served.is_joining.store(feed.is_joining(), Ordering::Relaxed);
            if was_joining && !feed.is_joining() {
                let position = session.log_tail_position()?;
                self.shared.emit(&PeerEvent::Joined { name: &served.name, position });
            }
            match step {
                FeedStep::More => {}
                FeedStep::Lost => {
                    let text = "the log has lost entries before they were sent";
                    let reason = RefusalReason::Failed;
                    self.link.send(&Message::Refusal(Refusal { reason, text }))?;
                    self.link.stream.finish(HELLO_MAX);
                    return Err(text.into());
                }
                FeedStep::Idle { position } => self.beat(session, &mut pace, position)?,
            }
            if step == FeedStep::More && pace.beat.elapsed() >= BEAT_INTERVAL {
                // A walk over empty buckets sends nothing. The follower acknowledges nothing by it.
                self.beat(session, &mut pace, 0)?;
            }
            if self.shared.config.keeps {
                session.release_to(self.shared.releasable(feed.sent_position()))?;
            }
            if self.link.stream.unsent() > before {
                pace.sent = Stopwatch::start();
            } else if !has_received && step != FeedStep::More {
                self.rest(&pace)?;
            }
        }
        Ok(())
    }

    /// Nothing was sent or received. The longer that lasts, the longer is the next sleep, which a
    /// message from the follower ends.
    fn rest(&self, pace: &Pace) -> io::Result<()> {
        let idle = pace.sent.elapsed();
        if idle < SPIN_MAX {
            std::thread::yield_now();
            return Ok(());
        }
        self.link.stream.wait((idle / 8).clamp(LOOK_SLEEP_MIN, LOOK_SLEEP_MAX))
    }

    /// Tells the follower how far the log is, if that has changed or some time has passed.
    fn beat(&mut self, session: &Session, pace: &mut Pace, position: u64) -> Result<()> {
        if position == pace.told && pace.beat.elapsed() < BEAT_INTERVAL {
            return Ok(());
        }
        pace.told = position;
        pace.beat = Stopwatch::start();
        pace.stamp += 1;
        let tail = session.log_tail_position()?;
        let stamp = pace.stamp;
        self.link.send(&Message::Position(PositionMessage { position, check: 0, tail, stamp }))
    }

    fn take_acknowledgements(
        &mut self,
        session: &Session,
        feed: &mut LogFeed<'_>,
        served: &Served,
    ) -> std::result::Result<(), Box<dyn std::error::Error>> {
        let mut last = None;
        loop {
            match self.received.next()? {
                None => break,
                Some(Message::Acknowledge(acknowledgement)) => last = Some(acknowledgement),
                Some(Message::Refusal(refusal)) => {
                    return Err(format!("{}: {}", refusal.reason.name(), refusal.text).into());
                }
                Some(_) => return Err("it has sent a message that only a source sends".into()),
            }
        }
        if let Some(acknowledgement) = last {
            feed.acknowledged(acknowledgement.position)?;
            served.acknowledged.store(acknowledgement.position, Ordering::Relaxed);
            served.tail.store(session.log_tail_position()?, Ordering::Relaxed);
            served.acknowledged_ms.store(now_ms_coarse(), Ordering::Relaxed);
        }
        Ok(())
    }
}

/// When a source looks, sends and sleeps.
struct Pace {
    looked: Option<Stopwatch>,
    sent: Stopwatch,
    beat: Stopwatch,
    told: u64,
    stamp: u64,
}

impl Pace {
    fn new() -> Self {
        let now = Stopwatch::start();
        Self { looked: None, sent: now, beat: now, told: u64::MAX, stamp: 0 }
    }

    /// True if it is time to look at the catalog.
    fn looks(&mut self) -> bool {
        if self.looked.is_some_and(|looked| looked.elapsed() < LOOK_INTERVAL) {
            return false;
        }
        self.looked = Some(Stopwatch::start());
        true
    }
}
