//! Settings as text: the effective ones with who says them, and the example file.

use std::fmt::Write as _;

use super::keys::{KEYS, Key};
use super::layers::{Layers, Said, Source};

/// The settings that hold, as a file that would say the same (passwords aside), each with who says
/// it.
pub(crate) fn print(layers: &Layers) -> String {
    let mut text = String::new();
    let mut section = "";
    for key in KEYS {
        let own = enter_section(&mut text, &mut section, key);
        let Said { words, source } = layers.said(key);
        let line = format!("{own} = {}", toml_of(key, &masked(key, words)));
        let source = match source {
            Source::Default => "default".to_owned(),
            Source::File { .. } => format!("file {source}"),
            Source::Environment(_) => format!("environment {source}"),
            Source::Flag(_) => format!("flag {source}"),
        };
        let _ = writeln!(text, "{line:<44} # {source}");
    }
    text
}

/// The file that says of every setting what it does and what it is by default.
#[cfg(test)]
pub(crate) fn example() -> String {
    let mut text = "# Settings of `nearstate serve --config FILE`, or NEARSTATE_CONFIG=FILE.\n\
                    # Every line that is commented out says what holds without it.\n\
                    # Environment (NEARSTATE_SECTION_NAME) and flags (--section-name) have the\n\
                    # last word; `nearstate serve --print-config` shows who said what.\n\n"
        .to_owned();
    let mut section = "";
    for key in KEYS {
        let own = enter_section(&mut text, &mut section, key);
        let variable = key.variable();
        let _ = writeln!(text, "# {}.", key.doc.trim());
        let _ = writeln!(text, "# {}, {variable}", key.usage());
        let _ = writeln!(text, "#{own} = {}\n", toml_of(key, &key.words(key.default)));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Writes the head of a section where one begins. Returns the key's name in it.
fn enter_section<'k>(text: &mut String, section: &mut &'k str, key: &'k Key) -> &'k str {
    let (of, own) = key.name.split_once('.').unwrap_or(("", key.name));
    if of != *section {
        let gap = if text.is_empty() || text.ends_with("\n\n") { "" } else { "\n" };
        let _ = writeln!(text, "{gap}[{of}]");
        *section = of;
    }
    own
}

/// Passwords and what they hash to are for nobody's terminal.
fn masked(key: &Key, words: Vec<String>) -> Vec<String> {
    if key.name != "users.lines" {
        return words;
    }
    let mask = |word: &str| match word.chars().next() {
        Some(secret @ ('>' | '#' | '<' | '!')) => format!("{secret}***"),
        _ => word.to_owned(),
    };
    let lines = words.iter();
    lines.map(|l| l.split_whitespace().map(mask).collect::<Vec<_>>().join(" ")).collect()
}

fn toml_of(key: &Key, words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| toml_word(word)).collect();
    if key.is_list { format!("[{}]", words.join(", ")) } else { words.concat() }
}

/// Numbers and truths as they are, all else in quotes.
fn toml_word(word: &str) -> String {
    let is_number = word.parse::<u32>().is_ok_and(|number| number.to_string() == word);
    if is_number || matches!(word, "true" | "false") {
        return word.to_owned();
    }
    let mut quoted = "\"".to_owned();
    for letter in word.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            control if control.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}
