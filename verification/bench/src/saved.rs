//! Files of runs: written completely or not at all, and read as untrusted input.

use crate::reaper::system;
use crate::result::{ClassResult, FORMAT, Round, Run};
use crate::workloads::CLASSES_MAX;
use nearstate_model::{Error, Result};
use serde::Deserialize;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write};
use std::path::{Path, PathBuf};

/// The largest file that is read or written. Ten rounds of eight targets with sixteen full
/// histograms each take about 60 MB, and three times that in memory.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The largest number of targets of a run. All targets and their layouts are fewer.
const TARGETS_MAX: usize = 64;

/// The largest number of rounds, ramp points or checks of a target: more rows make a table
/// unreadable.
const ROWS_MAX: usize = 10_000;

/// The largest number of slices of a round. The driver writes some hundred.
const SLICES_MAX: usize = 100_000;

/// The largest operations, nanoseconds and bytes of one round: sums of all rounds fit into 64 bits,
/// and a floating-point number is exact.
const AMOUNT_MAX: u64 = 1 << 50;

/// The largest number of operations of a target: a histogram has 64-bit counts.
const OPS_MAX: u64 = 1 << 62;

/// Saves a run at `path`. An older file stays until the new one is completely on the disk.
pub fn save(run: &Run, path: &Path) -> Result<()> {
    check(run).map_err(|detail| {
        bad_argument!("the run is not saved, because it could not be loaded again: {detail}")
    })?;
    let json = serde_json::to_vec(run)
        .map_err(|e| bad_argument!("the run cannot be written as JSON: {e}"))?;
    if json.len() as u64 > FILE_BYTES_MAX {
        return Err(bad_argument!(
            "the run takes {} MiB, more than the limit of {} MiB: give fewer rounds or targets",
            json.len() >> 20,
            FILE_BYTES_MAX >> 20
        ));
    }
    write_file(path, &json)
}

/// Writes a file completely or not at all. Pipes and terminals are written directly.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    write_with(path, |file| {
        let mut out = BufWriter::new(file);
        out.write_all(bytes).and_then(|()| out.flush())
    })
}

fn write_with(path: &Path, write: impl FnOnce(&File) -> io::Result<()>) -> Result<()> {
    let failed = |e: &io::Error| refusal(path, e);
    let resolved = resolved(path);
    if is_device(&resolved) {
        let file = OpenOptions::new().write(true).open(&resolved).map_err(|e| failed(&e))?;
        return write(&file).map_err(|e| failed(&e));
    }
    let part = part_file(path, &resolved)?;
    let outcome = (|| {
        let file = OpenOptions::new().write(true).create_new(true).open(&part)?;
        write(&file)?;
        file.sync_all()?;
        fs::rename(&part, &resolved)
    })();
    if let Err(e) = outcome {
        let _ = fs::remove_file(&part);
        return Err(failed(&e));
    }
    // Makes the name durable. Not all file systems support this for a folder.
    let _ = File::open(folder(&resolved)).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Checks that [`write_file`] can write here: creates and removes a file in the folder. A pipe is
/// not opened, because that would wait for a reader.
pub fn can_write(path: &Path) -> Result<()> {
    let resolved = resolved(path);
    if is_device(&resolved) {
        return Ok(());
    }
    let part = part_file(path, &resolved)?;
    // A killed process with the same process id, perhaps of another container, may have left one.
    let _ = fs::remove_file(&part);
    let created = OpenOptions::new().write(true).create_new(true).open(&part);
    let _ = fs::remove_file(&part);
    created.map(drop).map_err(|e| refusal(path, &e))
}

/// The file that a path leads to: a link stays, and its target is replaced.
pub fn resolved(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| {
        match (fs::canonicalize(folder(path)), path.file_name()) {
            (Ok(folder), Some(name)) => folder.join(name),
            (Err(_), _) | (_, None) => path.to_owned(),
        }
    })
}

fn is_device(resolved: &Path) -> bool {
    fs::metadata(resolved).is_ok_and(|m| !m.is_file() && !m.is_dir())
}

