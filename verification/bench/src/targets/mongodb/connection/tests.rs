//! The client against a server within the test, which may answer whatever it likes.

use super::double::{Double, Mischief, message};
use super::*;
use crate::access::{TableSchema, TagRule};
use bson::{Document, doc};

static TABLES: [TableSchema; 3] = [
    TableSchema { name: "plain", parts: &["value"], tags: &[], is_scanned: true },
    TableSchema {
        name: "tagged",
        parts: &["one", "two"],
        tags: &[
            TagRule { name: "id", is_unique: true },
            TagRule { name: "alias", is_unique: true },
            TagRule { name: "group", is_unique: false },
        ],
        is_scanned: false,
    },
    TableSchema { name: "blocks", parts: &["a", "b", "c"], tags: &[], is_scanned: false },
];
const PLAIN: Table = Table(0);
const TAGGED: Table = Table(1);
const BLOCKS: Table = Table(2);

/// The number of the first message behind `hello`, `buildInfo` and four that make the tables.
const NEXT: i32 = 7;

fn over(double: Double, is_ferretdb: bool) -> Mongo<Double> {
    let mut mongo = Mongo::new(double, &Schema { tables: &TABLES }, is_ferretdb).unwrap();
    mongo.create().unwrap();
    assert_eq!(mongo.asked, NEXT - 1);
    mongo
}

fn connected() -> Mongo<Double> {
    over(Double::new(false), false)
}

fn entry<'a>(key: &'a [u8], parts: &'a [(usize, &'a [u8])], tags: &'a [Tag<'a>]) -> Entry<'a> {
    Entry { key, parts, tags, tags_before: &[] }
}

fn read(mongo: &mut Mongo<Double>, table: Table, key: &[u8], wanted: Parts) -> Option<Heard> {
    let mut heard = Heard::new();
    let is_there =
        mongo.read(table, key, wanted, &mut |part, bytes| heard.push((part, bytes.to_vec())));
    is_there.unwrap().then_some(heard)
}

type Heard = Vec<(usize, Vec<u8>)>;

#[test]
fn records_are_put_read_changed_and_deleted_in_whatever_pieces_the_answers_come() {
    for step in [1, 7, 4096] {
        let mut mongo = over(Double::new(false).stepping(step), false);
        assert_eq!(read(&mut mongo, BLOCKS, b"k", Parts::ALL), None);
        mongo.put(BLOCKS, &entry(b"k", &[(0, b"A"), (1, b""), (2, b"\0\xff")], &[])).unwrap();
        let parts = [(0, b"A".to_vec()), (1, vec![]), (2, vec![0, 255])];
        assert_eq!(read(&mut mongo, BLOCKS, b"k", Parts::ALL).unwrap(), parts);
        assert_eq!(read(&mut mongo, BLOCKS, b"k", Parts::one(2)).unwrap(), parts[2..]);
        assert_eq!(read(&mut mongo, BLOCKS, b"k", Parts(0)).unwrap(), []);
        let change = |key, parts| Change { key, parts, tags: None };
        assert!(mongo.change(BLOCKS, &change(b"k", &[(1, b"B")])).unwrap());
        assert!(mongo.change(BLOCKS, &change(b"k", &[])).unwrap());
        assert!(!mongo.change(BLOCKS, &change(b"none", &[(1, b"B")])).unwrap());
        assert!(!mongo.change(BLOCKS, &change(b"none", &[])).unwrap());
        let parts = [(0, b"A".to_vec()), (1, b"B".to_vec()), (2, vec![0, 255])];
        assert_eq!(read(&mut mongo, BLOCKS, b"k", Parts::ALL).unwrap(), parts);
        assert!(mongo.delete(BLOCKS, b"k", &[]).unwrap());
        assert!(!mongo.delete(BLOCKS, b"k", &[]).unwrap());
        assert_eq!(read(&mut mongo, BLOCKS, b"k", Parts::ALL), None);
    }
}

