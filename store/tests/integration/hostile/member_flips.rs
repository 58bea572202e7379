//! Every bit of the cluster page of two members of a cluster that are not attached: an owner that
//! has taken over, and one that follows it.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use nearstate_store::{
    AttachOptions, Error, NamespaceRules, ReplicationPolicy, Session, WhenFull, lease_clock,
    repair_with,
};

use crate::fixture::{TestFolder, checked, clean};
use crate::follow::{change, key};
use crate::hostile::flip_rates::Snapshot;
use crate::takeover::{Three, follow, ue};

const PAGE: u64 = 4096;
const CLUSTER: [u8; 16] = [3; 16];
const OWNER_ADDRESS: u64 = 0x780;

/// Words that only have to differ from what they were: a flip is another change. And one that only
/// decides whether a waiter spins.
const HARMLESS: [(u64, &str); 5] = [
    (0x3c0, "processor of the source of the log"),
    (0x3c8, "futex word of sources"),
    (0x500, "changes of whether the log keeps entries"),
    (0x510, "how often a namespace became a logged one"),
    (0x540, "futex word of those that wait"),
];

/// Words of the log that every commit or acknowledgement changes by one atomic operation: only a
/// part of their bits contradicts another word.
const LOG_WORDS: [(u64, &str); 7] = [
    (0x080, "tail"),
    (0x0c0, "replicated"),
    (0x100, "floor"),
    (0x108, "limit of the floor"),
    (0x200, "units that entries have held"),
    (0x500, "whether the log keeps entries"),
    (0x508, "number of gaps"),
];

/// The positions of gaps: only those outside of the log contradict another word.
const GAPS: Range<u64> = 0x400..0x500;

/// Words with a check value: the first one, the end, and the check value. While that is 0 they say
/// nothing: none were stored, or their writer was killed.
const GROUPS: [(u64, u64, u64); 9] = [
    (0x000, 0x010, 0x020),
    (0x5c8, 0x5f0, 0x5e0),
    (0x600, 0x610, 0x610),
    (0x618, 0x638, 0x638),
    (0x640, 0x650, 0x650),
    (0x680, 0x690, 0x690),
    (0x6c0, 0x700, 0x700),
    (0x710, 0x740, 0x740),
    (OWNER_ADDRESS, 0x800, OWNER_ADDRESS),
];

/// What the node of a cluster stores in its region.
fn join_cluster(session: &Session) {
    session.bind(CLUSTER).unwrap();
    session.see_view(9).unwrap();
    session.set_owner_address(Some("192.0.2.17:6379, of the partition's owner")).unwrap();
    session.set_owner_address(Some("192.0.2.1:6379")).unwrap();
    for glob in ["ue*", "sessions*"] {
        let rules = [(ReplicationPolicy::Replicated, glob.to_owned())];
        session.set_namespace_rules(&NamespaceRules::new(rules).unwrap()).unwrap();
    }
}

/// The folders of an owner that has taken over, and of a member that follows it now. Both have left
/// another log before.
fn members() -> [TestFolder; 2] {
    let Three { owner, ahead, behind } = Three::new();
    let [old, heir] = [&owner, &ahead].map(|host| host.region.session().unwrap());
    let seal = heir.following().unwrap().unwrap().applied.position;
    let takeover = heir.promote_logged(5, WhenFull::Refuse, false).unwrap();
    (0..30).for_each(|number| change(&heir, ue(&heir), number));
    old.demote(Some(seal)).unwrap();
    follow(&heir, &old);
    assert_eq!(old.following().unwrap().unwrap().source, takeover.own);
    for session in [&old, &heir] {
        join_cluster(session);
    }
    heir.set_owner_lease(lease_clock() + Duration::from_secs(3600)).unwrap();
    heir.set_evicting(Some((7, 2))).unwrap();
    heir.set_fenced(false).unwrap();
    heir.acknowledge_to(heir.receipt().position()).unwrap();
    follow(&heir, &old);
    for number in 0..20_u64 {
        heir.put(ue(&heir), &key(number + 700), b"not acknowledged").unwrap();
    }
    drop((old, heir, behind));
    let folders = [ahead, owner].map(|host| {
        drop(host.region);
        host.folder
    });
    for folder in &folders {
        clean(&folder.path);
    }
    folders
}

/// Why a flip need not be found, as the specification lists it.
fn exception(file: &Snapshot, at: u64, bit: u64) -> Option<&'static str> {
    let is_keeps = at == 0x500 && bit == 0;
    // The last word of the text has bytes behind it.
    let text = 8 * (OWNER_ADDRESS + 16 + file.word(PAGE + OWNER_ADDRESS + 8));
    let harmless = HARMLESS.iter().find(|(word, _)| *word == at && !is_keeps);
    let is_behind = (text..8 * 0x800).contains(&(8 * at + bit));
    let behind_text = is_behind.then_some("behind the text of the address");
    let is_unused = |group: &&(u64, u64, u64)| {
        let (first, end, check) = **group;
        (first..end).contains(&at) && file.word(PAGE + check) == 0
    };
    // A killed consumer leaves one more gap.
    let next_gap = 0x400 + 16 * (file.word(PAGE + 0x508) % 16);
    if file.word(PAGE + 0x508) < 16 && (next_gap..next_gap + 16).contains(&at) {
        return Some("the gap behind the recorded ones");
    }
    let unused = GROUPS.iter().find(is_unused).map(|_| "words without a check value");
    harmless.map(|(_, why)| *why).or(behind_text).or(unused)
}

