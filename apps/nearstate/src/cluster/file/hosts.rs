//! The hosts of a cluster file.

use std::net::{IpAddr, SocketAddr};

use nearstate_cluster::{HostConfig, HostId};
use nearstate_model::Error;

use super::ClusterFile;
use super::raw::RawHost;
use crate::settings::parse_address;

/// A host of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileHost {
    pub(crate) id: HostId,
    pub(crate) name: String,
    pub(crate) peer: SocketAddr,
    pub(crate) membership: SocketAddr,
    pub(crate) clients: IpAddr,
    pub(crate) votes: bool,
    /// It votes and holds no copy.
    pub(crate) witness: bool,
    /// It was removed from the membership and from all groups. The first groups of the file, and
    /// the settings that hosts compare, name it for ever: earlier decisions rest on them.
    pub(crate) removed: bool,
}

impl FileHost {
    pub(super) fn of(raw: RawHost) -> Result<Self, String> {
        let RawHost { name, peer, membership, clients, .. } = raw;
        let at = |key: &str, what: String| format!("host {name:?}, {key}: {what}");
        let peer = parse_address(&peer).map_err(|what| at("peer", what))?;
        let membership = parse_address(&membership).map_err(|what| at("membership", what))?;
        let clients = match clients {
            None => peer.ip(),
            Some(text) => text.parse().map_err(|_| {
                let what = "is not an address: expected an IP without a port, such as 10.0.0.1";
                at("clients", format!("{text:?} {what}"))
            })?,
        };
        let (votes, witness, removed) = (raw.votes, raw.witness, raw.removed);
        Ok(Self { id: HostId(raw.id), name, peer, membership, clients, votes, witness, removed })
    }

    pub(super) fn config(&self) -> HostConfig {
        HostConfig { id: self.id, name: self.name.clone() }
    }
}

impl ClusterFile {
    /// Refuses a new membership while the file has hosts that were removed: it begins with the
    /// groups of the file, and such a host would be in them.
    ///
    /// # Errors
    /// `BadArgument`.
    pub(crate) fn check_begins(&self) -> nearstate_model::Result<()> {
        let Some(host) = self.removed.first() else { return Ok(()) };
        let detail = format!(
            "host {:?} is removed in the cluster file, and a new membership begins with the groups \
             of the file: take the host out of the file and out of its groups, on all hosts",
            host.name
        );
        Err(Error::BadArgument { detail })
    }
}

/// The refusal of a command, or of a start, for a host that was removed.
pub(super) fn removed(name: &str) -> Error {
    let detail = format!(
        "host {name:?} is removed in the cluster file: to let it take part again, take out its \
         `removed = true` in the file of all hosts"
    );
    Error::BadArgument { detail }
}
