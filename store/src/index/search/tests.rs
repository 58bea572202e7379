//! Searches against brute force, and what a plan costs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeBounds;

use proptest::prelude::*;

use super::*;

type Pairs = BTreeSet<(String, Vec<u8>)>;

/// What a namespace says of a tag.
#[derive(Clone, Copy, Debug)]
struct Index {
    is_unique: bool,
    is_ordered: bool,
    is_ready: bool,
}

/// Records in memory, found by the indexes that a schema has.
#[derive(Debug, Default)]
struct Records {
    kept: BTreeMap<Vec<u8>, Pairs>,
    indexes: BTreeMap<String, Index>,
    opened: Vec<String>,
    evaluated: u64,
    weighed: u64,
    /// Candidates.
    returned: u64,
}

impl Records {
    fn access_to(&self, tag: &str) -> Access {
        match self.indexes.get(tag) {
            Some(index) if index.is_ready => Access {
                by_posting: index.is_unique,
                by_value: !index.is_unique && !index.is_ordered,
                by_order: index.is_ordered,
            },
            _ => Access::default(),
        }
    }

    fn by_brute_force(&self, search: &Search) -> BTreeSet<Vec<u8>> {
        let matching = self.kept.iter().filter(|(key, tags)| search.matches(key, &slices(tags)));
        matching.map(|(key, _)| key.clone()).collect()
    }

    fn keys_of(&self, lookup: &Lookup<'_>) -> Vec<Vec<u8>> {
        let pairs = self.kept.iter().flat_map(|(key, tags)| tags.iter().map(move |t| (key, t)));
        match lookup {
            Lookup::All => self.kept.keys().cloned().collect(),
            Lookup::Posting { tag, value } => {
                assert!(self.access_to(tag).by_posting);
                let found = pairs.filter(|(_, (name, found))| name == tag && found == value);
                let found: Vec<_> = found.map(|(key, _)| key.clone()).collect();
                assert!(found.len() <= 1, "the tag is unique");
                found
            }
            Lookup::Range { tag, from, to } => {
                let access = self.access_to(tag);
                assert!(access.by_order || (access.by_value && from == to));
                let range = (from.map(<[u8]>::to_vec), to.map(<[u8]>::to_vec));
                // As an ordered index has them: by value, then by record.
                let found = pairs.filter(|(_, (name, value))| name == tag && range.contains(value));
                let found: BTreeSet<_> = found.map(|(key, (_, value))| (value, key)).collect();
                found.into_iter().map(|(_, key)| key.clone()).collect()
            }
        }
    }
}

fn slices(tags: &Pairs) -> Vec<(&str, &[u8])> {
    tags.iter().map(|(name, value)| (name.as_str(), value.as_slice())).collect()
}

impl Candidates for Records {
    type Keys = std::vec::IntoIter<Vec<u8>>;

    fn access(&mut self, tag: &str) -> Access {
        self.access_to(tag)
    }

    fn estimate(&mut self, lookup: &Lookup<'_>, up_to: u64) -> Result<u64> {
        self.weighed += 1;
        Ok(u64::try_from(self.keys_of(lookup).len()).unwrap().min(up_to))
    }

    fn open(&mut self, lookup: &Lookup<'_>) -> Result<Self::Keys> {
        self.opened.push(match lookup {
            Lookup::All => "all".to_owned(),
            Lookup::Posting { tag, .. } => format!("{tag}="),
            Lookup::Range { tag, .. } => format!("{tag}.."),
        });
        Ok(self.keys_of(lookup).into_iter())
    }

    fn next(&mut self, keys: &mut Self::Keys, key: &mut Vec<u8>) -> Result<bool> {
        let next = keys.next();
        self.returned += u64::from(next.is_some());
        key.clear();
        key.extend(next.iter().flatten());
        Ok(next.is_some())
    }

    fn evaluate(
        &mut self,
        key: &[u8],
        evaluate: impl FnOnce(&[(&str, &[u8])]) -> bool,
    ) -> Result<bool> {
        self.evaluated += 1;
        Ok(self.kept.get(key).is_some_and(|tags| evaluate(&slices(tags))))
    }
}

const TAGS: [&str; 4] = ["a", "b", "c", "d"];

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop::sample::select(vec![&b""[..], b"\0", b"0", b"1", b"10", b"2", b"9", b"\xff"])
        .prop_map(<[u8]>::to_vec)
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    (0_u8..40).prop_map(|number| vec![b'r', number])
}

