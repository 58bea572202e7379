//! Content that describes itself. A reader can derive from a value its writer, its key, its
//! sequence number and its length, and can verify every byte.

use crate::rng::mix;

/// A group of records with one purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum KeySpace {
    /// Values of one writer, exactly accounted for.
    Own = 0,
    /// Records of named blocks of one writer.
    Blocks = 1,
    /// Many small records of one writer, in a growing namespace.
    Grow = 2,
    /// Values that all writers write.
    Hot = 3,
    /// Counters that all writers increment.
    Count = 4,
    /// Values of one writer, written in pairs, each pair in one transaction.
    Pair = 5,
}

impl KeySpace {
    pub const ALL: [Self; 6] =
        [Self::Own, Self::Blocks, Self::Grow, Self::Hot, Self::Count, Self::Pair];

    /// The space of a number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|space| *space as u8 == number)
    }
}

/// A record: a space, the writer that owns the key (0 in shared spaces), and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TortureKey {
    pub space: KeySpace,
    /// The owner.
    pub writer: u16,
    pub number: u32,
}

const LETTERS: [&str; 6] = ["own", "blocks", "grow", "hot", "count", "pair"];

/// Keys of the growing namespace with greater numbers have records that expire.
pub(crate) const EXPIRING: u32 = 1 << 20;

impl TortureKey {
    /// True if each record of this key expires soon after it was written.
    pub fn expires(self) -> bool {
        self.space == KeySpace::Grow && self.number >= EXPIRING
    }

    /// The key's bytes: 12 to 220, depending on the number.
    pub fn bytes(self) -> Vec<u8> {
        let name = LETTERS.get(self.space as usize).copied().unwrap_or_default();
        let mut text = format!("{name}-{}-{:06}-", self.writer, self.number).into_bytes();
        if self.number % 16 == 7 {
            text.resize(text.len() + 12 * (self.number as usize / 16 % 16), b'x');
        }
        text
    }

    /// The key of these bytes.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut parts = text.split('-');
        let name = parts.next()?;
        let space = KeySpace::ALL.into_iter().find(|s| LETTERS.get(*s as usize) == Some(&name))?;
        let key = Self {
            space,
            writer: parts.next()?.parse().ok()?,
            number: parts.next()?.parse().ok()?,
        };
        (key.bytes() == bytes).then_some(key)
    }
}

/// One write of one value or block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentStamp {
    /// The record.
    pub key: TortureKey,
    /// The block of the record; 0 in values.
    pub block: u8,
    pub writer: u16,
    /// The writer's sequence number.
    pub seq: u64,
    /// Bytes of content.
    pub len: u32,
}

const HEADER: usize = 40;
const MAGIC: u64 = 0x746f_7274_7572_6531;

impl ContentStamp {
    fn head(&self) -> [u64; 5] {
        [MAGIC, self.location(), u64::from(self.writer), self.seq, u64::from(self.len)]
    }

    /// Space, block, owner and number in one word.
    fn location(&self) -> u64 {
        (self.key.space as u64) << 56
            | u64::from(self.block) << 48
            | u64::from(self.key.writer) << 32
            | u64::from(self.key.number)
    }

    /// Writes the content. Content that is shorter than its header only identifies the location,
    /// the length and eight bits of the sequence number.
    pub fn fill(&self, out: &mut Vec<u8>) {
        out.clear();
        let len = self.len as usize;
        if len < HEADER {
            let first = self.short_mark();
            out.extend(short_bytes(self.location(), len, first));
            return;
        }
        // Whole words in place: the tests write gigabytes of content.
        out.resize(len, 0);
        let (head, rest) = out.split_at_mut(HEADER);
        for (word, place) in self.head().into_iter().zip(head.as_chunks_mut().0) {
            *place = word.to_le_bytes();
        }
        let (words, end) = rest.as_chunks_mut();
        let mut word = self.seed();
        for place in words {
            word = next(word);
            *place = word.to_le_bytes();
        }
        for (place, byte) in end.iter_mut().zip(next(word).to_le_bytes()) {
            *place = byte;
        }
    }

    fn seed(&self) -> u64 {
        self.head().iter().fold(0, |seed, word| mix(seed ^ word))
    }

    fn short_mark(&self) -> u8 {
        let [first, ..] = mix(self.seq ^ u64::from(self.writer) << 48).to_le_bytes();
        first
    }

    /// Distinguishes this content from others of the same location. Never 0, which means no
    /// content.
    pub fn fingerprint(&self) -> u64 {
        if (self.len as usize) < HEADER {
            let mark = if self.len == 0 { 0 } else { self.short_mark() };
            return short_fingerprint(self.len as usize, mark);
        }
        self.seed() | 1
    }
}

