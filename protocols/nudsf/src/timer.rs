//! A timer (`Nudsf_Timer`, TS 29.598) as a document of the store, and what its expiry does. The
//! ordered tag [`DUE_TAG`] has the next time at which something happens, so that the store finds
//! due timers and no process keeps a queue of them.
//!
//! ```text
//!            due, no room for its notification: later
//!            due, repetitions left: notification, expires += periodicRepetition
//!            +--------+
//!            v        |
//!  PUT --> armed -----+        due, none left: notification
//!            |-------------------------------------------------> expired ---> deleted
//!                                                     deleteAfter seconds later, if it is present
//! ```

use std::cell::RefCell;

use hyper::body::Bytes;
use nearstate_model::limits::TAGS_MAX;
use nearstate_store::{Metadata, Namespace, Txn, View};
use serde_json::{Map, Value, json};

use crate::limits::JSON_BYTES_MAX;
use crate::meta::{
    SCHEMA_TAG, is_callback, is_short_text, parse_json, push_json_text, repeatable_tags_from_json,
    text, uri, without_empty_tags,
};
use crate::plain_json::PlainJson;
use crate::problem::Problem;
use crate::tags::MetaTags;
use crate::times::{format_date_time, parse_date_time};

/// The ordered tag with the time, in milliseconds (u64, big-endian), at which a timer or a
/// subscription needs attention.
pub(crate) const DUE_TAG: &str = "\u{1}due";

/// The tag of a timer whose time has passed.
pub(crate) const EXPIRED_TAG: &str = "\u{1}expired";

/// The value of [`EXPIRED_TAG`] of an expired timer.
pub(crate) const EXPIRED: &[u8] = b"1";

/// The value of [`EXPIRED_TAG`] of a timer whose notification has found no room in the outbox.
pub(crate) const DEFERRED: &[u8] = b"2";

/// True for the tag of an expired timer.
pub(crate) fn is_expired_tag((name, value): (&str, &[u8])) -> bool {
    name == EXPIRED_TAG && value != DEFERRED
}

/// The largest number of seconds that a timer may have: 100 years. A larger one is answered with
/// 400.
const SECONDS_MAX: u64 = 3_155_760_000;

/// A document as it is stored: the time of its modification and its JSON text.
pub(crate) fn document_bytes(modified_ms: u64, value: &Value) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256);
    bytes.extend_from_slice(&modified_ms.to_le_bytes());
    push_json(value, &mut bytes);
    bytes
}

fn push_json(value: &Value, bytes: &mut Vec<u8>) {
    // Half the instructions of `to_string`, which writes through a formatter.
    let written = serde_json::to_writer(bytes, value);
    debug_assert!(written.is_ok(), "a value in memory has a text");
}

thread_local! {
    /// A timer as it is stored, while it is written.
    static STORED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Bytes of it that are kept.
const STORED_KEPT_MAX: usize = 4 << 10;

/// A timer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Timer {
    /// The JSON text with the `timerId`.
    text: Bytes,
    tags: MetaTags,
    schema_id: Option<String>,
    pub(crate) callback: Option<String>,
    expires_ms: u64,
    delete_after: Option<u64>,
    period: Option<u64>,
    repetitions: Option<u64>,
}

fn text_of(value: &Value) -> Bytes {
    let mut text = Vec::with_capacity(256);
    push_json(value, &mut text);
    Bytes::from(text)
}

/// What becomes of a timer at its expiry.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AfterExpiry {
    /// It is armed again.
    Again(Box<Timer>),
    /// It is kept as expired until this time; 0: until it is deleted.
    Kept(u64),
    /// It is deleted.
    Deleted,
}

/// The attributes of a valid timer, as far as a text has them.
#[derive(Default)]
struct TimerText<'t> {
    id: Option<&'t str>,
    expires: Option<&'t str>,
    callback: Option<&'t str>,
    schema_id: Option<&'t str>,
    delete_after: Option<u64>,
    period: Option<u64>,
    repetitions: Option<u64>,
    tags: Option<MetaTags>,
}

