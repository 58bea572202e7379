//! Units of Redis' own Tcl test suite against the node, from Debian's source package.
//!
//! `tcl/skipped.txt` lists the tests that are skipped, with reasons. An entry that skips no test is
//! an error, so that the list stays as short as possible. Some tests use lists only to have a value
//! of some type: [`REWRITES`] makes them use sets.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use crate::programs::{TestServer, build_folder, output_of, root};
use crate::redis_source;

/// The units whose commands the node has.
pub const UNITS: &[&str] = &[
    "type/string",
    "type/incr",
    "type/hash",
    "type/set",
    "keyspace",
    "expire",
    "scan",
    "multi",
    "pubsub",
    "protocol",
    "introspection",
    "introspection-2",
    "slowlog",
    "info-command",
    "quit",
];

/// Tags of tests that need what an external server or the node does not have: DEBUG, gigabytes of
/// memory, replication, and a server that the suite starts itself.
const TAGS: &str = "-needs:debug -large-memory -external:skip -needs:repl";

/// A change of the suite's text: file, text, new text. The text must occur.
const REWRITES: &[(&str, &str, &str)] = &[
    // The node has no functions.
    ("support/server.tcl", "    r function flush\n", "\n"),
    // Start options of servers that it does not have, such as thresholds of encodings.
    (
        "support/server.tcl",
        "        r config set $param $val\n",
        "        catch {r config set $param $val}\n",
    ),
    ("unit/multi.tcl", "r rpush mylist ", "r sadd mylist "),
    ("unit/multi.tcl", "r lrange mylist 0 -1", "r smembers mylist"),
    ("unit/expire.tcl", "r lpush x ", "r sadd x "),
    ("unit/expire.tcl", "r lrange x 0 -1", "r smembers x"),
    ("unit/slowlog.tcl", "r lpush ", "r sadd "),
    ("unit/protocol.tcl", "$rd rpush nolist a", "$rd sadd nolist a"),
    ("unit/type/string.tcl", "r lpush mykey ", "r sadd mykey "),
    ("unit/type/string.tcl", "r rpush foo ", "r sadd foo "),
    ("unit/type/string.tcl", "r rpop foo", "r spop foo"),
    ("unit/type/incr.tcl", "r rpush mylist ", "r sadd mylist "),
    ("unit/type/incr.tcl", "r rpop mylist", "r spop mylist"),
    ("unit/type/set.tcl", "r lpush mylist ", "r set mylist "),
];

/// Settings of encodings, which the node does not have.
const ENCODINGS: &[&str] = &["-max-ziplist-", "-max-listpack-", "-max-intset-"];

/// The result of a unit.
#[derive(Debug, Default)]
struct UnitResult {
    passed: usize,
    /// By `tcl/skipped.txt`.
    skipped: Vec<String>,
    /// By [`TAGS`].
    left_out: usize,
    failed: Vec<String>,
}

/// A test that is skipped: its unit, and its name or the start of its name.
#[derive(Debug, PartialEq, Eq)]
struct SkippedTest {
    unit: String,
    name: String,
    is_prefix: bool,
}

impl SkippedTest {
    fn matches(&self, name: &str) -> bool {
        if self.is_prefix { name.starts_with(&self.name) } else { name == self.name }
    }

    /// As the suite reads it.
    fn pattern(&self) -> String {
        if !self.is_prefix {
            return self.name.clone();
        }
        let escape = |c: char| if c.is_alphanumeric() { c.to_string() } else { format!("\\{c}") };
        format!("/^{}", self.name.chars().map(escape).collect::<String>())
    }
}

