//! The back-end of a node on this host: its region, if the node grants it, else a ring in shared
//! memory (`spec/local-transport.md`). The records are the same.
//!
//! A mapped region needs no node. The connection over which it was granted is kept, however: when
//! it ends, the next node is asked for its region, and a different region replaces the old one.
//! Otherwise the client would continue with a file that no other process uses.

mod mapped;
mod replies;

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nearstate_local_transport::{LocalRing, Response, connect, request_region, request_ring};
use nearstate_resp_client::{RespClient, RespReply};
use nearstate_store::{Error as StoreError, since_boot};

use crate::error::{Error, ErrorKind, Result};
use crate::region_storage::RegionStorage;
use crate::region_url::boolean;
use crate::remote::{
    BATCH_KEYS, LISTINGS_MAX, TIMEOUT, duration, escaped, is_unreachable, redis_key,
    remove_in_batches, wait_ready,
};
use crate::storage::{KeySet, SyncStorage};
use crate::validate;
use mapped::{FileId, MappedRegion, MappedState};
use replies::{error_reply, refusal_kind};

/// How long operations on a mapped region wait for a new node to grant its region.
const RENEWED_WITHIN: Duration = Duration::from_millis(200);

/// How records are accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalAccess {
    /// The region is mapped. No node is involved.
    Region,
    /// Requests go to the node through a ring in shared memory.
    Ring,
}

/// Credentials for `AUTH`.
struct Credentials {
    name: String,
    password: String,
}

/// A node of this host.
pub struct LocalStorage {
    path: PathBuf,
    timeout: Duration,
    user: Option<Credentials>,
    /// The access that the URL requires; `None`: the region, and if that is refused, a ring.
    wanted: Option<LocalAccess>,
    /// Also accept a socket or a region that belongs to another user.
    any_owner: bool,
    open: LocalConnection,
}

enum LocalConnection {
    /// Not connected.
    Closed,
    Region(Box<MappedRegion>),
    Ring(Box<RespClient<LocalRing>>),
}

/// The result of a connection attempt.
enum ConnectResult {
    /// The node granted the file that is mapped already.
    Same(UnixStream),
    Other(LocalConnection),
}

impl fmt::Debug for LocalStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the credentials: they contain the password.
        f.debug_struct("LocalStorage")
            .field("path", &self.path)
            .field("timeout", &self.timeout)
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}

impl LocalStorage {
    /// Opens `/path?option=value&..`; see [`crate::open()`]. Connects at once if the node is
    /// reachable, else with the first operation.
    ///
    /// # Errors
    /// `RejectedBySdl` for an invalid URL, `RejectedByBackend` if the node refuses.
    pub fn open(url: &str) -> Result<Self> {
        let mut storage = Self::parse(url)?;
        match storage.connected() {
            Err(error) if !is_unreachable(error.kind) => Err(error),
            _ => Ok(storage),
        }
    }

