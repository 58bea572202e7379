//! Security contexts of EPS (TS 33.401 clause 7.2): `K_ASME`, and the keys of the non-access
//! stratum and of the access stratum. 5GS uses [`NasSecurity`] too.

use std::fmt;

use serde_json::{Map, Value as Json};

use super::composite::{composite, member, object};
use super::key::{Key128, Key256};
use super::number::number;
use super::{KeyText, Value, ValueText, fill, front, text_impls};
use crate::draw::Draw;

number! {
    /// Identifier of a `K_ASME` (TS 24.301 clause 9.9.3.21): three bits, 7 is "none".
    KeySetIdentifier(u8), 1 bytes, 0 to 6, Decimal
}
number! {
    /// Number of secured messages (TS 24.301 clause 4.4.3): 24 bits.
    NasCount(u32), 3 bytes, 0 to 0x00ff_ffff, Decimal
}
number! {
    /// Number of derivations of the next hop (TS 33.401 clause 7.2.8): three bits.
    NextHopCount(u8), 1 bytes, 0 to 7, Decimal
}
number! {
    /// Algorithm (TS 24.301 clause 9.9.3.23): 0 none, 1 SNOW 3G, 2 AES, 3 ZUC, 4 to 7 reserved.
    Algorithm(u8), 1 bytes, 0 to 7, Decimal, drawn 1 to 3
}
number! {
    /// Algorithms of a UE (TS 24.301 clause 9.9.3.36): EEA, EIA, UEA, UIA, a bit for each.
    UeSecurityCapability(u32), 4 bytes, 0 to 0xffff_ffff, Hex
}

/// The two algorithms in use, in one byte (TS 24.301 clause 9.9.3.23, TS 24.501 clause 9.11.3.34).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Algorithms {
    /// Ciphering: EEA or NEA.
    pub ciphering: Algorithm,
    /// Integrity protection: EIA or NIA.
    pub integrity: Algorithm,
}

/// The spare bits.
const SPARE: u8 = 0x88;
const CIPHERING: &str = "ciphering";
const INTEGRITY: &str = "integrity";

text_impls!(Algorithms);

impl Value for Algorithms {
    const BYTES: usize = 1;

    #[inline]
    fn check(slot: &[u8]) -> Result<(), &'static str> {
        let [byte] = front(slot);
        if byte & SPARE == 0 { Ok(()) } else { Err("has a spare bit set in its algorithms") }
    }

    #[inline]
    fn load(slot: &[u8]) -> Self {
        let [byte] = front(slot);
        Self {
            ciphering: Algorithm::load(&[byte >> 4 & 7]),
            integrity: Algorithm::load(&[byte & 7]),
        }
    }

    #[inline]
    fn store(&self, slot: &mut [u8]) {
        fill(slot, &[self.ciphering.get() << 4 | self.integrity.get()]);
    }

    #[inline]
    fn drawn(draw: Draw) -> Self {
        let (ciphering, integrity) = (draw.part(1), draw.part(2));
        Self { ciphering: Algorithm::drawn(ciphering), integrity: Algorithm::drawn(integrity) }
    }

    fn text(&self, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ciphering, integrity } = self;
        write!(f, "EA{} IA{}", ValueText(ciphering, keys), ValueText(integrity, keys))
    }

    fn json(&self, keys: KeyText) -> Json {
        Json::Object(Map::from_iter([
            (CIPHERING.to_owned(), self.ciphering.json(keys)),
            (INTEGRITY.to_owned(), self.integrity.json(keys)),
        ]))
    }

    fn from_json(json: &Json) -> Result<Self, String> {
        let object = object(json, &[CIPHERING, INTEGRITY])?;
        Ok(Self {
            ciphering: member(object, CIPHERING, Algorithm::from_json)?,
            integrity: member(object, INTEGRITY, Algorithm::from_json)?,
        })
    }
}

composite! {
    /// The security context that a UE and its MME share after authentication.
    MasterKey, salt 0, text listed, drawn each {
        /// Its identifier.
        ksi: KeySetIdentifier = "eKsi",
        /// `K_ASME` (TS 33.401 clause 6.1.2).
        k_asme: Key256 = "kAsme",
    }
}

composite! {
    /// Security between a UE and its MME or AMF (TS 33.401 clause 7.2.4.4, TS 33.501 clause 6.4).
    NasSecurity, salt 0, text listed, drawn each {
        /// Key for integrity protection.
        k_nas_int: Key128 = "kNasInt",
        /// Key for ciphering.
        k_nas_enc: Key128 = "kNasEnc",
        /// Messages from the UE.
        uplink_count: NasCount = "uplinkCount",
        /// Messages to the UE.
        downlink_count: NasCount = "downlinkCount",
        /// Algorithms in use.
        algorithms: Algorithms = "algorithms",
        /// Algorithms that the UE supports.
        capability: UeSecurityCapability = "ueSecurityCapability",
    }
}

composite! {
    /// Security between a UE and its eNB (TS 33.401 clause 7.2.1).
    AsSecurity, salt 0, text listed, drawn each {
        /// Key from which the others are derived.
        k_enb: Key256 = "kEnb",
        /// Key for integrity protection of signalling.
        k_rrc_int: Key128 = "kRrcInt",
        /// Key for ciphering of signalling.
        k_rrc_enc: Key128 = "kRrcEnc",
        /// Key for ciphering of the user plane.
        k_up_enc: Key128 = "kUpEnc",
        /// Next hop: the key for the next eNB (TS 33.401 clause 7.2.8).
        next_hop: Key256 = "nh",
        /// Its number.
        ncc: NextHopCount = "ncc",
        /// Algorithms in use.
        algorithms: Algorithms = "algorithms",
    }
}
