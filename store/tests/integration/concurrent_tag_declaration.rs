//! Concurrent declarations of tags of one namespace, which are abandoned in every order.

use std::sync::RwLockReadGuard;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nearstate_store::{
    CreateOptions, Error, Metadata, Namespace, PendingTagDeclaration, Region, RetryPolicy, Schema,
    Session, TagSchema, TagState, Values, View,
};

use crate::fixture::{TestFolder, clean, without_forks};

/// Enough records for some hundred parts of one bucket.
const RECORDS: u16 = 500;

struct DeclarationTest {
    _no_forks: RwLockReadGuard<'static, ()>,
    folder: TestFolder,
    region: Region,
    session: Session,
    ns: Namespace,
}

impl DeclarationTest {
    /// Records that have a tag `id` each, whose values differ, and no other.
    fn new() -> Self {
        let no_forks = without_forks();
        let folder = TestFolder::new();
        let region = Region::create(&folder.path, &CreateOptions::default()).unwrap();
        let session = region.session().unwrap();
        let ns = session.namespace("ues", &Schema::default()).unwrap();
        let fixture = Self { _no_forks: no_forks, folder, region, session, ns };
        for number in 0..RECORDS {
            fixture.put(&number.to_be_bytes(), &number.to_be_bytes());
        }
        fixture
    }

    fn put(&self, key: &[u8], id: &[u8]) {
        let metadata = Metadata { tags: &[("id", id)], expires_ms: 0 };
        self.session.transact(|txn| txn.put_with_metadata(self.ns, key, b"v", metadata)).unwrap();
    }

    /// The last record that a walk comes to has the value of the first one.
    fn contradict(&self) -> Vec<u8> {
        let mut scan = self.session.scan(self.ns).unwrap();
        let mut keys = Vec::new();
        while let Some(view) = scan.next().unwrap() {
            keys.push(view.key().to_vec());
        }
        let (first, last) = (keys.first().unwrap(), keys.last().unwrap());
        self.put(last, first);
        last.clone()
    }

    fn states(&self) -> Vec<(String, TagState)> {
        let tags = self.session.tags(self.ns).unwrap();
        tags.into_iter().map(|tag| (tag.name, tag.state)).collect()
    }

    /// A declaration of another session, which has entered some records.
    fn half_way(&self, session: &Session, wanted: &[TagSchema]) -> PendingTagDeclaration {
        let mut declaring =
            session.begin_tag_declaration(self.ns, wanted, RetryPolicy::default()).unwrap();
        for _ in 0..20 {
            assert!(session.continue_tag_declaration(&mut declaring, 1).unwrap(), "many parts");
        }
        declaring
    }

    /// Every record is found, and the region is whole.
    fn end(self) {
        for number in 0..RECORDS {
            let found = self.session.find(self.ns, "id", &number.to_be_bytes()).unwrap();
            assert_eq!(found.unwrap().key(), number.to_be_bytes());
        }
        drop((self.session, self.region));
        clean(&self.folder.path);
    }
}

/// Each record has the tag, with a value of its own.
fn unique() -> TagSchema {
    TagSchema { name: "id".to_owned(), is_unique: true, ..TagSchema::default() }
}

/// No record has the tag.
fn required() -> TagSchema {
    TagSchema { name: "no".to_owned(), is_required: true, ..TagSchema::default() }
}

fn finish(session: &Session, mut declaring: PendingTagDeclaration) -> Result<(), Error> {
    while session.continue_tag_declaration(&mut declaring, 1)? {}
    Ok(())
}

fn building(name: &str) -> (String, TagState) {
    (name.to_owned(), TagState::Building)
}

fn ready(name: &str) -> (String, TagState) {
    (name.to_owned(), TagState::Ready)
}

/// A declaration of two tags, one of which another process was already declaring, abandoned both
/// when the records contradicted one: the other process's writers stopped maintaining its tag.
#[test]
fn a_tag_that_another_session_is_declaring_stays_when_a_second_tag_is_abandoned() {
    let fixture = DeclarationTest::new();
    let other = fixture.region.session().unwrap();
    let slow = fixture.half_way(&other, &[unique()]);
    let refused = fixture.session.add_tags(fixture.ns, &[required(), unique()]).unwrap_err();
    assert!(matches!(refused, Error::BadArgument { .. }), "{refused}");
    assert_eq!(fixture.states(), [building("id")], "only the tags that it started are removed");
    finish(&other, slow).unwrap();
    assert_eq!(fixture.states(), [ready("id")]);
    drop(other);
    fixture.end();
}

