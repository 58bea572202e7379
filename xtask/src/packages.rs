//! System packages that a fresh machine lacks. Installing them starts no service.

use crate::run;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A Debian package that the workspace needs.
pub(crate) struct Package {
    name: &'static str,
    /// How its installation is detected.
    probe: PackageProbe,
    why: &'static str,
}

enum PackageProbe {
    Program(&'static str),
    File(&'static str),
    /// A shell command that exits with status 0.
    Command(&'static str),
}

/// Everything that the tests, the gate and the demo need.
pub(crate) const ALL: &[Package] = &[
    Package {
        name: "gcc",
        probe: PackageProbe::Program("gcc"),
        why: "links us; compiles the C examples",
    },
    Package { name: "g++", probe: PackageProbe::Program("g++"), why: "compiles the C++ example" },
    Package {
        name: "libc6-dev",
        probe: PackageProbe::File("/usr/include/stdio.h"),
        why: "the C headers that gcc needs",
    },
    Package {
        name: "pkg-config",
        probe: PackageProbe::Program("pkg-config"),
        why: "finds libwgdb; the C example is built with our own .pc file",
    },
    Package {
        name: "etcd-server",
        probe: PackageProbe::Program("etcd"),
        why: "the second engine of a cluster's membership, in the tests",
    },
    Package {
        name: "git",
        probe: PackageProbe::Program("git"),
        why: "the gate checks the files that git tracks",
    },
    Package {
        name: "golang-go",
        probe: PackageProbe::Program("go"),
        why: "builds the checker of histories (Porcupine), which the torture tests ask, and the Go \
              clients of the node",
    },
    Package {
        name: "python3-venv",
        probe: PackageProbe::Command("python3 -c 'import ensurepip'"),
        why: "holds the Python clients of the node (ricsdl, redis-py)",
    },
    Package {
        name: "python3-dev",
        probe: PackageProbe::Command(
            "python3 -c 'import os, sysconfig as s; \
             os.stat(s.get_path(\"include\") + \"/Python.h\")'",
        ),
        why: "builds the hiredis that ricsdl pins, which has no wheel for a newer Python",
    },
    Package {
        name: "redis-server",
        probe: PackageProbe::Program("redis-server"),
        why: "the peer of every benchmark, and a back-end of sdl that the tests start themselves",
    },
    Package {
        name: "redis-tools",
        probe: PackageProbe::Program("redis-benchmark"),
        why: "redis-cli and redis-benchmark, which the tests let use the node",
    },
    Package {
        name: "memcached",
        probe: PackageProbe::Program("memcached"),
        why: "a target of `nearstate bench run`, held to its promises by the tests",
    },
    Package {
        name: "hwloc-nox",
        probe: PackageProbe::Program("lstopo-no-graphics"),
        why: "reads the topologies of the tests, which must agree with what we read",
    },
    Package {
        name: "iproute2",
        probe: PackageProbe::Program("ip"),
        why: "connects the network namespaces of `nearstate bench run numap`",
    },
    Package {
        name: "strace",
        probe: PackageProbe::Program("strace"),
        why: "counts the system calls of a read in `nearstate bench code`",
    },
    Package {
        name: "valgrind",
        probe: PackageProbe::Program("valgrind"),
        why: "counts the instructions of single operations, which the gate compares",
    },
    Package {
        name: "whitedb",
        probe: PackageProbe::Program("wgdb"),
        why: "frees the segments of the WhiteDB target",
    },
    Package {
        name: "libwgdb-dev",
        probe: PackageProbe::File("/usr/include/whitedb/dbapi.h"),
        why: "the WhiteDB target of the benchmarks (a C program of its own)",
    },
];

/// What the long test of clients needs in addition.
pub(crate) const CLIENTS: &[Package] = &[
    Package {
        name: "nodejs",
        probe: PackageProbe::Program("node"),
        why: "runs ioredis and node-redis (version 20 or newer)",
    },
    Package {
        name: "npm",
        probe: PackageProbe::Program("npm"),
        why: "installs ioredis and node-redis from their registry",
    },
    Package {
        name: "default-jdk-headless",
        probe: PackageProbe::Program("javac"),
        why: "compiles and runs the programs of Jedis and Lettuce (Java 17 or newer)",
    },
    Package {
        name: "maven",
        probe: PackageProbe::Program("mvn"),
        why: "installs Jedis and Lettuce from their registry",
    },
    Package {
        name: "libhiredis-dev",
        probe: PackageProbe::File("/usr/include/hiredis/hiredis.h"),
        why: "sends the requests of O-RAN's C++ SDL, which uses it",
    },
];

/// What the long test in a guest needs in addition.
pub(crate) const GUEST: &[Package] = &[
    Package {
        name: "qemu-system-x86",
        probe: PackageProbe::Program("qemu-system-x86_64"),
        why: "emulates a machine with two NUMA nodes",
    },
    Package {
        name: "busybox-static",
        probe: PackageProbe::Program("busybox"),
        why: "the programs of the guest",
    },
    Package { name: "cpio", probe: PackageProbe::Program("cpio"), why: "packs its files" },
];

/// What the long test with Redis' Tcl units needs in addition.
pub(crate) const TCL: &[Package] = &[
    Package { name: "tcl", probe: PackageProbe::Program("tclsh"), why: "runs Redis' own tests" },
    Package {
        name: "dpkg-dev",
        probe: PackageProbe::Program("dpkg-source"),
        why: "fetches the source package of Redis, which has these tests",
    },
];

/// What the long test of clients of Nudsf needs in addition.
pub(crate) const NUDSF: &[Package] = &[
    Package {
        name: "curl",
        probe: PackageProbe::Program("curl"),
        why: "the requests of the quick start, over HTTP/2",
    },
    Package {
        name: "nghttp2-client",
        probe: PackageProbe::Program("h2load"),
        why: "many requests over HTTP/2",
    },
    Package {
        name: "openssl",
        probe: PackageProbe::Program("openssl"),
        why: "certificates of a node and of its clients",
    },
];

/// Debian asks this program whether a package may start its service.
const POLICY: &str = "/usr/sbin/policy-rc.d";

impl Package {
    fn is_installed(&self) -> bool {
        match self.probe {
            PackageProbe::Program(name) => run::is_program(name),
            PackageProbe::File(name) => Path::new(name).is_file(),
            PackageProbe::Command(line) => run::read(Command::new("sh").args(["-c", line])).is_ok(),
        }
    }
}

/// Installs missing packages and prints their names.
pub(crate) fn install_missing(packages: &[Package]) -> Result<(), String> {
    let missing: Vec<&Package> =
        packages.iter().filter(|package| !package.is_installed()).collect();
    if missing.is_empty() {
        println!("system packages: all {} are there", packages.len());
        return Ok(());
    }
    println!("system packages that are missing:");
    for package in &missing {
        println!("  {:<14} {}", package.name, package.why);
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    let by_hand = format!("install by hand what brings: {}", names.join(" "));
    if !run::is_program("apt-get") {
        return Err(format!("this machine has no apt-get: {by_hand}"));
    }
    let rights =
        rights().ok_or_else(|| format!("neither root nor sudo without password: {by_hand}"))?;
    let guard = NoServices::begin(&rights)?;
    let installed = apt(&rights, &["update"]).and_then(|()| {
        let mut words = vec!["install", "--yes", "--no-install-recommends"];
        words.extend(&names);
        apt(&rights, &words)
    });
    drop(guard);
    installed.map_err(|why| format!("{why}: {by_hand}"))?;
    match missing.iter().find(|package| !package.is_installed()) {
        Some(package) => Err(format!("{} is installed and still not found", package.name)),
        None => Ok(()),
    }
}

/// The words before a command that changes the machine: none for root, else sudo.
fn rights() -> Option<Vec<&'static str>> {
    let user = run::read(Command::new("id").arg("-u")).ok()?;
    if user.trim() == "0" {
        return Some(Vec::new());
    }
    let sudo = ["sudo", "--non-interactive"];
    run::read(Command::new("sudo").args(["--non-interactive", "true"])).ok().map(|_| sudo.to_vec())
}

fn privileged(rights: &[&str], words: &[&str]) -> Command {
    let mut all = rights.iter().chain(words);
    let mut command = Command::new(all.next().unwrap_or(&"true"));
    command.args(all);
    command
}

fn apt(rights: &[&str], words: &[&str]) -> Result<(), String> {
    let begin = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"];
    // Another installation may hold Debian's lock: wait for it, two minutes at most.
    let begin = begin.iter().chain(&["-o", "DPkg::Lock::Timeout=120"]);
    let all: Vec<&str> = begin.chain(words).copied().collect();
    run::show(&mut privileged(rights, &all))
}

/// While it lives, Debian starts no service of a package it installs. A policy that the machine
/// already has is left alone.
struct NoServices<'a> {
    rights: &'a [&'static str],
    is_ours: bool,
}

impl<'a> NoServices<'a> {
    fn begin(rights: &'a [&'static str]) -> Result<Self, String> {
        if Path::new(POLICY).exists() {
            return Ok(Self { rights, is_ours: false });
        }
        let draft = std::env::temp_dir().join(format!("policy-rc.d.{}", std::process::id()));
        let text = "#!/bin/sh\n# nothing is started while xtask installs packages\nexit 101\n";
        fs::write(&draft, text).map_err(|error| format!("{}: {error}", draft.display()))?;
        let from = draft.to_string_lossy();
        let placed = run::read(&mut privileged(rights, &["install", "-m", "755", &from, POLICY]));
        fs::remove_file(&draft).unwrap_or_default();
        placed.map(|_| Self { rights, is_ours: true })
    }
}

impl Drop for NoServices<'_> {
    fn drop(&mut self) {
        if self.is_ours
            && let Err(why) = run::read(&mut privileged(self.rights, &["rm", "-f", POLICY]))
        {
            println!("{POLICY} stays behind: remove it by hand ({why})");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installed_package_is_not_installed_again() {
        let there =
            Package { name: "none", probe: PackageProbe::Program("sh"), why: "always there" };
        assert!(there.is_installed());
        let answer = PackageProbe::Command("exit 0");
        assert!(Package { name: "none", probe: answer, why: "always there" }.is_installed());
        assert_eq!(install_missing(&[there]), Ok(()));
    }

    #[test]
    fn a_missing_package_is_detected() {
        let program = PackageProbe::Program("a-program-that-does-not-exist");
        assert!(!Package { name: "none", probe: program, why: "never there" }.is_installed());
        let answer = PackageProbe::Command("exit 1");
        assert!(!Package { name: "none", probe: answer, why: "never there" }.is_installed());
        let file = PackageProbe::File("/a/file/that/does/not/exist");
        assert!(!Package { name: "none", probe: file, why: "never there" }.is_installed());
    }
}
