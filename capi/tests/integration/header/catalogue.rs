//! Generates the C status table from the error catalogue in `model/src/error.rs`. A number is never
//! changed once it is assigned: existing programs depend on it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The first number of an error; lower numbers are not errors.
const FIRST: u32 = 16;

/// One error of the catalogue.
pub(crate) struct StatusEntry {
    name: String,
    number: u32,
    has_fields: bool,
    says: Vec<String>,
}

impl StatusEntry {
    /// The C name: `KeyTooLarge` becomes `NS_KEY_TOO_LARGE`.
    fn name_in_c(&self) -> String {
        let mut name = "NS".to_owned();
        for letter in self.name.chars() {
            if letter.is_uppercase() {
                name.push('_');
            }
            name.extend(letter.to_uppercase());
        }
        name
    }
}

/// Reads the variants of `enum Error`, and the numbers that the existing table assigns.
pub(crate) fn entries(catalogue: &str, table: &str) -> Vec<StatusEntry> {
    let mut numbers: BTreeMap<String, u32> = BTreeMap::new();
    for line in table.lines() {
        let entry = line.trim().strip_suffix(',').and_then(|line| line.split_once(" = "));
        if let Some((name, number)) = entry
            && let Ok(number) = number.parse()
        {
            numbers.insert(name.to_owned(), number);
        }
    }
    let mut entries = Vec::new();
    let mut says = Vec::new();
    let body = catalogue.lines().skip_while(|line| *line != "pub enum Error {").skip(1);
    for line in body.take_while(|line| *line != "}") {
        // Variants are indented by four columns, their fields by more.
        let Some(line) =
            line.strip_prefix("    ").filter(|line| !line.starts_with([' ', '}', '#']))
        else {
            continue;
        };
        if let Some(sentence) = line.strip_prefix("///") {
            says.push(sentence.trim().replace("[`crate::limits::", "`NS_").replace("`]", "`"));
            continue;
        }
        let name: String = line.chars().take_while(char::is_ascii_alphanumeric).collect();
        let has_fields = line.contains('{');
        entries.push(StatusEntry { name, number: 0, has_fields, says: std::mem::take(&mut says) });
    }
    assert!(
        !entries.is_empty(),
        "no variant was read: has the format of model/src/error.rs changed?"
    );
    let mut next = numbers.values().map(|number| number + 1).max().unwrap_or(FIRST).max(FIRST);
    for entry in &mut entries {
        entry.number = numbers.get(&entry.name_in_c()).copied().unwrap_or_else(|| {
            next += 1;
            next - 1
        });
    }
    entries.sort_by_key(|entry| entry.number);
    entries
}

const OPENING: &str = "\
//! The status codes of the C API. `cargo xtask header --write` generates this file from the error
//! catalogue in `model/src/error.rs`; a manual edit fails the gate. Numbers never change.

use std::ffi::{CStr, c_char};

use nearstate_model::Error;

/// The result of a call. Numbers from 16 are errors; `ns_last_error` returns a message for them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ns_status {
";

/// Status codes that are not errors of the catalogue.
const FIXED: &[(&str, u32, &str)] = &[
    ("NS_OK", 0, "Success."),
    ("NS_NOT_FOUND", 1, "The record or block does not exist, or no event is pending."),
    ("NS_REFUSED", 2, "The condition did not hold. Nothing was changed."),
    ("NS_TOO_SMALL", 3, "The buffer is too small: enlarge it and call again."),
    (
        "NS_BUG",
        15,
        "A bug in this library: close the session and report the message of `ns_last_error`.",
    ),
];

const CLOSING: &str = "
impl ns_status {
    /// The status with this number.
    pub(crate) fn of_number(number: i32) -> Option<Self> {
        NAMES.iter().map(|(known, _)| *known).find(|known| *known as i32 == number)
    }
}

/// Returns the name of a status, such as `NS_FULL`, or `?` for an unknown number. Never NULL.
#[unsafe(no_mangle)]
pub extern \"C\" fn ns_status_name(status: i32) -> *const c_char {
    let named = NAMES.iter().find(|(known, _)| *known as i32 == status);
    named.map_or(c\"?\", |(_, name)| *name).as_ptr()
}
";

/// The text of `src/status.rs`.
pub(crate) fn table(entries: &[StatusEntry]) -> String {
    let mut text = OPENING.to_owned();
    for (name, number, says) in FIXED {
        let _ = writeln!(text, "    /// {says}\n    {name} = {number},");
    }
    for entry in entries {
        for sentence in &entry.says {
            let _ = writeln!(text, "    /// {sentence}");
        }
        let _ = writeln!(text, "    {} = {},", entry.name_in_c(), entry.number);
    }
    text.push_str(
        "}\n\n/// All status codes with their names.\nconst NAMES: &[(ns_status, &CStr)] = &[\n",
    );
    let fixed = FIXED.iter().map(|(name, ..)| (*name).to_owned());
    for name in fixed.chain(entries.iter().map(StatusEntry::name_in_c)) {
        let _ = writeln!(text, "    (ns_status::{name}, c\"{name}\"),");
    }
    text.push_str("];\n\nimpl ns_status {\n    /// The status of an error.\n");
    text.push_str("    pub(crate) const fn of(error: &Error) -> Self {\n        match error {\n");
    for entry in entries {
        let fields = if entry.has_fields { " { .. }" } else { "" };
        let (name, in_c) = (&entry.name, entry.name_in_c());
        let _ = writeln!(text, "            Error::{name}{fields} => Self::{in_c},");
    }
    text.push_str("            // Variants added since this table was generated.\n");
    text.push_str("            _ => Self::NS_BUG,\n        }\n    }\n}\n");
    text + CLOSING
}
