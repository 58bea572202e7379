//! The address of an object of the transactional memory.

use std::fmt;
use std::num::NonZeroU64;

/// The address of an object: 64 opaque bits, the same in every process, which a program stores
/// instead of a pointer. Never 0, so that 0 can mean "none" in the bytes of an object. Never
/// reused in a region, so that the address of a freed object is refused and never leads to another
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(NonZeroU64);

/// Bytes of an object's key: the address, little-endian, and zeros. After the cell's header of 44
/// bytes, an object therefore starts at a cache line. Every C type is aligned in the region, and an
/// object of 64 bytes is one cache line.
const KEY_BYTES: usize = 20;
const _: () = assert!(KEY_BYTES >= 8, "a key begins with the address");
const _: () = assert!((nearstate_memory::CELL_HEADER_BYTES + KEY_BYTES as u64).is_multiple_of(64));

impl Address {
    /// The address with these bits; `None` for 0.
    pub const fn from_bits(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// The bits, for storage in an object or a record.
    pub const fn bits(self) -> u64 {
        self.0.get()
    }

    /// The key of the object's record.
    pub(crate) fn key(self) -> [u8; KEY_BYTES] {
        let mut key = [0; KEY_BYTES];
        for (to, byte) in key.iter_mut().zip(self.bits().to_le_bytes()) {
            *to = byte;
        }
        debug_assert!(Self::of_key(&key) == Some(self), "the key leads back to its address");
        key
    }

    pub(crate) fn of_key(key: &[u8]) -> Option<Self> {
        let (bits, _) = key.split_first_chunk::<8>()?;
        Self::from_bits(u64::from_le_bytes(*bits))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_recovered_from_its_key() {
        for bits in [1, 0x0102_0304_0506_0708, u64::MAX] {
            let address = Address::from_bits(bits).unwrap();
            assert_eq!(Address::of_key(&address.key()), Some(address));
            assert_eq!(address.bits(), bits);
        }
        assert_eq!(Address::from_bits(0), None);
        assert_eq!(Address::of_key(&[0; KEY_BYTES]), None);
        assert_eq!(Address::of_key(&[1; 7]), None);
    }
}
