//! How a host takes part in the membership, by its cluster file.

use std::sync::Arc;

use nearstate_membership::{MemberTls, MembershipConfig};
use nearstate_model::Result;
use nearstate_node::ClusterDriver;

use super::file::{ClusterFile, FileHost};
use super::level;

/// A host that reports nothing of itself, and tells of no refused connections.
///
/// # Errors
/// `BadArgument`: the file is not valid.
pub(crate) fn membership_config(
    file: &ClusterFile,
    host: &FileHost,
    tls: Option<MemberTls>,
) -> Result<MembershipConfig> {
    Ok(MembershipConfig {
        cluster: file.name.clone(),
        host: host.id.0.into(),
        members: file.members(),
        directory: file.directory(host),
        election: file.election,
        settings: file.shared_settings(),
        decided: file.decided_settings(),
        tls,
        machine: ClusterDriver::machines(&file.config, level::highest())?,
        report: Arc::new(String::new),
        on_refused: |_, _| (),
        begin_thread: || (),
    })
}
