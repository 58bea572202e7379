//! Passwords, stored as SHA-256 only.

use sha2::{Digest, Sha256};
use std::fmt;
use std::hint::black_box;

const BYTES: usize = 32;

/// The password hashes of one user.
#[derive(Clone, Default)]
pub(super) struct PasswordHashes(Vec<[u8; BYTES]>);

impl PasswordHashes {
    /// Whether a password is one of them. Compares with all of them, in constant time.
    pub(super) fn contains(&self, password: &[u8]) -> bool {
        let given = hash(password);
        let mut is_one = false;
        for secret in black_box(&self.0) {
            is_one |= is_same(secret, &given);
        }
        black_box(is_one)
    }

    pub(super) fn add(&mut self, secret: [u8; BYTES]) {
        if !self.0.contains(&secret) {
            self.0.push(secret);
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In hexadecimal digits.
    pub(super) fn hex_digits(&self) -> impl ExactSizeIterator<Item = String> {
        self.0.iter().map(|secret| {
            secret.iter().fold(String::with_capacity(2 * BYTES), |mut text, byte| {
                text.extend(
                    [byte >> 4, byte & 15]
                        .map(|four| char::from_digit(u32::from(four), 16).unwrap_or_default()),
                );
                text
            })
        })
    }
}

/// Hashes are not logged.
impl fmt::Debug for PasswordHashes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passwords", self.0.len())
    }
}

pub(super) fn hash(password: &[u8]) -> [u8; BYTES] {
    Sha256::digest(password).into()
}

/// Parses a hash of 64 hexadecimal digits.
pub(super) fn of_digits(digits: &str) -> Option<[u8; BYTES]> {
    let mut secret = [0; BYTES];
    if digits.len() != 2 * BYTES || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(secret)
}

/// Compares in constant time, so that the duration does not reveal the first difference.
fn is_same(left: &[u8; BYTES], right: &[u8; BYTES]) -> bool {
    let differ = left.iter().zip(right).fold(0, |differ, (left, right)| differ | (left ^ right));
    black_box(differ) == 0
}
