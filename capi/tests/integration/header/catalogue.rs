//! The table of answers in C, made of the catalogue in `model/src/error.rs`. A number, once given,
//! stays: programs that were built earlier know it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Failures begin here; below it are answers that are no failure.
const FIRST: u32 = 16;

/// One failure of the catalogue.
pub(crate) struct Answer {
    name: String,
    number: u32,
    has_fields: bool,
    says: Vec<String>,
}

impl Answer {
    /// `KeyTooLarge` in C: `NS_KEY_TOO_LARGE`.
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

/// Reads the variants of `enum Error`, and the numbers that an earlier table gave.
pub(crate) fn answers(catalogue: &str, table: &str) -> Vec<Answer> {
    let mut numbers: BTreeMap<String, u32> = BTreeMap::new();
    for line in table.lines() {
        let told = line.trim().strip_suffix(',').and_then(|line| line.split_once(" = "));
        if let Some((name, number)) = told
            && let Ok(number) = number.parse()
        {
            numbers.insert(name.to_owned(), number);
        }
    }
    let mut answers = Vec::new();
    let mut says = Vec::new();
    let body = catalogue.lines().skip_while(|line| *line != "pub enum Error {").skip(1);
    for line in body.take_while(|line| *line != "}") {
        // Variants stand four columns in, what is in them deeper.
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
        answers.push(Answer { name, number: 0, has_fields, says: std::mem::take(&mut says) });
    }
    assert!(!answers.is_empty(), "no catalogue was read: has its form changed?");
    let mut next = numbers.values().map(|number| number + 1).max().unwrap_or(FIRST).max(FIRST);
    for answer in &mut answers {
        answer.number = numbers.get(&answer.name_in_c()).copied().unwrap_or_else(|| {
            next += 1;
            next - 1
        });
    }
    answers.sort_by_key(|answer| answer.number);
    answers
}

const OPENING: &str = "\
//! What every function answers. Generated of the catalogue in `model/src/error.rs` by
//! `cargo xtask header --write`; a hand edit fails the gate. A number, once given, stays.

use std::ffi::{CStr, c_char};

use nearstate_model::Error;

/// What a call answers. Numbers from 16 on are failures, behind which `ns_last_error` says more.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ns_status {
";

/// Answers that are no failure of the catalogue.
const FIXED: &[(&str, u32, &str)] = &[
    ("NS_OK", 0, "Done."),
    ("NS_NOT_FOUND", 1, "There is no such record or block, or nothing to tell at present."),
    ("NS_REFUSED", 2, "The condition did not hold, and nothing was changed."),
    ("NS_TOO_SMALL", 3, "The caller's memory is too small: make room and ask again."),
    ("NS_BUG", 15, "A bug in this library: close the session and report it with `ns_last_error`."),
];

const CLOSING: &str = "
impl ns_status {
    /// The answer with this number, as C gives it.
    pub(crate) fn of_number(number: i32) -> Option<Self> {
        NAMES.iter().map(|(known, _)| *known).find(|known| *known as i32 == number)
    }
}

/// The name of an answer, such as `NS_FULL`; `?` for a number that is none. Never NULL.
#[unsafe(no_mangle)]
pub extern \"C\" fn ns_status_name(status: i32) -> *const c_char {
    let named = NAMES.iter().find(|(known, _)| *known as i32 == status);
    named.map_or(c\"?\", |(_, name)| *name).as_ptr()
}
";

/// The text of `src/status.rs`.
pub(crate) fn table(answers: &[Answer]) -> String {
    let mut text = OPENING.to_owned();
    for (name, number, says) in FIXED {
        let _ = writeln!(text, "    /// {says}\n    {name} = {number},");
    }
    for answer in answers {
        for sentence in &answer.says {
            let _ = writeln!(text, "    /// {sentence}");
        }
        let _ = writeln!(text, "    {} = {},", answer.name_in_c(), answer.number);
    }
    text.push_str("}\n\n/// All of them.\nconst NAMES: &[(ns_status, &CStr)] = &[\n");
    let fixed = FIXED.iter().map(|(name, ..)| (*name).to_owned());
    for name in fixed.chain(answers.iter().map(Answer::name_in_c)) {
        let _ = writeln!(text, "    (ns_status::{name}, c\"{name}\"),");
    }
    text.push_str("];\n\nimpl ns_status {\n    /// The answer for a failure.\n");
    text.push_str("    pub(crate) const fn of(error: &Error) -> Self {\n        match error {\n");
    for answer in answers {
        let fields = if answer.has_fields { " { .. }" } else { "" };
        let (name, in_c) = (&answer.name, answer.name_in_c());
        let _ = writeln!(text, "            Error::{name}{fields} => Self::{in_c},");
    }
    text.push_str("            // The catalogue may grow, and this table with it.\n");
    text.push_str("            _ => Self::NS_BUG,\n        }\n    }\n}\n");
    text + CLOSING
}
