//! Input that is not a request, too large or too slow, and replies that are never read.

use super::target::{all_of, target};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::time::Duration;

use crate::fixture::HANG_TIMEOUT;

/// Memory that may remain in the allocator after an attack.
const LEFT_OVER: u64 = 32 << 20;

const HTTP: &[&[u8]] = &[
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30\r\n\r\nSET smuggled yes\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nSET smuggled yes\r\n",
    b"PUT /x HTTP/1.1\r\nhOsT: localhost:6379\r\n\r\nSET smuggled yes\r\n",
    b"OPTIONS / HTTP/1.1\r\nAccept: */*\r\nHost: x\r\n\r\nSET smuggled yes\r\n",
];

#[test]
fn http_on_the_resp_port_is_closed_before_it_can_smuggle_a_command() {
    let target = target(&[]);
    for words in HTTP {
        let mut stream = target.tcp();
        stream.write_all(words).unwrap();
        let output = all_of(&mut stream);
        let output = String::from_utf8_lossy(&output);
        assert!(output.contains("this is no HTTP server"), "{output}");
    }
    assert_eq!(target.client().ask(&["GET", "smuggled"]), "$-1");
    target.is_as_before(LEFT_OVER);
}

/// A `ClientHello` of TLS 1.3, up to its declared length.
fn tls_hello() -> Vec<u8> {
    let mut hello = vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3];
    hello.extend((0..506_u32).map(|at| (at * 7 % 251) as u8));
    hello
}

#[test]
fn garbage_and_tls_on_the_plain_port_end_in_an_error_or_a_close_and_never_in_a_hang() {
    let target = target(&["--limits-request-timeout", "300ms"]);
    let mut garbage: Vec<Vec<u8>> = vec![
        tls_hello(),
        b"*-1\r\n*0\r\n*1\r\n$-5\r\n".to_vec(),
        b"*99999999999999999999\r\n".to_vec(),
        b"*1048577\r\n".to_vec(),
        b"$3\r\nfoo\r\n*1\r\n:4\r\n".to_vec(),
        b"*2\r\n$3\r\nGET\r\n$1\r\nkXX".to_vec(),
        b"\"unbalanced\r\n".to_vec(),
        b"\x00\x01\x02\x03SSH-2.0-x\r\n".to_vec(),
        vec![b'x'; 1 << 20],
        vec![0xff; 300_000],
        vec![b'\n'; 300_000],
    ];
    let mut word = 0x9e37_79b9_u32;
    garbage.extend((0..50).map(|_| {
        let noise = (0..20_000).map(|_| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (word >> 24) as u8
        });
        noise.collect()
    }));
    for bytes in &garbage {
        let mut stream = target.tcp();
        // The node may close the connection before everything is sent.
        let _ = stream.write_all(bytes);
        let mut unix = target.unix();
        let _ = unix.write_all(bytes);
        // Input that looks like the start of a request times out; lines of unknown commands receive
        // errors, and then the client closes.
        let _ = stream.shutdown(Shutdown::Write);
        let output = all_of(&mut stream);
        let is_answer = output.is_empty() || b"-+:$*".contains(&output[0]);
        assert!(is_answer, "{}", output.escape_ascii());
        let _ = unix.shutdown(Shutdown::Write);
        all_of(&mut unix);
    }
    target.is_as_before(LEFT_OVER);
}

#[test]
fn a_request_sent_byte_by_byte_is_aborted_while_others_are_served() {
    let target = target(&["--limits-request-timeout", "500ms"]);
    let request = b"*3\r\n$3\r\nSET\r\n$4\r\nslow\r\n$2\r\nok\r\n";
    let mut slow: Vec<_> = (0..100).map(|_| target.tcp()).collect();
    for stream in &slow {
        stream.set_nonblocking(true).unwrap();
    }
    let mut sent = 0;
    while !slow.is_empty() {
        assert!(sent < request.len(), "{} clients sent a request byte by byte", slow.len());
        slow.retain_mut(|stream| {
            let is_sent = stream.write_all(&request[sent..=sent]).is_ok();
            let is_open =
                stream.read(&mut [0; 64]).is_err_and(|e| e.kind() == ErrorKind::WouldBlock);
            is_sent && is_open
        });
        sent += 1;
        target.serves();
        // The whole request would take several times the timeout.
        std::thread::sleep(Duration::from_millis(100));
    }
    eprintln!("closed after {sent} bytes");
    assert!(target.node.log().contains("request_timeout"), "{}", target.node.log());
    assert_eq!(target.client().ask(&["GET", "slow"]), "$-1");
    target.is_as_before(LEFT_OVER);
}

const HUGE: &[u8] = b"*3\r\n$3\r\nSET\r\n$4\r\nhuge\r\n$536870912\r\n";

#[test]
fn a_bulk_of_512_mb_without_a_body_is_rejected_or_uses_no_memory() {
    let usual = target(&[]);
    let mut stream = usual.tcp();
    stream.write_all(HUGE).unwrap();
    let output = all_of(&mut stream);
    assert!(output.starts_with(b"-ERR Protocol error: invalid bulk length"), "{output:?}");
    usual.is_as_before(LEFT_OVER);
    drop(usual);

    // A node with larger limits accepts the length and waits for the body.
    let bounds = ["--resp-request-bytes-max", "1GiB", "--limits-input-bytes-max", "1GiB"];
    let generous = target(&[&bounds[..], &["--limits-request-timeout", "10min"]].concat());
    let mut waiting = Vec::new();
    for _ in 0..1000 {
        let mut stream = generous.tcp();
        stream.write_all(HUGE).unwrap();
        stream.write_all(&[b'x'; 1000]).unwrap();
        waiting.push(stream);
    }
    generous.until("1,000 clients are connected", |target| target.connected() == 1000);
    generous.serves();
    let more = generous.memory_more();
    eprintln!("1,000 headers of 512 MB: {} KiB more", more >> 10);
    assert!(more < 32 << 20, "{more} bytes");
    drop(waiting);
    generous.is_as_before(LEFT_OVER);
}

