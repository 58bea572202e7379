//! Replies of Redis' wire, kept so that two of them are equal exactly if their bytes are.

use std::fmt;
use std::io::{BufRead, Read};

/// The most that a reply's parts may claim: as much as Redis lets a bulk have.
const PART_MAX: usize = 512 << 20;

/// How deep replies may stand in each other; the deepest that either server sends is 5.
const DEPTH_MAX: usize = 16;

/// A reply. Its first line, its body and its items say every byte of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reply {
    /// The first line without its end: the kind's byte, and a number, a text or a length.
    pub head: Vec<u8>,
    /// What a bulk holds.
    pub body: Option<Vec<u8>>,
    /// What an array, a set, a map or a push holds; of a map keys and values in turn.
    pub items: Vec<Reply>,
}

impl Reply {
    /// Reads one reply.
    ///
    /// # Errors
    /// What is wrong with the bytes, or why there are none.
    pub fn read(from: &mut impl BufRead) -> Result<Self, String> {
        Self::read_at(from, 0)
    }

    fn read_at(from: &mut impl BufRead, depth: usize) -> Result<Self, String> {
        if depth > DEPTH_MAX {
            return Err(format!("a reply with more than {DEPTH_MAX} levels"));
        }
        let head = line(from)?;
        let kind = head.first().copied().unwrap_or(0);
        let items_each = match kind {
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => 0,
            b'$' | b'=' => return Self::bulk(from, head),
            b'*' | b'~' | b'>' => 1,
            b'%' => 2,
            _ => return Err(format!("a reply that begins with {:?}", Text(&head))),
        };
        let mut items = Vec::new();
        if items_each > 0 && head.get(1..) != Some(b"-1") {
            for _ in 0..length(&head)?.saturating_mul(items_each) {
                items.push(Self::read_at(from, depth + 1)?);
            }
        }
        Ok(Self { head, body: None, items })
    }

    fn bulk(from: &mut impl BufRead, head: Vec<u8>) -> Result<Self, String> {
        if head == b"$-1" {
            return Ok(Self { head, body: None, items: Vec::new() });
        }
        let mut body = vec![0; length(&head)? + 2];
        from.read_exact(&mut body).map_err(|why| format!("a bulk that breaks off: {why}"))?;
        if body.split_off(body.len() - 2) != b"\r\n" {
            return Err("a bulk that does not end where it says".to_owned());
        }
        Ok(Self { head, body: Some(body), items: Vec::new() })
    }

    /// The byte that says which kind of reply it is.
    pub fn kind(&self) -> u8 {
        self.head.first().copied().unwrap_or(0)
    }

    /// The number that it is, if it is one.
    pub fn number(&self) -> Option<i64> {
        std::str::from_utf8(self.head.strip_prefix(b":")?).ok()?.parse().ok()
    }

    /// A made-up reply for what a client says itself.
    pub fn told(text: &str) -> Self {
        Self { head: text.as_bytes().to_vec(), body: None, items: Vec::new() }
    }
}

fn line(from: &mut impl BufRead) -> Result<Vec<u8>, String> {
    let mut head = Vec::new();
    let read = from.take(64 << 10).read_until(b'\n', &mut head);
    read.map_err(|why| format!("no reply: {why}"))?;
    if head.is_empty() {
        return Err("no reply: the server has closed the connection".to_owned());
    }
    match head.strip_suffix(b"\r\n") {
        Some(line) if !line.contains(&b'\r') => Ok(line.to_vec()),
        _ => Err(format!("a line that does not end as it should: {:?}", Text(&head))),
    }
}

fn length(head: &[u8]) -> Result<usize, String> {
    let digits = head.get(1..).and_then(|digits| std::str::from_utf8(digits).ok());
    let length = digits.and_then(|digits| digits.parse::<usize>().ok());
    let length = length.filter(|length| *length <= PART_MAX);
    length.ok_or_else(|| format!("a length that is none: {:?}", Text(head)))
}

/// A request of these words.
pub fn request(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Bytes for people: what is not printable escaped, what is long cut.
struct Text<'a>(&'a [u8]);

/// How much of a long text is shown.
const SHOWN_MAX: usize = 120;

impl fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.get(..SHOWN_MAX).unwrap_or(self.0);
        write!(f, "\"{}\"", shown.escape_ascii())?;
        if shown.len() < self.0.len() {
            write!(f, "... {} bytes", self.0.len())?;
        }
        Ok(())
    }
}

/// Words as one would type them.
pub fn typed(words: &[Vec<u8>]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\' | b'\'');
    let words = words.iter().map(|word| {
        if !word.is_empty() && word.len() <= SHOWN_MAX && word.iter().all(is_plain) {
            String::from_utf8_lossy(word).into_owned()
        } else {
            format!("{:?}", Text(word))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.body, self.kind()) {
            (Some(body), _) => write!(f, "{:?}", Text(body)),
            (None, b'*' | b'~' | b'>' | b'%') => {
                write!(f, "{}[", self.head.escape_ascii())?;
                for (at, item) in self.items.iter().enumerate() {
                    write!(f, "{}{item}", if at > 0 { ", " } else { "" })?;
                }
                write!(f, "]")
            }
            (None, _) => write!(f, "{}", self.head.escape_ascii()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_equal_exactly_if_their_bytes_are() {
        let read = |bytes: &[u8]| Reply::read(&mut &bytes[..]);
        let map = read(b"%1\r\n$1\r\na\r\n*2\r\n:1\r\n_\r\n").unwrap();
        assert_eq!((map.items.len(), map.items[1].items.len()), (2, 2));
        assert_eq!(map.to_string(), "%1[\"a\", *2[:1, _]]");
        assert_ne!(read(b"$-1\r\n"), read(b"*-1\r\n"));
        assert_ne!(read(b":1\r\n"), read(b":01\r\n"));
        assert_eq!(read(b"$-1\r\n").unwrap().body, None);
    }

    #[test]
    fn bytes_that_are_no_reply_are_refused() {
        let bad: [&[u8]; 8] = [
            b"",
            b"\r\n",
            b"+OK\n",
            b"$3\r\nab\r\n",
            b"$1\r\nabc",
            b"$9999999999\r\n",
            b"*x\r\n",
            b"?1\r\n",
        ];
        for bytes in bad {
            assert!(Reply::read(&mut &bytes[..]).is_err(), "{}", bytes.escape_ascii());
        }
        assert!(Reply::read(&mut &b"*1\r\n".repeat(99)[..]).is_err());
    }
}
