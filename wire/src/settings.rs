//! The settings that all hosts of a cluster must share: a digest of all of them, and a text with
//! as many as fit, so that a host that refuses another one can name the first that differs.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_128;

use crate::limits::{SETTING_SHOWN_BYTES_MAX, SETTINGS_TEXT_BYTES_MAX};

/// The last line of a text that does not have all settings.
const CUT: &str = "...\n";

/// What stands between the name and the value of a setting.
const SEPARATOR: &str = " = ";

/// What a host says of its settings. All zero and empty without a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SettingsSummary<'a> {
    /// XXH3-128 of all settings.
    pub digest: [u8; 16],
    /// The first ones, one a line: at most [`SETTINGS_TEXT_BYTES_MAX`] bytes.
    pub text: &'a str,
}

/// The settings of a host. Without a cluster there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedSettings {
    lines: Vec<(String, String)>,
    digest: [u8; 16],
    text: String,
}

/// The beginning of a text, for one line of a log.
fn shown(text: &str) -> &str {
    let mut end = text.len().min(SETTING_SHOWN_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

impl SharedSettings {
    /// Settings in an order that is the same on all hosts: name and value, neither with a line end.
    pub fn new(lines: Vec<(String, String)>) -> Self {
        if lines.is_empty() {
            return Self::default();
        }
        let line = |(name, value): &(String, String)| format!("{name}{SEPARATOR}{value}\n");
        let all: Vec<String> = lines.iter().map(line).collect();
        let whole = all.concat();
        let digest = xxh3_128(whole.as_bytes()).to_le_bytes();
        let mut text = whole;
        if text.len() > SETTINGS_TEXT_BYTES_MAX {
            text = String::new();
            for line in &all {
                if text.len() + line.len() + CUT.len() > SETTINGS_TEXT_BYTES_MAX {
                    break;
                }
                text.push_str(line);
            }
            text.push_str(CUT);
        }
        Self { lines, digest, text }
    }

    /// Name and value of each one.
    pub fn lines(&self) -> &[(String, String)] {
        &self.lines
    }

    /// What a message says of them.
    pub fn summary(&self) -> SettingsSummary<'_> {
        SettingsSummary { digest: self.digest, text: &self.text }
    }

    /// The first setting that differs from what another host says, in at most a kilobyte; `None`:
    /// all are equal. The text of the other host may be anything.
    pub fn difference(&self, other: SettingsSummary<'_>) -> Option<String> {
        if other.digest == self.digest {
            return None;
        }
        let is_cut = other.text.ends_with(CUT);
        let theirs: BTreeMap<&str, &str> =
            other.text.lines().filter_map(|line| line.split_once(SEPARATOR)).collect();
        for (name, value) in &self.lines {
            let (name, value) = (name.as_str(), value.as_str());
            match theirs.get(name) {
                Some(their) if *their == value => {}
                Some(their) => {
                    let (name, value, their) = (shown(name), shown(value), shown(their));
                    return Some(format!("{name} is {value:?} here and {their:?} there"));
                }
                None if is_cut => break,
                None => {
                    let (name, value) = (shown(name), shown(value));
                    return Some(format!("{name} is {value:?} here and not set there"));
                }
            }
        }
        let is_ours = |name: &str| self.lines.iter().any(|(own, _)| own == name);
        let more = theirs.iter().find(|(name, _)| !is_ours(name));
        Some(match more {
            Some((name, their)) => {
                let name = shown(name).escape_debug();
                format!("{name} is {:?} there and not set here", shown(their))
            }
            None => {
                format!("a setting behind the first {} differs: compare the files", theirs.len())
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(lines: &[(&str, &str)]) -> SharedSettings {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        SharedSettings::new(lines.iter().map(own).collect())
    }

    #[test]
    fn the_first_setting_that_differs_is_named() {
        let own = settings(&[("copies", "3"), ("lease", "300 ms"), ("host 1", "a")]);
        let difference = |lines: &[(&str, &str)]| own.difference(settings(lines).summary());
        assert_eq!(difference(&[("copies", "3"), ("lease", "300 ms"), ("host 1", "a")]), None);
        for (lines, text) in [
            (&[("copies", "3"), ("lease", "1 s"), ("host 1", "b")][..], "lease is \"300 ms\" here"),
            (&[("copies", "3"), ("lease", "300 ms")], "host 1 is \"a\" here and not set there"),
            (
                &[("copies", "3"), ("lease", "300 ms"), ("host 1", "a"), ("host 2", "b")],
                "host 2 is \"b\" there and not set here",
            ),
        ] {
            let found = difference(lines).unwrap_or_default();
            assert!(found.contains(text), "{found}");
        }
        assert!(own.difference(SettingsSummary::default()).is_some(), "a host without a cluster");
    }

    #[test]
    fn a_text_is_bounded_and_what_does_not_fit_differs_all_the_same() {
        let many = |last: &str| {
            let mut lines: Vec<_> =
                (0..500).map(|at| (format!("host {at}"), "x".repeat(40))).collect();
            lines.push(("partition".to_owned(), last.to_owned()));
            SharedSettings::new(lines)
        };
        let (own, other) = (many("1 2 3"), many("1 2 4"));
        assert!(own.summary().text.len() <= SETTINGS_TEXT_BYTES_MAX);
        assert_eq!(own.summary().text, other.summary().text);
        assert!(own.difference(other.summary()).is_some_and(|text| text.contains("behind")));
        assert_eq!(own.difference(many("1 2 3").summary()), None);
    }

    #[test]
    fn any_text_gives_a_short_answer() {
        let own = settings(&[("copies", "3")]);
        let long = "é".repeat(SETTINGS_TEXT_BYTES_MAX / 2);
        for text in ["", "\n\n", " = ", " = \n...\n", "copies", "copies = \u{1b}[2J\n", &long] {
            let found = own.difference(SettingsSummary { digest: [1; 16], text });
            assert!(found.is_some_and(|found| found.len() < 1024 && !found.contains('\u{1b}')));
        }
        let text = format!("copies = {long}");
        let found = own.difference(SettingsSummary { digest: [1; 16], text: &text });
        assert!(found.is_some_and(|found| found.len() < 1024));
    }
}