#[test]
fn a_tag_leads_to_its_record_and_one_that_is_taken_is_refused_with_its_holder() {
    for is_ferretdb in [false, true] {
        let mut mongo = over(Double::new(is_ferretdb), is_ferretdb);
        let parts: [(usize, &[u8]); 2] = [(0, b"1"), (1, b"2")];
        mongo.put(TAGGED, &entry(b"a", &parts, &[(0, b"A"), (1, b"x\r\n\0")])).unwrap();
        // Neither has an alias: that is no value which both have.
        mongo.put(TAGGED, &entry(b"b", &parts, &[(0, b"B"), (2, b"g")])).unwrap();
        mongo.put(TAGGED, &entry(b"c", &parts, &[(0, b"C"), (2, b"g")])).unwrap();
        let (mut key, mut heard) = (b"left over".to_vec(), Heard::new());
        let mut hear = |part, bytes: &[u8]| heard.push((part, bytes.to_vec()));
        assert!(mongo.find(TAGGED, (1, b"x\r\n\0"), Parts::one(1), &mut key, &mut hear).unwrap());
        assert_eq!((key.as_slice(), heard), (&b"a"[..], vec![(1, b"2".to_vec())]));
        let taken =
            Error::TagTaken { tag: "alias".into(), value: "x\r\n\0".into(), holder: "a".into() };
        let refused = mongo.put(TAGGED, &entry(b"d", &parts, &[(0, b"D"), (1, b"x\r\n\0")]));
        assert_eq!(refused, Err(taken));
        let tags: (&[Tag<'_>], &[Tag<'_>]) = (&[(0, b"B"), (2, b"g")], &[(0, b"A")]);
        let refused = mongo.change(TAGGED, &Change { key: b"b", parts: &[], tags: Some(tags) });
        assert!(matches!(&refused, Err(Error::TagTaken { tag, .. }) if tag == "id"), "{refused:?}");
        let tags: (&[Tag<'_>], &[Tag<'_>]) = (&[(0, b"B"), (2, b"g")], &[(0, b"new")]);
        assert!(mongo.change(TAGGED, &Change { key: b"b", parts: &[], tags: Some(tags) }).unwrap());
        let none = &mut |_: usize, _: &[u8]| {};
        assert!(!mongo.find(TAGGED, (0, b"B"), Parts::ALL, &mut key, none).unwrap());
        assert!(mongo.find(TAGGED, (0, b"new"), Parts::ALL, &mut key, none).unwrap());
        let refused = mongo.find(TAGGED, (2, b"g"), Parts::ALL, &mut key, none);
        assert!(matches!(refused, Err(Error::BadArgument { .. })), "{refused:?}");
    }
}

#[test]
fn a_scan_goes_on_where_a_batch_ends_and_leaves_no_cursor() {
    let double = Double::new(false).in_batches_of(3);
    let mut mongo = over(double, false);
    for key in (0..10_u8).rev() {
        mongo.put(PLAIN, &entry(&[key], &[(0, &[key, key])], &[])).unwrap();
    }
    for (from, count) in [(0_u8, 10), (0, 3), (0, 4), (4, 100), (9, 2), (10, 5), (0, 0)] {
        let mut met: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        let hear = &mut |key: &[u8], bytes: &[u8]| met.push((key.to_vec(), bytes.to_vec()));
        let told = mongo.scan(PLAIN, &[from], count, hear).unwrap();
        let wanted: Vec<_> =
            (from..10).take(count).map(|key| (vec![key], vec![key, key])).collect();
        assert_eq!((told, met), (wanted.len(), wanted), "{count} from {from}");
    }
}

fn puts<'a>(keys: &'a [[u8; 2]], parts: &'a [(usize, &'a [u8])]) -> Vec<Request<'a>> {
    let put = |key: &'a [u8; 2]| Request::Put { table: PLAIN, entry: entry(key, parts, &[]) };
    keys.iter().map(put).collect()
}