impl<'t> TimerText<'t> {
    /// `None`: the text is invalid, or unusual (escapes, attributes that the node does not know).
    fn read(bytes: &'t [u8]) -> Option<Self> {
        let mut json = PlainJson::new(bytes)?;
        let mut read = Self::default();
        json.members(|json, name| {
            let is_first = match name {
                "timerId" => read.id.replace(json.string()?).is_none(),
                "expires" => read.expires.replace(json.string()?).is_none(),
                "callbackReference" => read.callback.replace(json.string()?).is_none(),
                "schemaId" => read.schema_id.replace(json.string()?).is_none(),
                "deleteAfter" => read.delete_after.replace(json.number()?).is_none(),
                "periodicRepetition" => read.period.replace(json.number()?).is_none(),
                "repetitionCount" => read.repetitions.replace(json.number()?).is_none(),
                "metaTags" => read.tags.replace(MetaTags::read(json)?).is_none(),
                _ => false,
            };
            is_first.then_some(())
        })?;
        json.end()?;
        let is_period = |seconds: &u64| (1..=SECONDS_MAX).contains(seconds);
        let is_valid = read.callback.is_none_or(is_callback)
            && read.schema_id.is_none_or(is_short_text)
            && read.delete_after.is_none_or(|seconds| seconds <= SECONDS_MAX)
            && read.period.as_ref().is_none_or(is_period)
            && read.repetitions.is_none_or(|count| count <= SECONDS_MAX);
        is_valid.then_some(read)
    }
}

/// A stored timer that its expiry ends: it does not repeat, and is deleted at once.
pub(crate) struct EndingTimer<'t> {
    pub(crate) text: &'t [u8],
    pub(crate) callback: Option<&'t str>,
}

impl<'t> EndingTimer<'t> {
    /// Reads the text of a valid timer, without its tags: they are not written again. `None`: it
    /// does not end, or its text is unusual.
    pub(crate) fn read(text: &'t [u8], id: &[u8]) -> Option<Self> {
        let mut json = PlainJson::new(text)?;
        let (mut own_id, mut expires, mut callback) = (None, None, None);
        let (mut schema_id, mut delete_after, mut tags) = (None, None, None);
        json.members(|json, name| {
            let is_first = match name {
                "timerId" => own_id.replace(json.string()?).is_none(),
                "expires" => expires.replace(json.string()?).is_none(),
                "callbackReference" => callback.replace(json.string()?).is_none(),
                "schemaId" => schema_id.replace(json.string()?).is_none(),
                "deleteAfter" => delete_after.replace(json.number()?).is_none(),
                "metaTags" => {
                    json.members(|json, _| json.elements(|json| json.string().map(drop)))?;
                    tags.replace(()).is_none()
                }
                _ => false,
            };
            is_first.then_some(())
        })?;
        json.end()?;
        let is_ending = own_id.is_some_and(|own| own.as_bytes() == id)
            && delete_after == Some(0)
            && parse_date_time(expires?).is_some()
            && callback.is_none_or(is_callback);
        is_ending.then_some(Self { text, callback })
    }
}

impl Timer {
    /// Reads the JSON text of a timer with this id.
    ///
    /// # Errors
    /// 400, 413.
    pub(crate) fn read(text: &Bytes, id: &str) -> Result<Self, Problem> {
        let valid = (text.len() <= JSON_BYTES_MAX).then(|| Self::read_valid(text, id)).flatten();
        match valid {
            Some(timer) => Ok(timer),
            None => Self::parse(&parse_json(text)?, id),
        }
    }

    /// Reads the text of a stored timer, of any length. `None`: it is no timer.
    pub(crate) fn of_stored(text: &Bytes, id: &str) -> Option<Self> {
        let tree = || Self::parse(&serde_json::from_slice(text).ok()?, id).ok();
        Self::read_valid(text, id).or_else(tree)
    }

    /// Reads a valid text without a tree of values. `None`: the tree has the reason.
    fn read_valid(text: &Bytes, id: &str) -> Option<Self> {
        let read = TimerText::read(text)?;
        if read.tags.as_ref().is_some_and(|tags| tags.len() == 0) {
            return None;
        }
        let expires_ms = parse_date_time(read.expires?)?;
        let text = match read.id {
            Some(given) if given != id => return None,
            Some(_) => text.clone(),
            // The object is not empty.
            None => {
                // Exact for most ids: the buffer would be moved otherwise.
                let mut with_id = String::with_capacity(text.len() + id.len() + 13);
                with_id.push_str("{\"timerId\":");
                push_json_text(id, &mut with_id);
                with_id.push(',');
                with_id.push_str(str::from_utf8(text).ok()?.trim_start().strip_prefix('{')?);
                Bytes::from(with_id)
            }
        };
        Some(Self {
            text,
            expires_ms,
            callback: read.callback.map(str::to_owned),
            schema_id: read.schema_id.map(str::to_owned),
            delete_after: read.delete_after,
            period: read.period,
            repetitions: read.repetitions,
            tags: read.tags.unwrap_or_default(),
        })
    }

