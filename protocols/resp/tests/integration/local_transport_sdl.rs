//! The conformance suite of the SDL API through a node of this host: on its region and over a ring.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a promise that is not kept ends its test"
)]

#[path = "../../../../sdl/tests/integration/promises.rs"]
mod promises;

use std::path::PathBuf;
use std::sync::Arc;

use nearstate_node::{Endpoint, ListenAddress, Node, NodeConfig};
use nearstate_resp::RespProtocol;
use nearstate_resp::acl::Users;
use nearstate_resp::server::{RespServer, RespSettings};
use nearstate_resp::table::TABLE;
use nearstate_sdl::{SyncStorage, open};
use nearstate_store::{CreateOptions, Region};

/// An empty node for one test.
struct TestNode {
    socket: PathBuf,
    _node: Node,
    _folder: tempfile::TempDir,
}

impl TestNode {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("near.sock");
        let options = CreateOptions { bytes_max: 128 << 20, ..CreateOptions::default() };
        let region = Region::create(&folder.path().join("region"), &options).unwrap();
        let service =
            RespProtocol::new(Arc::new(RespServer::new(RespSettings::new(Users::open(&TABLE)))));
        let address = ListenAddress::Unix { path: socket.clone(), mode: 0o600, any_owner: false };
        let config = NodeConfig {
            cores: 1,
            is_pinned: false,
            endpoints: vec![Endpoint { protocol: "resp".to_owned(), address, tls: None }],
            ..NodeConfig::default()
        };
        let node = Node::start(&config, &region, &[Arc::new(service)]).unwrap();
        Self { socket, _node: node, _folder: folder }
    }

    fn open(&self, way: &str) -> Box<dyn SyncStorage> {
        open(&format!("local:{}?way={way}", self.socket.display())).unwrap()
    }
}

macro_rules! on_both_ways {
    ($($promise:ident)*) => {
        on_both_ways!(@ region: $($promise)*);
        on_both_ways!(@ ring: $($promise)*);
    };
    (@ $way:ident: $($promise:ident)*) => {
        mod $way {
            $(#[test]
            fn $promise() {
                let node = super::TestNode::new();
                super::promises::$promise(&mut *node.open(stringify!($way)));
            })*
        }
    };
}

promises::with_every_promise!(on_both_ways);

macro_rules! shared_on_both_ways {
    ($($promise:ident)*) => {
        shared_on_both_ways!(@ region_shared, region: $($promise)*);
        shared_on_both_ways!(@ ring_shared, ring: $($promise)*);
    };
    (@ $module:ident, $way:ident: $($promise:ident)*) => {
        mod $module {
            $(#[test]
            fn $promise() {
                let node = super::TestNode::new();
                let open = || node.open(stringify!($way));
                super::promises::$promise(&open);
            })*
        }
    };
}

promises::with_every_shared_promise!(shared_on_both_ways);
