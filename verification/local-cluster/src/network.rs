//! Links between the hosts: network namespaces that share a bridge, or the loopback interface.
//!
//! ```text
//! namespace of this thread:  bridge 10.86.0.254 -- v1 -- v2 -- v3
//!                                                  |     |     |
//! namespaces of the hosts:                       eth0  eth0  eth0   10.86.0.1, .2, .3
//! ```
//!
//! A host that is cut off has its link down. A one-way cut is an entry for the other host in the
//! sender's table of neighbours with a hardware address that no host has: packets leave and do not
//! arrive, and nothing tells the sender.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};

use crate::process::run;

/// The longest wait for a namespace. It takes milliseconds.
const NAMESPACE_MAX: Duration = Duration::from_secs(10);

/// A hardware address that no host has.
const LOST: &str = "02:00:00:00:00:ff";

/// Bytes of the file system of a membership: its files need some hundred kilobytes.
const DISK_BYTES: &str = "size=8m";

/// Where the hosts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkKind {
    /// Each host has a network namespace, and a file system for its membership. Needs root.
    Namespaces,
    /// All hosts are on the loopback interface. Links cannot be cut, disks are never full.
    Loopback,
}

/// A network namespace without a name. It exists as long as the process that holds it, which ends
/// when its standard input does: however this process ends.
#[derive(Debug)]
pub struct NetworkNamespace {
    holder: Child,
    path: String,
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The links of all hosts.
#[derive(Debug)]
pub(crate) struct HostNetwork {
    namespaces: Vec<NetworkNamespace>,
    disks: Vec<PathBuf>,
}

fn own_namespace(process: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{process}/ns/net")).ok()
}

impl NetworkNamespace {
    /// Creates a namespace.
    pub fn start() -> Result<Self, String> {
        let mut holder = Command::new("unshare")
            .args(["--net", "cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("starting unshare (package util-linux): {error}"))?;
        let id = holder.id().to_string();
        let begin = Instant::now();
        while own_namespace(&id).is_none() || own_namespace(&id) == own_namespace("thread-self") {
            let has_ended = holder.try_wait().is_ok_and(|status| status.is_some());
            if has_ended || begin.elapsed() > NAMESPACE_MAX {
                return Err("network namespaces are not permitted".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Self { holder, path: format!("/proc/{id}/ns/net") })
    }

    /// The process that holds it.
    pub fn holder(&self) -> u32 {
        self.holder.id()
    }

    /// The file by which a thread enters it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Runs a command in it, which must succeed.
    pub fn run(&self, words: &[&str]) -> Result<(), String> {
        let enter = format!("--net={}", self.path);
        run(&[&["nsenter", &enter], words].concat())
    }
}

impl NetworkKind {
    /// Namespaces if this process may create some, else loopback.
    pub fn best() -> Self {
        if nix::unistd::geteuid().is_root() && Path::new("/usr/sbin/ip").exists() {
            Self::Namespaces
        } else {
            Self::Loopback
        }
    }

    /// The address of a host, counted from 0.
    pub(crate) fn address(self, host: usize) -> IpAddr {
        let number = u8::try_from(host + 1).unwrap_or(u8::MAX);
        IpAddr::V4(match self {
            Self::Namespaces => Ipv4Addr::new(10, 86, 0, number),
            Self::Loopback => Ipv4Addr::new(127, 0, 0, number),
        })
    }
}

impl HostNetwork {
    /// Creates the links of some hosts. In namespaces, this thread and those that it starts later
    /// are in a new one as well.
    pub(crate) fn start(kind: NetworkKind, hosts: usize) -> Result<Self, String> {
        let mut network = Self { namespaces: Vec::new(), disks: Vec::new() };
        if kind == NetworkKind::Loopback {
            return Ok(network);
        }
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS)
            .map_err(|error| format!("new namespaces: {error}"))?;
        run(&["mount", "--make-rprivate", "/"])?;
        run(&["ip", "link", "set", "lo", "up"])?;
        run(&["ip", "link", "add", "bridge", "type", "bridge"])?;
        run(&["ip", "address", "add", "10.86.0.254/24", "dev", "bridge"])?;
        run(&["ip", "link", "set", "bridge", "up"])?;
        for host in 0..hosts {
            let namespace = NetworkNamespace::start()?;
            let (link, holder) = (link(host), namespace.holder.id().to_string());
            let peer = ["type", "veth", "peer", "name", "eth0", "netns", &holder];
            run(&[&["ip", "link", "add", &link], &peer[..]].concat())?;
            run(&["ip", "link", "set", &link, "master", "bridge", "up"])?;
            let address = format!("{}/24", kind.address(host));
            namespace.run(&["ip", "address", "add", &address, "dev", "eth0"])?;
            namespace.run(&["ip", "link", "set", "eth0", "up"])?;
            namespace.run(&["ip", "link", "set", "lo", "up"])?;
            network.namespaces.push(namespace);
        }
        Ok(network)
    }

    fn namespace(&self, host: usize) -> Result<&NetworkNamespace, String> {
        self.namespaces.get(host).ok_or_else(|| "the hosts share one network".to_owned())
    }

    /// What a command in the network of a host begins with.
    pub(crate) fn prefix(&self, host: usize) -> Vec<String> {
        self.namespaces.get(host).map_or_else(Vec::new, |namespace| {
            vec!["nsenter".to_owned(), format!("--net={}", namespace.path)]
        })
    }

    /// Gives the folder a small file system of its own.
    pub(crate) fn mount(&mut self, folder: &Path) -> Result<(), String> {
        if self.namespaces.is_empty() {
            return Ok(());
        }
        let path = folder.to_string_lossy();
        run(&["mount", "-t", "tmpfs", "-o", DISK_BYTES, "nearstate", &path])?;
        self.disks.push(folder.to_owned());
        Ok(())
    }

    /// Cuts a host off, or connects it again.
    pub(crate) fn set_link(&self, host: usize, is_up: bool) -> Result<(), String> {
        self.namespace(host)?;
        run(&["ip", "link", "set", &link(host), if is_up { "up" } else { "down" }])
    }

    /// What one host sends to another does not arrive, or arrives again.
    pub(crate) fn set_way(&self, from: usize, to: usize, is_open: bool) -> Result<(), String> {
        let namespace = self.namespace(from)?;
        let address = NetworkKind::Namespaces.address(to).to_string();
        let device = ["dev", "eth0"];
        if is_open {
            return namespace.run(&[&["ip", "neigh", "del", &address], &device[..]].concat());
        }
        let lost = ["lladdr", LOST, "dev", "eth0", "nud", "permanent"];
        namespace.run(&[&["ip", "neigh", "replace", &address], &lost[..]].concat())
    }
}

impl HostNetwork {
    /// Unmounts the disks, so that their folders can be removed. Lazily: a process that was killed
    /// a moment ago may still have files open.
    pub(crate) fn unmount(&mut self) {
        for disk in self.disks.drain(..) {
            let _ = run(&["umount", "--lazy", &disk.to_string_lossy()]);
        }
    }
}

impl Drop for HostNetwork {
    fn drop(&mut self) {
        self.unmount();
        if !self.namespaces.is_empty() {
            let _ = run(&["ip", "link", "del", "bridge"]);
        }
    }
}

fn link(host: usize) -> String {
    format!("v{}", host + 1)
}
