//! Traffic flow templates: the packets that a bearer carries.

use std::fmt;
use std::net::Ipv4Addr;

use nearstate_model::Result;
use serde_json::Value as Json;

use super::composite::part;
use super::{KeyText, Value, fill, front, is_zero, refused, string, text_impls};
use crate::draw::Draw;

/// The longest template, in bytes. TS 24.008 allows 255. One to three IPv4 filters, as default and
/// voice bearers have, take 10 to 31. A longer template is refused.
pub const TFT_BYTES_MAX: usize = 31;
const TFT_SLOT: usize = 1 + TFT_BYTES_MAX;

/// Operation 1, "create": the operation code of a stored template. The low bits are the number of
/// filters.
const CREATE: u8 = 0b0010_0000;
const COUNT_MASK: u8 = 0b0000_1111;
const SPARE_MASK: u8 = 0b1100_0000;

/// Packet filters in the encoding of TS 24.008 clause 10.5.6.12: for each filter a direction and an
/// identifier, a precedence, a length, components.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tft([u8; TFT_SLOT]);

/// One filter of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFilter<'a> {
    /// Two bits of direction (1 down, 2 up, 3 both), four bits of the filter's identifier.
    pub head: u8,
    /// Precedence: the filter with the lowest value is evaluated first.
    pub precedence: u8,
    /// Types and values of the components.
    pub components: &'a [u8],
}

/// The size of a component's value, by its type.
const fn component_bytes(kind: u8) -> Option<usize> {
    match kind {
        0x30 => Some(1),
        0x40 | 0x50 | 0x70 => Some(2),
        0x80 => Some(3),
        0x41 | 0x51 | 0x60 => Some(4),
        0x10 | 0x11 => Some(8),
        0x21 | 0x23 => Some(17),
        0x20 => Some(32),
        _ => None,
    }
}

/// Splits off the first filter. `None` if it is truncated or empty.
fn split_filter(bytes: &[u8]) -> Option<(PacketFilter<'_>, &[u8])> {
    let ([head, precedence, length], rest) = bytes.split_first_chunk::<3>()?;
    let (components, rest) = rest.split_at_checked(usize::from(*length))?;
    let filter = PacketFilter { head: *head, precedence: *precedence, components };
    (head & SPARE_MASK == 0 && *length > 0).then_some((filter, rest))
}

fn split_component(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    let (value, rest) = rest.split_at_checked(component_bytes(*kind)?)?;
    Some((*kind, value, rest))
}

fn check_template(bytes: &[u8]) -> std::result::Result<(), &'static str> {
    let Some((first, mut rest)) = bytes.split_first() else { return Err("is empty") };
    if first & !COUNT_MASK != CREATE || first & COUNT_MASK == 0 {
        return Err("does not start with operation 1 and 1 to 15 filters");
    }
    for _ in 0..first & COUNT_MASK {
        let (filter, after) = split_filter(rest).ok_or("has a truncated or empty filter")?;
        let mut components = filter.components;
        while !components.is_empty() {
            (_, _, components) =
                split_component(components).ok_or("has an unknown or truncated component")?;
        }
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err("has bytes after its last filter") }
}

impl Tft {
    /// The template of these bytes: the value part of the information element.
    ///
    /// # Errors
    /// `BadArgument`.
    pub fn new(bytes: &[u8]) -> Result<Self> {
        Self::of(bytes).or_else(refused)
    }

    fn of(bytes: &[u8]) -> std::result::Result<Self, String> {
        check_template(bytes).map_err(|what| format!("the traffic flow template {what}"))?;
        let mut slot = [0; TFT_SLOT];
        let (length, body) = slot.split_at_mut(1);
        match (body.get_mut(..bytes.len()), u8::try_from(bytes.len())) {
            (Some(front), Ok(count)) => {
                front.copy_from_slice(bytes);
                fill(length, &[count]);
                Ok(Self(slot))
            }
            (_, _) => Err(format!(
                "a traffic flow template of {} bytes: give at most {TFT_BYTES_MAX}",
                bytes.len()
            )),
        }
    }

    /// Its bytes: the value part of the information element.
    pub fn as_bytes(&self) -> &[u8] {
        let [length, body @ ..] = &self.0;
        body.get(..usize::from(*length)).unwrap_or_default()
    }

    /// Its filters.
    pub fn filters(&self) -> impl Iterator<Item = PacketFilter<'_>> {
        let mut rest = self.as_bytes().get(1..).unwrap_or_default();
        std::iter::from_fn(move || {
            let (filter, after) = split_filter(rest)?;
            rest = after;
            Some(filter)
        })
    }
}

text_impls!(Tft);

impl Value for Tft {
    const BYTES: usize = TFT_SLOT;

