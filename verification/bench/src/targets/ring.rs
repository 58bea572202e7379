//! Our node through a ring in shared memory: the same requests as over a socket, without system
//! calls while both sides are busy (`spec/local-transport.md`).

use super::redis::{Program, Running, Server, abilities, folder_bytes, version};
use super::resp::Resp;
use super::wire::{PATIENCE, unix};
use super::{Abilities, Database, Need, Target};
use crate::access::{Connection, Schema};
use nearstate_local_transport::{Answer, LocalRing, ask_ring};
use nearstate_model::{Error, Result};
use std::path::Path;

/// The node through a ring.
#[derive(Clone, Copy, Debug)]
pub struct RingTarget;

impl Target for RingTarget {
    fn name(&self) -> &'static str {
        "node-ring"
    }

    fn version(&self) -> Result<String> {
        version(Program::Node)
    }

    fn abilities(&self) -> Abilities {
        abilities(Program::Node)
    }

    fn comes_back(&self) -> bool {
        Program::Node.comes_back()
    }

    fn folder_bytes(&self, need: &Need) -> u64 {
        folder_bytes(Program::Node, need)
    }

    /// Either side looks for work only if it may run on several processors: on one, whoever looks
    /// could keep the other from working (`LocalRing::new`, the node's `Spin`).
    fn when_bound(&self, server_cpus: usize) -> Option<String> {
        let node = if server_cpus == 1 { "client and node sleep" } else { "a client sleeps" };
        Some(format!(
            "bound to one processor {node} until there is work instead of looking for it, so an \
             operation costs wake-ups as it does over a socket: --unpinned shows a ring whose both \
             sides look"
        ))
    }

    fn start(&self, need: &Need) -> Result<Box<dyn Database>> {
        let server = Server::start(Program::Node, need)?;
        let address = server.unix();
        Ok(Box::new(Running { server, address }))
    }

    fn connect(&self, address: &str, schema: &Schema) -> Result<Box<dyn Connection>> {
        let path = address.strip_prefix("unix:").unwrap_or(address);
        let socket = unix(Path::new(path))?;
        let refused = |text: String| Error::Backend { detail: format!("no ring: {text}") };
        match ask_ring(&socket).map_err(|e| refused(e.to_string()))? {
            Answer::Refused(text) => Err(refused(text)),
            Answer::Given(memory) => {
                let ring = LocalRing::new(memory, socket, PATIENCE)?;
                let resp = Resp::new(ring, schema, Program::Node.dialect())?;
                Ok(Box::new(resp))
            }
        }
    }
}
