//! Several requests in one message.

use super::commands;
use super::guard::{self, WriteGuard, must_be_unique, needs_guard};
use super::{ExtraFields, Resp, RespTable, must_be_whole, resp_table};
use crate::access::{BatchSink, Request, StoreReply};
use crate::targets::wire::Stream;
use nearstate_model::{Error, Result};

/// Requests in one message: the replies must fit into the server's output buffer, because the
/// client does not read while it writes.
const TOGETHER: usize = 256;

fn guard_of<'a>(resp_table: &RespTable, request: &Request<'a>) -> Option<WriteGuard<'a>> {
    match request {
        Request::Read { .. } | Request::Find { .. } => None,
        Request::Put { table, entry } => Some(WriteGuard::of_put(resp_table, *table, entry)),
        Request::Change { table, change } => {
            needs_guard(change).then(|| WriteGuard::of_change(resp_table, *table, change))
        }
        Request::Delete { table, key, tags } => (!tags.is_empty() || resp_table.schema.is_scanned)
            .then(|| WriteGuard::of_delete(*table, key)),
    }
}

impl<S: Stream> Resp<S> {
    #[inline]
    pub(super) fn pipelined(
        &mut self,
        requests: &[Request<'_>],
        receive: &mut BatchSink<'_>,
    ) -> Result<()> {
        for (round, some) in requests.chunks(TOGETHER).enumerate() {
            self.request_all(some)?;
            self.send()?;
            let refused = self.receive_all((round * TOGETHER, some), receive)?;
            self.remove_extra_fields()?;
            refused.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Sends requests before earlier ones were answered.
    pub(super) fn send_requests(&mut self, requests: &[Request<'_>]) -> Result<()> {
        let leaves = S::IS_NON_BLOCKING && self.ahead.may_send();
        if leaves && !requests.is_empty() {
            self.request_all(requests)?;
            if self.ahead.is_owed() { self.wire.send_or_hold()? } else { self.send()? }
        }
        self.ahead.push(leaves);
        Ok(())
    }

    /// The replies to the oldest requests that were sent ahead.
    pub(super) fn receive_requests(
        &mut self,
        requests: &[Request<'_>],
        receive: &mut BatchSink<'_>,
    ) -> Result<()> {
        if !self.ahead.pop() {
            return self.pipelined(requests, receive);
        }
        self.wire.set_busy_poll(self.ahead.is_owed());
        let refused = self.receive_all((0, requests), receive)?;
        self.wire.set_busy_poll(false);
        if !self.ahead.is_owed() {
            self.remove_extra_fields()?;
        }
        refused.map_or(Ok(()), Err)
    }

    /// The replies to a message whose first request has this number; returns the first error.
    fn receive_all(
        &mut self,
        (first, some): (usize, &[Request<'_>]),
        receive: &mut BatchSink<'_>,
    ) -> Result<Option<Error>> {
        let (mut refused, mut key) = (None, Vec::new());
        for (number, request) in (first..).zip(some) {
            let mut part = |part, bytes: &[u8]| receive(number, StoreReply::Part(part, bytes));
            match self.receive_one(request, &mut key, &mut part) {
                Ok(done) => {
                    if done && matches!(request, Request::Find { .. }) {
                        receive(number, StoreReply::Key(&key));
                    }
                    receive(number, StoreReply::Done(done));
                }
                // The later replies must be read in any case.
                Err(e @ Error::TagTaken { .. }) => refused = refused.or(Some(e)),
                Err(e) => return Err(e),
            }
        }
        Ok(refused)
    }

    fn remove_extra_fields(&mut self) -> Result<()> {
        for ExtraFields { table, key, count } in std::mem::take(&mut self.extra_fields) {
            self.remove_fields(table, &key, count)?;
        }
        Ok(())
    }

    /// The guard of a request that needs a script: it has conditions, or writes more than the
    /// record. The node has commands for such requests.
    fn guard_for<'a>(&self, request: &Request<'a>) -> Result<Option<WriteGuard<'a>>> {
        if self.scripts.is_none() {
            return Ok(None);
        }
        let guard = guard_of(resp_table(&self.tables, request.table())?, request);
        Ok(guard.filter(|guard| !guard.is_unconditional() || guard.has_more))
    }

    /// Appends requests to the output: all or none.
    fn request_all(&mut self, requests: &[Request<'_>]) -> Result<()> {
        for request in requests {
            let resp_table = resp_table(&self.tables, request.table())?;
            match request {
                Request::Put { entry, .. } => must_be_whole(resp_table, entry.parts)?,
                Request::Find { tag, .. } => must_be_unique(resp_table, *tag)?,
                Request::Read { .. } | Request::Change { .. } | Request::Delete { .. } => {}
            }
        }
        requests.iter().try_for_each(|request| self.request_one(request))
    }

    fn request_one(&mut self, request: &Request<'_>) -> Result<()> {
        if let Some(native) = self.native(request)? {
            return self.send_tag_command(native, request);
        }
        if let Some(guard) = self.guard_for(request)? {
            return self.request_script(&guard, &|resp_table, out| {
                guard::writes_of(resp_table, request, out);
            });
        }
        let resp_table = resp_table(&self.tables, request.table())?;
        let out = &mut self.wire.out;
        match request {
            Request::Read { key, wanted, .. } => {
                commands::parts_request(out, resp_table, key, *wanted);
            }
            Request::Put { entry, .. } => {
                commands::parts_write(out, resp_table, entry.key, entry.parts, b"");
            }
            Request::Change { change, .. } => commands::change_request(out, resp_table, change),
            Request::Delete { key, .. } => {
                commands::key_request(out, b"DEL", &resp_table.prefix, key);
            }
            Request::Find { table, tag, wanted } => {
                return self.request_find(*table, *tag, *wanted);
            }
        }
        Ok(())
    }

    /// The reply to a request. The key of a found record is written to `found`.
    fn receive_one(
        &mut self,
        request: &Request<'_>,
        found: &mut Vec<u8>,
        receive: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<bool> {
        if let Some(native) = self.native(request)? {
            return native.receive(&mut self.wire);
        }
        if let Some(guard) = self.guard_for(request)? {
            return self.receive_script(&guard);
        }
        match request {
            Request::Read { table, wanted, .. } => self.receive_parts(*table, *wanted, receive),
            Request::Put { .. } => self.wire.skip().map(|()| true),
            Request::Change { table, change } => {
                let count = self.receive_change(*table)?;
                if count > 0 {
                    let key = change.key.to_vec();
                    self.extra_fields.push(ExtraFields { table: *table, key, count });
                }
                Ok(count == 0)
            }
            Request::Delete { .. } => Ok(self.wire.int()? > 0),
            Request::Find { table, wanted, .. } => {
                self.receive_find((*table, *wanted), found, receive)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Dialect;
    use super::*;
    use crate::access::{
        PartSet, PartsChange, StoreConnection as _, StoreSchema, TableId, TableSchema, TagRule,
    };
    use crate::parameters::Parameters;
    use crate::random::AccessDistribution;
    use crate::workloads::micro_tx::MicroTx;
    use crate::workloads::{Tally, WorkloadKind as _};
    use std::io::{Read, Write};

    /// Replies with these bytes in pieces of `step` bytes, but not before a request.
    #[derive(Debug)]
    struct Scripted {
        sent: Vec<Vec<u8>>,
        replies: Vec<u8>,
        at: usize,
        step: usize,
    }

    impl Read for Scripted {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let rest = &self.replies[self.at..];
            let bytes = rest.len().min(self.step).min(into.len());
            into[..bytes].copy_from_slice(&rest[..bytes]);
            self.at += bytes;
            Ok(bytes)
        }
    }

    impl Write for Scripted {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.sent.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Stream for Scripted {
        const IS_NON_BLOCKING: bool = true;
    }

    const ID: TagRule = TagRule { name: "id", is_unique: true };

    static TABLES: [TableSchema; 1] = [TableSchema::new("t", &["value"])];
    static TAGGED: [TableSchema; 1] =
        [TableSchema { name: "t", parts: &["value"], tags: &[ID], is_scanned: false }];

    fn connection(step: usize, answers: &[u8]) -> Resp<Scripted> {
        connected(&TABLES, Dialect::Lua, step, answers)
    }

    fn connected(
        tables: &'static [TableSchema],
        dialect: Dialect,
        step: usize,
        answers: &[u8],
    ) -> Resp<Scripted> {
        let first: &[u8] = match dialect {
            Dialect::Lua => b"$1\r\na\r\n$1\r\nb\r\n+PONG\r\n",
            Dialect::Tags => b"+OK\r\n+PONG\r\n",
        };
        let stream = Scripted { sent: Vec::new(), replies: [first, answers].concat(), at: 0, step };
        let mut resp = Resp::new(stream, &StoreSchema { tables }, dialect).unwrap();
        resp.wire.stream_mut().sent.clear();
        resp
    }

    fn read(key: &[u8]) -> Request<'_> {
        Request::Read { table: TableId(0), key, wanted: PartSet::ALL }
    }

    fn change<'a>(key: &'a [u8], parts: &'a [(usize, &'a [u8])]) -> Request<'a> {
        Request::Change { table: TableId(0), change: PartsChange { key, parts, tags: None } }
    }

    fn replies_of(resp: &mut Resp<Scripted>, requests: &[Request<'_>]) -> Result<Vec<String>> {
        let mut all = Vec::new();
        resp.receive_ahead(requests, &mut |number, reply| {
            all.push(match reply {
                StoreReply::Part(_, bytes) => format!("{number} {}", bytes.escape_ascii()),
                StoreReply::Key(key) => format!("{number} is {}", key.escape_ascii()),
                StoreReply::Done(done) => format!("{number} {done}"),
            });
        })?;
        Ok(all)
    }

    #[test]
    fn replies_to_requests_in_flight_are_read_in_order_from_pieces_of_any_size() {
        let answers = b"$3\r\n1\r\n\r\n$-1\r\n+OK\r\n$-1\r\n$2\r\n$3\r\n";
        let parts: [(usize, &[u8]); 1] = [(0, b"x")];
        let messages = [
            vec![read(b"a"), read(b"b")],
            vec![],
            vec![change(b"c", &parts), change(b"d", &parts)],
            vec![read(b"e")],
        ];
        let mut sent = None;
        for step in 1..answers.len() {
            let mut resp = connection(step, answers);
            assert!(resp.sends_ahead());
            let heard_before = resp.wire.stream_mut().at;
            for message in &messages {
                resp.send_ahead(message).unwrap();
            }
            // The client does not wait in between.
            assert_eq!(resp.wire.stream_mut().at, heard_before, "{step}");
            let wanted: [&[&str]; 4] = [
                &["0 1\\r\\n", "0 true", "1 false"],
                &[],
                &["0 true", "1 false"],
                &["0 $3", "0 true"],
            ];
            for (message, wanted) in messages.iter().zip(wanted) {
                assert_eq!(replies_of(&mut resp, message).unwrap(), wanted, "{step}");
            }
            // One message each if no reply existed before its request. Otherwise two may be sent
            // as one, with the same content.
            let messages = &resp.wire.stream_mut().sent;
            assert!(messages.len() == 3 || (step > 1 && messages.len() == 2), "{step}");
            let all = messages.concat();
            assert_eq!(&all, sent.get_or_insert_with(|| all.clone()), "{step}");
        }
    }

    #[test]
    fn a_transaction_that_only_writes_is_one_message() {
        let (variant, spread) = ("20".to_owned(), AccessDistribution::Uniform);
        let parameters =
            Parameters { records: 100, variant, spread, seed: 1, ..Parameters::default() };
        let queued = b"+QUEUED\r\n".repeat(20);
        let done = b"+OK\r\n".repeat(20);
        let answers = [b"+OK\r\n".as_slice(), &queued, b"*20\r\n", &done].concat();
        let mut resp = connection(100, &answers);
        let mut client = MicroTx.client(&parameters, 0, 1).unwrap();
        client.step(&mut resp, 1, &mut Tally::default()).unwrap();
        let stream = resp.wire.stream_mut();
        assert_eq!((stream.sent.len(), stream.at), (1, stream.replies.len()));
    }

    #[test]
    fn searches_and_reads_are_one_message_with_one_command_each() {
        let find =
            |value| Request::Find { table: TableId(0), tag: (0, value), wanted: PartSet::ALL };
        let message = [find(b"x"), read(b"b"), find(b"y"), find(b"z")];
        let wanted =
            ["0 1\\r\\n", "0 is a", "0 true", "1 false", "2 false", "3 2", "3 is c", "3 true"];
        // The node names the key with its namespace.
        let of_node =
            b"*2\r\n$5\r\n{t},a\r\n$3\r\n1\r\n\r\n$-1\r\n*-1\r\n*2\r\n$5\r\n{t},c\r\n$1\r\n2\r\n";
        let of_redis =
            b"*2\r\n$1\r\na\r\n$3\r\n1\r\n\r\n$-1\r\n$-1\r\n*2\r\n$1\r\nc\r\n$1\r\n2\r\n";
        let dialects: [(_, &[u8], &[u8]); 2] =
            [(Dialect::Tags, of_node, b"$4\r\nFIND\r\n"), (Dialect::Lua, of_redis, b"EVALSHA")];
        for (dialect, answers, command) in dialects {
            for step in 1..answers.len() {
                let mut resp = connected(&TAGGED, dialect, step, answers);
                resp.send_ahead(&message).unwrap();
                let sent = resp.wire.stream_mut().sent.concat();
                let count = sent.windows(command.len()).filter(|some| *some == command).count();
                assert_eq!((resp.wire.stream_mut().sent.len(), count), (1, 3), "{dialect:?}");
                assert_eq!(replies_of(&mut resp, &message).unwrap(), wanted, "{dialect:?}, {step}");
            }
        }
    }

    #[test]
    fn no_other_request_is_sent_while_replies_are_outstanding() {
        let mut resp = connection(100, b"$-1\r\n$1\r\nx\r\n");
        resp.send_ahead(&[read(b"a")]).unwrap();
        let refused = resp.pipeline(&[read(b"b")], &mut |_, _| {}).unwrap_err();
        assert!(refused.to_string().contains("receive them first"), "{refused}");
        assert_eq!(replies_of(&mut resp, &[read(b"a")]).unwrap(), ["0 false"]);
        // The refused request left nothing behind.
        assert_eq!(replies_of(&mut resp, &[read(b"b")]).unwrap(), ["0 x", "0 true"]);
        assert_eq!(resp.wire.stream_mut().sent.len(), 2);
    }
}
