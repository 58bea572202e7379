//! Contexts that grow: what they leave is used again, until live records fill the region.
//!
//! `cargo xtask soak` runs the ignored tests, which have the sizes of a deployment.

use nearstate_store::{
    BlockChange, Condition, CreateOptions, Error, Kind, Namespace, Region, Schema, Session,
};

use crate::fixture::{TestFolder, clean};
use crate::full_region::{BYTES, key};

/// Random numbers with a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % most
    }
}

/// What grows.
#[derive(Clone, Copy, Debug)]
struct Growth {
    region_bytes: u64,
    contexts: u32,
    /// The size at each step.
    sizes: &'static [usize],
    /// Contexts that are between their first and their last step at the same time.
    in_progress: u32,
}

/// The least share of the region that is live at the end, in percent: more than what was live when
/// such a load was refused before free memory was joined.
const LIVE_MIN: u64 = 45;

/// How a context gets its next size.
type Write = fn(&Session, Namespace, u32, usize) -> Result<(), Error>;

fn put(session: &Session, ns: Namespace, number: u32, bytes: usize) -> Result<(), Error> {
    session.put(ns, &key(number), &vec![number as u8; bytes]).map(drop)
}

/// Adds one field.
fn add_field(session: &Session, ns: Namespace, number: u32, step: usize) -> Result<(), Error> {
    let name = format!("field-{step}");
    let bytes = [number as u8; FIELD];
    let changes = [BlockChange { name: &name, bytes: Some(&bytes) }];
    session.patch(ns, &key(number), &changes, Condition::Always).map(drop)
}

/// Bytes of a field of a registration.
const FIELD: usize = 200;

/// Contexts take their steps in a random order, a limited number of them at the same time. Returns
/// the region.
fn grow(growth: Growth, kind: Kind, write: Write) -> (TestFolder, Region) {
    let folder = TestFolder::new();
    let options = CreateOptions { bytes_max: growth.region_bytes, ..CreateOptions::default() };
    let region = Region::create(&folder.path, &options).unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema { kind, ..Schema::default() }).unwrap();
    let mut numbers = Numbers(11);
    let mut next = 0;
    // The context and its next step.
    let mut current: Vec<(u32, usize)> = Vec::new();
    loop {
        while current.len() < growth.in_progress as usize && next < growth.contexts {
            current.push((next, 0));
            next += 1;
        }
        if current.is_empty() {
            break;
        }
        let chosen = numbers.below(current.len() as u64) as usize;
        let (number, step) = current[chosen];
        write(&session, ns, number, growth.sizes[step]).unwrap_or_else(|error| {
            panic!("context {number} of {}, step {step}: {error}", growth.contexts)
        });
        current[chosen].1 += 1;
        if current[chosen].1 == growth.sizes.len() {
            current.swap_remove(chosen);
        }
    }
    let live = region.inspect().unwrap().heap.live;
    eprintln!("{live} of {} bytes are live", growth.region_bytes);
    assert!(live > growth.region_bytes / 100 * LIVE_MIN, "{live} bytes are live");
    drop(session);
    (folder, region)
}

/// All contexts have their last size.
fn assert_sizes(region: &Region, growth: Growth) {
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    let last = growth.sizes[growth.sizes.len() - 1];
    for number in 0..growth.contexts {
        let view = session.get(ns, &key(number)).unwrap().unwrap();
        assert!(view.bytes().len() == last && view.bytes()[0] == number as u8, "{number}");
    }
}

fn grow_values(growth: Growth) {
    let (folder, region) = grow(growth, Kind::Value, put);
    assert_sizes(&region, growth);
    drop(region);
    clean(&folder.path);
}

const SMALL: Growth = Growth {
    region_bytes: BYTES,
    contexts: 45_000,
    sizes: &[400, 500, 600, 700],
    in_progress: 45_000,
};

#[test]
fn small_contexts_grow_in_small_steps() {
    // 30,000 of them were refused; 45,000 leave less than half of the region unused.
    grow_values(SMALL);
}

#[test]
fn contexts_of_some_kilobytes_grow_at_random() {
    // A sixteenth of the load below.
    grow_values(Growth { region_bytes: BYTES, contexts: 6250, ..LARGE });
}

/// 100,000 contexts in 1 GiB.
const LARGE: Growth = Growth {
    region_bytes: 1 << 30,
    contexts: 100_000,
    sizes: &[2000, 2600, 3300, 4100, 5000],
    in_progress: 100_000,
};

#[test]
#[ignore = "1 GiB of memory, minutes"]
fn soak_100_000_contexts_grow_from_2_to_5_kb_in_1_gib() {
    grow_values(LARGE);
}

/// The names of the fields are numbers: the "size" of a step.
const FIELDS: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9];

fn registrations(growth: Growth) {
    let (folder, region) = grow(growth, Kind::Blocks, add_field);
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema { kind: Kind::Blocks, ..Schema::default() }).unwrap();
    for number in 0..growth.contexts {
        let view = session.get(ns, &key(number)).unwrap().unwrap();
        for step in FIELDS {
            let field = view.block(&format!("field-{step}"));
            assert_eq!(field, Some(&[number as u8; FIELD][..]), "context {number}, field {step}");
        }
    }
    drop((session, region));
    clean(&folder.path);
}

#[test]
fn a_registration_adds_one_field_in_each_step() {
    // All contexts at once, and a storm of which some are in progress.
    for in_progress in [17_000, 500] {
        registrations(Growth { region_bytes: BYTES, contexts: 17_000, sizes: FIELDS, in_progress });
    }
}

#[test]
#[ignore = "1 GiB of memory, minutes"]
fn soak_a_registration_storm_of_250_000_contexts_in_1_gib() {
    registrations(Growth {
        region_bytes: 1 << 30,
        contexts: 250_000,
        sizes: FIELDS,
        in_progress: 250_000,
    });
}

/// One record is replaced by one that is 100 bytes longer, between two sizes.
fn append(session: &Session, ns: Namespace, from: usize, to: usize) {
    let value = vec![1; to];
    for bytes in (from..to).step_by(100) {
        session
            .put(ns, b"log", &value[..bytes])
            .unwrap_or_else(|error| panic!("{bytes} bytes: {error}"));
    }
}

/// Once it filled the region at 2 MB. Whether it is refused depends on the sizes of its free cells,
/// not on how often it grew at one size.
#[test]
fn one_record_grows_by_100_bytes_at_a_time() {
    let folder = TestFolder::new();
    let region = Region::create(
        &folder.path,
        &CreateOptions { bytes_max: BYTES, ..CreateOptions::default() },
    )
    .unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    append(&session, ns, 0, 300_000);
    for size in (300_000..8_000_000).step_by(100_000) {
        append(&session, ns, size, size + 1000);
    }
    append(&session, ns, 8_000_000, 8_020_000);
    drop((session, region));
    clean(&folder.path);
}

#[test]
#[ignore = "it copies 100 GB, minutes"]
fn soak_one_record_grows_by_100_bytes_at_a_time_to_4_mb() {
    let folder = TestFolder::new();
    let region = Region::create(
        &folder.path,
        &CreateOptions { bytes_max: BYTES, ..CreateOptions::default() },
    )
    .unwrap();
    let session = region.session().unwrap();
    let ns = session.namespace("ue", &Schema::default()).unwrap();
    append(&session, ns, 0, 4_000_000);
    drop((session, region));
    clean(&folder.path);
}