#[test]
fn requests_travel_together_and_are_answered_in_their_order() {
    let double = Double::new(false);
    let (told, mut mongo) = (double.told(), over(double, false));
    let keys: Vec<[u8; 2]> = (0..600_u16).map(u16::to_be_bytes).collect();
    let parts: [(usize, &[u8]); 1] = [(0, b"v")];
    let mut heard = Vec::new();
    mongo
        .pipeline(&puts(&keys, &parts), &mut |at, reply| {
            heard.push((at, reply == Reply::Done(true)));
        })
        .unwrap();
    assert_eq!(heard, (0..600).map(|at| (at, true)).collect::<Vec<_>>());
    assert_eq!(told.borrow().together, TOGETHER);
    let requests = [
        Request::Read { table: PLAIN, key: &keys[7], wanted: Parts::ALL },
        Request::Delete { table: PLAIN, key: b"none", tags: &[] },
        Request::Change {
            table: PLAIN,
            change: Change { key: &keys[8], parts: &parts, tags: None },
        },
        Request::Change { table: PLAIN, change: Change { key: b"none", parts: &[], tags: None } },
    ];
    let mut heard = Vec::new();
    mongo.pipeline(&requests, &mut |at, reply| heard.push(format!("{at} {reply:?}"))).unwrap();
    let wanted =
        ["0 Part(0, [118])", "0 Done(true)", "1 Done(false)", "2 Done(true)", "3 Done(false)"];
    assert_eq!(heard, wanted);
}

#[test]
fn one_of_many_that_is_refused_does_not_put_the_others_out_of_step() {
    let mut mongo = connected();
    let parts: [(usize, &[u8]); 2] = [(0, b"1"), (1, b"2")];
    let put = |key, tags| Request::Put { table: TAGGED, entry: entry(key, &parts, tags) };
    let requests = [put(b"a", &[(0, b"A")]), put(b"b", &[(0, b"A")]), put(b"c", &[(0, b"C")])];
    let mut heard = Vec::new();
    let refused = mongo.pipeline(&requests, &mut |at, _| heard.push(at));
    assert!(
        matches!(&refused, Err(Error::TagTaken { holder, .. }) if holder == "a"),
        "{refused:?}"
    );
    assert_eq!(heard, [0, 2]);
    assert!(read(&mut mongo, TAGGED, b"c", Parts(0)).is_some());
    // Before anything is sent: nothing of it is done, and the next answer is the next one's.
    let large = vec![0; messages::DOCUMENT_BYTES_MAX + 1];
    let too_large: [(usize, &[u8]); 1] = [(0, &large)];
    let both = [put(b"d", &[]), Request::Put { table: PLAIN, entry: entry(b"d", &too_large, &[]) }];
    let refused = mongo.pipeline(&both, &mut |_, _| {});
    assert!(matches!(refused, Err(Error::BadArgument { .. })), "{refused:?}");
    assert!(read(&mut mongo, TAGGED, b"d", Parts(0)).is_none());
}

#[test]
fn ferretdb_is_never_taken_for_mongodb_nor_the_other_way_round() {
    let schema = Schema { tables: &TABLES };
    for (is_ferretdb, wanted) in [(false, true), (true, false)] {
        let double = Double::new(is_ferretdb);
        let error = Mongo::new(double, &schema, wanted).map(drop).unwrap_err().to_string();
        assert!(error.contains("FerretDB"), "{error}");
    }
    let mut mongo = connected();
    assert_eq!(mongo.process(), Ok(4242));
}

/// What a read says of a server with this mischief in its answer to it, and that the connection is
/// given up then.
fn read_with(mischief: Mischief) -> String {
    let mut mongo = over(Double::new(false).with(mischief, NEXT), false);
    let error = mongo.read(BLOCKS, b"k", Parts::ALL, &mut |_, _| {}).unwrap_err();
    assert!(matches!(error, Error::Backend { .. }), "{error:?}");
    let again = mongo.read(BLOCKS, b"k", Parts::ALL, &mut |_, _| {}).unwrap_err().to_string();
    assert!(again.contains("connect again"), "{again}");
    // A server that says something strange is there.
    assert_eq!(mongo.is_lost(), error.to_string().contains("closed the connection"), "{error}");
    error.to_string()
}

