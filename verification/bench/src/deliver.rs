//! `nearstate bench run`: a run, and what is told of it.

use crate::keeper::system;
use crate::options::Options;
use crate::result::Run;
use crate::table::{Align, Table, wrapped};
use crate::targets::{self, Way};
use crate::{outputs, report, run, saved, workloads};
use nearstate_model::{Error, Result};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Runs what the options ask for. Progress goes to standard error, tables or JSON to `out`.
///
/// # Errors
/// Options that do not fit; `Backend` if the run does not count or was stopped, after all that is
/// known of it was told.
pub fn run(
    options: &Options,
    command: &str,
    stop: &'static AtomicBool,
    out: &mut impl Write,
) -> Result<()> {
    if options.list {
        return list(out);
    }
    let outputs = [("--save", options.save.as_deref()), ("--report", options.report.as_deref())];
    outputs::check(&outputs, &[])?;
    let run = run::run(options, command, stop)?;
    let mut failures = tell(&run, options, out);
    failures.extend(judge(&run).err());
    outputs::together(failures)
}

/// What can be lost least comes first, and what fails keeps nothing else from being told: the
/// failures.
fn tell(run: &Run, options: &Options, out: &mut impl Write) -> Vec<Error> {
    let is_saved = options.save.as_deref().map_or(Ok(()), |path| saved::save(run, path));
    let page = || report::page(run).html();
    let reported = options.report.as_deref();
    let is_reported = reported.map_or(Ok(()), |path| saved::write_file(path, page().as_bytes()));
    let told_page = reported.filter(|_| is_reported.is_ok() && !options.json);
    let is_printed = words(run, options, told_page)
        .and_then(|text| write!(out, "{text}").and_then(|()| out.flush()).map_err(|e| wrote(&e)));
    [is_saved, is_reported, is_printed].into_iter().filter_map(Result::err).collect()
}

fn words(run: &Run, options: &Options, page: Option<&Path>) -> Result<String> {
    if options.json {
        let text = serde_json::to_string(run)
            .map_err(|e| Error::Backend { detail: format!("the results cannot be told: {e}") })?;
        return Ok(text + "\n");
    }
    let mut text = report::text(run);
    if options.classes {
        text.push_str(&report::classes(run));
    }
    let told = page.map(|path| format!("\nreport: {}\n", path.display()));
    Ok(text + told.as_deref().unwrap_or_default())
}

/// A run that does not count ends the program with an error, whatever was printed.
fn judge(run: &Run) -> Result<()> {
    if run.is_partial {
        return Err(Error::Backend { detail: "the run was stopped before its end".to_owned() });
    }
    let whys = run.targets.iter().map(|target| {
        let why = target.declined.as_ref()?;
        Some(format!("{}: {why}", target.name))
    });
    if let Some(whys) = whys.collect::<Option<Vec<_>>>() {
        let whys = whys.join("; ");
        return Err(Error::Backend { detail: format!("no target took part: {whys}") });
    }
    if run.invalid.is_empty() {
        return Ok(());
    }
    let why = run.invalid.join("; ");
    Err(Error::Backend { detail: format!("the run does not count: {why}") })
}

/// Workloads, their variants and targets.
fn list(out: &mut impl Write) -> Result<()> {
    let mut text = String::from("Workloads, and their variants (the first is the default)\n");
    for workload in workloads::all() {
        let name = workload.name();
        let line = format!("{name}: {} ({})", workload.title(), workload.source());
        text.push_str(&wrapped(&line, "\n  ", "      "));
        for (variant, meaning) in workload.variants() {
            text.push_str(&wrapped(&format!("{variant}: {meaning}"), "    ", "      "));
        }
    }
    text.push_str("\nTargets, and how they do what not every store has\n\n");
    text.push_str(&abilities().text());
    text.push_str("\nWhat is here\n");
    for target in targets::all() {
        let here = target.version().unwrap_or_else(|e| e.to_string());
        text.push_str(&wrapped(&format!("{}: {here}", target.name()), "  ", "    "));
    }
    write!(out, "{text}").map_err(|e| wrote(&e))
}

fn abilities() -> Table {
    let mut table = Table::new(&[
        ("target", Align::Left),
        ("change of parts", Align::Left),
        ("unique tag", Align::Left),
        ("transaction", Align::Left),
        ("scan", Align::Left),
    ]);
    let word = |way: &Way| {
        let word = match way {
            Way::Native => "native",
            Way::Emulated(_) => "emulated",
            Way::Declined(_) => "no",
        };
        word.to_owned()
    };
    for target in targets::all() {
        let can = target.abilities();
        table.row(vec![
            target.name().to_owned(),
            word(&can.delta),
            word(&can.unique_tag),
            word(&can.transaction),
            word(&can.scan),
        ]);
    }
    table
}

fn wrote(e: &std::io::Error) -> Error {
    system("writing the results", e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn the_list_fits_a_terminal() {
        let mut out = Vec::new();
        list(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let wide = text.lines().find(|line| line.chars().count() > crate::table::WIDTH);
        assert_eq!(wide, None, "{text}");
    }

    fn options(words: &[&str]) -> Options {
        let line = ["run", "ue-signalling"].iter().chain(words);
        Line::try_parse_from(line).unwrap().options
    }

    #[test]
    fn a_run_in_which_nobody_took_part_ends_with_an_error() {
        let mut run = sample::run();
        run.invalid.clear();
        assert!(judge(&run).is_ok(), "some took part");
        run.targets.retain(|target| target.declined.is_some());
        let e = judge(&run).unwrap_err().to_string();
        assert!(e.contains("memcached: it has no unique tag"), "{e}");
    }

    #[test]
    fn a_run_that_finds_no_room_on_the_disk_is_still_told() {
        let mut out = Vec::new();
        let failures = tell(&sample::run(), &options(&["--save", "/dev/full"]), &mut out);
        assert!(matches!(failures.as_slice(), [Error::Full { .. }]), "{failures:?}");
        assert!(String::from_utf8(out).unwrap().contains("Operations per second"));
    }

    #[test]
    fn page_and_run_are_kept_where_nobody_hears_the_tables() {
        let folder = tempfile::tempdir().unwrap();
        let (save, page) = (folder.path().join("a.json"), folder.path().join("a.html"));
        let words = ["--save", save.to_str().unwrap(), "--report", page.to_str().unwrap()];
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let failures = tell(&sample::run(), &options(&words), &mut full);
        assert!(matches!(failures.as_slice(), [Error::System { .. }]), "{failures:?}");
        assert_eq!(failures[0].to_string().matches("28").count(), 1, "{failures:?}");
        assert!(saved::load(&save).is_ok());
        assert!(std::fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
    }

    #[test]
    fn each_file_that_could_not_be_written_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("nowhere/a.html");
        let words = ["--save", "/dev/full", "--report", page.to_str().unwrap()];
        let failures = tell(&sample::run(), &options(&words), &mut Vec::new());
        let all = outputs::together(failures).unwrap_err().to_string();
        assert!(all.contains("/dev/full") && all.contains("nowhere/a.html"), "{all}");
    }
}
