//! Every exchange of the tests against the `OpenAPI` files of TS 29.598, Release 19:
//! `tests/data/openapi.json` has their operations and types, without texts.
//!
//! Three answers differ on purpose (`docs/nudsf.md`): 304 has no body, 412 may have a problem in
//! the place of the representation, and a schema is JSON where the file of `GetMetaSchema` refers
//! to a record by mistake.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::fixture::TestReply;

thread_local! {
    /// The test writes records through other interfaces.
    static OTHER_WRITERS: Cell<bool> = const { Cell::new(false) };
}

/// While it exists, responses to the thread need no `Last-Modified`: the node does not know when
/// another interface has changed a record.
pub(crate) struct OtherWriters(());

pub(crate) fn other_writers() -> OtherWriters {
    OTHER_WRITERS.set(true);
    OtherWriters(())
}

impl Drop for OtherWriters {
    fn drop(&mut self) {
        OTHER_WRITERS.set(false);
    }
}

const PROBLEM: &str = "TS29571_CommonData__ProblemDetails";

fn contract() -> &'static Value {
    static CONTRACT: OnceLock<Value> = OnceLock::new();
    CONTRACT.get_or_init(|| serde_json::from_str(include_str!("../data/openapi.json")).unwrap())
}

/// The operations of the files: id, method, path.
pub(crate) fn operations() -> Vec<(&'static str, &'static str, &'static str)> {
    let all = contract()["operations"].as_array().unwrap().iter();
    let text = |value: &'static Value| value.as_str().unwrap();
    all.map(|spec| (text(&spec["id"]), text(&spec["method"]), text(&spec["path"]))).collect()
}

fn operation(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next().unwrap_or_default();
    let segments: Vec<&str> = path.split('/').collect();
    contract()["operations"].as_array().unwrap().iter().find(|spec| {
        let known: Vec<&str> = spec["path"].as_str().unwrap().split('/').collect();
        let is_same = |(known, given): (&&str, &&str)| known == given || known.starts_with('{');
        spec["method"] == method
            && known.len() == segments.len()
            && known.iter().zip(&segments).all(is_same)
    })
}

/// Checks a request that was accepted, and its response.
#[track_caller]
pub(crate) fn check_exchange(
    (method, path): (&str, &str),
    (request_type, request): (Option<&str>, &[u8]),
    reply: &TestReply,
) {
    let Some(spec) = operation(method, path) else {
        assert!(reply.status >= 400, "{method} {path}: {}", reply.status);
        return;
    };
    if reply.status < 300 {
        check_request(spec, request_type, request);
        if let Err(why) = check_query(spec, path) {
            panic!("{method} {path}: {why}");
        }
    }
    check_response(spec, reply);
}

fn check_request(spec: &Value, media: Option<&str>, body: &[u8]) {
    let Some(known) = spec["request"].as_object() else { return };
    let media = media.unwrap_or_default().split(';').next().unwrap_or_default();
    let schema = known.get(media).or(known.get("*/*"));
    let schema = schema.unwrap_or_else(|| panic!("{}: a request of {media}", spec["id"]));
    if media.ends_with("json") && known.contains_key(media) {
        check_json(&serde_json::from_slice(body).unwrap(), schema, spec);
    }
}

/// The query parameters of a request: declared, present if they are required, and of their types.
fn check_query(spec: &Value, path: &str) -> Result<(), String> {
    let query = path.split_once('?').map_or("", |(_, query)| query);
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let mut given: BTreeMap<&str, String> = pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name, percent_decode_str(value).decode_utf8_lossy().into_owned())
        })
        .collect();
    let all = spec["parameters"].as_array().into_iter().flatten();
    for parameter in all.filter(|parameter| parameter["in"] == "query") {
        let (name, schema) = (parameter["name"].as_str().unwrap(), &parameter["schema"]);
        if let Some(text) = given.remove(name) {
            check_parameter(&text, schema, parameter["json"] == true)
                .map_err(|why| format!("{name}: {why}"))?;
            continue;
        }
        // `style: form, explode: true`: the attributes of an object are parameters.
        let named = schema["$ref"].as_str().map_or(schema, |name| &contract()["schemas"][name]);
        let fields = named["properties"].as_object().into_iter().flatten();
        let fields: serde_json::Map<String, Value> = fields
            .filter(|_| parameter["json"] == false)
            .filter_map(|(field, _)| Some((field.clone(), given.remove(field.as_str())?.into())))
            .collect();
        if !fields.is_empty() {
            validate(&Value::Object(fields), schema, name)?;
        } else if parameter["required"] == true {
            return Err(format!("no {name}"));
        }
    }
    if given.is_empty() { Ok(()) } else { Err(format!("not declared: {given:?}")) }
}

