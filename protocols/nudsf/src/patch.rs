//! JSON patches (RFC 6902, `PatchItem`) of documents, with a report of the items that fail.

use std::io::Write;

use json_patch::{PatchOperation, patch};
use serde_json::{Value, json};

use crate::limits::{PATCH_COPIED_BYTES_MAX, PATCH_ITEMS_MAX};
use crate::problem::Problem;

/// The media type of a patch.
pub(crate) const MEDIA: &str = "application/json-patch+json";

/// The refusal of what is no item of a patch.
const ITEM_EXPECTED: &str = "must be an item of a JSON patch: an object with op (add, copy, move, \
    remove, replace or test) and path, with value for add, replace and test, and with from for \
    copy and move; path and from are JSON pointers";

/// The largest document that a patch may produce, as JSON text in bytes. `copy` could double it
/// with each item.
const DOCUMENT_BYTES_MAX: usize = 2 << 20;

/// The deepest nesting of a document, as of JSON texts that are parsed. `copy` could double it with
/// each item, and comparing, writing and dropping a document is recursive.
const DOCUMENT_DEPTH_MAX: usize = 128;

/// An item of a patch.
#[derive(Clone, Debug)]
pub(crate) struct PatchItem {
    pub(crate) path: String,
    /// The source of `copy` and `move`.
    pub(crate) from: Option<String>,
    pub(crate) operation: PatchOperation,
}

/// Reads the items of a patch.
///
/// # Errors
/// 400: no array, empty, too long, or an item that is no operation.
pub(crate) fn parse(value: &Value) -> Result<Vec<PatchItem>, Problem> {
    let items = value.as_array().filter(|items| !items.is_empty());
    let Some(items) = items.filter(|items| items.len() <= PATCH_ITEMS_MAX) else {
        let detail = format!("a patch must be an array of 1 to {PATCH_ITEMS_MAX} items");
        return Err(Problem::message(detail));
    };
    let item = |(index, item): (usize, &Value)| {
        let operation = serde_json::from_value(item.clone())
            .map_err(|_| Problem::attribute(format!("/{index}"), ITEM_EXPECTED))?;
        let text = |name: &str| item.get(name).and_then(Value::as_str).map(str::to_owned);
        Ok(PatchItem { path: text("path").unwrap_or_default(), from: text("from"), operation })
    };
    items.iter().enumerate().map(item).collect()
}

/// A failed item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailedItem {
    pub(crate) path: String,
    pub(crate) reason: String,
    /// The item was a `test`, which guards the whole patch.
    pub(crate) is_test: bool,
}

/// Applies the items one by one. An item that fails, or leaves a document that `validate` refuses,
/// changes nothing and is reported. Items beyond [`PATCH_COPIED_BYTES_MAX`] fail.
pub(crate) fn apply(
    document: &mut Value,
    items: &[PatchItem],
    validate: impl Fn(&PatchItem, &Value) -> Result<(), Problem>,
) -> Vec<FailedItem> {
    let mut failed = Vec::new();
    let (mut bytes, mut copied) = (text_bytes(document), 0);
    for (index, item) in items.iter().enumerate() {
        let is_test = matches!(item.operation, PatchOperation::Test(_));
        let applied = if is_test {
            // It changes nothing, so that it needs no copy.
            apply_one(document, item)
        } else {
            copied += bytes;
            check_copied(copied).and_then(|()| changed(document, item, &validate)).map(|changed| {
                (*document, bytes) = changed;
            })
        };
        if let Err(reason) = applied {
            let reason = format!("{reason} (failed operation index= {index})");
            failed.push(FailedItem { path: item.path.clone(), reason, is_test });
        }
    }
    failed
}

/// Applies all items, of which only the last document must be valid (RFC 6902, section 5). If one
/// fails, or `validate` refuses the last document, the items are reported and the document is of no
/// use: nothing may be written.
pub(crate) fn apply_whole(
    document: &mut Value,
    items: &[PatchItem],
    validate: impl Fn(&Value) -> Result<(), Problem>,
) -> Vec<FailedItem> {
    let before = document.clone();
    let failed = apply(document, items, |_, _| Ok(()));
    if !failed.is_empty() {
        return failed;
    }
    let Err(problem) = validate(document) else { return Vec::new() };
    // Reported is the item from which on no document was valid.
    let (mut current, mut is_valid, mut blamed) = (before, true, 0);
    for (index, item) in items.iter().enumerate() {
        let applied = apply_one(&mut current, item);
        debug_assert!(applied.is_ok(), "an item is applied again");
        let was_valid = std::mem::replace(&mut is_valid, validate(&current).is_ok());
        blamed = if was_valid && !is_valid { index } else { blamed };
    }
    let reason = format!("{} (failed operation index= {blamed})", problem.detail);
    let path = items.get(blamed).map(|item| item.path.clone()).unwrap_or_default();
    vec![FailedItem { path, reason, is_test: false }]
}

