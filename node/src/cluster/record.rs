//! What a host remembers of its copy beside the region: the member's record, and in which views the
//! logs began that the region has followed and written. The file lies beside the region's file, on
//! the same file system, so it survives every process and is lost with the region.
//!
//! A log is known by its identity. The view of a log that is about to be followed or written is
//! stored before (`next`), so that a kill in between loses nothing.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nearstate_cluster::{MemberRecord, ViewNumber};
use nearstate_model::{Error, Result};
use nearstate_store::LogIdentity;
use xxhash_rust::xxh3::xxh3_64;

/// Numbers of the file, and their check value.
const NUMBERS: usize = 12;
const FILE_BYTES: usize = (NUMBERS + 1) * 8;

/// A log and the view in which it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KnownLog {
    pub(super) log: LogIdentity,
    pub(super) origin: ViewNumber,
}

/// The file.
#[derive(Debug)]
pub(super) struct CopyRecord {
    path: PathBuf,
    /// The region to which the file belongs.
    region: [u64; 2],
    member: MemberRecord,
    known: Option<KnownLog>,
    next: ViewNumber,
}

impl CopyRecord {
    /// Reads the file beside a region's file. A file of another region, or one that is not valid,
    /// is as good as none.
    ///
    /// # Errors
    /// `System`: the file cannot be read.
    pub(super) fn open(region_file: &Path, region: [u64; 2]) -> Result<Self> {
        let mut name = region_file.as_os_str().to_owned();
        name.push(".member");
        let path = PathBuf::from(name);
        let new =
            Self { path, region, member: MemberRecord::NEW, known: None, next: ViewNumber::NONE };
        match fs::read(&new.path) {
            Ok(bytes) => Ok(new.decoded(&bytes).unwrap_or(new)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(new),
            Err(error) => Err(failed(&new.path, &error)),
        }
    }

    fn decoded(&self, bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FILE_BYTES] = bytes.try_into().ok()?;
        let (numbers, check) = bytes.split_last_chunk::<8>()?;
        if xxh3_64(numbers).to_le_bytes() != *check {
            return None;
        }
        let mut words = numbers.chunks_exact(8).map(|word| {
            let mut number = [0; 8];
            number.copy_from_slice(word);
            u64::from_le_bytes(number)
        });
        let mut next = || words.next();
        let region = [next()?, next()?];
        let member = MemberRecord::from_words([next()?, next()?]);
        let upcoming = ViewNumber(next()?);
        let is_known = next()? != 0;
        let log = LogIdentity { region: [next()?, next()?], incarnation: next()? };
        let known = KnownLog { log, origin: ViewNumber(next()?) };
        (region == self.region).then(|| Self {
            path: self.path.clone(),
            region,
            member,
            known: is_known.then_some(known),
            next: upcoming,
        })
    }

    fn encoded(&self) -> Vec<u8> {
        let [view, acted] = self.member.to_words();
        let none = LogIdentity { region: [0; 2], incarnation: 0 };
        let known = self.known.unwrap_or(KnownLog { log: none, origin: ViewNumber::NONE });
        let numbers: [u64; NUMBERS] = [
            self.region[0],
            self.region[1],
            view,
            acted,
            self.next.0,
            self.known.is_some().into(),
            known.log.region[0],
            known.log.region[1],
            known.log.incarnation,
            known.origin.0,
            0,
            0,
        ];
        let mut bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        bytes.extend(xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// A kill leaves the old file or the new one. A crash of the host loses the region as well.
    fn write(&self) -> Result<()> {
        let mut name = self.path.as_os_str().to_owned();
        name.push(".new");
        let new = PathBuf::from(name);
        let written = fs::write(&new, self.encoded()).and_then(|()| fs::rename(&new, &self.path));
        written.map_err(|error| failed(&self.path, &error))
    }

    pub(super) fn member(&self) -> MemberRecord {
        self.member
    }

    pub(super) fn set_member(&mut self, member: MemberRecord) -> Result<()> {
        if member != self.member {
            self.member = member;
            self.write()?;
        }
        Ok(())
    }

    /// The next log that is seen begins in this view.
    pub(super) fn expect(&mut self, origin: ViewNumber) -> Result<()> {
        if self.next != origin {
            self.next = origin;
            self.write()?;
        }
        Ok(())
    }

    /// The view in which a log began. An unknown one is the one that was expected. `None`: none was.
    pub(super) fn origin_of(&mut self, log: LogIdentity) -> Result<Option<ViewNumber>> {
        if let Some(known) = self.known.filter(|known| known.log == log) {
            return Ok(Some(known.origin));
        }
        if self.next == ViewNumber::NONE {
            return Ok(None);
        }
        let origin = std::mem::replace(&mut self.next, ViewNumber::NONE);
        self.known = Some(KnownLog { log, origin });
        self.write()?;
        Ok(Some(origin))
    }

    /// True if this log is known.
    pub(super) fn knows(&self, log: LogIdentity) -> bool {
        self.known.is_some_and(|known| known.log == log)
    }
}

fn failed(path: &Path, error: &io::Error) -> Error {
    let detail =
        format!("cannot use {} ({error}): check the directory of the region", path.display());
    Error::System { detail, errno: error.raw_os_error().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use nearstate_cluster::{HostId, Revision};

    use super::*;

    const LOG: LogIdentity = LogIdentity { region: [5, 6], incarnation: 7 };

    fn member() -> MemberRecord {
        MemberRecord { view: ViewNumber(9), revision: Revision(4), evicting: Some(HostId(3)) }
    }

    #[test]
    fn what_is_stored_is_read_again_for_the_same_region_only() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("region");
        let mut record = CopyRecord::open(&path, [1, 2]).unwrap();
        record.set_member(member()).unwrap();
        record.expect(ViewNumber(9)).unwrap();
        let mut again = CopyRecord::open(&path, [1, 2]).unwrap();
        assert_eq!(again.member(), member());
        assert_eq!(again.origin_of(LOG).unwrap(), Some(ViewNumber(9)));
        let mut third = CopyRecord::open(&path, [1, 2]).unwrap();
        assert_eq!(third.origin_of(LOG).unwrap(), Some(ViewNumber(9)));
        let other = LogIdentity { incarnation: 8, ..LOG };
        assert_eq!(third.origin_of(other).unwrap(), None, "it was not expected");
        assert_eq!(CopyRecord::open(&path, [1, 3]).unwrap().member(), MemberRecord::NEW);
    }

    #[test]
    fn a_flipped_bit_makes_it_a_new_one() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("region");
        CopyRecord::open(&path, [1, 2]).unwrap().set_member(member()).unwrap();
        let file = place.path().join("region.member");
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 16;
            fs::write(&file, bytes).unwrap();
            assert_eq!(CopyRecord::open(&path, [1, 2]).unwrap().member(), MemberRecord::NEW);
        }
    }
}
