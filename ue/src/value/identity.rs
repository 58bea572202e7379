//! Who a UE is: permanent and temporary identities, and the numbers that interfaces give it.

use std::fmt;

use nearstate_model::Result;
use serde_json::Value as Json;

use super::composite::composite;
use super::number::{are_digits, number};
use super::plmn::Plmn;
use super::{Keys, Shown, Value, fill, front, refused, shown, string};
use crate::draw::{Draw, mix_identity};

number! {
    /// Number of a UE in its cell (TS 36.321 clause 7.1: the values that name one UE).
    CRnti(u16), 2 bytes, 0x003d to 0xfff3, Hex
}
number! {
    /// Number that an eNB gives a UE on S1 (TS 36.413 clause 9.2.3.4): 24 bits.
    EnbUeS1apId(u32), 3 bytes, 0 to 0x00ff_ffff, Decimal
}
number! {
    /// Group of MMEs (TS 23.003 clause 2.8.1).
    MmeGroupId(u16), 2 bytes, 0 to 0xffff, Hex
}
number! {
    /// One MME of a group (TS 23.003 clause 2.8.1).
    MmeCode(u8), 1 bytes, 0 to 0xff, Hex
}
number! {
    /// Temporary number of a UE in its MME (TS 23.003 clause 2.8.1).
    MTmsi(u32), 4 bytes, 0 to 0xffff_ffff, Hex
}

composite! {
    /// An MME, worldwide: GUMMEI (TS 23.003 clause 2.8.1), 48 bits.
    Gummei, salt 0, text dashed_gummei, drawn each {
        /// Network.
        plmn: Plmn = "plmnId",
        /// Group in the network.
        group: MmeGroupId = "mmeGroupId",
        /// MME in the group.
        code: MmeCode = "mmeCode",
    }
}

fn dashed_gummei(gummei: Gummei, keys: Keys, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Gummei { plmn, group, code } = gummei;
    write!(f, "{}-{}-{}", Shown(&plmn, keys), Shown(&group, keys), Shown(&code, keys))
}

composite! {
    /// Globally unique temporary identity (TS 23.003 clause 2.8.1): 80 bits, the MME that gave it
    /// and its M-TMSI. Draws that differ in their low 52 bits give GUTIs that differ.
    Guti, salt 0, text dashed_guti, drawn reallocated_guti {
        /// The MME that gave it.
        gummei: Gummei = "gummei",
        /// Number in that MME.
        m_tmsi: MTmsi = "mTmsi",
    }
}

fn dashed_guti(guti: Guti, keys: Keys, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}-{}", Shown(&guti.gummei, keys), Shown(&guti.m_tmsi, keys))
}

fn reallocated_guti(draw: Draw) -> Guti {
    Guti::of_number(mix_identity(draw.whole()), REALLOCATED)
}

/// Set in the group of a GUTI that a procedure gave, clear in one that [`Guti::provisioned`] made:
/// the two never meet.
const REALLOCATED: u16 = 0x4000;

impl Guti {
    /// The GUTI that a UE has before its first attach: different for every UE below 2^52.
    pub const fn provisioned(ue: u64) -> Self {
        Self::of_number(mix_identity(ue), 0)
    }

    /// 14 bits of the group, 8 of the MME, 30 of the M-TMSI. The group's first bit and the M-TMSI's
    /// first two are set, as TS 23.003 clause 2.8.2.1 wants of those that are mapped to GERAN.
    const fn of_number(number: u64, bits: u16) -> Self {
        Self {
            gummei: Gummei {
                plmn: Plmn::TEST,
                group: MmeGroupId(0x8000 | bits | (number >> 38 & 0x3fff) as u16),
                code: MmeCode((number >> 30 & 0xff) as u8),
            },
            m_tmsi: MTmsi(0xc000_0000 | (number & 0x3fff_ffff) as u32),
        }
    }
}

/// Decimal digits in half bytes, the first one low, `f` behind the last (TS 24.008 clause
/// 10.5.1.4).
fn check_digits(bytes: [u8; 8], least: u32, most: u32) -> std::result::Result<(), &'static str> {
    let halves = u64::from_le_bytes(bytes); // the first digit lowest
    let count = 16 - (!halves).leading_zeros() / 4;
    let digits = halves & u64::MAX.checked_shr(64 - 4 * count).unwrap_or(0);
    if !are_digits(digits) {
        Err("has what is no digit")
    } else if count < least || count > most {
        Err("has too few or too many digits")
    } else {
        Ok(())
    }
}

