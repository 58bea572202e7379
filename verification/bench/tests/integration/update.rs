//! A change of a region's record is retried if another client was faster.

use nearstate_bench::access::{
    Connection, PartSet, PartsChange, RecordEntry, RecordRead, RecordWrite, StoreSchema, TableId,
    TableSchema, Work,
};
use nearstate_bench::targets::{self, DatabaseSpec};
use nearstate_model::Result;

static TABLES: [TableSchema; 2] =
    [TableSchema::new("plain", &["value"]), TableSchema::new("blocks", &["a", "b"])];

/// Adds a byte to part 0; before its first change another connection changes both parts.
struct Beaten<'c> {
    other: Option<&'c mut Connection<'c>>,
    theirs: &'c [(usize, &'c [u8])],
    table: TableId,
    heard: Vec<u8>,
    tries: u32,
}

impl Work for Beaten<'_> {
    fn receive(&mut self, part: usize, bytes: &[u8]) {
        assert_eq!(part, 0, "what is not wanted is not handed over");
        self.heard = bytes.to_vec();
    }

    fn change(&mut self, write: &mut RecordWrite<'_>) -> Result<()> {
        self.tries += 1;
        if let Some(other) = self.other.take() {
            let change = PartsChange { key: b"k", parts: self.theirs, tags: None };
            assert!(other.change(self.table, &change)?);
        }
        self.heard.push(b'+');
        write(&PartsChange { key: b"k", parts: &[(0, &self.heard)], tags: None })
    }
}

#[test]
fn a_client_that_lost_a_race_reads_again() {
    let dir = tempfile::tempdir().unwrap();
    let schema = StoreSchema { tables: &TABLES };
    let target = targets::named("region").unwrap();
    let spec = DatabaseSpec {
        schema,
        records: 100,
        record_bytes: 100,
        clients: 2,
        folder: dir.path().to_owned(),
        ..DatabaseSpec::default()
    };
    let database = target.start(&spec).unwrap();
    let connect = || target.connect(&database.address(), &schema).unwrap();
    let (mut one, mut other) = (connect(), connect());
    for (place, expected) in [(0, &["theirs+"][..]), (1, &["theirs+", "B"])] {
        let table = TableId(place);
        let first: &[(usize, &[u8])] = &[(0, b"a"), (1, b"b")];
        let parts = &first[..expected.len()];
        let entry = RecordEntry::new(b"k", parts);
        one.put(table, &entry).unwrap();
        let (heard, tries) = (Vec::new(), 0);
        let theirs: &[(usize, &[u8])] = &[(0, b"theirs"), (1, b"B")];
        let theirs = &theirs[..expected.len()];
        let mut work = Beaten { other: Some(other.as_mut()), theirs, table, heard, tries };
        assert!(
            one.update(RecordRead { table, key: b"k", wanted: PartSet::one(0) }, &mut work)
                .unwrap()
        );
        assert_eq!(work.tries, 2);
        let mut found = Vec::new();
        let mut receive = |_, bytes: &[u8]| found.push(String::from_utf8(bytes.to_vec()).unwrap());
        assert!(one.read(table, b"k", PartSet::ALL, &mut receive).unwrap());
        assert_eq!(found, expected);
    }
}
