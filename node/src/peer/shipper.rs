//! One follower that is served: the log, until the connection ends.

use std::io;
use std::sync::atomic::Ordering;

use nearstate_model::{Error, Result};
use nearstate_store::{FeedItem, FeedSink, FeedStep, LogFeed, OwnerLease, Session, now_ms_coarse};
use nearstate_wire::{
    FrameReader, FrameWriter, Message, PositionMessage, Refusal, RefusalReason, SwitchMessage,
};
use rustix::thread::set_current_timer_slack;

use super::convert::{id_bytes, send_item};
use super::events::PeerEvent;
use super::group::{CatchUp, PartitionGroup, PartitionInput};
use super::limits::{
    CLOCK_LAG_MAX, FLIGHT_SLEEP_MIN, FLOOR_STEP, GATHER_BYTES_MAX, HELLO_MAX, LOOK_INTERVAL,
    LOOK_SLACK_NS, LOOK_SLEEP_MAX, LOOK_SLEEP_MIN, OUTPUT_BYTES_MAX, QUIET_MAX, SPIN_MAX,
};
use super::served::{PeerShared, Served, lease_ns};
use super::ship_pace::ShipPace;
use super::stopwatch::Stopwatch;
use super::stream::PeerStream;

/// Where messages are sent.
pub(super) struct FollowerOutput {
    pub(super) stream: PeerStream,
    pub(super) frames: FrameWriter,
}

impl FollowerOutput {
    pub(super) fn send(&mut self, message: &Message<'_>) -> Result<()> {
        let written = self.frames.write(message, self.stream.output());
        written.map_err(|error| Error::BadArgument { detail: error.to_string() })
    }
}

impl FeedSink for FollowerOutput {
    fn send(&mut self, item: FeedItem<'_>) -> Result<()> {
        send_item(item, now_ms_coarse, &mut |message| Self::send(self, message))
    }

    fn is_full(&self) -> bool {
        self.stream.unsent() >= OUTPUT_BYTES_MAX
    }
}

/// A member of a group that is served.
#[derive(Clone, Copy)]
pub(super) struct ServedMember<'s> {
    pub(super) group: &'s PartitionGroup,
    pub(super) view: u64,
    /// The number of the connection.
    pub(super) connection: u64,
}

/// A connection whose follower was admitted.
pub(super) struct Shipment<'s> {
    pub(super) shared: &'s PeerShared,
    pub(super) member: Option<ServedMember<'s>>,
    pub(super) served: &'s Served,
    pub(super) link: &'s mut FollowerOutput,
    pub(super) received: &'s mut FrameReader,
    /// A follower that joins or switches has everything when it has acknowledged this position.
    pub(super) full_at: u64,
    /// The follower continues: it has everything up to its position.
    pub(super) continues: bool,
}

/// Why a follower ends the connection.
fn refused_by(refusal: &Refusal<'_>) -> String {
    format!("{}: {}", refusal.reason.name(), refusal.text)
}

type Shipped<T> = std::result::Result<T, Box<dyn std::error::Error>>;

