//! The same commands to both servers, the first reply that differs, and the fewest commands that
//! still show it.

use std::fmt;
use std::net::SocketAddr;

use crate::leeway;
use crate::link::Link;
use crate::sequence::{LINKS, Step};
use crate::wire::{Reply, request, typed};

/// Where both servers listen.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Debian's Redis.
    pub redis: SocketAddr,
    /// The node.
    pub ours: SocketAddr,
}

/// A step that they answered differently.
#[derive(Clone, Debug)]
pub struct Difference {
    /// What led to it: the last one is the one that differs.
    pub steps: Vec<Step>,
    /// Which version of the protocol was spoken.
    pub protocol: u8,
    /// What Redis answered.
    pub redis: Reply,
    /// What the node answered.
    pub ours: Reply,
}

/// Requests are sent in groups of this size at most: both servers take as much without a reader.
const GROUP_BYTES_MAX: usize = 16 << 10;

/// How many calls a walk over a handful of keys may take.
const WALK_CALLS_MAX: usize = 1000;

/// How many times a sequence is tried again, to make it shorter.
const TRIES_MAX: usize = 400;

/// One server's side of a conversation: its clients.
struct Side {
    links: Vec<Link>,
}

impl Side {
    fn open(address: SocketAddr, protocol: u8) -> Result<Self, String> {
        let links = (0..LINKS).map(|_| Link::open(address, protocol)).collect::<Result<_, _>>()?;
        let mut side = Self { links };
        let emptied = side.link(0)?.ask(&[b"FLUSHALL".to_vec()])?;
        if emptied.head == b"+OK" { Ok(side) } else { Err(format!("FLUSHALL: {emptied}")) }
    }

    fn link(&mut self, at: usize) -> Result<&mut Link, String> {
        self.links.get_mut(at).ok_or_else(|| format!("no client {at}"))
    }

    /// The reply to a step that has been sent; a server that does not give one is a reply too.
    fn reply(&mut self, step: &Step) -> Result<Reply, String> {
        let link = self.link(step.link)?;
        let reply = link.reply().and_then(|reply| match step.cursor_at {
            Some(cursor_at) => walk(link, step, cursor_at, reply),
            None => Ok(reply),
        });
        Ok(reply.unwrap_or_else(|why| Reply::told(&why)))
    }
}

/// Asks on with every cursor, and makes one reply of all that came: in order, without doubles,
/// which Redis may send.
fn walk(link: &mut Link, step: &Step, cursor_at: usize, first: Reply) -> Result<Reply, String> {
    let mut words = step.words.clone();
    let mut reply = first;
    let mut all = Vec::new();
    for _ in 0..WALK_CALLS_MAX {
        let [cursor, part] = reply.items.as_slice() else { return Ok(reply) };
        let each = if step.words.first().is_some_and(|name| name.eq_ignore_ascii_case(b"HSCAN")) {
            2
        } else {
            1
        };
        all.extend(part.items.chunks(each).map(<[Reply]>::to_vec));
        let cursor = cursor.body.clone().unwrap_or_default();
        if cursor == b"0" {
            all.sort();
            all.dedup();
            let items = all.concat();
            return Ok(Reply {
                head: part.head.get(..1).unwrap_or(b"").to_vec(),
                body: None,
                items,
            });
        }
        if let Some(word) = words.get_mut(cursor_at) {
            *word = cursor;
        }
        reply = link.ask(&words)?;
    }
    Err(format!("a walk without end, {WALK_CALLS_MAX} calls"))
}

/// What a client's transaction has collected, so that the replies of EXEC find their commands.
#[derive(Default)]
struct Collected {
    is_open: bool,
    commands: Vec<Vec<Vec<u8>>>,
}

impl Collected {
    /// Whether both replies to this step are the same; takes note of what it does.
    fn is_same(&mut self, step: &Step, redis: &Reply, ours: &Reply) -> bool {
        let is_named =
            |name: &[u8]| step.words.first().is_some_and(|word| word.eq_ignore_ascii_case(name));
        if is_named(b"EXEC") || is_named(b"DISCARD") {
            let commands = std::mem::take(self).commands;
            return redis == ours || is_same_exec(&commands, redis, ours);
        }
        if is_named(b"MULTI") && redis.head == b"+OK" {
            *self = Self { is_open: true, commands: Vec::new() };
        } else if self.is_open && redis.head == b"+QUEUED" {
            self.commands.push(step.words.clone());
            return redis == ours;
        }
        leeway::is_same(&step.words, redis, ours)
    }
}