fn search() -> impl Strategy<Value = Search> {
    let op = prop::sample::select(vec![Op::Eq, Op::Eq, Op::Neq, Op::Gt, Op::Gte, Op::Lt, Op::Lte]);
    let tag = prop::sample::select(TAGS.to_vec());
    let leaf = prop_oneof![
        6 => (op, tag, value()).prop_map(|(op, tag, value)| {
            Search::Compare { op, tag: tag.to_owned(), value }
        }),
        1 => prop::collection::vec(key(), 0..6).prop_map(Search::Records),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(Search::And),
            prop::collection::vec(inner.clone(), 1..4).prop_map(Search::Or),
            inner.prop_map(|search| Search::Not(Box::new(search))),
        ]
    })
}

fn records() -> impl Strategy<Value = Records> {
    let pair = (prop::sample::select(TAGS.to_vec()), value());
    let tags = prop::collection::vec(pair, 0..7);
    let records = prop::collection::btree_map(key(), tags, 0..40);
    // Of each tag: not declared, or unique, ordered, both or neither; ready or not.
    (records, prop::collection::vec((any::<bool>(), 0_u8..4, 0_u8..4), TAGS.len())).prop_map(
        |(records, declared)| {
            let mut found = Records::default();
            for ((is_declared, claims, state), name) in declared.into_iter().zip(TAGS) {
                let (is_unique, is_ordered) = (claims & 1 != 0, claims & 2 != 0);
                let index = Index { is_unique, is_ordered, is_ready: state > 0 };
                if is_declared {
                    found.indexes.insert(name.to_owned(), index);
                }
            }
            let mut taken = BTreeSet::new();
            for (key, tags) in records {
                let pairs: Pairs =
                    tags.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                let is_free = |(name, value): &(String, Vec<u8>)| {
                    let is_unique = found.indexes.get(name).is_some_and(|tag| tag.is_unique);
                    !is_unique || taken.insert((name.clone(), value.clone()))
                };
                let pairs = pairs.into_iter().filter(is_free).collect();
                found.kept.insert(key, pairs);
            }
            found
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_planned_search_finds_what_brute_force_finds(
        mut records in records(),
        search in search(),
        limit in 0_u64..50,
    ) {
        let expected = records.by_brute_force(&search);
        let mut found = Vec::new();
        let count = find(&search, &mut records, u64::MAX, |key| {
            found.push(key.to_vec());
            Ok(true)
        }).unwrap();
        prop_assert_eq!(count, u64::try_from(found.len()).unwrap());
        prop_assert_eq!(found.len(), expected.len(), "no key comes twice: {:?}", found);
        prop_assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), expected.clone());
        prop_assert_eq!(super::count(&search, &mut records).unwrap(), count);

        let mut some = BTreeSet::new();
        let count_limited = find(&search, &mut records, limit, |key| {
            some.insert(key.to_vec());
            Ok(true)
        }).unwrap();
        prop_assert_eq!(count_limited, count.min(limit));
        prop_assert_eq!(u64::try_from(some.len()).unwrap(), count_limited);
        prop_assert!(some.is_subset(&expected));

        let mut calls = 0;
        find(&search, &mut records, u64::MAX, |_| { calls += 1; Ok(calls < 2) }).unwrap();
        prop_assert_eq!(calls, count.min(2));
    }
}

fn compare(op: Op, tag: &str, value: &str) -> Search {
    Search::Compare { op, tag: tag.to_owned(), value: value.as_bytes().to_vec() }
}

fn eq(tag: &str, value: &str) -> Search {
    compare(Op::Eq, tag, value)
}

fn not(search: Search) -> Search {
    Search::Not(Box::new(search))
}

