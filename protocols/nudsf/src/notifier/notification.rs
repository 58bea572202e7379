//! A notification, and the value of its entry in the outbox: `length u32 | JSON head | body`.

use std::fmt::Write as _;

use hyper::Uri;
use hyper::body::Bytes;
use serde_json::Value;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

#[cfg(doc)]
use crate::repository::StorageNamespaces;

use crate::meta::push_json_text;
use crate::plain_json::PlainJson;
use crate::settings::NotificationKind;

/// A notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notification {
    pub(crate) kind: NotificationKind,
    /// When it became due, in milliseconds.
    pub(crate) due_ms: u64,
    /// Notifications with one number are delivered one after the other.
    pub(crate) order: u64,
    pub(crate) uri: String,
    pub(crate) content_type: String,
    /// `Content-Location`; empty: none.
    pub(crate) location: String,
    pub(crate) body: Bytes,
}

/// What has notifications that are ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OrderedKind {
    Record = 1,
    Timer = 2,
    Subscription = 3,
}

/// The number of what is ordered: a record, a timer or a subscription of the storage with this
/// [hash](StorageNamespaces::name_hash). A copy of the region has the same, so that what it adds to
/// the outbox follows what was there before.
pub(crate) fn order_of((name_hash, kind): (u64, OrderedKind), key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, name_hash ^ kind as u64)
}

/// The number of the host that a URI names: its scheme and authority.
pub(crate) fn target_of(uri: &str) -> u64 {
    let parsed = uri.parse::<Uri>().ok();
    let text = parsed.and_then(|uri| Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?)));
    xxh3_64(text.unwrap_or_default().as_bytes())
}

impl Notification {
    /// At least the bytes of its entry.
    pub(crate) fn entry_bytes_max(&self) -> usize {
        // Texts may be escaped, and the head has names and numbers.
        256 + 2 * self.text_bytes() + self.body.len()
    }

    fn text_bytes(&self) -> usize {
        self.uri.len() + self.content_type.len() + self.location.len()
    }

    /// The value of its entry.
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Written directly: a tree of values takes some times as long.
        let mut head = String::with_capacity(128 + self.text_bytes() + self.body.len());
        head.push_str("0000{\"kind\":");
        push_json_text(self.kind.name(), &mut head);
        let (due, order) = (self.due_ms, self.order);
        let written = write!(head, ",\"due\":{due},\"order\":{order}");
        debug_assert!(written.is_ok(), "a string takes any text");
        for (name, text) in [
            (",\"uri\":", &self.uri),
            (",\"type\":", &self.content_type),
            (",\"location\":", &self.location),
        ] {
            head.push_str(name);
            push_json_text(text, &mut head);
        }
        head.push('}');
        let mut bytes = head.into_bytes();
        let length = u32::try_from(bytes.len() - size_of::<u32>()).unwrap_or(u32::MAX);
        if let Some(place) = bytes.first_chunk_mut() {
            *place = length.to_le_bytes();
        }
        bytes.extend_from_slice(&self.body);
        bytes
    }

    /// `None`: the bytes are not of this format.
    #[cfg(test)]
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, body) = Self::decode_head(bytes)?;
        Some(Self { body: Bytes::copy_from_slice(body), ..head })
    }

    /// The notification without its body, and the body. `None`: the bytes are not of this format.
    pub(crate) fn decode_head(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (head, body) =
            rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        let notification = Self::read_plain(head).or_else(|| Self::read_value(head))?;
        Some((notification, body))
    }

    /// Reads a head without a tree of values. `None`: it is unusual, for example has escapes.
    fn read_plain(head: &[u8]) -> Option<Self> {
        let mut json = PlainJson::new(head)?;
        let (mut kind, mut due_ms, mut order) = (None, None, None);
        let (mut uri, mut content_type, mut location) = (None, None, None);
        json.members(|json, name| {
            match name {
                "kind" => kind = NotificationKind::of(json.string()?),
                "due" => due_ms = json.number(),
                "order" => order = json.number(),
                "uri" => uri = json.string(),
                "type" => content_type = json.string(),
                "location" => location = json.string(),
                _ => return None,
            }
            Some(())
        })?;
        json.end()?;
        Some(Self {
            kind: kind?,
            due_ms: due_ms?,
            order: order?,
            uri: uri?.to_owned(),
            content_type: content_type?.to_owned(),
            location: location?.to_owned(),
            body: Bytes::new(),
        })
    }

    /// Reads any head.
    fn read_value(head: &[u8]) -> Option<Self> {
        let head: Value = serde_json::from_slice(head).ok()?;
        let text = |name: &str| head.get(name).and_then(Value::as_str).map(str::to_owned);
        let number = |name: &str| head.get(name).and_then(Value::as_u64);
        Some(Self {
            kind: NotificationKind::of(&text("kind")?)?,
            due_ms: number("due")?,
            order: number("order")?,
            uri: text("uri")?,
            content_type: text("type")?,
            location: text("location")?,
            body: Bytes::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_reads_back_and_a_target_is_an_authority() {
        let notification = Notification {
            kind: NotificationKind::RecordExpired,
            due_ms: 7,
            order: u64::MAX,
            uri: "http://nf.example:8080/x".to_owned(),
            content_type: "multipart/mixed; boundary=b".to_owned(),
            location: "/nudsf-dr/v1/r/s/records/1".to_owned(),
            body: Bytes::from_static(&[0, 255, 13, 10]),
        };
        let bytes = notification.encode();
        assert!(bytes.len() <= notification.entry_bytes_max());
        let escaped = Notification { location: "\"\u{1}".repeat(500), ..notification.clone() };
        assert_eq!(Notification::decode(&escaped.encode()), Some(escaped));
        // As earlier versions have written it, with the names in another order.
        let head = concat!(
            r#"{"due":7,"kind":"record_expired","location":"/nudsf-dr/v1/r/s/records/1","#,
            r#""order":18446744073709551615,"type":"multipart/mixed; boundary=b","#,
            r#""uri":"http://nf.example:8080/x"}"#
        );
        let length = u32::try_from(head.len()).unwrap().to_le_bytes();
        let earlier = [&length, head.as_bytes(), &notification.body].concat();
        assert_eq!(Notification::decode(&earlier), Some(notification.clone()));
        assert_eq!(Notification::decode(&bytes), Some(notification));
        for end in 0..bytes.len() - 4 {
            assert_eq!(Notification::decode(&bytes[..end]), None, "{end}");
        }
        let target = target_of("http://nf.example:8080/x");
        assert_eq!(target, target_of("http://nf.example:8080/y?z"));
        for other in ["https://nf.example:8080/x", "http://nf.example/x"] {
            assert_ne!(target, target_of(other));
        }
    }
}
