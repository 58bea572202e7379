//! The operations that a sweep stops and kills, each with the region that it needs and what it must
//! leave.

use std::path::Path;

use nearstate_store::{
    AttachOptions, BlockChange, Condition, CreateOptions, Error, Kind, Metadata, Namespace,
    NamespaceLimits, Region, Schema, Session, TagSchema, TagState, WhenFull, repair_with,
};

use crate::region_access::{create_folder, open_session, text};
use crate::repairs;

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
    /// Executes the operation, between two calls of the function. A repetition completes what a
    /// killed process has begun.
    pub(crate) play: fn(&Path, &mut dyn FnMut()) -> Result<(), String>,
    /// Whether the operation is done, of which all parts must agree.
    is_done: fn(&Session) -> Result<bool, String>,
    pub(crate) region: SweptRegion,
    /// It takes more than a hundred thousand instructions: a sample stops it at random times.
    pub(crate) is_long: bool,
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
    play: fn(&Path, &mut dyn FnMut()) -> Result<(), String>,
    is_done: fn(&Session) -> Result<bool, String>,
) -> SweptOperation {
    SweptOperation { name, prepare, play, is_done, region: SweptRegion::Usual, is_long: false }
}

const fn long(operation: SweptOperation) -> SweptOperation {
    SweptOperation { is_long: true, ..operation }
}

/// The operation in which a process was killed in a region of [`SweptRegion::Killed`].
pub(crate) const TRANSACTION: SweptOperation =
    operation("transaction", others, transact, is_transacted);

/// All operations.
pub const SWEPT: &[SweptOperation] = &[
    operation("attach", nothing, attach, always),
    operation("open session", nothing, open, always),
    operation("close session", nothing, close, always),
    operation("create namespace", nothing, create, is_created),
    operation("remove namespace", plain_to_remove, remove, is_removed),
    long(operation("remove with tags", tagged_to_remove, remove, is_removed)),
    long(operation("declare tags", undeclared, declare, is_declared)),
    operation("set limits", others, limit, is_limited),
    operation("grow index", nothing, grow, is_grown),
    operation("grow heap", nothing, enlarge, is_enlarged),
    operation("replace", others, replace, is_replaced),
    operation("patch", blocks, patch, is_patched),
    operation("logged put", logged, replace, is_replaced),
    TRANSACTION,
    operation("tagged insert", tagged, insert_tagged, is_inserted),
    operation("tagged update", tagged, update_tagged, is_updated),
    operation("tagged delete", tagged, delete_tagged, is_deleted),
    long(operation("expiry", expired, collect, is_collected)),
    long(operation("move together", scattered, move_together, always)),
    SweptOperation {
        region: SweptRegion::Full,
        ..long(operation("join in full heap", full, join, always))
    },
    SweptOperation {
        region: SweptRegion::Killed,
        ..operation("recover", others, open, has_recovered)
    },
    SweptOperation {
        region: SweptRegion::Damaged,
        ..long(operation("repair", nothing, repair, always))
    },
];

impl SweptOperation {
    /// Creates the region.
    pub(crate) fn prepare(&self, folder: &Path) -> Result<(), String> {
        if self.region == SweptRegion::Damaged {
            return repairs::prepare(folder);
        }
        create_folder(folder)?;
        let path = folder.join("region");
        if path.exists() {
            std::fs::remove_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        let options = CreateOptions {
            bytes_max: 64 << 20,
            hash_seed: Some(HASH_SEED),
            ..CreateOptions::default()
        };
        let session = Region::create(&path, &options).and_then(|region| region.session());
        let session = session.map_err(text("create"))?;
        let kept = plain(&session, KEPT)?;
        for number in 0..KEPT_RECORDS {
            put(&session, kept, &kept_key(number), &kept_value(number))?;
        }
        (self.prepare)(&session)
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
        let view = session.get(kept, &kept_key(number)).map_err(text("get"))?;
        if view.is_none_or(|view| view.bytes() != kept_value(number)) {
            return Err(format!("record {number} of {KEPT} is lost"));
        }
    }
    Ok(())
}

pub(crate) fn plain(session: &Session, name: &str) -> Result<Namespace, String> {
    session.namespace(name, &Schema::default()).map_err(text(name))
}

pub(crate) fn put(
    session: &Session,
    to: Namespace,
    key: &[u8],
    value: &[u8],
) -> Result<(), String> {
    session.put(to, key, value).map(drop).map_err(text("put"))
}

/// A session that executes an operation of its own between two calls of `at_edge`.
fn between(
    folder: &Path,
    at_edge: &mut dyn FnMut(),
    work: impl FnOnce(&Session) -> Result<(), Error>,
) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    at_edge();
    let done = work(&session);
    at_edge();
    done.map_err(|error| error.to_string())
}

