//! Files of another user: `nearstate serve` refuses them with the owner's name, and uses them if a
//! setting allows it. And files that others remove.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use crate::fixture::{Folder, NEARSTATE, free_ports, http, own_ip, rejected, serve, start, until};

/// A user that is neither root nor the one that runs the tests.
const OTHER: u32 = 54_321;

/// Only root can give a file to another user. False, with the reason printed, without it.
pub(crate) fn may_give_away(folder: &Folder) -> bool {
    let tried = folder.path("given-away");
    fs::write(&tried, "").unwrap();
    let done = chown(&tried, Some(OTHER), None);
    if let Err(error) = &done {
        eprintln!("SKIPPED: a file cannot be given to another user: {error}");
    }
    done.is_ok() && fs::metadata(&tried).unwrap().uid() == OTHER
}

fn create_region(path: &Path) {
    let mut create = Command::new(NEARSTATE);
    create.args(["region", "create", "--max", "64MiB"]).arg(path);
    assert!(create.output().unwrap().status.success());
}

/// A node with this region and this socket is refused, and told what belongs to the other user.
/// With the setting it starts, and serves a client.
fn refused_unless_allowed(region: &Path, socket: &str, what: &str) {
    let command = || {
        let mut command = serve(region);
        let listen = ["--listen", "127.0.0.1:0", "--unix", socket, "--cores", "1"];
        command.args(listen).args(["--max", "64MiB"]);
        command
    };
    let text = rejected(&mut command());
    assert!(text.contains(&format!("{what} belongs to user {OTHER}")), "{what}: {text}");
    assert!(text.contains("--any-owner"), "{what}: {text}");
    let node = start(command().arg("--any-owner=true"));
    assert_eq!(node.tcp().ask(&["PING"]), "+PONG", "{what}");
}

#[test]
fn a_region_file_of_another_user_is_refused() {
    let folder = Folder::new();
    if !may_give_away(&folder) {
        return;
    }
    let region = folder.path("r");
    create_region(&region);
    chown(&region, Some(OTHER), None).unwrap();
    refused_unless_allowed(&region, "", "the file");
}

#[test]
fn a_region_in_a_directory_of_another_user_is_refused() {
    let folder = Folder::new();
    if !may_give_away(&folder) {
        return;
    }
    let directory = folder.path("of-another");
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(OTHER), None).unwrap();
    let what = format!("the directory {}", fs::canonicalize(&directory).unwrap().display());
    // The region does not exist yet, and a refused start does not create it.
    let region = directory.join("r");
    let text = rejected(serve(&region).args(["--listen", "127.0.0.1:0", "--unix", ""]));
    assert!(text.contains(&what) && !region.exists(), "{text}");
    refused_unless_allowed(&region, "", &what);
}

#[test]
fn a_region_behind_a_symbolic_link_of_another_user_is_refused() {
    let folder = Folder::new();
    if !may_give_away(&folder) {
        return;
    }
    // Where the link leads, a region exists, or is created.
    for exists in [true, false] {
        let target = folder.path(if exists { "target" } else { "created" });
        if exists {
            create_region(&target);
        }
        let link = folder.path(if exists { "link" } else { "link-to-nothing" });
        symlink(&target, &link).unwrap();
        lchown(&link, Some(OTHER), None).unwrap();
        let text = rejected(serve(&link).args(["--listen", "127.0.0.1:0", "--unix", ""]));
        assert!(text.contains("the symbolic link ") && target.exists() == exists, "{text}");
        refused_unless_allowed(&link, "", &format!("the symbolic link {}", link.display()));
    }
}

#[test]
fn a_socket_of_another_user_is_refused() {
    let folder = Folder::new();
    if !may_give_away(&folder) {
        return;
    }
    let socket = folder.path("node.sock");
    // A process of that user has listened there, and has ended.
    drop(UnixListener::bind(&socket).unwrap());
    lchown(&socket, Some(OTHER), None).unwrap();
    refused_unless_allowed(&folder.path("r"), socket.to_str().unwrap(), "the socket");
    assert_eq!(
        fs::metadata(folder.path("r")).unwrap().uid(),
        fs::metadata("/proc/self").unwrap().uid()
    );
}

#[test]
fn the_removal_of_a_regions_file_is_noticed() {
    let folder = Folder::new();
    let (region, other) = (folder.path("region"), folder.path("other"));
    let ip = own_ip();
    let metrics = format!("{ip}:{}", free_ports(ip, 1)[0]);
    let mut command = serve(&region);
    command.args(["--listen", "127.0.0.1:0", "--unix", "", "--cores", "1", "--max", "64MiB"]);
    let node = start(command.args(["--metrics-listen", &metrics]));
    let is_present = || {
        let page = http(&metrics, "/metrics").1;
        page.contains("nearstate_region_file_present 1\n")
    };
    assert!(is_present());
    fs::rename(&region, &other).unwrap();
    until("the node says so", || node.log().contains("NS-3027"));
    assert!(!is_present());
    // It goes on with what it has mapped.
    assert_eq!(node.tcp().ask(&["SET", "key", "1"]), "+OK");
    fs::rename(&other, &region).unwrap();
    until("it is back", || node.log().contains("NS-1028"));
    fs::remove_file(&region).unwrap();
    until("it is removed", || node.log().matches("NS-3027").count() == 2);
    assert_eq!(node.tcp().ask(&["GET", "key"]), "1");
}
