//! The operations that a sweep stops and kills, each with the region that it needs and what it must
//! leave.

use std::path::Path;

use nearstate_store::{
    AttachOptions, BlockChange, Condition, Error, Kind, Metadata, Namespace, NamespaceLimits,
    Region, Schema, Session, TagSchema, TagState, WhenFull, repair_with,
};

use crate::error_context::ErrorContext as _;
use crate::region_access::{create_region_with, fill, open_session, unless_full};
use crate::repairs;

use SteppedCall::{For, InSession, Own};

/// The namespace that every region has, and its records, which no operation changes.
pub(crate) const KEPT: &str = "kept";
pub(crate) const KEPT_RECORDS: u32 = 24;

/// The seed of the key hash, so that an operation takes the same instructions in every run.
const HASH_SEED: u64 = 7;

/// An operation.
#[derive(Clone, Copy, Debug)]
pub struct SweptOperation {
    pub name: &'static str,
    /// Fills the region.
    prepare: fn(&Session) -> Result<(), String>,
    call: SteppedCall,
    /// Whether the operation is done, of which all parts must agree.
    is_done: fn(&Session) -> Result<bool, String>,
    pub(crate) region: SweptRegion,
    /// It takes more than a hundred thousand instructions: a sample stops it at random times.
    pub(crate) is_long: bool,
}

/// How an operation is executed: the instructions between two calls of a function are stepped. A
/// repetition completes what a killed process has begun.
#[derive(Clone, Copy, Debug)]
enum SteppedCall {
    /// A call of an open session.
    InSession(fn(&Session) -> Result<(), Error>),
    /// A call for a namespace, which is opened first.
    For(&'static str, fn(&Session, Namespace) -> Result<(), Error>),
    /// One that prepares more than that.
    Own(fn(&Path, &mut dyn FnMut()) -> Result<(), String>),
}

/// What the operation finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SweptRegion {
    Usual,
    /// A region whose heap is full. It is large, so fewer instructions are tried.
    Full,
    /// One in which a process was killed in the middle of a transaction.
    Killed,
    /// A damaged region, which only the operation, a repair, makes clean. No session opens
    /// meanwhile.
    Damaged,
}

const fn operation(
    name: &'static str,
    prepare: fn(&Session) -> Result<(), String>,
    call: SteppedCall,
    is_done: fn(&Session) -> Result<bool, String>,
) -> SweptOperation {
    SweptOperation { name, prepare, call, is_done, region: SweptRegion::Usual, is_long: false }
}

const fn long(operation: SweptOperation) -> SweptOperation {
    SweptOperation { is_long: true, ..operation }
}

/// The operation in which a process was killed in a region of [`SweptRegion::Killed`].
pub(crate) const TRANSACTION: SweptOperation =
    operation("transaction", others, InSession(transact), is_transacted);

/// All operations.
pub const SWEPT: &[SweptOperation] = &[
    operation("attach", nothing, Own(attach), always),
    operation("open session", nothing, Own(open), always),
    operation("close session", nothing, Own(close), always),
    operation("create namespace", nothing, InSession(create), is_created),
    operation("remove namespace", plain_to_remove, Own(remove), is_removed),
    long(operation("remove with tags", tagged_to_remove, Own(remove), is_removed)),
    long(operation("declare tags", undeclared, For(TAGGED, declare), is_declared)),
    operation("set limits", others, For(OTHERS, limit), is_limited),
    operation("grow index", nothing, Own(grow), is_grown),
    operation("grow heap", nothing, InSession(enlarge), is_enlarged),
    operation("replace", others, InSession(replace), is_replaced),
    operation("patch", blocks, InSession(patch), is_patched),
    operation("logged put", logged, InSession(replace), is_replaced),
    TRANSACTION,
    operation("tagged insert", tagged, InSession(|s| put_tagged(s, 60, 60)), is_inserted),
    operation("tagged update", tagged, InSession(|s| put_tagged(s, 3, 70)), is_updated),
    operation("tagged delete", tagged, For(TAGGED, delete_tagged), is_deleted),
    long(operation("expiry", expired, InSession(collect), is_collected)),
    long(operation("move together", scattered, InSession(move_together), always)),
    SweptOperation {
        region: SweptRegion::Full,
        ..long(operation("join in full heap", full, Own(join), always))
    },
    SweptOperation {
        region: SweptRegion::Killed,
        ..operation("recover", others, Own(open), |s| is_transacted(s).map(|_| true))
    },
    SweptOperation {
        region: SweptRegion::Damaged,
        ..long(operation("repair", nothing, Own(repair), always))
    },
];

