//! The tags of a context.

use super::{ContextView, Variable};
use crate::tag::TagDeclaration;
use crate::value::address::UeAddress;

/// The tags of a namespace of contexts. A store declares them once; [`tags`] returns their values.
pub const SCHEMA: [TagDeclaration; 5] = [
    TagDeclaration { name: "imsi", is_unique: true },
    TagDeclaration { name: "guti", is_unique: true },
    TagDeclaration { name: "ip", is_unique: false },
    TagDeclaration { name: "s1-teid", is_unique: false },
    TagDeclaration { name: "s5-teid", is_unique: false },
];

/// The largest number of values that [`tags`] returns.
pub const TAGS_MAX: usize = 8;

/// Name and value of each tag, as bytes of the context: 8 of the IMSI, 10 of the GUTI, 4 of the
/// IPv4 address, 8 of the IPv6 prefix, 8 of each tunnel end (TEID and address, because a TEID is
/// unique within its node only). Does not allocate. For a lookup, encode the value with
/// [`to_bytes`](crate::value::to_bytes).
pub fn tags<'a>(
    view: &ContextView<'a>,
) -> impl Iterator<Item = (&'static str, &'a [u8])> + use<'a> {
    let view = *view;
    let (v4, v6) = view.raw(Variable::Ip).map_or((None, None), UeAddress::parts);
    let s5 = view.raw(Variable::S5).and_then(|slot| slot.split_at_checked(slot.len() / 2));
    let all: [(&str, Option<&[u8]>); TAGS_MAX] = [
        ("imsi", view.raw(Variable::Imsi)),
        ("guti", view.raw(Variable::Guti)),
        ("ip", v4),
        ("ip", v6),
        ("s1-teid", view.raw(Variable::S1Uplink)),
        ("s1-teid", view.raw(Variable::S1Downlink)),
        ("s5-teid", s5.map(|(uplink, _)| uplink)),
        ("s5-teid", s5.map(|(_, downlink)| downlink)),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?)))
}
