//! PDU sessions as an AMF stores them, with the values that set up the data plane.

use super::Value;
use super::address::UeAddress;
use super::apn::Apn;
use super::bearer::{Ambr, Arp, FTeid};
use super::composite::composite;
use super::list::list;
use super::name::Uuid;
use super::number::number;
use super::slice::Snssai;

number! {
    /// PDU session identity (TS 24.007 clause 11.2.3.1b): 1 to 15.
    PduSessionId(u8), 1 bytes, 1 to 15, Decimal
}
number! {
    /// Session and service continuity mode (TS 23.501 clause 5.6.9).
    SscMode(u8), 1 bytes, 1 to 3, Decimal
}
number! {
    /// 1 over 3GPP, 2 over others (TS 24.501 clause 9.11.2.1A).
    AccessType(u8), 1 bytes, 1 to 2, Decimal
}
number! {
    /// A flow of quality in its session (TS 38.413 clause 9.3.1.51): six bits.
    Qfi(u8), 1 bytes, 0 to 63, Decimal
}
number! {
    /// Class of quality, 5QI (TS 23.501 table 5.7.4-1): to 127 standardised, 128 to 254 the
    /// operator's.
    FiveQi(u8), 1 bytes, 1 to 254, Decimal, drawn 1 to 9
}
number! {
    /// Sessions, the bit of weight 2^n for identity n (TS 24.501 clause 9.11.3.44).
    PduSessionStatus(u16), 2 bytes, 0 to 0xffff, Hex
}

composite! {
    /// A PDU session: what stays constant during its life. The tunnel end of the gNB is not kept:
    /// it passes through the AMF to the SMF.
    PduSession, salt 0, text listed, drawn each {
        /// Which of the UE's.
        id: PduSessionId = "pduSessionId",
        /// Its data network.
        dnn: Apn = "dnn",
        /// Its slice.
        snssai: Snssai = "sNssai",
        /// Over which access.
        access: AccessType = "accessType",
        /// How its address may change.
        ssc_mode: SscMode = "sscMode",
        /// The SMF that manages it.
        smf: Uuid = "smfInstanceId",
        /// Its context there.
        sm_context: Uuid = "smContextRef",
        /// Address of the UE.
        address: UeAddress = "ueIpAddress",
        /// Where the gNB sends the UE's packets: at the UPF.
        upf: FTeid = "upfTunnel",
    }
}

/// The bytes by which a session is found, in its slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts<'a> {
    pub sm_context: &'a [u8],
    pub v4: Option<&'a [u8]>,
    pub v6: Option<&'a [u8]>,
    pub upf: &'a [u8],
}

impl PduSession {
    /// The last three fields of a session's slot.
    pub(crate) fn parts(slot: &[u8]) -> Option<Parts<'_>> {
        let (slot, upf) = slot.split_at_checked(slot.len().checked_sub(FTeid::BYTES)?)?;
        let (slot, address) = slot.split_at_checked(slot.len().checked_sub(UeAddress::BYTES)?)?;
        let (_, sm_context) = slot.split_at_checked(slot.len().checked_sub(Uuid::BYTES)?)?;
        let (v4, v6) = UeAddress::parts(address);
        Some(Parts { sm_context, v4, v6, upf })
    }
}

composite! {
    /// One flow of a session.
    QosFlow, salt 0, text listed, drawn each {
        /// Which one.
        qfi: Qfi = "qfi",
        /// Its class.
        five_qi: FiveQi = "5qi",
        /// Priority.
        arp: Arp = "arp",
    }
}

list! {
    /// Flows of a session (TS 23.501 clause 5.7.1.1 allows 64; those of phones have one to four).
    QosFlows of QosFlow, at most 4, drawn 1, salt 0
}

composite! {
    /// The quality of service of a session, which a modification changes.
    SessionQos, salt 0, text listed, drawn each {
        /// Most that the session may take.
        ambr: Ambr = "sessionAmbr",
        /// Its flows, the default one first.
        flows: QosFlows = "qosFlows",
    }
}
