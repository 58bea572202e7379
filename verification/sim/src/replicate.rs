//! The data path: followers connect, owners send entries and positions, followers acknowledge.
//! Messages may be lost, repeated and reordered, so entries name their place.

use crate::event::{FollowerPosition, Message, SimulatedEvent};
use crate::options::Faults;
use crate::region::{Copy, SimulatedEntry};
use crate::world::{MS, PARTITION, World};
use nearstate_cluster::{
    ConnectionNumber, FollowerAcknowledgement, HostId, HostInput, OwnerMessage, Switch, ViewNumber,
};

/// Entries in one message.
const BATCH: usize = 64;

/// A follower that hears nothing connects again.
const SILENCE_MS: u64 = 250;

/// How long it waits for a welcome where a source may take its time.
const WELCOME_MS: u64 = 2_000;

impl World {
    pub(crate) fn tick(&mut self, host: HostId, generation: u64) {
        if self.node(host).generation != generation || self.node(host).process.is_none() {
            return;
        }
        let paused_until = self.node(host).paused_until;
        if paused_until > self.now {
            return self.queue.add(paused_until, SimulatedEvent::Tick(host, generation));
        }
        let next = self.now + self.random.u64(15 * MS..30 * MS);
        self.queue.add(next, SimulatedEvent::Tick(host, generation));
        self.say_written(host);
        self.step(host, HostInput::Tick);
        self.send_entries(host);
        self.say_hello(host);
    }

    fn say_written(&mut self, host: HostId) {
        let node = self.node(host);
        let Some(view) = node.process.as_ref().and_then(|process| process.watched) else { return };
        if node.region.copy == Copy::Owner {
            let (partition, position) = (PARTITION, node.region.position());
            self.step(host, HostInput::Written { partition, view, position });
        }
    }

    fn send_entries(&mut self, host: HostId) {
        let clock = self.clock(host);
        let node = self.node(host);
        let (Some(process), region) = (&node.process, &node.region) else { return };
        let Some(serve) = &process.serve else { return };
        if region.copy != Copy::Owner {
            return;
        }
        let is_leased = process.host.is_leased(PARTITION, clock);
        let mut messages = Vec::new();
        for (&follower, &(connection, length)) in &serve.followers {
            let rest = region.content.get(length..).unwrap_or_default();
            messages.push((
                follower,
                Message::Entries {
                    connection,
                    index: length,
                    entries: rest.iter().take(BATCH).copied().collect(),
                    base: region.base,
                    origin: region.origin,
                    log: region.log,
                },
            ));
            let answered = process.host.answered(PARTITION, follower);
            let message = OwnerMessage { view: serve.view, stamp: clock, answered, is_leased };
            messages.push((follower, Message::Position { connection, message }));
        }
        for (follower, message) in messages {
            self.send(host, follower, &message);
        }
    }

    fn say_hello(&mut self, host: HostId) {
        let (now, number) = (self.now, self.numbers + 1);
        let is_patient = self.options.faults == Faults::ForgetfulLogs;
        let node = self.node_mut(host);
        let Some(follow) = node.process.as_mut().and_then(|process| process.follow.as_mut()) else {
            return;
        };
        let limit = match (follow.is_connected, is_patient) {
            (true, _) => SILENCE_MS,
            (false, false) => SILENCE_MS / 4,
            (false, true) => WELCOME_MS,
        };
        if follow.connection != 0 && now < follow.heard_at + limit * MS {
            return;
        }
        (follow.connection, follow.is_connected, follow.heard_at) = (number, false, now);
        let discards = Self::must_discard(follow.start, node.region.copy);
        let region = &node.region;
        let (log, length, check) = (region.log, region.content.len(), region.check());
        let has = (!discards).then_some(FollowerPosition { log, length, check });
        let (owner, view) = (follow.owner, follow.view);
        self.numbers = number;
        self.send(host, owner, &Message::Hello { view, connection: number, has });
    }

