//! Reads all records back, over a socket and from the region.

use std::path::Path;

use nearstate_store::{Form, Session};

use super::connection::NodeConnection;
use super::embedded::{self, EmbeddedKind, parse_content, progress};
use super::requests::{ModelValue, Records};
use super::shared_counters::{NAMESPACE, SharedCounter};
use crate::region_access::open_session;
use nearstate_resp_client::RespReply;

/// Attaches the region.
pub(super) fn session(folder: &Path) -> Result<Session, String> {
    open_session(&folder.join("region"))
}

/// A client's records, over a socket.
pub(super) fn by_socket(
    connection: &mut NodeConnection,
    namespace: &str,
) -> Result<Records, String> {
    let prefix = format!("{{{namespace}}},");
    let RespReply::Array(keys) = connection.request(&[b"KEYS", format!("{prefix}*").as_bytes()])?
    else {
        return Err("KEYS was not answered with an array".to_owned());
    };
    let mut records = Records::new();
    for key in keys {
        let full = bulk(key)?;
        let key = String::from_utf8_lossy(&full).into_owned();
        let own = key.strip_prefix(&prefix).ok_or_else(|| format!("KEYS {prefix}*: {key}"))?;
        let read: &[u8] = match own.as_bytes().first() {
            Some(b'h') => b"HGETALL",
            Some(b'm') => b"SMEMBERS",
            _ => b"GET",
        };
        let value = match (connection.request(&[read, &full])?, read) {
            (RespReply::Bulk(text), _) => ModelValue::Text(text),
            (RespReply::Array(parts), b"HGETALL") => {
                let parts = parts.into_iter().map(bulk).collect::<Result<Vec<_>, _>>()?;
                let pair = |pair: &[Vec<u8>]| match pair {
                    [name, value] => {
                        Ok((String::from_utf8_lossy(name).into_owned(), value.clone()))
                    }
                    _ => Err(format!("{key}: a field without a value")),
                };
                ModelValue::Hash(parts.chunks(2).map(pair).collect::<Result<_, _>>()?)
            }
            (RespReply::Array(parts), b"SMEMBERS") => {
                ModelValue::Set(parts.into_iter().map(bulk).collect::<Result<_, _>>()?)
            }
            (other, _) => return Err(format!("{key}: was listed, and is {other:?}")),
        };
        if records.insert(own.to_owned(), value).is_some() {
            return Err(format!("{key}: listed twice"));
        }
    }
    Ok(records)
}

fn bulk(reply: RespReply) -> Result<Vec<u8>, String> {
    reply.into_bulk()?.ok_or_else(|| "nothing instead of a text".to_owned())
}

/// A client's records, from the region.
pub(super) fn by_session(session: &Session, namespace: &str) -> Result<Records, String> {
    let context = |e: nearstate_store::Error| format!("{namespace}: {e}");
    let Some(found) = session.known_namespace(namespace).map_err(context)? else {
        return Ok(Records::new());
    };
    let mut records = Records::new();
    let mut scan = session.scan(found).map_err(context)?;
    while let Some(view) = scan.next().map_err(context)? {
        let value = match view.form() {
            Form::Value => ModelValue::Text(view.bytes().to_vec()),
            Form::Set => ModelValue::Set(view.members().map(<[u8]>::to_vec).collect()),
            Form::Blocks => {
                let fields = view.blocks().map(|(name, value)| (name.to_owned(), value.to_vec()));
                ModelValue::Hash(fields.collect())
            }
        };
        let key = String::from_utf8_lossy(view.key()).into_owned();
        if records.insert(key, value).is_some() {
            return Err(format!("{namespace}: one scan returned a key twice"));
        }
    }
    Ok(records)
}

/// Reads the records of one operation of an embedded writer at one moment.
type Read<'r> = dyn FnMut(&[String]) -> Result<Vec<Option<Vec<u8>>>, String> + 'r;

/// Checks the records of an embedded writer, which continues to write. Returns how many were read.
fn check_embedded(folder: &Path, number: u16, read: &mut Read<'_>) -> Result<u64, String> {
    let mut count = 0;
    for kind in EmbeddedKind::ALL {
        for key in 0..embedded::KEYS {
            let keys = kind.keys(key);
            let acked = progress(folder, number)?.acked;
            let found = read(&keys)?;
            let begun = progress(folder, number)?.begun;
            count += found.len() as u64;
            let mut put_by = Vec::new();
            for bytes in found {
                put_by.push(bytes.map(|bytes| parse_content(number, &bytes)).transpose()?);
            }
            let first = put_by.first().copied().flatten();
            if put_by.iter().any(|other| *other != first) {
                return Err(format!(
                    "embedded {number}: half of a transaction: {keys:?} were put by {put_by:?}"
                ));
            }
            if !kind.may_be(key, first, acked, begun) {
                return Err(format!(
                    "embedded {number}: {keys:?} put by {first:?}, after {acked} operations were \
                     acknowledged and {begun} begun"
                ));
            }
        }
    }
    Ok(count)
}

/// Checks an embedded writer's records over a socket.
pub(super) fn check_by_socket(
    folder: &Path,
    number: u16,
    connection: &mut NodeConnection,
) -> Result<u64, String> {
    let namespace = embedded::namespace(number);
    check_embedded(folder, number, &mut |keys| {
        connection.request(&[b"MULTI"])?;
        for key in keys {
            connection.request(&[b"GET", format!("{{{namespace}}},{key}").as_bytes()])?;
        }
        let RespReply::Array(found) = connection.request(&[b"EXEC"])? else {
            return Err("EXEC was not answered with an array".to_owned());
        };
        found.into_iter().map(RespReply::into_bulk).collect()
    })
}

/// Checks an embedded writer's records from the region.
pub(super) fn check_by_session(
    folder: &Path,
    number: u16,
    session: &Session,
) -> Result<u64, String> {
    let name = embedded::namespace(number);
    let context = |e: nearstate_store::Error| format!("{name}: {e}");
    let found = session.known_namespace(&name).map_err(context)?;
    let namespace = found.ok_or_else(|| format!("namespace {name:?} does not exist"))?;
    check_embedded(folder, number, &mut |keys| {
        let read = session.transact(|txn| {
            let one = |key: &String| {
                Ok(txn.get(namespace, key.as_bytes())?.map(|record| record.bytes().to_vec()))
            };
            keys.iter().map(one).collect::<nearstate_store::Result<Vec<_>>>()
        });
        read.map_err(context)
    })
}

/// A shared counter, from the region.
pub(super) fn counter(session: &Session, counter: SharedCounter) -> Result<u64, String> {
    let context = |e: nearstate_store::Error| format!("{NAMESPACE}: {e}");
    let Some(namespace) = session.known_namespace(NAMESPACE).map_err(context)? else {
        return Ok(0);
    };
    let view = session.get(namespace, counter.key().as_bytes()).map_err(context)?;
    view.map_or(Ok(0), |view| number(counter, view.bytes()))
}

/// A shared counter, over a socket.
pub(super) fn counter_by_socket(
    connection: &mut NodeConnection,
    counter: SharedCounter,
) -> Result<u64, String> {
    let key = format!("{{{NAMESPACE}}},{}", counter.key());
    let Some(text) = connection.request(&[b"GET", key.as_bytes()])?.into_bulk()? else {
        return Ok(0);
    };
    number(counter, &text)
}

fn number(counter: SharedCounter, text: &[u8]) -> Result<u64, String> {
    let text = String::from_utf8_lossy(text);
    text.parse().map_err(|e| format!("{counter:?} is {text:?}: {e}"))
}
