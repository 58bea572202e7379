//! PDU sessions in an AMF, with the values that set up the user plane.

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
    /// Access: 1 3GPP, 2 non-3GPP (TS 24.501 clause 9.11.2.1A).
    AccessType(u8), 1 bytes, 1 to 2, Decimal
}
number! {
    /// QoS flow identifier within a session (TS 38.413 clause 9.3.1.51): six bits.
    Qfi(u8), 1 bytes, 0 to 63, Decimal
}
number! {
    /// QoS class, 5QI (TS 23.501 table 5.7.4-1): 1 to 127 standardised, 128 to 254
    /// operator-specific.
    FiveQi(u8), 1 bytes, 1 to 254, Decimal, drawn 1 to 9
}
number! {
    /// Set of sessions: bit n for the session with identity n (TS 24.501 clause 9.11.3.44).
    PduSessionStatus(u16), 2 bytes, 0 to 0xffff, Hex
}

composite! {
    /// The constant properties of a PDU session. The gNB's tunnel end is not stored: the AMF
    /// forwards it to the SMF.
    PduSession, salt 0, text listed, drawn each {
        /// Its identity.
        id: PduSessionId = "pduSessionId",
        /// Its data network.
        dnn: Apn = "dnn",
        /// Its slice.
        snssai: Snssai = "sNssai",
        /// Its access.
        access: AccessType = "accessType",
        /// Its session and service continuity mode.
        ssc_mode: SscMode = "sscMode",
        /// The SMF that manages it.
        smf: Uuid = "smfInstanceId",
        /// Its context in the SMF.
        sm_context: Uuid = "smContextRef",
        /// Address of the UE.
        address: UeAddress = "ueIpAddress",
        /// Tunnel end at the UPF, for packets from the UE.
        upf: FTeid = "upfTunnel",
    }
}

/// The parts of a session's slot by which the session is found.
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
    /// A QoS flow of a session.
    QosFlow, salt 0, text listed, drawn each {
        /// Its identifier.
        qfi: Qfi = "qfi",
        /// Its class.
        five_qi: FiveQi = "5qi",
        /// Priority.
        arp: Arp = "arp",
    }
}

list! {
    /// QoS flows of a session (TS 23.501 clause 5.7.1.1 allows 64; phones use one to four).
    QosFlows of QosFlow, at most 4, drawn 1, salt 0
}

composite! {
    /// The quality of service of a session, which a modification changes.
    SessionQos, salt 0, text listed, drawn each {
        /// Maximum bit rate of the session.
        ambr: Ambr = "sessionAmbr",
        /// Its flows, the default one first.
        flows: QosFlows = "qosFlows",
    }
}
