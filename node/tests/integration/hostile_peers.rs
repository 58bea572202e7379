//! What may arrive at the port for other hosts: each of it is refused, is told for the log of the
//! host, and changes nothing. The members keep their connections, and commits are replicated.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::LazyLock;

use nearstate_node::{FollowerStats, SharedSettings};
use nearstate_store::{FollowPosition, LogIdentity, Schema, lease_clock};
use nearstate_wire::{
    Acknowledgement, FrameReader, FrameWriter, Hello, Message, PartitionPlace, PositionMessage,
    SettingsSummary,
};
use socket2::{Domain, Socket, Type};

use crate::partition::{CLUSTER, TestHost, WAIT_MAX, group, has_all, put, refusal, replicate};

/// The settings that the hosts share.
pub(crate) static SETTINGS: LazyLock<SharedSettings> = LazyLock::new(|| settings("400 ms"));

pub(crate) fn settings(lease: &str) -> SharedSettings {
    let lines = [("cluster.copies", "3"), ("cluster.lease", lease)];
    SharedSettings::new(lines.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec())
}

/// A process that is connected to the port.
pub(crate) struct Intruder {
    socket: TcpStream,
    frames: FrameWriter,
    received: FrameReader,
}

impl Intruder {
    pub(crate) fn connect(address: &str) -> Self {
        Self::accepted(TcpStream::connect(address).unwrap())
    }

    /// The other side has connected.
    pub(crate) fn accepted(socket: TcpStream) -> Self {
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        Self { socket, frames: FrameWriter::new(), received: FrameReader::new() }
    }

    pub(crate) fn send_bytes(&mut self, bytes: &[u8]) {
        // The other side may have closed the connection already.
        let _ = self.socket.write_all(bytes);
    }

    pub(crate) fn say(&mut self, hello: &Hello<'_>) {
        self.send(&Message::Hello(hello.clone()));
    }

    pub(crate) fn address(&self) -> String {
        self.socket.local_addr().unwrap().to_string()
    }

    pub(crate) fn send(&mut self, message: &Message<'_>) {
        let mut bytes = Vec::new();
        self.frames.write(message, &mut bytes).unwrap();
        self.send_bytes(&bytes);
    }

    /// Takes messages until `take` returns something; `None`: the connection has ended.
    pub(crate) fn receive<T>(
        &mut self,
        mut take: impl FnMut(&Message<'_>) -> Option<T>,
    ) -> Option<T> {
        let mut buffer = [0; 4096];
        loop {
            while let Some(message) = self.received.next().unwrap() {
                if let Some(taken) = take(&message) {
                    return Some(taken);
                }
            }
            match self.socket.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.received.push(&buffer[..count]),
            }
        }
    }

    /// True if it is admitted; false if it is refused, or its connection has ended.
    pub(crate) fn is_welcome(&mut self) -> bool {
        self.receive(|message| matches!(message, Message::Welcome(_)).then_some(())).is_some()
    }

    /// Is refused, which the host tells under this address.
    pub(crate) fn refused(mut self) -> String {
        let address = self.address();
        self.receive(|_| None::<()>);
        refusal(&address)
    }
}

/// A hello that is right, of a host in a view.
pub(crate) fn hello_of(
    log: LogIdentity,
    (name, view): (&str, u64),
    at: FollowPosition,
) -> Hello<'_> {
    let LogIdentity { region: [low, high], incarnation, origin } = log;
    Hello {
        place: PartitionPlace { cluster_id: CLUSTER, partition: 7, view },
        source_id: (u128::from(low) | u128::from(high) << 64).to_le_bytes(),
        incarnation,
        origin,
        position: at.position,
        check: at.check,
        heap_bytes: 1 << 40,
        settings: SETTINGS.summary(),
        name,
    }
}

fn hello<'h>(owner: &TestHost, name: &'h str, at: FollowPosition) -> Hello<'h> {
    hello_of(owner.partition.state().unwrap().own, (name, 1), at)
}

fn applied(member: &TestHost) -> FollowPosition {
    member.partition.state().unwrap().following.unwrap().applied
}

/// How often a member that answers may be taken for silent, on a busy machine.
pub(crate) const REPLACED_MAX: u32 = 20;

/// The connections of members.
fn connections(owner: &TestHost) -> Vec<String> {
    let of = |one: FollowerStats| format!("{} {}", one.name, one.address);
    let mut all: Vec<String> = owner.partition.members().into_iter().map(of).collect();
    all.sort();
    all
}

