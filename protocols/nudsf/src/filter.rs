//! Search expressions (`SearchExpression`) as searches of the store, and the expressions of
//! `tag-count-filter`.

use std::collections::BTreeMap;

use nearstate_model::limits::SEARCH_DEPTH_MAX;
use nearstate_store::search::{Op, Search};
use serde_json::{Map, Value, json};

use crate::meta::SCHEMA_TAG;
use crate::problem::{Problem, json_reason};
use crate::tags::is_reserved;

/// The most counts of one `tag-count-filter`. Each compares every record.
const COUNTS_MAX: usize = 32;

/// Parses an expression. `parameter` is the name of the query parameter.
///
/// # Errors
/// 400: no JSON, no expression, or one that exceeds the limits of searches.
pub(crate) fn parse_text(text: &str, parameter: &str) -> Result<Search, Problem> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        Problem::query(parameter, format!("must be JSON: {}", json_reason(&error)))
    })?;
    parse(&value, parameter)
}

fn parse(value: &Value, parameter: &str) -> Result<Search, Problem> {
    let search = expression(value, 1).map_err(|reason| Problem::query(parameter, reason))?;
    search.check().map_err(|error| Problem::query(parameter, error.to_string()))?;
    Ok(search)
}

fn expression(value: &Value, depth: usize) -> Result<Search, String> {
    if depth > SEARCH_DEPTH_MAX {
        return Err(format!("conditions are nested deeper than {SEARCH_DEPTH_MAX}"));
    }
    let Value::Object(object) = value else {
        return Err("an expression must be an object".to_owned());
    };
    // Generated clients, such as that of free5GC, send the attributes of all kinds of expressions:
    // those of others are empty.
    let given = |name: &str| object.get(name).filter(|value| !value.is_null() && *value != "");
    if given("cond").is_some() {
        condition(object, depth)
    } else if given("op").is_some() {
        comparison(object)
    } else if let Some(ids) = given("recordIdList").or(given("timerIds")) {
        let texts = ids.as_array().filter(|ids| !ids.is_empty());
        let texts = texts.map(|ids| ids.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        match texts {
            Some(Some(ids)) => {
                Ok(Search::Records(ids.into_iter().map(|id| id.as_bytes().to_vec()).collect()))
            }
            _ => Err("recordIdList must be an array of at least one string".to_owned()),
        }
    } else {
        Err("an expression has cond and units, or op, tag and value, or recordIdList".to_owned())
    }
}

/// `SearchCondition`. `NOT` holds if none of its units does. With a schema id, only records of that
/// schema match.
fn condition(object: &Map<String, Value>, depth: usize) -> Result<Search, String> {
    let units = object.get("units").and_then(Value::as_array).filter(|units| !units.is_empty());
    let units = units.ok_or("units must be an array of at least one expression")?;
    let mut units: Vec<Search> =
        units.iter().map(|unit| expression(unit, depth + 1)).collect::<Result<_, _>>()?;
    let search = match object.get("cond").and_then(Value::as_str) {
        Some("AND") => Search::And(units),
        Some("OR") => Search::Or(units),
        Some("NOT") => match units.len() {
            1 => units.pop().map_or(Search::Or(units), |unit| Search::Not(Box::new(unit))),
            _ => Search::Not(Box::new(Search::Or(units))),
        },
        _ => return Err("cond must be AND, OR or NOT".to_owned()),
    };
    match object.get("schemaId") {
        None => Ok(search),
        Some(Value::String(schema)) => {
            let value = schema.as_bytes().to_vec();
            let of_schema = Search::Compare { op: Op::Eq, tag: SCHEMA_TAG.to_owned(), value };
            Ok(Search::And(vec![search, of_schema]))
        }
        Some(_) => Err("schemaId must be a string".to_owned()),
    }
}

fn comparison(object: &Map<String, Value>) -> Result<Search, String> {
    let op = match object.get("op").and_then(Value::as_str) {
        Some("EQ") => Op::Eq,
        Some("NEQ") => Op::Neq,
        Some("GT") => Op::Gt,
        Some("GTE") => Op::Gte,
        Some("LT") => Op::Lt,
        Some("LTE") => Op::Lte,
        _ => return Err("op must be EQ, NEQ, GT, GTE, LT or LTE".to_owned()),
    };
    let text = |name: &str| object.get(name).and_then(Value::as_str);
    let (Some(tag), Some(value)) = (text("tag"), text("value")) else {
        return Err("a comparison has a tag and a value, both strings".to_owned());
    };
    if is_reserved(tag) {
        return Err("no tag begins with the byte 1".to_owned());
    }
    Ok(Search::Compare { op, tag: tag.to_owned(), value: value.as_bytes().to_vec() })
}

/// Bytes that a value of a count takes beside its own.
const VALUE_BYTES: usize = 64;

/// How values of a tag are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountType {
    /// The number of different values.
    Unique,
    /// The number of records of each value.
    Aggregate,
    /// The number of records that have the tag.
    Total,
}

