//! Tracking areas and cells of EPS.

use std::fmt;

use nearstate_model::Result;
use serde_json::Value as Json;

use super::composite::composite;
use super::number::number;
use super::plmn::Plmn;
use super::{KeyText, Value, ValueText, fill, front, is_zero, kind_of, refused, text_impls};
use crate::draw::Draw;

number! {
    /// Tracking area code of EPS (TS 23.003 clause 19.4.2.3).
    Tac(u16), 2 bytes, 0 to 0xffff, Hex
}
number! {
    /// Cell of E-UTRAN: 20 bits of the eNB, 8 of the cell (TS 36.413 clause 9.2.1.38).
    Eci(u32), 4 bytes, 0 to 0x0fff_ffff, Hex
}

/// The salt of the draws of a TAI and of the list that starts with it.
const AREA_SALT: u64 = 0x0a7e_a001;

composite! {
    /// Tracking area identity (TS 23.003 clause 19.4.2.3): 40 bits.
    Tai, salt 0x0a7e_a001, text dashed_tai, drawn each {
        /// Network.
        plmn: Plmn = "plmnId",
        /// Area in it.
        tac: Tac = "tac",
    }
}

fn dashed_tai(tai: Tai, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}-{}", ValueText(&tai.plmn, keys), ValueText(&tai.tac, keys))
}

composite! {
    /// E-UTRAN cell global identity (TS 23.003 clause 19.6): 52 bits.
    Ecgi, salt 0, text dashed_ecgi, drawn each {
        /// Network.
        plmn: Plmn = "plmnId",
        /// Cell in it.
        eci: Eci = "eutraCellId",
    }
}

fn dashed_ecgi(ecgi: Ecgi, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}-{}", ValueText(&ecgi.plmn, keys), ValueText(&ecgi.eci, keys))
}

/// The largest number of areas of a list (TS 24.301 clause 9.9.3.33).
pub const TAIS_MAX: usize = 16;
/// The number of areas of a drawn list, as in paper 2's generator.
const TAIS_DRAWN: u8 = 15;
const TAI_LIST_BYTES: usize = 1 + AREAS_BYTES;
const AREAS_BYTES: usize = TAIS_MAX * Tai::BYTES;

/// For each byte of a list, the lowest bits of the half bytes that are digits of a PLMN: a mask to
/// check eight bytes at once.
const DIGITS: [u8; AREAS_BYTES] = repeated([0x11, 0x11, 0x11, 0, 0]);
/// The lowest bit of the half byte that is `f` if the MNC has two digits.
const OPTIONAL: [u8; AREAS_BYTES] = repeated([0, 0x10, 0, 0, 0]);

const fn repeated(tai: [u8; 5]) -> [u8; AREAS_BYTES] {
    let mut bytes = [0; AREAS_BYTES];
    let mut rest = bytes.as_mut_slice();
    while let Some((first, after)) = rest.split_first_chunk_mut() {
        *first = tai;
        rest = after;
    }
    bytes
}

#[inline]
fn words(bytes: &[u8; AREAS_BYTES]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|eight| u64::from_be_bytes(*eight))
}

/// The area in which a UE moves without an update: 1 to 16 TAIs. A count, then five bytes for each
/// TAI, at a fixed offset. The three kinds of partial lists of TS 24.301 are not used.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaiList([u8; TAI_LIST_BYTES]);

impl TaiList {
    /// The list of these areas.
    ///
    /// # Errors
    /// `BadArgument`: none, or more than [`TAIS_MAX`].
    pub fn new(tais: &[Tai]) -> Result<Self> {
        Self::of(tais).or_else(refused)
    }

    fn of(tais: &[Tai]) -> std::result::Result<Self, String> {
        if tais.is_empty() || tais.len() > TAIS_MAX {
            return Err(format!("a list of {} areas: give 1 to {TAIS_MAX}", tais.len()));
        }
        let mut bytes = [0; TAI_LIST_BYTES];
        let (count, mut rest) = bytes.split_at_mut(1);
        fill(count, &[u8::try_from(tais.len()).unwrap_or(0)]);
        for tai in tais {
            let (slot, after) = std::mem::take(&mut rest).split_at_mut(Tai::BYTES);
            tai.store(slot);
            rest = after;
        }
        Ok(Self(bytes))
    }

    /// The areas.
    pub fn iter(&self) -> impl Iterator<Item = Tai> + '_ {
        let [count, areas @ ..] = &self.0;
        areas.chunks_exact(Tai::BYTES).take(usize::from(*count)).map(Tai::load)
    }
}

