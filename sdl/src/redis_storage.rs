//! The Redis back-end. It uses the keys of O-RAN's SDL clients, `{namespace},key`, so that both
//! access the same records.
//!
//! A stock Redis has no compare-and-set, so the conditional operations are scripts, which are
//! atomic. (The reference back-end of O-RAN loads a module for them, which compares up to the first
//! NUL only; scripts compare all bytes.) Keys are listed with `SCAN`, which does not block the
//! server as the `KEYS` of O-RAN's clients does.

use std::fmt;
use std::time::Duration;

use redis::{Client, Cmd, Connection, ErrorKind as RedisKind, FromRedisValue, RedisError};

use crate::error::{Error, ErrorKind, Result};
use crate::remote::{
    BATCH_KEYS, LISTINGS_MAX, TIMEOUT, duration, escaped, is_unreachable, kind_of_code, redis_key,
    remove_in_batches, wait_ready,
};
use crate::storage::{KeySet, SyncStorage};
use crate::validate;

/// Removes the key's expiration time, as `SETIE` of O-RAN's module does.
const SET_IF: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                      redis.call('SET', KEYS[1], ARGV[2]) return 1 end return 0";
const REMOVE_IF: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                         redis.call('DEL', KEYS[1]) return 1 end return 0";

/// What an `ERR` begins with that was refused before anything was changed.
const REFUSED_ERRORS: [&str; 3] = ["Protocol error", "unknown command", "wrong number of"];

/// The `ERR` of a server whose clients are as many as it may have.
const TOO_MANY_CLIENTS: &str = "max number of clients reached";

/// A Redis server. The first operation connects to it.
pub struct RedisStorage {
    client: Client,
    timeout: Duration,
    connection: Option<Connection>,
}

impl fmt::Debug for RedisStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the client: its URL may contain a password.
        f.debug_struct("RedisStorage")
            .field("address", &self.client.get_connection_info().addr().to_string())
            .field("timeout", &self.timeout)
            .field("is_connected", &self.connection.is_some())
            .finish()
    }
}

impl RedisStorage {
    /// Opens a URL; see [`crate::open()`]. Connects with the first operation.
    ///
    /// # Errors
    /// `RejectedBySdl` for an invalid URL.
    pub fn open(url: &str) -> Result<Self> {
        let (url, timeout) = take_timeout(url)?;
        let client = Client::open(url).map_err(|error| {
            Error::refused(format!(
                "{error}: give redis://host:port or redis+unix:///path of a socket"
            ))
        })?;
        Ok(Self { client, timeout, connection: None })
    }

    fn connection(&mut self) -> Result<&mut Connection> {
        let open = match self.connection.take() {
            Some(open) => open,
            None => connect(&self.client, self.timeout)?,
        };
        Ok(self.connection.insert(open))
    }

    /// Sends a command and reads its reply.
    fn request<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T> {
        let reply = command.query(self.connection()?);
        reply.map_err(|error| self.failed(&error))
    }

    /// As `request`, for an idempotent command: repeats it once over a new connection if the old
    /// one has ended, as after a restart of the server.
    fn request_idempotent<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T> {
        let was_connected = self.connection.is_some();
        match command.query(self.connection()?) {
            Err(error) if was_connected && error.is_connection_dropped() && !error.is_timeout() => {
                self.connection = None;
                self.request(command)
            }
            reply => reply.map_err(|error| self.failed(&error)),
        }
    }

    /// Maps an error. A connection whose replies may be out of step is not used again.
    fn failed(&mut self, error: &RedisError) -> Error {
        if !matches!(error.kind(), RedisKind::Server(_) | RedisKind::Extension) {
            self.connection = None;
        }
        error_reply(error)
    }

    /// The keys of a namespace that match a glob, without the prefix of the namespace.
    fn matching(&mut self, namespace: &str, pattern: &[u8]) -> Result<KeySet> {
        validate::namespace(namespace)?;
        let prefix = redis_key(namespace, b"");
        let mut whole = escaped(&prefix);
        whole.extend_from_slice(pattern);
        for _ in 0..LISTINGS_MAX {
            if let Some(keys) = self.listing((&prefix, &whole))? {
                return Ok(keys);
            }
        }
        let detail = format!("the server ended the connection in {LISTINGS_MAX} listings of keys");
        Err(Error::backend(ErrorKind::NotConnected, detail))
    }

