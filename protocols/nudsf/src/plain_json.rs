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

    fn take(&mut self, wanted: u8) -> Option<()> {
        (self.peek()? == wanted).then(|| self.at += 1)
    }

    /// A string.
    pub(crate) fn string(&mut self) -> Option<&'t str> {
        self.take(b'"')?;
        let begin = self.at;
        let rest = self.text.as_bytes().get(begin..)?;
        let length = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20))?;
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
            if self.peek()? != b',' {
                return self.take(b'}');
            }
            self.at += 1;
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
            if self.peek()? != b',' {
                return self.take(b']');
            }
            self.at += 1;
        }
    }

    /// Nothing but white space is left.
    pub(crate) fn end(&mut self) -> Option<()> {
        self.peek().is_none().then_some(())
    }
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
}
