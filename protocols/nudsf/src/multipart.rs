//! `multipart` bodies (RFC 2046): parsing those of requests, writing those of responses.
//!
//! The parser is total: any bytes give parts or a reason. Parts are slices of the body, without a
//! copy. Headers of parts other than `Content-Id`, `Content-Type` and
//! `Content-Transfer-Encoding` are ignored, as RFC 2046 requires.

use std::borrow::Cow;

use hyper::body::Bytes;
use memchr::{memchr_iter, memmem};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::limits::{HEADERS_MAX, PART_HEADER_BYTES_MAX};

/// The longest boundary (RFC 2046, 5.1.1).
const BOUNDARY_BYTES_MAX: usize = 70;

/// The most parts of a body: the blocks of a record, and meta.
const PARTS_MAX: usize = nearstate_model::limits::BLOCKS_MAX + 2;

/// The content type of a block that has none: what RFC 9110 says of unknown content.
pub(crate) const DEFAULT_TYPE: &str = "application/octet-stream";

/// A part of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BodyPart<'b> {
    pub(crate) id: Option<&'b str>,
    pub(crate) content_type: Option<&'b str>,
    pub(crate) encoding: Option<&'b str>,
    pub(crate) bytes: Bytes,
}

/// True for a `Content-Type` value of a media type, which is in lower case.
pub(crate) fn is_media_type(value: &str, media: &str) -> bool {
    // Most values are written so.
    if value.strip_prefix(media).is_some_and(|rest| rest.is_empty() || rest.starts_with(';')) {
        return true;
    }
    value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(media)
}

/// The media type of a `Content-Type` value, in lower case, without parameters.
pub(crate) fn media_type(value: &str) -> String {
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The boundary of a `multipart` content type.
fn boundary(content_type: &str) -> Option<Cow<'_, str>> {
    // Most clients write it so.
    if let Some(plain) = content_type.strip_prefix("multipart/mixed; boundary=") {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if (1..=BOUNDARY_BYTES_MAX).contains(&plain.len()) && plain.bytes().all(is_plain) {
            return Some(Cow::Borrowed(plain));
        }
    }
    let mut rest = content_type.split_once(';')?.1;
    loop {
        let (name, value) = rest.split_once('=')?;
        let value = value.trim_start();
        let (value, after) = if let Some(quoted) = value.strip_prefix('"') {
            let (value, after) = unquote(quoted)?;
            (Cow::Owned(value), after)
        } else {
            let (value, after) = value.split_once(';').unwrap_or((value, ""));
            (Cow::Borrowed(value.trim()), after)
        };
        if name.trim().eq_ignore_ascii_case("boundary") {
            let is_valid = !value.is_empty()
                && value.len() <= BOUNDARY_BYTES_MAX
                && value.bytes().all(|byte| (0x20..0x7f).contains(&byte))
                && !value.ends_with(' ');
            return is_valid.then_some(value);
        }
        rest = after.trim_start().trim_start_matches(';');
    }
}

/// The text of a quoted string, without its first quote, and what follows it.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, found)) = chars.next() {
        match found {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => value.push(chars.next()?.1),
            other => value.push(other),
        }
    }
    None
}

/// Parses a body with this content type.
///
/// # Errors
/// The reason why it is no `multipart` body.
pub(crate) fn parse<'b>(content_type: &str, body: &'b Bytes) -> Result<Vec<BodyPart<'b>>, String> {
    let Some(boundary) = boundary(content_type) else {
        return Err("the content type has no valid boundary".to_owned());
    };
    let delimiter = Delimiter::of(&boundary);
    let delimiter = delimiter.bytes();
    let first = delimiter.get(2..).unwrap_or_default();
    // The first delimiter may be at the very beginning.
    let mut at = if body.starts_with(first) {
        first.len()
    } else {
        find_in(body, delimiter).ok_or("the body has no part")? + delimiter.len()
    };
    let mut parts = Vec::with_capacity(4);
    loop {
        let rest = body.get(at..).unwrap_or_default();
        if after(rest, b"--").is_some() {
            return Ok(parts);
        }
        let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let line = rest.get(padding..).unwrap_or_default();
        if after(line, b"\r\n").is_none() {
            return Err(format!("the boundary before part {} has no line end", parts.len() + 1));
        }
        if parts.len() == PARTS_MAX {
            return Err(format!("more than {PARTS_MAX} parts: write the record in several steps"));
        }
        // The line end stays: a part without headers and body is the line end of its delimiter.
        let begin = at + padding;
        // No delimiter is in plain headers, but their empty line may begin one.
        let plain = plain_headers(body.get(begin + 2..).unwrap_or_default());
        let searched = plain.as_ref().map_or(begin, |(_, bytes)| begin + bytes);
        let end = find_in(body.get(searched..).unwrap_or_default(), delimiter);
        let end = searched + end.ok_or("the last part has no boundary after it")?;
        parts.push(match plain {
            Some((headers, bytes)) if end >= begin + 2 + bytes => {
                BodyPart { bytes: body.slice(begin + 2 + bytes..end), ..headers }
            }
            Some(_) | None => any_part(body, (begin + 2, end), parts.len() + 1)?,
        });
        at = end + delimiter.len();
    }
}

