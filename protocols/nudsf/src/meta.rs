//! `RecordMeta` (TS 29.598): tags, `ttl`, `callbackReference`, `schemaId`; from JSON and back.

use std::borrow::Cow;

use hyper::StatusCode;
use nearstate_model::limits::{TAG_NAME_BYTES_MAX, TAG_VALUE_BYTES_MAX, TAGS_MAX};
use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::Xxh3;

use crate::limits::{JSON_BYTES_MAX, URI_BYTES_MAX};
use crate::multipart::has_control;
use crate::plain_json::PlainJson;
use crate::problem::{Problem, json_reason};
use crate::tags::{MetaTags, is_plain, is_tag_name};
use crate::times::{format_date_time, parse_date_time};

/// The tag with the id of the schema of a record.
pub(crate) const SCHEMA_TAG: &str = "\u{1}schema";

/// The tag with the digests of a record's values of unique keys.
pub(crate) const UNIQUE_TAG: &str = "\u{1}unique";

/// The digest of a value of a unique key, with its schema and its tag.
pub(crate) type UniqueDigest = [u8; 16];

/// The value of [`UNIQUE_TAG`] for a value of a unique key. Equal digests are no proof: the lookup
/// compares the values themselves.
pub(crate) fn unique_digest(schema: &str, (tag, value): (&str, &str)) -> UniqueDigest {
    let mut digest = Xxh3::with_seed(3);
    for text in [schema, tag, value] {
        digest.update(&(text.len() as u64).to_le_bytes());
        digest.update(text.as_bytes());
    }
    digest.digest128().to_be_bytes()
}

/// The meta of a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordMeta {
    /// The expiry time in milliseconds since 1970; 0: never.
    pub(crate) expires_ms: u64,
    pub(crate) callback: Option<String>,
    pub(crate) schema_id: Option<String>,
    pub(crate) tags: MetaTags,
}

