//! Permanent and temporary identities of a UE, and the numbers that interfaces assign to it.

use std::fmt;

use super::composite::composite;
use super::digits::digits;
use super::number::number;
use super::plmn::Plmn;
use super::{KeyText, ValueText};
use crate::draw::{Draw, mix_identity};

number! {
    /// Identifier of a UE in its cell (TS 36.321 clause 7.1: the values for one UE).
    CRnti(u16), 2 bytes, 0x003d to 0xfff3, Hex
}
number! {
    /// Identifier that the eNB assigns to a UE on S1 (TS 36.413 clause 9.2.3.4): 24 bits.
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
    /// Temporary identifier of a UE in its MME (TS 23.003 clause 2.8.1).
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

fn dashed_gummei(gummei: Gummei, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Gummei { plmn, group, code } = gummei;
    write!(f, "{}-{}-{}", ValueText(&plmn, keys), ValueText(&group, keys), ValueText(&code, keys))
}

composite! {
    /// Globally unique temporary identity (TS 23.003 clause 2.8.1): 80 bits. GUTIs differ if their
    /// draws differ in the low 52 bits.
    Guti, salt 0, text dashed_guti, drawn reallocated_guti {
        /// The MME that assigned it.
        gummei: Gummei = "gummei",
        /// Identifier in that MME.
        m_tmsi: MTmsi = "mTmsi",
    }
}

fn dashed_guti(guti: Guti, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}-{}", ValueText(&guti.gummei, keys), ValueText(&guti.m_tmsi, keys))
}

fn reallocated_guti(draw: Draw) -> Guti {
    Guti::of_number(mix_identity(draw.whole()), REALLOCATED)
}

/// Set in the group of a GUTI that a procedure assigned, clear in one from [`Guti::provisioned`],
/// so that these always differ.
const REALLOCATED: u16 = 0x4000;

impl Guti {
    /// The GUTI of a UE before its first attach: different for every UE below 2^52.
    pub const fn provisioned(ue: u64) -> Self {
        Self::of_number(mix_identity(ue), 0)
    }

    /// The number fills 14 bits of the group, 8 of the MME and 30 of the M-TMSI. The first bit of
    /// the group and the first two of the M-TMSI are set, as TS 23.003 clause 2.8.2.1 requires for
    /// GUTIs that are mapped to GERAN.
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

/// The number of subscribers of the test network: ten digits.
const SUBSCRIBERS: u64 = 10_000_000_000;
/// The first IMSI of the test network: 00101 and ten digits.
const TEST_IMSI: u64 = 1_010_000_000_000;

/// The IMSI of a subscriber of the test network.
const fn subscriber(number: u64) -> u64 {
    TEST_IMSI + number % SUBSCRIBERS
}

/// A telephone number with the code 882, which is not of a country but of international networks.
const fn telephone(draw: Draw) -> u64 {
    882_000_000_000_000 + draw.word(0) % 1_000_000_000_000
}

/// An equipment identity with a type allocation code for tests.
const fn equipment(draw: Draw) -> u64 {
    10_100_000_000_000 + draw.word(0) % 1_000_000_000_000
}

digits! {
    /// International mobile subscriber identity (TS 23.003 clause 2.2): at most 15 digits.
    Imsi, "", 6 to 15, |draw: Draw| subscriber(draw.whole())
}
digits! {
    /// Telephone number with its country code (TS 23.003 clause 3.3).
    Msisdn, "", 5 to 15, telephone
}
digits! {
    /// Subscription permanent identifier that is an IMSI: `imsi-` and its digits (TS 23.003 clause
    /// 2.2A, TS 29.571 clause 5.3.2).
    Supi, "imsi-", 6 to 15, |draw: Draw| subscriber(draw.whole())
}
digits! {
    /// Generic public subscription identifier that is a telephone number: `msisdn-` and its digits
    /// (TS 23.003 clause 28.8).
    Gpsi, "msisdn-", 5 to 15, telephone
}
digits! {
    /// Permanent equipment identifier that is an IMEI with its software version: `imeisv-` and 16
    /// digits (TS 23.003 clauses 6.2.2 and 6.4).
    Pei, "imeisv-", 16 to 16, equipment
}

impl Imsi {
    /// The subscriber with this number in the test network: different for each below 10^10.
    pub fn of_subscriber(number: u64) -> Self {
        Self::of_number(subscriber(number))
    }
}

impl Supi {
    /// The subscriber with this number in the test network: different for each below 10^10.
    pub fn of_subscriber(number: u64) -> Self {
        Self::of_number(subscriber(number))
    }
}
