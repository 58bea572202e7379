//! Scripts: short workloads with tags, expiry, watchers, the stream, counters and objects.

use crate::tags::model::ScriptChange::{Alloc, Delete, Free, Label, Patch, Put, Write};
use crate::tags::model::{LATE, PAST, SOON, ScriptChange, ScriptStep};

#[derive(Clone, Copy, Debug)]
pub struct TagScript {
    pub name: &'static str,
    /// Written first, by a process that is not killed. `None`: not even the namespaces exist.
    pub before: Option<fn() -> Vec<ScriptStep>>,
    /// Spaces that are watched afterwards.
    pub watched: &'static [&'static str],
    /// Spaces that are streamed afterwards; true means that a full stream refuses commits.
    pub streamed: &'static [(&'static str, bool)],
    /// The steps of the process that is killed.
    pub work: fn() -> Vec<ScriptStep>,
}

fn txn(changes: &[ScriptChange]) -> ScriptStep {
    ScriptStep::Txn(changes.to_vec())
}

fn some_sessions() -> Vec<ScriptStep> {
    vec![
        txn(&[Put("tagged/a", "1", "guti=g1 teid=t1 cell=c1", 0)]),
        txn(&[Put("tagged/b", "1", "guti=g2 teid=t2 cell=c1", 0)]),
        txn(&[Put("tagged/c", "1", "guti=g3 teid=t3 cell=c2", 0)]),
    ]
}

fn work_on_tags() -> Vec<ScriptStep> {
    vec![
        txn(&[Put("tagged/d", "new", "guti=g4 teid=t4 cell=c1", 0)]),
        // Values move from one record to another, in one transaction.
        txn(&[
            Put("tagged/a", "2", "guti=g2 teid=t5 cell=c2", 0),
            Put("tagged/b", "2", "guti=g1 teid=t1 cell=c2 cell=c3", 0),
        ]),
        txn(&[Label("tagged/c", "guti=g6 cell=c2", 0), Delete("tagged/a")]),
        // Without tags.
        ScriptStep::Plain("tagged/c", "plain"),
        txn(&[Delete("tagged/b"), Put("tagged/e", "5", "guti=g1", 0), Delete("tagged/d")]),
    ]
}

fn some_expiring() -> Vec<ScriptStep> {
    vec![
        txn(&[Put("tagged/old", "1", "guti=g1 teid=t1 cell=c1", PAST)]),
        txn(&[Put("tagged/soon", "1", "guti=g2 teid=t2 cell=c1", SOON)]),
        txn(&[Put("tagged/off", "1", "guti=g3 cell=c2", SOON)]),
        txn(&[Put("tagged/late", "1", "guti=g4 cell=c2", LATE)]),
    ]
}

fn work_on_expiry() -> Vec<ScriptStep> {
    vec![
        // Later, earlier, and no expiry.
        txn(&[Label("tagged/off", "guti=g3 cell=c2", LATE)]),
        txn(&[Label("tagged/late", "guti=g4 cell=c2", SOON)]),
        // A holder of a unique value that has expired is evicted.
        txn(&[Put("tagged/heir", "1", "guti=g1 teid=t1 cell=c1", 0)]),
        txn(&[Put("tagged/past", "1", "guti=g5 cell=c3", PAST)]),
        // A record that has expired is created again.
        txn(&[Put("tagged/past", "2", "guti=g5 cell=c3", SOON)]),
        ScriptStep::Forward(true),
        ScriptStep::Collect,
        txn(&[Put("tagged/soon", "3", "guti=g2 cell=c1", 0)]),
        ScriptStep::Forward(false),
        ScriptStep::Collect,
    ]
}

fn work_on_blocks() -> Vec<ScriptStep> {
    vec![
        txn(&[Patch("blocks/a", "auth", Some("key"))]),
        txn(&[Label("blocks/a", "slice=s1", 0)]),
        txn(&[Patch("blocks/a", "loc", Some("cell 5")), Patch("blocks/b", "auth", Some("k"))]),
        txn(&[Patch("blocks/a", "auth", None), Delete("blocks/b")]),
        txn(&[Label("blocks/a", "slice=s2", SOON)]),
        txn(&[Delete("blocks/a")]),
    ]
}

fn some_late() -> Vec<ScriptStep> {
    vec![
        txn(&[Put("late/a", "1", "guti=g1 cell=c1", 0), Put("late/b", "1", "guti=g2 cell=c1", 0)]),
        txn(&[Put("late/c", "1", "guti=g3 cell=c2", LATE)]),
    ]
}

fn work_on_late() -> Vec<ScriptStep> {
    vec![
        ScriptStep::Declare,
        txn(&[Put("late/d", "1", "guti=g4 cell=c2", 0)]),
        txn(&[Put("late/a", "2", "guti=g5 cell=c3", 0), Delete("late/b")]),
    ]
}

