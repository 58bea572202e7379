//! `nearstate region policy`: how the commits of a namespace are replicated.

use std::io::Write;

use clap::{Args, ValueEnum};
use nearstate_model::{Error, Result};
use nearstate_store::ReplicationPolicy;
use serde_json::json;

use super::{RegionArgs, print};

/// What `policy` sets.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    #[command(flatten)]
    region: RegionArgs,
    /// The namespace
    namespace: String,
    /// How its commits are replicated from now on; shown without this flag. A namespace that is
    /// logged cannot become local
    #[arg(long, value_enum)]
    set: Option<PolicyArg>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PolicyArg {
    /// They stay in this region
    Local,
    /// They go to the log, and do not wait for other hosts
    Async,
    /// They go to the log, and return when they are replicated
    Replicated,
}

impl From<PolicyArg> for ReplicationPolicy {
    fn from(policy: PolicyArg) -> Self {
        match policy {
            PolicyArg::Local => Self::Local,
            PolicyArg::Async => Self::Async,
            PolicyArg::Replicated => Self::Replicated,
        }
    }
}

/// Runs the subcommand.
pub(super) fn run(args: &PolicyArgs, out: &mut dyn Write) -> Result<()> {
    let session = args.region.attach()?.session()?;
    let Some(namespace) = session.known_namespace(&args.namespace)? else {
        return Err(Error::BadArgument {
            detail: format!(
                "the region has no namespace {:?}: `nearstate region inspect` lists them",
                args.namespace
            ),
        });
    };
    if let Some(policy) = args.set {
        session.set_replication_policy(namespace, policy.into())?;
    }
    let policy = session.replication_policy(namespace)?.name();
    let text = if args.region.json {
        json!({"namespace": args.namespace, "policy": policy}).to_string()
    } else {
        format!("{}: {policy}", args.namespace)
    };
    print(out, &text)
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestCli;
    use super::super::{inspection_json, inspection_text, run};
    use clap::Parser;
    use nearstate_store::{CreateOptions, Region};

    #[test]
    fn a_policy_is_shown_and_set_and_a_logged_namespace_stays_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let region = Region::create(&path, &CreateOptions::default()).unwrap();
        let session = region.session().unwrap();
        session.namespace("ue", &nearstate_store::Schema::default()).unwrap();
        let policy = |more: &[&str]| {
            let line = ["region", "policy", path.to_str().unwrap()];
            let command = TestCli::try_parse_from(line.iter().chain(more)).unwrap().command;
            let mut out = Vec::new();
            run(command, &mut out).map(|()| String::from_utf8(out).unwrap())
        };
        assert_eq!(policy(&["ue"]).unwrap(), "ue: local\n");
        assert_eq!(policy(&["ue", "--set", "replicated"]).unwrap(), "ue: replicated\n");
        let json = "{\"namespace\":\"ue\",\"policy\":\"async\"}\n";
        assert_eq!(policy(&["ue", "--set=async", "--json"]).unwrap(), json);
        let seen = region.inspect().unwrap();
        assert!(inspection_text(&seen, None).contains("buckets), async"));
        assert_eq!(inspection_json(&seen, None)["namespaces"][0]["policy"], "async");
        let refused = policy(&["ue", "--set=local"]).unwrap_err().to_string();
        assert!(refused.contains("stays so"), "{refused}");
        assert!(policy(&["other"]).unwrap_err().to_string().contains("no namespace \"other\""));
    }
}
