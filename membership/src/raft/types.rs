//! The types with which openraft is used.

use std::io::Cursor;

use openraft::BasicNode;
use serde::{Deserialize, Serialize};

/// A command, opaque to the engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommandBytes(pub(crate) Vec<u8>);

openraft::declare_raft_types!(
    /// Commands are bytes, hosts are numbers.
    pub(crate) TypeConfig:
        D = CommandBytes,
        R = (),
        NodeId = u64,
        Node = BasicNode,
        SnapshotData = Cursor<Vec<u8>>,
);

pub(crate) type Raft = openraft::Raft<TypeConfig>;
pub(crate) type RaftEntry = openraft::Entry<TypeConfig>;
pub(crate) type LogId = openraft::LogId<u64>;
pub(crate) type Vote = openraft::Vote<u64>;
pub(crate) type StorageError = openraft::StorageError<u64>;
pub(crate) type SnapshotMeta = openraft::SnapshotMeta<u64, BasicNode>;
pub(crate) type StoredMembership = openraft::StoredMembership<u64, BasicNode>;
pub(crate) type RaftSnapshot = openraft::Snapshot<TypeConfig>;