fn two_with_one_value() -> Vec<ScriptStep> {
    vec![txn(&[Put("late/a", "1", "guti=g1", 0), Put("late/b", "1", "guti=g1 cell=c1", 0)])]
}

fn two_with_one_value_and_an_unfinished_tag() -> Vec<ScriptStep> {
    let mut acts = two_with_one_value();
    acts.push(ScriptStep::DeclareUnfinished);
    acts
}

fn work_on_conflicts() -> Vec<ScriptStep> {
    vec![
        ScriptStep::DeclareConflicting,
        txn(&[Put("late/b", "2", "guti=g2 cell=c1", 0)]),
        ScriptStep::Declare,
        txn(&[Put("late/a", "2", "guti=g3 cell=c1", 0)]),
    ]
}

fn work_on_rings() -> Vec<ScriptStep> {
    vec![
        ScriptStep::Watch("tagged"),
        ScriptStep::Stream("tagged", false),
        txn(&[Put("tagged/a", "2", "guti=g1 cell=c1", 0)]),
        ScriptStep::Stream("blocks", true),
        txn(&[Patch("blocks/a", "auth", Some("key")), Put("tagged/d", "1", "guti=g4", 0)]),
        txn(&[Delete("tagged/b"), Delete("tagged/c")]),
    ]
}

fn work_of_a_consumer() -> Vec<ScriptStep> {
    vec![
        txn(&[Put("tagged/a", "2", "guti=g1 cell=c1", 0)]),
        ScriptStep::Acknowledge,
        txn(&[Put("tagged/b", "2", "guti=g2 cell=c1", 0)]),
        txn(&[Delete("tagged/c")]),
        ScriptStep::Acknowledge,
        txn(&[Put("tagged/a", "3", "guti=g1 cell=c2", 0)]),
    ]
}

fn work_on_counters() -> Vec<ScriptStep> {
    vec![
        ScriptStep::Add("count/a", 5),
        ScriptStep::Add("count/a", -2),
        ScriptStep::Add("count/b", 7),
        ScriptStep::Drop("count/a"),
        ScriptStep::Add("count/a", 1),
    ]
}

fn work_on_objects() -> Vec<ScriptStep> {
    vec![
        txn(&[Alloc("object/a", "first"), Alloc("object/b", "second")]),
        txn(&[Write("object/a", "third"), Put("tagged/a", "2", "guti=g9", 0)]),
        txn(&[Free("object/b"), Alloc("object/c", "fourth")]),
        txn(&[Write("object/c", "fifth!"), Write("object/a", "sixth")]),
    ]
}

pub const SCRIPTS: &[TagScript] = &[
    TagScript {
        name: "tags",
        before: Some(some_sessions),
        watched: &["tagged"],
        streamed: &[("tagged", false)],
        work: work_on_tags,
    },
    TagScript {
        name: "tags-unwatched",
        before: Some(some_sessions),
        watched: &[],
        streamed: &[],
        work: work_on_tags,
    },
    TagScript {
        name: "expiry",
        before: Some(some_expiring),
        watched: &["tagged"],
        streamed: &[("tagged", true)],
        work: work_on_expiry,
    },
    TagScript {
        name: "blocks",
        before: Some(Vec::new),
        watched: &["blocks", "tagged"],
        streamed: &[("blocks", true)],
        work: work_on_blocks,
    },
    TagScript { name: "open", before: None, watched: &[], streamed: &[], work: some_sessions },
    TagScript {
        name: "declare",
        before: Some(some_late),
        watched: &["late"],
        streamed: &[],
        work: work_on_late,
    },
    TagScript {
        name: "conflicting-declaration",
        before: Some(two_with_one_value),
        watched: &[],
        streamed: &[],
        work: work_on_conflicts,
    },
    TagScript {
        name: "conflicting-declaration-unfinished",
        before: Some(two_with_one_value_and_an_unfinished_tag),
        watched: &[],
        streamed: &[],
        work: work_on_conflicts,
    },
    TagScript {
        name: "rings",
        before: Some(some_sessions),
        watched: &[],
        streamed: &[],
        work: work_on_rings,
    },
    TagScript {
        name: "acknowledge",
        before: Some(some_sessions),
        watched: &[],
        streamed: &[("tagged", true)],
        work: work_of_a_consumer,
    },
    TagScript {
        name: "counters",
        before: Some(Vec::new),
        watched: &[],
        streamed: &[],
        work: work_on_counters,
    },
    TagScript {
        name: "objects",
        before: Some(some_sessions),
        watched: &["tagged"],
        streamed: &[("tagged", false), ("object", false)],
        work: work_on_objects,
    },
];

/// The script of this name.
pub fn named(name: &str) -> Option<&'static TagScript> {
    SCRIPTS.iter().find(|script| script.name == name)
}