fn check_parameter(text: &str, schema: &Value, is_json: bool) -> Result<(), String> {
    let parsed: Option<Value> = serde_json::from_str(text).ok();
    // The example of `CountExpression` is a map of counts, its type is one of them.
    let map = parsed.as_ref().and_then(Value::as_object);
    if schema["$ref"] == "CountExpression"
        && let Some(map) = map.filter(|map| !map.contains_key("countType"))
    {
        return map.values().try_for_each(|one| validate(one, schema, ""));
    }
    // The client of free5GC sends the attributes of a client in their order.
    if schema["$ref"] == "ClientId" && parsed.is_none() && text.contains(' ') {
        return Ok(());
    }
    let plain = (!is_json).then(|| Value::from(text));
    let empty = text.is_empty().then_some(Value::Null);
    let mut forms = [plain, empty, parsed].into_iter().flatten();
    let is_valid = forms.any(|value| validate(&value, schema, "").is_ok());
    if is_valid { Ok(()) } else { Err(format!("{text:?} is none of {schema}")) }
}

fn check_response(spec: &Value, reply: &TestReply) {
    let status = reply.status.to_string();
    let media = reply.header("content-type").unwrap_or_default();
    let media = media.split(';').next().unwrap_or_default();
    let id = &spec["id"];
    if media == "application/problem+json" {
        assert!(reply.status >= 400, "{id}: a problem with {status}");
        check_json(&reply.json(), &serde_json::json!({"$ref": PROBLEM}), spec);
        assert_eq!(reply.json()["status"], reply.status);
        return;
    }
    if reply.status == 431 {
        // Of HTTP itself: the request has no operation yet.
        return;
    }
    let Some(known) = spec["responses"].get(&status) else {
        panic!("{id}: {status} {media} is not defined: {}", reply.text());
    };
    if reply.status < 300 {
        for name in known["headers"].as_object().unwrap().keys() {
            let is_unknown = name == "Last-Modified" && OTHER_WRITERS.get();
            assert!(is_unknown || reply.header(name).is_some(), "{id} {status}: no {name}");
        }
    }
    if reply.body.is_empty() && reply.status != 304 {
        check_empty(spec, reply, &known["media"]);
    }
    if reply.body.is_empty() {
        return;
    }
    if id == "GetMetaSchema" {
        check_json(&reply.json(), &serde_json::json!({"$ref": "MetaSchema"}), spec);
        return;
    }
    let known = known["media"].as_object().unwrap();
    let Some(schema) = known.get(media).or(known.get("*/*")) else {
        panic!("{id} {status}: the body is {media}, defined are {:?}", known.keys());
    };
    if media == "application/json" && known.contains_key(media) {
        check_json(&reply.json(), schema, spec);
    }
    if media == "multipart/mixed" {
        let parts = reply.parts();
        let [part, media, _, text] = &parts[0];
        let name = match part.as_str() {
            "meta" => "RecordMeta",
            "descriptor" => "RecordSearchResultDescriptor",
            other => panic!("{id}: the first part is {other:?}"),
        };
        assert_eq!(media, "application/json");
        let part: Value = serde_json::from_str(text).unwrap();
        check_json(&part, &serde_json::json!({"$ref": name}), spec);
    }
}

/// Only responses without a type of content have no body, and those with a block, which may be
/// empty. 201 has none if the client accepts no record, and errors of the file's types have a
/// problem.
fn check_empty(spec: &Value, reply: &TestReply, media: &Value) {
    let id = &spec["id"];
    let may_be_empty = media.as_object().unwrap().keys().all(|known| known == "*/*")
        || (id == "CreateOrModifyRecord"
            && reply.status == 201
            && reply.header("content-type").is_none());
    assert!(may_be_empty, "{id} {}: no body, defined are {media}", reply.status);
}

#[track_caller]
fn check_json(value: &Value, schema: &Value, spec: &Value) {
    if let Err(why) = validate(value, schema, "") {
        panic!("{}: {why} in {value}", spec["id"]);
    }
}

