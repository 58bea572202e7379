//! The output of callgrind: the instructions of each function.

use std::collections::BTreeMap;

/// What the processor chooses at run time: its share differs from machine to machine.
const NOT_COUNTED: &[&str] = &["crc32fast::", "memchr::"];

/// The instructions that each function of a program executed itself.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) functions: BTreeMap<String, u64>,
}

impl Counts {
    /// The counts of the functions of one program, without those of its libraries.
    pub(super) fn parse(text: &str, program: &str) -> Result<Self, String> {
        let (mut objects, mut names) = (BTreeMap::new(), BTreeMap::new());
        let (mut object, mut function) = (String::new(), String::new());
        let (mut counts, mut is_of_call) = (Self::default(), false);
        for line in text.lines() {
            if let Some(name) = line.strip_prefix("ob=") {
                object = resolve(name, &mut objects);
            } else if let Some(name) = line.strip_prefix("cob=") {
                resolve(name, &mut objects);
            } else if let Some(name) = line.strip_prefix("fn=") {
                function = resolve(name, &mut names);
            } else if let Some(name) = line.strip_prefix("cfn=") {
                resolve(name, &mut names);
            } else if line.starts_with("calls=") {
                // The next line has the cost of the called functions.
                is_of_call = true;
            } else if line
                .starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first))
            {
                let count = line.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok());
                let count = count.ok_or_else(|| format!("callgrind: `{line}` has no count"))?;
                let is_counted = !NOT_COUNTED.iter().any(|begin| function.starts_with(begin));
                if !std::mem::take(&mut is_of_call) && object == program && is_counted {
                    *counts.functions.entry(plain(&function)).or_default() += count;
                }
            }
        }
        if counts.functions.is_empty() {
            return Err(format!("callgrind counted no function of {program}"));
        }
        Ok(counts)
    }
}

/// A name of callgrind's output: `(7) name` where it occurs first, `(7)` afterwards.
fn resolve(text: &str, known: &mut BTreeMap<String, String>) -> String {
    let (number, name) = text.split_once(' ').unwrap_or((text, ""));
    if !name.is_empty() {
        known.insert(number.to_owned(), name.to_owned());
    }
    known.get(number).cloned().unwrap_or_default()
}

/// A function's name without the hash that changes with each build.
fn plain(name: &str) -> String {
    match name.rsplit_once("::h") {
        Some((plain, hash)) if hash.len() == 16 && hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            plain.to_owned()
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
events: Ir
ob=(1) /target/release/program
fl=(1) a.rs
fn=(1) store::put::h0123456789abcdef
10 100
+3 20
cob=(2) /lib/libc.so.6
cfn=(2) memcpy
calls=5 0
* 500
* 7
fn=(3) crc32fast::update
1 900
ob=(2)
fn=(2)
1 500
ob=(1)
fn=(1)
5 1
";

    #[test]
    fn only_the_programs_own_instructions_count() {
        let counts = Counts::parse(OUTPUT, "/target/release/program").unwrap();
        let expected = BTreeMap::from([("store::put".to_owned(), 128)]);
        assert_eq!(counts.functions, expected);
    }

    #[test]
    fn a_program_without_counts_is_an_error() {
        assert!(Counts::parse(OUTPUT, "/another").is_err());
        assert!(Counts::parse("fn=(1) a\n1 many\n", "/x").is_err());
    }
}
