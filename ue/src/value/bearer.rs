//! Bearers: identities, tunnels, quality of service.

use std::fmt;
use std::net::Ipv4Addr;

use serde_json::{Map, Value as Json};

use super::composite::{composite, member, object};
use super::number::number;
use super::{KeyText, Value, ValueText, fill, front, string, text_impls};
use crate::draw::Draw;

number! {
    /// EPS bearer identity (TS 24.007 clause 11.2.3.1.5): four bits, 0 to 4 are reserved.
    EpsBearerId(u8), 1 bytes, 5 to 15, Decimal
}
number! {
    /// Radio access bearer of E-UTRAN (TS 36.413 clause 9.2.1.2): four bits.
    ErabId(u8), 1 bytes, 0 to 15, Decimal
}
number! {
    /// Data radio bearer (TS 36.331 clause 6.3.2, `DRB-Identity`): five bits.
    DrbId(u8), 1 bytes, 1 to 32, Decimal
}
number! {
    /// Tunnel endpoint identifier (TS 29.281 clause 5.1); 0 is for messages without a tunnel.
    Teid(u32), 4 bytes, 1 to 0xffff_ffff, Hex
}
number! {
    /// QoS class (TS 23.203 table 6.1.7): 1 to 127 standardised, 128 to 254 operator-specific.
    Qci(u8), 1 bytes, 1 to 254, Decimal, drawn 1 to 9
}
number! {
    /// Bit rate in kbit/s (TS 29.274 clause 8.7).
    Kbps(u32), 4 bytes, 0 to 0xffff_ffff, Decimal, drawn 64 to 10_000_000
}
number! {
    /// Priority (TS 29.212 clause 5.3.45): 1 is the highest.
    PriorityLevel(u8), 1 bytes, 1 to 15, Decimal
}

composite! {
    /// One end of a GTP-U tunnel (TS 29.274 clause 8.22): 64 bits, IPv4 only. The interface type is
    /// not stored, because it follows from the variable.
    FTeid, salt 0, text at_address, drawn each {
        /// Identifier at the address.
        teid: Teid = "teid",
        /// Address of the node that assigned it.
        address: Ipv4Addr = "ipv4Addr",
    }
}

fn at_address(end: FTeid, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{}@{}", ValueText(&end.teid, keys), end.address)
}

composite! {
    /// Both ends of a tunnel.
    TeidPair, salt 0, text listed, drawn each {
        /// The end for packets from the UE.
        uplink: FTeid = "uplink",
        /// The end for packets to the UE.
        downlink: FTeid = "downlink",
    }
}

composite! {
    /// Aggregate maximum bit rate (TS 23.401 clause 4.7.3).
    Ambr, salt 0, text rates, drawn each {
        /// From the UE.
        uplink: Kbps = "uplinkKbps",
        /// To the UE.
        downlink: Kbps = "downlinkKbps",
    }
}

fn rates(ambr: Ambr, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Ambr { uplink, downlink } = ambr;
    write!(f, "{} kbit/s up, {} down", ValueText(&uplink, keys), ValueText(&downlink, keys))
}

/// Allocation and retention priority (TS 23.401 clause 4.7.3) in one byte, encoded as in TS 29.274
/// clause 8.86.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arp {
    /// Priority.
    pub priority: PriorityLevel,
    /// True if it may pre-empt other bearers.
    pub may_preempt: bool,
    /// True if other bearers may pre-empt it.
    pub is_preemptable: bool,
}

/// Set if it may *not* pre-empt.
const CANNOT_PREEMPT: u8 = 0x40;
/// Set if it may *not* be pre-empted.
const NOT_PREEMPTABLE: u8 = 0x01;
const ARP_SPARE: u8 = 0x82;
const ARP_NAMES: [&str; 3] = ["priorityLevel", "preemptCap", "preemptVuln"];

text_impls!(Arp);

impl Value for Arp {
    const BYTES: usize = 1;

    #[inline]
    fn check(slot: &[u8]) -> Result<(), &'static str> {
        let [byte] = front(slot);
        if byte & ARP_SPARE == 0 && byte >> 2 & 15 != 0 {
            Ok(())
        } else {
            Err("has a priority of 0, or a spare bit set")
        }
    }

    #[inline]
    fn load(slot: &[u8]) -> Self {
        let [byte] = front(slot);
        Self {
            priority: PriorityLevel::load(&[byte >> 2 & 15]),
            may_preempt: byte & CANNOT_PREEMPT == 0,
            is_preemptable: byte & NOT_PREEMPTABLE == 0,
        }
    }

    #[inline]
    fn store(&self, slot: &mut [u8]) {
        let cannot_preempt = if self.may_preempt { 0 } else { CANNOT_PREEMPT };
        let not_preemptable = if self.is_preemptable { 0 } else { NOT_PREEMPTABLE };
        fill(slot, &[self.priority.get() << 2 | cannot_preempt | not_preemptable]);
    }

    #[inline]
    fn drawn(draw: Draw) -> Self {
        let bits = draw.word(1);
        Self {
            priority: PriorityLevel::drawn(draw),
            may_preempt: bits & 1 == 0,
            is_preemptable: bits & 2 == 0,
        }
    }

    fn text(&self, keys: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let may = if self.may_preempt { "may" } else { "may not" };
        let can = if self.is_preemptable { "can" } else { "cannot" };
        let priority = ValueText(&self.priority, keys);
        write!(f, "priority {priority}, {may} pre-empt, {can} be pre-empted")
    }

    /// With the names and values of TS 29.571 clause 5.5.4.
    fn json(&self, keys: KeyText) -> Json {
        let [level, cap, vuln] = ARP_NAMES.map(str::to_owned);
        let may = if self.may_preempt { MAY } else { MAY_NOT };
        let can = if self.is_preemptable { CAN } else { CANNOT };
        Json::Object(Map::from_iter([
            (level, self.priority.json(keys)),
            (cap, Json::from(may)),
            (vuln, Json::from(can)),
        ]))
    }

    fn from_json(json: &Json) -> Result<Self, String> {
        let [level, cap, vuln] = ARP_NAMES;
        let object = object(json, &ARP_NAMES)?;
        let flag = |json: &Json, yes: &str, no: &str| match string(json)? {
            text if text == yes => Ok(true),
            text if text == no => Ok(false),
            text => Err(format!("{text:?}: give {yes} or {no}")),
        };
        Ok(Self {
            priority: member(object, level, PriorityLevel::from_json)?,
            may_preempt: member(object, cap, |json| flag(json, MAY, MAY_NOT))?,
            is_preemptable: member(object, vuln, |json| flag(json, CAN, CANNOT))?,
        })
    }
}

const MAY: &str = "MAY_PREEMPT";
const MAY_NOT: &str = "NOT_PREEMPT";
const CAN: &str = "PREEMPTABLE";
const CANNOT: &str = "NOT_PREEMPTABLE";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_a_valid_priority_or_rejected() {
        let mut legal = 0;
        for byte in 0..=u8::MAX {
            if Arp::check(&[byte]).is_ok() {
                let mut back = [0];
                let arp = Arp::load(&[byte]);
                arp.store(&mut back);
                assert_eq!(back, [byte]);
                assert_eq!(Arp::from_json(&arp.json(KeyText::Whole)), Ok(arp));
                legal += 1;
            }
        }
        assert_eq!(legal, 15 * 2 * 2);
    }
}
