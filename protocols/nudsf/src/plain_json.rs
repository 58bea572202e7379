//! A reader of JSON texts of the usual form: strings without escapes, whole numbers. It copies
//! nothing and builds no tree of values. Whatever else a text has is `None`, also what is no JSON:
//! the caller then reads the text into a tree, which has the reason.

/// The rest of a text.
pub(crate) struct PlainJson<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> PlainJson<'t> {
    /// `None`: the bytes are not UTF-8.
    pub(crate) fn new(bytes: &'t [u8]) -> Option<Self> {
        Some(Self { text: str::from_utf8(bytes).ok()?, at: 0 })
    }

    /// How many bytes were read.
    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    /// What was read from a place on.
    pub(crate) fn text_from(&self, begin: usize) -> Option<&'t str> {
        self.text.get(begin..self.at)
    }

    /// The place of a string that was read.
    pub(crate) fn place_of(&self, read: &'t str) -> usize {
        read.as_ptr().addr() - self.text.as_ptr().addr()
    }

    /// The next byte that is no white space.
    fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.as_bytes().get(self.at)?;
            if !matches!(byte, b' ' | b'\t' | b'\n' | b'\r') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    #[inline]
    fn take(&mut self, wanted: u8) -> Option<()> {
        // Most texts have no white space.
        if self.text.as_bytes().get(self.at) != Some(&wanted) && self.peek()? != wanted {
            return None;
        }
        self.at += 1;
        Some(())
    }

    /// A string.
    pub(crate) fn string(&mut self) -> Option<&'t str> {
        self.take(b'"')?;
        let begin = self.at;
        let rest = self.text.as_bytes().get(begin..)?;
        let length = plain_length(rest);
        self.at = begin + length + 1;
        (rest.get(length) == Some(&b'"')).then(|| self.text.get(begin..begin + length))?
    }

    /// A number of digits.
    pub(crate) fn number(&mut self) -> Option<u64> {
        self.peek()?;
        let rest = self.text.get(self.at..)?;
        let length = rest.bytes().position(|byte| !byte.is_ascii_digit())?;
        let digits = rest.get(..length)?;
        self.at += length;
        // JSON has no leading zeros.
        let is_valid = digits == "0" || !digits.starts_with('0');
        digits.parse().ok().filter(|_| is_valid)
    }

    /// An object: `member` reads the value of a name.
    pub(crate) fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, &'t str) -> Option<()>,
    ) -> Option<()> {
        self.take(b'{')?;
        if self.peek()? == b'}' {
            return self.take(b'}');
        }
        loop {
            let name = self.string()?;
            self.take(b':')?;
            member(self, name)?;
            if self.take(b',').is_none() {
                return self.take(b'}');
            }
        }
    }

    /// An array: `element` reads an element.
    pub(crate) fn elements(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Option<()>,
    ) -> Option<()> {
        self.take(b'[')?;
        if self.peek()? == b']' {
            return self.take(b']');
        }
        loop {
            element(self)?;
            if self.take(b',').is_none() {
                return self.take(b']');
            }
        }
    }

    /// Nothing but white space is left.
    pub(crate) fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }
}

/// The number of bytes before the first quote, escape or control character. Eight bytes are
/// examined at once: a record has twenty strings or more.
fn plain_length(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES << 7;
    let (words, _) = bytes.as_chunks::<8>();
    let mut length = 0;
    for word in words {
        let word = u64::from_le_bytes(*word);
        // The high bit of each byte that is zero after the difference; a borrow only marks bytes
        // behind the first one that is marked.
        let zeros = |word: u64| word.wrapping_sub(ONES) & !word;
        let quotes = zeros(word ^ (ONES * u64::from(b'"')));
        let escapes = zeros(word ^ (ONES * u64::from(b'\\')));
        let controls = word.wrapping_sub(ONES * 0x20) & !word;
        let found = (quotes | escapes | controls) & HIGHS;
        if found != 0 {
            return length + found.trailing_zeros() as usize / 8;
        }
        length += 8;
    }
    let is_end = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
    let rest = bytes.get(length..).unwrap_or_default();
    length + rest.iter().position(is_end).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value};

    /// Reads an object of strings, numbers and arrays of strings.
    fn read(text: &str) -> Option<Value> {
        let mut json = PlainJson::new(text.as_bytes())?;
        let mut object = Map::new();
        json.members(|json, name| {
            let value = match json.peek()? {
                b'[' => {
                    let mut all = Vec::new();
                    json.elements(|json| {
                        all.push(Value::from(json.string()?));
                        Some(())
                    })?;
                    Value::Array(all)
                }
                b'"' => Value::from(json.string()?),
                _ => Value::from(json.number()?),
            };
            object.insert(name.to_owned(), value);
            Some(())
        })?;
        json.end()?;
        Some(Value::Object(object))
    }

    #[test]
    fn a_text_is_read_as_by_the_parser_of_trees_or_not_at_all() {
        for text in ["{}", " { } ", r#"{"a":["b" , "c"],"d":[ ],"e":0,"f":17,"é":"ü"}"#] {
            assert_eq!(read(text), serde_json::from_str(text).ok(), "{text}");
        }
        for text in [
            "",
            "{",
            "[]",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":"b",}"#,
            r#"{"a":["b",]}"#,
            "{,}",
            r#"{"a":"b"}x"#,
            r#"{"a":"\n"}"#,
            r#"{"a":"b"#,
            "{\"a\":\"\n\"}",
            r#"{"a":01}"#,
            r#"{"a":-1}"#,
            r#"{"a":1.5}"#,
            r#"{"a":99999999999999999999}"#,
            r#"{"a":1"#,
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        assert!(PlainJson::new(b"\"\xff\"").is_none());
    }

    #[test]
    fn eight_bytes_at_once_find_the_same_end_as_one_by_one() {
        let is_end = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
        let mut bytes = [b'a'; 19];
        for at in 0..bytes.len() {
            for byte in 0..=u8::MAX {
                for before in [b'a', 0x20, 0x21, 0x23, 0x5b, 0x5d, 0x7f, 0x80, 0xa2, 0xff] {
                    bytes = [before; 19];
                    bytes[at] = byte;
                    let expected = bytes.iter().position(is_end).unwrap_or(bytes.len());
                    assert_eq!(plain_length(&bytes), expected, "{bytes:?}");
                }
            }
        }
    }
}