impl SweptOperation {
    /// Creates the region.
    pub(crate) fn prepare(&self, folder: &Path) -> Result<(), String> {
        if self.region == SweptRegion::Damaged {
            return repairs::prepare(folder);
        }
        let session = open_session(&create_region_with(folder, Some(HASH_SEED))?)?;
        let kept = plain(&session, KEPT)?;
        for number in 0..KEPT_RECORDS {
            put(&session, kept, &kept_key(number), &kept_value(number))?;
        }
        (self.prepare)(&session)
    }

    /// Executes the operation between two calls of `at_edge`.
    pub(crate) fn play(&self, folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
        let open = || open_session(&folder.join("region"));
        match self.call {
            InSession(call) => {
                let session = open()?;
                stepped(at_edge, || call(&session)).context(self.name)
            }
            For(name, call) => {
                let session = open()?;
                let namespace = plain(&session, name)?;
                stepped(at_edge, || call(&session, namespace)).context(self.name)
            }
            Own(call) => call(folder, at_edge),
        }
    }

    /// Verifies a region in which the operation may have happened, or has.
    pub(crate) fn verify(&self, folder: &Path, must_be_done: bool) -> Result<(), String> {
        if self.region == SweptRegion::Damaged {
            return repairs::verify(folder);
        }
        let session = open_session(&folder.join("region"))?;
        verify_kept(&session)?;
        if !(self.is_done)(&session)? && must_be_done {
            return Err("the operation has no effect".to_owned());
        }
        Ok(())
    }
}

pub(crate) fn kept_key(number: u32) -> Vec<u8> {
    format!("kept-{number}").into_bytes()
}

fn kept_value(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(10 * number as usize)
}

/// Every record that no operation changes has its value.
pub(crate) fn verify_kept(session: &Session) -> Result<(), String> {
    let kept = plain(session, KEPT)?;
    for number in 0..KEPT_RECORDS {
        let view = session.get(kept, &kept_key(number)).context("get")?;
        if view.is_none_or(|view| view.bytes() != kept_value(number)) {
            return Err(format!("record {number} of {KEPT} is lost"));
        }
    }
    Ok(())
}

pub(crate) fn plain(session: &Session, name: &str) -> Result<Namespace, String> {
    session.namespace(name, &Schema::default()).context(name)
}

pub(crate) fn put(
    session: &Session,
    to: Namespace,
    key: &[u8],
    value: &[u8],
) -> Result<(), String> {
    session.put(to, key, value).map(drop).context("put")
}

fn stepped<T>(at_edge: &mut dyn FnMut(), call: impl FnOnce() -> T) -> T {
    at_edge();
    let done = call();
    at_edge();
    done
}

fn of_values(session: &Session, name: &str) -> Result<Namespace, Error> {
    session.namespace(name, &Schema::default())
}

fn nothing(session: &Session) -> Result<(), String> {
    session.check_not_truncated().context("create")
}

fn always(session: &Session) -> Result<bool, String> {
    session.check_not_truncated().map(|()| true).context("use")
}

/// True if all are, false if none is.
fn all_or_none(what: &str, facts: &[bool]) -> Result<bool, String> {
    match (facts.iter().all(|fact| *fact), facts.iter().any(|fact| *fact)) {
        (true, _) => Ok(true),
        (false, false) => Ok(false),
        (false, true) => Err(format!("half of {what}: {facts:?}")),
    }
}

fn has(session: &Session, name: &str, key: &[u8], value: &[u8]) -> Result<bool, String> {
    let view = session.get(plain(session, name)?, key).context("get")?;
    Ok(view.is_some_and(|view| view.bytes() == value))
}

