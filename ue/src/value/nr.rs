//! Identities, areas and cells of 5GS (TS 23.003 clauses 2.10 and 19, TS 38.413).

use std::fmt;

use super::composite::composite;
use super::list::list;
use super::number::number;
use super::plmn::Plmn;
use super::{KeyText, ValueText};
use crate::draw::{Draw, mix_identity};

number! {
    /// Identifier that the AMF assigns to a UE on NG (TS 38.413 clause 9.3.3.1): 40 bits.
    AmfUeNgapId(u64), 5 bytes, 0 to 0xff_ffff_ffff, Decimal
}
number! {
    /// Identifier that the gNB assigns to a UE on NG (TS 38.413 clause 9.3.3.2): 32 bits.
    RanUeNgapId(u32), 4 bytes, 0 to 0xffff_ffff, Decimal
}
number! {
    /// An AMF in its network: 8 bits of region, 10 of set, 6 of pointer (TS 23.003 clause 2.10.1).
    AmfId(u32), 3 bytes, 0 to 0x00ff_ffff, Hex
}
number! {
    /// Temporary identifier of a UE in its AMF (TS 23.003 clause 2.10.1).
    FiveGTmsi(u32), 4 bytes, 0 to 0xffff_ffff, Hex
}
number! {
    /// Tracking area code of 5GS (TS 23.003 clause 19.4.2.3).
    Tac(u32), 3 bytes, 0 to 0x00ff_ffff, Hex
}
number! {
    /// Cell of NR (TS 38.413 clause 9.3.1.7): 36 bits.
    NrCellId(u64), 5 bytes, 0 to 0xf_ffff_ffff, Hex
}
number! {
    /// A gNB in its network (TS 38.413 clause 9.3.1.6): 22 to 32 bits.
    GnbId(u32), 4 bytes, 0 to 0xffff_ffff, Hex
}
number! {
    /// Seconds since 1970.
    Seconds(u32), 4 bytes, 0 to 0xffff_ffff, Decimal, drawn 1_700_000_000 to 1_900_000_000
}
number! {
    /// Cause of a connection (TS 38.413 clause 9.3.1.111).
    EstablishmentCause(u8), 1 bytes, 0 to 10, Decimal
}

composite! {
    /// An AMF, worldwide: GUAMI (TS 23.003 clause 2.10.1), 48 bits.
    Guami, salt 0, text dashed_guami, drawn each {
        /// Network.
        plmn: Plmn = "plmnId",
        /// AMF in the network.
        amf: AmfId = "amfId",
    }
}

fn dashed_guami(guami: Guami, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}-{}", ValueText(&guami.plmn, keys), ValueText(&guami.amf, keys))
}

composite! {
    /// 5G globally unique temporary identity (TS 23.003 clause 2.10.1): 80 bits. Identities differ
    /// if their draws differ in the low 52 bits.
    FiveGGuti, salt 0, text dashed_guti, drawn allocated_guti {
        /// The AMF that assigned it.
        guami: Guami = "guami",
        /// Identifier in that AMF.
        tmsi: FiveGTmsi = "5gTmsi",
    }
}

fn dashed_guti(guti: FiveGGuti, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}-{}", ValueText(&guti.guami, keys), ValueText(&guti.tmsi, keys))
}

/// 20 bits of the AMF, 32 of the number.
fn allocated_guti(draw: Draw) -> FiveGGuti {
    let number = mix_identity(draw.whole());
    FiveGGuti {
        guami: Guami { plmn: Plmn::TEST, amf: AmfId((number >> 32) as u32) },
        tmsi: FiveGTmsi((number & 0xffff_ffff) as u32),
    }
}

composite! {
    /// Tracking area identity (TS 23.003 clause 19.4.2.3): 48 bits.
    Tai, salt 0x0a7e_a005, text dashed_tai, drawn each {
        /// Network.
        plmn: Plmn = "plmnId",
        /// Area in it.
        tac: Tac = "tac",
    }
}

fn dashed_tai(tai: Tai, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}-{}", ValueText(&tai.plmn, keys), ValueText(&tai.tac, keys))
}

list! {
    /// Registration area (TS 24.501 clause 9.11.3.9): the area in which a UE moves without an
    /// update. The first area of a draw is the TAI of the same draw.
    TaiList of Tai, at most 16, drawn 3, salt 0x0a7e_a005
}

composite! {
    /// NR cell global identity (TS 38.413 clause 9.3.1.7): 60 bits.
    Ncgi, salt 0, text dashed_ncgi, drawn each {
        /// Network.
        plmn: Plmn = "plmnId",
        /// Cell in it.
        cell: NrCellId = "nrCellId",
    }
}

fn dashed_ncgi(ncgi: Ncgi, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}-{}", ValueText(&ncgi.plmn, keys), ValueText(&ncgi.cell, keys))
}

composite! {
    /// A gNB, worldwide (TS 38.413 clause 9.3.1.5).
    GlobalGnbId, salt 0, text dashed_gnb, drawn each {
        /// Network.
        plmn: Plmn = "plmnId",
        /// gNB in it.
        gnb: GnbId = "gNbId",
    }
}

fn dashed_gnb(gnb: GlobalGnbId, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}-{}", ValueText(&gnb.plmn, keys), ValueText(&gnb.gnb, keys))
}