fn bytes_instead(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let good = doc! { "cursor": { "firstBatch": [], "id": 0_i64 }, "ok": 1.0 };
    let mut bytes = message(NEXT, &good);
    change(&mut bytes);
    read_with(Mischief::Bytes(bytes))
}

fn set(bytes: &mut [u8], at: usize, word: i32) {
    bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
}

#[test]
fn an_answer_that_is_no_message_is_an_error() {
    assert!(bytes_instead(|bytes| bytes.truncate(10)).contains("closed the connection"));
    assert!(bytes_instead(|bytes| bytes.truncate(40)).contains("closed the connection"));
    assert!(
        bytes_instead(|bytes| *bytes = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())
            .contains("no OP_MSG")
    );
    for length in [0, 25, -1, i32::MIN, i32::MAX, 48_000_001] {
        assert!(bytes_instead(|bytes| set(bytes, 0, length)).contains("length"), "{length}");
    }
    // The longest there is: bytes are waited for, not taken for granted.
    assert!(bytes_instead(|bytes| set(bytes, 0, 48_000_000)).contains("closed the connection"));
    for flags in [1, 2, 0x8000] {
        assert!(bytes_instead(|bytes| set(bytes, 16, flags)).contains("flags"), "{flags}");
    }
    assert!(bytes_instead(|bytes| bytes[20] = 1).contains("begin with a document"));
    for answered in [0, NEXT - 1, NEXT + 1] {
        assert!(bytes_instead(|bytes| set(bytes, 8, answered)).contains("another message"));
    }
}

#[test]
fn answers_out_of_order_are_an_error() {
    let mut mongo = over(Double::new(false).with(Mischief::Swap, NEXT), false);
    let reads = [b"a", b"b"].map(|key| Request::Read { table: PLAIN, key, wanted: Parts::ALL });
    let error = mongo.pipeline(&reads, &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("another message"), "{error}");
}

/// Every byte of a good answer's document, wrong in several ways: an answer or an error, and never
/// a panic or a part that was not sent.
#[test]
fn a_document_that_contradicts_itself_is_no_record() {
    let record = doc! { "_id": "k", "p0": bson::Binary {
        subtype: bson::spec::BinarySubtype::Generic, bytes: b"value".to_vec(),
    } };
    let good = doc! { "cursor": { "firstBatch": [record], "id": 0_i64 }, "ok": 1.0 };
    let bytes = message(NEXT, &good);
    let mut errors = 0;
    for at in 21..bytes.len() {
        for wrong in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bytes = bytes.clone();
            bytes[at] = wrong;
            let mischief = Mischief::Bytes(bytes);
            let mut mongo = over(Double::new(false).with(mischief, NEXT), false);
            let outcome = mongo.read(PLAIN, b"k", Parts::ALL, &mut |part, bytes| {
                assert!(part == 0 && bytes.len() < 100);
            });
            errors += usize::from(outcome.is_err());
        }
    }
    assert!(errors > bytes.len(), "only {errors} were noticed");
}

#[test]
fn what_no_server_answers_is_an_error() {
    let say = |document: Document| read_with(Mischief::Say(document));
    assert!(say(doc! {}).contains("whether it is done"));
    assert!(say(doc! { "ok": "yes" }).contains("whether it is done"));
    assert!(say(doc! { "ok": 1 }).contains("without a cursor"));
    assert!(say(doc! { "cursor": { "id": 0_i64 }, "ok": 1.0 }).contains("without its records"));
    let records = |records: Vec<Document>| {
        say(doc! { "cursor": { "firstBatch": records, "id": 0_i64 }, "ok": 1.0 })
    };
    assert!(records(vec![doc! {}, doc! {}]).contains("several records"));
    assert!(records(vec![doc! { "p0": "a text" }]).contains("none of ours"));
    let refused = say(doc! { "ok": 0.0, "code": 13, "errmsg": "not authorized" });
    assert!(refused.contains("not authorized") && refused.contains("13"), "{refused}");
    assert!(say(doc! { "ok": 0.0, "code": 11000, "errmsg": "E11000" }).contains("none can be"));
}