/// The bytes before a part: a line end, two hyphens and the boundary.
struct Delimiter {
    bytes: [u8; 4 + BOUNDARY_BYTES_MAX],
    length: usize,
}

impl Delimiter {
    /// That of a boundary, which has at most [`BOUNDARY_BYTES_MAX`] bytes.
    fn of(boundary: &str) -> Self {
        let (mut bytes, length) = ([0; 4 + BOUNDARY_BYTES_MAX], 4 + boundary.len());
        for (place, byte) in bytes.iter_mut().zip(b"\r\n--".iter().chain(boundary.as_bytes())) {
            *place = *byte;
        }
        Self { bytes, length }
    }

    fn bytes(&self) -> &[u8] {
        let bytes = self.bytes.get(..self.length);
        debug_assert!(bytes.is_some(), "a boundary of {} bytes was checked", self.length - 4);
        bytes.unwrap_or_default()
    }
}

/// The most bytes that are searched by the first byte of a delimiter: preparing a search takes
/// longer. A body of line ends alone costs some microseconds then.
const SHORT_BYTES: usize = 4 << 10;

/// The place of a delimiter.
fn find_in(bytes: &[u8], delimiter: &[u8]) -> Option<usize> {
    if bytes.len() > SHORT_BYTES {
        return memmem::find(bytes, delimiter);
    }
    let is_it = |at: &usize| bytes.get(*at..).is_some_and(|rest| rest.starts_with(delimiter));
    memchr_iter(b'\r', bytes).find(is_it)
}

/// What follows these bytes. Their number is known, so that no function compares them.
fn after<'b, const N: usize>(bytes: &'b [u8], wanted: &[u8; N]) -> Option<&'b [u8]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    (first == wanted).then_some(rest)
}

/// The headers of a part as most clients write them: these names in this form, values of visible
/// ASCII. Returns the part without its body, and the bytes of the headers with the empty line.
/// `None`: the general parser reads them.
fn plain_headers(whole: &[u8]) -> Option<(BodyPart<'_>, usize)> {
    const FIELDS_MAX: usize = 3;
    let (mut values, mut count, mut at) = ([(0, 0, 0); FIELDS_MAX], 0, 0);
    loop {
        let rest = whole.get(at..)?;
        if after(rest, b"\r\n").is_some() {
            break;
        }
        let name = after(rest, b"Content-")?;
        let (field, value) = if let Some(value) = after(name, b"Type: ") {
            (1, value)
        } else if let Some(value) = after(name, b"Id: ") {
            (0, value)
        } else {
            (2, after(name, b"Transfer-Encoding: ")?)
        };
        let begin = whole.len() - value.len();
        let length = value.iter().position(|byte| !(0x21..0x7f).contains(byte))?;
        let is_value = (1..=PART_HEADER_BYTES_MAX).contains(&length)
            && after(value.get(length..)?, b"\r\n").is_some();
        let place = values.get_mut(count).filter(|_| is_value)?;
        *place = (field, begin, begin + length);
        count += 1;
        at = begin + length + 2;
    }
    let head = str::from_utf8(whole.get(..at)?).ok()?;
    let mut part = BodyPart::default();
    for (field, begin, end) in values.into_iter().take(count) {
        let value = head.get(begin..end)?;
        match field {
            0 => part.id = Some(value),
            1 => part.content_type = Some(value),
            _ => part.encoding = Some(value),
        }
    }
    Some((part, at + 2))
}