#[test]
fn a_tag_that_another_session_has_joined_stays_when_the_first_one_abandons_it() {
    let fixture = DeclarationTest::new();
    let other = fixture.region.session().unwrap();
    let wanted = [unique(), required()];
    let mut beginner =
        fixture.session.begin_tag_declaration(fixture.ns, &wanted, RetryPolicy::default()).unwrap();
    assert!(fixture.session.continue_tag_declaration(&mut beginner, 1).unwrap());
    assert_eq!(fixture.states(), [building("id"), building("no")]);
    let joined = fixture.half_way(&other, &[unique()]);
    let refused = finish(&fixture.session, beginner).unwrap_err();
    assert!(matches!(refused, Error::BadArgument { .. }), "{refused}");
    assert_eq!(fixture.states(), [building("id")]);
    finish(&other, joined).unwrap();
    assert_eq!(fixture.states(), [ready("id")]);
    drop(other);
    fixture.end();
}

/// Writers maintain a tag whose declaration ended unfinished until the declaration is repeated,
/// whatever happens to other tags meanwhile.
#[test]
fn a_tag_of_an_ended_declaration_stays_when_a_second_tag_is_abandoned() {
    let fixture = DeclarationTest::new();
    let other = fixture.region.session().unwrap();
    drop(fixture.half_way(&other, &[unique()]));
    let refused = fixture.session.add_tags(fixture.ns, &[unique(), required()]).unwrap_err();
    assert!(matches!(refused, Error::BadArgument { .. }), "{refused}");
    assert_eq!(fixture.states(), [building("id")]);
    fixture.session.add_tags(fixture.ns, &[unique()]).unwrap();
    assert_eq!(fixture.states(), [ready("id")]);
    drop(other);
    fixture.end();
}

#[test]
fn a_contradicted_tag_is_removed_by_the_last_declaration_of_it() {
    let fixture = DeclarationTest::new();
    let doubled = fixture.contradict();
    let other = fixture.region.session().unwrap();
    let slow = fixture.half_way(&other, &[unique()]);
    let refused = fixture.session.add_tags(fixture.ns, &[unique()]).unwrap_err();
    assert!(matches!(refused, Error::TagTaken { .. }), "{refused}");
    assert_eq!(fixture.states(), [building("id")], "another declaration is in progress");
    let refused = finish(&other, slow).unwrap_err();
    assert!(matches!(refused, Error::TagTaken { .. }), "{refused}");
    assert_eq!(fixture.states(), [], "no declaration is in progress");
    fixture.put(&doubled, &doubled);
    fixture.session.add_tags(fixture.ns, &[unique()]).unwrap();
    drop(other);
    fixture.end();
}

/// The first declaration abandoned the tag, and the one that had joined had to start over.
#[test]
fn a_joined_declaration_completes_a_tag_that_the_first_one_found_contradicted() {
    let fixture = DeclarationTest::new();
    let doubled = fixture.contradict();
    let other = fixture.region.session().unwrap();
    let beginner = fixture.half_way(&fixture.session, &[unique()]);
    let joined = fixture.half_way(&other, &[unique()]);
    assert!(matches!(finish(&fixture.session, beginner), Err(Error::TagTaken { .. })));
    fixture.put(&doubled, &doubled);
    finish(&other, joined).unwrap();
    assert_eq!(fixture.states(), [ready("id")]);
    drop(other);
    fixture.end();
}

#[test]
fn a_contradicted_tag_that_was_left_unfinished_is_removed_by_a_repeated_declaration() {
    let fixture = DeclarationTest::new();
    let doubled = fixture.contradict();
    let other = fixture.region.session().unwrap();
    drop(fixture.half_way(&other, &[unique()]));
    let refused = fixture.session.add_tags(fixture.ns, &[unique()]).unwrap_err();
    assert!(matches!(refused, Error::TagTaken { .. }), "{refused}");
    assert_eq!(fixture.states(), [], "otherwise its name would stay taken");
    fixture.put(&doubled, &doubled);
    fixture.session.add_tags(fixture.ns, &[unique()]).unwrap();
    drop(other);
    fixture.end();
}