// Sessions.

fn attach(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let path = folder.join("region");
    stepped(at_edge, || Region::attach(&path)).map(drop).context("attach")
}

fn open(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let region = Region::attach(&folder.join("region")).context("attach")?;
    stepped(at_edge, || region.session()).map(drop).context("session")
}

fn close(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    // It has free cells and a bump range to give back.
    let kept = plain(&session, KEPT)?;
    for number in 0..4 {
        put(&session, kept, b"closing", &vec![1; 300 * number])?;
    }
    session.delete(kept, b"closing").context("delete")?;
    stepped(at_edge, || drop(session));
    Ok(())
}

// Namespaces.

fn create(session: &Session) -> Result<(), Error> {
    of_values(session, "created").map(drop)
}

fn is_created(session: &Session) -> Result<bool, String> {
    exists(session, "created")
}

fn exists(session: &Session, name: &str) -> Result<bool, String> {
    Ok(session.known_namespace(name).context("look up")?.is_some())
}

const REMOVED: &str = "removed";

fn plain_to_remove(session: &Session) -> Result<(), String> {
    let namespace = plain(session, REMOVED)?;
    put(session, namespace, b"gone", b"value")?;
    session.delete(namespace, b"gone").map(drop).context("delete")
}

fn tagged_to_remove(session: &Session) -> Result<(), String> {
    let schema = Schema { tags: tag_schemas(), ..Schema::default() };
    session.namespace(REMOVED, &schema).map(drop).context("create")
}

fn remove(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let Some(namespace) = session.known_namespace(REMOVED).context("look up")? else {
        return Ok(());
    };
    stepped(at_edge, || session.remove_namespace(namespace)).map(drop).context("remove")
}

fn is_removed(session: &Session) -> Result<bool, String> {
    exists(session, REMOVED).map(|exists| !exists)
}

fn limit(session: &Session, namespace: Namespace) -> Result<(), Error> {
    let limits = NamespaceLimits { soft_bytes: 0, hard_bytes: 1 << 20 };
    session.set_limits(namespace, limits)
}

fn is_limited(session: &Session) -> Result<bool, String> {
    let usage = session.usage(plain(session, OTHERS)?).context("usage")?;
    Ok(usage.is_some())
}

// Tags.

const TAGGED: &str = "tagged";

fn tag_schemas() -> Vec<TagSchema> {
    let tag = |name: &str| TagSchema { name: name.to_owned(), ..TagSchema::default() };
    vec![
        TagSchema { is_unique: true, ..tag("unique") },
        TagSchema { is_ordered: true, is_counted: true, ..tag("ordered") },
    ]
}

/// Puts a record whose tags are its number.
fn put_tagged(session: &Session, key: u32, number: u32) -> Result<(), Error> {
    let namespace = of_values(session, TAGGED)?;
    let (key, value) = (key.to_be_bytes(), number.to_be_bytes());
    let metadata = Metadata { tags: &[("unique", &value), ("ordered", &value)], expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(namespace, &key, &value, metadata))
}

fn undeclared(session: &Session) -> Result<(), String> {
    (0..6).try_for_each(|number| put_tagged(session, number, number)).context("put")
}

fn tagged(session: &Session) -> Result<(), String> {
    let schema = Schema { tags: tag_schemas(), ..Schema::default() };
    session.namespace(TAGGED, &schema).context("create")?;
    undeclared(session)
}

fn declare(session: &Session, namespace: Namespace) -> Result<(), Error> {
    session.add_tags(namespace, &tag_schemas())
}

fn is_declared(session: &Session) -> Result<bool, String> {
    let namespace = plain(session, TAGGED)?;
    let tags = session.tags(namespace).context("tags")?;
    if tags.len() < 2 || tags.iter().any(|tag| tag.state != TagState::Ready) {
        return Ok(false);
    }
    let found: Result<Vec<bool>, String> =
        (0..6).map(|number| is_found(session, number, Some(number))).collect();
    Ok(found?.iter().all(|is_found| *is_found))
}