/// Validates a value against the part of JSON Schema that the files use.
fn validate(value: &Value, schema: &Value, at: &str) -> Result<(), String> {
    if let Some(name) = schema["$ref"].as_str() {
        let schemas = &contract()["schemas"];
        let found = schemas.get(name).ok_or_else(|| format!("{at}: no type {name}"))?;
        return validate(value, found, at);
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        validate(value, part, at)?;
    }
    for choice in ["anyOf", "oneOf"] {
        if let Some(parts) = schema[choice].as_array() {
            let valid = parts.iter().filter(|part| validate(value, part, at).is_ok()).count();
            if valid == 0 || (choice == "oneOf" && valid > 1) {
                return Err(format!("{at}: {valid} of {choice} {parts:?}"));
            }
        }
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.contains(value)
    {
        return Err(format!("{at}: none of {values:?}"));
    }
    let is_typed = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some(other) => return Err(format!("{at}: the type {other} is not known")),
        None => true,
    };
    if !is_typed {
        return Err(format!("{at}: no {}", schema["type"]));
    }
    validate_items(value, schema, at)?;
    validate_fields(value, schema, at)
}

fn validate_items(value: &Value, schema: &Value, at: &str) -> Result<(), String> {
    let Some(items) = value.as_array() else { return Ok(()) };
    let bound = |name: &str, default: u64| schema[name].as_u64().unwrap_or(default);
    let count = items.len() as u64;
    if count < bound("minItems", 0) || count > bound("maxItems", u64::MAX) {
        return Err(format!("{at}: {count} items"));
    }
    let is_twice = |(index, item)| items.iter().take(index).any(|before| before == item);
    if schema["uniqueItems"] == true && items.iter().enumerate().any(is_twice) {
        return Err(format!("{at}: items are equal"));
    }
    for (index, item) in items.iter().enumerate() {
        validate(item, &schema["items"], &format!("{at}/{index}"))?;
    }
    Ok(())
}

fn validate_fields(value: &Value, schema: &Value, at: &str) -> Result<(), String> {
    let Some(fields) = value.as_object() else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(name.as_str().unwrap()) {
            return Err(format!("{at}: no {name}"));
        }
    }
    if (fields.len() as u64) < schema["minProperties"].as_u64().unwrap_or(0) {
        return Err(format!("{at}: too few attributes"));
    }
    for (name, field) in fields {
        let known = &schema["properties"][name];
        let other = &schema["additionalProperties"];
        let schema = if known.is_null() { other } else { known };
        if schema == false {
            return Err(format!("{at}: the attribute {name} is not defined"));
        }
        if schema.is_object() {
            validate(field, schema, &format!("{at}/{name}"))?;
        }
    }
    Ok(())
}

#[test]
fn req_the_validator_checks_query_parameters() {
    for (method, path, is_valid) in [
        ("GET", "records", true),
        ("GET", "records?limit-range=1&count-indicator=true&supported-features=1F", true),
        ("GET", "records?tag=a&countType=TOTAL_COUNT", true),
        ("GET", "records?limit-range=x", false),
        ("GET", "records?count-indicator=1", false),
        ("GET", "records?other=1", false),
        ("GET", "records?filter=x", false),
        ("DELETE", "records", false),
        ("DELETE", "records?filter=%7B%22recordIdList%22:%5B%22a%22%5D%7D", true),
        ("DELETE", "subs-to-notify/s", false),
        ("DELETE", "subs-to-notify/s?nfId=a", true),
        ("DELETE", "subs-to-notify/s?client-id=%7B%7D", true),
        ("DELETE", "subs-to-notify/s?client-id=a", false),
    ] {
        let path = format!("/nudsf-dr/v1/r/s/{path}");
        let spec = operation(method, &path).unwrap();
        assert_eq!(check_query(spec, &path).is_ok(), is_valid, "{method} {path}");
    }
}

#[test]
fn req_the_validator_refuses_what_the_types_do_not_allow() {
    let schema = |name: &str| serde_json::json!({"$ref": name});
    for (name, value, is_valid) in [
        ("MetaSchema", r#"{"schemaId":"s","metaTags":[{"tagName":"a","keyType":"X"}]}"#, true),
        ("MetaSchema", r#"{"schemaId":"s"}"#, false),
        ("MetaSchema", r#"{"schemaId":"s","metaTags":[{"tagName":1,"keyType":"x"}]}"#, false),
        ("RecordMeta", r#"{"tags":{"a":["x","x"]}}"#, false),
        ("RecordMeta", r#"{"tags":{"a":["x","y"]}}"#, true),
        ("RecordMeta", r#"{"ttl":1}"#, false),
        (PROBLEM, r#"{"status":404}"#, true),
        (PROBLEM, r#"{"status":"404"}"#, false),
    ] {
        let value: Value = serde_json::from_str(value).unwrap();
        assert_eq!(validate(&value, &schema(name), "").is_ok(), is_valid, "{name} {value}");
    }
}