/// The tag that a beginner's partner has completed is no part of what the beginner gives up.
#[test]
fn a_tag_that_another_session_has_completed_stays() {
    let fixture = DeclarationTest::new();
    let other = fixture.region.session().unwrap();
    let wanted = [unique(), required()];
    let mut beginner =
        fixture.session.begin_tag_declaration(fixture.ns, &wanted, RetryPolicy::default()).unwrap();
    assert!(fixture.session.continue_tag_declaration(&mut beginner, 1).unwrap());
    other.add_tags(fixture.ns, &[unique()]).unwrap();
    assert!(finish(&fixture.session, beginner).is_err());
    assert_eq!(fixture.states(), [ready("id")]);
    drop(other);
    fixture.end();
}

/// All of its own is gone even though it was sent back in between, because another had completed
/// one of its tags.
#[test]
fn a_restarted_declaration_still_knows_which_tags_it_started() {
    let fixture = DeclarationTest::new();
    let other = fixture.region.session().unwrap();
    let more = TagSchema { name: "more".to_owned(), ..TagSchema::default() };
    let wanted = [unique(), more, required()];
    let mut beginner =
        fixture.session.begin_tag_declaration(fixture.ns, &wanted, RetryPolicy::default()).unwrap();
    assert!(fixture.session.continue_tag_declaration(&mut beginner, 1).unwrap());
    other.add_tags(fixture.ns, &[unique()]).unwrap();
    assert!(finish(&fixture.session, beginner).is_err());
    assert_eq!(fixture.states(), [ready("id")]);
    drop(other);
    fixture.end();
}

/// Where others are faster a part ends early, and the next one goes on with the rest.
#[test]
fn a_record_that_changes_all_the_time_is_still_indexed_in_small_parts() {
    let fixture = DeclarationTest::new();
    let values: Vec<Vec<u8>> = (0..64_u8).map(|value| vec![b'v', value]).collect();
    let tags: Vec<(&str, &[u8])> = values.iter().map(|value| ("many", value.as_slice())).collect();
    let open = |round: u32| fixture.session.namespace(&format!("hot{round}"), &Schema::default());
    let rounds: Vec<Namespace> = (0..20).map(|round| open(round).unwrap()).collect();
    let (round, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let put = |session: &Session, ns: Namespace| {
        let metadata = Metadata { tags: &tags, expires_ms: 0 };
        session.transact(|txn| txn.put_with_metadata(ns, b"hot", b"v", metadata)).unwrap();
    };
    for ns in &rounds {
        put(&fixture.session, *ns);
    }
    let declare = |ns: Namespace| {
        let version = || fixture.session.get(ns, b"hot").unwrap().unwrap().version();
        while version() < 10 {
            std::thread::yield_now(); // The layout is learnt by then.
        }
        let tag = TagSchema { name: "many".to_owned(), is_ordered: true, ..TagSchema::default() };
        let retry_policy = RetryPolicy { tries: u32::MAX, within: None };
        let declaring = fixture.session.begin_tag_declaration(ns, &[tag], retry_policy).unwrap();
        finish(&fixture.session, declaring).unwrap();
    };
    let writer = fixture.region.session().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let writer = writer;
            while !is_over.load(Ordering::Relaxed) {
                put(&writer, rounds[round.load(Ordering::Relaxed)]);
            }
        });
        for (number, ns) in rounds.iter().enumerate() {
            round.store(number, Ordering::Relaxed);
            declare(*ns);
        }
        is_over.store(true, Ordering::Relaxed);
    });
    for (ns, value) in rounds.iter().flat_map(|ns| values.iter().map(move |value| (*ns, value))) {
        let mut keys = Vec::new();
        let each = |view: &View<'_>| {
            keys.push(view.key().to_vec());
            true
        };
        fixture.session.find_all(ns, "many", Values::Equal(value), each).unwrap();
        assert_eq!(keys, [b"hot"]);
    }
    fixture.session.add_tags(fixture.ns, &[unique()]).unwrap();
    fixture.end();
}
