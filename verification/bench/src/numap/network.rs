//! Three network namespaces with two veth pairs between them: hosts, slice, hosts.
//!
//! A namespace has no name and no file. It exists while its holder process or a descriptor does:
//! the holder ends when its standard input closes, which happens however this process ends. The
//! kernel then removes the namespace with its interfaces.

use crate::reaper::system;
use nearstate_model::{Error, Result};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};

/// Addresses that are reserved for documentation: no network uses them.
pub(super) const LEFT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
pub(super) const SLICE_LEFT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
pub(super) const SLICE_RIGHT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(super) const RIGHT: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// The network of a run.
#[derive(Debug)]
pub(super) struct Network {
    pub(super) left: NetworkNamespace,
    pub(super) slice: NetworkNamespace,
    pub(super) right: NetworkNamespace,
}

impl Network {
    /// # Errors
    /// `System`: namespaces are not permitted, or a program is missing.
    pub(super) fn new() -> Result<Self> {
        let [left, slice, right] =
            [NetworkNamespace::new()?, NetworkNamespace::new()?, NetworkNamespace::new()?];
        let (a, b) = (left.holder.id(), right.holder.id());
        slice.configure(&format!(
            "link add name access type veth peer name host netns {a}\n\
             link add name core type veth peer name host netns {b}\n\
             address add {SLICE_LEFT}/30 dev access\naddress add {SLICE_RIGHT}/30 dev core\n\
             link set access up\nlink set core up\n"
        ))?;
        left.configure(&format!("address add {LEFT}/30 dev host\nlink set host up\n"))?;
        right.configure(&format!("address add {RIGHT}/30 dev host\nlink set host up\n"))?;
        Ok(Self { left, slice, right })
    }
}

/// A namespace.
#[derive(Debug)]
pub(super) struct NetworkNamespace {
    file: File,
    /// Waits until its standard input closes.
    holder: Child,
}

impl NetworkNamespace {
    fn new() -> Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", "echo; exec cat >/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| system("starting unshare (package util-linux)", &e))?;
        // The line is written in the new namespace.
        let mut line = [0];
        let is_there = holder.stdout.as_mut().is_some_and(|out| out.read_exact(&mut line).is_ok());
        let file = File::open(format!("/proc/{}/ns/net", holder.id()));
        match file {
            Ok(file) if is_there => Ok(Self { file, holder }),
            Ok(_) | Err(_) => {
                let _ = holder.wait();
                Err(Error::System {
                    detail:
                        "network namespaces are not permitted: run as root, or give yourself a \
                             namespace of users: unshare --map-root-user nearstate bench run numap"
                            .to_owned(),
                    errno: rustix::io::Errno::PERM.raw_os_error(),
                })
            }
        }
    }

    /// Runs lines of `ip` in it.
    fn configure(&self, lines: &str) -> Result<()> {
        let mut ip = Command::new("nsenter")
            .arg(format!("--net=/proc/{}/ns/net", self.holder.id()))
            .args(["ip", "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| system("starting nsenter (package util-linux)", &e))?;
        if let Some(mut input) = ip.stdin.take() {
            // If `ip` has ended already, its status and output say why.
            let _ = input.write_all(lines.as_bytes());
        }
        let output = ip.wait_with_output().map_err(|e| system("waiting for ip", &e))?;
        if output.status.success() {
            return Ok(());
        }
        Err(Error::Backend {
            detail: format!(
                "`ip` (package iproute2) could not configure the network: {}",
                crate::reaper::single_line(&output.stderr)
            ),
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

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}
