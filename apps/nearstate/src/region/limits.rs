//! `nearstate region limit`: limits of namespaces, and what their records take.

use std::io::Write;

use clap::Args;
use nearstate_model::{Error, Result};
use nearstate_store::{NamespaceLimits, NamespaceUsage};
use serde_json::{Value, json};

use super::{RegionArgs, mib, parse_bytes, print};

/// What `limit` sets.
#[derive(Debug, Args)]
pub(crate) struct LimitArgs {
    #[command(flatten)]
    region: RegionArgs,
    /// The namespace
    namespace: String,
    /// Soft limit, above which the node logs a warning: a number with KiB, MiB, GiB or TiB; none
    /// without this flag
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    soft: Option<u64>,
    /// Hard limit, above which writes are refused; none without this flag
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    hard: Option<u64>,
    /// Remove the limits
    #[arg(long, conflicts_with_all = ["soft", "hard"])]
    none: bool,
}

/// Runs the subcommand.
pub(super) fn run(args: &LimitArgs, out: &mut dyn Write) -> Result<()> {
    let session = args.region.attach()?.session()?;
    let Some(namespace) = session.known_namespace(&args.namespace)? else {
        return Err(Error::BadArgument {
            detail: format!(
                "the region has no namespace {:?}: `nearstate region inspect` lists them",
                args.namespace
            ),
        });
    };
    if args.none || args.soft.is_some() || args.hard.is_some() {
        let (soft_bytes, hard_bytes) = (args.soft.unwrap_or(0), args.hard.unwrap_or(0));
        session.set_limits(namespace, NamespaceLimits { soft_bytes, hard_bytes })?;
    }
    let usage = session.usage(namespace)?;
    let text = if args.region.json {
        json!({"namespace": args.namespace, "usage": usage.map(usage_json)}).to_string()
    } else {
        let usage = usage.map_or("no limits".to_owned(), usage_text);
        format!("{}: {usage}", args.namespace)
    };
    print(out, &text)
}

/// The usage of a namespace, for people.
pub(super) fn usage_text(usage: NamespaceUsage) -> String {
    let limit = |bytes: u64| if bytes == 0 { "none".to_owned() } else { mib(bytes) };
    let NamespaceLimits { soft_bytes, hard_bytes } = usage.limits;
    let state = if usage.is_complete { "" } else { ", still being counted" };
    format!(
        "{} used, soft limit {}, hard limit {}{state}",
        mib(usage.used_bytes),
        limit(soft_bytes),
        limit(hard_bytes)
    )
}

/// The usage of a namespace as JSON.
pub(super) fn usage_json(usage: NamespaceUsage) -> Value {
    let limit = |bytes: u64| (bytes != 0).then_some(bytes);
    json!({
        "used_bytes": usage.used_bytes, "soft_bytes": limit(usage.limits.soft_bytes),
        "hard_bytes": limit(usage.limits.hard_bytes), "is_complete": usage.is_complete,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::TestCli;
    use super::super::{inspection_json, inspection_text, run};
    use super::*;
    use clap::Parser;
    use nearstate_store::{CreateOptions, Region};

    #[test]
    fn limits_are_shown_set_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let region = Region::create(&path, &CreateOptions::default()).unwrap();
        let session = region.session().unwrap();
        let ns = session.namespace("tenant", &nearstate_store::Schema::default()).unwrap();
        session.put(ns, b"k", &[1; 3000]).unwrap();
        let limit = |more: &[&str]| {
            let line = ["region", "limit", path.to_str().unwrap()];
            let command = TestCli::try_parse_from(line.iter().chain(more)).unwrap().command;
            let mut out = Vec::new();
            run(command, &mut out).map(|()| String::from_utf8(out).unwrap())
        };
        assert_eq!(limit(&["tenant"]).unwrap(), "tenant: no limits\n");
        let text = limit(&["tenant", "--soft", "1MiB", "--hard=2MiB"]).unwrap();
        assert_eq!(text, "tenant: 0.0 MiB used, soft limit 1.0 MiB, hard limit 2.0 MiB\n");
        let json: Value = serde_json::from_str(&limit(&["tenant", "--json"]).unwrap()).unwrap();
        assert_eq!(json["usage"]["used_bytes"], 3072);
        assert_eq!(json["usage"]["hard_bytes"], 2 << 20);
        let seen = region.inspect().unwrap();
        assert!(
            inspection_text(&seen, None)
                .contains("buckets), local, 0.0 MiB used, soft limit 1.0 MiB")
        );
        assert_eq!(inspection_json(&seen, None)["namespaces"][0]["usage"]["soft_bytes"], 1 << 20);
        assert_eq!(limit(&["tenant", "--none"]).unwrap(), "tenant: no limits\n");
        assert!(limit(&["other"]).unwrap_err().to_string().contains("no namespace \"other\""));
        assert!(limit(&["tenant", "--soft=2MiB", "--hard=1MiB"]).is_err());
    }
}
