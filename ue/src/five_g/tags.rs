//! The tags of a context of 5GS.

use super::procedure::SessionPlace;
use super::{ContextView, Variable};
use crate::tag::TagDeclaration;
use crate::value::session::PduSession;

/// The tags of a namespace of contexts. A store declares them once; [`tags`] gives their values.
///
/// The AMF-UE-NGAP-ID is a number of one AMF: where several keep their contexts together, look at
/// the GUAMI too.
pub const SCHEMA: [TagDeclaration; 6] = [
    TagDeclaration { name: "supi", is_unique: true },
    TagDeclaration { name: "5g-guti", is_unique: true },
    TagDeclaration { name: "amf-ue-ngap-id", is_unique: false },
    TagDeclaration { name: "sm-context", is_unique: false },
    TagDeclaration { name: "ip", is_unique: false },
    TagDeclaration { name: "n3-teid", is_unique: false },
];

/// The most values that [`tags`] gives.
pub const TAGS_MAX: usize = 3 + 4 * super::SESSIONS_MAX;

/// Name and value of each tag, with the bytes of the context: a SUPI's eight bytes, a GUTI's ten,
/// an AMF-UE-NGAP-ID's five; of each session its context's sixteen, its IPv4 address' four, its
/// IPv6 prefix' eight, its tunnel end's eight. Nothing is allocated.
pub fn tags<'a>(
    view: &ContextView<'a>,
) -> impl Iterator<Item = (&'static str, &'a [u8])> + use<'a> {
    let view = *view;
    let fixed = [
        ("supi", view.raw(Variable::Supi)),
        ("5g-guti", view.raw(Variable::Guti)),
        ("amf-ue-ngap-id", view.raw(Variable::AmfUeNgapId)),
    ];
    let sessions = SessionPlace::ALL.into_iter().flat_map(move |place| {
        let parts = view.raw(place.variable()).and_then(PduSession::parts);
        [
            ("sm-context", parts.map(|parts| parts.sm_context)),
            ("ip", parts.and_then(|parts| parts.v4)),
            ("ip", parts.and_then(|parts| parts.v6)),
            ("n3-teid", parts.map(|parts| parts.upf)),
        ]
    });
    fixed.into_iter().chain(sessions).filter_map(|(name, value)| Some((name, value?)))
}