/// Parses a part with headers of any form: the headers, and the bytes after the empty line.
fn any_part(
    body: &Bytes,
    (begin, end): (usize, usize),
    number: usize,
) -> Result<BodyPart<'_>, String> {
    // Most parts have three headers at most.
    let (mut few, mut many) = ([httparse::EMPTY_HEADER; 4], Vec::new());
    let whole = body.get(begin..end).unwrap_or_default();
    let (head_bytes, headers): (usize, &[httparse::Header<'_>]) = if whole.is_empty() {
        (0, &[])
    } else {
        let parsed = match httparse::parse_headers(whole, &mut few) {
            Err(httparse::Error::TooManyHeaders) => {
                many.resize(HEADERS_MAX, httparse::EMPTY_HEADER);
                httparse::parse_headers(whole, &mut many)
            }
            parsed => parsed,
        };
        // A part without a body may end at the line end of its last header.
        match parsed {
            Ok(httparse::Status::Complete((bytes, headers))) => (bytes, headers),
            Ok(httparse::Status::Partial) => {
                return Err(format!("the headers of part {number} do not end with an empty line"));
            }
            Err(error) => return Err(format!("the headers of part {number} are invalid: {error}")),
        }
    };
    let mut parsed = BodyPart {
        bytes: body.slice(begin + head_bytes..end.max(begin + head_bytes)),
        ..BodyPart::default()
    };
    for header in headers {
        let field = if header.name.eq_ignore_ascii_case("content-id") {
            &mut parsed.id
        } else if header.name.eq_ignore_ascii_case("content-type") {
            &mut parsed.content_type
        } else if header.name.eq_ignore_ascii_case("content-transfer-encoding") {
            &mut parsed.encoding
        } else {
            continue;
        };
        let value = str::from_utf8(header.value)
            .map_err(|_| format!("{} of part {number} is not UTF-8", header.name))?;
        if value.len() > PART_HEADER_BYTES_MAX || has_control(value) {
            return Err(format!(
                "{} of part {number} is longer than {PART_HEADER_BYTES_MAX} bytes or has control \
                 characters",
                header.name
            ));
        }
        *field = Some(value);
    }
    Ok(parsed)
}

/// True for a text with control characters. Most texts have visible ASCII only, which is seen
/// without decoding, several bytes at once.
pub(crate) fn has_control(text: &str) -> bool {
    let is_visible = |byte: u8| (0x20..0x7f).contains(&byte);
    !text.bytes().fold(true, |all, byte| all & is_visible(byte))
        && text.chars().any(char::is_control)
}

/// Writes a body. The boundary is chosen at the end, so that no part contains it.
#[derive(Debug, Default)]
pub(crate) struct MultipartWriter {
    /// The parts, each with a place for the delimiter before it.
    bytes: Vec<u8>,
    /// Where the text of the boundary goes.
    delimiters: Vec<usize>,
}

/// The bytes of a boundary: 16 digits after a fixed text.
const BOUNDARY_PREFIX: &str = "nearstate-";
const BOUNDARY_BYTES: usize = BOUNDARY_PREFIX.len() + 16;

impl MultipartWriter {
    /// A writer with room for this many bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), delimiters: Vec::new() }
    }

    /// Adds a part.
    pub(crate) fn part(
        &mut self,
        id: &str,
        content_type: &str,
        encoding: Option<&str>,
        bytes: &[u8],
    ) {
        self.delimiter();
        let out = &mut self.bytes;
        out.extend_from_slice(b"\r\nContent-Id: ");
        push_header_value(id, out);
        out.extend_from_slice(b"\r\nContent-Type: ");
        push_header_value(content_type, out);
        if let Some(encoding) = encoding {
            out.extend_from_slice(b"\r\nContent-Transfer-Encoding: ");
            push_header_value(encoding, out);
        }
        out.extend_from_slice(b"\r\n\r\n");
        out.extend_from_slice(bytes);
    }

    fn delimiter(&mut self) {
        if !self.delimiters.is_empty() {
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.bytes.extend_from_slice(b"--");
        self.delimiters.push(self.bytes.len());
        self.bytes.extend_from_slice(&[b'_'; BOUNDARY_BYTES]);
    }

    /// Adds the parts of another body.
    pub(crate) fn append(&mut self, other: &Self) {
        if other.delimiters.is_empty() {
            return;
        }
        if !self.delimiters.is_empty() {
            self.bytes.extend_from_slice(b"\r\n");
        }
        let base = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.delimiters.extend(other.delimiters.iter().map(|at| base + at));
    }

    /// The bytes so far.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Ends the body. Returns its boundary and its bytes.
    pub(crate) fn finish(mut self, seed: u64) -> (String, Vec<u8>) {
        self.delimiter();
        self.bytes.extend_from_slice(b"--\r\n");
        let boundary = (0..=u64::MAX)
            .map(|attempt| {
                let digits = xxh3_64_with_seed(&attempt.to_le_bytes(), seed);
                format!("{BOUNDARY_PREFIX}{digits:016x}")
            })
            .find(|boundary| memmem::find(&self.bytes, boundary.as_bytes()).is_none())
            .unwrap_or_else(|| unreachable!("a body has fewer than 2^64 places"));
        for at in &self.delimiters {
            if let Some(place) = self.bytes.get_mut(*at..at + BOUNDARY_BYTES) {
                place.copy_from_slice(boundary.as_bytes());
            }
        }
        (boundary, self.bytes)
    }
}

