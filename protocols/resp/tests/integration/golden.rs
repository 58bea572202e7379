//! Replies of hash, set and key commands equal recorded replies of redis-server, byte by byte.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write as _;

use crate::fixture::{node, request};

/// Replaces the escapes `\xff`, `\r`, `\n` and `\\` by their bytes.
fn bytes(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        out.push(match rest.next().unwrap() {
            b'r' => b'\r',
            b'n' => b'\n',
            b'x' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    out
}

/// Splits a line into words. Words with blanks and empty words are in quotes.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() {
        let (word, after) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap(),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        all.push(bytes(word));
        rest = after.trim_start();
    }
    all
}

/// All differences between the recorded replies of a script and ours.
fn differences(script: &str) -> String {
    let node = node();
    let mut client = node.client();
    let mut differences = String::new();
    let mut asked = "";
    let mut answers = 0;
    for line in script.lines() {
        match line.split_at_checked(2) {
            Some(("> ", command)) => asked = command,
            Some(("< ", answer)) => {
                let words = words(asked);
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                let got = client.send(&request(&words));
                if got != bytes(answer) {
                    let got = String::from_utf8_lossy(&got).escape_debug().to_string();
                    writeln!(differences, "{asked}\n  redis {answer}\n  here  {got}").unwrap();
                }
                answers += 1;
            }
            _ => match line {
                "# RESP3" => assert!(client.ask("HELLO 3").starts_with('%')),
                "# RESP2" => assert!(client.ask("HELLO 2").starts_with('*')),
                comment => assert!(comment.starts_with('#'), "{comment}"),
            },
        }
    }
    assert!(answers > 100, "a script is missing");
    differences
}

#[test]
fn hash_commands_reply_like_redis() {
    assert_eq!(differences(include_str!("../golden/hashes.txt")), "");
}

#[test]
fn set_commands_reply_like_redis() {
    assert_eq!(differences(include_str!("../golden/sets.txt")), "");
}

#[test]
fn key_commands_reply_like_redis() {
    assert_eq!(differences(include_str!("../golden/keys.txt")), "");
}

#[test]
fn bit_commands_reply_like_redis() {
    assert_eq!(differences(include_str!("../golden/bits.txt")), "");
}
