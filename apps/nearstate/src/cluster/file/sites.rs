//! Voters, witnesses, and what happens while a copy is missing.

use nearstate_cluster::CopyMissingPolicy;

use super::ClusterFile;
use crate::settings::parse_time;

/// The policy `stop`, or `degrade after` a time.
pub(super) fn policy(text: &str) -> Result<CopyMissingPolicy, String> {
    if text == "stop" {
        return Ok(CopyMissingPolicy::Stop);
    }
    let unknown = || {
        format!(
            "cluster.when_copy_missing {text:?}: expected \"stop\", or \"degrade after TIME\" such \
             as \"degrade after 10s\""
        )
    };
    let time = text.strip_prefix("degrade after ").ok_or_else(unknown)?;
    let after = parse_time(time).map_err(|what| format!("cluster.when_copy_missing: {what}"))?;
    let after_ms = u32::try_from(after.as_millis()).unwrap_or(u32::MAX);
    Ok(CopyMissingPolicy::Degrade { after_ms })
}

/// Checks which hosts vote. Which ones do with etcd, etcd knows.
pub(super) fn check(file: &ClusterFile) -> Result<(), String> {
    for witness in file.hosts.iter().filter(|host| host.witness) {
        if let Some(of) = file.partitions.iter().find(|of| of.group.contains(&witness.id)) {
            return Err(format!(
                "host {:?} is a witness, and belongs to the group of partition {:?}: a witness \
                 holds no copy",
                witness.name, of.name
            ));
        }
        if !witness.votes {
            return Err(format!(
                "host {:?} is a witness and does not vote: remove votes = false",
                witness.name
            ));
        }
        if file.etcd.is_some() {
            return Err(format!(
                "host {:?} is a witness, and etcd orders the decisions: its members vote, so \
                 remove the host",
                witness.name
            ));
        }
    }
    let voters = file.voters().len();
    if file.etcd.is_some() {
        return Ok(());
    }
    match voters {
        0 => Err("no host votes: set votes = true for 3 or 5 hosts".to_owned()),
        2 => Err("two hosts vote: the loss of one stops the membership, so no other host takes \
                  over: add a third one with witness = true on another machine"
            .to_owned()),
        _ => check_groups(file),
    }
}

/// The embedded membership tells its decisions to voters only.
fn check_groups(file: &ClusterFile) -> Result<(), String> {
    for host in file.hosts.iter().filter(|host| !host.votes) {
        if let Some(of) = file.partitions.iter().find(|of| of.group.contains(&host.id)) {
            return Err(format!(
                "host {:?} does not vote, and belongs to the group of partition {:?}: without a \
                 vote it learns no decision: remove votes = false",
                host.name, of.name
            ));
        }
    }
    Ok(())
}