/// What an attack must not change.
fn words(host: &TestHost) -> String {
    format!("{:?}", host.partition.state().unwrap())
}

#[test]
fn what_is_no_hello_of_this_cluster_is_refused_and_changes_nothing() {
    let [mut owner, mut one, mut other] = group("unknown");
    replicate(1, &mut owner, &mut [&mut one, &mut other]);
    let before = (words(&owner), words(&one), connections(&owner));
    let right = hello(&owner, "unknown-d", FollowPosition::default());
    let place = right.place;
    let oversized = [u32::MAX.to_le_bytes(), [1, 0, 0, 0], [0; 4], [0; 4], [0; 4], [0; 4]].concat();
    let raw: [(&[u8], &str); 4] = [
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", "format"),
        (&[0xff; 4096], "format"),
        (&oversized, "format"),
        (&[0; 24], "format"),
    ];
    for host in [&owner, &one] {
        for (bytes, reason) in raw {
            let mut intruder = Intruder::connect(&host.address());
            intruder.send_bytes(bytes);
            let refused = intruder.refused();
            assert!(refused.starts_with(reason), "{refused}");
        }
        let mut intruder = Intruder::connect(&host.address());
        intruder.send(&Message::Acknowledge(Acknowledgement { position: 1 << 40, stamp: 1 << 60 }));
        assert!(intruder.refused().contains("the first message is no hello"));
    }
    let ahead = FollowPosition { position: 1 << 40, check: 1 };
    let forked = FollowPosition { position: applied(&one).position, check: 77 };
    let other_settings = settings("10 s");
    let of_other = Hello { settings: other_settings.summary(), ..right.clone() };
    let untold = SettingsSummary::default();
    let refusals: [(&str, Hello<'_>); 7] = [
        ("settings: cluster.lease is \"400 ms\" here and \"10 s\" there", of_other.clone()),
        // What it says of its view has no effect.
        ("settings", Hello { place: PartitionPlace { view: 9, ..place }, ..of_other }),
        ("settings", Hello { settings: untold, ..right.clone() }),
        ("view", Hello { place: PartitionPlace { view: 0, ..place }, ..right.clone() }),
        ("view", Hello { place: PartitionPlace { view: 2, ..place }, ..right.clone() }),
        ("cluster", Hello { name: "nearby", ..right.clone() }),
        ("fork", hello(&owner, "unknown-d", ahead)),
    ];
    for (reason, hello) in refusals {
        let mut intruder = Intruder::connect(&owner.address());
        intruder.send(&Message::Hello(hello.clone()));
        let refused = intruder.refused();
        assert!(refused.starts_with(reason), "{hello:?}: {refused}");
    }
    // The entry there has another check value, or the log has forgotten it.
    let mut intruder = Intruder::connect(&owner.address());
    intruder.send(&Message::Hello(hello(&owner, "unknown-d", forked)));
    let refused = intruder.refused();
    assert!(refused.starts_with("fork"), "{refused}");
    // A member serves no other host.
    let mut intruder = Intruder::connect(&one.address());
    intruder.send(&Message::Hello(right));
    assert!(intruder.refused().contains("does not own"));
    assert_eq!((words(&owner), words(&one), connections(&owner)), before);
    put(&owner.session(), 500..520);
    replicate(1, &mut owner, &mut [&mut one, &mut other]);
    assert_eq!(connections(&owner), before.2);
}

#[test]
fn a_repeated_hello_of_a_connected_member_is_refused() {
    let ([mut owner, mut one, mut other], mut replaced) = (group("repeated"), 0);
    let (before, refused) = loop {
        let before = connections(&owner);
        let mut intruder = Intruder::connect(&owner.address());
        intruder.send(&Message::Hello(hello(&owner, "repeated-b", applied(&one))));
        // The member's driver works meanwhile, so it answers.
        let address = intruder.address();
        let is_welcome = std::thread::scope(|scope| {
            let answer = scope.spawn(|| intruder.is_welcome());
            while !answer.is_finished() {
                for host in [&mut owner, &mut one, &mut other] {
                    host.take_inputs(1);
                }
            }
            answer.join().unwrap()
        });
        if !is_welcome {
            break (before, refusal(&address));
        }
        // A busy machine has stopped the member for half a lease. It connects again.
        replaced += 1;
        assert!(replaced < REPLACED_MAX, "the member is always replaced");
        drop(intruder);
        put(&owner.session(), 100..120);
        replicate(1, &mut owner, &mut [&mut one, &mut other]);
    };
    assert!(refused.contains("is connected already"), "{refused}");
    assert_eq!(connections(&owner), before);
    put(&owner.session(), 500..520);
    replicate(1, &mut owner, &mut [&mut one, &mut other]);
    assert_eq!(connections(&owner), before);
}

/// Connections of other hosts that never say anything.
struct SilentCrowd {
    address: SocketAddr,
    /// More than the owner keeps.
    held: VecDeque<TcpStream>,
    opened: usize,
}

impl SilentCrowd {
    /// Opens fifty more.
    fn grow(&mut self) {
        for _ in 0..50 {
            self.opened += 1;
            let last = u8::try_from(self.opened % 40).unwrap();
            let source = SocketAddr::from(([127, 0, 1, last + 1], 0));
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.bind(&source.into()).unwrap();
            socket.connect(&self.address.into()).unwrap();
            self.held.push_back(socket.into());
        }
        let surplus = self.held.len().saturating_sub(200);
        self.held.drain(..surplus);
    }
}

#[test]
fn a_member_returns_while_thousands_of_connections_are_silent() {
    let [mut owner, mut one, mut other] = group("crowd");
    let (held, address) = (VecDeque::new(), owner.listener.addresses()[0]);
    let mut crowd = SilentCrowd { address, held, opened: 0 };
    for round in 1..=4 {
        one.partition.stop_following();
        while crowd.opened < round * 500 {
            crowd.grow();
        }
        // None of the present ones has been silent for long.
        (0..2).for_each(|_| crowd.grow());
        let mut returning = Intruder::connect(&owner.address());
        returning.say(&hello(&owner, "crowd-d", FollowPosition::default()));
        let welcome =
            returning.receive(|message| matches!(message, Message::Welcome(_)).then_some(()));
        assert!(welcome.is_some(), "it is refused");
        put(&owner.session(), 500..520);
        one.follow(1, &owner, false);
        let end = lease_clock() + WAIT_MAX;
        while !has_all(&owner, &one) {
            assert!(lease_clock() < end, "the member is kept out");
            crowd.grow();
            for host in [&mut owner, &mut one, &mut other] {
                host.take_inputs(1);
            }
        }
    }
    replicate(1, &mut owner, &mut [&mut one, &mut other]);
}

#[test]
fn a_member_is_admitted_whose_address_has_many_silent_connections() {
    let [owner, ..] = group("shared");
    let silent: Vec<Intruder> = (0..32).map(|_| Intruder::connect(&owner.address())).collect();
    let mut member = Intruder::connect(&owner.address());
    member.say(&hello(&owner, "shared-d", FollowPosition::default()));
    let welcome = member.receive(|message| matches!(message, Message::Welcome(_)).then_some(()));
    assert!(welcome.is_some(), "it is refused");
    // The oldest ones have lost their places.
    for displaced in &silent[..20] {
        let reason = refusal(&displaced.address());
        assert!(reason.contains("too many connections have not said hello"), "{reason}");
    }
}

#[test]
fn a_member_that_is_silent_is_replaced_by_its_next_connection() {
    let [mut owner, mut one, other] = group("silent");
    // It is connected, and never answers, as one whose host is cut off.
    let mut silent = Intruder::connect(&owner.address());
    silent.send(&Message::Hello(hello(&owner, "silent-d", FollowPosition::default())));
    assert!(
        silent.receive(|message| matches!(message, Message::Welcome(_)).then_some(())).is_some()
    );
    let mut again = Intruder::connect(&owner.address());
    again.send(&Message::Hello(hello(&owner, "silent-d", FollowPosition::default())));
    assert!(
        again.receive(|message| matches!(message, Message::Welcome(_)).then_some(())).is_some()
    );
    assert_eq!(silent.receive(|_| None::<()>), None, "it is not ended");
    assert!(refusal("silent-d").contains("has connected again"));
    drop(other);
    put(&owner.session(), 500..520);
    replicate(1, &mut owner, &mut [&mut one]);
}

#[test]
fn a_member_that_answers_what_was_not_sent_counts_for_nothing() {
    let [mut owner, mut one, mut other] = group("liars");
    replicate(1, &mut owner, &mut [&mut one, &mut other]);
    let before = words(&owner);
    let position = PositionMessage {
        position: 1 << 40,
        check: 0,
        tail: 1 << 40,
        stamp: 1,
        replicated: 1 << 40,
        floor: 1 << 40,
        answered: 0,
        is_leased: true,
        clock_ms: 0,
    };
    let lies = [
        (
            "which was not sent",
            Message::Acknowledge(Acknowledgement { position: 1 << 40, stamp: 0 }),
        ),
        ("position message that was not sent", {
            Message::Acknowledge(Acknowledgement { position: 0, stamp: u64::MAX >> 1 })
        }),
        ("only a source sends", Message::Position(position)),
        ("only a source sends", {
            Message::Hello(hello(&owner, "liars-d", FollowPosition::default()))
        }),
    ];
    for (reason, lie) in lies {
        // It has an older incarnation of the log, so it gets all records first.
        let mut intruder = Intruder::connect(&owner.address());
        let of_older = hello(&owner, "liars-d", applied(&one));
        let incarnation = of_older.incarnation - 1;
        intruder.send(&Message::Hello(Hello { incarnation, ..of_older }));
        let joins = intruder.receive(|message| {
            let Message::Welcome(welcome) = message else { return None };
            Some(welcome.start == nearstate_wire::Start::Join)
        });
        assert_eq!(joins, Some(true));
        intruder.send(&lie);
        intruder.receive(|_| None::<()>);
        let ended = refusal("liars-d");
        assert!(ended.contains(reason), "{ended} and not {reason}");
        assert_eq!(words(&owner), before);
    }
    owner.take_inputs(1);
    assert!(!owner.acknowledged.contains_key("liars-d"), "{:?}", owner.acknowledged);
    put(&owner.session(), 500..520);
    replicate(1, &mut owner, &mut [&mut one, &mut other]);
}

#[test]
fn a_member_that_is_slower_than_the_log_is_told_to_join_again() {
    let [mut owner, mut one, mut other] = group("slow");
    let mut slow = Intruder::connect(&owner.address());
    slow.send(&Message::Hello(hello(&owner, "slow-d", FollowPosition::default())));
    let has_joined =
        slow.receive(|message| matches!(message, Message::Joined { .. }).then_some(()));
    assert!(has_joined.is_some());
    // It takes nothing more, and the log does not wait for it.
    let session = owner.session();
    let large = session.namespace("large", &Schema::default()).unwrap();
    for _ in 0..16 {
        for number in 0..100_u64 {
            session
                .put(large, &number.to_le_bytes(), &number.to_le_bytes().repeat(2 << 10))
                .unwrap();
        }
        replicate(1, &mut owner, &mut [&mut one, &mut other]);
        owner.partition.raise_floor(session.log_tail_position().unwrap());
    }
    let refusal = slow.receive(|message| {
        let Message::Refusal(refusal) = message else { return None };
        Some(refusal.text.to_owned())
    });
    assert!(refusal.unwrap().contains("has lost entries"));
    owner.take_inputs(1);
    assert!(owner.behind.contains("slow-d"), "its driver is not told");
    // The others have everything.
    put(&session, 500..520);
    replicate(1, &mut owner, &mut [&mut one, &mut other]);
}

/// A slow network or member. The lease rests on the stamps, so they are sent meanwhile as well.
#[test]
fn a_member_that_takes_nothing_for_a_while_gets_the_stamps_of_that_time() {
    let [mut owner, mut one, mut other] = group("slow");
    // More than the kernel and the owner keep for a connection.
    let session = owner.session();
    for key in 1000_u64..1400 {
        let ue = session.namespace("ue", &Schema::default()).unwrap();
        session.put(ue, &key.to_le_bytes(), &vec![7; 64 << 10]).unwrap();
        if key % 20 == 0 {
            replicate(1, &mut owner, &mut [&mut one, &mut other]);
        }
    }
    let mut slow = Intruder::connect(&owner.address());
    slow.say(&hello(&owner, "slow-d", FollowPosition::default()));
    // Time in which its output is full: thirty intervals of position messages.
    let now = || u64::try_from(lease_clock().as_nanos()).unwrap();
    let full_since = now() + 1_000_000_000;
    while now() < full_since + 3_000_000_000 {
        owner.take_inputs(1);
    }
    let until = now();
    let mut stamps = Vec::new();
    slow.receive(|message| {
        let Message::Position(position) = message else { return None };
        stamps.push(position.stamp);
        (position.stamp > until).then_some(())
    })
    .unwrap();
    let of_then = stamps.iter().filter(|stamp| (full_since..until).contains(stamp));
    assert!(of_then.count() > 0, "{full_since} to {until}: {stamps:?}");
}