    fn parse(url: &str) -> Result<Self> {
        let (path, options) = url.split_once('?').unwrap_or((url, ""));
        if path.is_empty() {
            return Err(Error::refused(
                "the URL has no path; give local:/path of a node's Unix socket",
            ));
        }
        let (mut timeout, mut wanted, mut any_owner) = (TIMEOUT, None, false);
        let (mut name, mut password) = (None, None);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=').unwrap_or((option, "")) {
                ("timeout", value) => timeout = duration(value)?,
                ("user", value) => name = Some(value.to_owned()),
                ("password", value) => password = Some(value.to_owned()),
                ("way", "region") => wanted = Some(LocalAccess::Region),
                ("way", "ring") => wanted = Some(LocalAccess::Ring),
                ("way", value) => {
                    return Err(Error::refused(format!(
                        "way={value} is not supported; give region or ring"
                    )));
                }
                ("any_owner", value) => any_owner = boolean("any_owner", value)?,
                (name, _) => {
                    return Err(Error::refused(format!(
                        "unknown option `{name}`; give timeout, user, password, way or any_owner"
                    )));
                }
            }
        }
        let user = match (name, password) {
            (None, None) => None,
            (name, Some(password)) => {
                Some(Credentials { name: name.unwrap_or_else(|| "default".to_owned()), password })
            }
            (Some(_), None) => {
                return Err(Error::refused("the URL has a user without a password; add password="));
            }
        };
        let path = PathBuf::from(path);
        Ok(Self { path, timeout, user, wanted, any_owner, open: LocalConnection::Closed })
    }

    /// How records are accessed; `None` while not connected.
    pub fn access(&self) -> Option<LocalAccess> {
        match &self.open {
            LocalConnection::Closed => None,
            LocalConnection::Region(_) => Some(LocalAccess::Region),
            LocalConnection::Ring(_) => Some(LocalAccess::Ring),
        }
    }

    fn connected(&mut self) -> Result<&mut LocalConnection> {
        if matches!(self.open, LocalConnection::Closed)
            && let ConnectResult::Other(open) = self.connect(self.timeout, None)?
        {
            self.open = open;
        }
        Ok(&mut self.open)
    }

    /// Requests the region again if the node that granted it has ended. Without a node the mapped
    /// region stays, unless its file was removed.
    fn renew(&mut self) -> Result<()> {
        let LocalConnection::Region(mapped) = &mut self.open else { return Ok(()) };
        let (state, file) = (mapped.check(), mapped.file);
        if state == MappedState::Current {
            return Ok(());
        }
        let start = since_boot();
        let next = self.connect(self.timeout.min(RENEWED_WITHIN), Some(file));
        let LocalConnection::Region(mapped) = &mut self.open else { return Ok(()) };
        match next {
            Ok(ConnectResult::Same(node)) => mapped.renewed(node),
            Ok(ConnectResult::Other(open)) => self.open = open,
            Err(error) if !is_unreachable(error.kind) => {
                self.open = LocalConnection::Closed;
                return Err(error);
            }
            Err(error) if state == MappedState::Removed || mapped.is_removed() => {
                self.open = LocalConnection::Closed;
                let detail = format!(
                    "{}: the region that the node granted was removed, and no node grants another \
                     ({error}); start one",
                    self.path.display()
                );
                return Err(Error::backend(ErrorKind::NotConnected, detail));
            }
            Err(_) => mapped.missed(start),
        }
        Ok(())
    }

    /// Requests a region or a ring. `known` is the file that is mapped already, which is not
    /// attached again.
    fn connect(&self, timeout: Duration, known: Option<FileId>) -> Result<ConnectResult> {
        let away = |error: io::Error| self.lost(ErrorKind::NotConnected, &error);
        let socket = connect(&self.path, timeout, self.any_owner).map_err(|error| {
            if let StoreError::BadArgument { detail } = error {
                Error::refused(detail)
            } else {
                Error::backend(ErrorKind::NotConnected, error.to_string())
            }
        })?;
        let socket = self.authenticate(socket)?;
        let mut refusal = String::new();
        if self.wanted != Some(LocalAccess::Ring) {
            match request_region(&socket).map_err(away)? {
                Response::Refused(text) => refusal = text,
                Response::Granted(files) => {
                    if known.is_some() && FileId::of(&files).ok() == known {
                        return Ok(ConnectResult::Same(socket));
                    }
                    let name = PathBuf::from(format!("local:{}", self.path.display()));
                    let kept = socket.try_clone().map_err(away)?;
                    match MappedRegion::new(files, &name, kept) {
                        Ok(mapped) => {
                            return Ok(ConnectResult::Other(LocalConnection::Region(Box::new(
                                mapped,
                            ))));
                        }
                        // Possibly only this process cannot map it: try a ring.
                        Err(error) => refusal = error.to_string(),
                    }
                    // The clone shares this flag with the socket.
                    socket.set_nonblocking(false).map_err(away)?;
                }
            }
        }
        if self.wanted == Some(LocalAccess::Region) {
            return Err(self.refused(&refusal));
        }
        match request_ring(&socket).map_err(away)? {
            Response::Refused(text) => Err(self.refused(&text)),
            Response::Granted(memory) => {
                let mut ring = LocalRing::new(memory, socket, self.timeout)?;
                ring.limit_requests();
                Ok(ConnectResult::Other(LocalConnection::Ring(Box::new(RespClient::new(ring)))))
            }
        }
    }

    /// Authenticates, if the URL has credentials.
    fn authenticate(&self, socket: UnixStream) -> Result<UnixStream> {
        let Some(user) = &self.user else { return Ok(socket) };
        let mut client = RespClient::new(socket);
        let auth: [&[u8]; 3] = [b"AUTH", user.name.as_bytes(), user.password.as_bytes()];
        let reply = client.request(&auth).map_err(|e| self.lost(ErrorKind::NotConnected, &e))?;
        match (reply, client.into_stream()) {
            (RespReply::Simple(_), Some(socket)) => Ok(socket),
            (RespReply::Error(text), _) => Err(self.refused(&String::from_utf8_lossy(&text))),
            _ => Err(self.refused("the reply to AUTH is not one of a node")),
        }
    }

    fn refused(&self, text: &str) -> Error {
        let detail = format!("{}: {text}", self.path.display());
        Error::backend(refusal_kind(text), detail)
    }

    fn lost(&self, kind: ErrorKind, error: &io::Error) -> Error {
        Error::backend(kind, format!("{}: {error}", self.path.display()))
    }

    /// Sends a request through the ring. After an error the ring is not used again, because replies
    /// may be out of step.
    fn request(&mut self, args: &[&[u8]]) -> Result<RespReply> {
        let LocalConnection::Ring(client) = self.connected()? else {
            return Err(Error::refused("this back-end has no ring, which is a bug of the library"));
        };
        match client.request(args) {
            Ok(RespReply::Error(text)) => Err(error_reply(&String::from_utf8_lossy(&text))),
            Ok(reply) => Ok(reply),
            Err(error) => {
                self.open = LocalConnection::Closed;
                Err(self.lost(ErrorKind::OperationInterrupted, &error))
            }
        }
    }

    /// As `request`, for an idempotent request: repeats it once over a new ring if the old one has
    /// ended, as after a restart of the node. `None`: the node grants the region now, and the
    /// caller uses that.
    fn request_idempotent(&mut self, args: &[&[u8]]) -> Result<Option<RespReply>> {
        let was_open = matches!(self.open, LocalConnection::Ring(_));
        let start = Instant::now();
        match self.request(args) {
            Err(error)
                if was_open
                    && error.kind == ErrorKind::OperationInterrupted
                    && start.elapsed() < self.timeout =>
            {
                match self.connected()? {
                    LocalConnection::Ring(_) => self.request(args).map(Some),
                    LocalConnection::Region(_) => Ok(None),
                    LocalConnection::Closed => Err(error),
                }
            }
            reply => reply.map(Some),
        }
    }

    /// The region, if that is the access.
    fn region(&mut self) -> Result<Option<&mut RegionStorage>> {
        self.renew()?;
        match self.connected()? {
            LocalConnection::Region(mapped) => Ok(Some(&mut mapped.storage)),
            LocalConnection::Closed | LocalConnection::Ring(_) => Ok(None),
        }
    }

    /// The keys of a namespace that match a glob, without the prefix of the namespace.
    fn matching(&mut self, namespace: &str, pattern: &[u8]) -> Result<KeySet> {
        validate::namespace(namespace)?;
        let prefix = redis_key(namespace, b"");
        let mut whole = escaped(&prefix);
        whole.extend_from_slice(pattern);
        for _ in 0..LISTINGS_MAX {
            // Another node may grant the region.
            if let Some(region) = self.region()? {
                return region.list_keys(namespace, pattern);
            }
            if let Some(keys) = self.listing((&prefix, &whole))? {
                return Ok(keys);
            }
        }
        let detail = format!("the node ended the ring in {LISTINGS_MAX} listings of keys");
        Err(Error::backend(ErrorKind::NotConnected, detail))
    }

    /// One listing. `None`: its ring has ended. A cursor belongs to the process of a node, which
    /// may be another one now: its listing would lack keys. So the caller begins again.
    fn listing(&mut self, (prefix, whole): (&[u8], &[u8])) -> Result<Option<KeySet>> {
        let count = BATCH_KEYS.to_string();
        let mut keys = KeySet::new();
        let mut cursor = b"0".to_vec();
        loop {
            let scan: [&[u8]; 6] = [b"SCAN", &cursor, b"MATCH", whole, b"COUNT", count.as_bytes()];
            let start = Instant::now();
            let reply = match self.request(&scan) {
                Err(error)
                    if error.kind == ErrorKind::OperationInterrupted
                        && start.elapsed() < self.timeout =>
                {
                    return Ok(None);
                }
                reply => reply?,
            };
            let RespReply::Array(step) = reply else { return Err(unexpected_reply("SCAN")) };
            let [RespReply::Bulk(next), RespReply::Array(found)] = step.as_slice() else {
                return Err(unexpected_reply("SCAN"));
            };
            for key in found {
                let RespReply::Bulk(key) = key else { return Err(unexpected_reply("SCAN")) };
                keys.extend(key.strip_prefix(prefix).map(<[u8]>::to_vec));
            }
            if next == b"0" {
                return Ok(Some(keys));
            }
            cursor.clone_from(next);
        }
    }
}