/// True if the record with this key has these tags (none: does not exist), and is found by them.
fn is_found(session: &Session, key: u32, number: Option<u32>) -> Result<bool, String> {
    let (namespace, bytes) = (plain(session, TAGGED)?, key.to_be_bytes());
    let Some(number) = number else {
        return Ok(session.get(namespace, &bytes).context("get")?.is_none());
    };
    let value = number.to_be_bytes();
    let view = session.get(namespace, &bytes).context("get")?;
    let is_stored = view.is_some_and(|view| view.bytes() == value);
    let found = session.find(namespace, "unique", &value).context("find")?;
    let is_found = found.is_some_and(|view| view.key() == bytes);
    let count = session.count_tagged(namespace, "ordered", &value).context("count")?;
    all_or_none(&format!("the tags of record {key}"), &[is_stored, is_found, count == 1])
}

fn is_inserted(session: &Session) -> Result<bool, String> {
    is_found(session, 60, Some(60))
}

fn is_updated(session: &Session) -> Result<bool, String> {
    let facts = [is_found(session, 3, Some(70))?, !is_found(session, 3, Some(3))?];
    all_or_none("an update of tags", &facts)
}

fn delete_tagged(session: &Session, namespace: Namespace) -> Result<(), Error> {
    session.delete(namespace, &4_u32.to_be_bytes()).map(drop)
}

fn is_deleted(session: &Session) -> Result<bool, String> {
    let facts = [is_found(session, 4, None)?, !is_found(session, 4, Some(4))?];
    all_or_none("a deletion of tags", &facts)
}

// Records.
/// A namespace, and the number of its records before an operation.
pub(crate) const OTHERS: &str = "others";
pub(crate) const OTHER_RECORDS: u8 = 6;

fn others(session: &Session) -> Result<(), String> {
    let namespace = plain(session, OTHERS)?;
    (0..OTHER_RECORDS).try_for_each(|number: u8| put(session, namespace, &[number], &[number; 200]))
}

fn grow(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let namespace = plain(&session, "grown")?;
    (0..GROWN - 5).try_for_each(|number| put(&session, namespace, &[number], b"x"))?;
    let mut last = GROWN - 5..GROWN;
    stepped(at_edge, || last.try_for_each(|number| put(&session, namespace, &[number], b"x")))
}

/// Records, of which one of the last five splits a bucket.
const GROWN: u8 = 60;

fn is_grown(session: &Session) -> Result<bool, String> {
    Ok(session.count(plain(session, "grown")?).context("count")? == u64::from(GROWN))
}

/// A namespace with a record that takes a bump range of its own.
const LARGE: &str = "large";
const LARGE_BYTES: usize = 12_000;

fn enlarge(session: &Session) -> Result<(), Error> {
    let namespace = of_values(session, LARGE)?;
    session.put(namespace, b"one", &[1; LARGE_BYTES])?;
    session.put(namespace, b"one", &[2; LARGE_BYTES]).map(drop)
}

fn is_enlarged(session: &Session) -> Result<bool, String> {
    has(session, LARGE, b"one", &[2; LARGE_BYTES])
}

fn replace(session: &Session) -> Result<(), Error> {
    session.put(of_values(session, OTHERS)?, &[1], &[9; 300]).map(drop)
}

fn is_replaced(session: &Session) -> Result<bool, String> {
    let is_new = has(session, OTHERS, &[1], &[9; 300])?;
    if !is_new && !has(session, OTHERS, &[1], &[1; 200])? {
        return Err("neither the old record nor the new one is there".to_owned());
    }
    Ok(is_new)
}

fn of_blocks(session: &Session) -> Result<Namespace, Error> {
    session.namespace("blocks", &Schema { kind: Kind::Blocks, ..Schema::default() })
}

fn change_blocks(session: &Session, contents: [&[u8]; 2]) -> Result<(), Error> {
    let [one, other] = contents;
    let changes = [
        BlockChange { name: "one", bytes: Some(one) },
        BlockChange { name: "other", bytes: Some(other) },
    ];
    session.patch(of_blocks(session)?, b"key", &changes, Condition::Always).map(drop)
}