/// One count of a `tag-count-filter`, and its state.
#[derive(Clone, Debug)]
pub(crate) struct TagCounter {
    name: String,
    kind: CountType,
    /// `None`: records are counted, whatever their tags.
    tag: Option<String>,
    filter: Option<Search>,
    records: u64,
    values: BTreeMap<Vec<u8>, u64>,
    /// Bytes of the values, which are counted with each record.
    value_bytes: usize,
}

/// Parses `tag-count-filter`: an object of count expressions, or a single one, which is named
/// `count`.
///
/// # Errors
/// 400, as [`parse_text`].
pub(crate) fn parse_counts(text: &str) -> Result<Vec<TagCounter>, Problem> {
    const PARAMETER: &str = "tag-count-filter";
    let value: Value = serde_json::from_str(text).map_err(|error| {
        Problem::query(PARAMETER, format!("must be JSON: {}", json_reason(&error)))
    })?;
    let Value::Object(object) = &value else {
        return Err(Problem::query(PARAMETER, "must be an object"));
    };
    if object.get("countType").is_some_and(Value::is_string) {
        return Ok(vec![counter("count", &value)?]);
    }
    if object.is_empty() || object.len() > COUNTS_MAX {
        return Err(Problem::query(PARAMETER, format!("must have 1 to {COUNTS_MAX} counts")));
    }
    object.iter().map(|(name, value)| counter(name, value)).collect()
}

/// A count whose attributes are parameters of the query; it is named `count`. `filter` is that of
/// the search there.
///
/// # Errors
/// 400, as [`parse_counts`].
pub(crate) fn counter_of_form(kind: &str, tag: Option<&str>) -> Result<TagCounter, Problem> {
    counter("count", &json!({"countType": kind, "tag": tag}))
}

fn counter(name: &str, value: &Value) -> Result<TagCounter, Problem> {
    const PARAMETER: &str = "tag-count-filter";
    let refused = |reason: &str| Problem::query(PARAMETER, format!("{name}: {reason}"));
    let kind = match value.get("countType").and_then(Value::as_str) {
        Some("UNIQUE_COUNT") => CountType::Unique,
        Some("AGGREGATE_COUNT") => CountType::Aggregate,
        Some("TOTAL_COUNT") => CountType::Total,
        _ => {
            return Err(refused("countType must be UNIQUE_COUNT, AGGREGATE_COUNT or TOTAL_COUNT"));
        }
    };
    let tag = match value.get("tag") {
        None | Some(Value::Null) => None,
        Some(Value::String(tag)) if !is_reserved(tag) => Some(tag.clone()),
        Some(_) => return Err(refused("tag must be the name of a tag")),
    };
    if tag.is_none() && kind != CountType::Total {
        return Err(refused("tag is required for this countType"));
    }
    let filter = match value.get("filter") {
        None | Some(Value::Null) => None,
        Some(filter) => Some(parse(filter, PARAMETER)?),
    };
    let (name, values) = (name.to_owned(), BTreeMap::new());
    Ok(TagCounter { name, kind, tag, filter, records: 0, values, value_bytes: 0 })
}

