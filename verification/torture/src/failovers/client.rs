//! A RESP client: it writes and reads registers of the round at the owner, and takes a reply for
//! true when `WAIT` says that a follower has it.
//!
//! It reads in transactions that write as well: so `WAIT` covers what was read.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nearstate_resp_client::{RespClient, RespReply, encode_request};

use super::shared_files::{HISTORY, history_key};
use super::writer::value_of;
use crate::clock::now_ns;
use crate::histories::history::{HistoryOp, ReadValue, WrittenValue};
use crate::histories::model::HistoryModel;
use crate::rng::Rng;

/// How long a connection may take: a cut host does not answer.
const CONNECT_MAX: Duration = Duration::from_millis(20);

/// How long a reply may take. Then the client looks for another owner.
const REPLY_MAX: Duration = Duration::from_millis(60);

/// The same in milliseconds, for `WAIT`.
const WAIT_MS: &[u8] = b"50";

/// The pause between two requests, and between two looks for the owner.
const PAUSE: Duration = Duration::from_millis(1);

/// A reply: when, and from which host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyTime {
    pub(super) at: u64,
    pub(super) host: usize,
}

/// What the clients of a round have seen so far.
#[derive(Debug, Default)]
pub(super) struct RoundReplies(Mutex<Vec<ReplyTime>>);

impl RoundReplies {
    fn push(&self, reply: ReplyTime) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(reply);
    }

    pub(super) fn any(&self, is_wanted: impl Fn(&ReplyTime) -> bool) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().any(is_wanted)
    }

    pub(super) fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// In the order of their times.
    pub(super) fn sorted(self) -> Vec<ReplyTime> {
        let mut replies = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        replies.sort_unstable_by_key(|reply| reply.at);
        replies
    }
}

/// What a client did in a round.
#[derive(Debug, Default)]
pub(super) struct ClientRecord {
    pub(super) ops: Vec<HistoryOp>,
}

/// One client of a round.
pub(super) struct RoundClient<'r> {
    pub(super) number: u32,
    pub(super) round: u64,
    pub(super) addresses: &'r [SocketAddr],
    /// The host that is asked first.
    pub(super) host: usize,
    pub(super) rng: Rng,
    pub(super) is_over: &'r AtomicBool,
    pub(super) replies: &'r RoundReplies,
}

/// A request of a round: which registers are read, and which is written.
struct RegisterRequest {
    reads: Vec<u32>,
    write: Option<WrittenValue>,
}

impl RoundClient<'_> {
    /// Sends requests until the round is over.
    pub(super) fn run(mut self) -> ClientRecord {
        let mut record = ClientRecord::default();
        while !self.is_over.load(Ordering::Acquire) {
            if let Some(client) = self.connect() {
                self.converse(client, &mut record);
            }
            // Another host may own the partition.
            self.host = (self.host + 1) % self.addresses.len();
            std::thread::sleep(PAUSE);
        }
        record
    }

    fn connect(&self) -> Option<RespClient<TcpStream>> {
        let address = self.addresses.get(self.host)?;
        let stream = TcpStream::connect_timeout(address, CONNECT_MAX).ok()?;
        stream.set_nodelay(true).ok()?;
        stream.set_read_timeout(Some(REPLY_MAX)).ok()?;
        stream.set_write_timeout(Some(REPLY_MAX)).ok()?;
        Some(RespClient::new(stream))
    }

    /// Until a reply is missing or refuses.
    fn converse(&mut self, mut client: RespClient<TcpStream>, record: &mut ClientRecord) {
        while !self.is_over.load(Ordering::Acquire) {
            let request = self.draw(record.ops.len());
            let call = now_ns();
            let reply = self.ask(&mut client, &request);
            let ret = now_ns();
            let is_told = reply.is_some();
            record.ops.push(HistoryOp {
                client: self.number,
                call,
                ret: if is_told { ret } else { 0 },
                is_unknown: !is_told,
                reads: reply.unwrap_or_default(),
                writes: request.write.into_iter().collect(),
            });
            if !is_told {
                return;
            }
            self.replies.push(ReplyTime { at: ret, host: self.host });
            std::thread::sleep(PAUSE);
        }
    }

    fn draw(&mut self, number: usize) -> RegisterRequest {
        let key = |rng: &mut Rng| rng.u32(..HistoryModel::Registers.keys());
        let value = u64::from(self.number + 1) << 56 | self.round << 32 | number as u64;
        let written = WrittenValue { key: key(&mut self.rng), value, payload: 0 };
        let (one, other) = (key(&mut self.rng), key(&mut self.rng));
        match self.rng.u32(..3) {
            0 => RegisterRequest { reads: Vec::new(), write: Some(written) },
            1 => RegisterRequest { reads: vec![one], write: Some(written) },
            _ => RegisterRequest { reads: vec![one, other], write: None },
        }
    }

    /// What was read, if a follower has it.
    fn ask(
        &self,
        client: &mut RespClient<TcpStream>,
        request: &RegisterRequest,
    ) -> Option<Vec<(u32, ReadValue)>> {
        let key = |key: &u32| format!("{{{HISTORY}}},{}", history_key(self.round, *key));
        let mut bytes = Vec::new();
        let mut commands = 0;
        let mut add = |words: &[&[u8]]| {
            encode_request(words, &mut bytes);
            commands += 1;
        };
        add(&[b"MULTI"]);
        for read in &request.reads {
            add(&[b"GET", key(read).as_bytes()]);
        }
        // A read without a write marks its place in the log.
        let mark = format!("{{{HISTORY}}},mark{}", self.number);
        let (to, value) = match &request.write {
            Some(write) => (key(&write.key), format!("{:x}", write.value)),
            None => (mark, String::new()),
        };
        add(&[b"SET", to.as_bytes(), value.as_bytes()]);
        add(&[b"EXEC"]);
        add(&[b"WAIT", b"1", WAIT_MS]);
        client.send(&bytes).ok()?;
        let mut replies = Vec::new();
        for _ in 0..commands {
            replies.push(client.receive().ok()?);
        }
        let [.., RespReply::Array(done), RespReply::Integer(1..)] = replies.as_slice() else {
            return None;
        };
        let (set, values) = done.split_last()?;
        if !set.is_ok() || values.len() != request.reads.len() {
            return None;
        }
        let value = |reply: &RespReply| {
            let bytes = reply.clone().into_bulk().ok()?;
            Some(value_of(bytes.as_deref()))
        };
        request.reads.iter().zip(values).map(|(key, reply)| Some((*key, value(reply)?))).collect()
    }
}