    #[inline]
    fn check(slot: &[u8]) -> std::result::Result<(), &'static str> {
        let (length, body) = part(slot, 1);
        let [length] = front(length);
        let (used, unused) =
            body.split_at_checked(usize::from(length)).ok_or("is longer than its slot")?;
        check_template(used)?;
        if is_zero(unused) { Ok(()) } else { Err("has bytes after its end") }
    }

    #[inline]
    fn load(slot: &[u8]) -> Self {
        Self(front(slot))
    }

    #[inline]
    fn store(&self, slot: &mut [u8]) {
        fill(slot, &self.0);
    }

    /// One filter: UDP packets between the UE and a port of one host.
    #[inline]
    fn drawn(draw: Draw) -> Self {
        const COMPONENTS: u8 = 9 + 2 + 3;
        const BYTES: u8 = 1 + 3 + COMPONENTS;
        let [b, c, d, high, low, precedence, _, _] = draw.word(0).to_be_bytes();
        let mut slot = [0; TFT_SLOT];
        fill(&mut slot, &[BYTES, CREATE | 1, 0x31, precedence, COMPONENTS]);
        if let Some(rest) = slot.get_mut(5..) {
            let host = [0x10, 10, b, c, d, 255, 255, 255, 255];
            fill(rest, &host);
            if let Some(rest) = rest.get_mut(host.len()..) {
                fill(rest, &[0x30, 17, 0x50, high, low]);
            }
        }
        Self(slot)
    }

    fn text(&self, _: KeyText, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, filter) in self.filters().enumerate() {
            let between = if number == 0 { "" } else { "; " };
            write!(f, "{between}{filter}")?;
        }
        Ok(())
    }

    /// Hexadecimal digits of the information element.
    fn json(&self, _: KeyText) -> Json {
        Json::from(super::hex(self.as_bytes()))
    }

    fn from_json(json: &Json) -> std::result::Result<Self, String> {
        let text = string(json)?;
        if text.len() > 2 * TFT_BYTES_MAX || text.len() % 2 != 0 || !text.is_ascii() {
            return Err(format!("give at most {TFT_BYTES_MAX} bytes in hexadecimal digits"));
        }
        let pairs = text.as_bytes().chunks(2).map(|pair| {
            let [byte] = super::unhex::<1>(str::from_utf8(pair).unwrap_or_default())?;
            Ok(byte)
        });
        Self::of(&pairs.collect::<std::result::Result<Vec<u8>, String>>()?)
    }
}

impl fmt::Display for PacketFilter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.head >> 4 & 3 {
            1 => "down",
            2 => "up",
            3 => "both ways",
            _ => "as agreed",
        };
        write!(f, "{way}, precedence {}", self.precedence)?;
        let mut rest = self.components;
        while let Some((kind, value, after)) = split_component(rest) {
            match (kind, value) {
                (0x10, [address @ .., _, _, _, _]) if address.len() == 4 => {
                    let mask = value.get(4..).unwrap_or_default();
                    let (host, mask) = (Ipv4Addr::load(address), Ipv4Addr::load(mask));
                    write!(f, ", remote {host}/{mask}")?;
                }
                (0x30, [protocol]) => write!(f, ", protocol {protocol}")?,
                (0x40, [high, low]) => {
                    write!(f, ", local port {}", u16::from_be_bytes([*high, *low]))?;
                }
                (0x50, [high, low]) => {
                    write!(f, ", remote port {}", u16::from_be_bytes([*high, *low]))?;
                }
                (_, _) => {
                    write!(f, ", {kind:02x}:")?;
                    f.write_str(&super::hex(value))?;
                }
            }
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_template_is_parsed() {
        for draw in 0..20 {
            let tft = Tft::drawn(Draw::new(draw, 3));
            assert_eq!(Tft::check(&tft.0), Ok(()));
            assert_eq!(tft.filters().count(), 1);
            assert_eq!(Tft::from_json(&tft.json(KeyText::Whole)), Ok(tft));
            assert_eq!(Tft::new(tft.as_bytes()), Ok(tft));
        }
        let text = Tft::new(&[0x21, 0x31, 7, 5, 0x30, 6, 0x40, 0, 80]).unwrap().to_string();
        assert_eq!(text, "both ways, precedence 7, protocol 6, local port 80");
    }

    #[test]
    fn truncated_or_oversized_templates_are_rejected() {
        let bad: [&[u8]; 9] = [
            &[],
            &[0x21],
            &[0x20],
            &[0x41, 0x31, 7, 2, 0x30, 6],
            &[0x21, 0x31, 7, 0],
            &[0x21, 0x31, 7, 3, 0x30, 6],
            &[0x21, 0x31, 7, 2, 0x99, 6],
            &[0x21, 0x31, 7, 2, 0x30, 6, 0],
            &[0x21, 0xf1, 7, 2, 0x30, 6],
        ];
        for bytes in bad {
            assert!(Tft::new(bytes).is_err(), "{bytes:02x?}");
        }
        let mut long = vec![0x22];
        for _ in 0..2 {
            long.extend([0x31, 7, 12, 0x30, 6, 0x30, 6, 0x30, 6, 0x30, 6, 0x30, 6, 0x30, 6]);
        }
        assert_eq!(long.len(), 31);
        assert!(Tft::new(&long).is_ok());
        long[0] = 0x23;
        long.extend([0x31, 7, 2, 0x30, 6]);
        assert!(Tft::new(&long).unwrap_err().to_string().contains("31"), "the limit is 31 bytes");
    }
}