    /// One listing. `None`: its connection ended. A cursor belongs to the process of a server,
    /// which may be another one now: its listing would lack keys. So the caller begins again.
    fn listing(&mut self, (prefix, whole): (&[u8], &[u8])) -> Result<Option<KeySet>> {
        let mut keys = KeySet::new();
        let mut cursor = 0_u64;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(whole).arg("COUNT").arg(BATCH_KEYS);
            let reply: (u64, Vec<Vec<u8>>) = if cursor == 0 {
                self.request_idempotent(&scan)?
            } else {
                match scan.query(self.connection()?) {
                    Err(error) if error.is_connection_dropped() && !error.is_timeout() => {
                        self.connection = None;
                        return Ok(None);
                    }
                    reply => reply.map_err(|error| self.failed(&error))?,
                }
            };
            let (next, found) = reply;
            keys.extend(
                found.iter().filter_map(|key| key.strip_prefix(prefix).map(<[u8]>::to_vec)),
            );
            if next == 0 {
                return Ok(Some(keys));
            }
            cursor = next;
        }
    }
}

fn connect(client: &Client, timeout: Duration) -> Result<Connection> {
    let open = || -> redis::RedisResult<Connection> {
        let connection = client.get_connection_with_timeout(timeout)?;
        connection.set_read_timeout(Some(timeout))?;
        connection.set_write_timeout(Some(timeout))?;
        Ok(connection)
    };
    open().map_err(|error| {
        let address = client.get_connection_info().addr().to_string();
        let is_refused = error.kind() == RedisKind::AuthenticationFailed;
        let kind = if is_refused { ErrorKind::RejectedByBackend } else { ErrorKind::NotConnected };
        Error::backend(kind, format!("{address}: {error}"))
    })
}

/// Maps an error to one of the five kinds. A refusal says that nothing was changed.
fn error_reply(error: &RedisError) -> Error {
    let kind = match error.code() {
        _ if matches!(error.kind(), RedisKind::Io | RedisKind::Parse) => {
            ErrorKind::OperationInterrupted
        }
        Some(code) => kind_of_reply(code, error.detail().unwrap_or_default()),
        None => ErrorKind::BackendFailure,
    };
    Error::backend(kind, error.to_string())
}

/// The kind of an error reply with this code and this text after it.
fn kind_of_reply(code: &str, text: &str) -> ErrorKind {
    if code == "ERR" && text.starts_with(TOO_MANY_CLIENTS) {
        return ErrorKind::NotConnected;
    }
    if code == "ERR" && REFUSED_ERRORS.iter().any(|refused| text.starts_with(refused)) {
        return ErrorKind::RejectedByBackend;
    }
    kind_of_code(code).unwrap_or(ErrorKind::BackendFailure)
}

/// Removes the option `timeout` from a URL; the client library parses the others.
fn take_timeout(url: &str) -> Result<(String, Duration)> {
    let Some((address, options)) = url.split_once('?') else {
        return Ok((url.to_owned(), TIMEOUT));
    };
    let mut timeout = TIMEOUT;
    let mut others = Vec::new();
    for option in options.split('&') {
        match option.strip_prefix("timeout=") {
            Some(value) => timeout = duration(value)?,
            None => others.push(option),
        }
    }
    let mark = if others.is_empty() { "" } else { "?" };
    Ok((format!("{address}{mark}{}", others.join("&")), timeout))
}