text_impls!(TaiList);

impl Value for TaiList {
    const BYTES: usize = TAI_LIST_BYTES;
    const SALT: u64 = AREA_SALT;

    #[inline]
    fn check(slot: &[u8]) -> std::result::Result<(), &'static str> {
        let [count, areas @ ..] = front::<TAI_LIST_BYTES>(slot);
        if count == 0 || usize::from(count) > TAIS_MAX {
            return Err("does not have 1 to 16 areas");
        }
        let Some((_, unused)) = areas.split_at_checked(usize::from(count) * Tai::BYTES) else {
            return Err("is longer than its slot");
        };
        let mut no_digit = 0;
        for ((eight, digits), optional) in words(&areas).zip(words(&DIGITS)).zip(words(&OPTIONAL)) {
            let above_nine = (eight >> 3) & ((eight >> 2) | (eight >> 1)) & digits;
            let filler = eight & (eight >> 1) & (eight >> 2) & (eight >> 3) & optional;
            no_digit |= above_nine & !filler;
        }
        if no_digit != 0 {
            Err("has a PLMN with a nibble that is not a digit")
        } else if is_zero(unused) {
            Ok(())
        } else {
            Err("has bytes after its last area")
        }
    }

    #[inline]
    fn load(slot: &[u8]) -> Self {
        Self(front(slot))
    }

    #[inline]
    fn store(&self, slot: &mut [u8]) {
        fill(slot, &self.0);
    }

    /// The first area is the TAI of the same draw; the others have the next area codes.
    #[inline]
    fn drawn(draw: Draw) -> Self {
        let first = Tai::drawn(draw);
        let mut bytes = [0; TAI_LIST_BYTES];
        let (count, areas) = bytes.split_at_mut(1);
        fill(count, &[TAIS_DRAWN]);
        let mut tac = first.tac.get();
        for slot in areas.chunks_exact_mut(Tai::BYTES).take(TAIS_DRAWN.into()) {
            Tai { tac: Tac(tac), ..first }.store(slot);
            tac = tac.wrapping_add(1);
        }
        Self(bytes)
    }

    fn text(&self, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, tai) in self.iter().enumerate() {
            let between = if number == 0 { "" } else { " " };
            write!(f, "{between}{}", ValueText(&tai, keys))?;
        }
        Ok(())
    }

    fn json(&self, keys: KeyText) -> Json {
        self.iter().map(|tai| tai.json(keys)).collect()
    }

    fn from_json(json: &Json) -> std::result::Result<Self, String> {
        let list = json.as_array().ok_or_else(|| format!("give a list, not {}", kind_of(json)))?;
        if list.len() > TAIS_MAX {
            return Err(format!("{} areas: give 1 to {TAIS_MAX}", list.len()));
        }
        let tais: std::result::Result<Vec<Tai>, String> = list.iter().map(Tai::from_json).collect();
        Self::of(&tais?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_list_starts_with_the_tai_of_the_same_draw() {
        for draw in 0..50 {
            let list = TaiList::drawn(Draw::new(draw, TaiList::SALT));
            let tai = Tai::drawn(Draw::new(draw, Tai::SALT));
            assert_eq!(list.iter().next(), Some(tai));
            assert_eq!(list.iter().count(), usize::from(TAIS_DRAWN));
        }
    }

    #[test]
    fn tai_lists_have_one_to_sixteen_entries() {
        let tai = Tai { plmn: Plmn::new("262", "01").unwrap(), tac: Tac::new(0x1a2b).unwrap() };
        assert_eq!(TaiList::new(&[tai; 2]).unwrap().to_string(), "262-01-1a2b 262-01-1a2b");
        assert_eq!(TaiList::new(&[tai; 16]).unwrap().iter().count(), 16);
        assert!(TaiList::new(&[]).is_err() && TaiList::new(&[tai; 17]).is_err());
        let mut bytes = [0; TAI_LIST_BYTES];
        TaiList::new(&[tai]).unwrap().store(&mut bytes);
        assert_eq!(TaiList::check(&bytes), Ok(()));
        for (at, wrong) in [(0, 0), (0, 17), (0, 2), (1, 0xaa), (80, 1)] {
            let mut bytes = bytes;
            bytes[at] = wrong;
            // A list whose second area is zeros is valid: 000-000 is a network.
            assert_eq!(TaiList::check(&bytes).is_err(), (at, wrong) != (0, 2), "{at} {wrong}");
        }
    }
}