/// An unexpected reply.
fn unexpected_reply(command: &str) -> Error {
    let detail = format!("the reply to {command} is not one of this release");
    Error::backend(ErrorKind::BackendFailure, detail)
}

/// The arguments of a command with keys.
fn with_keys<'a>(command: &'a [u8], keys: &'a [Vec<u8>]) -> Vec<&'a [u8]> {
    std::iter::once(command).chain(keys.iter().map(Vec::as_slice)).collect()
}

impl SyncStorage for LocalStorage {
    fn is_ready(&mut self, namespace: &str) -> Result<bool> {
        validate::namespace(namespace)?;
        let ready = match self.region() {
            Ok(Some(region)) => region.is_ready(namespace),
            // A region that is granted only now is there.
            Ok(None) => self.request_idempotent(&[b"PING"]).map(|_| true),
            Err(error) => Err(error),
        };
        match ready {
            Err(error) if is_unreachable(error.kind) => Ok(false),
            ready => ready,
        }
    }

    fn wait_ready(&mut self, namespace: &str, timeout: Duration) -> Result<()> {
        let node = self.path.display().to_string();
        wait_ready(self, &node, namespace, timeout)
    }

    fn set(&mut self, namespace: &str, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        validate::namespace(namespace)?;
        validate::set(pairs)?;
        if let Some(region) = self.region()? {
            return region.set(namespace, pairs);
        }
        let keys: Vec<_> = pairs.iter().map(|(key, _)| redis_key(namespace, key)).collect();
        let mut args: Vec<&[u8]> = vec![b"MSET"];
        for (key, (_, value)) in keys.iter().zip(pairs) {
            args.extend([key.as_slice(), value]);
        }
        if pairs.is_empty() { Ok(()) } else { self.request(&args).map(drop) }
    }