impl RecordMeta {
    /// Parses the text of a meta part. An empty text is an empty meta.
    ///
    /// # Errors
    /// 400: no JSON, or an attribute of the wrong type.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Problem> {
        if bytes.trim_ascii().is_empty() {
            return Ok(Self::default());
        }
        if let Some(meta) = Self::parse_valid(bytes) {
            return Ok(meta);
        }
        let value = serde_json::from_slice(bytes).map_err(|error| {
            Problem::message(format!("the meta part must be JSON: {}", json_reason(&error)))
        })?;
        Self::from_json(&value, "")
    }

    /// Parses a valid text without a tree of values, which takes a tenth of the time. `None`: the
    /// text is invalid, or unusual (escapes, a name that occurs twice); the tree has the reason, if
    /// any.
    fn parse_valid(bytes: &[u8]) -> Option<Self> {
        let mut json = PlainJson::new(bytes)?;
        let (mut ttl, mut callback, mut schema_id, mut tags) = (None, None, None, None);
        json.members(|json, name| {
            let is_first = match name {
                "ttl" => ttl.replace(json.string()?).is_none(),
                "callbackReference" => callback.replace(json.string()?).is_none(),
                "schemaId" => schema_id.replace(json.string()?).is_none(),
                "tags" => tags.replace(MetaTags::read(json)?).is_none(),
                _ => false,
            };
            is_first.then_some(())
        })?;
        json.end()?;
        let expires_ms = match ttl {
            Some(ttl) => parse_date_time(ttl).filter(|ms| *ms > 0)?,
            None => 0,
        };
        let tags: MetaTags = tags.unwrap_or_default();
        let is_valid = callback.is_none_or(is_callback)
            && schema_id.is_none_or(is_short_text)
            && tags.len() + usize::from(schema_id.is_some()) <= TAGS_MAX;
        let (callback, schema_id) = (callback.map(str::to_owned), schema_id.map(str::to_owned));
        is_valid.then_some(Self { expires_ms, callback, schema_id, tags })
    }

    /// The names of its attributes.
    pub(crate) const ATTRIBUTES: [&str; 4] = ["ttl", "callbackReference", "schemaId", "tags"];

    /// Reads a JSON value. `pointer` is its place in the body. Unknown attributes are ignored, as
    /// TS 29.501 requires.
    ///
    /// # Errors
    /// 400 with the pointer of the invalid attribute.
    pub(crate) fn from_json(value: &Value, pointer: &str) -> Result<Self, Problem> {
        let Value::Object(object) = value else {
            return Err(Problem::attribute(pointer, "meta must be an object"));
        };
        let mut meta = Self::default();
        if let Some(ttl) = object.get("ttl") {
            let parsed = ttl.as_str().and_then(parse_date_time).filter(|ms| *ms > 0);
            let refused = || Problem::optional(format!("{pointer}/ttl"), "must be a date-time");
            meta.expires_ms = parsed.ok_or_else(refused)?;
        }
        meta.callback = uri(object, "callbackReference", pointer)?;
        meta.schema_id = text(object, "schemaId", pointer)?;
        if let Some(tags) = object.get("tags") {
            let pointer = format!("{pointer}/tags");
            meta.tags = tags_from_json(tags, &pointer)?;
            // The schema is a value as well.
            let most = TAGS_MAX - usize::from(meta.schema_id.is_some());
            if meta.tags.len() > most {
                let count = meta.tags.len();
                let reason = format!("must have at most {most} values over all tags, not {count}");
                return Err(Problem::optional(pointer, reason));
            }
        }
        Ok(meta)
    }

    /// As JSON text: that of [`Self::to_json`].
    pub(crate) fn to_text(&self) -> String {
        let texts = (self.callback.as_deref(), self.schema_id.as_deref());
        let push = |out: &mut String| {
            if self.tags.is_plain() {
                self.tags.push_plain(out);
            } else {
                push_tags(self.tags.iter(), out);
            }
        };
        meta_text_of(self.expires_ms, texts, (self.tags.len(), push))
    }

    /// As JSON, always the same text for the same meta.
    pub(crate) fn to_json(&self) -> Value {
        let mut object = Map::new();
        if self.tags.len() > 0 {
            object.insert("tags".to_owned(), Value::Object(self.tags.to_json()));
        }
        if self.expires_ms != 0 {
            object.insert("ttl".to_owned(), json!(format_date_time(self.expires_ms)));
        }
        if let Some(callback) = &self.callback {
            object.insert("callbackReference".to_owned(), json!(callback));
        }
        if let Some(schema) = &self.schema_id {
            object.insert("schemaId".to_owned(), json!(schema));
        }
        Value::Object(object)
    }

    /// The (name, value) pairs that the store keeps, with the schema and the digests of the values
    /// of unique keys, and without other reserved ones.
    pub(crate) fn pairs<'m>(&'m self, unique: &'m [UniqueDigest]) -> Vec<(&'m str, &'m [u8])> {
        // One more for the attributes.
        let mut pairs: Vec<(&str, &[u8])> = Vec::with_capacity(self.tags.len() + unique.len() + 2);
        pairs.extend(self.tags.iter().map(|(name, value)| (name, value.as_bytes())));
        pairs.extend(self.schema_id.as_ref().map(|schema| (SCHEMA_TAG, schema.as_bytes())));
        pairs.extend(unique.iter().map(|digest| (UNIQUE_TAG, &digest[..])));
        pairs
    }
}

/// The JSON text of a meta, without the values between: a response has it, and an entity tag is its
/// digest. `tags` are in the order of their names, and whether none of them needs an escape.
pub(crate) fn meta_text<'t>(
    expires_ms: u64,
    (callback, schema): (Option<&str>, Option<&str>),
    (tags, is_plain): (impl ExactSizeIterator<Item = (&'t str, &'t str)>, bool),
) -> String {
    let count = tags.len();
    let push = |out: &mut String| {
        if is_plain {
            push_plain_tags(tags, out);
        } else {
            push_tags(tags, out);
        }
    };
    meta_text_of(expires_ms, (callback, schema), (count, push))
}