    pub(crate) fn arrive(&mut self, from: HostId, to: HostId, message: Message) {
        let paused_until = self.node(to).paused_until;
        if paused_until > self.now {
            return self.queue.add(paused_until, SimulatedEvent::Arrive { from, to, message });
        }
        if self.node(to).process.is_none() {
            return;
        }
        match message {
            Message::Hello { view, connection, has } => {
                self.on_hello((from, to), (view, connection), has);
            }
            Message::Welcome { connection, discard, join_to } => {
                self.on_welcome(to, connection, (discard, join_to));
            }
            Message::Entries { connection, index, entries, base, origin, log } => {
                self.on_entries(to, connection, (index, &entries), (base, origin, log));
                self.acknowledge(to, connection);
            }
            Message::Position { connection, message } => {
                if self.hears(to, connection) {
                    self.step(to, HostInput::PositionReceived { partition: PARTITION, message });
                    self.acknowledge(to, connection);
                }
            }
            Message::Acknowledge { connection, view, length, position, stamp } => {
                self.on_acknowledge((from, to), (connection, view), length, (position, stamp));
            }
        }
    }

    fn on_hello(
        &mut self,
        (from, to): (HostId, HostId),
        (view, connection): (ViewNumber, ConnectionNumber),
        has: Option<FollowerPosition>,
    ) {
        let checks = !self.options.is_off(Switch::DiscardOutdated);
        let forgets = self.options.faults == Faults::ForgetfulLogs
            && !self.latest().full().contains(&from)
            && connection.is_multiple_of(2);
        let node = self.node_mut(to);
        let region = &node.region;
        let Some(serve) = node.process.as_mut().and_then(|process| process.serve.as_mut()) else {
            return;
        };
        let known = serve.followers.get(&from).map_or(0, |known| known.0);
        if serve.view != view || region.copy != Copy::Owner || known >= connection {
            return;
        }
        if has.is_some_and(|has| has.log == region.log && has.length > region.content.len()) {
            let (partition, host) = (PARTITION, from);
            return self.step(to, HostInput::OlderRegion { partition, host, view });
        }
        let kept_from = serve.kept_from;
        let is_prefix =
            |has: &FollowerPosition| region.check_at(has.length) == Some(has.check) || !checks;
        // Of the log before its own one the owner's process has what it has applied itself.
        let is_kept = |has: &FollowerPosition| {
            let is_old = region.taken_over.is_some_and(|(log, _, _)| log == has.log);
            let is_covered = kept_from.is_some_and(|from| from <= has.length);
            has.log == region.log || is_old && (has.length == region.base || is_covered)
        };
        let is_kept = |has: &FollowerPosition| is_kept(has) || !checks;
        let continues = |has: &FollowerPosition| is_prefix(has) && is_kept(has) && !forgets;
        let length = has.filter(continues).map(|has| has.length);
        let join_to = region.content.len();
        serve.followers.insert(from, (connection, length.unwrap_or(0)));
        let input = HostInput::Connected { partition: PARTITION, host: from, view, connection };
        self.step(to, input);
        let message = Message::Welcome { connection, discard: length.is_none(), join_to };
        if forgets {
            // Late, as that of a host that is busy.
            let delay = self.random.u64(MS..WELCOME_MS * MS);
            let event = SimulatedEvent::Arrive { from: to, to: from, message };
            return self.queue.add(self.now + delay, event);
        }
        self.send(to, from, &message);
    }

    fn on_welcome(
        &mut self,
        host: HostId,
        connection: ConnectionNumber,
        (discard, join_to): (bool, usize),
    ) {
        let now = self.now;
        let is_late_accepted = self.options.is_off(Switch::JoinOfView);
        let node = self.node_mut(host);
        let Some(process) = node.process.as_mut() else { return };
        match process.follow.as_mut() {
            Some(follow) if follow.connection == connection => {
                if follow.is_connected {
                    return;
                }
                (follow.is_connected, follow.join_to, follow.heard_at) = (true, join_to, now);
                let end = if discard { join_to } else { node.region.content.len() };
                if discard || process.kept_from.is_none() {
                    process.kept_from = Some(end);
                }
            }
            // Its view has ended.
            Some(_) | None => {
                if process.ending.take_if(|ending| *ending == connection).is_none()
                    || !is_late_accepted
                {
                    return;
                }
            }
        }
        if discard && node.region.copy != Copy::Owner {
            self.check_reported(host);
            self.check_gone(host, true);
            self.node_mut(host).region.discard(Copy::Joining);
            self.tell_facts(host);
        }
    }