fn nothing(session: &Session) -> Result<(), String> {
    session.check_not_truncated().map_err(text("create"))
}

fn always(session: &Session) -> Result<bool, String> {
    session.check_not_truncated().map(|()| true).map_err(text("use"))
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
    let view = session.get(plain(session, name)?, key).map_err(text("get"))?;
    Ok(view.is_some_and(|view| view.bytes() == value))
}

// Sessions.

fn attach(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let path = folder.join("region");
    at_edge();
    let region = Region::attach(&path);
    at_edge();
    region.map(drop).map_err(text("attach"))
}

fn open(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let region = Region::attach(&folder.join("region")).map_err(text("attach"))?;
    at_edge();
    let session = region.session();
    at_edge();
    session.map(drop).map_err(text("session"))
}

fn close(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    // It has free cells and a bump range to give back.
    let kept = plain(&session, KEPT)?;
    for number in 0..4 {
        put(&session, kept, b"closing", &vec![1; 300 * number])?;
    }
    session.delete(kept, b"closing").map_err(text("delete"))?;
    at_edge();
    drop(session);
    at_edge();
    Ok(())
}

// Namespaces.

fn create(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    between(folder, at_edge, |session| session.namespace("created", &Schema::default()).map(drop))
}

fn is_created(session: &Session) -> Result<bool, String> {
    Ok(session.known_namespace("created").map_err(text("look up"))?.is_some())
}

const REMOVED: &str = "removed";

fn plain_to_remove(session: &Session) -> Result<(), String> {
    let namespace = plain(session, REMOVED)?;
    put(session, namespace, b"gone", b"value")?;
    session.delete(namespace, b"gone").map(drop).map_err(text("delete"))
}

fn tagged_to_remove(session: &Session) -> Result<(), String> {
    let schema = Schema { tags: tag_schemas(), ..Schema::default() };
    session.namespace(REMOVED, &schema).map(drop).map_err(text("create"))
}

fn remove(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let Some(namespace) = session.known_namespace(REMOVED).map_err(text("look up"))? else {
        return Ok(());
    };
    at_edge();
    let removed = session.remove_namespace(namespace);
    at_edge();
    removed.map(drop).map_err(text("remove"))
}

fn is_removed(session: &Session) -> Result<bool, String> {
    Ok(session.known_namespace(REMOVED).map_err(text("look up"))?.is_none())
}

fn limit(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let namespace = plain(&session, OTHERS)?;
    at_edge();
    let limits = NamespaceLimits { soft_bytes: 0, hard_bytes: 1 << 20 };
    let done = session.set_limits(namespace, limits);
    at_edge();
    done.map_err(text("set limits"))
}

fn is_limited(session: &Session) -> Result<bool, String> {
    let usage = session.usage(plain(session, OTHERS)?).map_err(text("usage"))?;
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
    let namespace = session.namespace(TAGGED, &Schema::default())?;
    let (key, value) = (key.to_be_bytes(), number.to_be_bytes());
    let metadata = Metadata { tags: &[("unique", &value), ("ordered", &value)], expires_ms: 0 };
    session.transact(|txn| txn.put_with_metadata(namespace, &key, &value, metadata))
}

