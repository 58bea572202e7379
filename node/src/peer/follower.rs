//! The side that follows: connects, applies, acknowledges, and connects again.

use std::fmt;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_store::{
    FollowPosition, FollowState, Follower, LogIdentity, Region, Session, StallHook,
};
use nearstate_wire::{
    Acknowledgement, FrameReader, FrameWriter, Hello, Message, PartitionPlace, Refusal,
    RefusalReason, Start,
};
use tokio_rustls::rustls::Connection;

use super::applier::{AppliedMessage, Applier, ConnectionProgress, Membership};
use super::client_tls::ClientTls;
use super::convert::{id_bytes, identity_of};
use super::ended::{Ended, refused};
use super::events::{FollowEvent, FollowProgress};
use super::follow_pace::FollowPace;
use super::group::PartitionInput;
use super::limits::{BEAT_INTERVAL, HELLO_MAX};
use super::stopwatch::Stopwatch;
use super::stream::PeerStream;
use super::whole_copy::{check_origin, is_whole};

const UNEXPECTED: &str = "the source sent a message that only a follower sends";

/// What to follow, and how.
pub struct FollowConfig<'c> {
    /// `host:port` of the source.
    pub source: &'c str,
    /// TLS, which the source must have if this is set.
    pub tls: Option<&'c ClientTls>,
    /// The name that the source's certificate must have. `None`: the host in its address.
    pub certificate_name: Option<&'c str>,
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

/// Follows until it is told to end.
///
/// # Errors
/// What another connection does not change: `BadArgument` (a refusal of the source, a region that
/// another process follows with, or that has records of its own), `Damaged` (the region is not a
/// copy of the source's), and failures of the region.
pub fn follow(region: &Region, config: &mut FollowConfig<'_>) -> Result<()> {
    follow_as(region, config, None, None)
}

/// Follows as a member of a group, if there is one. `on_stall` decides about waits for locks that
/// other processes of the host keep: those that collect expired records, watch, or make namespaces
/// of their own.
pub(crate) fn follow_as(
    region: &Region,
    config: &mut FollowConfig<'_>,
    membership: Option<Membership<'_>>,
    on_stall: Option<StallHook>,
) -> Result<()> {
    let session = region.session()?;
    session.set_stall_hook(on_stall);
    let heap_bytes = region.bytes_max();
    let mut follower = session.follow()?;
    let mut progress = FollowProgress::default();
    let pace = FollowPace::of(membership);
    let mut retry = pace.retry_min;
    while !(config.is_over)() {
        let mut connection = match connect(config, pace) {
            Ok(stream) => FollowerConnection {
                link: stream,
                frames: FrameWriter::default(),
                received: FrameReader::default(),
                session: &session,
                heap_bytes,
                progress: &mut progress,
                membership,
                pace,
                connection: ConnectionProgress::default(),
                heard: Stopwatch::start(),
                told: Stopwatch::start(),
            },
            Err(Ended::Failed(error) | Ended::Full(error)) => return Err(error),
            Err(Ended::Over) => return Ok(()),
            Err(Ended::Retry(reason)) => {
                pause(config, &reason, (pace, &mut retry));
                continue;
            }
        };
        let ended = connection.run(config, &mut follower);
        if connection.progress.entries + connection.progress.records > 0 {
            retry = pace.retry_min;
        }
        match ended {
            Ended::Over => return Ok(()),
            Ended::Failed(error) => {
                connection.refuse(&error.to_string());
                return Err(error);
            }
            Ended::Full(error) => {
                let reason = error.to_string();
                connection.refuse(&reason);
                if let Some(Membership { group, view }) = membership {
                    group.tell(PartitionInput::FollowFailed { view, reason: reason.clone() });
                }
                let mut retry = pace.retry_full;
                pause(config, &reason, (pace, &mut retry));
            }
            Ended::Retry(reason) => {
                connection.refuse(&reason);
                pause(config, &reason, (pace, &mut retry));
            }
        }
    }
    Ok(())
}

