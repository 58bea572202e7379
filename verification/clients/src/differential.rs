//! Sends the same commands to both servers, finds the first reply that differs, and shortens the
//! sequence as long as a difference remains.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use nearstate_resp_client::{RespClient, RespReply, TimeoutSocket, encode_request};

use crate::known_differences;
use crate::sequence::{CLIENTS, CommandStep};

/// Longer than any reply takes on a busy machine: a server that does not reply fails a test instead
/// of blocking it.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(60);

/// The addresses of both servers.
#[derive(Clone, Copy, Debug)]
pub struct ServerPair {
    /// Debian's Redis.
    pub redis: SocketAddr,
    pub node: SocketAddr,
}

/// A step to which the servers replied differently.
#[derive(Clone, Debug)]
pub struct ReplyDifference {
    /// The steps up to the difference; the last one is the one that differs.
    pub steps: Vec<CommandStep>,
    /// The protocol version: 2 or 3.
    pub protocol: u8,
    /// Redis' reply.
    pub redis: RespReply,
    /// The node's reply.
    pub node: RespReply,
}

/// Requests are sent in groups of at most this size: both servers accept as much without a reader.
const GROUP_BYTES_MAX: usize = 16 << 10;

/// Requests that an iteration over a few keys may take.
const ITERATION_REQUESTS_MAX: usize = 1000;

/// Attempts to shorten a sequence.
const ATTEMPTS_MAX: usize = 400;

type SocketClient = RespClient<TimeoutSocket>;

struct ServerClients {
    clients: Vec<SocketClient>,
}

/// The arguments as slices.
fn slices(args: &[Vec<u8>]) -> Vec<&[u8]> {
    args.iter().map(Vec::as_slice).collect()
}

fn connect(address: SocketAddr, protocol: u8) -> Result<SocketClient, String> {
    let socket = TimeoutSocket::tcp(address, REPLY_WAIT_MAX);
    let mut client = RespClient::new(socket.map_err(|error| format!("{address}: {error}"))?);
    let greeting = client.request(&[b"HELLO", protocol.to_string().as_bytes()]);
    let greeting = greeting.map_err(|error| format!("HELLO: {error}"))?;
    let expected = if protocol == 3 { b'%' } else { b'*' };
    if greeting.type_byte() == expected { Ok(client) } else { Err(format!("HELLO: {greeting}")) }
}

/// A reply that stands for a failure of the connection.
fn no_reply(error: &std::io::Error) -> RespReply {
    RespReply::Error(format!("(no reply) {error}").into_bytes())
}

impl ServerClients {
    fn open(address: SocketAddr, protocol: u8) -> Result<Self, String> {
        let clients = (0..CLIENTS).map(|_| connect(address, protocol)).collect::<Result<_, _>>()?;
        let mut server = Self { clients };
        let flushed = server.client(0)?.request(&[b"FLUSHALL"]);
        let flushed = flushed.map_err(|error| format!("FLUSHALL: {error}"))?;
        if flushed.is_ok() { Ok(server) } else { Err(format!("FLUSHALL: {flushed}")) }
    }

    fn client(&mut self, index: usize) -> Result<&mut SocketClient, String> {
        self.clients.get_mut(index).ok_or_else(|| format!("no client {index}"))
    }

    /// The reply to a step that was sent. A failure counts as a reply.
    fn reply(&mut self, step: &CommandStep) -> Result<RespReply, String> {
        let client = self.client(step.client)?;
        let reply = client.receive().and_then(|reply| match step.cursor_at {
            Some(cursor_at) => iterate(client, step, cursor_at, reply),
            None => Ok(reply),
        });
        Ok(reply.unwrap_or_else(|error| no_reply(&error)))
    }
}

/// Follows the cursor to the end of the iteration and merges the replies: sorted and without
/// duplicates, which Redis may return.
fn iterate(
    client: &mut SocketClient,
    step: &CommandStep,
    cursor_at: usize,
    first: RespReply,
) -> std::io::Result<RespReply> {
    let is_hash = step.args.first().is_some_and(|name| name.eq_ignore_ascii_case(b"HSCAN"));
    let mut args = step.args.clone();
    let mut reply = first;
    let mut all = Vec::new();
    for _ in 0..ITERATION_REQUESTS_MAX {
        let [RespReply::Bulk(cursor), part] = reply.items() else { return Ok(reply) };
        all.extend(part.items().chunks(if is_hash { 2 } else { 1 }).map(<[RespReply]>::to_vec));
        if cursor == b"0" {
            all.sort();
            all.dedup();
            return Ok(RespReply::Array(all.concat()));
        }
        if let Some(arg) = args.get_mut(cursor_at) {
            arg.clone_from(cursor);
        }
        reply = client.request(&slices(&args))?;
    }
    Err(std::io::Error::other(format!("no end after {ITERATION_REQUESTS_MAX} requests")))
}

/// The commands that a client's transaction has queued, which EXEC's replies belong to.
#[derive(Default)]
struct QueuedCommands {
    is_open: bool,
    commands: Vec<Vec<Vec<u8>>>,
}

