//! Sends requests over a byte stream and parses the replies.
//!
//! After an error the stream may be out of step with its replies: drop the client.

use std::io::{self, Read, Write};

use crate::reply::{NullEncoding, RespReply};

/// Nesting of arrays, maps and sets. Redis' own commands nest replies five deep at most.
const DEPTH_MAX: u32 = 16;

/// Bytes of one string: Redis' limit (`proto-max-bulk-len`).
const BULK_BYTES_MAX: usize = 512 << 20;

/// Bytes of one reply, its nested replies included. More is an error.
const REPLY_BYTES_MAX: usize = 1 << 31;

/// Bytes that one read asks for, the limit of a line, and the buffer space kept between requests.
const READ_BYTES: usize = 64 << 10;

/// A stream, the bytes that were read from it and not consumed yet, and a request buffer.
#[derive(Debug)]
pub struct RespClient<S> {
    stream: S,
    input: Vec<u8>,
    consumed: usize,
    request: Vec<u8>,
    reply_bytes: usize,
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("malformed reply: {what}"))
}

/// Appends a request of these arguments, the command's name first.
pub fn encode_request(args: &[&[u8]], into: &mut Vec<u8>) {
    into.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        into.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        into.extend_from_slice(arg);
        into.extend_from_slice(b"\r\n");
    }
}

impl<S: Read + Write> RespClient<S> {
    /// A client of the server behind `stream`.
    pub const fn new(stream: S) -> Self {
        Self { stream, input: Vec::new(), consumed: 0, request: Vec::new(), reply_bytes: 0 }
    }

    /// The stream, or `None` if bytes of it are still buffered here.
    pub fn into_stream(self) -> Option<S> {
        (self.consumed == self.input.len()).then_some(self.stream)
    }

    /// Sends one request and receives its reply.
    ///
    /// # Errors
    /// The stream's error; `UnexpectedEof` if the server closed it; `InvalidData` for a malformed
    /// reply. An error reply is not an error here.
    pub fn request(&mut self, args: &[&[u8]]) -> io::Result<RespReply> {
        let mut request = std::mem::take(&mut self.request);
        request.clear();
        encode_request(args, &mut request);
        let sent = self.send(&request);
        if request.capacity() <= READ_BYTES {
            self.request = request;
        }
        sent.and_then(|()| self.receive())
    }

    /// Sends encoded requests. Pipelining: call [`RespClient::receive`] once for each of them.
    ///
    /// # Errors
    /// The stream's error.
    pub fn send(&mut self, requests: &[u8]) -> io::Result<()> {
        self.stream.write_all(requests)?;
        self.stream.flush()
    }

    /// Receives the next reply.
    ///
    /// # Errors
    /// As [`RespClient::request`].
    pub fn receive(&mut self) -> io::Result<RespReply> {
        self.reply_bytes = 0;
        self.parse(0)
    }

    fn parse(&mut self, depth: u32) -> io::Result<RespReply> {
        let line = self.line()?;
        let (kind, text) = line.split_first().ok_or_else(|| malformed("an empty line"))?;
        match kind {
            b'+' => Ok(RespReply::Simple(text.to_vec())),
            b'-' => Ok(RespReply::Error(text.to_vec())),
            b':' => Ok(RespReply::Integer(canonical(text)?)),
            b',' => Ok(RespReply::Double(text.to_vec())),
            b'(' => Ok(RespReply::BigNumber(text.to_vec())),
            b'#' if text == b"t" || text == b"f" => Ok(RespReply::Boolean(text == b"t")),
            b'_' if text.is_empty() => Ok(RespReply::Null(NullEncoding::Resp3)),
            b'$' if text == b"-1" => Ok(RespReply::Null(NullEncoding::Bulk)),
            b'*' if text == b"-1" => Ok(RespReply::Null(NullEncoding::Array)),
            b'$' => Ok(RespReply::Bulk(self.string(text)?)),
            b'=' => Ok(RespReply::Verbatim(self.string(text)?)),
            b'*' => Ok(RespReply::Array(self.items(count(text)?, depth)?)),
            b'~' => Ok(RespReply::Set(self.items(count(text)?, depth)?)),
            b'>' => Ok(RespReply::Push(self.items(count(text)?, depth)?)),
            b'%' => Ok(RespReply::Map(self.items(count(text)?.saturating_mul(2), depth)?)),
            _ => Err(malformed(&format!("unknown type in {:?}", text_of(&line)))),
        }
    }

    /// Parses `count` nested replies. Memory grows with the bytes that arrive, not with `count`.
    fn items(&mut self, count: usize, depth: u32) -> io::Result<Vec<RespReply>> {
        if depth >= DEPTH_MAX {
            return Err(malformed(&format!("more than {DEPTH_MAX} levels of nesting")));
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(self.parse(depth + 1)?);
        }
        Ok(items)
    }

    fn string(&mut self, length: &[u8]) -> io::Result<Vec<u8>> {
        let length = count(length)?;
        if length > BULK_BYTES_MAX {
            return Err(malformed(&format!("a string of {length} bytes")));
        }
        while self.input.len() - self.consumed < length + 2 {
            self.read()?;
        }
        let (string, end) = self.input.get(self.consumed..).unwrap_or_default().split_at(length);
        if !end.starts_with(b"\r\n") {
            return Err(malformed("a string that is longer than its length"));
        }
        let string = string.to_vec();
        self.consumed += length + 2;
        Ok(string)
    }

