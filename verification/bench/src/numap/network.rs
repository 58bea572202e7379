//! Three network namespaces with two veth pairs between them: hosts, slice, hosts.

use crate::reaper::system;
use nearstate_local_cluster::NetworkNamespace;
use nearstate_model::{Error, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd as _;

/// Addresses that are reserved for documentation: no network uses them.
pub(super) const LEFT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
pub(super) const SLICE_LEFT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
pub(super) const SLICE_RIGHT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(super) const RIGHT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// The network of a run.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) left: SliceNamespace,
    pub(super) slice: SliceNamespace,
    pub(super) right: SliceNamespace,
}

impl Network {
    /// # Errors
    /// `System`: namespaces are not permitted, or a program is missing.
    pub(super) fn new() -> Result<Self> {
        let [left, slice, right] =
            [SliceNamespace::new()?, SliceNamespace::new()?, SliceNamespace::new()?];
        let (a, b) = (left.namespace.holder(), right.namespace.holder());
        slice.configure(&[
            &format!("link add name access type veth peer name host netns {a}"),
            &format!("link add name core type veth peer name host netns {b}"),
            &format!("address add {SLICE_LEFT}/30 dev access"),
            &format!("address add {SLICE_RIGHT}/30 dev core"),
            "link set access up",
            "link set core up",
        ])?;
        for (end, address) in [(&left, LEFT), (&right, RIGHT)] {
            end.configure(&[&format!("address add {address}/30 dev host"), "link set host up"])?;
        }
        Ok(Self { left, slice, right })
    }
}

/// A namespace, and the file by which threads enter it.
#[derive(Debug)]
pub(super) struct SliceNamespace {
    file: File,
    namespace: NetworkNamespace,
}

impl SliceNamespace {
    fn new() -> Result<Self> {
        let namespace = NetworkNamespace::start().map_err(|why| Error::System {
            detail: format!(
                "{why}: run as root, or give yourself a namespace of users: unshare \
                 --map-root-user nearstate bench run numap"
            ),
            errno: rustix::io::Errno::PERM.raw_os_error(),
        })?;
        let file = File::open(namespace.path()).map_err(|e| system(namespace.path(), &e))?;
        Ok(Self { file, namespace })
    }

    /// Runs commands of `ip` in it.
    fn configure(&self, commands: &[&str]) -> Result<()> {
        let run = |command: &&str| {
            let words: Vec<&str> = std::iter::once("ip").chain(command.split(' ')).collect();
            self.namespace.run(&words)
        };
        commands.iter().try_for_each(run).map_err(|why| {
            backend_error!("`ip` (package iproute2) could not configure the network: {why}")
        })
    }

    /// A socket in it, which stays there.
    pub(super) fn socket(&self, address: Ipv4Addr, port: u16) -> Result<UdpSocket> {
        let failed = |e: &std::io::Error| system(&format!("binding {address}:{port}"), e);
        // A thread, because a namespace belongs to a thread.
        let bound = std::thread::scope(|scope| {
            let bind = || {
                move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?;
                UdpSocket::bind(SocketAddrV4::new(address, port))
            };
            scope.spawn(bind).join()
        });
        bound.unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())).map_err(|e| failed(&e))
    }
}