#[test]
fn a_client_that_never_reads_is_disconnected_and_uses_little_memory() {
    let target = target(&["--limits-reply-timeout", "1s"]);
    let mut client = target.client();
    let value = "v".repeat(1 << 20);
    assert_eq!(client.ask(&["SET", "large", &value]), "+OK");
    drop(client);
    let before = target.memory_used();
    let request = b"*2\r\n$3\r\nGET\r\n$5\r\nlarge\r\n".repeat(2000);
    let mut greedy: Vec<_> = (0..50).map(|_| target.tcp()).collect();
    for stream in &mut greedy {
        // Replies of a hundred gigabytes.
        stream.write_all(&request).unwrap();
    }
    target.serves();
    let mut most = 0;
    target.until("all slow readers are disconnected", |target| {
        most = most.max(target.memory_used());
        target.connected() == 0
    });
    let more = most.saturating_sub(before);
    eprintln!("50 clients that do not read: {} KiB more at most", more >> 10);
    assert!(more < 256 << 20, "{more} bytes");
    assert!(target.node.log().contains("slow_reader"), "{}", target.node.log());
    drop(greedy);
    target.is_as_before(LEFT_OVER);
}

#[test]
fn a_request_for_a_thousand_times_the_same_megabyte_is_rejected_before_it_is_in_memory() {
    let target = target(&[]);
    let mut client = target.client();
    let value = "v".repeat(1 << 20);
    assert_eq!(client.ask(&["SET", "large", &value]), "+OK");
    let words: Vec<&str> = std::iter::once("MGET").chain(vec!["large"; 5000]).collect();
    let output = client.ask(&words);
    assert!(output.starts_with("-ERR reply exceeds"), "{}", &output[..100]);
    assert_eq!(client.ask(&["PING"]), "+PONG");
    // The same in a transaction, which then changes nothing.
    assert_eq!(client.ask(&["MULTI"]), "+OK");
    assert_eq!(client.ask(&["SET", "changed", "yes"]), "+QUEUED");
    assert_eq!(client.ask(&words), "+QUEUED");
    let output = client.ask(&["EXEC"]);
    assert!(output.starts_with("-EXECABORT replies exceed"), "{output}");
    assert!(output.ends_with("nothing was changed"), "{output}");
    assert_eq!(client.ask(&["GET", "changed"]), "$-1");
    drop(client);
    target.is_as_before(LEFT_OVER);
}

#[test]
fn queued_multi_commands_count_as_memory_of_the_core() {
    let target = target(&["--limits-core-bytes-max", "16MiB"]);
    let value = "v".repeat(1 << 20);
    let mut refused = 0;
    let mut queuing = Vec::new();
    for _ in 0..60 {
        let mut client = target.client();
        assert_eq!(client.ask(&["MULTI"]), "+OK");
        if client.send(&[b"SET", b"k", value.as_bytes()]).is_ok()
            && let Ok(output) = client.receive()
        {
            // The request was accepted; the error follows it.
            assert!(
                output == b"+QUEUED" || output.starts_with(b"-OOM"),
                "{}",
                output.escape_ascii()
            );
        }
        refused += usize::from(
            client.send(&[b"PING"]).is_err() || {
                client.receive().map_or(true, |output| output.starts_with(b"-OOM"))
            },
        );
        queuing.push(client);
    }
    eprintln!("{refused} of 60 clients with a queued megabyte were refused");
    assert!(refused >= 60 - 34, "{refused}: more than 16 MiB a core are queued");
    drop(queuing);
    target.is_as_before(LEFT_OVER);
}

#[test]
fn endless_pipelines_do_not_block_other_clients() {
    let target = target(&["--limits-reply-timeout", "20s"]);
    let pings = b"*1\r\n$4\r\nPING\r\n".repeat(10_000);
    // One client never reads. The node stops reading from it and disconnects it.
    let mut slow = target.tcp();
    slow.set_write_timeout(Some(HANG_TIMEOUT)).unwrap();
    let mut sent = 0_u64;
    while slow.write(&pings).inspect(|bytes| sent += *bytes as u64).is_ok() {
        assert!(sent < 1 << 30, "the node buffers requests without a limit");
    }
    // Another one reads as fast as it can and never stops sending.
    let mut endless = target.tcp();
    let mut reader = endless.try_clone().unwrap();
    let writing = std::thread::spawn(move || while endless.write_all(&pings).is_ok() {});
    let reading = std::thread::spawn(move || {
        let mut part = vec![0; 1 << 16];
        let mut all = 0;
        while let Ok(bytes) = reader.read(&mut part) {
            all += bytes;
            if bytes == 0 || all > 10_000_000 {
                break;
            }
        }
        let _ = reader.shutdown(Shutdown::Both);
        all
    });
    for _ in 0..20 {
        target.serves();
    }
    assert!(reading.join().unwrap() > 10_000_000, "the endless pipeline is served");
    writing.join().unwrap();
    target.until("the slow reader is disconnected", |target| {
        target.node.log().contains("slow_reader")
    });
    eprintln!("the slow reader sent {} KiB", sent >> 10);
    drop(slow);
    target.is_as_before(LEFT_OVER);
}