    /// The next line without its line end.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            let buffered = self.input.get(self.consumed..).unwrap_or_default();
            let unsearched = buffered.get(searched..).unwrap_or_default();
            if let Some(end) = unsearched.iter().position(|byte| *byte == b'\n') {
                let line = buffered.get(..searched + end).unwrap_or_default();
                let line = line.strip_suffix(b"\r").filter(|line| !line.contains(&b'\r'));
                let line = line.ok_or_else(|| malformed("a line that does not end in CR LF"))?;
                let line = line.to_vec();
                self.consumed += line.len() + 2;
                return Ok(line);
            }
            searched = buffered.len();
            if searched > READ_BYTES {
                return Err(malformed(&format!("a line of more than {READ_BYTES} bytes")));
            }
            self.read()?;
        }
    }

    fn read(&mut self) -> io::Result<()> {
        if self.consumed == self.input.len() {
            self.input.clear();
            if self.input.capacity() > READ_BYTES {
                self.input = Vec::new();
            }
            self.consumed = 0;
        } else if self.consumed > READ_BYTES {
            self.input.drain(..self.consumed);
            self.consumed = 0;
        }
        let before = self.input.len();
        self.input.resize(before + READ_BYTES, 0);
        let read = loop {
            match self.stream.read(self.input.get_mut(before..).unwrap_or_default()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let count = *read.as_ref().unwrap_or(&0);
        self.input.truncate(before + count);
        read?;
        self.reply_bytes = self.reply_bytes.saturating_add(count);
        match count {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            _ if self.reply_bytes > REPLY_BYTES_MAX => {
                Err(malformed(&format!("more than {REPLY_BYTES_MAX} bytes")))
            }
            _ => Ok(()),
        }
    }
}

fn text_of(bytes: &[u8]) -> String {
    bytes.iter().take(80).copied().map(char::from).collect()
}

/// A number in its only canonical form: without a plus sign and without leading zeros.
fn canonical(text: &[u8]) -> io::Result<i64> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok());
    number
        .filter(|number| number.to_string().as_bytes() == text)
        .ok_or_else(|| malformed(&format!("{:?} is not a number", text_of(text))))
}

fn count(text: &[u8]) -> io::Result<usize> {
    usize::try_from(canonical(text)?)
        .map_err(|_| malformed(&format!("{:?} is not a length", text_of(text))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A server that sends fixed bytes, `step` at a time.
    struct Script {
        requests: Vec<u8>,
        replies: Vec<u8>,
        step: usize,
    }

    impl Read for Script {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.step.min(self.replies.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.replies[..count]);
            self.replies.drain(..count);
            Ok(count)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.requests.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn client(replies: &[u8], step: usize) -> RespClient<Script> {
        RespClient::new(Script { requests: Vec::new(), replies: replies.to_vec(), step })
    }

    #[test]
    fn replies_are_parsed_however_the_stream_splits_them() {
        let all =
            b"+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*2\r\n$1\r\n0\r\n*1\r\n$0\r\n\r\n";
        for step in [1, 2, 3, 7, 1000] {
            let mut client = client(all, step);
            let mut next = || client.request(&[b"GET", b"k"]).unwrap();
            assert!(next().is_ok());
            assert_eq!(next(), RespReply::Error(b"ERR no".to_vec()));
            assert_eq!(next(), RespReply::Integer(-7));
            assert_eq!(next(), RespReply::Bulk(b"a\r\n".to_vec()));
            assert_eq!(next(), RespReply::Null(NullEncoding::Bulk));
            let inner = RespReply::Array(vec![RespReply::Bulk(Vec::new())]);
            assert_eq!(next(), RespReply::Array(vec![RespReply::Bulk(b"0".to_vec()), inner]));
            assert!(client.stream.requests.starts_with(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*2"));
            let error = client.request(&[]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn equal_replies_have_equal_bytes() {
        let parse = |bytes: &[u8]| client(bytes, 1000).receive();
        let map = parse(b"%1\r\n$1\r\na\r\n*2\r\n:1\r\n_\r\n").unwrap();
        assert_eq!((map.items().len(), map.items()[1].items().len()), (2, 2));
        assert_eq!(map.to_string(), "%1[\"a\", *2[:1, _]]");
        assert_ne!(parse(b"$-1\r\n").unwrap(), parse(b"*-1\r\n").unwrap());
        assert_ne!(parse(b"$1\r\na\r\n").unwrap(), parse(b"+a\r\n").unwrap());
        for second_encoding in [&b":01\r\n"[..], b":+1\r\n", b":-0\r\n", b"$01\r\na\r\n"] {
            assert!(parse(second_encoding).is_err(), "{}", second_encoding.escape_ascii());
        }
    }

    #[test]
    fn malformed_replies_are_rejected_and_lengths_reserve_no_memory() {
        for bytes in [
            &b"$99999999999\r\n"[..],
            b"$-2\r\n",
            b"*9999999999999\r\n",
            b"%9999999999999999\r\n",
            b":x\r\n",
            b"*x\r\n",
            b"?1\r\n",
            b"\r\n",
            b"",
            b"+OK\n",
            b"$3\r\nab\r\n",
            b"$1\r\nabc",
        ] {
            assert!(client(bytes, 1000).receive().is_err(), "{}", bytes.escape_ascii());
        }
        let nested = client(&b"*1\r\n".repeat(99), 1000).receive().unwrap_err();
        assert_eq!(nested.kind(), io::ErrorKind::InvalidData);
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_reply_or_an_error(
            bytes in "([+:$*%~>#_,(=-]?[0-9-]{0,3}(\r\n)?[a-z]{0,4}(\r\n)?){0,8}",
            step in 1..9_usize
        ) {
            let _ = client(bytes.as_bytes(), step).receive();
        }
    }
}