/// Reports the end of a connection, and waits before the next one.
fn pause(config: &mut FollowConfig<'_>, reason: &str, (pace, retry): (FollowPace, &mut Duration)) {
    (config.on_event)(&FollowEvent::Disconnected { reason, retry: *retry });
    let begin = Stopwatch::start();
    while begin.elapsed() < *retry && !(config.is_over)() {
        std::thread::park_timeout(pace.look.min(*retry));
    }
    *retry = (*retry * 2).min(pace.retry_max);
}

fn connect(config: &FollowConfig<'_>, pace: FollowPace) -> std::result::Result<PeerStream, Ended> {
    let source = config.source;
    let Some((host, _)) = source.rsplit_once(':') else {
        let detail = format!("{source:?} is no address: give HOST:PORT");
        return Err(Ended::Failed(Error::BadArgument { detail }));
    };
    let addresses = source.to_socket_addrs();
    let mut last = format!("{source}: the name has no address");
    for address in addresses.map_err(|error| Ended::Retry(format!("{source}: {error}")))? {
        match TcpStream::connect_timeout(&address, pace.connect_max) {
            Ok(socket) => {
                let host = host.trim_start_matches('[').trim_end_matches(']');
                let name = config.certificate_name.unwrap_or(host);
                let tls = config.tls.map(|tls| tls.connection(name)).transpose()?;
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
    membership: Option<Membership<'f>>,
    pace: FollowPace,
    connection: ConnectionProgress,
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
        let (place, membership) = (self.place(), self.membership);
        let (of, applied) = match self.session.following()? {
            Some(following)
                if matches!(following.state, FollowState::Full | FollowState::Extending)
                    && (!config.discards || is_whole(self.session, membership, &following)?) =>
            {
                (following.source, following.applied)
            }
            Some(_) | None => (LogIdentity::default(), FollowPosition::default()),
        };
        let settings = membership.map(|member| member.group.settings.summary()).unwrap_or_default();
        self.send(&Message::Hello(Hello {
            place,
            source_id: id_bytes(of),
            incarnation: of.incarnation,
            origin: of.origin,
            position: applied.position,
            check: applied.check,
            heap_bytes: self.heap_bytes,
            settings,
            name: config.name,
        }))?;
        let begin = Stopwatch::start();
        loop {
            self.link.exchange(&mut self.received)?;
            match self.received.next().map_err(|error| Ended::Retry(error.to_string()))? {
                Some(Message::Welcome(welcome)) => {
                    let answer = SourceAnswer {
                        place: welcome.place,
                        source: identity_of(
                            welcome.source_id,
                            (welcome.incarnation, welcome.origin),
                        ),
                        start: welcome.start,
                        name: welcome.name.to_owned(),
                    };
                    return self.begin(config, follower, (of, applied), &answer);
                }
                Some(Message::Refusal(refusal)) => {
                    if let Some(member) = self.membership
                        && refusal.reason == RefusalReason::Promoting
                        && let Ok(steps) = refusal.text.parse()
                    {
                        let view = member.view;
                        member.group.tell(PartitionInput::OwnerPromotes { view, steps });
                    }
                    return Err(refused(&refusal));
                }
                Some(_) => return Err(Ended::Retry("the source sent no welcome".to_owned())),
                None => {}
            }
            let left = HELLO_MAX.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(Ended::Retry("the source sent no welcome in time".to_owned()));
            }
            if (config.is_over)() {
                return Err(Ended::Over);
            }
            self.link.wait(left.min(self.pace.look))?;
        }
    }

    /// The place of the connection in the cluster.
    fn place(&self) -> PartitionPlace {
        self.membership
            .map_or_else(PartitionPlace::default, |member| member.group.place(member.view))
    }

    /// The source has welcomed a follower that has `applied` of the log `of`.
    fn begin(
        &mut self,
        config: &mut FollowConfig<'_>,
        follower: &mut Follower<'_>,
        (of, applied): (LogIdentity, FollowPosition),
        answer: &SourceAnswer,
    ) -> std::result::Result<(), Ended> {
        let SourceAnswer { source, start, ref name, .. } = *answer;
        if answer.place != self.place() {
            let reason = format!("{name} is of another view or cluster");
            return Err(Ended::Retry(reason));
        }
        let joins = start == Start::Join;
        // A group has one log after the other. Its view tells which one counts.
        let is_other = self.membership.is_none()
            && self.session.following()?.is_some_and(|known| {
                known.source.region != source.region && known.source != LogIdentity::default()
            });
        if is_other && !config.discards {
            let detail = format!(
                "{name} serves another region than the one that this region follows: start the \
                 follower with --discard to follow that one instead"
            );
            return Err(Ended::Failed(Error::BadArgument { detail }));
        }
        let is_known = match start {
            Start::Join => true,
            Start::Continue => applied.position != 0 && of == source,
            Start::Switch => applied.position != 0 && of != source && self.membership.is_some(),
        };
        if !is_known {
            let reason = "the source continues a log that this region does not have";
            return Err(Ended::Retry(reason.to_owned()));
        }
        {
            // A copy that was frozen is not touched: its host may have reported it (rule 5). The
            // view is stored before a copy is frozen, in the same turn, and a join then finds it.
            let _turn = self.membership.map(|member| member.group.turn_to_apply());
            self.check_view()?;
            if (config.is_over)() {
                return Err(Ended::Over);
            }
            if joins {
                check_origin(self.session, self.membership, source)?;
            }
            follower.begin_connection()?;
            if let Some(member) = self.membership {
                match start {
                    Start::Join => member.group.kept().clear(),
                    Start::Continue | Start::Switch => member.group.kept().continue_at(applied),
                }
            }
            if joins {
                follower.forget(source)?;
            }
        }
        (config.on_event)(&FollowEvent::Connected { source: name, joins });
        if joins {
            if self.membership.is_none() {
                // It may have been the owner's region of a group, which decides nothing any more.
                self.session.give_up_receipts()?;
            }
            follower.discard_all()?;
            if let Some(member) = self.membership {
                self.session.bind(member.group.cluster_id)?;
                self.session.begin_followed_namespaces()?;
            }
        } else if self.membership.is_some() {
            // Those that an earlier version of the node has left.
            self.session.follow_empty_namespaces()?;
        }
        config.discards = false;
        let position = if joins { 0 } else { applied.position };
        *self.progress =
            FollowProgress { is_joining: joins, position, ..FollowProgress::default() };
        self.connection = ConnectionProgress {
            is_catching_up: start == Start::Switch,
            full_since: if start == Start::Continue { applied.position } else { 0 },
            ..ConnectionProgress::default()
        };
        self.heard = Stopwatch::start();
        Ok(())
    }

    /// Applies what arrives until the connection ends.
    fn apply_all(
        &mut self,
        config: &mut FollowConfig<'_>,
        follower: &mut Follower<'_>,
    ) -> std::result::Result<Ended, Ended> {
        loop {
            // Also sends the acknowledgement of what was applied.
            if self.link.exchange(&mut self.received)? {
                self.heard = Stopwatch::start();
                self.apply_received(config, follower)?;
                if follower.is_indexing() {
                    // The acknowledgement is not kept waiting by what is indexed.
                    let has_more = self.link.exchange(&mut self.received)?;
                    follower.index_some()?;
                    if has_more {
                        self.heard = Stopwatch::start();
                        self.apply_received(config, follower)?;
                    }
                }
            } else {
                if self.heard.elapsed() > self.pace.silence_max {
                    let reason = format!("the source is silent for {:?}", self.pace.silence_max);
                    return Err(Ended::Retry(reason));
                }
                self.answer_late()?;
                // Messages are answered while the records of a namespace are indexed.
                let is_indexing = follower.index_some()?;
                self.link.wait(if is_indexing { Duration::ZERO } else { self.pace.look })?;
            }
            self.check_view()?;
            self.tell(config);
            if (config.is_over)() {
                return Ok(Ended::Over);
            }
        }
    }

    /// Ends the connection of a member whose host has seen a higher view.
    fn check_view(&self) -> std::result::Result<(), Ended> {
        match self.membership {
            Some(member) if self.session.view_seen()? > member.view => {
                Err(Ended::Retry("this host has seen a higher view".to_owned()))
            }
            Some(_) | None => Ok(()),
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
        let membership = self.membership;
        let turn = membership.map(|member| member.group.turn_to_apply());
        let mut applier = Applier {
            session: self.session,
            follower,
            progress: self.progress,
            connection: &mut self.connection,
            membership,
            kept: membership.map(|member| member.group.kept()),
        };
        let (mut acknowledged, mut joined, mut failed) = (None, None, None);
        while !membership.is_some_and(|member| member.group.is_freezing()) {
            // Nothing of a view lower than the highest one seen is applied.
            if let Some(view) = applier.higher_view()? {
                return Err(Ended::Retry(format!("this host has seen view {view}")));
            }
            let next = self.received.next_received();
            let Some(message) = next.map_err(|error| Ended::Retry(error.to_string()))? else {
                break;
            };
            let outcome = match applier.apply(message) {
                Ok(outcome) => outcome,
                // What was told and applied before it is answered.
                Err(error) if membership.is_some() => {
                    failed = Some(error);
                    break;
                }
                Err(error) => return Err(error.into()),
            };
            match outcome {
                AppliedMessage::Unacknowledged => {}
                AppliedMessage::UpTo(position) => acknowledged = acknowledged.max(Some(position)),
                AppliedMessage::Joined(position) => {
                    acknowledged = acknowledged.max(Some(position));
                    joined = Some(position);
                    (config.on_event)(&applier.progress.joined(position));
                }
                AppliedMessage::Refused(refusal) => return Err(refused(&refusal)),
                AppliedMessage::Scattered => {
                    config.discards = true;
                    let text = "a namespace that the copy was getting was removed: it joins anew";
                    return Err(Ended::Retry(text.to_owned()));
                }
                AppliedMessage::Unexpected => return Err(Ended::Retry(UNEXPECTED.to_owned())),
            }
        }
        // What is told may be carried out by this thread.
        drop((applier, turn));
        let told = self.connection.told.take();
        let mut stamp = told.map_or(0, |told| told.stamp);
        if let Some(member) = membership {
            if let Some(position) = joined {
                member.group.tell(PartitionInput::Joined { view: member.view, position });
            }
            if let Some(told) = told {
                let position = if self.progress.is_joining { 0 } else { self.progress.position };
                member.group.tell(PartitionInput::PositionReceived {
                    view: member.view,
                    stamp: told.stamp,
                    answered: told.answered,
                    is_leased: told.is_leased,
                    replicated: told.replicated,
                    applied: position,
                });
            }
            stamp = self.answerable();
        }
        if let Some(position) = acknowledged {
            self.acknowledge(position, stamp)?;
        }
        failed.map_or(Ok(()), |error| Err(self.grant_last(error)))
    }

    /// Answers what was told before the entry that was not applied, once the driver allows it.
    fn grant_last(&mut self, error: Error) -> Ended {
        let (begin, first) = (Stopwatch::start(), self.connection.first_stamp.unwrap_or(0));
        while self.connection.answered < first && begin.elapsed() < self.pace.retry_max {
            if let Err(ended) = self.answer_late() {
                return ended;
            }
            std::thread::park_timeout(self.pace.look.min(self.pace.retry_min));
        }
        if matches!(error, Error::Full { .. }) { Ended::Full(error) } else { error.into() }
    }

    /// The stamp that may be answered and was not, or 0.
    fn answerable(&self) -> u64 {
        let Some(member) = self.membership else { return 0 };
        // One of an earlier connection is not answered on this one.
        let first = self.connection.first_stamp.unwrap_or(u64::MAX);
        let is_open = |stamp: &u64| *stamp >= first && *stamp > self.connection.answered;
        member.group.answerable(member.view).filter(is_open).unwrap_or(0)
    }

    /// Answers a stamp that the driver has allowed since.
    fn answer_late(&mut self) -> std::result::Result<(), Ended> {
        match self.answerable() {
            0 => Ok(()),
            stamp => self.acknowledge(self.connection.acknowledged, stamp),
        }
    }

    fn acknowledge(&mut self, position: u64, stamp: u64) -> std::result::Result<(), Ended> {
        let position = self.connection.acknowledged.max(position);
        self.connection.acknowledged = position;
        self.connection.answered = self.connection.answered.max(stamp);
        self.send(&Message::Acknowledge(Acknowledgement { position, stamp }))
    }
}

/// The welcome of a source.
struct SourceAnswer {
    place: PartitionPlace,
    source: LogIdentity,
    start: Start,
    name: String,
}