#[test]
fn comparisons_of_tags_with_several_values_are_as_the_table_says() {
    let tags: [(&str, &[u8]); 3] = [("dnn", b"0"), ("dnn", b"9"), ("supi", b"1")];
    let matches = |search: Search| search.matches(b"r", &tags);
    let compared = |op, value| matches(compare(op, "dnn", value));
    assert!(compared(Op::Eq, "0") && compared(Op::Eq, "9") && !compared(Op::Eq, "5"));
    assert!(compared(Op::Neq, "5") && !compared(Op::Neq, "0") && !compared(Op::Neq, "9"));
    assert!(compared(Op::Gt, "5") && compared(Op::Lt, "5"), "by different values");
    assert!(compared(Op::Gte, "9") && !compared(Op::Gt, "9"));
    assert!(compared(Op::Lte, "0") && !compared(Op::Lt, "0"));
    assert!(compared(Op::Lt, "10"), "0 is below 10, as a string of bytes");
    assert!(!matches(compare(Op::Gt, "dnn", "90")));
    for op in [Op::Eq, Op::Neq, Op::Gt, Op::Gte, Op::Lt, Op::Lte] {
        assert!(!matches(compare(op, "none", "5")), "who lacks a tag satisfies no comparison");
        assert!(matches(not(compare(op, "none", "5"))));
    }
    assert!(matches(Search::Records(vec![b"q".to_vec(), b"r".to_vec()])));
    assert!(!matches(Search::Records(vec![])));
}

/// A thousand subscribers: `supi` unique, `age` ordered, `dnn` plain with two values, `note` none.
fn subscribers() -> Records {
    let mut records = Records::default();
    for (name, is_unique, is_ordered) in
        [("supi", true, false), ("age", false, true), ("dnn", false, false)]
    {
        let index = Index { is_unique, is_ordered, is_ready: true };
        records.indexes.insert(name.to_owned(), index);
    }
    for number in 0..1000 {
        let pair = |name: &str, value: String| (name.to_owned(), value.into_bytes());
        let tags = [
            pair("supi", format!("imsi-{number:03}")),
            pair("age", format!("{:02}", number % 100)),
            pair("dnn", if number % 2 == 0 { "ims" } else { "internet" }.to_owned()),
            pair("note", "x".to_owned()),
        ];
        records.kept.insert(format!("r{number:03}").into_bytes(), tags.into());
    }
    records
}

#[test]
fn the_most_selective_source_is_taken() {
    let searches = [
        // search, what was opened, records evaluated, lookups weighed, matches
        (eq("supi", "imsi-005"), "supi=", 1, 0, 1),
        (eq("dnn", "ims"), "dnn..", 500, 0, 500),
        (eq("note", "x"), "all", 1000, 0, 1000),
        (Search::And(vec![eq("dnn", "ims"), eq("supi", "imsi-004")]), "supi=", 1, 0, 1),
        (Search::And(vec![eq("dnn", "ims"), eq("age", "04")]), "age..", 10, 2, 10),
        (Search::And(vec![eq("note", "x"), eq("age", "04")]), "age..", 10, 0, 10),
        (compare(Op::Gte, "age", "98"), "age..", 20, 0, 20),
        // A tag without order answers equality alone.
        (compare(Op::Neq, "dnn", "ims"), "all", 1000, 0, 500),
        (compare(Op::Neq, "age", "04"), "age..", 1000, 0, 990),
        (Search::Or(vec![eq("supi", "imsi-001"), eq("age", "01")]), "supi= age..", 10, 0, 10),
        (Search::Or(vec![eq("supi", "imsi-001"), eq("note", "y")]), "all", 1000, 0, 1),
        (not(eq("dnn", "ims")), "all", 1000, 0, 500),
        (not(not(eq("age", "01"))), "age..", 10, 0, 10),
        // not (x or not y) = not x and y
        (not(Search::Or(vec![eq("dnn", "ims"), not(eq("age", "01"))])), "age..", 10, 0, 10),
    ];
    for (search, opened, evaluated, weighed, matches) in searches {
        let mut records = subscribers();
        assert_eq!(count(&search, &mut records).unwrap(), matches, "{search:?}");
        assert_eq!(records.opened.join(" "), opened, "{search:?}");
        assert_eq!((records.evaluated, records.weighed), (evaluated, weighed), "{search:?}");
    }
}

#[test]
fn record_ids_need_no_index_and_bound_what_is_looked_at() {
    let keys = vec![b"r007".to_vec(), b"r007".to_vec(), b"none".to_vec(), b"r008".to_vec()];
    let search = Search::And(vec![eq("dnn", "ims"), Search::Records(keys)]);
    let mut records = subscribers();
    let mut found = Vec::new();
    find(&search, &mut records, 9, |key| {
        found.push(key.to_vec());
        Ok(true)
    })
    .unwrap();
    assert_eq!(found, [b"r008"]);
    assert!(records.opened.is_empty());
    assert_eq!(records.evaluated, 4);
}