/// The same with a number of tags, which `push` appends as an object.
fn meta_text_of(
    expires_ms: u64,
    (callback, schema): (Option<&str>, Option<&str>),
    (count, push): (usize, impl FnOnce(&mut String)),
) -> String {
    let mut out = String::with_capacity(64 + count * 48);
    out.push('{');
    for (name, value) in [("callbackReference", callback), ("schemaId", schema)] {
        if let Some(value) = value {
            push_member(name, &mut out);
            push_json_text(value, &mut out);
        }
    }
    if count > 0 {
        push_member("tags", &mut out);
        push(&mut out);
    }
    if expires_ms != 0 {
        push_member("ttl", &mut out);
        push_json_text(&format_date_time(expires_ms), &mut out);
    }
    out.push('}');
    out
}

/// Appends tags as an object of arrays.
fn push_tags<'t>(tags: impl Iterator<Item = (&'t str, &'t str)>, out: &mut String) {
    let mut of_one = None;
    out.push('{');
    for (name, value) in tags {
        match of_one {
            Some(before) if before == name => out.push(','),
            _ => {
                out.push_str(if of_one.is_some() { "]," } else { "" });
                push_json_text(name, out);
                out.push_str(":[");
            }
        }
        of_one = Some(name);
        push_json_text(value, out);
    }
    out.push_str("]}");
}

/// The same for texts that need no escape, which takes half the instructions: each write of a
/// record makes the text for its entity tag.
fn push_plain_tags<'t>(tags: impl Iterator<Item = (&'t str, &'t str)>, out: &mut String) {
    let mut of_one = None;
    out.push_str("{\"");
    for (name, value) in tags {
        if of_one == Some(name) {
            out.push_str("\",\"");
        } else {
            out.push_str(if of_one.is_some() { "\"],\"" } else { "" });
            out.push_str(name);
            out.push_str("\":[\"");
            of_one = Some(name);
        }
        out.push_str(value);
    }
    out.push_str("\"]}");
}

/// Begins a member of an object.
fn push_member(name: &str, out: &mut String) {
    if !out.ends_with('{') {
        out.push(',');
    }
    push_json_text(name, out);
    out.push(':');
}

/// Appends a JSON string.
pub(crate) fn push_json_text(text: &str, out: &mut String) {
    if is_plain(text) {
        push_quoted(text, out);
    } else {
        out.push_str(&Value::from(text).to_string());
    }
}

fn push_quoted(text: &str, out: &mut String) {
    out.push('"');
    out.push_str(text);
    out.push('"');
}

/// Checks the length of a JSON text.
///
/// # Errors
/// 413.
pub(crate) fn check_json_bytes(bytes: &[u8]) -> Result<(), Problem> {
    if bytes.len() <= JSON_BYTES_MAX {
        return Ok(());
    }
    let detail = format!("the JSON text exceeds {JSON_BYTES_MAX} bytes: send less at once");
    Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "PAYLOAD_TOO_LARGE", detail))
}

/// Parses a JSON text of limited size.
///
/// # Errors
/// 400, 413.
pub(crate) fn parse_json(bytes: &[u8]) -> Result<Value, Problem> {
    check_json_bytes(bytes)?;
    serde_json::from_slice(bytes).map_err(|error| {
        Problem::message(format!("the body must be JSON: {}", json_reason(&error)))
    })
}

/// The bytes of a value in memory, without what the allocator adds. It takes as long as a clone.
pub(crate) fn value_bytes(value: &Value) -> usize {
    // Nodes of the map are half full at least, and three quarters usually.
    const MEMBER_BYTES: usize = (size_of::<String>() + size_of::<Value>()) * 4 / 3;
    let (mut open, mut bytes) = (vec![value], size_of::<Value>());
    while let Some(value) = open.pop() {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
            Value::String(text) => bytes += text.len(),
            Value::Array(items) => {
                bytes += items.len() * size_of::<Value>();
                open.extend(items);
            }
            Value::Object(members) => {
                let names: usize = members.keys().map(String::len).sum();
                bytes += names + members.len() * MEMBER_BYTES;
                open.extend(members.values());
            }
        }
    }
    bytes
}

