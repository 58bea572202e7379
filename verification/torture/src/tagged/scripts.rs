//! Scripts: short pieces of work over tags, ends, watchers, the stream, counters and objects.

use crate::tagged::world::Change::{Alloc, Delete, Free, Label, Patch, Put, Write};
use crate::tagged::world::{Act, Change, LATE, PAST, SOON};

/// A script.
#[derive(Clone, Copy, Debug)]
pub struct Script {
    /// Its name.
    pub name: &'static str,
    /// What is there before, by a process that ends well; `None`: not even the spaces are.
    pub before: Option<fn() -> Vec<Act>>,
    /// Spaces that are watched from then on.
    pub watched: &'static [&'static str],
    /// Spaces that are streamed from then on; true: to streams that refuse when full.
    pub streamed: &'static [(&'static str, bool)],
    /// What the process does that is killed.
    pub work: fn() -> Vec<Act>,
}

fn txn(changes: &[Change]) -> Act {
    Act::Txn(changes.to_vec())
}

fn some_sessions() -> Vec<Act> {
    vec![
        txn(&[Put("tagged/a", "1", "guti=g1 teid=t1 cell=c1", 0)]),
        txn(&[Put("tagged/b", "1", "guti=g2 teid=t2 cell=c1", 0)]),
        txn(&[Put("tagged/c", "1", "guti=g3 teid=t3 cell=c2", 0)]),
    ]
}

fn work_on_tags() -> Vec<Act> {
    vec![
        txn(&[Put("tagged/d", "new", "guti=g4 teid=t4 cell=c1", 0)]),
        // Values go from one record to another, in one transaction.
        txn(&[
            Put("tagged/a", "2", "guti=g2 teid=t5 cell=c2", 0),
            Put("tagged/b", "2", "guti=g1 teid=t1 cell=c2 cell=c3", 0),
        ]),
        txn(&[Label("tagged/c", "guti=g6 cell=c2", 0), Delete("tagged/a")]),
        // Without its tags.
        Act::Plain("tagged/c", "plain"),
        txn(&[Delete("tagged/b"), Put("tagged/e", "5", "guti=g1", 0), Delete("tagged/d")]),
    ]
}

fn some_ends() -> Vec<Act> {
    vec![
        txn(&[Put("tagged/old", "1", "guti=g1 teid=t1 cell=c1", PAST)]),
        txn(&[Put("tagged/soon", "1", "guti=g2 teid=t2 cell=c1", SOON)]),
        txn(&[Put("tagged/off", "1", "guti=g3 cell=c2", SOON)]),
        txn(&[Put("tagged/late", "1", "guti=g4 cell=c2", LATE)]),
    ]
}

fn work_on_ends() -> Vec<Act> {
    vec![
        // Put off, nearer, and for ever.
        txn(&[Label("tagged/off", "guti=g3 cell=c2", LATE)]),
        txn(&[Label("tagged/late", "guti=g4 cell=c2", SOON)]),
        // A holder that has ended gives way.
        txn(&[Put("tagged/heir", "1", "guti=g1 teid=t1 cell=c1", 0)]),
        txn(&[Put("tagged/past", "1", "guti=g5 cell=c3", PAST)]),
        // One that has ended is made anew.
        txn(&[Put("tagged/past", "2", "guti=g5 cell=c3", SOON)]),
        Act::Forward(true),
        Act::Collect,
        txn(&[Put("tagged/soon", "3", "guti=g2 cell=c1", 0)]),
        Act::Forward(false),
        Act::Collect,
    ]
}

fn work_on_blocks() -> Vec<Act> {
    vec![
        txn(&[Patch("blocks/a", "auth", Some("key"))]),
        txn(&[Label("blocks/a", "slice=s1", 0)]),
        txn(&[Patch("blocks/a", "loc", Some("cell 5")), Patch("blocks/b", "auth", Some("k"))]),
        txn(&[Patch("blocks/a", "auth", None), Delete("blocks/b")]),
        txn(&[Label("blocks/a", "slice=s2", SOON)]),
        txn(&[Delete("blocks/a")]),
    ]
}

fn some_late() -> Vec<Act> {
    vec![
        txn(&[Put("late/a", "1", "guti=g1 cell=c1", 0), Put("late/b", "1", "guti=g2 cell=c1", 0)]),
        txn(&[Put("late/c", "1", "guti=g3 cell=c2", LATE)]),
    ]
}

fn work_on_late() -> Vec<Act> {
    vec![
        Act::Declare,
        txn(&[Put("late/d", "1", "guti=g4 cell=c2", 0)]),
        txn(&[Put("late/a", "2", "guti=g5 cell=c3", 0), Delete("late/b")]),
    ]
}

