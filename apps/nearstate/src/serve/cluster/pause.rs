//! Whether writers could go on after a drain. Looked at before it begins.

use serde_json::Value;

use super::votes::silent_reason;

/// Why a drain would stop writers for long: fewer of the other complete copies than must hold a
/// commit have hosts that answer, so the drained host has to join first, and it keeps its copy for
/// a while in case that the next owner is lost. In a group in which that is so at best, a drain is
/// accepted.
pub(super) fn pauses(
    others: &[String],
    (hosts, acknowledgements): (usize, usize),
    statuses: &Value,
) -> Option<String> {
    let answering = others.iter().filter(|host| silent_reason(statuses, host).is_none()).count();
    if hosts <= acknowledgements || answering >= acknowledgements {
        return None;
    }
    Some(format!(
        "complete copies that answer beside this one: {answering}; copies that must hold a commit: \
         {acknowledgements}. So writers would be refused until this host has joined again, which \
         begins after 20 leases. Start the nodes of the other hosts, and wait until cluster status \
         counts them. All the same: nearstate cluster drain --pause-writers"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_drain_without_enough_other_copies_is_refused_with_the_way_out() {
        let all = json!([{ "host": "a" }, { "host": "b" }, { "host": "c" }]);
        let lost = json!([{ "host": "a" }, { "host": "b" }, { "host": "c", "unreachable": "x" }]);
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(pauses(&names(&["b", "c"]), (3, 2), &all), None);
        for (others, statuses) in [(&["b", "c"][..], &lost), (&["b"], &all), (&[], &all)] {
            let refused = pauses(&names(others), (3, 2), statuses).unwrap();
            assert!(refused.contains("--pause-writers"), "{refused}");
        }
        // Of two copies one is left at best.
        assert_eq!(pauses(&names(&["b"]), (2, 2), &lost), None);
    }
}