fn put_with(document: Document) -> Error {
    let mut mongo = over(Double::new(false).with(Mischief::Say(document), NEXT), false);
    mongo.put(PLAIN, &entry(b"k", &[(0, b"v")], &[])).unwrap_err()
}

#[test]
fn a_write_that_is_refused_within_a_good_answer_is_refused() {
    let error = doc! { "index": 0, "code": 121, "errmsg": "Document failed validation" };
    for answer in [
        doc! { "n": 0, "writeErrors": [error.clone()], "ok": 1.0 },
        doc! { "n": 1, "writeConcernError": error, "ok": 1.0 },
    ] {
        let said = put_with(answer).to_string();
        assert!(said.contains("failed validation") && said.contains("121"), "{said}");
    }
    for answer in [
        doc! { "ok": 1.0 },
        doc! { "n": 0, "ok": 1.0 },
        doc! { "n": 2, "ok": 1.0 },
        doc! { "n": 1, "writeErrors": [], "ok": 1.0 },
        doc! { "n": 1, "writeErrors": "none", "ok": 1.0 },
        doc! { "n": 1, "writeConcernError": 7, "ok": 1.0 },
    ] {
        let error = put_with(answer.clone());
        assert!(matches!(error, Error::Backend { .. }), "{answer}: {error:?}");
    }
}

/// Two connections put the same new record: the index of keys refuses one, and it tries again.
#[test]
fn a_put_that_meets_another_put_of_the_same_record_is_tried_again() {
    let refused = doc! { "n": 0, "ok": 1.0, "writeErrors": [{ "code": 11000, "errmsg": "_id_" }] };
    let double = Double::new(false).with(Mischief::Say(refused), NEXT);
    let told = double.told();
    over(double, false).put(PLAIN, &entry(b"k", &[(0, b"v")], &[])).unwrap();
    assert_eq!(told.borrow().heard[NEXT as usize - 1..], ["update", "update"]);
}

#[test]
fn a_scan_that_never_ends_or_gives_more_than_was_asked_for_is_an_error() {
    let cursor = |name: &str, records: Vec<Document>| {
        doc! { "cursor": { name: records, "id": 5_i64 }, "ok": 1.0 }
    };
    let one = || doc! { "_id": "k" };
    for (answer, wanted) in [
        (cursor("firstBatch", vec![one(), one(), one()]), "more records"),
        (cursor("nextBatch", vec![one()]), "without its records"),
        (cursor("firstBatch", vec![doc! { "_id": 7 }]), "none of ours"),
    ] {
        let mut mongo = over(Double::new(false).with(Mischief::Say(answer), NEXT), false);
        let error = mongo.scan(PLAIN, b"", 2, &mut |_, _| {}).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    let empty = Mischief::Say(cursor("nextBatch", vec![]));
    let double = Double::new(false).with(empty, NEXT + 11);
    let mut mongo = over(double.in_batches_of(2), false);
    for key in 0..10_u8 {
        mongo.put(PLAIN, &entry(&[key], &[(0, b"v")], &[])).unwrap();
    }
    let error = mongo.scan(PLAIN, b"", 9, &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("nothing, and more to come"), "{error}");
}

#[test]
fn a_cursor_that_a_server_keeps_is_ended() {
    let records = [doc! { "_id": "a" }, doc! { "_id": "b" }];
    let answer = doc! { "cursor": { "firstBatch": records, "id": 5_i64 }, "ok": 1.0 };
    let double = Double::new(false).with(Mischief::Say(answer), NEXT);
    let (told, mut mongo) = (double.told(), over(double, false));
    assert_eq!(mongo.scan(PLAIN, b"", 2, &mut |_, _| {}), Ok(2));
    assert_eq!(told.borrow().heard[NEXT as usize - 1..], ["find", "killCursors"]);
}

#[test]
fn transactions_are_declined() {
    let refused = connected().transact(&mut |_| Ok(()));
    assert!(matches!(refused, Err(Error::BadArgument { .. })), "{refused:?}");
}