fn folder(resolved: &Path) -> &Path {
    resolved.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The temporary file that is renamed to `resolved`: in the same folder, therefore on the same file
/// system, with a name that no other process uses.
fn part_file(path: &Path, resolved: &Path) -> Result<PathBuf> {
    if resolved.is_dir() {
        return Err(bad_argument!("{} is a folder: give the name of a file in it", path.display()));
    }
    let name = resolved
        .file_name()
        .ok_or_else(|| bad_argument!("{:?} is not the name of a file: give one", path.display()))?;
    let name = format!(".{}.{}.part", name.to_string_lossy(), std::process::id());
    Ok(folder(resolved).join(name))
}

fn refusal(path: &Path, e: &io::Error) -> Error {
    let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
    if full.contains(&e.kind()) {
        return Error::Full {
            detail: format!(
                "the disk is too full to write {}; no part of it was kept: free space, or give a \
                 file on another disk",
                path.display()
            ),
            heap: None,
        };
    }
    system(
        &format!("writing {}: give a file in a folder that can be written to", path.display()),
        e,
    )
}

/// The format number of a file. It is read first: other formats may differ in everything else.
#[derive(Deserialize)]
struct SavedFormat {
    format: u32,
}

/// Loads a run that [`save`] wrote.
pub fn load(path: &Path) -> Result<Run> {
    parse(&read(path)?).map_err(|detail| bad_argument!("{}: {detail}", path.display()))
}

/// The bytes of a saved run, or one more than any has.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    let unreadable = |e: &io::Error| system(&format!("reading {}", path.display()), e);
    let file = File::open(path).map_err(|e| unreadable(&e))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|e| unreadable(&e))?;
    Ok(bytes)
}

/// The advice of an error.
const GIVE: &str = "give a file that `nearstate bench run --save FILE` wrote";

fn parse(bytes: &[u8]) -> Result<Run, String> {
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("larger than any run ({} MiB): {GIVE}", FILE_BYTES_MAX >> 20));
    }
    let not_a_run = |e: &serde_json::Error| {
        let cause = if e.is_eof() { "the file is truncated" } else { "not a saved run" };
        format!("{cause} ({e}): {GIVE}")
    };
    let SavedFormat { format } = serde_json::from_slice(bytes).map_err(|e| not_a_run(&e))?;
    if format != FORMAT {
        return Err(format!(
            "a run of format {format}; this program reads format {FORMAT}: use the version that \
             saved it, or run the benchmark again"
        ));
    }
    let run: Run = serde_json::from_slice(bytes).map_err(|e| not_a_run(&e))?;
    check(&run).map_err(|what| format!("the file is damaged: {what}: {GIVE}"))?;
    Ok(run)
}

/// Checks the limits and orders that all users of a run rely on.
fn check(run: &Run) -> Result<(), String> {
    at_most("targets", run.targets.len(), TARGETS_MAX)?;
    for target in &run.targets {
        let of = |what: &str| format!("{what} of {:?}", target.name);
        at_most(&of("rounds"), target.rounds.len(), ROWS_MAX)?;
        at_most(&of("points of the ramp"), target.ramp.len(), ROWS_MAX)?;
        at_most(&of("checks"), target.checks.len(), ROWS_MAX)?;
        for amount in [target.loaded.0, target.loaded.1, target.memory_bytes.unwrap_or(0)] {
            amount_fits(&of("records, memory"), amount)?;
        }
        if let Some(verdict) = &target.verdict {
            amount_fits(&of("records"), verdict.records)?;
            if verdict.wrong.saturating_add(verdict.absent) > verdict.records {
                return Err(format!("more wrong and missing records than {}", of("records")));
            }
        }
        let mut counted = 0_u64;
        for round in &target.rounds {
            counted = counted.saturating_add(check_round(round).map_err(|what| of(&what))?);
        }
        if counted > OPS_MAX {
            return Err(format!("{counted} {}", of("operations")));
        }
    }
    Ok(())
}