/// Reads tags: each name has one value or more, without duplicates.
pub(crate) fn tags_from_json(value: &Value, pointer: &str) -> Result<MetaTags, Problem> {
    read_tags(value, pointer, false)
}

/// As [`tags_from_json`] for a timer, whose tags may have a value twice (TS 29.598, `Timer`).
///
/// # Errors
/// 400.
pub(crate) fn repeatable_tags_from_json(value: &Value, pointer: &str) -> Result<MetaTags, Problem> {
    read_tags(value, pointer, true)
}

fn read_tags(value: &Value, pointer: &str, may_repeat: bool) -> Result<MetaTags, Problem> {
    let Value::Object(object) = value else {
        return Err(Problem::optional(pointer, "must be an object of tag names"));
    };
    // The store refuses them too, but not before all were sorted, for each item of a patch.
    let count: usize = object.values().filter_map(Value::as_array).map(Vec::len).sum();
    if !may_repeat && count > TAGS_MAX {
        let reason = format!("a record has at most {TAGS_MAX} tag values, not {count}");
        return Err(Problem::optional(pointer, reason));
    }
    let mut tags = MetaTags::default();
    for (name, values) in object {
        let refused =
            |reason: &str| Problem::optional(format!("{pointer}/{}", escape(name)), reason);
        if !is_tag_name(name) {
            return Err(refused(&format!(
                "a tag name has 1 to {TAG_NAME_BYTES_MAX} bytes and does not begin with the byte 1"
            )));
        }
        let texts = values.as_array().filter(|values| !values.is_empty());
        let texts = texts.and_then(|values| values.iter().map(Value::as_str).collect());
        let texts: Option<Vec<&str>> = texts;
        let Some(mut texts) = texts else {
            return Err(refused("must be an array of at least one string"));
        };
        if texts.iter().any(|text| text.len() > TAG_VALUE_BYTES_MAX) {
            let reason = format!("the value of a tag has at most {TAG_VALUE_BYTES_MAX} bytes");
            return Err(refused(&reason));
        }
        texts.sort_unstable();
        if may_repeat {
            texts.dedup();
        }
        if texts.iter().zip(texts.iter().skip(1)).any(|(before, after)| before == after) {
            return Err(refused("the values of a tag must be different"));
        }
        for text in texts {
            tags.push(name, text);
        }
    }
    tags.sort();
    Ok(tags)
}

/// The document of a patch without the tags that have lost their last value, and without an empty
/// object of tags: both are as if they were absent.
pub(crate) fn without_empty_tags<'d>(document: &'d Value, name: &str) -> Cow<'d, Value> {
    let is_empty = |values: &Value| values.as_array().is_some_and(Vec::is_empty);
    let tags = document.get(name).and_then(Value::as_object);
    if !tags.is_some_and(|tags| tags.is_empty() || tags.values().any(is_empty)) {
        return Cow::Borrowed(document);
    }
    let mut document = document.clone();
    if let Some(tags) = document.get_mut(name).and_then(Value::as_object_mut) {
        tags.retain(|_, values| !is_empty(values));
        let is_gone = tags.is_empty();
        if let Some(object) = document.as_object_mut().filter(|_| is_gone) {
            object.remove(name);
        }
    }
    Cow::Owned(document)
}