/// Runs all units, or the one with this name. Returns whether all tests passed.
pub fn run(only: Option<&str>) -> Result<bool, String> {
    let chosen: Vec<&str> =
        UNITS.iter().copied().filter(|unit| only.is_none_or(|only| *unit == only)).collect();
    if chosen.is_empty() {
        let only = only.unwrap_or_default();
        return Err(format!("unknown unit {only:?}: the units are {}", UNITS.join(", ")));
    }
    let list = root().join("verification/clients/tcl/skipped.txt");
    let text = fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
    let skipped = parse_skipped(&text)?;
    let suite = suite(&skipped)?;
    let (mut rows, mut is_success) = (Vec::new(), true);
    for (index, unit) in chosen.iter().enumerate() {
        println!("── {}/{} {unit}", index + 1, chosen.len());
        let begun = Instant::now();
        let mut result = run_unit(&suite, unit)?;
        let of_unit = skipped.iter().filter(|test| test.unit == *unit);
        for unused in of_unit.filter(|test| !result.skipped.iter().any(|name| test.matches(name))) {
            result.failed.push(format!("{} of skipped.txt is no test of {unit}", unused.name));
        }
        is_success &= result.failed.is_empty() && result.passed > 0;
        result.failed.iter().for_each(|failure| println!("{failure}"));
        rows.push((unit, begun.elapsed(), result));
    }
    println!(
        "\n{:<16} {:>6} {:>7} {:>8} {:>6} {:>7}",
        "unit", "passed", "skipped", "left out", "failed", "seconds"
    );
    for (unit, took, result) in rows {
        let UnitResult { passed, skipped, left_out, failed } = result;
        let (skipped, failed, seconds) = (skipped.len(), failed.len(), took.as_secs_f64());
        println!("{unit:<16} {passed:>6} {skipped:>7} {left_out:>8} {failed:>6} {seconds:>7.1}");
    }
    println!("reasons of the skipped tests: {}", list.display());
    Ok(is_success)
}

/// Lines `unit: name` or `unit: start of names*`, below a line `# reason`.
fn parse_skipped(text: &str) -> Result<Vec<SkippedTest>, String> {
    let mut skipped = Vec::new();
    let mut has_reason = false;
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() {
            has_reason = false;
        } else if let Some(reason) = line.strip_prefix('#') {
            has_reason |= !reason.trim().is_empty();
        } else {
            let entry = line.split_once(": ").filter(|(unit, _)| UNITS.contains(unit));
            let Some((unit, name)) = entry.filter(|_| has_reason) else {
                return Err(format!(
                    "skipped.txt, line {}: {line:?} is not `unit: test` below a reason",
                    number + 1
                ));
            };
            let (name, is_prefix) = match name.strip_suffix('*') {
                Some(start) => (start, true),
                None => (name, false),
            };
            skipped.push(SkippedTest { unit: unit.to_owned(), name: name.to_owned(), is_prefix });
        }
    }
    Ok(skipped)
}

/// The folder with the rewritten suite.
fn suite(skipped: &[SkippedTest]) -> Result<PathBuf, String> {
    let source = redis_source::folder()?;
    let suite = build_folder()?.join("clients-tcl");
    let failed = |error: std::io::Error| format!("{}: {error}", suite.display());
    if suite.exists() {
        fs::remove_dir_all(&suite).map_err(failed)?;
    }
    fs::create_dir_all(suite.join("src")).map_err(failed)?;
    output_of(Command::new("cp").arg("-r").arg(source.join("tests")).arg(&suite))?;
    // The suite refuses to start without these, and starts none of them.
    for program in ["redis-server", "redis-cli", "redis-benchmark"] {
        symlink(Path::new("/usr/bin").join(program), suite.join("src").join(program))
            .map_err(failed)?;
    }
    rewrite(&suite.join("tests"))?;
    for unit in UNITS {
        let of_unit = skipped.iter().filter(|test| test.unit == *unit);
        let patterns: Vec<String> = of_unit.map(SkippedTest::pattern).collect();
        fs::write(skip_file(&suite, unit), patterns.join("\n")).map_err(failed)?;
    }
    Ok(suite)
}

fn skip_file(suite: &Path, unit: &str) -> PathBuf {
    suite.join(format!("skipped-{}.txt", unit.replace('/', "-")))
}

