//! Scans.

use super::{CheckResult, ORDERED, TargetUnderTest, ensure, entry};
use crate::access::Connection;
use crate::access::ScanRange;
use nearstate_model::Result;

type Met = Vec<(Vec<u8>, Vec<u8>)>;

fn scanned(one: &mut Connection<'_>, from: &[u8], count: usize) -> Result<(usize, Met)> {
    let mut met = Met::new();
    let returned = one.scan(&ScanRange { table: ORDERED, from, count }, &mut |key, first| {
        met.push((key.to_vec(), first.to_vec()));
    })?;
    Ok((returned, met))
}

/// Records that are scanned.
const RECORDS: u16 = 300;

pub(super) fn scan(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut one = tested.connect()?;
    let (returned, met) = scanned(one.as_mut(), b"", 10)?;
    ensure!(returned == 0 && met.is_empty(), "of nothing: {met:?}")?;
    // 7 and 300 are coprime: each key occurs once, out of order.
    for step in 0..RECORDS {
        let number = step * 7 % RECORDS;
        let key = [b"o".as_slice(), &number.to_be_bytes()].concat();
        one.put(ORDERED, &entry(&key, &[(0, &number.to_be_bytes()), (1, b"second")]))?;
        if number.is_multiple_of(3) {
            one.put(ORDERED, &entry(&key, &[(0, &number.to_be_bytes()), (1, b"again")]))?;
        }
    }
    for gone in (0..RECORDS).filter(|number| number % 10 == 0) {
        let key = [b"o".as_slice(), &gone.to_be_bytes()].concat();
        ensure!(one.delete(ORDERED, &key, &[])?, "{gone} is there")?;
    }
    let left: Met = (0..RECORDS)
        .filter(|number| number % 10 != 0)
        .map(|n| ([b"o".as_slice(), &n.to_be_bytes()].concat(), n.to_be_bytes().to_vec()))
        .collect();
    for (from, count) in [(0_u16, 1), (0, 100), (100, 50), (255, 20), (280, 100), (0, 1000)] {
        let key = [b"o".as_slice(), &from.to_be_bytes()].concat();
        let (returned, met) = scanned(one.as_mut(), &key, count)?;
        let wanted: Met = left.iter().filter(|(k, _)| *k >= key).take(count).cloned().collect();
        ensure!(
            returned == met.len() && met == wanted,
            "{count} from {from}: {returned} scanned, {} received: {met:?}",
            met.len()
        )?;
    }
    let (_, met) = scanned(one.as_mut(), b"", 3)?;
    ensure!(met.as_slice() == left.get(..3).unwrap_or_default(), "from nothing: {met:?}")?;
    let (returned, _) = scanned(one.as_mut(), b"p", 3)?;
    ensure!(returned == 0, "behind the last")
}