impl TagCounter {
    /// Counts a matching record.
    pub(crate) fn add(&mut self, key: &[u8], tags: &[(&str, &[u8])]) {
        if self.filter.as_ref().is_some_and(|filter| !filter.matches(key, tags)) {
            return;
        }
        let Some(tag) = &self.tag else {
            self.records += 1;
            return;
        };
        let values = tags.iter().filter(|(name, _)| name == tag).map(|(_, value)| *value);
        let mut has_tag = false;
        for value in values {
            has_tag = true;
            if self.kind != CountType::Total {
                if let Some(count) = self.values.get_mut(value) {
                    *count += 1;
                } else {
                    self.value_bytes += VALUE_BYTES + value.len();
                    self.values.insert(value.to_vec(), 1);
                }
            }
        }
        self.records += u64::from(has_tag);
    }

    /// Bytes of the state, which grows with the number of values. Known without a look at them.
    pub(crate) const fn buffered_bytes(&self) -> usize {
        self.value_bytes
    }

    /// The name of the count and its result, a `TagCount`.
    pub(crate) fn result(&self) -> (String, Value) {
        let mut result = Map::new();
        if let Some(tag) = &self.tag {
            result.insert("tag".to_owned(), Value::from(tag.as_str()));
        }
        let count = match self.kind {
            CountType::Unique => self.values.len() as u64,
            CountType::Aggregate | CountType::Total => self.records,
        };
        result.insert("count".to_owned(), Value::from(count));
        if self.kind == CountType::Aggregate {
            let item = |(value, count): (&Vec<u8>, &u64)| {
                let value = String::from_utf8_lossy(value);
                serde_json::json!({"value": value, "count": count})
            };
            result.insert("valueCount".to_owned(), self.values.iter().map(item).collect());
        }
        (self.name.clone(), Value::Object(result))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(text: &str, tags: &[(&str, &[u8])]) -> bool {
        parse_text(text, "filter").unwrap().matches(b"r1", tags)
    }

    #[test]
    fn nested_conditions_comparisons_and_record_ids_are_evaluated() {
        let tags: &[(&str, &[u8])] = &[("\u{1}schema", b"s"), ("age", b"30"), ("ueId", b"455345")];
        for (text, wanted) in [
            (r#"{"op":"EQ","tag":"ueId","value":"455345"}"#, true),
            (r#"{"op":"NEQ","tag":"ueId","value":"455345"}"#, false),
            (r#"{"op":"GT","tag":"age","value":"3"}"#, true),
            (r#"{"op":"LTE","tag":"age","value":"29"}"#, false),
            (r#"{"recordIdList":["r1","r2"]}"#, true),
            (r#"{"timerIds":["r1"]}"#, true),
            // As free5GC's generated client sends them.
            (
                r#"{"cond":"","units":null,"op":"EQ","tag":"ueId","value":"455345",
                "recordIdList":null}"#,
                true,
            ),
            (
                r#"{"cond":"","units":null,"op":"","tag":"","value":"","recordIdList":["r2"]}"#,
                false,
            ),
            (
                r#"{"cond":"AND","units":[{"op":"EQ","tag":"ueId","value":"455345"},
                {"recordIdList":["r2"]}]}"#,
                false,
            ),
            (
                r#"{"cond":"OR","units":[{"op":"EQ","tag":"x","value":""},
                {"recordIdList":["r1"]}]}"#,
                true,
            ),
            (r#"{"cond":"NOT","units":[{"op":"EQ","tag":"x","value":""}]}"#, true),
            (
                r#"{"cond":"NOT","units":[{"op":"EQ","tag":"x","value":""},
                {"recordIdList":["r1"]}]}"#,
                false,
            ),
            (
                r#"{"cond":"AND","schemaId":"s","units":[{"op":"GTE","tag":"age","value":"30"}]}"#,
                true,
            ),
            (
                r#"{"cond":"AND","schemaId":"t","units":[{"op":"GTE","tag":"age","value":"30"}]}"#,
                false,
            ),
        ] {
            assert_eq!(matches(text, tags), wanted, "{text}");
        }
    }

    #[test]
    fn an_expression_that_is_none_is_refused() {
        let deep = format!(
            "{}{}{}",
            r#"{"cond":"NOT","units":["#.repeat(17),
            r#"{"recordIdList":["a"]}"#,
            "]}".repeat(17)
        );
        for text in [
            "",
            "1",
            "[]",
            "{}",
            r#"{"cond":"XOR","units":[{"recordIdList":["a"]}]}"#,
            r#"{"cond":"AND","units":[]}"#,
            r#"{"cond":"AND"}"#,
            r#"{"op":"EQ","tag":"a"}"#,
            r#"{"op":"EQ","tag":"a","value":1}"#,
            r#"{"op":"LIKE","tag":"a","value":""}"#,
            r#"{"op":"EQ","tag":"","value":""}"#,
            "{\"op\":\"EQ\",\"tag\":\"\\u0001schema\",\"value\":\"\"}",
            r#"{"recordIdList":[]}"#,
            r#"{"recordIdList":[1]}"#,
            &deep,
        ] {
            let problem = parse_text(text, "filter").unwrap_err();
            assert_eq!(problem.status.as_u16(), 400, "{text}");
            assert_eq!(problem.invalid[0].0, "query filter", "{text}");
        }
    }

    #[test]
    fn values_are_counted_in_three_ways() {
        let text = r#"{"u":{"countType":"UNIQUE_COUNT","tag":"a"},
            "g":{"countType":"AGGREGATE_COUNT","tag":"a"},
            "t":{"countType":"TOTAL_COUNT","tag":"a","filter":{"recordIdList":["r1","r3"]}},
            "n":{"countType":"TOTAL_COUNT"}}"#;
        let mut counters = parse_counts(text).unwrap();
        for counter in &mut counters {
            counter.add(b"r1", &[("a", b"x"), ("a", b"y")]);
            counter.add(b"r2", &[("a", b"x")]);
            counter.add(b"r3", &[("b", b"x")]);
        }
        let results: BTreeMap<_, _> = counters.iter().map(TagCounter::result).collect();
        assert_eq!(results["u"], serde_json::json!({"tag": "a", "count": 2}));
        assert_eq!(
            results["g"]["valueCount"],
            serde_json::json!([{"value": "x", "count": 2}, {"value": "y", "count": 1}])
        );
        assert_eq!(results["t"]["count"], 1);
        assert_eq!(results["n"]["count"], 3);
        for text in [
            "",
            "[]",
            "{}",
            r#"{"a":{}}"#,
            r#"{"a":{"countType":"UNIQUE_COUNT"}}"#,
            r#"{"countType":"X"}"#,
        ] {
            assert!(parse_counts(text).is_err(), "{text}");
        }
        assert_eq!(parse_counts(r#"{"countType":"TOTAL_COUNT"}"#).unwrap()[0].result().0, "count");
    }

    proptest! {
        #[test]
        fn the_bytes_of_a_count_are_those_of_its_different_values(
            values in prop::collection::vec("[ab]{0,3}", 0..40),
        ) {
            let text = r#"{"u":{"countType":"UNIQUE_COUNT","tag":"a"},
                "t":{"countType":"TOTAL_COUNT","tag":"a"}}"#;
            for mut counter in parse_counts(text).unwrap() {
                for value in &values {
                    counter.add(b"r1", &[("a", value.as_bytes()), ("b", b"other")]);
                    let bytes = counter.values.keys().map(|value| VALUE_BYTES + value.len());
                    prop_assert_eq!(counter.buffered_bytes(), bytes.sum::<usize>());
                }
                let is_counted = counter.kind != CountType::Total && !values.is_empty();
                prop_assert_eq!(counter.buffered_bytes() > 0, is_counted);
            }
        }
    }

    const PIECES: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        "\"cond\":\"AND\",",
        "\"units\":",
        "\"op\":\"EQ\",",
        "\"tag\":\"a\",",
        "\"value\":\"b\"",
        "\"recordIdList\":[\"a\"]",
        ",",
        "\\u0001",
        "1e999",
    ];

    proptest! {
        #[test]
        fn any_text_is_an_expression_or_refused(
            pieces in prop::collection::vec(prop::sample::select(PIECES), 0..30),
        ) {
            let text = pieces.concat();
            let _ = parse_text(&text, "filter");
            let _ = parse_counts(&text);
        }
    }
}
