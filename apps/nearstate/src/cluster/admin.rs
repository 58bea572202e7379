//! Requests of operators to a node: one line of JSON over the Unix socket in the directory of its
//! membership, and one line back. A user that may use the directory may administer the node.
//!
//! Before the node begins, and while it works, it sends empty lines. So a client learns soon that a
//! node is stopped: the kernel accepts its connection all the same. A node does not carry out what
//! a client has asked that has gone: it may have asked another node.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use nearstate_model::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most bytes of a request, or of a reply with the empty lines before it.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The longest wait for the other side: a task of an operator takes eight leases of at most 10 s.
const WAIT_MAX: Duration = Duration::from_secs(100);

/// How often a node that works on a request says so.
const ALIVE_INTERVAL: Duration = Duration::from_millis(500);

/// The longest silence of a node, ten intervals: on a busy machine a thread may wait for a
/// processor for some of them. A node that is silent for longer is stopped, or does not answer.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum AdminRequest {
    /// Create the cluster with the voters of the file.
    Init,
    /// The same, although regions are of an earlier membership, and hosts that are named do not
    /// answer.
    InitAnew { without: Vec<u16> },
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
    /// This member takes over from the owner. A request of its own, because a node of an earlier
    /// version would choose another one.
    DrainTo { partition: u32, host: u16 },
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
        Ok(request) => {
            // Nothing is done for a client that has gone.
            if say_alive(stream).is_err() {
                return;
            }
            match while_alive(stream, || carry_out(request)) {
                Ok(value) => AdminReply::Done(value),
                Err(error) => AdminReply::Failed(reason(&error)),
            }
        }
        Err(error) => AdminReply::Failed(error.to_string()),
    };
    // A client that has gone needs no reply.
    let _ = send(stream, &reply);
}

fn say_alive(mut stream: &UnixStream) -> std::io::Result<()> {
    stream.set_write_timeout(Some(WAIT_MAX))?;
    stream.write_all(b"\n")
}

/// Works, and says so until that has ended.
fn while_alive<T>(stream: &UnixStream, work: impl FnOnce() -> T) -> T {
    let (ended, ending) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while ending.recv_timeout(ALIVE_INTERVAL) == Err(RecvTimeoutError::Timeout)
                && say_alive(stream).is_ok()
            {}
        });
        let done = work();
        drop(ended);
        done
    })
}

/// Sends a request and returns what the node answers.
///
/// # Errors
/// `System`: no node is there, or it does not answer, and nothing was done; `Backend`: it has
/// begun, and does not answer any more; `BadArgument`: what the node says.
pub(crate) fn request(path: &Path, request: &AdminRequest) -> Result<Value> {
    request_within(path, request, SILENCE_MAX)
}

fn request_within(path: &Path, request: &AdminRequest, silence_max: Duration) -> Result<Value> {
    let stream = UnixStream::connect(path).map_err(|error| {
        // The text of the error follows.
        let detail = format!(
            "no node answers at {}: start `nearstate serve --cluster` on this host first",
            path.display()
        );
        Error::System { detail, errno: error.raw_os_error().unwrap_or_default() }
    })?;
    let mut has_begun = false;
    let mut exchange = || -> std::io::Result<AdminReply> {
        stream.set_read_timeout(Some(silence_max))?;
        send(&stream, request)?;
        let mut lines = BufReader::new((&stream).take(LINE_BYTES_MAX));
        let mut line = String::new();
        while line.trim().is_empty() {
            line.clear();
            if lines.read_line(&mut line)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            has_begun = true;
        }
        Ok(serde_json::from_str(&line)?)
    };
    match exchange() {
        Ok(AdminReply::Done(value)) => Ok(value),
        Ok(AdminReply::Failed(detail)) => Err(Error::BadArgument { detail }),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            Err(silent(path, has_begun))
        }
        Err(error) if has_begun => {
            let detail = format!(
                "the node at {} had begun, and its reply did not come ({error}): it may have done \
                 what it was asked, or may yet do it. Look before you repeat the command",
                path.display()
            );
            Err(Error::Backend { detail })
        }
        Err(error) => Err(failed(path, "talk to", &error)),
    }
}

fn silent(path: &Path, has_begun: bool) -> Error {
    let node = format!("the node at {} does not answer", path.display());
    if has_begun {
        let detail = format!("{node} any more, and may yet do what it was asked: is it stopped?");
        return Error::Backend { detail };
    }
    let detail = format!("{node}, and nothing was done: is it stopped? --host asks another one");
    Error::System { detail, errno: rustix::io::Errno::TIMEDOUT.raw_os_error() }
}

/// Whether an error says that a node is there and does not answer.
pub(crate) fn is_silent(error: &Error) -> bool {
    let timed_out = rustix::io::Errno::TIMEDOUT.raw_os_error();
    matches!(error, Error::System { errno, .. } if *errno == timed_out)
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

    /// The kernel accepts connections for a process that is stopped.
    #[test]
    fn a_node_that_says_nothing_has_done_nothing_and_does_not_do_it_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = socket_path(folder.path());
        let listener = listen(&path).unwrap();
        let error = request_within(&path, &AdminRequest::Init, Duration::from_millis(50));
        let error = error.unwrap_err();
        assert!(is_silent(&error), "{error}");
        assert!(error.to_string().contains("nothing was done"), "{error}");
        // The node goes on, and finds the request of the client that has gone.
        let (stream, _) = listener.accept().unwrap();
        answer(&stream, |request| panic!("{request:?} is carried out"));
    }

    #[test]
    fn a_node_says_that_it_works_before_it_begins_and_meanwhile() {
        let (node, mut client) = UnixStream::pair().unwrap();
        let (told, is_told) = channel::<()>();
        let is_told = std::sync::Mutex::new(is_told);
        let working = std::thread::spawn(move || {
            // It ends when the client has heard twice that it works.
            answer(&node, |_| {
                is_told.lock().unwrap().recv().unwrap();
                Ok(Value::Null)
            });
        });
        send(&client, &AdminRequest::Drain { partition: 1 }).unwrap();
        for _ in 0..2 {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"\n");
        }
        told.send(()).unwrap();
        let mut rest = String::new();
        client.read_to_string(&mut rest).unwrap();
        working.join().unwrap();
        assert_eq!(rest.trim(), r#"{"done":null}"#);
    }

    #[test]
    fn a_node_that_has_begun_and_ends_may_have_done_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = socket_path(folder.path());
        let listener = listen(&path).unwrap();
        let node = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let _: AdminRequest = receive(&stream).unwrap();
            say_alive(&stream).unwrap();
        });
        let error = request(&path, &AdminRequest::Init).unwrap_err();
        node.join().unwrap();
        // No other node is asked, and it is not repeated.
        assert!(matches!(error, Error::Backend { .. }), "{error:?}");
        assert!(error.to_string().contains("may yet do it"), "{error}");
    }

    #[test]
    fn a_node_that_has_begun_and_stops_may_have_done_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = socket_path(folder.path());
        let listener = listen(&path).unwrap();
        let node = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let _: AdminRequest = receive(&stream).unwrap();
            say_alive(&stream).unwrap();
            stream
        });
        let error = request_within(&path, &AdminRequest::Init, Duration::from_secs(1));
        let error = error.unwrap_err().to_string();
        assert!(error.contains("may yet do"), "{error}");
        drop(node.join().unwrap());
    }
}
