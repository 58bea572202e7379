//! A connection of a follower: the hello, what the follower needs, and the welcome or a refusal.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use nearstate_model::{Error, Result};
use nearstate_store::{FeedStart, FollowPosition, LogFeed, LogIdentity, Session, Takeover};
use nearstate_wire::{
    FrameReader, FrameWriter, Hello, Message, PartitionPlace, Refusal, RefusalReason,
    SettingsSummary, Start, Welcome,
};
use tokio_rustls::rustls::{Connection, ServerConnection};

use crate::tls::has_name;

use super::convert::{id_bytes, identity_of};
use super::events::PeerEvent;
use super::group::{CatchUp, PartitionGroup, PartitionInput};
use super::limits::{HELLO_MAX, LOOK_INTERVAL, MEMBER_LOOK_INTERVAL};
use super::served::{Listed, PeerRouter, PeerShared, Served};
use super::shipper::{FollowerOutput, ServedMember, Shipment};
use super::stopwatch::Stopwatch;
use super::stream::PeerStream;
use super::ungreeted::{DISPLACED, UngreetedPlace};

/// Starts the thread of a connection.
pub(super) fn serve(
    router: &Arc<PeerRouter>,
    socket: TcpStream,
    address: SocketAddr,
) -> io::Result<JoinHandle<()>> {
    let tls = match &router.tls {
        None => None,
        Some(tls) => {
            let config = tls.config();
            let connection = ServerConnection::new(config).map_err(io::Error::other)?;
            Some(Connection::Server(connection))
        }
    };
    let listed = socket.try_clone()?;
    let stream = PeerStream::new(socket, tls)?;
    let router = Arc::clone(router);
    let place = router.ungreeted.add((address, listed), router.ungreeted_limits());
    let run = move || {
        let mut connection = SourceConnection {
            router: &router,
            address,
            link: FollowerOutput { stream, frames: FrameWriter::default() },
            received: FrameReader::of_follower(),
            is_member: false,
            is_passing: false,
            has_said_nothing: false,
        };
        if let Err(reason) = connection.run(place)
            && !connection.has_said_nothing
        {
            let is_passing = connection.is_passing;
            (router.on_event)(&PeerEvent::Refused { address, reason: &reason, is_passing });
        }
    };
    std::thread::Builder::new().name("ns-follower".to_owned()).spawn(run)
}

/// What a follower has said.
struct Greeting {
    place: PartitionPlace,
    name: String,
    of: LogIdentity,
    applied: FollowPosition,
    heap_bytes: u64,
    settings: ([u8; 16], String),
}

impl Greeting {
    fn settings(&self) -> SettingsSummary<'_> {
        let (digest, text) = &self.settings;
        SettingsSummary { digest: *digest, text }
    }
}

/// What a follower gets.
struct Beginning<'s> {
    feed: LogFeed<'s>,
    start: Start,
    /// With [`Start::Switch`].
    catch_up: Option<Arc<CatchUp>>,
    own: LogIdentity,
    heap_bytes: u64,
}

/// Why a connection has ended before the welcome.
type Refused<T> = std::result::Result<T, String>;

struct SourceConnection<'s> {
    router: &'s PeerRouter,
    address: SocketAddr,
    link: FollowerOutput,
    received: FrameReader,
    /// The hello was that of a member of a group.
    is_member: bool,
    /// The refusal ends by itself.
    is_passing: bool,
    /// The other side has closed the connection before it sent anything, as a check whether the
    /// address answers does. It was not refused.
    has_said_nothing: bool,
}

