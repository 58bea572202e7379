//! Requests as bytes.

use super::RespTable;
use crate::access::{PartSet, PartWrite, PartsChange, RecordTag, first_part};
use crate::targets::wire::digits;

/// The form of commands until they are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum RespForm {
    /// Separate requests.
    #[default]
    Requests,
    /// Words of one request, in which each command follows its word count.
    Words,
}

/// A sequence of commands.
#[derive(Debug, Default)]
pub(super) struct RespCommands {
    bytes: Vec<u8>,
    form: RespForm,
    count: usize,
    words: usize,
}

impl RespCommands {
    /// Removes all commands.
    pub(super) fn begin(&mut self, form: RespForm) {
        self.bytes.clear();
        (self.form, self.count, self.words) = (form, 0, 0);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The number of commands.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// The number of words that they add to a request.
    pub(super) const fn words(&self) -> usize {
        self.words
    }

    /// Begins a command of `words` words, which must follow.
    pub(super) fn command(&mut self, words: usize) {
        self.count += 1;
        self.words += words + 1;
        match self.form {
            RespForm::Requests => head(&mut self.bytes, words),
            RespForm::Words => word_of_number(&mut self.bytes, words),
        }
    }

    pub(super) fn word(&mut self, bytes: &[u8]) {
        word(&mut self.bytes, bytes);
    }

    /// A number as a word.
    pub(super) fn number(&mut self, number: usize) {
        word_of_number(&mut self.bytes, number);
    }

    pub(super) fn key(&mut self, prefix: &[u8], key: &[u8]) {
        two(&mut self.bytes, prefix, key);
    }
}

/// Begins a request of `words` words.
#[inline]
pub(super) fn head(out: &mut Vec<u8>, words: usize) {
    out.push(b'*');
    digits(words, out);
    out.extend_from_slice(b"\r\n");
}

#[inline]
pub(super) fn word(out: &mut Vec<u8>, bytes: &[u8]) {
    two(out, bytes, b"");
}

/// A word of two pieces.
#[inline]
pub(super) fn two(out: &mut Vec<u8>, first: &[u8], second: &[u8]) {
    out.push(b'$');
    digits(first.len() + second.len(), out);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(first);
    out.extend_from_slice(second);
    out.extend_from_slice(b"\r\n");
}

/// A number as a word.
pub(super) fn word_of_number(out: &mut Vec<u8>, number: usize) {
    let mut text = Vec::with_capacity(20);
    digits(number, &mut text);
    word(out, &text);
}

pub(super) fn request(out: &mut Vec<u8>, words: &[&[u8]]) {
    head(out, words.len());
    for bytes in words {
        word(out, bytes);
    }
}

/// A command with one key.
#[inline]
pub(super) fn key_request(out: &mut Vec<u8>, command: &[u8], prefix: &[u8], key: &[u8]) {
    head(out, 2);
    word(out, command);
    two(out, prefix, key);
}

/// Requests parts of a record.
#[inline]
pub(super) fn parts_request(
    out: &mut Vec<u8>,
    resp_table: &RespTable,
    key: &[u8],
    wanted: PartSet,
) {
    let (command, fields) = reading(resp_table, wanted);
    head(out, 2 + fields);
    word(out, command);
    two(out, &resp_table.prefix, key);
    field_names(out, resp_table, wanted, fields);
}

/// The command, and the number of names after the key.
fn reading(resp_table: &RespTable, wanted: PartSet) -> (&'static [u8], usize) {
    if wanted.is_empty() {
        (b"EXISTS", 0)
    } else if resp_table.is_plain() {
        (b"GET", 0)
    } else if resp_table.is_all(wanted) {
        (b"HGETALL", 0)
    } else {
        (b"HMGET", fields_of(resp_table, wanted))
    }
}

/// The number of fields to name for these parts: 0 for the whole record.
pub(super) fn fields_of(resp_table: &RespTable, wanted: PartSet) -> usize {
    if wanted.is_empty() || resp_table.is_plain() || resp_table.is_all(wanted) {
        return 0;
    }
    (0..resp_table.schema.parts.len()).filter(|part| wanted.contains(*part)).count()
}

pub(super) fn field_names(
    out: &mut Vec<u8>,
    resp_table: &RespTable,
    wanted: PartSet,
    fields: usize,
) {
    if fields > 0 {
        let parts = resp_table.schema.parts.iter().enumerate();
        for (_, name) in parts.filter(|(part, _)| wanted.contains(*part)) {
            word(out, name.as_bytes());
        }
    }
}

/// SET or HSET of parts. SET may end with a condition.
#[inline]
pub(super) fn parts_write(
    out: &mut Vec<u8>,
    resp_table: &RespTable,
    key: &[u8],
    parts: &[PartWrite<'_>],
    condition: &[u8],
) {
    if resp_table.is_plain() {
        head(out, if condition.is_empty() { 3 } else { 4 });
        word(out, b"SET");
        two(out, &resp_table.prefix, key);
        word(out, first_part(parts));
        if !condition.is_empty() {
            word(out, condition);
        }
        return;
    }
    head(out, 2 + 2 * parts.len());
    word(out, b"HSET");
    two(out, &resp_table.prefix, key);
    for (part, bytes) in parts {
        word(out, resp_table.part(*part));
        word(out, bytes);
    }
}

/// As [`parts_write`], within a sequence of commands.
pub(super) fn parts_command(
    out: &mut RespCommands,
    resp_table: &RespTable,
    key: &[u8],
    parts: &[PartWrite<'_>],
) {
    if resp_table.is_plain() {
        out.command(3);
        out.word(b"SET");
        out.key(&resp_table.prefix, key);
        out.word(first_part(parts));
        return;
    }
    if parts.is_empty() {
        return;
    }
    out.command(2 + 2 * parts.len());
    out.word(b"HSET");
    out.key(&resp_table.prefix, key);
    for (part, bytes) in parts {
        out.word(resp_table.part(*part));
        out.word(bytes);
    }
}

/// A change of parts alone.
#[inline]
pub(super) fn change_request(out: &mut Vec<u8>, resp_table: &RespTable, change: &PartsChange<'_>) {
    parts_write(out, resp_table, change.key, change.parts, b"XX");
}

pub(super) fn find_request(
    out: &mut Vec<u8>,
    script: &[u8],
    resp_table: &RespTable,
    tag: RecordTag<'_>,
    wanted: PartSet,
) {
    let (command, fields) = reading(resp_table, wanted);
    head(out, 6 + fields);
    word(out, b"EVALSHA");
    word(out, script);
    word(out, b"1");
    two(out, resp_table.tag(tag.0), tag.1);
    word(out, &resp_table.prefix);
    word(out, command);
    field_names(out, resp_table, wanted, fields);
}

pub(super) fn scan_request(out: &mut Vec<u8>, resp_table: &RespTable, from: &[u8], count: usize) {
    head(out, 7);
    word(out, b"ZRANGEBYLEX");
    word(out, &resp_table.order);
    two(out, b"[", from);
    word(out, b"+");
    word(out, b"LIMIT");
    word(out, b"0");
    word_of_number(out, count);
}
