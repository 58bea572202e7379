//! A walk over all records of a table by SCAN.

use super::{Resp, commands, resp_table};
use crate::access::TableId;
use crate::targets::wire::Stream;
use nearstate_model::Result;

/// Keys of one call of SCAN.
const COUNT: &[u8] = b"10000";

impl<S: Stream> Resp<S> {
    /// Walks over all keys of a table once; returns their number.
    pub(super) fn walk_by_scan(&mut self, table: TableId) -> Result<u64> {
        let mut pattern = resp_table(&self.tables, table)?.prefix.clone();
        pattern.push(b'*');
        let (mut cursor, mut met) = (b"0".to_vec(), 0);
        loop {
            let words: [&[u8]; 6] = [b"SCAN", &cursor, b"MATCH", &pattern, b"COUNT", COUNT];
            commands::request(&mut self.wire.out, &words);
            self.send()?;
            // A list of two: the cursor, and the list of keys.
            self.wire.array()?;
            cursor = self.wire.bulk()?;
            let keys = self.wire.array()?;
            for _ in 0..keys {
                self.wire.skip()?;
                met += 1;
            }
            if cursor == b"0" {
                return Ok(met);
            }
        }
    }
}
