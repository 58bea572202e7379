//! Requests from other members.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use nearstate_model::Error;
use nearstate_node::{VoteChange, has_name};
use openraft::error::RaftError;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio::time::timeout;

use crate::limits::{
    ACCEPT_QUEUE_MAX, CONNECTIONS_MAX, HELLO_BYTES_MAX, HELLO_MAX, IDLE_MAX, MESSAGE_BYTES_MAX,
    UNGREETED,
};

use super::config::MembershipConfig;
use super::connection::{MemberStream, MemberTls};
use super::heard::HeardHosts;
use super::message::{FORMAT, MemberHello, MemberReply, MemberRequest, receive, send};
use super::places::{ConnectionPlaces, HostPlace, HostPlaces};
use super::reporter::Reporter;
use super::storage::LogStore;
use super::types::{CommandBytes, Raft, TypeConfig};
use super::voters::{VoteOutcome, change_vote_here};

/// Why a connection of a host has ended.
const DISPLACED: &str = "its host has more connections, of which this one was used longest ago";

/// The openraft of this host, and its log.
#[derive(Clone)]
pub(crate) struct LocalRaft {
    pub(crate) raft: Raft,
    pub(crate) store: LogStore,
    /// Held while this host, the leader, changes a vote.
    pub(crate) vote_changes: Arc<Mutex<()>>,
}

/// What requests are carried out with.
#[derive(Clone)]
pub(crate) struct MemberService {
    pub(crate) config: Arc<MembershipConfig>,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) heard: Arc<HeardHosts>,
    /// Without openraft, only reports are answered.
    pub(crate) raft: Option<LocalRaft>,
}

/// Accepts connections until it is dropped.
pub(crate) async fn serve(listener: TcpListener, service: MemberService) {
    let config = Arc::clone(&service.config);
    let hosts = Arc::<HostPlaces>::default();
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let places = ConnectionPlaces::new(UNGREETED);
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((socket, address)) = listener.accept().await else {
            // No descriptor is left, most likely.
            tokio::time::sleep(config.heartbeat()).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        let displaced = places.add(address, |number| {
            let (service, permits) = (service.clone(), Arc::clone(&permits));
            let (places, hosts) = (Arc::clone(&places), Arc::clone(&hosts));
            connections.spawn(async move {
                let greeted = timeout(HELLO_MAX, greet(socket, &service.config)).await;
                if !places.leave(number) {
                    return;
                }
                let is_late = |_| io::Error::other("no hello in time");
                let done = match greeted.map_err(is_late).flatten() {
                    Ok(member) => {
                        let place = hosts.enter(member.1);
                        let done = converse(member, &permits, &service, &place);
                        tokio::select! {
                            done = done => done,
                            () = place.displaced() => Err(io::Error::other(DISPLACED)),
                        }
                    }
                    Err(error) => Err(error),
                };
                if let Err(error) = done
                    && error.kind() != io::ErrorKind::UnexpectedEof
                {
                    (service.config.on_refused)(address, &error.to_string());
                }
            })
        });
        if let Some(displaced) = displaced {
            (config.on_refused)(displaced, "too many connections have not said hello");
        }
        // Its task reads what has arrived before a further connection can take its place. Openraft
        // also gives up a request after a heartbeat, and connects again: while this loop goes on
        // without a pause, its connections are those of the address that has most.
        tokio::task::yield_now().await;
    }
}

/// A member that has said hello.
async fn converse(
    (mut stream, from): (Box<dyn MemberStream>, u64),
    permits: &Semaphore,
    service: &MemberService,
    place: &HostPlace,
) -> io::Result<()> {
    let Ok(_permit) = permits.try_acquire() else {
        return Err(io::Error::other("too many connections"));
    };
    loop {
        let request =
            timeout(IDLE_MAX, receive::<MemberRequest, _>(&mut stream, MESSAGE_BYTES_MAX));
        // An idle connection ends as if the other side had closed it.
        let Ok(request) = request.await else { return Ok(()) };
        let request = request?;
        place.note_use();
        service.heard.note_message(from);
        request.check(from).map_err(io::Error::other)?;
        send(&mut stream, &answer(service, request).await).await?;
    }
}