    /// As [`Timer::parse`], of a patched document: a tag that has lost its last value is gone.
    ///
    /// # Errors
    /// As [`Timer::parse`].
    pub(crate) fn of_patched(value: &Value, id: &str) -> Result<Self, Problem> {
        Self::parse(&without_empty_tags(value, "metaTags"), id)
    }

    /// Checks the JSON of a timer with this id. An empty object of tags is left out.
    ///
    /// # Errors
    /// 400 with the pointer of the invalid attribute.
    pub(crate) fn parse(value: &Value, id: &str) -> Result<Self, Problem> {
        let mut value = value.clone();
        let has_none = |tags: &Value| tags.as_object().is_some_and(Map::is_empty);
        if value.get("metaTags").is_some_and(has_none)
            && let Some(object) = value.as_object_mut()
        {
            object.remove("metaTags");
        }
        let Some(object) = value.as_object() else {
            return Err(Problem::message("a timer must be an object"));
        };
        let Some(expires) = object.get("expires") else {
            return Err(Problem::parameter("MANDATORY_IE_MISSING", "/expires", "is required"));
        };
        let expires_ms = expires.as_str().and_then(parse_date_time);
        let expires_ms =
            expires_ms.ok_or_else(|| Problem::attribute("/expires", "must be a date-time"))?;
        if object.get("timerId").is_some_and(|given| given.as_str() != Some(id)) {
            return Err(Problem::optional("/timerId", "must be the timerId of the path"));
        }
        let number = |name: &str, min: u64| match object.get(name) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) if (min..=SECONDS_MAX).contains(&number) => Ok(Some(number)),
                _ => {
                    let reason = format!("must be a number from {min} to {SECONDS_MAX}");
                    Err(Problem::optional(format!("/{name}"), reason))
                }
            },
        };
        let tags = object.get("metaTags").map(|tags| repeatable_tags_from_json(tags, "/metaTags"));
        let mut timer = Self {
            tags: tags.transpose()?.unwrap_or_default(),
            schema_id: text(object, "schemaId", "")?,
            callback: uri(object, "callbackReference", "")?,
            expires_ms,
            delete_after: number("deleteAfter", 0)?,
            period: number("periodicRepetition", 1)?,
            repetitions: number("repetitionCount", 0)?,
            text: Bytes::new(),
        };
        if let Some(object) = value.as_object_mut() {
            object.insert("timerId".to_owned(), json!(id));
        }
        timer.text = text_of(&value);
        Ok(timer)
    }

    /// The JSON text of the timer.
    pub(crate) fn text(&self) -> &Bytes {
        &self.text
    }

    /// What becomes of the timer when it has expired. Its repetitions follow its own times, so that
    /// a node that was away delivers each of them.
    pub(crate) fn after_expiry(&self) -> AfterExpiry {
        if let Some(period) = self.period
            && self.repetitions != Some(0)
        {
            let mut next = self.clone();
            next.expires_ms = self.expires_ms.saturating_add(period * 1000);
            next.repetitions = self.repetitions.map(|left| left - 1);
            // The text was read before.
            let mut object: Map<String, Value> =
                serde_json::from_slice(&self.text).unwrap_or_default();
            object.insert("expires".to_owned(), json!(format_date_time(next.expires_ms)));
            if let Some(left) = next.repetitions {
                object.insert("repetitionCount".to_owned(), json!(left));
            }
            next.text = text_of(&Value::Object(object));
            return AfterExpiry::Again(Box::new(next));
        }
        match self.delete_after {
            Some(0) => AfterExpiry::Deleted,
            None | Some(1..) => AfterExpiry::Kept(self.kept_until_ms()),
        }
    }

    /// Until when the timer is kept once it has expired; 0: until it is deleted.
    pub(crate) fn kept_until_ms(&self) -> u64 {
        self.delete_after.map_or(0, |seconds| self.expires_ms.saturating_add(seconds * 1000))
    }

    /// The number of expiries that are due: one, and the repetitions until then.
    pub(crate) fn missed(&self, now_ms: u64) -> u64 {
        let Some(late_ms) = now_ms.checked_sub(self.expires_ms) else { return 0 };
        let repeated = self.period.map_or(0, |period| late_ms / (period * 1000));
        1 + repeated.min(self.repetitions.unwrap_or(u64::MAX - 1))
    }

    /// What becomes of the timer when it has expired so often, at least once, and as often as it
    /// [has missed](Self::missed) at most.
    pub(crate) fn after_expiries(&self, count: u64) -> AfterExpiry {
        let mut last = self.clone();
        let before = count.saturating_sub(1);
        last.expires_ms += before * self.period.unwrap_or(0) * 1000;
        last.repetitions = self.repetitions.map(|left| left.saturating_sub(before));
        last.after_expiry()
    }

    /// Checks that the timer can be stored, armed and expired.
    ///
    /// # Errors
    /// 400: too many values of tags.
    pub(crate) fn check_tags(&self) -> Result<(), Problem> {
        // Armed it has `DUE_TAG`, expired `EXPIRED_TAG`, and until its deletion both.
        let own = 1 + usize::from(self.delete_after.is_some_and(|seconds| seconds > 0));
        let most = TAGS_MAX - own - usize::from(self.schema_id.is_some());
        if self.tags.len() <= most {
            return Ok(());
        }
        let reason = format!("must have at most {most} values, over all tags of this timer");
        Err(Problem::optional("/metaTags", reason))
    }

    /// Writes a timer again that is due, and makes it due later. What else is known of it stays.
    ///
    /// # Errors
    /// As [`Txn::put_with_metadata`].
    pub(crate) fn defer(
        txn: &Txn<'_>,
        namespace: Namespace,
        view: &View<'_>,
        due_ms: u64,
    ) -> nearstate_model::Result<()> {
        let due = due_ms.to_be_bytes();
        let is_own = |name: &str| [DUE_TAG, EXPIRED_TAG].contains(&name);
        let mut tags: Vec<_> = view.tags().filter(|(name, _)| !is_own(name)).collect();
        tags.push((DUE_TAG, &due));
        if tags.len() < TAGS_MAX {
            // So that it is found as one whose time has passed.
            tags.push((EXPIRED_TAG, DEFERRED));
        }
        let metadata = Metadata { tags: &tags, expires_ms: view.expires_ms() };
        txn.put_with_metadata(namespace, view.key(), view.bytes(), metadata)
    }

    /// Writes the timer, armed; or expired and kept until a time (0: without end).
    ///
    /// # Errors
    /// As [`Txn::put_with_metadata`].
    pub(crate) fn write(
        &self,
        txn: &Txn<'_>,
        (namespace, key): (Namespace, &[u8]),
        kept_until_ms: Option<u64>,
        now_ms: u64,
    ) -> nearstate_model::Result<()> {
        let due = kept_until_ms.unwrap_or(self.expires_ms).to_be_bytes();
        let mut tags: Vec<(&str, &[u8])> = Vec::with_capacity(self.tags.len() + 3);
        tags.extend(self.tags.iter().map(|(name, value)| (name, value.as_bytes())));
        tags.extend(self.schema_id.as_ref().map(|schema| (SCHEMA_TAG, schema.as_bytes())));
        if kept_until_ms != Some(0) {
            tags.push((DUE_TAG, &due));
        }
        if kept_until_ms.is_some() {
            tags.push((EXPIRED_TAG, EXPIRED));
        }
        STORED.with_borrow_mut(|bytes| {
            bytes.clear();
            bytes.extend_from_slice(&now_ms.to_le_bytes());
            bytes.extend_from_slice(&self.text);
            let metadata = Metadata { tags: &tags, expires_ms: 0 };
            let done = txn.put_with_metadata(namespace, key, bytes, metadata);
            bytes.shrink_to(STORED_KEPT_MAX);
            done
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn timer(value: &Value) -> Timer {
        Timer::parse(value, "t").unwrap()
    }

    fn value(timer: &Timer) -> Value {
        serde_json::from_slice(timer.text()).unwrap()
    }

    #[test]
    fn a_periodic_timer_repeats_as_often_as_it_says_and_is_then_kept_or_deleted() {
        let mut now = timer(&json!({
            "expires": "2026-01-01T00:00:00Z", "periodicRepetition": 10, "repetitionCount": 2,
            "deleteAfter": 5,
        }));
        for (expires, left) in [("2026-01-01T00:00:10Z", 1), ("2026-01-01T00:00:20Z", 0)] {
            let AfterExpiry::Again(next) = now.after_expiry() else { panic!("{now:?}") };
            assert_eq!(value(&next)["expires"], expires);
            assert_eq!(value(&next)["repetitionCount"], left);
            assert_eq!(timer(&value(&next)), *next);
            now = *next;
        }
        let kept = parse_date_time("2026-01-01T00:00:25Z").unwrap();
        assert_eq!(now.after_expiry(), AfterExpiry::Kept(kept));
        let once = json!({"expires": "2026-01-01T00:00:00Z"});
        assert_eq!(timer(&once).after_expiry(), AfterExpiry::Kept(0));
        let short = json!({"expires": "2026-01-01T00:00:00Z", "deleteAfter": 0});
        assert_eq!(timer(&short).after_expiry(), AfterExpiry::Deleted);
        let endless = json!({"expires": "2026-01-01T00:00:00Z", "periodicRepetition": 1});
        assert!(matches!(timer(&endless).after_expiry(), AfterExpiry::Again(_)));
    }

    #[test]
    fn missed_repetitions_are_counted_and_taken_at_once() {
        let at = |text: &str| parse_date_time(text).unwrap();
        let start = json!({"expires": "2026-01-01T00:00:00Z", "periodicRepetition": 10});
        let endless = timer(&start);
        for (now, missed) in [
            ("2025-12-31T23:59:59Z", 0),
            ("2026-01-01T00:00:00Z", 1),
            ("2026-01-01T00:00:09Z", 1),
            ("2026-01-01T00:00:10Z", 2),
            ("2026-01-01T01:00:00Z", 361),
        ] {
            assert_eq!(endless.missed(at(now)), missed, "{now}");
        }
        let AfterExpiry::Again(next) = endless.after_expiries(361) else { panic!("{endless:?}") };
        assert_eq!(value(&next)["expires"], "2026-01-01T01:00:10Z");
        assert_eq!(next.missed(at("2026-01-01T01:00:00Z")), 0);
        assert_eq!(endless.after_expiries(1), endless.after_expiry());
        let mut bounded = start;
        bounded["repetitionCount"] = json!(5);
        let bounded = timer(&bounded);
        assert_eq!(bounded.missed(at("2026-01-01T01:00:00Z")), 6, "the first and its repetitions");
        let AfterExpiry::Again(next) = bounded.after_expiries(2) else { panic!("{bounded:?}") };
        assert_eq!(value(&next)["repetitionCount"], 3);
        assert_eq!(bounded.after_expiries(6), AfterExpiry::Kept(0));
        let once = timer(&json!({"expires": "2026-01-01T00:00:00Z"}));
        assert_eq!(once.missed(at("2026-01-01T01:00:00Z")), 1);
    }

    #[test]
    fn an_invalid_timer_is_refused_with_the_attribute() {
        for (value, param) in [
            (json!({}), "/expires"),
            (json!({"expires": "soon"}), "/expires"),
            (json!({"expires": "2026-01-01T00:00:00Z", "timerId": "u"}), "/timerId"),
            (json!({"expires": "2026-01-01T00:00:00Z", "deleteAfter": -1}), "/deleteAfter"),
            (
                json!({"expires": "2026-01-01T00:00:00Z", "periodicRepetition": 0}),
                "/periodicRepetition",
            ),
            (json!({"expires": "2026-01-01T00:00:00Z", "metaTags": {"a": []}}), "/metaTags/a"),
            (
                json!({"expires": "2026-01-01T00:00:00Z", "callbackReference": "x"}),
                "/callbackReference",
            ),
        ] {
            let problem = Timer::parse(&value, "t").unwrap_err();
            assert_eq!(problem.invalid.first().unwrap().0, param, "{value}");
        }
        assert!(Timer::parse(&json!([]), "t").is_err());
    }

    proptest! {
        #[test]
        fn a_text_is_read_directly_as_through_a_tree_of_values(
            members in prop::collection::vec(prop::sample::select(vec![
                r#""expires":"2030-01-01T01:00:00+01:00""#, r#""expires":"soon""#,
                r#""expires":null"#, r#""timerId":"t""#, r#""timerId":"u""#,
                r#""timerId":"\u0074""#,
                r#""metaTags":{"a":["x","w"],"b":["y"]}"#, r#""metaTags":{"a":[]}"#,
                r#""metaTags":{}"#,
                r#""deleteAfter":0"#, r#""deleteAfter":5"#, r#""deleteAfter":-1"#,
                r#""deleteAfter":3155760001"#, r#""deleteAfter":"1""#, r#""periodicRepetition":0"#,
                r#""periodicRepetition":1"#, r#""repetitionCount":0"#, r#""repetitionCount":1.5"#,
                r#""callbackReference":"http://nf/x""#, r#""callbackReference":"nf""#,
                r#""schemaId":"s""#, r#""schemaId":"""#, r#""x":[{"y":null}]"#,
            ]), 0..6),
            has_expiry: bool,
        ) {
            let mut members = members;
            if has_expiry {
                members.push(r#""expires":"2030-01-01T00:00:00Z""#);
            }
            let text = Bytes::from(format!(" {{{}}} ", members.join(",")));
            let tree = Timer::parse(&serde_json::from_slice(&text).unwrap(), "t");
            let read = Timer::read(&text, "t");
            // The text keeps the order of the client.
            let same = |timer: Timer| (value(&timer), Timer { text: Bytes::new(), ..timer });
            prop_assert_eq!(read.map(same), tree.map(same));
        }
    }
}
