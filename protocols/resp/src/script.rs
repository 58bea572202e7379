//! The supported scripts of SDL and lock clients, identified by SHA-1. A general interpreter could
//! occupy a core for an unlimited time.

use sha1_smol::Sha1;

/// A supported script, implemented natively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// sdlgo, refresh of a lock: `PEXPIRE` if the value is the token (1 or 0), otherwise 0.
    Refresh,
    /// redis-py, release: deletes the key if the value is the token and returns 1, otherwise 0.
    Release,
    /// redis-py, reacquire: `PEXPIRE` if the value is the token and returns 1, otherwise 0.
    Reacquire,
    /// ricsdl, validity: -10 if the key does not exist, -11 if the value differs, otherwise the
    /// time to live in ms.
    Validity,
    /// redis-py, extend: 0 if the key does not exist, its value differs, or it has no expiration
    /// time. Otherwise sets the time to live to ARGV 2 ms, added to the current one if ARGV 3 is
    /// `0`, and returns 1.
    Extend,
}

/// SHA-1 of each script.
const KNOWN: [(Script, &str); 5] = [
    (Script::Refresh, "a7aba3bc5d6e99b3003da8b9d80a63b9f4092ecf"),
    (Script::Release, "c3f8721cbb97f72bc19e972846bd7aaf91901658"),
    (Script::Reacquire, "1cac51482acf5858da00f6d685d68f886cd6b6b2"),
    (Script::Validity, "a1cd263f9fd7738509581a71d19c4f4a05f1d918"),
    (Script::Extend, "a4e8783852e6b949f9ef3a97212805108459a890"),
];

impl Script {
    /// The script with this SHA-1, in hexadecimal digits of any case.
    pub fn of_sha(sha: &[u8]) -> Option<Self> {
        let is = |known: &str| known.as_bytes().eq_ignore_ascii_case(sha);
        KNOWN.iter().find(|(_, known)| is(known)).map(|(script, _)| *script)
    }

    /// The script with this text.
    pub fn of_text(text: &[u8]) -> Option<Self> {
        Self::of_sha(Sha1::from(text).digest().to_string().as_bytes())
    }

    /// Its SHA-1 in hexadecimal digits.
    pub fn sha(self) -> &'static str {
        KNOWN.iter().find(|(script, _)| *script == self).map_or("", |(_, sha)| sha)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "\n        local token = redis.call('get', KEYS[1])\n        \
                         if not token or token ~= ARGV[1] then\n            return 0\n        \
                         end\n";

    #[test]
    fn the_scripts_of_redis_py_are_known() {
        let release = format!("{BEGIN}        redis.call('del', KEYS[1])\n        return 1\n    ");
        let again = "        redis.call('pexpire', KEYS[1], ARGV[2])\n        return 1\n    ";
        assert_eq!(Script::of_text(release.as_bytes()), Some(Script::Release));
        let again = format!("{BEGIN}{again}");
        assert_eq!(Script::of_text(again.as_bytes()), Some(Script::Reacquire));
        assert_eq!(Script::of_text(b"return 1"), None);
    }

    #[test]
    fn a_script_is_found_by_its_sha_in_any_case() {
        for (script, sha) in KNOWN {
            assert_eq!(sha.len(), 40);
            assert_eq!(Script::of_sha(sha.to_ascii_uppercase().as_bytes()), Some(script));
            assert_eq!(script.sha(), sha);
        }
        assert_eq!(Script::of_sha(b""), None);
    }
}