fn blocks(session: &Session) -> Result<(), String> {
    change_blocks(session, [&[1; 700], &[1; 700]]).context("patch")
}

fn patch(session: &Session) -> Result<(), Error> {
    change_blocks(session, [&[2; 300], &[2; 900]])
}

fn is_patched(session: &Session) -> Result<bool, String> {
    let namespace = of_blocks(session).context("blocks")?;
    let view = session.get(namespace, b"key").context("get")?.ok_or("the record is lost")?;
    let is_new: Vec<bool> = view.blocks().map(|(_, bytes)| bytes.first() == Some(&2)).collect();
    if is_new.len() != 2 {
        return Err(format!("{} blocks are left", is_new.len()));
    }
    all_or_none("a patch", &is_new)
}

fn logged(session: &Session) -> Result<(), String> {
    others(session)?;
    session.stream(plain(session, OTHERS)?, WhenFull::LoseOldest).context("stream")
}

fn transact(session: &Session) -> Result<(), Error> {
    let namespace = of_values(session, OTHERS)?;
    session.transact(|txn| {
        txn.put(namespace, &[2], &[8; 500])?;
        txn.put(namespace, b"new", &[8; 100])?;
        txn.delete(namespace, &[3]).map(drop)
    })
}

fn is_transacted(session: &Session) -> Result<bool, String> {
    let deleted = session.get(plain(session, OTHERS)?, &[3]).context("get")?.is_none();
    let put = [has(session, OTHERS, &[2], &[8; 500])?, has(session, OTHERS, b"new", &[8; 100])?];
    all_or_none("a transaction", &[deleted, put[0], put[1]])
}

fn expired(session: &Session) -> Result<(), String> {
    let namespace = plain(session, OTHERS)?;
    for number in 0..4_u8 {
        let metadata = Metadata { tags: &[], expires_ms: 1 };
        let put = |txn: &nearstate_store::Txn<'_>| {
            txn.put_with_metadata(namespace, &[number], b"expired", metadata)
        };
        session.transact(put).context("put")?;
    }
    Ok(())
}

fn collect(session: &Session) -> Result<(), Error> {
    session.collect_expired(100).map(drop)
}

/// No record is left to collect. A look at it collects what is left.
fn is_collected(session: &Session) -> Result<bool, String> {
    let collected = session.collect_expired(100).context("collect")?;
    Ok(collected.records == 0)
}

// Memory.
/// Records of which few stay: they are moved together.
const SCATTERED: u16 = 300;

fn scattered(session: &Session) -> Result<(), String> {
    let namespace = plain(session, "scattered")?;
    for number in 0..SCATTERED {
        put(session, namespace, &number.to_be_bytes(), &[5; 1000])?;
    }
    for number in (0..SCATTERED).filter(|number| number % 60 != 0) {
        session.delete(namespace, &number.to_be_bytes()).context("delete")?;
    }
    Ok(())
}

/// Units of 64 bytes for each part of the work.
const PART_UNITS: u64 = 256;

fn move_together(session: &Session) -> Result<(), Error> {
    let Some(mut work) = session.defragment(1)? else { return Ok(()) };
    while !work.step(PART_UNITS)? {}
    Ok(())
}

fn full(session: &Session) -> Result<(), String> {
    fill(session, "huge", 4 << 20)?;
    fill(session, "joined", 1500)?;
    fill(session, "small", 60)
}

/// Records that are deleted first, every second one, so that each free cell has a live neighbour.
const HOLES: u32 = 60;

fn join(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let namespace = plain(&session, "joined")?;
    for number in (0..HOLES).step_by(2) {
        session.delete(namespace, &number.to_be_bytes()).context("delete")?;
    }
    let put = |key: &[u8]| session.put(namespace, key, &[6; 2900]);
    for done in stepped(at_edge, || [put(b"a"), put(b"b")]) {
        // Others may have taken what was free.
        unless_full(done)?;
    }
    Ok(())
}

fn repair(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let path = folder.join("region");
    stepped(at_edge, || repair_with(&path, &AttachOptions::default())).map(drop).context("repair")
}
