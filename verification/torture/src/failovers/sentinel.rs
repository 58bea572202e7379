//! Redis Sentinel beside our fail-overs: a primary, two replicas and three Sentinels on loopback,
//! without persistence. A client writes with `SET` and `WAIT 1`; the primary is killed; the time
//! runs from the last reply of the old primary to the first one of the new primary.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use nearstate_local_cluster::{HostProcess, wait_until};
use nearstate_resp_client::{RespClient, RespReply, TimeoutSocket};
use serde::Serialize;

use crate::clock::now_ns;
use crate::error_context::ErrorContext as _;
use crate::times::Times;

/// Redis servers, and as many Sentinels.
const SERVERS: usize = 3;

/// Sentinels that must agree.
const QUORUM: usize = 2;

/// The name under which the Sentinels know the primary.
const PRIMARY: &str = "amf";

const KEY: &[u8] = b"counter";

/// Acknowledged writes before each kill: the replicas and the Sentinels are in a steady state then.
const WRITES: u64 = 200;

/// Sentinels begin no fail-over of one primary within twice this time of the one before.
const FAILOVER_TIMEOUT_MS: u64 = 1_000;

/// The longest time until a fail-over has ended, or the servers are ready.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The longest wait for a connection and a reply.
const REPLY_MAX: Duration = Duration::from_secs(2);

/// How often fail-overs are measured, and after which silence a Sentinel takes a primary for lost.
#[derive(Clone, Debug)]
pub struct SentinelOptions {
    pub failovers: u64,
    pub down_after_ms: u32,
    pub folder: PathBuf,
}

/// The fail-overs of Redis Sentinel.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SentinelTotals {
    pub down_after_ms: u32,
    pub failover_us: Times,
    /// Writes that a replica had acknowledged.
    pub acknowledged: u64,
    /// Fail-overs after which the new primary did not have the last of them.
    pub losses: u64,
}

impl SentinelTotals {
    /// The result in one line.
    pub fn line(&self) -> String {
        format!(
            "Redis Sentinel beside, down-after {} ms: {} ({} runs); {} writes acknowledged by a \
             replica, the last one lost {} times",
            self.down_after_ms,
            self.failover_us.summary(),
            self.failover_us.count(),
            self.acknowledged,
            self.losses
        )
    }
}

type PrimaryClient = RespClient<TimeoutSocket>;

fn connect(port: u16) -> Option<PrimaryClient> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    TimeoutSocket::tcp(address, REPLY_MAX).ok().map(RespClient::new)
}

fn ask(port: u16, request: &[&[u8]]) -> Option<RespReply> {
    connect(port)?.request(request).ok()
}

fn text_of(reply: RespReply) -> Option<String> {
    let bytes = reply.into_bulk().ok()??;
    String::from_utf8(bytes).ok()
}

/// The ports of servers and Sentinels. No connection takes them meanwhile: they are bound at once.
fn ports() -> Result<Vec<u16>, String> {
    let failed = |error: std::io::Error| format!("a free port: {error}");
    let bind = |_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let all: Vec<TcpListener> =
        (0..2 * SERVERS).map(bind).collect::<Result<_, _>>().map_err(failed)?;
    all.iter().map(|one| Ok(one.local_addr().map_err(failed)?.port())).collect()
}

/// The replicas that have what the primary has.
fn replicas_of(primary: u16) -> Option<usize> {
    let replication = text_of(ask(primary, &[b"INFO", b"replication"])?)?;
    Some(replication.matches("state=online").count())
}

/// The running processes.
struct SentinelGroup {
    folder: PathBuf,
    servers: Vec<(u16, Option<HostProcess>)>,
    sentinels: Vec<(u16, HostProcess)>,
}

impl SentinelGroup {
    fn start(options: &SentinelOptions) -> Result<Self, String> {
        let folder = options.folder.clone();
        fs::create_dir_all(&folder).context(folder.display())?;
        let ports = ports()?;
        let (servers, sentinels) = ports.split_at(SERVERS);
        let mut group = Self { folder, servers: Vec::new(), sentinels: Vec::new() };
        let primary = servers.first().copied().ok_or("no port")?;
        for port in servers {
            let of = (*port != primary).then_some(primary);
            let process = group.start_server(*port, of)?;
            group.servers.push((*port, Some(process)));
        }
        wait_until("the replicas follow the primary", WAIT_MAX, || {
            Ok(replicas_of(primary) == Some(SERVERS - 1))
        })?;
        for port in sentinels {
            group.start_sentinel(*port, primary, options.down_after_ms)?;
        }
        group.wait_until_ready()?;
        Ok(group)
    }

    fn start_server(&self, port: u16, primary: Option<u16>) -> Result<HostProcess, String> {
        HostProcess::redis("redis-server", port, primary, &self.folder)
    }

    fn start_sentinel(&mut self, port: u16, primary: u16, down_after: u32) -> Result<(), String> {
        let folder = self.folder.join(format!("sentinel-{port}"));
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(failed)?;
        let file = folder.join("sentinel.conf");
        let lines = [
            format!("bind 127.0.0.1\nport {port}\ndir {}", folder.display()),
            format!("sentinel monitor {PRIMARY} 127.0.0.1 {primary} {QUORUM}"),
            format!("sentinel down-after-milliseconds {PRIMARY} {down_after}"),
            format!("sentinel failover-timeout {PRIMARY} {FAILOVER_TIMEOUT_MS}"),
            format!("sentinel parallel-syncs {PRIMARY} {SERVERS}\n"),
        ];
        fs::write(&file, lines.join("\n")).map_err(failed)?;
        let file = file.to_string_lossy().into_owned();
        let words = ["redis-server", &file, "--sentinel"];
        let process = HostProcess::start(&[], &words, &self.folder.join("log"))?;
        self.sentinels.push((port, process));
        Ok(())
    }

