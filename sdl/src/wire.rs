//! Requests and answers of RESP2 over any stream. The other side is not trusted: no length of an
//! answer makes us take memory before its bytes have come.

use std::io::{self, Read, Write};

use nearstate_model::limits::VALUE_BYTES_MAX;

/// Answers of answers: a step of a walk is a list with a list in it.
const DEPTH_MAX: u32 = 4;

/// Bytes of one answer: all values of a request.
const ANSWER_BYTES_MAX: usize = 1 << 31;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Simple(Vec<u8>),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Self>),
}

/// A stream with what was read of it and not taken yet.
#[derive(Debug)]
pub(crate) struct Wire<S> {
    stream: S,
    input: Vec<u8>,
    taken: usize,
    request: Vec<u8>,
    answer_bytes: usize,
}

fn strange(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("an answer that is none: {what}"))
}

impl<S: Read + Write> Wire<S> {
    pub(crate) const fn new(stream: S) -> Self {
        Self { stream, input: Vec::new(), taken: 0, request: Vec::new(), answer_bytes: 0 }
    }

    /// The stream, if no byte of it is left here.
    pub(crate) fn into_stream(self) -> Option<S> {
        (self.taken == self.input.len()).then_some(self.stream)
    }

    /// Sends a request and reads its answer.
    pub(crate) fn ask(&mut self, args: &[&[u8]]) -> io::Result<Reply> {
        self.request.clear();
        write!(self.request, "*{}\r\n", args.len())?;
        for arg in args {
            write!(self.request, "${}\r\n", arg.len())?;
            self.request.extend_from_slice(arg);
            self.request.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&self.request)?;
        self.stream.flush()?;
        if self.request.capacity() > READ_BYTES {
            self.request = Vec::new();
        }
        self.answer_bytes = 0;
        self.reply(0)
    }

    fn reply(&mut self, depth: u32) -> io::Result<Reply> {
        let line = self.line()?;
        let (kind, text) = line.split_first().ok_or_else(|| strange("an empty line"))?;
        match kind {
            b'+' => Ok(Reply::Simple(text.to_vec())),
            b'-' => Ok(Reply::Error(String::from_utf8_lossy(text).into_owned())),
            b':' => Ok(Reply::Int(number(text)?)),
            b'$' | b'*' if text == b"-1" => Ok(Reply::Nil),
            b'$' => {
                let bytes = usize::try_from(number(text)?).ok();
                let bytes = bytes.filter(|bytes| *bytes <= VALUE_BYTES_MAX);
                Ok(Reply::Bulk(self.bulk(bytes.ok_or_else(|| strange("the length of a value"))?)?))
            }
            b'*' if depth < DEPTH_MAX => {
                let mut all = Vec::new();
                for _ in 0..number(text)? {
                    all.push(self.reply(depth + 1)?);
                }
                Ok(Reply::Array(all))
            }
            _ => Err(strange("its first byte")),
        }
    }

    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            let rest = self.input.get(self.taken..).unwrap_or_default();
            let from = rest.get(searched..).unwrap_or_default();
            if let Some(end) = from.windows(2).position(|two| two == b"\r\n") {
                let line = rest.get(..searched + end).unwrap_or_default().to_vec();
                self.taken += line.len() + 2;
                return Ok(line);
            }
            searched = rest.len().saturating_sub(1);
            if searched > READ_BYTES {
                return Err(strange("a line without an end"));
            }
            self.read()?;
        }
    }

    fn bulk(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        while self.input.len() - self.taken < bytes + 2 {
            self.read()?;
        }
        let rest = self.input.get(self.taken..).unwrap_or_default();
        let (value, end) = rest.split_at(bytes);
        if !end.starts_with(b"\r\n") {
            return Err(strange("what ends a value"));
        }
        let value = value.to_vec();
        self.taken += bytes + 2;
        Ok(value)
    }

    fn read(&mut self) -> io::Result<()> {
        if self.taken == self.input.len() {
            self.input.clear();
            if self.input.capacity() > READ_BYTES {
                self.input = Vec::new();
            }
            self.taken = 0;
        } else if self.taken > READ_BYTES {
            self.input.drain(..self.taken);
            self.taken = 0;
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
        self.answer_bytes = self.answer_bytes.saturating_add(count);
        match count {
            0 => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            _ if self.answer_bytes > ANSWER_BYTES_MAX => Err(strange("it has no end")),
            _ => Ok(()),
        }
    }
}

fn number(text: &[u8]) -> io::Result<i64> {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| strange("a number"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Answers with fixed bytes, a few at a time.
    struct Fixed {
        asked: Vec<u8>,
        answer: Vec<u8>,
        step: usize,
    }

    impl Read for Fixed {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = self.step.min(self.answer.len()).min(into.len());
            into[..count].copy_from_slice(&self.answer[..count]);
            self.answer.drain(..count);
            Ok(count)
        }
    }

    impl Write for Fixed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.asked.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn wire(answer: &[u8], step: usize) -> Wire<Fixed> {
        Wire::new(Fixed { asked: Vec::new(), answer: answer.to_vec(), step })
    }

    #[test]
    fn answers_are_read_in_whatever_pieces_they_come() {
        let all =
            b"+OK\r\n-ERR no\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*2\r\n$1\r\n0\r\n*1\r\n$0\r\n\r\n";
        for step in [1, 2, 3, 7, 1000] {
            let mut wire = wire(all, step);
            let mut next = || wire.ask(&[b"GET", b"k"]).unwrap();
            assert_eq!(next(), Reply::Simple(b"OK".to_vec()));
            assert_eq!(next(), Reply::Error("ERR no".to_owned()));
            assert_eq!(next(), Reply::Int(-7));
            assert_eq!(next(), Reply::Bulk(b"a\r\n".to_vec()));
            assert_eq!(next(), Reply::Nil);
            let inner = Reply::Array(vec![Reply::Bulk(Vec::new())]);
            assert_eq!(next(), Reply::Array(vec![Reply::Bulk(b"0".to_vec()), inner]));
            assert!(wire.stream.asked.starts_with(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*2"));
            assert!(wire.ask(&[]).is_err(), "the end");
        }
    }

    #[test]
    fn a_length_takes_no_memory_before_its_bytes_have_come() {
        for strange in [
            &b"$99999999999\r\n"[..],
            b"$-2\r\n",
            b"*9999999999999\r\n",
            b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
            b":x\r\n",
            b"?\r\n",
            b"\r\n",
            b"$1\r\nabc",
        ] {
            assert!(wire(strange, 1000).ask(&[]).is_err(), "{strange:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_an_error(
            bytes in "([+:$*-]?[0-9-]{0,3}(\r\n)?[a-z]{0,4}(\r\n)?){0,8}", step in 1..9_usize
        ) {
            let _ = wire(bytes.as_bytes(), step).ask(&[b"GET"]);
        }
    }
}