fn undeclared(session: &Session) -> Result<(), String> {
    (0..6).try_for_each(|number| put_tagged(session, number, number)).map_err(text("put"))
}

fn tagged(session: &Session) -> Result<(), String> {
    let schema = Schema { tags: tag_schemas(), ..Schema::default() };
    session.namespace(TAGGED, &schema).map_err(text("create"))?;
    undeclared(session)
}

fn declare(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let namespace = plain(&session, TAGGED)?;
    at_edge();
    let declared = session.add_tags(namespace, &tag_schemas());
    at_edge();
    declared.map_err(text("declare"))
}

fn is_declared(session: &Session) -> Result<bool, String> {
    let namespace = plain(session, TAGGED)?;
    let tags = session.tags(namespace).map_err(text("tags"))?;
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
        return Ok(session.get(namespace, &bytes).map_err(text("get"))?.is_none());
    };
    let value = number.to_be_bytes();
    let view = session.get(namespace, &bytes).map_err(text("get"))?;
    let is_stored = view.is_some_and(|view| view.bytes() == value);
    let found = session.find(namespace, "unique", &value).map_err(text("find"))?;
    let is_found = found.is_some_and(|view| view.key() == bytes);
    let count = session.count_tagged(namespace, "ordered", &value).map_err(text("count"))?;
    all_or_none(&format!("the tags of record {key}"), &[is_stored, is_found, count == 1])
}

fn insert_tagged(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    between(folder, at_edge, |session| put_tagged(session, 60, 60))
}

fn is_inserted(session: &Session) -> Result<bool, String> {
    is_found(session, 60, Some(60))
}

fn update_tagged(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    between(folder, at_edge, |session| put_tagged(session, 3, 70))
}

fn is_updated(session: &Session) -> Result<bool, String> {
    let facts = [is_found(session, 3, Some(70))?, !is_found(session, 3, Some(3))?];
    all_or_none("an update of tags", &facts)
}

fn delete_tagged(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let namespace = plain(&session, TAGGED)?;
    at_edge();
    let deleted = session.delete(namespace, &4_u32.to_be_bytes());
    at_edge();
    deleted.map(drop).map_err(text("delete"))
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
    at_edge();
    let done = (GROWN - 5..GROWN).try_for_each(|number| put(&session, namespace, &[number], b"x"));
    at_edge();
    done
}

/// Records, of which one of the last five splits a bucket.
const GROWN: u8 = 60;

fn is_grown(session: &Session) -> Result<bool, String> {
    Ok(session.count(plain(session, "grown")?).map_err(text("count"))? == u64::from(GROWN))
}

/// Bytes of a record that takes a bump range of its own.
const LARGE: usize = 12_000;

fn enlarge(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    between(folder, at_edge, |session| {
        let namespace = session.namespace("large", &Schema::default())?;
        session.put(namespace, b"one", &[1; LARGE])?;
        session.put(namespace, b"one", &[2; LARGE]).map(drop)
    })
}

fn is_enlarged(session: &Session) -> Result<bool, String> {
    has(session, "large", b"one", &[2; LARGE])
}

fn replace(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    between(folder, at_edge, |session| {
        let namespace = session.namespace(OTHERS, &Schema::default())?;
        session.put(namespace, &[1], &[9; 300]).map(drop)
    })
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
    change_blocks(session, [&[1; 700], &[1; 700]]).map_err(text("patch"))
}

fn patch(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    between(folder, at_edge, |session| change_blocks(session, [&[2; 300], &[2; 900]]))
}

fn is_patched(session: &Session) -> Result<bool, String> {
    let namespace = of_blocks(session).map_err(text("blocks"))?;
    let view = session.get(namespace, b"key").map_err(text("get"))?.ok_or("the record is lost")?;
    let is_new: Vec<bool> = view.blocks().map(|(_, bytes)| bytes.first() == Some(&2)).collect();
    if is_new.len() != 2 {
        return Err(format!("{} blocks are left", is_new.len()));
    }
    all_or_none("a patch", &is_new)
}

