//! Settings as text: the effective settings with their origins, and the example file.

use std::fmt::Write as _;

use super::layers::{RawSetting, SettingLayers, SettingOrigin};
use super::table::{SETTINGS, SettingSpec};

/// The effective settings as a settings file, each with its origin. Passwords and their hashes are
/// masked.
pub(crate) fn print(layers: &SettingLayers) -> String {
    let mut text = String::new();
    let mut section = "";
    for spec in SETTINGS {
        let own = enter_section(&mut text, &mut section, spec);
        let RawSetting { items, origin } = layers.raw(spec);
        let line = format!("{own} = {}", toml_of(spec, &masked(spec, items)));
        let origin = match origin {
            SettingOrigin::Default => "default".to_owned(),
            SettingOrigin::File { .. } => format!("file {origin}"),
            SettingOrigin::Environment(_) => format!("environment {origin}"),
            SettingOrigin::Flag(_) => format!("flag {origin}"),
        };
        let _ = writeln!(text, "{line:<44} # {origin}");
    }
    text
}

/// The example file, with every setting, its documentation and its default.
#[cfg(test)]
pub(crate) fn example() -> String {
    let mut text = "# Settings of `nearstate serve --config FILE` or NEARSTATE_CONFIG=FILE.\n\
                    # Lines that are commented out show the defaults.\n\
                    # Environment variables (NEARSTATE_SECTION_NAME) override this file; flags\n\
                    # (--section-name) override both. `nearstate serve --print-config` prints\n\
                    # the effective settings and their origins.\n\n"
        .to_owned();
    let mut section = "";
    for spec in SETTINGS {
        let own = enter_section(&mut text, &mut section, spec);
        let variable = spec.variable();
        let _ = writeln!(text, "# {}.", spec.doc.trim());
        let _ = writeln!(text, "# {}, {variable}", spec.usage());
        let _ = writeln!(text, "#{own} = {}\n", toml_of(spec, &spec.items(spec.default)));
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

/// Writes a section header if a new section starts. Returns the setting's name within it.
fn enter_section<'k>(text: &mut String, section: &mut &'k str, spec: &'k SettingSpec) -> &'k str {
    let (of, own) = spec.name.split_once('.').unwrap_or(("", spec.name));
    if of != *section {
        let gap = if text.is_empty() || text.ends_with("\n\n") { "" } else { "\n" };
        let _ = writeln!(text, "{gap}[{of}]");
        *section = of;
    }
    own
}

/// Masks passwords and their hashes.
fn masked(spec: &SettingSpec, items: Vec<String>) -> Vec<String> {
    if spec.name != "users.lines" {
        return items;
    }
    let mask = |word: &str| match word.chars().next() {
        Some(secret @ ('>' | '#' | '<' | '!')) => format!("{secret}***"),
        _ => word.to_owned(),
    };
    let lines = items.iter();
    lines.map(|l| l.split_whitespace().map(mask).collect::<Vec<_>>().join(" ")).collect()
}

fn toml_of(spec: &SettingSpec, items: &[String]) -> String {
    let items: Vec<String> = items.iter().map(|item| toml_value(item)).collect();
    if spec.is_list { format!("[{}]", items.join(", ")) } else { items.concat() }
}

/// Numbers and booleans as they are, everything else in quotes.
fn toml_value(word: &str) -> String {
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
