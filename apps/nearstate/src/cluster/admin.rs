//! Requests of operators to a node: one line of JSON over the Unix socket in the directory of its
//! membership, and one line back. A user that may use the directory may administer the node.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nearstate_model::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The largest line.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The longest wait for the other side: a task of an operator takes eight leases of at most 10 s.
const WAIT_MAX: Duration = Duration::from_secs(100);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AdminRequest {
    /// Create the cluster with the voters of the file.
    Init,
    /// What the host knows.
    Status,
    /// What all hosts know: the host asks the others.
    ClusterStatus,
    /// The last events of the host.
    Events,
    /// A host votes from now on, or does not. With `weakens`, also if the others could lose none.
    Vote {
        host: u16,
        votes: bool,
        #[serde(default)]
        weakens: bool,
    },
    /// The cluster is raised to the level that all hosts can do, whatever those can that are named
    /// and do not answer.
    Finalize { without: Vec<u16> },
    /// A host belongs to the group of a partition from now on, or does not.
    Member { partition: u32, host: u16, is_member: bool },
    /// Another member takes over from the owner.
    Drain { partition: u32 },
    /// This host owns the partition, whatever those held that do not answer. With
    /// `discards_longer`, whatever all others hold.
    AcceptLoss {
        partition: u32,
        host: u16,
        #[serde(default)]
        discards_longer: bool,
    },
    /// This host owns the partition, with whatever its region has.
    ForceNew { partition: u32, host: u16 },
}

/// The reply.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AdminReply {
    Done(Value),
    Failed(String),
}

/// The text of an error, for one that quotes it: without the prefix of its kind.
pub(crate) fn reason(error: &Error) -> String {
    if let Error::Backend { detail } = error { detail.clone() } else { error.to_string() }
}

/// The path of a node's socket.
pub(crate) fn socket_path(directory: &Path) -> PathBuf {
    directory.join("admin.sock")
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> Error {
    let detail = format!("cannot {what} {} ({error})", path.display());
    Error::System { detail, errno: error.raw_os_error().unwrap_or_default() }
}

/// Listens at a path, which only this user may use. A socket of a node that has ended is replaced.
///
/// # Errors
/// `System`.
pub(crate) fn listen(path: &Path) -> Result<UnixListener> {
    // The lock of the directory is held, so no other node uses the socket.
    let _ = std::fs::remove_file(path);
    let listener = UnixListener::bind(path).map_err(|error| failed(path, "listen on", &error))?;
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(path, mode).map_err(|error| failed(path, "protect", &error))?;
    Ok(listener)
}

/// Answers one connection.
pub(crate) fn answer(stream: &UnixStream, carry_out: impl Fn(AdminRequest) -> Result<Value>) {
    let reply = match receive::<AdminRequest>(stream) {
        Ok(request) => match carry_out(request) {
            Ok(value) => AdminReply::Done(value),
            Err(error) => AdminReply::Failed(reason(&error)),
        },
        Err(error) => AdminReply::Failed(error.to_string()),
    };
    // A client that has gone needs no reply.
    let _ = send(stream, &reply);
}

/// Sends a request and returns what the node answers.
///
/// # Errors
/// `System`: no node is there; `BadArgument`: what the node says.
pub(crate) fn request(path: &Path, request: &AdminRequest) -> Result<Value> {
    let stream = UnixStream::connect(path).map_err(|error| {
        // The text of the error follows.
        let detail = format!(
            "no node answers at {}: start `nearstate serve --cluster` on this host first",
            path.display()
        );
        Error::System { detail, errno: error.raw_os_error().unwrap_or_default() }
    })?;
    let exchange = || -> std::io::Result<AdminReply> {
        send(&stream, request)?;
        receive(&stream)
    };
    match exchange().map_err(|error| failed(path, "talk to", &error))? {
        AdminReply::Done(value) => Ok(value),
        AdminReply::Failed(detail) => Err(Error::BadArgument { detail }),
    }
}

fn send(mut stream: &UnixStream, message: &impl Serialize) -> std::io::Result<()> {
    stream.set_write_timeout(Some(WAIT_MAX))?;
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

fn receive<T: for<'de> Deserialize<'de>>(stream: &UnixStream) -> std::io::Result<T> {
    stream.set_read_timeout(Some(WAIT_MAX))?;
    let mut line = String::new();
    BufReader::new(stream.take(LINE_BYTES_MAX)).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_says_has_no_prefix_of_its_kind() {
        let folder = tempfile::tempdir().unwrap();
        let path = socket_path(folder.path());
        let listener = listen(&path).unwrap();
        let node = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            answer(&stream, |_| Err(Error::Backend { detail: "no majority in time".to_owned() }));
        });
        let error = request(&path, &AdminRequest::Status).unwrap_err();
        node.join().unwrap();
        assert_eq!(error.to_string(), "no majority in time");
    }
}