fn logged(session: &Session) -> Result<(), String> {
    others(session)?;
    session.stream(plain(session, OTHERS)?, WhenFull::LoseOldest).map_err(text("stream"))
}

fn transact(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    between(folder, at_edge, |session| {
        let namespace = session.namespace(OTHERS, &Schema::default())?;
        session.transact(|txn| {
            txn.put(namespace, &[2], &[8; 500])?;
            txn.put(namespace, b"new", &[8; 100])?;
            txn.delete(namespace, &[3]).map(drop)
        })
    })
}

fn is_transacted(session: &Session) -> Result<bool, String> {
    let deleted = session.get(plain(session, OTHERS)?, &[3]).map_err(text("get"))?.is_none();
    let put = [has(session, OTHERS, &[2], &[8; 500])?, has(session, OTHERS, b"new", &[8; 100])?];
    all_or_none("a transaction", &[deleted, put[0], put[1]])
}

/// The transaction of the killed process happened, or nothing of it.
fn has_recovered(session: &Session) -> Result<bool, String> {
    is_transacted(session).map(|_| true)
}

fn expired(session: &Session) -> Result<(), String> {
    let namespace = plain(session, OTHERS)?;
    for number in 0..4_u8 {
        let metadata = Metadata { tags: &[], expires_ms: 1 };
        let put = |txn: &nearstate_store::Txn<'_>| {
            txn.put_with_metadata(namespace, &[number], b"expired", metadata)
        };
        session.transact(put).map_err(text("put"))?;
    }
    Ok(())
}

fn collect(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    between(folder, at_edge, |session| session.collect_expired(100).map(drop))
}

/// No record is left to collect. A look at it collects what is left.
fn is_collected(session: &Session) -> Result<bool, String> {
    let collected = session.collect_expired(100).map_err(text("collect"))?;
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
        session.delete(namespace, &number.to_be_bytes()).map_err(text("delete"))?;
    }
    Ok(())
}

/// Units of 64 bytes for each part of the work.
const PART_UNITS: u64 = 256;

fn move_together(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    between(folder, at_edge, |session| {
        let Some(mut work) = session.defragment(1)? else { return Ok(()) };
        while !work.step(PART_UNITS)? {}
        Ok(())
    })
}

/// Puts records until there is no room.
fn fill(session: &Session, name: &str, bytes: usize) -> Result<u32, String> {
    let namespace = plain(session, name)?;
    let value = vec![4; bytes];
    for number in 0_u32.. {
        match session.put(namespace, &number.to_be_bytes(), &value) {
            Ok(_) => {}
            Err(Error::Full { .. }) => return Ok(number),
            Err(error) => return Err(text("fill")(error)),
        }
    }
    unreachable!("a region is full some time")
}

fn full(session: &Session) -> Result<(), String> {
    fill(session, "huge", 4 << 20)?;
    fill(session, "joined", 1500)?;
    fill(session, "small", 60).map(drop)
}

/// Records that are deleted first, every second one, so that each free cell has a live neighbour.
const HOLES: u32 = 60;

fn join(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    let session = open_session(&folder.join("region"))?;
    let namespace = plain(&session, "joined")?;
    for number in (0..HOLES).step_by(2) {
        session.delete(namespace, &number.to_be_bytes()).map_err(text("delete"))?;
    }
    at_edge();
    let done: Vec<_> = [b"a", b"b"].map(|key| session.put(namespace, key, &[6; 2900])).into();
    at_edge();
    for put in done {
        match put {
            // Others may have taken what was free.
            Ok(_) | Err(Error::Full { .. }) => {}
            Err(error) => return Err(text("put")(error)),
        }
    }
    Ok(())
}

fn repair(folder: &Path, at_edge: &mut dyn FnMut()) -> Result<(), String> {
    at_edge();
    let repaired = repair_with(&folder.join("region"), &AttachOptions::default());
    at_edge();
    repaired.map(drop).map_err(text("repair"))
}