/// A part of a JSON pointer (RFC 6901).
pub(crate) fn escape(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// An optional attribute that is a text of at most 1,024 bytes, which is the limit of a tag value.
pub(crate) fn text(
    object: &Map<String, Value>,
    name: &str,
    pointer: &str,
) -> Result<Option<String>, Problem> {
    let Some(value) = object.get(name) else { return Ok(None) };
    match value.as_str() {
        Some(text) if is_short_text(text) => Ok(Some(text.to_owned())),
        _ => {
            let reason = format!("must be a string of 1 to {TAG_VALUE_BYTES_MAX} bytes");
            Err(Problem::optional(format!("{pointer}/{name}"), reason))
        }
    }
}

/// True for a text that fits into a tag.
pub(crate) fn is_short_text(text: &str) -> bool {
    !text.is_empty() && text.len() <= TAG_VALUE_BYTES_MAX
}

/// True for an absolute `http` or `https` URI without control characters: the parser of URIs takes
/// any UTF-8 in a path.
pub(crate) fn is_callback(text: &str) -> bool {
    text.len() <= URI_BYTES_MAX
        && !has_control(text)
        && text.parse::<hyper::Uri>().is_ok_and(|uri| {
            uri.host().is_some_and(|host| !host.is_empty())
                && matches!(uri.scheme_str(), Some("http" | "https"))
        })
}

/// An optional attribute that is an absolute `http` or `https` URI.
pub(crate) fn uri(
    object: &Map<String, Value>,
    name: &str,
    pointer: &str,
) -> Result<Option<String>, Problem> {
    let Some(value) = object.get(name) else { return Ok(None) };
    if let Some(text) = value.as_str().filter(|text| is_callback(text)) {
        return Ok(Some(text.to_owned()));
    }
    let reason = format!("must be an absolute http or https URI of at most {URI_BYTES_MAX} bytes");
    Err(Problem::optional(format!("{pointer}/{name}"), reason))
}

/// True for the text form of a UUID.
pub(crate) fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn meta_is_parsed_and_written_again() {
        let text = r#"{"tags":{"ueId":["455346","455345"],"recordId":["1"]},
            "ttl":"2030-01-01T01:00:00+01:00","callbackReference":"http://nf.example/x",
            "schemaId":"s1","unknown":[1]}"#;
        let meta = RecordMeta::parse(text.as_bytes()).unwrap();
        let wanted = json!({
            "tags": {"ueId": ["455345", "455346"], "recordId": ["1"]},
            "ttl": "2030-01-01T00:00:00Z",
            "callbackReference": "http://nf.example/x",
            "schemaId": "s1",
        });
        assert_eq!(meta.to_json(), wanted);
        assert_eq!(RecordMeta::from_json(&wanted, "").unwrap(), meta);
        let pairs = meta.pairs(&[]);
        assert!(pairs.contains(&("ueId", b"455346")) && pairs.contains(&(SCHEMA_TAG, b"s1")));
        assert_eq!(RecordMeta::parse(b" \r\n").unwrap(), RecordMeta::default());
    }

    fn any_text() -> impl Strategy<Value = String> {
        let odd = prop::sample::select(vec!["\"", "\\", "\n", "\u{7f}", "é", "\u{2028}", "/", "a"]);
        prop::collection::vec(odd, 1..6).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn the_text_of_a_meta_is_that_of_its_json(
            expires_ms in prop_oneof![Just(0), 1..u64::MAX],
            callback in prop::option::of(any_text()),
            schema_id in prop::option::of(any_text()),
            tags in prop::collection::btree_map(
                any_text(), prop::collection::btree_set(any_text(), 1..4), 0..4,
            ),
        ) {
            let mut pairs = MetaTags::default();
            for (name, values) in &tags {
                for value in values {
                    pairs.push(name, value);
                }
            }
            let meta = RecordMeta { expires_ms, callback, schema_id, tags: pairs };
            prop_assert_eq!(meta.to_text(), meta.to_json().to_string());
        }
    }

    proptest! {
        #[test]
        fn a_text_is_read_directly_as_through_a_tree_of_values(
            members in prop::collection::vec(prop::sample::select(vec![
                r#""tags":{"a":["x","w"],"b":["y"]}"#, r#""tags":{"a":["x","x"]}"#,
                r#""tags":{"b":["y"],"a" : [ "x" , "w" ],"c": ["z"]}"#,
                r#""tags":{"a":[]}"#, r#""tags":{"":["x"]}"#, r#""tags":{"\u0001a":["x"]}"#,
                r#""tags":{"a":["1"],"a":["2"]}"#, r#""tags":null"#, r#""tags":{"a":null}"#,
                r#""ttl":"2030-01-01T01:00:00+01:00""#, r#""ttl":"soon""#, r#""ttl":null"#,
                r#""ttl":"1970-01-01T00:00:00Z""#, r#""schemaId":"s\n""#, r#""schemaId":"""#,
                r#""schemaId":null"#, r#""callbackReference":"http://nf/x""#,
                r#""callbackReference":"nf""#, r#""callbackReference":null"#, r#""x":[{"y":null}]"#,
            ]), 0..4),
        ) {
            let text = format!("{{{}}}", members.join(","));
            let tree = RecordMeta::from_json(&serde_json::from_str(&text).unwrap(), "");
            prop_assert_eq!(RecordMeta::parse(text.as_bytes()), tree.clone(), "{}", text);
            if let Some(direct) = RecordMeta::parse_valid(text.as_bytes()) {
                prop_assert_eq!(direct.to_text(), direct.to_json().to_string());
                prop_assert_eq!(Ok(direct), tree, "{}", text);
            }
        }
    }

    #[test]
    fn the_bytes_of_a_value_are_those_of_all_its_parts() {
        let one = size_of::<Value>();
        assert_eq!(value_bytes(&json!(1)), one);
        assert_eq!(value_bytes(&json!([0, [0, "abc"]])), one * 5 + 3);
        assert!(value_bytes(&json!({"a": {"b": 1}})) >= one * 3 + 2 * size_of::<String>() + 2);
    }

    #[test]
    fn an_invalid_attribute_is_named_by_its_pointer() {
        for (text, pointer) in [
            ("[]", ""),
            (r#"{"tags":[]}"#, "/tags"),
            (r#"{"tags":{"a/b":"x"}}"#, "/tags/a~1b"),
            (r#"{"tags":{"a":[]}}"#, "/tags/a"),
            (r#"{"tags":{"a":[1]}}"#, "/tags/a"),
            (r#"{"tags":{"a":["x","x"]}}"#, "/tags/a"),
            (r#"{"tags":{"":["x"]}}"#, "/tags/"),
            ("{\"tags\":{\"\\u0001a\":[\"x\"]}}", "/tags/\u{1}a"),
            (r#"{"ttl":5}"#, "/ttl"),
            (r#"{"ttl":"soon"}"#, "/ttl"),
            (r#"{"callbackReference":"nf"}"#, "/callbackReference"),
            (r#"{"callbackReference":"file:///etc"}"#, "/callbackReference"),
            ("{\"callbackReference\":\"http://nf.example/a\u{85}b\"}", "/callbackReference"),
            (r#"{"schemaId":""}"#, "/schemaId"),
        ] {
            let problem = RecordMeta::parse(text.as_bytes()).unwrap_err();
            assert_eq!(problem.status.as_u16(), 400, "{text}");
            assert_eq!(problem.invalid[0].0, pointer, "{text}");
        }
        let long = ["x".repeat(TAG_NAME_BYTES_MAX + 1), "x".repeat(TAG_VALUE_BYTES_MAX + 1)];
        for (meta, pointer) in [
            (json!({"tags": {"a": ["x", long[1]]}}), "/tags/a".to_owned()),
            (json!({"tags": {&long[0]: ["x"]}}), format!("/tags/{}", long[0])),
        ] {
            let problem = RecordMeta::parse(meta.to_string().as_bytes()).unwrap_err();
            assert_eq!(problem.invalid[0].0, pointer);
            assert_eq!(problem.cause, "OPTIONAL_IE_INCORRECT");
        }
        for (count, schema, is_valid) in [
            (TAGS_MAX, None, true),
            (TAGS_MAX + 1, None, false),
            (TAGS_MAX - 1, Some("s"), true),
            (TAGS_MAX, Some("s"), false),
        ] {
            let values: Vec<String> = (0..count).map(|value| format!("{value:02}")).collect();
            let mut meta = json!({"tags": {"a": values}});
            if let Some(schema) = schema {
                meta["schemaId"] = json!(schema);
            }
            let parsed = RecordMeta::parse(meta.to_string().as_bytes());
            assert_eq!(parsed.is_ok(), is_valid, "{count} {schema:?}");
            assert_eq!(RecordMeta::from_json(&meta, "").is_ok(), is_valid, "{count} {schema:?}");
        }
        assert!(RecordMeta::parse(b"{").unwrap_err().detail.contains("JSON"));
    }
}