fn two_of_a_kind() -> Vec<Act> {
    vec![txn(&[Put("late/a", "1", "guti=g1", 0), Put("late/b", "1", "guti=g1 cell=c1", 0)])]
}

fn two_of_a_kind_and_a_tag_left() -> Vec<Act> {
    let mut acts = two_of_a_kind();
    acts.push(Act::DeclareLeft);
    acts
}

fn work_in_vain() -> Vec<Act> {
    vec![
        Act::DeclareInVain,
        txn(&[Put("late/b", "2", "guti=g2 cell=c1", 0)]),
        Act::Declare,
        txn(&[Put("late/a", "2", "guti=g3 cell=c1", 0)]),
    ]
}

fn work_on_rings() -> Vec<Act> {
    vec![
        Act::Watch("tagged"),
        Act::Stream("tagged", false),
        txn(&[Put("tagged/a", "2", "guti=g1 cell=c1", 0)]),
        Act::Stream("blocks", true),
        txn(&[Patch("blocks/a", "auth", Some("key")), Put("tagged/d", "1", "guti=g4", 0)]),
        txn(&[Delete("tagged/b"), Delete("tagged/c")]),
    ]
}

fn work_of_a_consumer() -> Vec<Act> {
    vec![
        txn(&[Put("tagged/a", "2", "guti=g1 cell=c1", 0)]),
        Act::Acknowledge,
        txn(&[Put("tagged/b", "2", "guti=g2 cell=c1", 0)]),
        txn(&[Delete("tagged/c")]),
        Act::Acknowledge,
        txn(&[Put("tagged/a", "3", "guti=g1 cell=c2", 0)]),
    ]
}

fn work_on_counters() -> Vec<Act> {
    vec![
        Act::Add("count/a", 5),
        Act::Add("count/a", -2),
        Act::Add("count/b", 7),
        Act::Drop("count/a"),
        Act::Add("count/a", 1),
    ]
}

fn work_on_objects() -> Vec<Act> {
    vec![
        txn(&[Alloc("object/a", "first"), Alloc("object/b", "second")]),
        txn(&[Write("object/a", "third"), Put("tagged/a", "2", "guti=g9", 0)]),
        txn(&[Free("object/b"), Alloc("object/c", "fourth")]),
        txn(&[Write("object/c", "fifth!"), Write("object/a", "sixth")]),
    ]
}

/// All scripts.
pub const SCRIPTS: &[Script] = &[
    Script {
        name: "tags",
        before: Some(some_sessions),
        watched: &["tagged"],
        streamed: &[("tagged", false)],
        work: work_on_tags,
    },
    Script {
        name: "tags-alone",
        before: Some(some_sessions),
        watched: &[],
        streamed: &[],
        work: work_on_tags,
    },
    Script {
        name: "ends",
        before: Some(some_ends),
        watched: &["tagged"],
        streamed: &[("tagged", true)],
        work: work_on_ends,
    },
    Script {
        name: "blocks",
        before: Some(Vec::new),
        watched: &["blocks", "tagged"],
        streamed: &[("blocks", true)],
        work: work_on_blocks,
    },
    Script { name: "open", before: None, watched: &[], streamed: &[], work: some_sessions },
    Script {
        name: "declare",
        before: Some(some_late),
        watched: &["late"],
        streamed: &[],
        work: work_on_late,
    },
    Script {
        name: "in-vain",
        before: Some(two_of_a_kind),
        watched: &[],
        streamed: &[],
        work: work_in_vain,
    },
    Script {
        name: "beside",
        before: Some(two_of_a_kind_and_a_tag_left),
        watched: &[],
        streamed: &[],
        work: work_in_vain,
    },
    Script {
        name: "rings",
        before: Some(some_sessions),
        watched: &[],
        streamed: &[],
        work: work_on_rings,
    },
    Script {
        name: "acknowledge",
        before: Some(some_sessions),
        watched: &[],
        streamed: &[("tagged", true)],
        work: work_of_a_consumer,
    },
    Script {
        name: "counters",
        before: Some(Vec::new),
        watched: &[],
        streamed: &[],
        work: work_on_counters,
    },
    Script {
        name: "objects",
        before: Some(some_sessions),
        watched: &["tagged"],
        streamed: &[("tagged", false), ("object", false)],
        work: work_on_objects,
    },
];

/// The script of this name.
pub fn named(name: &str) -> Option<&'static Script> {
    SCRIPTS.iter().find(|script| script.name == name)
}
