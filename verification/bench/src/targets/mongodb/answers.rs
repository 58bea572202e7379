//! What a server's answers mean. They are a stranger's bytes: a document is looked at element by
//! element where it lies, and nothing of it is believed before it was.

use super::documents::{ID, PARTS, bytes_of};
use crate::access::{Hear, Parts};
use bson::{RawArray, RawBsonRef, RawDocument};

/// An index has the value already (`DuplicateKey`, and its name in the first releases).
const DUPLICATE_KEY: [i64; 2] = [11_000, 11_001];

/// What FerretDB says instead when a change, not a new record, meets the index: an error of its
/// own (`InternalError`) with SQLite's words.
const INTERNAL_ERROR: i64 = 1;
const SQLITE_DUPLICATE: &str = "UNIQUE constraint failed";

/// Up to here a number with a point tells whole ones apart.
const WHOLE_MAX: f64 = 9e15;

/// Letters of a server's words that are kept.
const WORDS_MAX: usize = 400;

/// Why an answer is none that we can use.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It is not what a server answers.
    Strange(&'static str),
    /// The server refuses, in its own words.
    Refused(String),
    /// A unique index refuses: `_id` or a tag.
    Taken,
}

type Understood<T> = Result<T, Trouble>;

const TORN: Trouble = Trouble::Strange("with a document that contradicts itself");

fn field<'d>(document: &'d RawDocument, name: &str) -> Understood<Option<RawBsonRef<'d>>> {
    document.get(name).map_err(|_| TORN)
}

/// A whole number, in whichever of three ways a server writes it.
fn whole(value: RawBsonRef<'_>) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "it was looked at before")]
    let of_float =
        |number: f64| (number.fract() == 0.0 && number.abs() < WHOLE_MAX).then_some(number as i64);
    value.as_i64().or_else(|| value.as_i32().map(i64::from)).or_else(|| of_float(value.as_f64()?))
}

fn number(document: &RawDocument, name: &str) -> Understood<Option<i64>> {
    Ok(field(document, name)?.and_then(whole))
}

/// The answer to a command that was done.
pub(super) fn done(bytes: &[u8]) -> Understood<&RawDocument> {
    let document = RawDocument::from_bytes(bytes).map_err(|_| TORN)?;
    match number(document, "ok")? {
        Some(1) => Ok(document),
        Some(_) => Err(refusal(document)?),
        None => Err(Trouble::Strange("with a document that does not say whether it is done")),
    }
}

/// What a document with `code` and `errmsg` says.
#[cold]
fn refusal(document: &RawDocument) -> Understood<Trouble> {
    let words = field(document, "errmsg")?.and_then(RawBsonRef::as_str).unwrap_or("without words");
    let code = number(document, "code")?.unwrap_or(0);
    let is_of_sqlite = code == INTERNAL_ERROR && words.contains(SQLITE_DUPLICATE);
    if DUPLICATE_KEY.contains(&code) || is_of_sqlite {
        return Ok(Trouble::Taken);
    }
    let words: String = words.chars().take(WORDS_MAX).collect();
    Ok(Trouble::Refused(format!("the server refuses: {words} (code {code})")))
}

/// How many records a write has met. A write that was refused is told within an answer that is
/// fine.
pub(super) fn met(bytes: &[u8]) -> Understood<i64> {
    let document = done(bytes)?;
    if let Some(errors) = field(document, "writeErrors")? {
        let errors = errors.as_array().ok_or(TORN)?;
        return Err(match errors.get(0).map_err(|_| TORN)?.and_then(RawBsonRef::as_document) {
            Some(first) => refusal(first)?,
            None => TORN,
        });
    }
    if let Some(concern) = field(document, "writeConcernError")? {
        return Err(refusal(concern.as_document().ok_or(TORN)?)?);
    }
    number(document, "n")?.ok_or(Trouble::Strange("a write without the number of records"))
}

/// The records of an answer, and the cursor that has more, 0 if none has.
pub(super) fn batch<'b>(bytes: &'b [u8], name: &str) -> Understood<(&'b RawArray, i64)> {
    let cursor = field(done(bytes)?, "cursor")?.and_then(RawBsonRef::as_document);
    let cursor = cursor.ok_or(Trouble::Strange("a search without a cursor"))?;
    let records = field(cursor, name)?.and_then(RawBsonRef::as_array);
    let records = records.ok_or(Trouble::Strange("a search without its records"))?;
    Ok((records, number(cursor, "id")?.unwrap_or(0)))
}

/// The one record of an answer.
#[inline]
pub(super) fn first(bytes: &[u8]) -> Understood<Option<&RawDocument>> {
    let (records, _) = batch(bytes, "firstBatch")?;
    let mut records = records.into_iter();
    let Some(record) = records.next() else { return Ok(None) };
    if records.next().is_some() {
        return Err(Trouble::Strange("several records where one was asked for"));
    }
    record.ok().and_then(RawBsonRef::as_document).map(Some).ok_or(TORN)
}

/// Hands the wanted parts of a record over.
#[inline]
pub(super) fn parts(
    record: &RawDocument,
    wanted: Parts,
    count: usize,
    hear: &mut Hear<'_>,
) -> Understood<()> {
    for element in record {
        let (name, value) = element.map_err(|_| TORN)?;
        let part = PARTS.iter().take(count).position(|part| *part == name);
        if let Some(part) = part.filter(|part| wanted.has(*part)) {
            hear(part, value.as_binary().ok_or(NOT_OURS)?.bytes);
        }
    }
    Ok(())
}

const NOT_OURS: Trouble = Trouble::Strange("with a record that is none of ours");

/// Writes the key of a record.
pub(super) fn key(record: &RawDocument, key: &mut Vec<u8>) -> Understood<()> {
    let text = field(record, ID.as_str())?.and_then(RawBsonRef::as_str).ok_or(NOT_OURS)?;
    bytes_of(text, key).ok_or(NOT_OURS)
}

/// The process that has answered `serverStatus`.
pub(super) fn process(bytes: &[u8]) -> Understood<i64> {
    number(done(bytes)?, "pid")?.ok_or(Trouble::Strange("a status without its process"))
}

/// Whether `buildInfo` is FerretDB's: it says so in fields of its own, and gives itself out for a
/// version of MongoDB beside.
pub(super) fn is_ferretdb(bytes: &[u8]) -> Understood<bool> {
    for element in done(bytes)? {
        let (name, _) = element.map_err(|_| TORN)?;
        if name.as_str().starts_with("ferretdb") {
            return Ok(true);
        }
    }
    Ok(false)
}
