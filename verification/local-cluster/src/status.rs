//! What a node says of its copy, over its Unix socket for operators.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// The longest wait for a node's answer. A node that is stopped does not answer.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// The longest wait for the decision that creates a cluster.
const INIT_MAX: Duration = Duration::from_secs(120);

/// A member, as the owner sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberLag {
    /// The host's name.
    pub host: String,
    /// Entries that it lacks. `None`: it joins.
    pub entries: Option<u64>,
}

/// The copy of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyView {
    /// `owner`, `member` and others.
    pub role: String,
    /// The view.
    pub view: u64,
    /// The owner's name.
    pub owner: Option<String>,
    /// Hosts whose copies count.
    pub full: Vec<String>,
    /// True while one copy of two suffices.
    pub is_degraded: bool,
    /// Milliseconds until the lease ends, on the owner.
    pub lease_ms: u64,
    /// The end of the log, or the last position that is applied.
    pub position: u64,
    /// What is replicated of the own log.
    pub replicated: u64,
    /// The members of an owner.
    pub members: Vec<MemberLag>,
    /// The leader of the membership.
    pub leader: Option<String>,
}

fn ask(socket: &Path, request: &str, wait: Duration) -> Result<Value, String> {
    let exchange = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(wait))?;
        stream.set_write_timeout(Some(wait))?;
        stream.write_all(format!("\"{request}\"\n").as_bytes())?;
        // A node that works on the request says so in empty lines.
        let mut lines = BufReader::new(stream).lines();
        let line = lines.find(|line| line.as_ref().map_or(true, |line| !line.is_empty()));
        line.unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()))
    };
    let line = exchange().map_err(|error| format!("{}: {error}", socket.display()))?;
    let reply: Value = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
    match reply.get("done") {
        Some(done) => Ok(done.clone()),
        None => Err(format!("the node refuses {request:?}: {reply}")),
    }
}

/// Creates the cluster.
pub(crate) fn init(socket: &Path) -> Result<(), String> {
    ask(socket, "init", INIT_MAX).map(drop)
}

/// The last events of a node.
pub(crate) fn events(socket: &Path) -> Result<Vec<String>, String> {
    let events = ask(socket, "events", ANSWER_MAX)?;
    Ok(texts(events.get("events")))
}

fn text(value: Option<&Value>) -> Option<String> {
    value.and_then(Value::as_str).map(str::to_owned)
}

fn texts(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(|item| text(Some(item))).collect()
}

fn number(value: Option<&Value>) -> u64 {
    value.and_then(Value::as_u64).unwrap_or(0)
}

/// The copy of the node at this socket.
pub(crate) fn copy(socket: &Path) -> Result<CopyView, String> {
    let status = ask(socket, "status", ANSWER_MAX)?;
    let leader = text(status.pointer("/membership/leader"));
    let Some(copy) = status.pointer("/partitions/0") else {
        return Ok(CopyView { leader, ..CopyView::default() });
    };
    let members = copy.get("members").and_then(Value::as_array).into_iter().flatten();
    let members = members.map(|member| MemberLag {
        host: text(member.get("host")).unwrap_or_default(),
        entries: member.get("lag").and_then(Value::as_u64),
    });
    Ok(CopyView {
        role: text(copy.get("role")).unwrap_or_default(),
        view: number(copy.get("view")),
        owner: text(copy.get("owner")),
        full: texts(copy.get("full")),
        is_degraded: copy.get("degraded").and_then(Value::as_bool) == Some(true),
        lease_ms: number(copy.get("lease_ms")),
        position: number(copy.get("position")),
        replicated: number(copy.get("replicated")),
        members: members.collect(),
        leader,
    })
}