impl Shipment<'_> {
    /// Sends the log until the connection ends or the node stops.
    pub(super) fn ship(&mut self, session: &Session, feed: &mut LogFeed<'_>) -> Shipped<()> {
        let mut pace = ShipPace::new(self.member.map(|member| member.group.lease / 4));
        // With the default of 50 us each sleep is longer than it may be. A kernel that refuses
        // delays the first commit after a pause, no more.
        let _ = set_current_timer_slack(LOOK_SLACK_NS);
        let mut step = FeedStep::More;
        if self.member.is_some() && self.continues {
            // Before the first entry, for which the member may have no room: it grants a lease all
            // the same.
            self.beat(session, &mut pace, 0)?;
        }
        while !self.shared.is_over() {
            self.check_view()?;
            pace.cpu = session.tell_source_cpu(pace.cpu)?;
            // A follower that declares tags is silent for long. One whose host is gone does not
            // acknowledge the beats: the kernel ends the connection.
            if self.gathers(session, &mut pace)?
                && (step == FeedStep::More || self.gather(session, &mut pace)?)
            {
                // More was committed. It leaves with what is gathered.
            } else if self.exchange(&mut pace)? {
                self.take_arrived(session, feed, &mut pace)?;
            } else if step != FeedStep::More && self.rest(session, &mut pace)? {
                continue;
            }
            if self.link.is_full() {
                // The lease rests on stamps also while the follower takes the log slowly.
                if self.member.is_some() && pace.beat.elapsed() >= pace.interval {
                    self.beat(session, &mut pace, 0)?;
                }
                self.link.stream.wait(LOOK_INTERVAL.min(pace.interval))?;
                continue;
            }
            let before = self.link.stream.unsent();
            let was_joining = feed.is_joining();
            step = feed.step(pace.looks(), self.link)?;
            pace.note_read(feed.sent_position());
            self.served.sent.store(feed.sent_position(), Ordering::Relaxed);
            self.served.is_joining.store(feed.is_joining(), Ordering::Relaxed);
            if was_joining && !feed.is_joining() {
                // The first position is that of a namespace.
                self.full_at = feed.last_position().max(1);
                let position = session.log_tail_position()?;
                self.shared.emit(&PeerEvent::Joined { name: &self.served.name, position });
            }
            match step {
                FeedStep::Lost => {
                    if let Some(ServedMember { group, view, connection }) = self.member {
                        let host = self.served.name.clone();
                        group.tell(PartitionInput::MemberBehind { host, view, connection });
                    }
                    let text = "the log has lost entries before they were sent";
                    return self.refuse(RefusalReason::Failed, text);
                }
                // The follower acknowledges an entry by itself.
                FeedStep::Idle { position }
                    if pace.is_due(position, feed.last_position())
                        || pace.owes_answer && self.counted_answer(&pace) != 0 =>
                {
                    self.beat(session, &mut pace, position)?;
                }
                FeedStep::Idle { .. } | FeedStep::More => {}
            }
            // A walk over empty buckets sends nothing. The follower acknowledges nothing by it.
            let is_late = step == FeedStep::More && pace.beat.elapsed() >= pace.interval;
            if is_late || self.floor() >= pace.floor + FLOOR_STEP {
                self.beat(session, &mut pace, 0)?;
            }
            if self.shared.config.keeps {
                if self.member.is_some() {
                    self.shared.release_to_members(session, None)?;
                } else {
                    let (position, counted) = self.shared.releasable(feed.sent_position());
                    session.release_to(position, counted)?;
                }
            }
            if self.link.stream.unsent() > before {
                pace.note_written(feed.last_position());
            }
        }
        Ok(())
    }

    /// Sends what the follower lacks of the old log, and that it follows this one from here on.
    pub(super) fn catch_up(&mut self, catch_up: &CatchUp, behind: u64) -> Shipped<()> {
        if behind != catch_up.takeover.seal.position {
            for kept in catch_up.kept.behind(behind) {
                self.link.send(&kept.message()?)?;
                while self.link.is_full() {
                    self.check_view()?;
                    if self.shared.is_over() {
                        return Ok(());
                    }
                    self.link.stream.wait(LOOK_INTERVAL)?;
                    self.link.stream.exchange(self.received)?;
                    // The follower acknowledges nothing of the old log.
                    match self.received.next()? {
                        None => {}
                        Some(Message::Refusal(refusal)) => return Err(refused_by(&refusal).into()),
                        Some(_) => return Err("it answers before it was sent a log".into()),
                    }
                }
            }
        }
        let own = catch_up.takeover.own;
        self.link.send(&Message::Switch(SwitchMessage {
            source_id: id_bytes(own),
            incarnation: own.incarnation,
            origin: own.origin,
            position: catch_up.takeover.position,
            check: 0,
            numbers: catch_up.numbers.clone(),
        }))?;
        Ok(())
    }

    /// Ends the connection if the host is in another view than it, or another one replaces it.
    fn check_view(&mut self) -> Shipped<()> {
        if self.served.is_replaced.load(Ordering::Relaxed) {
            return Err("its host has connected again".into());
        }
        match self.member {
            Some(member) if member.group.served_view() != member.view => {
                let text = format!("this host serves view {} now", member.group.served_view());
                self.refuse(RefusalReason::View, &text)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Sends a refusal, and ends the connection.
    fn refuse(&mut self, reason: RefusalReason, text: &str) -> Shipped<()> {
        self.link.send(&Message::Refusal(Refusal { reason, text }))?;
        self.link.stream.finish(HELLO_MAX);
        Err(text.into())
    }

    /// Everything was sent, and nothing has arrived. Waits before the next look at the log; the
    /// longer that lasts, the longer. A message from the follower ends it: then this is true.
    fn rest(&self, session: &Session, pace: &mut ShipPace) -> Shipped<bool> {
        let idle = pace.active.elapsed();
        if self.is_in_flight(pace) {
            let pause = (idle / 8).clamp(FLIGHT_SLEEP_MIN, LOOK_SLEEP_MAX);
            return Ok(self.link.stream.wait(pause)?);
        }
        // Nothing is outstanding, so only a load tells of something to do.
        while pace.expects_wait() && pace.active.elapsed() < SPIN_MAX {
            if (session.is_replication_awaited()? || pace.looks_at_tail())
                && session.log_tail_position()? > pace.read
            {
                return Ok(false);
            }
            std::hint::spin_loop();
        }
        let pause = (idle / 8).clamp(LOOK_SLEEP_MIN, LOOK_SLEEP_MAX);
        if !pace.expects_answer() && session.sleep_until_awaited(pause)? {
            return Ok(false);
        }
        Ok(self.link.stream.wait(pause)?)
    }

    /// Sends what was written, and takes what has arrived. True if something has.
    fn exchange(&mut self, pace: &mut ShipPace) -> io::Result<bool> {
        if pace.gathering.take().is_some() {
            pace.active = Stopwatch::start();
        }
        pace.sent = pace.written;
        self.link.stream.exchange(self.received)
    }

    /// True if the follower has not acknowledged every entry that was sent.
    fn is_in_flight(&self, pace: &ShipPace) -> bool {
        pace.sent > self.served.acknowledged.load(Ordering::Relaxed)
    }

    /// True while entries that were written may be joined by more before they are sent.
    fn gathers(&self, session: &Session, pace: &mut ShipPace) -> Result<bool> {
        let is_awaited = session.is_replication_awaited()?;
        pace.note_wait(is_awaited);
        Ok(pace.gathers(self.link.stream.unsent(), self.is_in_flight(pace), is_awaited))
    }

    /// Waits while entries gather. True if more was committed; false if they are to be sent, or
    /// something has arrived.
    fn gather(&self, session: &Session, pace: &mut ShipPace) -> Shipped<bool> {
        while self.gathers(session, pace)? {
            let spins = pace.expects_wait() && pace.read_at.elapsed() < QUIET_MAX;
            if spins && !pace.looks_at_tail() {
                std::hint::spin_loop();
                continue;
            }
            if !spins
                && (pace.expects_answer() || !session.sleep_until_awaited(LOOK_SLEEP_MIN)?)
                && self.link.stream.wait_for_input(LOOK_SLEEP_MIN)?
            {
                break;
            }
            if session.log_tail_position()? > pace.read {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Tells the follower how far the log is.
    fn beat(&mut self, session: &Session, pace: &mut ShipPace, position: u64) -> Result<()> {
        pace.told = Some(position);
        pace.beat = Stopwatch::start();
        pace.owes_answer = false;
        pace.stamp = match self.member {
            None => pace.stamp + 1,
            Some(_) => lease_ns().max(pace.stamp + 1),
        };
        let (tail, replicated) = (session.log_tail_position()?, session.replicated_position()?);
        pace.floor = self.floor();
        self.link.send(&Message::Position(PositionMessage {
            position,
            check: 0,
            tail,
            stamp: pace.stamp,
            replicated,
            floor: match self.member {
                Some(_) => pace.floor,
                None => self.shared.releasable(replicated).0,
            },
            answered: self.counted_answer(pace),
            is_leased: matches!(session.owner_lease()?, OwnerLease::Held { .. }),
            clock_ms: self.told_clock_ms(session, pace)?,
        }))
    }

    /// The clock of expiry, or 0 while what is to be sent delays the message.
    fn told_clock_ms(&self, session: &Session, pace: &ShipPace) -> Result<u64> {
        let lag = pace.read.saturating_sub(self.served.acknowledged.load(Ordering::Relaxed));
        let is_late = self.link.stream.unsent() > GATHER_BYTES_MAX || lag > CLOCK_LAG_MAX;
        if is_late { Ok(0) } else { session.now_ms() }
    }

    /// What the follower has answered. The driver keeps the lease: what it does not count, or if it
    /// does not work, this owner does not hear.
    fn counted_answer(&self, pace: &ShipPace) -> u64 {
        let Some(ServedMember { group, .. }) = self.member else { return pace.answered };
        pace.answered.min(group.counted(&self.served.name)).min(group.worked_at())
    }

    /// What a member is told that all members have; 0 outside a group.
    fn floor(&self) -> u64 {
        self.member.map_or(0, |_| self.shared.counted_floor())
    }

    /// Takes what has arrived, and wakes what waits for it.
    fn take_arrived(
        &mut self,
        session: &Session,
        feed: &mut LogFeed<'_>,
        pace: &mut ShipPace,
    ) -> Shipped<()> {
        // The acknowledgement ends the wait for it, and with it the mark of others that wait for
        // what was committed meanwhile.
        if session.is_replication_awaited()? {
            pace.awaited = session.log_tail_position()?;
            pace.note_wait(true);
        }
        self.take_acknowledgements(session, feed, pace)?;
        // Behind the call that wakes what waits for the acknowledgement.
        pace.active = Stopwatch::start();
        Ok(())
    }

    fn take_acknowledgements(
        &mut self,
        session: &Session,
        feed: &mut LogFeed<'_>,
        pace: &mut ShipPace,
    ) -> Shipped<()> {
        let (mut position, mut stamp, mut refused) = (None, 0, None);
        loop {
            match self.received.next()? {
                None => break,
                Some(Message::Acknowledge(acknowledgement)) => {
                    position = position.max(Some(acknowledgement.position));
                    stamp = stamp.max(acknowledgement.stamp);
                }
                Some(Message::Refusal(refusal)) => {
                    // What it has acknowledged before counts.
                    refused = Some(refused_by(&refusal));
                    break;
                }
                Some(_) => return Err("it has sent a message that only a source sends".into()),
            }
        }
        if let Some(position) = position {
            let before = self.served.acknowledged.load(Ordering::Relaxed);
            self.take_acknowledged(session, feed, pace, (position, stamp))?;
            if position > before {
                pace.note_acknowledged();
            }
        }
        refused.map_or(Ok(()), |text| Err(text.into()))
    }

    fn take_acknowledged(
        &mut self,
        session: &Session,
        feed: &mut LogFeed<'_>,
        pace: &mut ShipPace,
        (position, stamp): (u64, u64),
    ) -> Shipped<()> {
        if self.member.is_some() {
            feed.note_acknowledged(position)?;
            self.served.set_place(feed.acknowledged_place());
        } else {
            feed.acknowledged(position)?;
        }
        self.served.answers.fetch_add(1, Ordering::Relaxed);
        self.served.acknowledged.fetch_max(position, Ordering::Relaxed);
        self.served.tail.store(session.log_tail_position()?, Ordering::Relaxed);
        self.served.acknowledged_ms.store(now_ms_coarse(), Ordering::Relaxed);
        self.served.acknowledged_ns.store(lease_ns(), Ordering::Relaxed);
        // Neither the answer to a message that was not sent extends a lease, nor one to another
        // connection.
        if stamp > pace.stamp {
            return Err("it has answered a position message that was not sent".into());
        }
        pace.owes_answer |= pace.answered == 0 && stamp != 0;
        pace.answered = pace.answered.max(stamp);
        if let Some(ServedMember { group, view, connection }) = self.member {
            let host = self.served.name.clone();
            let position = self.served.acknowledged.load(Ordering::Relaxed);
            let position = Some(position).filter(|at| !feed.is_joining() && *at >= self.full_at);
            group.tell(PartitionInput::MemberAcknowledged {
                host,
                view,
                connection,
                position,
                stamp,
            });
        }
        Ok(())
    }
}