/// Whether the check finds the flip of a bit. The region is as before then.
fn is_found(path: &Path, file: &Snapshot, bit: u64) -> bool {
    file.flip(bit);
    let is_found = match checked(path) {
        Ok(report) => !report.is_clean(),
        Err(Error::NotARegion { .. } | Error::Damaged { .. }) => true,
        Err(error) => panic!("neither refused nor verified: {error}"),
    };
    if is_found {
        file.unflip(bit);
    } else {
        file.restore(bit);
    }
    is_found
}

/// Flips every `step`-th bit of the words in use, and a few of the others.
fn expect(step: u64) {
    for (folder, name) in members().iter().zip(["owner", "follower"]) {
        let file = Snapshot::of(&folder.path);
        let (mut found, mut matter, mut excepted, mut text) = (0, 0, 0, String::new());
        let mut flip = 0;
        for at in (0..PAGE).step_by(8) {
            let stride = if file.word(PAGE + at) == 0 { 16 * step } else { step };
            for bit in 0..64 {
                flip += 1;
                if flip % stride != 0 {
                    continue;
                }
                let is_found = is_found(&folder.path, &file, (PAGE + at) * 8 + bit);
                if is_found {
                    (found, matter) = (found + stride, matter + stride);
                } else if exception(&file, at, bit).is_some() {
                    excepted += stride;
                } else {
                    matter += stride;
                    let gap = GAPS.contains(&at).then_some("a position of a gap");
                    let word = LOG_WORDS.iter().find(|(word, _)| *word == at);
                    let word = word.map(|(_, what)| *what).or(gap).unwrap_or_else(|| {
                        panic!("{name}: bit {bit} of the word at {at:#x} is not found")
                    });
                    write!(text, " {word} {bit},").unwrap();
                }
            }
        }
        let hundredths = 10_000 * found / matter;
        let (whole, part) = (hundredths / 100, hundredths % 100);
        eprintln!("{name}: {found} of {matter} = {whole}.{part:02} %, {excepted} excepted:{text}");
        assert!(found * 100 >= matter * 99, "{name}: {found} of {matter}:{text}");
        clean(&folder.path);
    }
}

#[test]
fn flips_in_the_cluster_page_of_a_member_are_found() {
    // A prime, so that every bit of a word has its flip.
    expect(23);
}

/// `cargo test -p nearstate-store --test integration -- --ignored every_member_flip --nocapture`
#[test]
#[ignore = "some ten thousand checks"]
fn every_member_flip_in_the_cluster_page_is_found() {
    expect(1);
}

/// Words with a check value of their own, one bit of each: the repair makes the region sound.
#[test]
fn flips_in_the_cluster_page_of_a_member_are_repaired() {
    for folder in members() {
        let file = Snapshot::of(&folder.path);
        let used = (0..PAGE).step_by(8).filter(|at| file.word(PAGE + at) != 0);
        for at in used.collect::<Vec<_>>() {
            let bit = (PAGE + at) * 8 + at / 8 % 64;
            file.flip(bit);
            if checked(&folder.path).is_ok_and(|report| report.is_clean()) {
                file.restore(bit);
                continue;
            }
            file.restore(bit);
            file.flip(bit);
            repair_with(&folder.path, &AttachOptions::default())
                .unwrap_or_else(|error| panic!("bit {bit}: {error}"));
            let report = checked(&folder.path).unwrap();
            assert!(report.is_clean(), "word {at:#x}: {report:?}");
            file.restore(bit);
        }
        clean(&folder.path);
    }
}

/// The id of the cluster protects the region from being taken for an empty one.
#[test]
fn a_flip_in_the_cluster_id_is_corrected() {
    let [folder, _] = members();
    let file = Snapshot::of(&folder.path);
    for at in [0, 8, 0x20] {
        for bit in [0, 17, 63] {
            file.flip((PAGE + at) * 8 + bit);
            repair_with(&folder.path, &AttachOptions::default()).unwrap();
            clean(&folder.path);
            let region = nearstate_store::Region::attach(&folder.path).unwrap();
            let session = region.session().unwrap();
            assert_eq!(session.bound_cluster().unwrap(), Some(CLUSTER), "word {at:#x}, bit {bit}");
            drop((session, region));
            file.restore((PAGE + at) * 8 + bit);
        }
    }
    clean(&folder.path);
}
