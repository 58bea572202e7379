//! The suite of the SDL API over a node of this host: on its region, and through a ring.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a promise that is not kept ends its test"
)]

#[path = "../../../sdl/tests/integration/promises.rs"]
mod promises;

use std::path::PathBuf;
use std::sync::Arc;

use nearstate_node::{Address, Endpoint, Node, NodeConfig};
use nearstate_resp::RespProtocol;
use nearstate_resp::acl::Users;
use nearstate_resp::server::{Server, Settings};
use nearstate_resp::table::TABLE;
use nearstate_sdl::{SyncStorage, open};
use nearstate_store::{CreateOptions, Region};

/// A node with no records, for one test.
struct Place {
    socket: PathBuf,
    _node: Node,
    _folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("near.sock");
        let options = CreateOptions { bytes_max: 128 << 20, ..CreateOptions::default() };
        let region = Region::create(&folder.path().join("region"), &options).unwrap();
        let face = RespProtocol::new(Arc::new(Server::new(Settings::new(Users::open(&TABLE)))));
        let address = Address::Unix { path: socket.clone(), mode: 0o600 };
        let config = NodeConfig {
            cores: 1,
            is_pinned: false,
            endpoints: vec![Endpoint { protocol: "resp".to_owned(), address, tls: None }],
            ..NodeConfig::default()
        };
        let node = Node::start(&config, &region, &[Arc::new(face)]).unwrap();
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
                let place = super::Place::new();
                super::promises::$promise(&mut *place.open(stringify!($way)));
            })*

            #[test]
            fn conditional_writes_of_two_instances_lose_nothing() {
                let place = super::Place::new();
                let open = || place.open(stringify!($way));
                super::promises::conditional_writes_of_two_instances_lose_nothing(&open);
            }
        }
    };
}

promises::with_every_promise!(on_both_ways);