impl SyncStorage for RedisStorage {
    fn is_ready(&mut self, namespace: &str) -> Result<bool> {
        validate::namespace(namespace)?;
        match self.request_idempotent::<()>(&redis::cmd("PING")) {
            Ok(()) => Ok(true),
            Err(error) if is_unreachable(error.kind) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn wait_ready(&mut self, namespace: &str, timeout: Duration) -> Result<()> {
        let address = self.client.get_connection_info().addr().to_string();
        wait_ready(self, &address, namespace, timeout)
    }

    fn set(&mut self, namespace: &str, pairs: &[(&[u8], &[u8])]) -> Result<()> {
        validate::namespace(namespace)?;
        validate::set(pairs)?;
        let mut command = redis::cmd("MSET");
        for (key, value) in pairs {
            command.arg(redis_key(namespace, key)).arg(*value);
        }
        if pairs.is_empty() { Ok(()) } else { self.request(&command) }
    }

    fn set_if(&mut self, namespace: &str, key: &[u8], old: &[u8], new: &[u8]) -> Result<bool> {
        validate::namespace(namespace)?;
        validate::compared(key, old, new)?;
        let mut command = redis::cmd("EVAL");
        command.arg(SET_IF).arg(1).arg(redis_key(namespace, key)).arg(old).arg(new);
        self.request(&command)
    }

    fn set_if_not_exists(&mut self, namespace: &str, key: &[u8], value: &[u8]) -> Result<bool> {
        validate::namespace(namespace)?;
        validate::record(key, value)?;
        self.request(redis::cmd("SETNX").arg(redis_key(namespace, key)).arg(value))
    }

    fn visit(
        &mut self,
        namespace: &str,
        keys: &[&[u8]],
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        validate::namespace(namespace)?;
        validate::read(keys.len())?;
        if keys.is_empty() {
            return Ok(());
        }
        let mut command = redis::cmd("MGET");
        for key in keys {
            command.arg(redis_key(namespace, key));
        }
        let values: Vec<Option<Vec<u8>>> = self.request_idempotent(&command)?;
        for (key, value) in keys.iter().zip(values) {
            if let Some(value) = value {
                each(key, &value);
            }
        }
        Ok(())
    }

    fn remove(&mut self, namespace: &str, keys: &[&[u8]]) -> Result<()> {
        validate::namespace(namespace)?;
        validate::remove(keys)?;
        let mut command = redis::cmd("DEL");
        for key in keys {
            command.arg(redis_key(namespace, key));
        }
        if keys.is_empty() { Ok(()) } else { self.request(&command) }
    }

    fn remove_if(&mut self, namespace: &str, key: &[u8], value: &[u8]) -> Result<bool> {
        validate::namespace(namespace)?;
        validate::record(key, value)?;
        let mut command = redis::cmd("EVAL");
        command.arg(REMOVE_IF).arg(1).arg(redis_key(namespace, key)).arg(value);
        self.request(&command)
    }

    fn list_keys(&mut self, namespace: &str, pattern: &[u8]) -> Result<KeySet> {
        self.matching(namespace, pattern)
    }

    fn find_keys(&mut self, namespace: &str, prefix: &[u8]) -> Result<KeySet> {
        let mut pattern = escaped(prefix);
        pattern.push(b'*');
        self.matching(namespace, &pattern)
    }

    fn remove_all(&mut self, namespace: &str) -> Result<()> {
        let keys = self.matching(namespace, b"*")?;
        remove_in_batches(self, namespace, &keys)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn redis_keys_are_those_of_the_sdl_clients() {
        assert_eq!(redis_key("go-ns", b"a"), b"{go-ns},a");
        assert_eq!(redis_key("ns", b"a,b\0"), b"{ns},a,b\0");
    }

    #[test]
    fn the_timeout_option_is_parsed_and_the_rest_is_left_to_the_library() {
        let parsed = |url| take_timeout(url).unwrap();
        assert_eq!(parsed("redis://h"), ("redis://h".to_owned(), TIMEOUT));
        assert_eq!(
            parsed("redis://h?timeout=3s"),
            ("redis://h".to_owned(), Duration::from_secs(3))
        );
        let (url, timeout) = parsed("redis+unix:///s?db=1&timeout=250ms&pass=x");
        assert_eq!((url.as_str(), timeout.as_millis()), ("redis+unix:///s?db=1&pass=x", 250));
        for wrong in ["", "3", "0s", "-1s", "1h", "ms", "s"] {
            assert!(take_timeout(&format!("redis://h?timeout={wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_code_of_a_refusal_says_that_nothing_was_changed() {
        for (reply, kind) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", "refused"),
            ("READONLY You can't write against a read only replica.", "refused"),
            ("MISCONF Redis is configured to save RDB snapshots", "refused"),
            ("NOREPLICAS Not enough good replicas to write.", "refused"),
            ("WRONGTYPE Operation against a key", "refused"),
            ("MOVED 3999 127.0.0.1:6381", "refused"),
            ("ERR unknown command 'MSET', with args", "refused"),
            ("ERR Protocol error: invalid bulk length", "refused"),
            ("BUSY Redis is busy running a script.", "later"),
            ("LOADING Redis is loading the dataset in memory", "later"),
            ("MASTERDOWN Link with MASTER is down", "later"),
            ("ERR max number of clients reached", "later"),
            ("NOTREPLICATED after 1000 ms", "open"),
            ("PARTIAL OOM full: the heap", "failed"),
            ("ERR Error running script", "failed"),
        ] {
            let kind = match kind {
                "refused" => ErrorKind::RejectedByBackend,
                "later" => ErrorKind::NotConnected,
                "open" => ErrorKind::OperationInterrupted,
                _ => ErrorKind::BackendFailure,
            };
            let (code, text) = reply.split_once(' ').unwrap();
            assert_eq!(kind_of_reply(code, text), kind, "{reply}");
        }
    }

    #[test]
    fn a_password_is_not_printed() {
        let storage = RedisStorage::open("redis://me:hidden-word@127.0.0.1:1/0").unwrap();
        assert!(!format!("{storage:?}").contains("hidden-word"));
    }

    proptest! {
        #[test]
        fn any_url_selects_a_backend_or_is_an_error(rest in ".{0,40}") {
            let _ = RedisStorage::open(&format!("redis:{rest}"));
            let _ = RedisStorage::open(&format!("redis+unix:{rest}"));
        }

        #[test]
        fn escaped_bytes_match_themselves_and_nothing_else(
            bytes in prop::collection::vec(any::<u8>(), 0..20),
            other in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let glob = escaped(&bytes);
            prop_assert!(nearstate_store::glob::matches(&glob, &bytes));
            prop_assert_eq!(nearstate_store::glob::matches(&glob, &other), bytes == other);
        }
    }
}
