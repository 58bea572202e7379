//! The tags of a context of 5GS.

use super::procedure::SessionIndex;
use super::{ContextView, Variable};
use crate::tag::TagDeclaration;
use crate::value::session::PduSession;

/// The tags of a namespace of contexts. A store declares them once; [`tags`] returns their values.
///
/// The AMF-UE-NGAP-ID is unique within one AMF only. If several AMFs share a namespace, compare the
/// GUAMI too.
pub const SCHEMA: [TagDeclaration; 6] = [
    TagDeclaration { name: "supi", is_unique: true },
    TagDeclaration { name: "5g-guti", is_unique: true },
    TagDeclaration { name: "amf-ue-ngap-id", is_unique: false },
    TagDeclaration { name: "sm-context", is_unique: false },
    TagDeclaration { name: "ip", is_unique: false },
    TagDeclaration { name: "n3-teid", is_unique: false },
];

/// The largest number of values that [`tags`] returns.
pub const TAGS_MAX: usize = 3 + 4 * super::SESSIONS_MAX;

/// Name and value of each tag, as bytes of the context: 8 of the SUPI, 10 of the GUTI, 5 of the
/// AMF-UE-NGAP-ID; for each session 16 of its SMF context, 4 of its IPv4 address, 8 of its IPv6
/// prefix, 8 of its tunnel end. Does not allocate.
pub fn tags<'a>(
    view: &ContextView<'a>,
) -> impl Iterator<Item = (&'static str, &'a [u8])> + use<'a> {
    let view = *view;
    let fixed = [
        ("supi", view.raw(Variable::Supi)),
        ("5g-guti", view.raw(Variable::Guti)),
        ("amf-ue-ngap-id", view.raw(Variable::AmfUeNgapId)),
    ];
    let sessions = SessionIndex::ALL.into_iter().flat_map(move |session| {
        let parts = view.raw(session.variable()).and_then(PduSession::parts);
        [
            ("sm-context", parts.map(|parts| parts.sm_context)),
            ("ip", parts.and_then(|parts| parts.v4)),
            ("ip", parts.and_then(|parts| parts.v6)),
            ("n3-teid", parts.map(|parts| parts.upf)),
        ]
    });
    fixed.into_iter().chain(sessions).filter_map(|(name, value)| Some((name, value?)))
}
