//! `cargo xtask soak numa`: a guest with two NUMA nodes, in which plans are applied and the kernel
//! is asked what came of them. The processor is emulated, so that it runs on any machine. Emulation
//! shows where threads and pages are; it says nothing about speed.

use crate::{packages, run};
use std::fs;
use std::io::{BufRead as _, BufReader, Error};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The first process of the guest.
const INIT: &str = include_str!("guest/init.sh");

/// The Debian package of the kernel depends on the one that has it.
const KERNEL: &str = "linux-image-cloud-amd64";

/// Two sockets of two cores with two hyper-threads. A guest takes half a minute on an idle machine
/// and is killed after ten. An AMD model would hide the hyper-threads.
const GUEST: &str = "600 qemu-system-x86_64 -machine q35 -accel tcg -cpu Skylake-Server -m 1024 \
    -smp 8,sockets=2,cores=2,threads=2 -object memory-backend-ram,size=512M,id=m0 \
    -object memory-backend-ram,size=512M,id=m1 -numa node,nodeid=0,cpus=0-3,memdev=m0 \
    -numa node,nodeid=1,cpus=4-7,memdev=m1 -numa dist,src=0,dst=1,val=21 -nic none -nographic \
    -no-reboot";

/// Boots the guest with this `nearstate`. Returns whether all of its checks passed.
pub(crate) fn run(root: &Path, program: &Path) -> Result<bool, String> {
    packages::install_missing(packages::GUEST)?;
    let folder = run::build_folder(root).join("guest");
    fs::create_dir_all(&folder).map_err(|error| failed(&folder, &error))?;
    let mut guest = Command::new("timeout");
    guest.args(GUEST.split_whitespace());
    guest.arg("-kernel").arg(kernel(&folder)?).arg("-initrd").arg(image(&folder, program)?);
    guest.args(["-append", "console=ttyS0 quiet panic=-1"]);
    println!("$ {}", run::words(&guest));
    guest.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = guest.spawn().map_err(|error| run::not_started(&guest, &error))?;
    let output = process.stdout.take().ok_or("the guest has no output")?;
    let mut text = String::new();
    for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).into_owned();
        println!("{}", line.trim_end());
        text += &line;
        text.push('\n');
    }
    process.wait().map_err(|error| error.to_string())?;
    let (passed, is_success) = validate(&text);
    println!("{passed} checks in the guest passed{}", if is_success { "" } else { "; it FAILED" });
    Ok(is_success)
}

/// How many checks of a guest's output passed, and whether it reached its end without a failure.
fn validate(text: &str) -> (usize, bool) {
    let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
    let passed = count("guest: ok ");
    (passed, passed > 0 && count("guest: FAIL") == 0 && count("guest: end") == 1)
}

fn failed(path: &Path, error: &Error) -> String {
    format!("{}: {error}", path.display())
}

/// The kernel of Debian's package, which is fetched and unpacked once.
fn kernel(folder: &Path) -> Result<PathBuf, String> {
    let find = || {
        let entries = fs::read_dir(folder.join("boot")).ok()?;
        let mut names = entries.filter_map(|entry| Some(entry.ok()?.path()));
        names.find(|path| path.to_string_lossy().contains("vmlinuz-"))
    };
    if let Some(kernel) = find() {
        return Ok(kernel);
    }
    let depends = run::read(Command::new("apt-cache").args(["depends", KERNEL]))?;
    let name = depends.lines().find_map(|line| line.trim().strip_prefix("Depends: "));
    let name = name.ok_or_else(|| format!("apt-cache knows no {KERNEL}: run apt-get update"))?;
    run::show(Command::new("apt-get").args(["download", name]).current_dir(folder))?;
    run::show(
        Command::new("sh").args(["-c", "dpkg-deb -x linux-image-*.deb ."]).current_dir(folder),
    )?;
    find().ok_or_else(|| format!("{name} has no boot/vmlinuz"))
}

/// A file system in memory for the guest: busybox, this program, and its libraries.
fn image(folder: &Path, program: &Path) -> Result<PathBuf, String> {
    let tree = folder.join("tree");
    if tree.exists() {
        fs::remove_dir_all(&tree).map_err(|error| failed(&tree, &error))?;
    }
    for name in ["bin", "dev", "proc", "sys", "tmp"] {
        let path = tree.join(name);
        fs::create_dir_all(&path).map_err(|error| failed(&path, &error))?;
    }
    let copy = |from: &Path, to: &Path| -> Result<(), String> {
        let to = tree.join(to.strip_prefix("/").unwrap_or(to));
        let parent = to.parent().unwrap_or(&tree);
        fs::create_dir_all(parent).map_err(|error| failed(parent, &error))?;
        fs::copy(from, &to).map(drop).map_err(|error| failed(from, &error))
    };
    copy(Path::new("/bin/busybox"), Path::new("bin/busybox"))?;
    copy(program, Path::new("bin/nearstate"))?;
    run::read(Command::new("strip").arg(tree.join("bin/nearstate")))?;
    for library in run::read(Command::new("ldd").arg(program))?.split_whitespace() {
        if library.starts_with('/') {
            copy(Path::new(library), Path::new(library))?;
        }
    }
    let init = tree.join("init");
    fs::write(&init, INIT).map_err(|error| failed(&init, &error))?;
    fs::set_permissions(&init, fs::Permissions::from_mode(0o755))
        .map_err(|error| failed(&init, &error))?;
    let pack = "find . | cpio --quiet -o -H newc > ../image";
    run::read(Command::new("sh").args(["-c", pack]).current_dir(&tree))?;
    Ok(folder.join("image"))
}

#[cfg(test)]
mod tests {
    use super::validate;

    #[test]
    fn a_guest_passes_only_at_its_end_and_without_a_failure() {
        assert_eq!(validate("guest: ok a\nguest: ok b\r\nguest: end\n"), (2, true));
        assert_eq!(validate("guest: ok a\n"), (1, false));
        assert_eq!(validate("guest: ok a\nguest: FAIL b: 1, expected 2\nguest: end\n"), (1, false));
        assert_eq!(validate("Kernel panic\nguest: end\n"), (0, false));
    }
}