#[test]
fn a_limit_ends_the_looking() {
    let mut records = subscribers();
    assert_eq!(find(&eq("dnn", "ims"), &mut records, 7, |_| Ok(true)), Ok(7));
    assert_eq!(records.evaluated, 7);
    assert_eq!(find(&eq("dnn", "ims"), &mut records, 0, |_| panic!("none is wanted")), Ok(0));
    assert_eq!(records.evaluated, 7);
}

#[test]
fn what_no_search_may_be_is_refused() {
    let nested = |levels| (1..levels).fold(eq("a", "1"), |inner, _| not(inner));
    let many = |count| Search::Or(vec![eq("a", "1"); count]);
    assert_eq!(nested(SEARCH_DEPTH_MAX).check(), Ok(()));
    assert_eq!(many(SEARCH_UNITS_MAX - 1).check(), Ok(()));
    let long = "v".repeat(TAG_VALUE_BYTES_MAX + 1);
    let refused = [
        (nested(SEARCH_DEPTH_MAX + 1), "a search of more than 16 levels"),
        (nested(5000), "a search of more than 16 levels"),
        (many(SEARCH_UNITS_MAX), "a search of more than 1024 units"),
        (Search::Records(vec![b"r".to_vec(); 1024]), "a search of more than 1024 units"),
        (Search::And(vec![]), "an empty list of conditions"),
        (not(Search::Or(vec![])), "an empty list of conditions"),
        (eq("", "1"), "a tag's name of 0 bytes"),
        (eq("a", &long), "a comparison of tag \"a\" with 1025 bytes"),
        (Search::Records(vec![vec![0; 4097]]), "a key of 4097 bytes"),
    ];
    for (search, says) in refused {
        let error = count(&search, &mut Records::default()).unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
    }
}

#[test]
fn a_step_of_a_walk_takes_one_candidate_also_if_it_was_found_before() {
    let mut records = subscribers();
    let search = Search::Or(vec![
        compare(Op::Gte, "age", ""),
        Search::Records(vec![b"r007".to_vec(), b"none".to_vec()]),
        compare(Op::Lte, "age", "99"),
    ]);
    let mut walk = SearchWalk::new(&search, &mut records).unwrap();
    let (mut found, mut repeated) = (BTreeSet::new(), 0);
    loop {
        let before = records.returned;
        let Some(is_new) = walk.step(&mut records).unwrap() else { break };
        assert!(records.returned - before <= 1, "one candidate");
        if !is_new {
            repeated += 1;
        } else if records.evaluate(walk.key(), |tags| search.matches(walk.key(), tags)).unwrap() {
            walk.mark_found();
            assert!(found.insert(walk.key().to_vec()), "{:?} is found twice", walk.key());
        }
    }
    assert_eq!(found, records.by_brute_force(&search));
    assert!(repeated >= found.len(), "{repeated} candidates of {} repeat", found.len());
}

#[test]
fn a_search_that_finds_much_reads_all_records_instead_of_storing_more_keys() {
    let mut records = subscribers();
    let search = Search::Or(vec![
        compare(Op::Gte, "age", ""),
        Search::Records(vec![b"r007".to_vec(), b"none".to_vec()]),
        compare(Op::Lte, "age", "99"),
    ]);
    let all = records.by_brute_force(&search);
    for stored_max in [1, 2, all.len() / 2, all.len(), all.len() + 1] {
        let mut walk = SearchWalk::new(&search, &mut records).unwrap();
        let key_bytes = SEEN_KEY_BYTES + b"r007".len();
        walk.seen.as_mut().unwrap().bytes_max = stored_max * key_bytes;
        let mut found = BTreeSet::new();
        while let Some(is_new) = walk.step(&mut records).unwrap() {
            if is_new
                && records.evaluate(walk.key(), |tags| search.matches(walk.key(), tags)).unwrap()
            {
                walk.mark_found();
                assert!(found.insert(walk.key().to_vec()), "{:?} is found twice", walk.key());
            }
        }
        assert_eq!(found, all, "{stored_max}");
        let stored = walk.seen.unwrap().keys.len();
        assert_eq!(stored, stored_max.min(all.len()), "of {}", all.len());
    }
}