impl QueuedCommands {
    /// Whether both replies to this step are the same. Records what the step queues.
    fn is_same(&mut self, step: &CommandStep, redis: &RespReply, node: &RespReply) -> bool {
        let is_named =
            |name: &[u8]| step.args.first().is_some_and(|arg| arg.eq_ignore_ascii_case(name));
        if is_named(b"EXEC") || is_named(b"DISCARD") {
            let commands = std::mem::take(self).commands;
            return redis == node || is_same_exec(&commands, redis, node);
        }
        if is_named(b"MULTI") && redis.is_ok() {
            *self = Self { is_open: true, commands: Vec::new() };
        } else if self.is_open && *redis == RespReply::Simple(b"QUEUED".to_vec()) {
            self.commands.push(step.args.clone());
            return redis == node;
        }
        known_differences::is_same(&step.args, redis, node)
    }
}

fn is_same_exec(commands: &[Vec<Vec<u8>>], redis: &RespReply, node: &RespReply) -> bool {
    redis.type_byte() == node.type_byte()
        && redis.items().len() == commands.len()
        && redis.items().len() == node.items().len()
        && commands
            .iter()
            .zip(redis.items().iter().zip(node.items()))
            .all(|(args, (redis, node))| known_differences::is_same(args, redis, node))
}

/// Empties both servers and sends all steps to them. Returns the first difference.
pub fn compare(
    pair: ServerPair,
    steps: &[CommandStep],
    protocol: u8,
) -> Result<Option<ReplyDifference>, String> {
    let mut redis = ServerClients::open(pair.redis, protocol)?;
    let mut node = ServerClients::open(pair.node, protocol)?;
    let mut queued: [QueuedCommands; CLIENTS] = Default::default();
    let mut begin = 0;
    while let Some(group) =
        steps.get(begin..begin + group_length(steps.get(begin..).unwrap_or(&[])))
    {
        let Some(first) = group.first() else { break };
        let mut requests = Vec::new();
        for step in group {
            encode_request(&slices(&step.args), &mut requests);
        }
        redis.client(first.client)?.send(&requests).map_err(|e| format!("Redis: {e}"))?;
        let sent = node.client(first.client)?.send(&requests);
        for (index, step) in group.iter().enumerate() {
            let expected = redis.reply(step)?;
            let actual = match &sent {
                Ok(()) => node.reply(step)?,
                Err(error) => no_reply(error),
            };
            let state = queued.get_mut(step.client).ok_or("no such client")?;
            if !state.is_same(step, &expected, &actual) {
                let steps = steps.get(..=begin + index).unwrap_or(steps).to_vec();
                let (redis, node) = (expected, actual);
                return Ok(Some(ReplyDifference { steps, protocol, redis, node }));
            }
        }
        begin += group.len();
    }
    Ok(None)
}

/// How many of these steps are sent together: those of one client, without an iteration among them.
fn group_length(steps: &[CommandStep]) -> usize {
    let Some(first) = steps.first() else { return 0 };
    let mut bytes = 0;
    let together = steps.iter().take_while(|step| {
        bytes += step.args.iter().map(Vec::len).sum::<usize>();
        step.client == first.client && step.cursor_at.is_none() && bytes <= GROUP_BYTES_MAX
    });
    together.count().max(1)
}

/// Removes steps, first many at once, then one by one, as long as a difference remains.
pub fn shorten(pair: ServerPair, difference: ReplyDifference) -> Result<ReplyDifference, String> {
    let mut best = difference;
    let mut part = best.steps.len() / 2;
    let mut attempts = 0;
    while part > 0 && attempts < ATTEMPTS_MAX {
        let mut begin = 0;
        let mut is_shorter = false;
        while begin < best.steps.len() && attempts < ATTEMPTS_MAX {
            let remaining: Vec<CommandStep> = best
                .steps
                .iter()
                .enumerate()
                .filter(|(index, _)| !(begin..begin + part).contains(index))
                .map(|(_, step)| step.clone())
                .collect();
            attempts += 1;
            match compare(pair, &remaining, best.protocol)? {
                Some(shorter) => (best, is_shorter) = (shorter, true),
                None => begin += part,
            }
        }
        if !is_shorter || part > 1 {
            part /= 2;
        }
    }
    Ok(best)
}

impl ReplyDifference {
    /// The name of the command whose replies differ.
    pub fn command(&self) -> String {
        let name = self.steps.last().and_then(|step| step.args.first());
        name.map_or_else(String::new, |name| String::from_utf8_lossy(name).to_uppercase())
    }
}

/// Arguments as one would type them in `redis-cli`.
fn command_line(args: &[Vec<u8>]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'\'');
    let words = args.iter().map(|arg| {
        if !arg.is_empty() && arg.len() <= 120 && arg.iter().all(is_plain) {
            String::from_utf8_lossy(arg).into_owned()
        } else {
            RespReply::Bulk(arg.clone()).to_string()
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

impl fmt::Display for ReplyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "RESP{}, {} commands:", self.protocol, self.steps.len())?;
        for step in &self.steps {
            let note = if step.cursor_at.is_some() { " (to the end of the iteration)" } else { "" };
            writeln!(f, "  client {}: {}{note}", step.client, command_line(&step.args))?;
        }
        writeln!(f, "  redis: {}", self.redis)?;
        writeln!(f, "  node:  {}", self.node)
    }
}
