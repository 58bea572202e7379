//! Hosts that the file has as removed, which must be so in the membership and in all groups.

use serde_json::Value;

use super::file::ClusterFile;
use super::row::{CheckRow, RowOutcome};
use super::show::items;

/// What a host that answers says of those that the file has as removed.
pub(super) fn check<'f>(
    file: &'f ClusterFile,
    other: &'f str,
    report: &str,
) -> impl Iterator<Item = CheckRow> + 'f {
    let report: Value = serde_json::from_str(report).unwrap_or_default();
    file.removed.iter().filter_map(move |host| {
        let is_it = |name: &Value| name.as_str() == Some(&host.name);
        let votes = report.get("membership").is_some_and(|of| items(of, "voters").any(is_it));
        let belongs = items(&report, "partitions").find(|copy| items(copy, "group").any(is_it));
        let what = match (votes, belongs) {
            (false, None) => return None,
            (true, _) => format!("votes: `nearstate cluster remove {}`", host.name),
            (false, Some(copy)) => {
                let partition = copy["partition"].as_str().unwrap_or_default();
                format!(
                    "belongs to the group of {partition}: `nearstate cluster remove {} --partition \
                     {partition}`",
                    host.name
                )
            }
        };
        let detail = format!(
            "{other} says that it still {what}, with a file in which it is not removed. Until then \
             the others do not reach it"
        );
        Some(CheckRow::new("removed host", &host.name, RowOutcome::Failed, detail))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::file::tests::GOOD;
    use serde_json::json;

    #[test]
    fn a_host_that_votes_or_has_a_copy_is_not_removed() {
        let text = GOOD.replacen("name = \"c\"", "name = \"c\"\nremoved = true", 1);
        let file = ClusterFile::parse(&text).unwrap();
        let found = |voters: &[&str], group: &[&str]| {
            let partitions = json!([{ "partition": "amf", "group": group }]);
            let report = json!({ "membership": { "voters": voters }, "partitions": partitions });
            let rows: Vec<CheckRow> = check(&file, "a", &report.to_string()).collect();
            rows.into_iter().map(|row| row.detail).collect::<Vec<_>>()
        };
        assert_eq!(found(&["a", "b", "d"], &["a", "b", "d"]), Vec::<String>::new());
        let votes = found(&["a", "b", "c"], &["a", "b", "c"]);
        assert!(votes[0].contains("a says that it still votes: `nearstate cluster remove c`"));
        let member = found(&["a", "b"], &["a", "b", "c"]);
        assert!(member[0].contains("cluster remove c --partition amf`"), "{member:?}");
        assert_eq!((votes.len(), member.len()), (1, 1));
    }
}
