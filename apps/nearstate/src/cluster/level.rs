//! Levels: what the program of each host can do, and what all of them can.

use nearstate_cluster::ClusterLevel;
use serde_json::Value;

/// The level of a program that reports none.
const UNREPORTED: u64 = 1;

/// The highest level that this program can do. A test makes it an earlier one.
pub(crate) fn highest() -> ClusterLevel {
    let is_earlier = nearstate_store::crash::is_planted("first-level");
    if is_earlier { ClusterLevel::FIRST } else { ClusterLevel::HIGHEST }
}

/// The level to which the cluster can be raised, by the statuses of all hosts of its file. Those of
/// `without` that do not answer are left out. `None`: it has the highest level of all others.
///
/// # Errors
/// The other hosts that do not answer; or those that cannot do more than the cluster has, while
/// another one can.
pub(crate) fn next(statuses: &[Value], without: &[String]) -> Result<Option<ClusterLevel>, String> {
    let name = |status: &Value| status["host"].as_str().unwrap_or("?").to_owned();
    let is_silent = |status: &&Value| !status["unreachable"].is_null();
    let (silent, statuses): (Vec<&Value>, Vec<&Value>) = statuses.iter().partition(is_silent);
    let missed: Vec<String> =
        silent.into_iter().map(name).filter(|name| !without.contains(name)).collect();
    if !missed.is_empty() {
        return Err(format!(
            "{} did not answer: start the nodes of all hosts of the cluster file. One that is lost \
             for good is left out with --without NAME",
            missed.join(", ")
        ));
    }
    let number = |status: &Value, key: &str| status[key].as_u64().unwrap_or(UNREPORTED);
    let decided =
        statuses.iter().map(|&status| number(status, "level")).max().unwrap_or(UNREPORTED);
    let highest = |status: &Value| number(status, "level_highest");
    let of_all = statuses.iter().copied().map(highest).min().unwrap_or(UNREPORTED);
    if of_all > decided {
        let level = u16::try_from(of_all).map_err(|_| format!("there is no level {of_all}"))?;
        return Ok(Some(ClusterLevel(level)));
    }
    let behind = |status: &&Value| highest(status) <= decided;
    if statuses.iter().all(behind) {
        return Ok(None);
    }
    let behind = statuses.iter().copied().filter(behind);
    let behind: Vec<_> =
        behind.map(|status| format!("{} (level {})", name(status), highest(status))).collect();
    Err(format!(
        "{} cannot do more than the level {decided} that the cluster has: start the version of the \
         other hosts there",
        behind.join(", ")
    ))
}

/// The level to which the cluster is raised before a partition continues behind what regions have
/// seen. `None`: it has that.
///
/// # Errors
/// The hosts that answer and cannot do it; or those of [`next`].
pub(crate) fn for_raised_views(
    statuses: &[Value],
    without: &[String],
) -> Result<Option<ClusterLevel>, String> {
    let needed = u64::from(ClusterLevel::RAISED_VIEWS.0);
    let answering = || statuses.iter().filter(|status| status["unreachable"].is_null());
    let number = |status: &Value, key: &str| status[key].as_u64().unwrap_or(UNREPORTED);
    let behind: Vec<_> = answering()
        .filter(|status| number(status, "level_highest") < needed)
        .map(|status| status["host"].as_str().unwrap_or("?"))
        .collect();
    if !behind.is_empty() {
        return Err(format!(
            "{} cannot do level {needed}, which this needs: start the version of this host there. \
             Nothing is changed",
            behind.join(", ")
        ));
    }
    let has_it = answering().any(|status| number(status, "level") >= needed);
    if has_it { Ok(None) } else { next(statuses, without) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn hosts(hosts: &[(&str, u64, u64)]) -> Vec<Value> {
        let status = |(host, level, highest): &(&str, u64, u64)| {
            let mut status = json!({ "host": host, "level": level });
            status["level_highest"] = json!(highest);
            status
        };
        hosts.iter().map(status).collect()
    }

    #[test]
    fn the_level_rises_to_what_all_hosts_can() {
        let next = |all: &[_]| next(&hosts(all), &[]);
        assert_eq!(next(&[("a", 1, 3), ("b", 1, 2), ("c", 1, 3)]), Ok(Some(ClusterLevel(2))));
        assert_eq!(next(&[("a", 2, 2), ("b", 2, 2)]), Ok(None));
        // One host has not applied the last decision yet.
        assert_eq!(next(&[("a", 1, 2), ("b", 2, 2)]), Ok(None));
    }

    #[test]
    fn a_view_is_raised_only_if_all_hosts_that_answer_can() {
        let lost = json!({ "host": "c", "unreachable": "no route" });
        let all = |known: &[_]| [hosts(known), vec![lost.clone()]].concat();
        let without = ["c".to_owned()];
        let can = all(&[("a", 1, 4), ("b", 1, 3)]);
        assert_eq!(for_raised_views(&can, &without), Ok(Some(ClusterLevel(3))));
        assert!(for_raised_views(&can, &[]).unwrap_err().starts_with("c did not answer"));
        let has = all(&[("a", 3, 4), ("b", 1, 3)]);
        assert_eq!(for_raised_views(&has, &without), Ok(None));
        let old = all(&[("a", 1, 3), ("b", 1, 2)]);
        let reason = for_raised_views(&old, &without).unwrap_err();
        assert!(reason.starts_with("b cannot do level 3"), "{reason}");
    }

    #[test]
    fn hosts_that_cannot_or_do_not_answer_are_named() {
        let refused = next(&hosts(&[("a", 2, 3), ("b", 2, 2), ("c", 2, 2)]), &[]).unwrap_err();
        assert!(refused.starts_with("b (level 2), c (level 2) cannot"), "{refused}");
        let lost = json!({ "host": "c", "unreachable": "no route" });
        let all = [hosts(&[("a", 1, 2), ("b", 1, 2)]), vec![lost]].concat();
        assert!(next(&all, &[]).unwrap_err().starts_with("c did not answer"));
        let other = ["a".to_owned()];
        assert!(next(&all, &other).unwrap_err().starts_with("c did not answer"));
        assert_eq!(next(&all, &["c".to_owned()]), Ok(Some(ClusterLevel(2))));
        // One that answers counts, whatever is given.
        let behind = hosts(&[("a", 1, 2), ("b", 1, 1)]);
        assert!(next(&behind, &["b".to_owned()]).unwrap_err().starts_with("b (level 1) cannot"));
        // A program that knows no levels can do the first one.
        let old = [hosts(&[("a", 1, 2)]), vec![json!({ "host": "b" })]].concat();
        assert!(next(&old, &[]).unwrap_err().starts_with("b (level 1) cannot"));
    }
}
