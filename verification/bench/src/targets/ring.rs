//! Our node through a ring in shared memory: the same requests as over a socket, without system
//! calls while both sides are busy (`spec/local-transport.md`).

use super::redis::{Program, Running, Server, capabilities, folder_bytes, version};
use super::resp::Resp;
use super::wire::{REPLY_TIMEOUT, connect};
use super::{Capabilities, Database, DatabaseSpec, Target};
use crate::access::{StoreConnection, StoreSchema};
use nearstate_local_transport::{LocalRing, Response, request_ring};
use nearstate_model::Result;
use nearstate_resp_client::TimeoutSocket;
use std::time::Duration;

/// The prefix of an address whose client busy-polls, and the time that it polls: longer than any
/// reply takes.
const BUSY_POLL_PREFIX: &str = "busy-poll:";
const BUSY_POLL: Duration = Duration::from_millis(5);

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

    fn capabilities(&self) -> Capabilities {
        capabilities(Program::Node)
    }

    fn survives_kill(&self) -> bool {
        Program::Node.survives_kill()
    }

    fn folder_bytes(&self, spec: &DatabaseSpec) -> u64 {
        folder_bytes(Program::Node, spec)
    }

    /// Each side busy-polls only if it may run on several processors. On one processor, a polling
    /// side could keep the other from running (`LocalRing::new`, the node's `Spin`).
    fn bound_caveat(&self, server_cpus: usize) -> Option<String> {
        let node = if server_cpus == 1 { "client and node sleep" } else { "clients sleep" };
        Some(format!(
            "bound to one processor, {node} until there is work and do not busy-poll, so an \
             operation costs wake-ups as over a socket: --unpinned shows a ring whose both sides \
             busy-poll"
        ))
    }

    fn start(&self, spec: &DatabaseSpec) -> Result<Box<dyn Database>> {
        let server = Server::start(Program::Node, spec)?;
        let socket = server.unix();
        let address =
            if spec.is_busy_polling { format!("{BUSY_POLL_PREFIX}{socket}") } else { socket };
        Ok(Box::new(Running { server, address }))
    }

    fn connect(&self, address: &str, schema: &StoreSchema) -> Result<Box<dyn StoreConnection>> {
        let polled = address.strip_prefix(BUSY_POLL_PREFIX);
        let address = polled.unwrap_or(address);
        let refused = |text: String| backend_error!("no ring: {text}");
        let TimeoutSocket::Unix(socket) = connect(address)? else {
            return Err(refused(format!("{address} is not the address of a Unix socket")));
        };
        match request_ring(&socket).map_err(|e| refused(e.to_string()))? {
            Response::Refused(text) => Err(refused(text)),
            Response::Granted(memory) => {
                let mut ring = LocalRing::new(memory, socket, REPLY_TIMEOUT)?;
                if polled.is_some() {
                    ring.set_spin(BUSY_POLL);
                }
                let resp = Resp::new(ring, schema, Program::Node.dialect())?;
                Ok(Box::new(resp))
            }
        }
    }
}