    /// Waits until the Sentinels name one primary, know all servers and Sentinels, and take none of
    /// them for lost, and the primary has its replicas. Another fail-over may have come meanwhile.
    fn wait_until_ready(&self) -> Result<(), String> {
        let mut seen = Vec::new();
        wait_until("the Sentinels know all servers", WAIT_MAX, || {
            let all = self.sentinels.iter();
            seen = all.filter_map(|(port, _)| KnownServers::of(*port)).collect();
            let Some(primary) = self.primary() else { return Ok(false) };
            let are_known = seen.len() == SERVERS && seen.iter().all(|one| one.are_ready(primary));
            Ok(are_known && replicas_of(primary) == Some(SERVERS - 1))
        })
        .map_err(|error| format!("{error}: {seen:?}"))
    }

    /// The primary in the words of the first Sentinel that answers.
    fn primary(&self) -> Option<u16> {
        self.sentinels.iter().find_map(|(port, _)| {
            let request: [&[u8]; 3] = [b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", PRIMARY.as_bytes()];
            let address = ask(*port, &request)?;
            text_of(address.items().get(1)?.clone())?.parse().ok()
        })
    }
}

/// What a Sentinel knows: ports and flags, as it writes them.
#[derive(Debug, Default)]
struct KnownServers {
    primary: Vec<String>,
    replicas: Vec<String>,
    sentinels: Vec<String>,
}

impl KnownServers {
    fn of(sentinel: u16) -> Option<Self> {
        let ask_for = |what: &[u8]| ask(sentinel, &[b"SENTINEL", what, PRIMARY.as_bytes()]);
        let all = |reply: &RespReply| reply.items().iter().filter_map(flags_of).collect();
        Some(Self {
            primary: flags_of(&ask_for(b"MASTER")?).into_iter().collect(),
            replicas: all(&ask_for(b"REPLICAS")?),
            sentinels: all(&ask_for(b"SENTINELS")?),
        })
    }

    /// All servers and Sentinels, none of which counts as lost.
    fn are_ready(&self, primary: u16) -> bool {
        let have = |all: &[String], flags: &str| {
            all.len() == SERVERS - 1 && all.iter().all(|one| one.ends_with(flags))
        };
        self.primary == [format!("{primary} master")]
            && have(&self.replicas, " slave")
            && have(&self.sentinels, " sentinel")
    }
}

/// Port and flags of a server, of which a Sentinel tells names and values in turn.
fn flags_of(server: &RespReply) -> Option<String> {
    let texts: Vec<String> =
        server.items().iter().filter_map(|item| text_of(item.clone())).collect();
    let value = |name: &str| {
        let at = texts.iter().step_by(2).position(|field| field == name)?;
        texts.get(2 * at + 1)
    };
    Some(format!("{} {}", value("port")?, value("flags")?))
}

impl Drop for SentinelGroup {
    fn drop(&mut self) {
        self.sentinels.clear();
        self.servers.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Writes, and waits until a replica has it.
fn write(client: &mut PrimaryClient, number: u64) -> bool {
    let set = client.request(&[b"SET", KEY, number.to_string().as_bytes()]);
    if !set.is_ok_and(|reply| reply.is_ok()) {
        return false;
    }
    let wait = client.request(&[b"WAIT", b"1", b"1000"]);
    matches!(wait, Ok(RespReply::Integer(replicas)) if replicas >= 1)
}

/// Measures fail-overs, one after the other.
pub fn run(
    options: &SentinelOptions,
    tick: &mut dyn FnMut(&SentinelTotals),
) -> Result<SentinelTotals, String> {
    let mut group = SentinelGroup::start(options)?;
    let mut totals =
        SentinelTotals { down_after_ms: options.down_after_ms, ..SentinelTotals::default() };
    let mut number = 0;
    for _ in 0..options.failovers {
        let old = group.primary().ok_or("no Sentinel names the primary")?;
        let mut client = connect(old).ok_or("the primary takes no connection")?;
        for _ in 0..WRITES {
            number += 1;
            if !write(&mut client, number) {
                return Err(format!("write {number} was not acknowledged by a replica"));
            }
        }
        totals.acknowledged += WRITES;
        let last_reply = now_ns();
        group.servers.iter_mut().filter(|(port, _)| *port == old).for_each(|(_, of)| *of = None);
        let mut new = None;
        wait_until("a replica is the primary", WAIT_MAX, || {
            new = first_reply(&group, old, number);
            Ok(new.is_some())
        })?;
        let (new, had_last) = new.ok_or("no primary")?;
        number += 1;
        totals.failover_us.push(now_ns().saturating_sub(last_reply) / 1_000);
        totals.losses += u64::from(!had_last);
        let again = group.start_server(old, Some(new))?;
        for (port, process) in &mut group.servers {
            if *port == old {
                *process = Some(again);
                break;
            }
        }
        group.wait_until_ready()?;
        tick(&totals);
        // The next fail-over is not delayed by this one.
        std::thread::sleep(Duration::from_millis(2 * FAILOVER_TIMEOUT_MS));
    }
    Ok(totals)
}

/// The first acknowledged write at another primary than before: its port, and whether it had the
/// last write.
fn first_reply(group: &SentinelGroup, old: u16, last: u64) -> Option<(u16, bool)> {
    let port = group.primary().filter(|port| *port != old)?;
    let mut client = connect(port)?;
    let found = text_of(client.request(&[b"GET", KEY]).ok()?);
    write(&mut client, last + 1).then(|| (port, found == Some(last.to_string())))
}
