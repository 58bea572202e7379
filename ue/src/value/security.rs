//! Security contexts of EPS (TS 33.401 clause 7.2): the access security management entity's key,
//! what non-access stratum and access stratum make of it.

use std::fmt;

use serde_json::{Map, Value as Json};

use super::composite::{composite, member, object};
use super::key::{Key128, Key256};
use super::number::number;
use super::{KeyText, Value, ValueText, fill, front, text_impls};
use crate::draw::Draw;

number! {
    /// Which `K_ASME` is meant (TS 24.301 clause 9.9.3.21): three bits, 7 is "none".
    KeySetIdentifier(u8), 1 bytes, 0 to 6, Decimal
}
number! {
    /// How many messages were secured (TS 24.301 clause 4.4.3): 24 bits.
    NasCount(u32), 3 bytes, 0 to 0x00ff_ffff, Decimal
}
number! {
    /// How often the next hop was derived (TS 33.401 clause 7.2.8): three bits.
    NextHopCount(u8), 1 bytes, 0 to 7, Decimal
}
number! {
    /// One algorithm (TS 24.301 clause 9.9.3.23): 0 none, 1 SNOW 3G, 2 AES, 3 ZUC, to 7 reserved.
    Algorithm(u8), 1 bytes, 0 to 7, Decimal, drawn 1 to 3
}
number! {
    /// Algorithms that a UE has (TS 24.301 clause 9.9.3.36): EEA, EIA, UEA, UIA, a bit for each.
    UeSecurityCapability(u32), 4 bytes, 0 to 0xffff_ffff, Hex
}

/// The two algorithms in use, in one byte (TS 24.301 clause 9.9.3.23, TS 24.501 clause 9.11.3.34).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Algorithms {
    /// Against being read: EEA or NEA.
    pub ciphering: Algorithm,
    /// Against change: EIA or NIA.
    pub integrity: Algorithm,
}

/// The bits of a byte that no algorithm has.
const SPARE: u8 = 0x88;
const CIPHERING: &str = "ciphering";
const INTEGRITY: &str = "integrity";

text_impls!(Algorithms);

impl Value for Algorithms {
    const BYTES: usize = 1;

    #[inline]
    fn check(slot: &[u8]) -> Result<(), &'static str> {
        let [byte] = front(slot);
        if byte & SPARE == 0 { Ok(()) } else { Err("has spare bits in its algorithms") }
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
        /// Its name on the air.
        ksi: KeySetIdentifier = "eKsi",
        /// TS 33.401 clause 6.1.2.
        k_asme: Key256 = "kAsme",
    }
}

composite! {
    /// Between a UE and its MME (TS 33.401 clause 7.2.4.4).
    NasSecurity, salt 0, text listed, drawn each {
        /// Against change.
        k_nas_int: Key128 = "kNasInt",
        /// Against being read.
        k_nas_enc: Key128 = "kNasEnc",
        /// Messages from the UE.
        uplink_count: NasCount = "uplinkCount",
        /// Messages to the UE.
        downlink_count: NasCount = "downlinkCount",
        /// What was chosen.
        algorithms: Algorithms = "algorithms",
        /// What could have been.
        capability: UeSecurityCapability = "ueSecurityCapability",
    }
}

composite! {
    /// Between a UE and its eNB (TS 33.401 clause 7.2.1).
    AsSecurity, salt 0, text listed, drawn each {
        /// What the others are derived from.
        k_enb: Key256 = "kEnb",
        /// Signalling, against change.
        k_rrc_int: Key128 = "kRrcInt",
        /// Signalling, against being read.
        k_rrc_enc: Key128 = "kRrcEnc",
        /// User plane, against being read.
        k_up_enc: Key128 = "kUpEnc",
        /// What the next eNB will get (TS 33.401 clause 7.2.8).
        next_hop: Key256 = "nh",
        /// Its number.
        ncc: NextHopCount = "ncc",
        /// What was chosen.
        algorithms: Algorithms = "algorithms",
    }
}