/// Appends a header value. Control characters, which only another interface can have written, are
/// percent-encoded.
fn push_header_value(value: &str, out: &mut Vec<u8>) {
    let is_control = |byte: u8| byte < 0x20 || byte == 0x7f;
    if !value.bytes().fold(false, |any, byte| any | is_control(byte)) {
        out.extend_from_slice(value.as_bytes());
        return;
    }
    for byte in value.bytes() {
        if is_control(byte) {
            out.extend_from_slice(format!("%{byte:02X}").as_bytes());
        } else {
            out.push(byte);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TYPE: &str = "multipart/mixed; boundary=partboundary";

    fn parse_text(text: &str) -> Result<Vec<BodyPart<'static>>, String> {
        parse(TYPE, Box::leak(Box::new(Bytes::copy_from_slice(text.as_bytes()))))
    }

    fn part(body: &Bytes, whole: (usize, usize), number: usize) -> Result<BodyPart<'_>, String> {
        match plain_headers(body) {
            Some((headers, bytes)) => Ok(BodyPart { bytes: body.slice(bytes..), ..headers }),
            None => any_part(body, whole, number),
        }
    }

    /// As [`parse`] with the boundary `b`: each part is searched from its first byte, and all
    /// headers are read by the general parser.
    fn parse_generally(body: &Bytes) -> Option<Vec<BodyPart<'_>>> {
        let find = |from: usize| Some(from + memmem::find(body.get(from..)?, b"\r\n--b")?);
        let mut at = if body.starts_with(b"--b") { 3 } else { find(0)? + 5 };
        let mut parts = Vec::new();
        while !body.get(at..)?.starts_with(b"--") {
            let rest = body.get(at..)?;
            let begin = at + rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            let end = find(begin)?;
            let is_line = body.get(begin..)?.starts_with(b"\r\n");
            parts.push(any_part(body, (begin + 2, end), 1).ok().filter(|_| is_line)?);
            at = end + 5;
        }
        Some(parts)
    }

    #[test]
    fn the_example_of_annex_c_is_parsed() {
        let parts = parse_text(
            "--partboundary\r\nContent-Id: meta\r\nContent-Type: application/json\r\n\r\n\
             {\"tags\":{}}\r\n--partboundary\r\nContent-id: block1\r\n\
             Content-Disposition: attachment\r\nContent-Type: application/json\r\n\
             Content-Transfer-Encoding: binary\r\n\r\n{\"firstName\":\"John\"}\r\n--partboundary--",
        )
        .unwrap();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].id, Some("meta"));
        assert_eq!(parts[1].id, Some("block1"));
        assert_eq!(parts[1].encoding, Some("binary"));
        assert_eq!(parts[1].bytes, "{\"firstName\":\"John\"}");
    }

    #[test]
    fn headers_in_the_plain_form_are_read_as_by_the_general_parser() {
        for (head, is_plain) in [
            ("Content-Id: a\r\nContent-Type: text/plain;q=1\r\n", true),
            ("Content-Transfer-Encoding: binary\r\nContent-Id: a\r\nContent-Id: b\r\n", true),
            ("", true),
            ("Content-id: a\r\n", false),
            ("Content-Id: a b\r\n", false),
            ("Content-Id:  a\r\n", false),
            ("Content-Id: \r\n", false),
            ("Content-Id: \u{e9}\r\n", false),
            ("Content-Id: a\r\nContent-Disposition: attachment\r\n", false),
            ("Content-Id: a\r\nContent-Id: a\r\nContent-Id: a\r\nContent-Id: b\r\n", false),
        ] {
            for end in ["\r\n", "\r\nbytes", "\r\n\r\n"] {
                let body = Bytes::from(format!("{head}{end}"));
                let whole = (0, body.len());
                assert_eq!(plain_headers(&body).is_some(), is_plain, "{head:?}");
                assert_eq!(part(&body, whole, 1), any_part(&body, whole, 1), "{head:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_headers_are_read_as_by_the_general_parser(
            fields in prop::collection::vec(
                "Content-(Id|Type|Transfer-Encoding): ?[a-c\\x7f\u{e9} ]{0,3}(\r\n|\n)",
                0..5,
            ),
            rest in "\r?\n?x?",
        ) {
            let body = Bytes::from(fields.concat() + &rest);
            let whole = (0, body.len());
            let general = any_part(&body, whole, 1);
            prop_assert_eq!(part(&body, whole, 1), general);
        }
    }

    #[test]
    fn parts_may_be_empty_and_a_preamble_and_an_epilogue_are_ignored() {
        let parts = parse_text(
            "preamble\r\n--partboundary \r\nContent-Id: meta\r\n\r\n\r\n--partboundary\r\n\r\n\
             \r\n--partboundary--\r\nepilogue",
        )
        .unwrap();
        assert_eq!(parts.len(), 2);
        assert!(parts.iter().all(|part| part.bytes.is_empty()));
    }

    #[test]
    fn invalid_bodies_have_a_reason() {
        for text in [
            "",
            "--partboundary",
            "--partboundaryX\r\n\r\n",
            "--partboundary\r\nContent-Id: meta\r\n\r\n{}",
            "--partboundary\r\nContent-Id\r\n\r\n{}\r\n--partboundary--",
            "--partboundary\r\nContent-Id: a\r\n--partboundary--",
        ] {
            assert!(parse_text(text).is_err(), "{text:?}");
        }
        let long = format!(
            "--partboundary\r\nContent-Id: {}\r\n\r\n\r\n--partboundary--",
            "x".repeat(300)
        );
        assert!(parse_text(&long).is_err());
        let many = "--partboundary\r\n\r\n\r\n".repeat(PARTS_MAX + 1) + "--partboundary--";
        assert!(
            parse_text(&many).unwrap_err().contains("more than"),
            "the number of parts is limited"
        );
        for content_type in ["multipart/mixed", "multipart/mixed; boundary=", "x; boundary=\"a"] {
            assert!(parse(content_type, &Bytes::from_static(b"--a--")).is_err(), "{content_type}");
        }
    }

    #[test]
    fn a_part_has_as_many_headers_as_are_allowed() {
        let part = |count: usize| {
            let others = "x: y\r\n".repeat(count - 1);
            let body = format!("--b\r\n{others}Content-Id: a\r\n\r\n1\r\n--b--");
            parse("multipart/mixed; boundary=b", &Bytes::from(body))
                .map(|parts| parts[0].id == Some("a") && parts[0].bytes == "1")
        };
        for count in [1, 4, 5, HEADERS_MAX] {
            assert_eq!(part(count), Ok(true), "{count}");
        }
        assert!(part(HEADERS_MAX + 1).is_err());
    }

    #[test]
    fn boundaries_may_be_quoted_and_follow_other_parameters() {
        for content_type in [
            "multipart/mixed; boundary=\"a b\"",
            "multipart/mixed;type=\"x;boundary=z\"; Boundary=\"a \\b\"",
        ] {
            assert_eq!(boundary(content_type).as_deref(), Some("a b"), "{content_type}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_parsed(blocks in prop::collection::vec(
            ("[a-z]{1,8}", prop::collection::vec(any::<u8>(), 0..200)), 1..5,
        )) {
            let mut writer = MultipartWriter::default();
            for (id, bytes) in &blocks {
                writer.part(id, "application/octet-stream", Some("binary"), bytes);
            }
            let (boundary, body) = writer.finish(7);
            let content_type = format!("multipart/mixed; boundary={boundary}");
            let body = Bytes::from(body);
            let parts = parse(&content_type, &body).unwrap();
            prop_assert_eq!(parts.len(), blocks.len());
            for (part, (id, bytes)) in parts.iter().zip(&blocks) {
                prop_assert_eq!(part.id, Some(id.as_str()));
                prop_assert_eq!(&part.bytes[..], &bytes[..]);
            }
        }

        #[test]
        fn any_bytes_give_parts_or_a_reason(
            pieces in prop::collection::vec(prop_oneof![
                Just(b"--b".to_vec()), Just(b"\r\n".to_vec()), Just(b"--".to_vec()),
                Just(b"Content-Id: a".to_vec()), prop::collection::vec(any::<u8>(), 0..9),
                Just(b"\r\n--b\r\n".to_vec()), Just(b"Content-Id: a\r\n".to_vec()),
                Just(b"\r\n--b--".to_vec()), Just(vec![b'\r'; SHORT_BYTES]),
            ], 0..40),
        ) {
            let body = Bytes::from(pieces.concat());
            let parsed = parse("multipart/mixed; boundary=b", &body);
            let general = parse_generally(&body);
            prop_assert_eq!(parsed.as_ref().ok(), general.as_ref());
            if let Ok(parts) = parsed {
                let bytes: usize = parts.iter().map(|part| part.bytes.len()).sum();
                prop_assert!(bytes <= body.len());
            }
        }
    }
}