impl SourceConnection<'_> {
    /// Sends a refusal, and ends the connection.
    fn refuse<T>(&mut self, reason: RefusalReason, text: &str) -> Refused<T> {
        self.is_passing = self.is_member && is_passing(reason);
        let _ = self.link.send(&Message::Refusal(Refusal { reason, text }));
        self.link.stream.finish(HELLO_MAX);
        Err(format!("{}: {text}", reason.name()))
    }

    fn run(&mut self, place: UngreetedPlace) -> Refused<()> {
        let greeted = self.greet(&place);
        if !place.leave() {
            self.has_said_nothing = false;
            return Err(DISPLACED.to_owned());
        }
        let (hello, shared) = greeted?;
        if shared.group.is_none() {
            // Namespaces that were created since the last look are in the log before the follower
            // joins. A failure is one of the region, which the session below reports.
            let _ = shared.declare();
        }
        let session = match shared.region.session() {
            Ok(session) => session,
            Err(error) => return self.refuse(RefusalReason::Failed, &error.to_string()),
        };
        // Listed first: the log forgets nothing of what the feed begins with.
        let served = Arc::new(Served::new(hello.name.clone(), self.address));
        if !shared.list(&served) {
            let reason = RefusalReason::Busy;
            return self.refuse(reason, reason.remedy());
        }
        let listed = Listed(&shared, Arc::clone(&served));
        let beginning = match begin(&shared, &session, &hello) {
            Ok(beginning) => beginning,
            Err((reason, text)) => {
                drop(listed);
                return self.refuse(reason, &text);
            }
        };
        // The view may have ended since the hello was admitted.
        if let Some(group) = &shared.group
            && group.served_view() != hello.place.view
        {
            drop(listed);
            let text = format!("this host serves view {} now", group.served_view());
            return self.refuse(RefusalReason::View, &text);
        }
        if beginning.start == Start::Continue {
            served.acknowledged.store(hello.applied.position, Ordering::Relaxed);
            served.is_joining.store(false, Ordering::Relaxed);
        }
        shared.has_returned(&hello.name);
        self.serve_follower(&shared, (&session, beginning), &hello, &served);
        drop(listed);
        Ok(())
    }

    /// Waits for a hello, and admits it.
    fn greet(&mut self, place: &UngreetedPlace) -> Refused<(Greeting, Arc<PeerShared>)> {
        let hello = self.hello()?;
        self.is_member = hello.place != PartitionPlace::default();
        let shared = match self.router.find(hello.place, hello.settings()) {
            Ok(shared) => shared,
            Err((reason, text)) => return self.refuse(reason, &text),
        };
        if let Err((reason, text)) = self.check_member(&shared, &hello.name, place) {
            return self.refuse(reason, &text);
        }
        Ok((hello, shared))
    }

    /// A member is a host of the cluster, as its certificate says if it has one, and has one
    /// connection: a repeated hello does not end the one on which it answers.
    fn check_member(
        &self,
        shared: &PeerShared,
        name: &str,
        place: &UngreetedPlace,
    ) -> std::result::Result<(), (RefusalReason, String)> {
        let Some(group) = &shared.group else { return Ok(()) };
        if !shared.config.members.contains(name) {
            let text = format!("host {name:?} is none of the cluster's file");
            return Err((RefusalReason::Cluster, text));
        }
        if let Some(names) = self.link.stream.certificate_names()
            && !has_name(&names, name)
        {
            let text = format!("the certificate of host {name:?} has other names: {names:?}");
            return Err((RefusalReason::Cluster, text));
        }
        let begin = Stopwatch::start();
        let silence_max = (group.lease / 2).min(HELLO_MAX / 2);
        let mut answers = None;
        while let Some(earlier) = shared.connection_of(name) {
            if place.is_displaced() {
                return Err((RefusalReason::Busy, DISPLACED.to_owned()));
            }
            let waited = begin.elapsed();
            if waited >= silence_max {
                earlier.is_replaced.store(true, Ordering::Relaxed);
                break;
            }
            // What was sent on a connection that has ended was read by then.
            if waited >= 2 * MEMBER_LOOK_INTERVAL {
                let present = earlier.answers.load(Ordering::Relaxed);
                if *answers.get_or_insert(present) != present {
                    let text = format!("host {name:?} is connected already, and answers there");
                    return Err((RefusalReason::Busy, text));
                }
            }
            std::thread::park_timeout(MEMBER_LOOK_INTERVAL);
        }
        Ok(())
    }

    /// Sends the welcome, then the log until the connection ends.
    fn serve_follower(
        &mut self,
        shared: &PeerShared,
        (session, mut beginning): (&Session, Beginning<'_>),
        hello: &Greeting,
        served: &Served,
    ) {
        let joins = beginning.start == Start::Join;
        let (name, view, applied) = (&hello.name, hello.place.view, hello.applied.position);
        // Stays 0 if it cannot be read: then the first step fails.
        served.tail.store(session.log_tail_position().unwrap_or(0), Ordering::Relaxed);
        let _ = self.link.send(&Message::Welcome(Welcome {
            place: hello.place,
            source_id: id_bytes(beginning.own),
            incarnation: beginning.own.incarnation,
            origin: beginning.own.origin,
            start: beginning.start,
            heap_bytes: beginning.heap_bytes,
            name: &shared.config.name,
        }));
        shared.emit(&PeerEvent::Connected { name, address: self.address, joins });
        let group = shared.group.as_deref();
        let tell =
            |input: PartitionInput| group.map_or((), |group: &PartitionGroup| group.tell(input));
        let connection = served.connection.load(Ordering::Relaxed);
        tell(PartitionInput::MemberConnected { host: name.clone(), view, connection });
        let mut shipment = Shipment {
            shared,
            member: group.map(|group| ServedMember { group, view, connection }),
            served,
            link: &mut self.link,
            received: &mut self.received,
            full_at: match (&beginning.catch_up, beginning.start) {
                (Some(catch_up), _) => catch_up.takeover.position,
                // It counts when it has taken something: the next entry may have no room.
                (None, Start::Continue) if served.tail.load(Ordering::Relaxed) > applied => {
                    applied + 1
                }
                (None, Start::Continue | Start::Join | Start::Switch) => 0,
            },
            continues: beginning.start == Start::Continue,
        };
        let caught_up = match &beginning.catch_up {
            Some(catch_up) => shipment.catch_up(catch_up, hello.applied.position),
            None => Ok(()),
        };
        let shipped = caught_up.and_then(|()| shipment.ship(session, &mut beginning.feed));
        if let Some(place) = beginning.feed.acknowledged_place() {
            shared.remember(name, beginning.own, place);
        }
        if let Err(error) = shipped {
            let reason = error.to_string();
            shared.emit(&PeerEvent::Left { name, reason: &reason });
            let host = name.clone();
            tell(PartitionInput::MemberLeft { host, view, connection, reason });
        }
    }

    /// Waits for the hello.
    fn hello(&mut self) -> Refused<Greeting> {
        let failed = |error: &dyn fmt::Display| error.to_string();
        let begin = Stopwatch::start();
        loop {
            if let Err(error) = self.link.stream.exchange(&mut self.received) {
                self.has_said_nothing = error.kind() == io::ErrorKind::UnexpectedEof
                    && self.received.buffered_bytes() == 0;
                return Err(failed(&error));
            }
            match self.received.next() {
                Ok(Some(Message::Hello(hello))) => {
                    let Hello { place, source_id, incarnation, origin, position, .. } = hello;
                    let check = hello.check;
                    let SettingsSummary { digest, text } = hello.settings;
                    return Ok(Greeting {
                        place,
                        name: hello.name.to_owned(),
                        of: identity_of(source_id, (incarnation, origin)),
                        applied: FollowPosition { position, check },
                        heap_bytes: hello.heap_bytes,
                        settings: (digest, text.to_owned()),
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
            if left.is_zero() || self.router.is_over() {
                return Err("it has not said hello in time".to_owned());
            }
            let waited = self.link.stream.wait(left.min(LOOK_INTERVAL));
            waited.map_err(|error| failed(&error))?;
        }
    }
}

/// Does a member get this answer while a group changes its owner, or a host starts?
const fn is_passing(reason: RefusalReason) -> bool {
    match reason {
        RefusalReason::Follower
        | RefusalReason::Busy
        | RefusalReason::View
        | RefusalReason::Promoting => true,
        RefusalReason::Format
        | RefusalReason::Heap
        | RefusalReason::Fork
        | RefusalReason::Failed
        | RefusalReason::Itself
        | RefusalReason::Cluster
        | RefusalReason::Settings => false,
    }
}

/// What a follower gets that has said this, or why it is refused.
fn begin<'s>(
    shared: &PeerShared,
    session: &'s Session,
    hello: &Greeting,
) -> std::result::Result<Beginning<'s>, (RefusalReason, String)> {
    let failed = |error: Error| (RefusalReason::Failed, error.to_string());
    if session.following().map_err(failed)?.is_some() {
        return Err((RefusalReason::Follower, "this host follows another one".to_owned()));
    }
    let heap_bytes = shared.region.bytes_max();
    // A member of a group follows whatever its size: regions are enlarged one host after the other,
    // and an owner that refuses the others has no lease. A copy that becomes full says so.
    if shared.group.is_none() && hello.heap_bytes < heap_bytes {
        let text = format!(
            "the follower's heap has {} bytes, and the source's {heap_bytes}",
            hello.heap_bytes
        );
        return Err((RefusalReason::Heap, text));
    }
    let own = session.log_identity().map_err(failed)?;
    if let Some(group) = &shared.group
        && let Some(catch_up) = catch_up_for(session, group, hello).map_err(failed)?
    {
        let place = FollowPosition { position: catch_up.takeover.position, check: 0 };
        let (feed, start) = session.log_feed(own, place).map_err(failed)?;
        // Otherwise the log has forgotten what is behind the switch.
        if start == FeedStart::Continues {
            let catch_up = Some(catch_up);
            return Ok(Beginning { feed, start: Start::Switch, catch_up, own, heap_bytes });
        }
    }
    let known = shared.remembered(&hello.name, own);
    let (feed, start) = match session.log_feed_behind(hello.of, hello.applied, known) {
        Ok(begun) => begun,
        Err(error @ Error::BadArgument { .. }) => {
            // It may be right: then the region is an older one of this host.
            if let Some(group) = shared.group.as_ref().filter(|_| hello.of == own) {
                let (host, view) = (hello.name.clone(), hello.place.view);
                group.tell(PartitionInput::MemberAhead { host, view });
            }
            return Err((RefusalReason::Fork, error.to_string()));
        }
        Err(error) => return Err(failed(error)),
    };
    let start = match start {
        FeedStart::Continues => Start::Continue,
        FeedStart::Joins => Start::Join,
    };
    Ok(Beginning { feed, start, catch_up: None, own, heap_bytes })
}

/// What brings a follower of the old log to this one, if it lacks nothing that this process has not
/// kept. One that has more than the seal joins: what is behind the seal is discarded.
fn catch_up_for(
    session: &Session,
    group: &PartitionGroup,
    hello: &Greeting,
) -> Result<Option<Arc<CatchUp>>> {
    let Some(takeover) = session.takeover()?.filter(|takeover| takeover.old == hello.of) else {
        return Ok(None);
    };
    let known = group.catch_up().filter(|known| known.takeover == takeover);
    let catch_up = match known {
        Some(known) => known,
        // The process was started since.
        None => Arc::new(new_catch_up(session, takeover)?),
    };
    let is_at_seal = hello.applied == takeover.seal && hello.applied.position != 0;
    let is_behind = hello.applied.position < takeover.seal.position;
    let is_covered = is_at_seal || is_behind && catch_up.kept.covers(hello.applied);
    Ok(is_covered.then_some(catch_up))
}

/// For a process that has kept nothing of the old log.
fn new_catch_up(session: &Session, takeover: Takeover) -> Result<CatchUp> {
    let numbers = session.taken_over_numbers()?;
    Ok(CatchUp { takeover, numbers, kept: super::kept::KeptLog::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::sync::{Mutex, PoisonError};

    /// The ports of connections that were refused.
    static REFUSED: Mutex<Vec<u16>> = Mutex::new(Vec::new());

    fn note_refused(event: &PeerEvent<'_>) {
        if let PeerEvent::Refused { address, .. } = event {
            REFUSED.lock().unwrap_or_else(PoisonError::into_inner).push(address.port());
        }
    }

    /// `nearstate cluster check` connects, and closes the connection. That is no event.
    #[test]
    fn a_connection_that_ends_before_it_says_anything_is_not_refused_and_others_are() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let router = Arc::new(PeerRouter::new(None, note_refused));
        for (said, is_refused) in [(&b""[..], false), (b"GET", true), (b"GET / HTTP/1.1\r\n", true)]
        {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            client.write_all(said).unwrap();
            drop(client);
            let (socket, address) = listener.accept().unwrap();
            serve(&router, socket, address).unwrap().join().unwrap();
            let refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
            assert_eq!(refused.contains(&address.port()), is_refused, "{said:?}");
        }
    }
}
