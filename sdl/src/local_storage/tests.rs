//! URLs, a node that is away, a mapped region, and listings over rings that end.

use super::*;
use nearstate_local_transport::{
    LocalResource, PipeEnd, PipeInterest, response_line, ring_doorbell, send,
};
use nearstate_store::{CreateOptions, Region};
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixListener;
use std::thread;

#[test]
fn a_url_is_parsed_and_its_password_is_not_shown() {
    let url = "/run/node.sock?timeout=250ms&user=xapp&password=hidden-word&way=ring";
    let storage = LocalStorage::parse(url).unwrap();
    assert_eq!(storage.path, PathBuf::from("/run/node.sock"));
    assert_eq!((storage.timeout.as_millis(), storage.wanted), (250, Some(LocalAccess::Ring)));
    assert!(!format!("{storage:?}").contains("hidden-word"));
    for wrong in ["", "?way=ring", "/s?way=tcp", "/s?timeout=0s", "/s?user=a", "/s?x=1"] {
        assert_eq!(LocalStorage::parse(wrong).unwrap_err().kind, ErrorKind::RejectedBySdl);
    }
}

#[test]
fn wait_ready_waits_for_a_missing_node() {
    let mut storage = LocalStorage::open("/no/such/folder/node.sock").unwrap();
    assert_eq!(storage.access(), None);
    assert!(!storage.is_ready("ns").unwrap());
    let error = storage.set("ns", &[(b"k", b"v")]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotConnected, "{error}");
    let error = storage.wait_ready("ns", Duration::from_millis(30)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::RejectedBySdl, "{error}");
}

/// A node grants a region and ends. The next one grants the same file in a form that cannot be
/// attached: both descriptors are one open file.
#[test]
fn a_mapped_region_is_not_attached_again() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let path = folder.path().join("node.sock");
    let node = UnixListener::bind(&path).unwrap();
    let serve = |is_valid: bool| {
        let (socket, _) = node.accept().unwrap();
        read_region_request(&socket);
        let files = region.files().unwrap();
        let liveness = if is_valid { files.liveness.as_fd() } else { files.file.as_fd() };
        send(&socket, &response_line(LocalResource::Region), &[files.file.as_fd(), liveness])
            .unwrap();
        socket
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| serve(true));
        let url = format!("{}?way=region", path.display());
        let mut storage = LocalStorage::open(&url).unwrap();
        drop(first.join().unwrap());
        assert_eq!(storage.access(), Some(LocalAccess::Region));
        storage.set("ns", &[(b"k", b"v")]).unwrap();
        let second = scope.spawn(|| serve(false));
        while !second.is_finished() {
            storage.get("ns", &[b"k"]).unwrap();
        }
        assert_eq!(storage.get("ns", &[b"k"]).unwrap()[&b"k"[..]], b"v");
        assert_eq!(storage.access(), Some(LocalAccess::Region));
        drop(second.join().unwrap());
    });
}

/// Reads the request for a region.
fn read_region_request(mut socket: &UnixStream) {
    let request = b"*2\r\n$5\r\nLOCAL\r\n$6\r\nREGION\r\n";
    let mut read = vec![0; request.len()];
    socket.read_exact(&mut read).unwrap();
    assert_eq!(read, request);
}

/// The client asks for the region first, and gets one only from the second node.
#[test]
fn an_idempotent_read_uses_the_region_that_a_restarted_node_grants() {
    let folder = tempfile::tempdir().unwrap();
    let region = Region::create(&folder.path().join("r"), &CreateOptions::default()).unwrap();
    let path = folder.path().join("node.sock");
    let node = UnixListener::bind(&path).unwrap();
    // Not in a scope: if the test fails, it waits for a client for ever.
    let server = thread::Builder::new().spawn(move || {
        let (first, _) = node.accept().unwrap();
        read_region_request(&first);
        (&first).write_all(b"-ERR not granted\r\n").unwrap();
        serve_ring_to(&first, 0, |_| "");
        drop(first);
        let (second, _) = node.accept().unwrap();
        read_region_request(&second);
        let files = region.files().unwrap();
        let descriptors = [files.file.as_fd(), files.liveness.as_fd()];
        send(&second, &response_line(LocalResource::Region), &descriptors).unwrap();
        second
    });
    let server = server.unwrap();
    let mut storage = LocalStorage::open(&format!("{}?timeout=60s", path.display())).unwrap();
    assert_eq!(storage.access(), Some(LocalAccess::Ring));
    assert!(storage.get("ns", &[b"k"]).unwrap().is_empty());
    assert_eq!(storage.access(), Some(LocalAccess::Region));
    drop(server.join().unwrap());
}

/// Accepts a client, gives it a ring and answers so many of its requests.
fn serve_ring(node: &UnixListener, answers: usize, answer: impl Fn(&str) -> &'static str) {
    let (socket, _) = node.accept().unwrap();
    serve_ring_to(&socket, answers, answer);
}

fn serve_ring_to(mut socket: &UnixStream, answers: usize, answer: impl Fn(&str) -> &'static str) {
    let request = b"*2\r\n$5\r\nLOCAL\r\n$4\r\nRING\r\n";
    socket.read_exact(&mut vec![0; request.len()]).unwrap();
    let (mut end, memory) = PipeEnd::create().unwrap();
    send(socket, &response_line(LocalResource::Ring), &[memory.as_fd()]).unwrap();
    for _ in 0..answers {
        let mut request = [0; 1024];
        let bytes = loop {
            let moved = end.read(&mut request).unwrap();
            if moved.bytes > 0 {
                break moved.bytes;
            }
            if end.fall_asleep(PipeInterest { readable: true, writable: false }) {
                let _ = socket.read(&mut [0; 8]).unwrap();
                end.wake();
            }
        };
        let answer = answer(std::str::from_utf8(&request[..bytes]).unwrap());
        if end.write(answer.as_bytes()).unwrap().must_ring_doorbell {
            ring_doorbell(socket);
        }
    }
}

/// The next node has another order of the keys, so it does not go on where the first one ended.
#[test]
fn a_listing_begins_again_at_another_node() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("node.sock");
    let node = UnixListener::bind(&path).unwrap();
    let begun = "*2\r\n$1\r\n7\r\n*1\r\n$6\r\n{ns},a\r\n";
    let next = |request: &str| {
        if request.contains("\r\n7\r\n") {
            "*2\r\n$1\r\n0\r\n*1\r\n$6\r\n{ns},b\r\n"
        } else {
            "*2\r\n$1\r\n0\r\n*3\r\n$6\r\n{ns},c\r\n$6\r\n{ns},a\r\n$6\r\n{ns},b\r\n"
        }
    };
    // Not in a scope: if the test fails, it waits for a client for ever.
    let serve = move || {
        serve_ring(&node, 1, |_| begun);
        serve_ring(&node, 1, next);
        (0..LISTINGS_MAX).for_each(|_| serve_ring(&node, 1, |_| begun));
    };
    let server = thread::Builder::new().spawn(serve).unwrap();
    let url = format!("{}?way=ring&timeout=60s", path.display());
    let mut storage = LocalStorage::open(&url).unwrap();
    let keys = storage.list_keys("ns", b"*").unwrap();
    assert_eq!(keys, [b"a", b"b", b"c"].map(|key| key.to_vec()).into());
    storage.open = LocalConnection::Closed;
    let error = storage.find_keys("ns", b"").unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotConnected, "each listing ends: {error}");
    server.join().unwrap();
}