fn rewrite(tests: &Path) -> Result<(), String> {
    let change = |file: &str, change: &dyn Fn(&str) -> Result<String, String>| {
        let path = tests.join(file);
        // Test names contain bytes that are not UTF-8.
        let bytes = fs::read(&path).map_err(|error| format!("{file}: {error}"))?;
        let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
        let new: Vec<u8> =
            change(&text)?.chars().map(|c| u8::try_from(c).unwrap_or(b'?')).collect();
        fs::write(&path, new).map_err(|error| format!("{file}: {error}"))
    };
    for (file, from, to) in REWRITES {
        change(file, &|text| {
            let is_known = text.contains(from);
            is_known.then(|| text.replace(from, to)).ok_or(format!("{file} has no {from:?}"))
        })?;
    }
    for unit in UNITS {
        change(&format!("unit/{unit}.tcl"), &|text| {
            let without = |line: &str| {
                let is_encoding = ENCODINGS.iter().any(|word| line.contains(word));
                // `list` is a Tcl command without an effect.
                if is_encoding { line.replace("r config set", "list") } else { line.to_owned() }
            };
            Ok(text.split_inclusive('\n').map(without).collect())
        })?;
    }
    Ok(())
}

fn run_unit(suite: &Path, unit: &str) -> Result<UnitResult, String> {
    let node = TestServer::node(&[])?;
    let mut command = Command::new("tclsh");
    command.arg("tests/test_helper.tcl").current_dir(suite);
    command.args(["--host", &node.address.ip().to_string()]);
    command.args(["--port", &node.address.port().to_string()]);
    // `--durable` continues after a failure. Encodings are those of the current value.
    command.args(["--singledb", "--durable", "--ignore-encoding", "--no-latency"]);
    command.args(["--timeout", "300", "--tags", TAGS, "--single", &format!("unit/{unit}")]);
    command.arg("--skipfile").arg(skip_file(suite, unit));
    let (output, is_success) = match output_of(&mut command) {
        Ok(output) => (output, true),
        Err(output) => (output, false),
    };
    let mut result = parse_output(&without_colours(&output));
    if !is_success && result.failed.is_empty() {
        result.failed.push(format!("the suite failed: {output}"));
    }
    Ok(result)
}

fn without_colours(output: &str) -> String {
    let mut parts = output.split('\x1b');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        // `[0;31m`
        text.push_str(part.split_once('m').map_or("", |(_, rest)| rest));
    }
    text
}

fn parse_output(output: &str) -> UnitResult {
    let mut result = UnitResult::default();
    let mut lines = output.lines().peekable();
    while let Some(line) = lines.next() {
        if line.trim() == "The End" {
            break;
        }
        if line.starts_with("[ok]: ") {
            result.passed += 1;
        } else if line.starts_with("[ignore]: ") {
            result.left_out += 1;
        } else if let Some(name) = line.strip_prefix("[skip]: ") {
            result.skipped.push(name.to_owned());
        } else if line.starts_with("[err]: ") || line.starts_with("[exception]: ") {
            let why = lines.peek().copied().unwrap_or_default();
            result.failed.push(format!("{line}\n  {}", why.chars().take(300).collect::<String>()));
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_without_a_reason_or_unit_is_rejected() {
        let good = "# no lists\nexpire: a list\nexpire: LCS (b)*\n\n# no DEBUG\nscan: d\n";
        let skipped = parse_skipped(good).unwrap();
        assert_eq!(skipped.len(), 3);
        assert_eq!(skipped[0].pattern(), "a list");
        assert_eq!(skipped[1].pattern(), "/^LCS\\ \\(b\\)");
        assert!(skipped[1].matches("LCS (b) c") && !skipped[0].matches("a list b"));
        for bad in ["expire: a\n", "# why\n\nexpire: a\n", "# why\nother: a\n", "#\nexpire: a\n"] {
            assert!(parse_skipped(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_results_of_a_unit_are_counted_until_its_end() {
        let output = "[ready]: 1\n[\x1b[0;32;49mok\x1b[0m]: a (1 ms)\n[skip]: b\n[ignore]: c: Tag\n\
                      [err]: d in tests/unit/x.tcl\nExpected 1\n  The End\n[err]: d\n";
        let result = parse_output(&without_colours(output));
        assert_eq!((result.passed, result.left_out), (1, 1));
        assert_eq!(result.skipped, ["b"]);
        assert_eq!(result.failed, ["[err]: d in tests/unit/x.tcl\n  Expected 1"]);
    }

    #[test]
    fn the_list_of_skipped_tests_is_readable() {
        let list = root().join("verification/clients/tcl/skipped.txt");
        assert!(!parse_skipped(&fs::read_to_string(list).unwrap()).unwrap().is_empty());
    }
}