fn digits_of(text: &str) -> [u8; 8] {
    let mut bytes = [0xff; 8];
    let digits = text.as_bytes().chunks(2);
    for (byte, pair) in bytes.iter_mut().zip(digits) {
        *byte = match pair {
            [low, high] => (high & 15) << 4 | low & 15,
            [low] => 0xf0 | low & 15,
            _ => 0xff,
        };
    }
    bytes
}

fn write_digits(bytes: [u8; 8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for digit in bytes.into_iter().flat_map(|byte| [byte & 15, byte >> 4]) {
        if digit == 15 {
            break;
        }
        write!(f, "{digit}")?;
    }
    Ok(())
}

/// Digits of a number, the first of 15 first.
fn digits_of_number(mut number: u64) -> [u8; 8] {
    let mut digits = [0xf_u8; 16];
    for digit in digits.iter_mut().take(15).rev() {
        *digit = (number % 10) as u8;
        number /= 10;
    }
    let mut bytes = [0; 8];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair.iter().rev().fold(0, |sum, digit| (sum << 4) | digit);
    }
    bytes
}

/// A string of decimal digits: name, the fewest and the most of them.
macro_rules! digits {
    ($(#[$doc:meta])* $name:ident, $least:literal to $most:literal, $drawn:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 8]);

        impl $name {
            #[doc = concat!("From its ", $least, " to ", $most, " decimal digits.")]
            ///
            /// # Errors
            /// `BadArgument`.
            pub fn new(digits: &str) -> Result<Self> {
                Self::of(digits).or_else(refused)
            }

            fn of(digits: &str) -> std::result::Result<Self, String> {
                let is_it = digits.bytes().all(|byte| byte.is_ascii_digit());
                if is_it && ($least..=$most).contains(&digits.len()) {
                    return Ok(Self(digits_of(digits)));
                }
                Err(format!(
                    concat!("{:?} is no ", stringify!($name), ": give ", $least, " to ", $most,
                        " digits"),
                    digits
                ))
            }

            /// Its bytes: two digits in each, the first one low, `f` behind the last.
            pub const fn as_bytes(&self) -> &[u8; 8] {
                &self.0
            }
        }

        shown!($name);

        impl Value for $name {
            const BYTES: usize = 8;

            #[inline]
            fn check(slot: &[u8]) -> std::result::Result<(), &'static str> {
                check_digits(front(slot), $least, $most)
            }

            #[inline]
            fn load(slot: &[u8]) -> Self {
                Self(front(slot))
            }

            #[inline]
            fn store(&self, slot: &mut [u8]) {
                fill(slot, &self.0);
            }

            #[inline]
            fn drawn(draw: Draw) -> Self {
                Self(digits_of_number($drawn(draw)))
            }

            fn text(&self, _: Keys, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_digits(self.0, f)
            }

            fn json(&self, _: Keys) -> Json {
                Json::from(self.to_string())
            }

            fn from_json(json: &Json) -> std::result::Result<Self, String> {
                Self::of(string(json)?)
            }
        }
    };
}

/// The ten digits of a subscriber in the network of tests.
const SUBSCRIBERS: u64 = 10_000_000_000;
/// 00101 and ten digits.
const TEST_IMSI: u64 = 1_010_000_000_000;

digits! {
    /// International mobile subscriber identity (TS 23.003 clause 2.2): at most 15 digits.
    Imsi, 6 to 15, |draw: Draw| TEST_IMSI + draw.whole() % SUBSCRIBERS
}
digits! {
    /// Telephone number with its country code (TS 23.003 clause 3.3).
    Msisdn, 5 to 15, |draw: Draw| 882_000_000_000_000 + draw.word(0) % 1_000_000_000_000
}

impl Imsi {
    /// The subscriber with this number in the network of tests: different for each below 10^10.
    pub fn of_subscriber(number: u64) -> Self {
        Self(digits_of_number(TEST_IMSI + number % SUBSCRIBERS))
    }
}