    /// Is this the present connection of the follower?
    fn hears(&mut self, host: HostId, connection: ConnectionNumber) -> bool {
        let now = self.now;
        let process = self.node_mut(host).process.as_mut();
        let Some(follow) = process.and_then(|process| process.follow.as_mut()) else {
            return false;
        };
        let hears = follow.connection == connection && follow.is_connected;
        if hears {
            follow.heard_at = now;
        }
        hears
    }

    fn on_entries(
        &mut self,
        host: HostId,
        connection: ConnectionNumber,
        (index, entries): (usize, &[SimulatedEntry]),
        (base, origin, log): (usize, ViewNumber, u64),
    ) {
        if !self.hears(host, connection)
            || !matches!(self.node(host).region.copy, Copy::Follower | Copy::Joining)
        {
            return;
        }
        let node = self.node_mut(host);
        if let Some(follow) = node.process.as_mut().and_then(|process| process.follow.as_mut()) {
            follow.log = Some(log);
        }
        let join_to = node
            .process
            .as_ref()
            .and_then(|process| process.follow.as_ref())
            .map_or(0, |follow| follow.join_to);
        let region = &mut node.region;
        let before = (region.copy, region.log);
        let known = region.content.len().saturating_sub(index);
        for entry in entries.get(known..).unwrap_or_default() {
            if index <= region.content.len() {
                region.content.push(*entry);
            }
        }
        // Everything of older logs is there: what follows is of the owner's own log.
        if region.log != log && region.content.len() >= base && index <= region.content.len() {
            (region.log, region.origin, region.base) = (log, origin, base);
            if let Some(process) = &mut node.process {
                process.kept_from = process.kept_from.max(Some(base));
            }
        }
        if region.copy == Copy::Joining && region.content.len() >= join_to && region.log == log {
            region.copy = Copy::Follower;
        }
        if (region.copy, region.log) != before {
            self.tell_facts(host);
        }
    }

    fn acknowledge(&mut self, host: HostId, connection: ConnectionNumber) {
        if !self.hears(host, connection) {
            return;
        }
        let node = self.node(host);
        let Some(follow) = node.process.as_ref().and_then(|process| process.follow.as_ref()) else {
            return;
        };
        let region = &node.region;
        let is_switched = region.copy == Copy::Follower && region.origin <= follow.view;
        let position = (is_switched && Some(region.log) == follow.log).then(|| region.position());
        let (length, view, stamp) = (region.content.len(), follow.view, follow.stamp);
        let owner = follow.owner;
        self.send(host, owner, &Message::Acknowledge { connection, view, length, position, stamp });
    }

    fn on_acknowledge(
        &mut self,
        (host, to): (HostId, HostId),
        (connection, view): (ConnectionNumber, ViewNumber),
        length: usize,
        (position, stamp): (Option<u64>, nearstate_cluster::Monotonic),
    ) {
        let now = self.clock(to);
        let process = self.node_mut(to).process.as_mut();
        let mut serve = process.and_then(|process| process.serve.as_mut());
        if let (Some(serve), Some(position)) = (&mut serve, position)
            && serve.view == view
        {
            serve.heard.insert(host, (now, position));
        }
        if let Some(known) = serve.and_then(|serve| serve.followers.get_mut(&host))
            && known.0 == connection
        {
            known.1 = known.1.max(length);
        }
        let acknowledgement = FollowerAcknowledgement { host, view, connection, position, stamp };
        self.step(to, HostInput::Acknowledged { partition: PARTITION, acknowledgement });
    }
}