/// The connection of a member that has said who it is.
async fn greet(
    socket: TcpStream,
    config: &MembershipConfig,
) -> io::Result<(Box<dyn MemberStream>, u64)> {
    let (mut stream, names) = MemberTls::accept(config.tls.as_ref(), socket).await?;
    let hello: MemberHello = receive(&mut stream, HELLO_BYTES_MAX).await?;
    if let Err(reason) = check_hello(&hello, names.as_deref(), config) {
        send(&mut stream, &MemberReply::Refused(reason.clone())).await?;
        return Err(io::Error::other(reason));
    }
    send(&mut stream, &MemberReply::Welcome).await?;
    Ok((stream, hello.from))
}

fn check_hello(
    hello: &MemberHello,
    names: Option<&[String]>,
    config: &MembershipConfig,
) -> Result<(), String> {
    if hello.format != FORMAT {
        return Err(format!("messages of format {}, expected is {FORMAT}", hello.format));
    }
    if hello.cluster != config.cluster {
        return Err(format!("cluster {:?}, this is {:?}", hello.cluster, config.cluster));
    }
    if hello.to != config.host {
        return Err(format!("host {} is meant, this is host {}", hello.to, config.host));
    }
    let Some(member) = config.members.get(&hello.from).filter(|_| hello.from != config.host) else {
        return Err(format!("host {} is not in the cluster file", hello.from));
    };
    if let Some(what) = config.settings.difference(hello.settings.summary()) {
        return Err(format!("host {} has other settings: {what}", hello.from));
    }
    match names {
        Some(names) if !has_name(names, &member.name) => Err(format!(
            "the certificate of host {} does not have its name \"{}\"",
            hello.from, member.name
        )),
        Some(_) | None => Ok(()),
    }
}

/// Carries out a request.
async fn answer(service: &MemberService, request: MemberRequest) -> MemberReply {
    let MemberService { config, reporter, raft, heard: _ } = service;
    match (request, raft.as_ref()) {
        (MemberRequest::Report, _) => match reporter.report().await {
            Some(report) => MemberReply::Report(report),
            None => MemberReply::Refused("this host makes no report at present".to_owned()),
        },
        (_, None) => MemberReply::Refused("this host orders its commands by etcd".to_owned()),
        (MemberRequest::ChangeVote { host, votes, checked }, Some(local)) => {
            let change = VoteChange { host, votes, checked };
            match change_vote_here(config, (&local.raft, &local.vote_changes), &change).await {
                Ok(VoteOutcome::Changed) => MemberReply::VoteChanged,
                Ok(VoteOutcome::OtherVoters(voters)) => MemberReply::OtherVoters(voters),
                // The host that asked says which kind of error it is.
                Err(Error::Backend { detail }) => MemberReply::Refused(detail),
                Err(error) => MemberReply::Refused(error.to_string()),
            }
        }
        (MemberRequest::Append(request), Some(local)) => append(local, request).await,
        (MemberRequest::Vote(request), Some(local))
            if request.last_log_id.is_some_and(|last| last.index > 0) && local.store.is_empty() =>
        {
            let reason = "this host has neither vote nor log: it may have lost its directory";
            MemberReply::Refused(reason.to_owned())
        }
        (request, Some(local)) => ordered(&local.raft, request).await,
    }
}

/// Appends entries of the leader. Openraft skips those whose ids it has.
///
/// A directory with neither vote nor log has nothing that entries can follow. It does not accept
/// the leader before it gets the log from its beginning, or a snapshot. A host that is added gets
/// that after a few conflicts, each with another place. A leader that asks again and again for the
/// same place knows that this host had it.
async fn append(local: &LocalRaft, request: AppendEntriesRequest<TypeConfig>) -> MemberReply {
    if let Some(previous) = request.prev_log_id
        && local.store.is_empty()
    {
        return match local.store.lost_before(previous) {
            Some(reason) => MemberReply::Refused(reason),
            None => MemberReply::Append(AppendEntriesResponse::Conflict),
        };
    }
    if let Some(reason) = local.store.contradiction(&request.vote, &request.entries) {
        return MemberReply::Refused(reason);
    }
    match local.raft.append_entries(request).await {
        Ok(reply) => MemberReply::Append(reply),
        Err(error) => MemberReply::Refused(error.to_string()),
    }
}

