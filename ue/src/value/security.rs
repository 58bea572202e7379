//! Security contexts of EPS (TS 33.401 clause 7.2): the access security management entity's key,
//! what non-access stratum and access stratum make of it.

use super::composite::composite;
use super::key::{Key128, Key256};
use super::number::number;

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
    /// An algorithm for ciphering in the first half byte, one for integrity in the second (TS
    /// 24.301 clause 9.9.3.23): EEA0 to EEA3, EIA0 to EIA3, and the five that are reserved.
    Algorithms(u8), 1 bytes, 0 to 0x77, Hex
}
number! {
    /// Algorithms that a UE has (TS 24.301 clause 9.9.3.36): EEA, EIA, UEA, UIA, a bit for each.
    UeSecurityCapability(u32), 4 bytes, 0 to 0xffff_ffff, Hex
}

composite! {
    /// What a UE and its MME share after authentication.
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