/// Checks a round; returns the number of operations of its classes.
fn check_round(round: &Round) -> Result<u64, String> {
    at_most("classes of a round", round.classes.len(), CLASSES_MAX)?;
    at_most("slices of a round", round.slices.len(), SLICES_MAX)?;
    let Round { ops, wall_ns, client_cpu_ns, server_cpu_ns, bytes_out, bytes_in, .. } = *round;
    for amount in [ops, wall_ns, client_cpu_ns, server_cpu_ns, bytes_out, bytes_in] {
        amount_fits("a sum of a round", amount)?;
    }
    amount_fits("a sum of a round", round.unsuccessful)?;
    let mut counted = 0;
    for class in &round.classes {
        counted += check_class(class)?;
    }
    for slice in &round.slices {
        amount_fits("a time of a slice", slice.at_ms)?;
        amount_fits("a time of a slice", slice.ms)?;
        amount_fits("a count of a slice", slice.ops)?;
    }
    let rising = |pair: &[crate::result::TimeSlice]| match pair {
        [a, b] => a.at_ms <= b.at_ms,
        _ => true,
    };
    if !round.slices.windows(2).all(rising) {
        return Err("slices that are not in order of time".to_owned());
    }
    Ok(counted)
}

fn check_class(class: &ClassResult) -> Result<u64, String> {
    let rising = |pair: &[(u64, u64)]| match pair {
        [a, b] => a.0 < b.0,
        _ => true,
    };
    if !class.latencies.windows(2).all(rising) {
        return Err(format!("latencies of class {:?} that are not in order", class.name));
    }
    let counted = class.latencies.iter().fold(0_u64, |sum, (_, n)| sum.saturating_add(*n));
    amount_fits(&format!("operations of class {:?}", class.name), counted)?;
    Ok(counted)
}

fn at_most(what: &str, count: usize, max: usize) -> Result<(), String> {
    if count <= max { Ok(()) } else { Err(format!("{count} {what}, more than {max}")) }
}