/// Carries out a request of openraft.
async fn ordered(raft: &Raft, request: MemberRequest) -> MemberReply {
    match request {
        MemberRequest::Report | MemberRequest::ChangeVote { .. } | MemberRequest::Append(_) => {
            MemberReply::Refused("no request of the engine".to_owned())
        }
        MemberRequest::Vote(request) => match raft.vote(request).await {
            Ok(reply) => MemberReply::Vote(reply),
            Err(error) => MemberReply::Refused(error.to_string()),
        },
        MemberRequest::Snapshot(request) => match raft.install_snapshot(request).await {
            Ok(reply) => MemberReply::Snapshot(reply),
            Err(error) => MemberReply::Refused(error.to_string()),
        },
        MemberRequest::Propose(command) => match raft.client_write(CommandBytes(command)).await {
            Ok(reply) => MemberReply::Proposed(reply.log_id.index),
            Err(RaftError::APIError(error)) => MemberReply::Refused(error.to_string()),
            Err(RaftError::Fatal(error)) => MemberReply::Refused(error.to_string()),
        },
    }
}

/// Listens at an address.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A process that starts again takes over the address of the connections of the one before.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE_MAX)
}

#[cfg(test)]
mod tests {
    use super::super::config::tests::host;
    use super::super::message::HelloSettings;
    use super::*;
    use crate::limits::CONNECTIONS_OF_HOST_MAX;
    use nearstate_cluster::limits::HOSTS_MAX;

    fn service(config: &Arc<MembershipConfig>) -> MemberService {
        let reporter = Arc::new(Reporter::start(Arc::clone(&config.report)).unwrap());
        MemberService { config: Arc::clone(config), reporter, heard: Arc::default(), raft: None }
    }

    async fn hello(address: SocketAddr, config: &MembershipConfig, from: u64) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let hello = MemberHello {
            format: FORMAT,
            cluster: config.cluster.clone(),
            from,
            to: config.host,
            settings: HelloSettings::of(&config.settings),
        };
        send(&mut stream, &hello).await.unwrap();
        stream
    }

    /// Two of them of all other hosts, and all of some. Both sides need a descriptor for each.
    #[test]
    fn every_host_of_the_largest_cluster_has_its_connections() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let config = Arc::new(host(1, HOSTS_MAX as u64));
            let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
            let address = listener.local_addr().unwrap();
            let _server = tokio::spawn(serve(listener, service(&config)));
            let mut connected = Vec::new();
            let others = 2..=HOSTS_MAX as u64;
            let some = 2..=4;
            let twice = others.flat_map(|from| [from; 2]);
            let further = some.flat_map(|from| [from; CONNECTIONS_OF_HOST_MAX - 2]);
            for from in twice.chain(further) {
                let mut stream = hello(address, &config, from).await;
                let reply: MemberReply = receive(&mut stream, HELLO_BYTES_MAX).await.unwrap();
                assert!(matches!(reply, MemberReply::Welcome), "{reply:?}");
                connected.push((from, stream));
            }
            for (from, stream) in &mut connected {
                send(stream, &MemberRequest::Report).await.unwrap();
                let reply = receive::<MemberReply, _>(stream, MESSAGE_BYTES_MAX).await;
                assert!(matches!(reply, Ok(MemberReply::Report(_))), "host {from}: {reply:?}");
            }
        });
    }

    /// All of them are there before the first one is accepted.
    #[test]
    fn a_hello_that_has_arrived_counts_before_a_later_connection_does() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let config = Arc::new(host(1, 3));
            let listener = listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut first = hello(address, &config, 2).await;
            let mut silent = Vec::new();
            for _ in 0..UNGREETED.of_address {
                silent.push(TcpStream::connect(address).await.unwrap());
            }
            let _server = tokio::spawn(serve(listener, service(&config)));
            let reply: MemberReply = receive(&mut first, HELLO_BYTES_MAX).await.unwrap();
            assert!(matches!(reply, MemberReply::Welcome), "{reply:?}");
        });
    }
}
