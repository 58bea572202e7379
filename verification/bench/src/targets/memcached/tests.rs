//! Properties that need no server.

use super::*;
use crate::access::TableId;

const TABLE: TableSchema = TableSchema::new("t", &["value"]);
const IN_PARTS: TableSchema = TableSchema { parts: &["a", "b"], ..TABLE };

#[test]
fn steps_overlap_only_if_every_change_can_be_sent_ahead() {
    for (tables, expected) in [(&[TABLE][..], true), (&[TABLE, IN_PARTS], false)] {
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let wire = Wire::new(TimeoutSocket::Unix(ours));
        let (schema, value, ahead) = (StoreSchema { tables }, Vec::new(), SentAhead::default());
        let mut connection = Memcached { wire, schema, value, ahead };
        assert_eq!(connection.sends_ahead(), expected);
        // If steps overlap, every request is sent.
        let parts: &[(usize, &[u8])] = &[(0, b"x")];
        for table in 0..tables.len() {
            let change = PartsChange { key: b"k", parts, tags: None };
            let request = Request::Change { table: TableId(table), change };
            connection.send_ahead(&[request]).unwrap();
        }
        assert_eq!(connection.ahead.may_send(), expected);
    }
}

fn key(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_key(&TABLE, bytes, &mut out).unwrap();
    out
}

#[test]
fn every_key_is_printable_and_no_two_are_the_same() {
    assert_eq!(key(b"262011"), b"t:262011");
    assert_eq!(key(b"a b"), b"t#612062");
    assert_eq!(key(b""), b"t#");
    assert_eq!(key(b"#612062"), b"t:#612062");
    assert_eq!(key(&[0, 255]), b"t#00ff");
    let mut out = b"kept".to_vec();
    assert!(write_key(&TABLE, &[b'x'; 249], &mut out).is_err());
    assert!(write_key(&TABLE, &[0; 125], &mut out).is_err());
    assert_eq!(out, b"kept");
    assert!(write_key(&TABLE, &[b'x'; 248], &mut out).is_ok());
}