/// The word after a word of a content: a linear congruential generator with the constants of
/// Knuth's MMIX, because the tests write and verify gigabytes. Contents with different seeds differ
/// in every word.
const fn next(word: u64) -> u64 {
    word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f)
}

fn short_bytes(location: u64, len: usize, first: u8) -> impl Iterator<Item = u8> {
    (0_u64..).take(len).map(move |index| {
        let [byte, ..] = mix(location ^ index << 24 ^ (len as u64) << 40).to_le_bytes();
        byte ^ first
    })
}

fn short_fingerprint(len: usize, first: u8) -> u64 {
    mix(len as u64 ^ u64::from(first) << 32) | 1
}

/// The little-endian words of some bytes.
pub(crate) fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// Verifies every byte of a content and returns its fingerprint.
pub fn verify(
    key: TortureKey,
    block: u8,
    bytes: &[u8],
) -> Result<(u64, Option<ContentStamp>), String> {
    let location = ContentStamp { key, block, writer: 0, seq: 0, len: 0 }.location();
    if bytes.len() < HEADER {
        let zero = short_bytes(location, bytes.len(), 0).next().unwrap_or(0);
        let first = bytes.first().map_or(0, |byte| byte ^ zero);
        if !short_bytes(location, bytes.len(), first).eq(bytes.iter().copied()) {
            return Err(format!(
                "{key:?}.{block}: {} short bytes are torn: {bytes:x?}",
                bytes.len()
            ));
        }
        return Ok((short_fingerprint(bytes.len(), first), None));
    }
    let mut words = words_of(bytes);
    let mut word = || words.next().unwrap_or(0);
    let head = [word(), word(), word(), word(), word()];
    let [magic, stored_location, writer, seq, len] = head;
    if magic != MAGIC || stored_location != location || len != bytes.len() as u64 {
        return Err(format!("{key:?}.{block}: {} bytes with the header {head:x?}", bytes.len()));
    }
    let stamp = ContentStamp {
        key,
        block,
        writer: u16::try_from(writer).unwrap_or(u16::MAX),
        seq,
        len: u32::try_from(len).unwrap_or(u32::MAX),
    };
    let mut expected = stamp.seed();
    let (_, rest) = bytes.split_at(HEADER);
    let (words, end) = rest.as_chunks();
    let torn_at = |index: usize| {
        Err(format!("{key:?}.{block}: {stamp:?} is torn at byte {}", HEADER + 8 * index))
    };
    for (index, word) in words.iter().enumerate() {
        expected = next(expected);
        if u64::from_le_bytes(*word) != expected {
            return torn_at(index);
        }
    }
    if !next(expected).to_le_bytes().starts_with(end) {
        return torn_at(words.len());
    }
    Ok((stamp.fingerprint(), Some(stamp)))
}

/// The content of a counter.
pub fn counter(key: TortureKey, count: u64) -> Vec<u8> {
    let mut bytes = count.to_le_bytes().to_vec();
    bytes.extend_from_slice(&mix(count ^ u64::from(key.number) << 40).to_le_bytes());
    bytes
}

/// The number in a counter.
pub fn count_in(key: TortureKey, bytes: &[u8]) -> Result<u64, String> {
    let count = bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    if counter(key, count) != bytes {
        return Err(format!("{key:?}: not a counter: {bytes:x?}"));
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_changed_byte_or_length_of_a_content_is_detected() {
        let key = TortureKey { space: KeySpace::Own, writer: 3, number: 23 };
        for len in [1, 2, 39, 40, 41, 47, 48, 100, 1000] {
            let stamp = ContentStamp { key, block: 0, writer: 3, seq: 77, len };
            let mut bytes = Vec::new();
            stamp.fill(&mut bytes);
            assert_eq!(bytes.len(), len as usize);
            assert_eq!(verify(key, 0, &bytes).unwrap().0, stamp.fingerprint());
            for at in 0..bytes.len() {
                bytes[at] ^= 0x10;
                let fingerprint = verify(key, 0, &bytes).map(|(fingerprint, _)| fingerprint);
                assert_ne!(fingerprint, Ok(stamp.fingerprint()), "byte {at} of {len}");
                bytes[at] ^= 0x10;
            }
            bytes.pop();
            assert_ne!(
                verify(key, 0, &bytes).map(|(fingerprint, _)| fingerprint),
                Ok(stamp.fingerprint())
            );
        }
    }

    #[test]
    fn a_key_is_parsed_from_its_bytes() {
        for number in 0..600 {
            let key = TortureKey { space: KeySpace::Grow, writer: 2, number };
            assert_eq!(TortureKey::parse(&key.bytes()), Some(key));
        }
        assert_eq!(TortureKey::parse(b"own-1-2-"), None);
    }
}