fn apply_one(document: &mut Value, item: &PatchItem) -> Result<(), String> {
    patch(document, std::slice::from_ref(&item.operation)).map_err(|error| error.to_string())
}

fn check_copied(bytes: usize) -> Result<(), String> {
    if bytes <= PATCH_COPIED_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "each item copies the document, and all together would copy more than \
         {PATCH_COPIED_BYTES_MAX} bytes: send fewer items at once"
    ))
}

/// A copy of the document with the change of an item, and the bytes of its text.
fn changed(
    document: &Value,
    item: &PatchItem,
    validate: &impl Fn(&PatchItem, &Value) -> Result<(), Problem>,
) -> Result<(Value, usize), String> {
    let mut changed = document.clone();
    apply_one(&mut changed, item)?;
    let bytes = check_size(&changed)?;
    validate(item, &changed).map_err(|problem| problem.detail)?;
    Ok((changed, bytes))
}

/// Returns the bytes of the text of a document.
fn check_size(document: &Value) -> Result<usize, String> {
    let mut open = vec![(document, 1)];
    while let Some((value, depth)) = open.pop() {
        if depth > DOCUMENT_DEPTH_MAX {
            return Err(format!("the document would be nested deeper than {DOCUMENT_DEPTH_MAX}"));
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => open.extend(fields.values().map(|item| (item, depth + 1))),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    // An item adds at most the size of the document, so the text is bounded by twice the limit.
    let bytes = text_bytes(document);
    if bytes > DOCUMENT_BYTES_MAX {
        return Err(format!("the document would exceed {DOCUMENT_BYTES_MAX} bytes"));
    }
    Ok(bytes)
}

/// Counts the bytes of a text that is not kept.
struct ByteCount(usize);

impl Write for ByteCount {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn text_bytes(document: &Value) -> usize {
    let mut count = ByteCount(0);
    let written = serde_json::to_writer(&mut count, document);
    debug_assert!(written.is_ok(), "a value in memory has a text");
    count.0
}

/// A `PatchResult`.
pub(crate) fn result(failed: &[FailedItem]) -> Value {
    let item = |item: &FailedItem| json!({"path": item.path, "reason": item.reason});
    json!({"report": failed.iter().map(item).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn items_that_fail_change_nothing_and_are_reported() {
        let items = json!([
            {"op": "replace", "path": "/a", "value": 2},
            {"op": "remove", "path": "/missing"},
            {"op": "test", "path": "/a", "value": 9},
            {"op": "add", "path": "/forbidden", "value": 1},
            {"op": "copy", "from": "/a", "path": "/b"},
            {"op": "move", "from": "/b", "path": "/c"},
        ]);
        let mut document = json!({"a": 1});
        let refuse = |_: &PatchItem, value: &Value| match value.get("forbidden") {
            Some(_) => Err(Problem::message("refused")),
            None => Ok(()),
        };
        let failed = apply(&mut document, &parse(&items).unwrap(), refuse);
        assert_eq!(document, json!({"a": 2, "c": 2}));
        let paths: Vec<_> = failed.iter().map(|item| (item.path.as_str(), item.is_test)).collect();
        assert_eq!(paths, [("/missing", false), ("/a", true), ("/forbidden", false)]);
        assert!(failed[2].reason.contains("index= 3"), "{}", failed[2].reason);
        assert_eq!(result(&failed)["report"][0]["path"], "/missing");
    }

    #[test]
    fn what_is_no_item_is_refused_with_its_index_and_what_an_item_is() {
        for item in
            [json!({"op": "add", "path": "/a"}), json!({"op": "put", "path": "/a"}), json!(1)]
        {
            let problem = parse(&json!([{"op": "remove", "path": "/a"}, item])).unwrap_err();
            assert_eq!(problem.invalid, [("/1".to_owned(), ITEM_EXPECTED.to_owned())]);
        }
    }

    #[test]
    fn only_the_last_document_of_a_whole_patch_is_validated() {
        let validate = |value: &Value| {
            let text = value["a"].as_str().map(drop);
            text.ok_or_else(|| Problem::message("a must be a string"))
        };
        let apply = |items: Value| {
            let mut document = json!({"a": "x"});
            let failed = apply_whole(&mut document, &parse(&items).unwrap(), validate);
            (document, failed)
        };
        let remove = json!({"op": "remove", "path": "/a"});
        let add = json!({"op": "add", "path": "/a", "value": "y"});
        let other = json!({"op": "add", "path": "/b", "value": 1});
        assert_eq!(apply(json!([remove, other, add])), (json!({"a": "y", "b": 1}), Vec::new()));
        let (_, failed) = apply(json!([remove, add, remove, other]));
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].path, "/a");
        assert!(failed[0].reason.contains("index= 2"), "{}", failed[0].reason);
        let (_, failed) = apply(json!([add, remove, remove]));
        assert!(failed[0].reason.contains("index= 2"), "{}", failed[0].reason);
    }

    #[test]
    fn what_is_no_patch_is_refused() {
        for value in [
            json!({}),
            json!([]),
            json!([1]),
            json!([{"op": "add", "path": "/a"}]),
            json!([{"op": "grow", "path": "/a", "value": 1}]),
            json!([{"op": "remove", "path": "a"}]),
            Value::Array(vec![json!({"op": "remove", "path": "/a"}); PATCH_ITEMS_MAX + 1]),
        ] {
            assert_eq!(parse(&value).unwrap_err().status.as_u16(), 400, "{value}");
        }
    }

    #[test]
    fn items_beyond_the_bytes_that_a_patch_may_copy_fail_and_tests_copy_nothing() {
        let mut document = json!({"a": "x".repeat(1 << 20), "b": 0});
        assert_eq!(text_bytes(&document), document.to_string().len());
        let item = |index: usize| match index % 2 {
            0 => json!({"op": "test", "path": "/a", "value": document["a"]}),
            _ => json!({"op": "replace", "path": "/b", "value": index}),
        };
        let items = Value::Array((0..PATCH_ITEMS_MAX).map(item).collect());
        let items = parse(&items).unwrap();
        let failed = apply(&mut document, &items, |_, _| Ok(()));
        let copied = PATCH_COPIED_BYTES_MAX >> 20;
        // A copy is a little larger than a mebibyte.
        assert_eq!(failed.len(), PATCH_ITEMS_MAX / 2 - copied + 1);
        assert_eq!(document["b"], 2 * copied - 3);
        for item in failed {
            assert!(!item.is_test && item.reason.contains("fewer items"), "{}", item.reason);
        }
    }

    #[test]
    fn copies_cannot_grow_the_document_without_limit() {
        let copy = |index| json!({"op": "copy", "from": "", "path": format!("/k{index}")});
        let items = Value::Array((0..60).map(copy).collect());
        let mut document = json!({"a": "x".repeat(1000)});
        let failed = apply(&mut document, &parse(&items).unwrap(), |_, _| Ok(()));
        assert!(failed.iter().any(|item| item.reason.contains("bytes")), "{failed:?}");
        assert!(document.to_string().len() <= DOCUMENT_BYTES_MAX);
        let copy = |power: u32| {
            let path = "/a".repeat(2_usize.pow(power));
            json!({"op": "copy", "from": "", "path": path})
        };
        let items = Value::Array((0..16).map(copy).collect());
        let mut document = json!({"a": {}});
        let failed = apply(&mut document, &parse(&items).unwrap(), |_, _| Ok(()));
        assert!(failed.iter().any(|item| item.reason.contains("deeper")), "{failed:?}");
    }

    proptest! {
        #[test]
        fn any_items_are_applied_or_reported(
            items in prop::collection::vec((
                prop::sample::select(vec!["add", "remove", "replace", "copy", "move", "test"]),
                "(/[abc0-9~-]{0,2}){0,3}", "(/[abc0-9~-]{0,2}){0,3}",
            ), 1..9),
        ) {
            let items: Vec<Value> = items.iter().map(|(op, path, from)| {
                json!({"op": op, "path": path, "from": from, "value": [1]})
            }).collect();
            let mut document = json!({"a": {"b": [1, 2]}, "c": "x"});
            if let Ok(items) = parse(&Value::Array(items)) {
                apply(&mut document, &items, |_, _| Ok(()));
            }
        }
    }
}