fn is_same_exec(commands: &[Vec<Vec<u8>>], redis: &Reply, ours: &Reply) -> bool {
    redis.head == ours.head
        && redis.items.len() == commands.len()
        && redis.items.len() == ours.items.len()
        && commands
            .iter()
            .zip(redis.items.iter().zip(&ours.items))
            .all(|(words, (redis, ours))| leeway::is_same(words, redis, ours))
}

/// Says all steps to both servers, which are emptied before. Returns the first difference.
///
/// # Errors
/// If one of the servers is not there at all.
pub fn compare(pair: Pair, steps: &[Step], protocol: u8) -> Result<Option<Difference>, String> {
    let mut redis = Side::open(pair.redis, protocol)?;
    let mut ours = Side::open(pair.ours, protocol)?;
    let mut collected: [Collected; LINKS] = Default::default();
    let mut begin = 0;
    while let Some(group) =
        steps.get(begin..begin + group_length(steps.get(begin..).unwrap_or(&[])))
    {
        let Some(first) = group.first() else { break };
        let requests: Vec<u8> = group.iter().flat_map(|step| request(&step.words)).collect();
        redis.link(first.link)?.send(&requests)?;
        let sent = ours.link(first.link)?.send(&requests);
        for (at, step) in group.iter().enumerate() {
            let wanted = redis.reply(step)?;
            let got = match &sent {
                Ok(()) => ours.reply(step)?,
                Err(why) => Reply::told(why),
            };
            let state = collected.get_mut(step.link).ok_or("no such client")?;
            if !state.is_same(step, &wanted, &got) {
                let steps = steps.get(..=begin + at).unwrap_or(steps).to_vec();
                return Ok(Some(Difference { steps, protocol, redis: wanted, ours: got }));
            }
        }
        begin += group.len();
    }
    Ok(None)
}

/// How many of these steps are sent together: those of one client, without a walk among them.
fn group_length(steps: &[Step]) -> usize {
    let Some(first) = steps.first() else { return 0 };
    let mut bytes = 0;
    let together = steps.iter().take_while(|step| {
        bytes += step.words.iter().map(Vec::len).sum::<usize>();
        step.link == first.link && step.cursor_at.is_none() && bytes <= GROUP_BYTES_MAX
    });
    together.count().max(1)
}

/// Leaves out steps, first many at once, then one by one, as long as a difference remains.
///
/// # Errors
/// If one of the servers is not there any longer.
pub fn shorten(pair: Pair, found: Difference) -> Result<Difference, String> {
    let mut best = found;
    let mut part = best.steps.len() / 2;
    let mut tries = 0;
    while part > 0 && tries < TRIES_MAX {
        let mut begin = 0;
        let mut is_shorter = false;
        while begin < best.steps.len() && tries < TRIES_MAX {
            let left: Vec<Step> = best
                .steps
                .iter()
                .enumerate()
                .filter(|(at, _)| !(begin..begin + part).contains(at))
                .map(|(_, step)| step.clone())
                .collect();
            tries += 1;
            match compare(pair, &left, best.protocol)? {
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

impl Difference {
    /// The name of the command that was answered differently.
    pub fn command(&self) -> String {
        let name = self.steps.last().and_then(|step| step.words.first());
        name.map_or_else(String::new, |name| String::from_utf8_lossy(name).to_uppercase())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "RESP{}, {} commands:", self.protocol, self.steps.len())?;
        for step in &self.steps {
            let walk = if step.cursor_at.is_some() { " (and on with every cursor)" } else { "" };
            writeln!(f, "  client {}: {}{walk}", step.link, typed(&step.words))?;
        }
        writeln!(f, "  redis: {}", self.redis)?;
        writeln!(f, "  ours:  {}", self.ours)
    }
}