fn amount_fits(what: &str, amount: u64) -> Result<(), String> {
    if amount <= AMOUNT_MAX {
        Ok(())
    } else {
        Err(format!("{amount} as {what}, more than {AMOUNT_MAX}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::run;
    use std::os::unix::fs::FileTypeExt as _;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }

    /// A run as JSON with one thing changed.
    fn changed(from: &str, to: &str) -> String {
        let json = serde_json::to_string(&run()).unwrap();
        assert!(json.contains(from), "{from} is not in {json}");
        parse(json.replacen(from, to, 1).as_bytes()).unwrap_err()
    }

    #[test]
    fn a_loaded_run_equals_the_saved_one() {
        let folder = folder();
        let path = folder.path().join("run.json");
        fs::write(&path, "an older one").unwrap();
        let mut run = run();
        // NaN survives, although JSON has none.
        run.targets[0].checks[0].found = f64::NAN;
        save(&run, &path).unwrap();
        let back = load(&path).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), serde_json::to_string(&run).unwrap());
        assert!(back.targets[0].checks[0].found.is_nan() && !back.targets[0].checks[0].holds());
        assert_eq!(names(folder.path()), ["run.json"]);
    }

    #[test]
    fn a_full_disk_leaves_the_old_file_and_no_part_of_the_new_one() {
        let folder = folder();
        let path = folder.path().join("run.json");
        fs::write(&path, "the old one").unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let outcome = write_with(&path, |mut file| {
            file.write_all(b"{\"format\":2,")?;
            (&full).write_all(b"the rest")
        });
        let Err(e) = outcome else { panic!("the write to a full disk succeeded") };
        assert!(matches!(&e, Error::Full { .. }) && e.to_string().contains("run.json"), "{e}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "the old one");
        assert_eq!(names(folder.path()), ["run.json"]);
    }

    #[test]
    fn a_device_is_written_to_and_not_replaced() {
        let e = save(&run(), Path::new("/dev/full")).unwrap_err();
        assert!(matches!(e, Error::Full { .. }), "{e}");
        save(&run(), Path::new("/dev/null")).unwrap();
        for device in ["/dev/full", "/dev/null"] {
            assert!(fs::metadata(device).unwrap().file_type().is_char_device(), "{device}");
        }
    }

    #[test]
    fn a_link_stays_and_leads_to_the_new_file() {
        let folder = folder();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&real, "old").unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        save(&run(), &link).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(load(&real).is_ok());
    }

    #[test]
    fn an_error_names_the_missing_folder() {
        let folder = folder();
        let e = save(&run(), &folder.path().join("nowhere/run.json")).unwrap_err().to_string();
        assert!(e.contains("nowhere/run.json") && e.contains("give a file"), "{e}");
        let e = save(&run(), folder.path()).unwrap_err().to_string();
        assert!(e.contains("is a folder"), "{e}");
        let e = load(&folder.path().join("none")).unwrap_err().to_string();
        assert!(e.contains("none"), "{e}");
    }

    #[test]
    fn every_truncation_of_a_file_is_refused() {
        let json = serde_json::to_vec(&run()).unwrap();
        for end in (0..json.len()).step_by(97) {
            let e = parse(&json[..end]).unwrap_err();
            // A number that is cut is reported as invalid.
            let is_reported = e.contains("truncated") || e.contains("invalid number");
            assert!(is_reported && e.contains(GIVE), "{end}: {e}");
        }
        let e = parse(&json[..json.len() - 1]).unwrap_err();
        assert!(e.contains("truncated"), "{e}");
    }

    #[test]
    fn a_file_that_is_not_a_run_is_refused_with_advice() {
        let deep = "[".repeat(100_000);
        let deep_field = format!("{{\"format\":2,\"x\":{}", "[".repeat(100_000));
        let hostile =
            ["hello", "{}", "[]", "null", "{\"format\":\"one\"}", "\0\0", "{\"format\":-1}"];
        for text in hostile.into_iter().chain([deep.as_str(), deep_field.as_str()]) {
            let e = parse(text.as_bytes()).unwrap_err();
            assert!(e.contains(GIVE), "{e}");
        }
        assert!(parse(b"{\"format\":2}").unwrap_err().contains("missing field"));
    }

    #[test]
    fn another_format_is_named_whatever_else_is_in_the_file() {
        let e = parse(b"{\"format\":7,\"wholly\":\"different\"}").unwrap_err();
        assert!(e.contains("format 7") && e.contains("format 2"), "{e}");
    }

    #[test]
    fn impossible_figures_are_refused() {
        let wall = format!("\"wall_ns\":{}", run().targets[0].rounds[0].wall_ns);
        let e = changed(&wall, "\"wall_ns\":18446744073709551615");
        assert!(e.contains("18446744073709551615"), "{e}");
        let latencies = "\"latencies\":[[";
        let e = changed(latencies, "\"latencies\":[[9,1],[8,1],[");
        assert!(e.contains("not in order"), "{e}");
        let e = changed(latencies, "\"latencies\":[[0,18446744073709551615],[");
        assert!(e.contains("operations of class"), "{e}");
        let e = changed("\"wrong\":0", "\"wrong\":18446744073709551615");
        assert!(e.contains("wrong"), "{e}");
        let slices = ",{\"at_ms\":1,\"ms\":1,\"ops\":1,\"p50_ns\":1,\"p99_ns\":1,\"max_ns\":1}";
        let slices = format!("\"slices\":[{}", slices.repeat(SLICES_MAX + 1).replacen(',', "", 1));
        let e = changed("\"slices\":[", &format!("{slices},"));
        assert!(e.contains("slices of a round"), "{e}");
    }

    #[test]
    fn more_operations_than_a_histogram_can_count_are_refused() {
        let mut run = run();
        let target = &mut run.targets[0];
        let mut round = target.rounds[0].clone();
        for class in &mut round.classes {
            class.latencies = vec![(1, AMOUNT_MAX)];
        }
        target.rounds = vec![round; 5000];
        let e = check(&run).unwrap_err();
        assert!(e.contains("operations of \"region\""), "{e}");
        run.targets[0].rounds.truncate(2000);
        assert_eq!(check(&run), Ok(()));
    }

    #[test]
    fn an_endless_file_is_read_up_to_the_limit() {
        let e = load(Path::new("/dev/zero")).unwrap_err().to_string();
        assert!(e.contains("larger than any run"), "{e}");
    }
}
