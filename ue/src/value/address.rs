//! Addresses: IPv4 addresses, IPv6 prefixes, and the address of a UE.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Map, Value as Json};

use super::composite::{member, object};
use super::{KeyText, Value, fill, front, string, text_impls};
use crate::draw::Draw;

impl Value for Ipv4Addr {
    const BYTES: usize = 4;

    #[inline]
    fn check(_: &[u8]) -> Result<(), &'static str> {
        Ok(())
    }

    #[inline]
    fn load(slot: &[u8]) -> Self {
        Self::from(front::<4>(slot))
    }

    #[inline]
    fn store(&self, slot: &mut [u8]) {
        fill(slot, &self.octets());
    }

    /// An address in 10.0.0.0/8 (RFC 1918).
    #[inline]
    fn drawn(draw: Draw) -> Self {
        let [_, b, c, d] = draw.bytes();
        Self::new(10, b, c, d)
    }

    fn text(&self, _: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }

    fn json(&self, _: KeyText) -> Json {
        Json::from(self.to_string())
    }

    fn from_json(json: &Json) -> Result<Self, String> {
        let text = string(json)?;
        text.parse().map_err(|_| format!("{text:?} is not an IPv4 address"))
    }
}

/// The IPv6 prefix of a UE, 64 bits (TS 23.401 clause 5.3.1.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix([u8; 8]);

impl Prefix {
    /// The prefix of these bytes.
    pub const fn new(bytes: [u8; 8]) -> Self {
        Self(bytes)
    }

    /// The first address of the prefix.
    pub fn address(self) -> Ipv6Addr {
        Ipv6Addr::from(u128::from(u64::from_be_bytes(self.0)) << 64)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let address = text.strip_suffix("/64").and_then(|front| front.parse::<Ipv6Addr>().ok());
        match address.map(Ipv6Addr::to_bits) {
            Some(bits) if bits.trailing_zeros() >= 64 => Ok(Self(front(&bits.to_be_bytes()))),
            Some(_) | None => Err(format!("{text:?} is not a prefix like 2001:db8:1:2::/64")),
        }
    }
}

/// The address of a UE in a packet data network (TS 24.301 clause 9.9.4.9); for IPv6, its prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UeAddress {
    /// IPv4 only.
    V4(Ipv4Addr),
    /// IPv6 only.
    V6(Prefix),
    /// Both.
    V4V6(Ipv4Addr, Prefix),
}

/// The type octet, the IPv4 address, the prefix; absent parts are zero.
const UE_ADDRESS_BYTES: usize = 1 + 4 + 8;
/// Values of the type octet: 1 IPv4, 2 IPv6, 3 both.
const V4: u8 = 1;
const V6: u8 = 2;

impl UeAddress {
    /// The IPv4 address.
    pub const fn v4(self) -> Option<Ipv4Addr> {
        match self {
            Self::V4(v4) | Self::V4V6(v4, _) => Some(v4),
            Self::V6(_) => None,
        }
    }

    /// The prefix.
    pub const fn v6(self) -> Option<Prefix> {
        match self {
            Self::V6(v6) | Self::V4V6(_, v6) => Some(v6),
            Self::V4(_) => None,
        }
    }

    /// The bytes of the IPv4 address and of the prefix in a slot, if present.
    pub(crate) fn parts(slot: &[u8]) -> (Option<&[u8]>, Option<&[u8]>) {
        let [kind] = front(slot);
        let v4 = slot.get(1..5).filter(|_| kind & V4 != 0);
        let v6 = slot.get(5..13).filter(|_| kind & V6 != 0);
        (v4, v6)
    }
}

text_impls!(UeAddress);

impl Value for UeAddress {
    const BYTES: usize = UE_ADDRESS_BYTES;

    #[inline]
    fn check(slot: &[u8]) -> Result<(), &'static str> {
        let [kind, a, b, c, d, prefix @ ..] = front::<UE_ADDRESS_BYTES>(slot);
        let has_v4 = u32::from_be_bytes([a, b, c, d]) != 0;
        let has_v6 = u64::from_be_bytes(prefix) != 0;
        match (kind, has_v4, has_v6) {
            (V4, _, true) => Err("is IPv4 only and has a prefix"),
            (V6, true, _) => Err("is IPv6 only and has an IPv4 address"),
            (1..=3, _, _) => Ok(()),
            (0 | 4.., _, _) => Err("is of a type other than 1 to 3"),
        }
    }

    #[inline]
    fn load(slot: &[u8]) -> Self {
        let [kind, a, b, c, d, prefix @ ..] = front::<UE_ADDRESS_BYTES>(slot);
        let v4 = Ipv4Addr::new(a, b, c, d);
        match (kind & V4 != 0, kind & V6 != 0) {
            (true, true) => Self::V4V6(v4, Prefix(prefix)),
            (false, true) => Self::V6(Prefix(prefix)),
            (_, false) => Self::V4(v4),
        }
    }

    #[inline]
    fn store(&self, slot: &mut [u8]) {
        let kind = u8::from(self.v4().is_some()) * V4 + u8::from(self.v6().is_some()) * V6;
        let mut bytes = [0; UE_ADDRESS_BYTES];
        let [first, rest @ ..] = &mut bytes;
        *first = kind;
        let (v4, v6) = rest.split_at_mut(4);
        fill(v4, &self.v4().map_or([0; 4], |address| address.octets()));
        fill(v6, &self.v6().map_or([0; 8], |prefix| prefix.0));
        fill(slot, &bytes);
    }

    /// IPv4 and a documentation prefix (RFC 3849). Most UEs request both types.
    #[inline]
    fn drawn(draw: Draw) -> Self {
        let [a, b, c, d] = draw.part(1).bytes();
        Self::V4V6(Ipv4Addr::drawn(draw), Prefix([0x20, 0x01, 0x0d, 0xb8, a, b, c, d]))
    }

    fn text(&self, _: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(v4) => write!(f, "{v4}"),
            Self::V6(v6) => write!(f, "{}/64", v6.address()),
            Self::V4V6(v4, v6) => write!(f, "{v4} {}/64", v6.address()),
        }
    }

    fn json(&self, _: KeyText) -> Json {
        let mut object = Map::new();
        if let Some(v4) = self.v4() {
            object.insert("ipv4Addr".to_owned(), Json::from(v4.to_string()));
        }
        if let Some(v6) = self.v6() {
            let text = format!("{}/64", v6.address());
            object.insert("ipv6Prefix".to_owned(), Json::from(text));
        }
        Json::Object(object)
    }

    fn from_json(json: &Json) -> Result<Self, String> {
        let object = object(json, &["ipv4Addr", "ipv6Prefix"])?;
        let has = |name: &str| object.contains_key(name);
        let v4 = || member(object, "ipv4Addr", Ipv4Addr::from_json);
        let v6 = || member(object, "ipv6Prefix", |json| Prefix::parse(string(json)?));
        match (has("ipv4Addr"), has("ipv6Prefix")) {
            (true, true) => Ok(Self::V4V6(v4()?, v6()?)),
            (true, false) => Ok(Self::V4(v4()?)),
            (false, true) => Ok(Self::V6(v6()?)),
            (false, false) => Err("give ipv4Addr, ipv6Prefix, or both".to_owned()),
        }
    }
}
