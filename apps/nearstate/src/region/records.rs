//! How many records the namespaces of a region have.

use std::fmt::Write as _;

use nearstate_model::Result;
use nearstate_store::Region;
use serde_json::Value;

/// The namespaces in the order of creation, without internal ones, each with its records. Reads the
/// index, and records only in namespaces in which some expire.
pub(super) fn counts(region: &Region) -> Result<Vec<(String, u64)>> {
    let session = region.session()?;
    let counted = session.namespaces()?.into_iter().map(|(name, namespace)| {
        let records = session.count(namespace)?;
        Ok((name, records))
    });
    counted.collect()
}

pub(super) fn text(counts: &[(String, u64)]) -> String {
    let all: u64 = counts.iter().map(|(_, records)| records).sum();
    let mut text = format!("\nrecords     {all}");
    for (name, records) in counts {
        // Writing to a string does not fail.
        let _ = write!(text, "\n            {name}: {records}");
    }
    text
}

pub(super) fn json(counts: &[(String, u64)]) -> Value {
    counts.iter().map(|(name, records)| (name.clone(), Value::from(*records))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::run;
    use super::super::tests::TestCli;
    use super::*;
    use clap::Parser;
    use nearstate_store::{CreateOptions, Schema};

    #[test]
    fn the_records_of_each_namespace_are_counted_if_that_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let region = Region::create(&path, &CreateOptions::default()).unwrap();
        let session = region.session().unwrap();
        for (name, records) in [("amf", 3), ("smf", 0)] {
            let namespace = session.namespace(name, &Schema::default()).unwrap();
            for number in 0..records {
                session.put(namespace, &[number], b"v").unwrap();
            }
        }
        let inspect = |more: &[&str]| {
            let line = ["region", "inspect", path.to_str().unwrap()];
            let command = TestCli::try_parse_from(line.iter().chain(more)).unwrap().command;
            let mut out = Vec::new();
            run(command, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let shown = inspect(&["--records"]);
        let counted = "\nrecords     3\n            amf: 3\n            smf: 0\n";
        assert!(shown.ends_with(counted), "{shown}");
        let shown: Value = serde_json::from_str(&inspect(&["--records", "--json"])).unwrap();
        assert_eq!(shown["records"], serde_json::json!({ "amf": 3, "smf": 0 }));
        assert!(!inspect(&[]).contains("\nrecords"));
    }
}