    fn set_if(&mut self, namespace: &str, key: &[u8], old: &[u8], new: &[u8]) -> Result<bool> {
        validate::namespace(namespace)?;
        validate::compared(key, old, new)?;
        if let Some(region) = self.region()? {
            return region.set_if(namespace, key, old, new);
        }
        let reply = self.request(&[b"SETIE", &redis_key(namespace, key), new, old])?;
        let is_set = matches!(reply, RespReply::Simple(_));
        if is_set || matches!(reply, RespReply::Null(_)) {
            Ok(is_set)
        } else {
            Err(unexpected_reply("SETIE"))
        }
    }

    fn set_if_not_exists(&mut self, namespace: &str, key: &[u8], value: &[u8]) -> Result<bool> {
        validate::namespace(namespace)?;
        validate::record(key, value)?;
        if let Some(region) = self.region()? {
            return region.set_if_not_exists(namespace, key, value);
        }
        let reply = self.request(&[b"SETNX", &redis_key(namespace, key), value])?;
        let RespReply::Integer(count) = reply else { return Err(unexpected_reply("SETNX")) };
        Ok(count == 1)
    }

    fn visit(
        &mut self,
        namespace: &str,
        keys: &[&[u8]],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        validate::namespace(namespace)?;
        validate::read(keys.len())?;
        if let Some(region) = self.region()? {
            return region.visit(namespace, keys, each);
        }
        if keys.is_empty() {
            return Ok(());
        }
        let named: Vec<_> = keys.iter().map(|key| redis_key(namespace, key)).collect();
        match self.request_idempotent(&with_keys(b"MGET", &named))? {
            Some(RespReply::Array(values)) => {
                for (key, value) in keys.iter().zip(values) {
                    if let RespReply::Bulk(value) = value {
                        each(key, &value);
                    }
                }
                Ok(())
            }
            Some(_) => Err(unexpected_reply("MGET")),
            // Nothing was reported yet.
            None => match &mut self.open {
                LocalConnection::Region(mapped) => mapped.storage.visit(namespace, keys, each),
                LocalConnection::Closed | LocalConnection::Ring(_) => Err(Error::refused(
                    "this back-end has no region, which is a bug of the library",
                )),
            },
        }
    }

    fn remove(&mut self, namespace: &str, keys: &[&[u8]]) -> Result<()> {
        validate::namespace(namespace)?;
        validate::remove(keys)?;
        if let Some(region) = self.region()? {
            return region.remove(namespace, keys);
        }
        let named: Vec<_> = keys.iter().map(|key| redis_key(namespace, key)).collect();
        if keys.is_empty() { Ok(()) } else { self.request(&with_keys(b"DEL", &named)).map(drop) }
    }

    fn remove_if(&mut self, namespace: &str, key: &[u8], value: &[u8]) -> Result<bool> {
        validate::namespace(namespace)?;
        validate::record(key, value)?;
        if let Some(region) = self.region()? {
            return region.remove_if(namespace, key, value);
        }
        let reply = self.request(&[b"DELIE", &redis_key(namespace, key), value])?;
        let RespReply::Integer(count) = reply else { return Err(unexpected_reply("DELIE")) };
        Ok(count == 1)
    }

    fn list_keys(&mut self, namespace: &str, pattern: &[u8]) -> Result<KeySet> {
        self.matching(namespace, pattern)
    }

    fn find_keys(&mut self, namespace: &str, prefix: &[u8]) -> Result<KeySet> {
        validate::namespace(namespace)?;
        if let Some(region) = self.region()? {
            return region.find_keys(namespace, prefix);
        }
        let mut pattern = escaped(prefix);
        pattern.push(b'*');
        self.matching(namespace, &pattern)
    }

    fn remove_all(&mut self, namespace: &str) -> Result<()> {
        validate::namespace(namespace)?;
        if let Some(region) = self.region()? {
            return region.remove_all(namespace);
        }
        let keys = self.matching(namespace, b"*")?;
        remove_in_batches(self, namespace, &keys)
    }
}

#[cfg(test)]
mod tests;
