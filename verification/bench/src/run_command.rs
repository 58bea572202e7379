//! `nearstate bench run`: executes a run, saves it and prints its report.

use crate::options::{Options, RunCommand};
use crate::outputs::{print, write_page};
use crate::own_run::OwnRun;
use crate::presets::{self, Case, Measured, Preset};
use crate::protocol::error_text;
use crate::random::whole;
use crate::result::Run;
use crate::stat::as_f64;
use crate::table::{ReportTable, list_text, wrapped};
use crate::targets::{self, Support};
use crate::{nudsf, numap, outputs, replication, report, run, saved, workloads};
use clap::Parser as _;
use nearstate_model::{Error, Result};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Runs what the options ask for. Progress goes to standard error, tables or JSON to `out`.
pub fn run(
    options: &Options,
    words: &[String],
    stop: &'static AtomicBool,
    out: &mut impl Write,
) -> Result<()> {
    if options.list {
        return list(out);
    }
    if let Some(name) = &options.preset {
        return run_preset(name, options, words, (stop, out));
    }
    outputs::check(&files(options), &[])?;
    if let Some(run) = OwnRun::measure(options, (&command(words), words), stop)? {
        return deliver_own(&run, options, out);
    }
    let run = run::run(options, &command(words), stop)?;
    let mut failures = deliver(&run, options, out);
    failures.extend(validate(&run).err());
    outputs::together(failures)
}

/// Runs all cases of a preset, then prints their figures and goals, or their runs as a JSON array.
fn run_preset(
    name: &str,
    given: &Options,
    words: &[String],
    (stop, out): (&'static AtomicBool, &mut impl Write),
) -> Result<()> {
    let given_words = words.iter().skip_while(|word| *word != "run").skip(1).cloned();
    let given_words: Vec<String> = given_words.collect();
    let mut cases = Vec::new();
    for (preset, case) in presets::selected(presets::named(name)?, &given.cases)? {
        let line = presets::command_line(&preset, &case, &given_words);
        let options = case_options(&line, given, (&preset, &case))?;
        outputs::check(&files(&options), &[])?;
        cases.push((preset, case, options, line));
    }
    let (mut measured, mut failures) = (Vec::new(), Vec::new());
    for (preset, case, options, line) in cases {
        let run = match run::run(&options, &format!("nearstate bench {}", line.join(" ")), stop) {
            Ok(run) => run,
            Err(e) => {
                failures.push(in_case(&preset, &case, &e));
                continue;
            }
        };
        failures.extend(write_files(&run, &options));
        failures.extend(validate(&run).err().map(|e| in_case(&preset, &case, &e)));
        measured.push(Measured { preset, case, run });
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    let is_printed = preset_text(&measured, given.json).and_then(|text| print(out, &text));
    failures.extend(is_printed.err());
    outputs::together(failures)
}

fn in_case(preset: &Preset, case: &Case, e: &Error) -> Error {
    backend_error!("{}/{}: {}", preset.name, case.name, error_text(e))
}

/// The options of a case: scaled, and with files of its own.
fn case_options(
    line: &[String],
    given: &Options,
    (preset, case): (&Preset, &Case),
) -> Result<Options> {
    let parsed = RunCommand::try_parse_from(line);
    let mut options = parsed.map_err(|e| bad_argument!("{e}"))?.options;
    if let Some(factor) = given.scale {
        let least = options.clients * options.depth;
        options.ops = Some(scaled(options.client_ops(), factor).max(1));
        options.records = options.records.map(|records| scaled(records, factor).max(least));
        options.warm_up = options.warm_up.map(|ops| scaled(ops, factor));
    }
    options.scale = None;
    options.leaves_out_missing = given.targets.is_empty();
    let of_case = |path: &PathBuf| {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let end =
            path.extension().map_or_else(String::new, |e| format!(".{}", e.to_string_lossy()));
        path.with_file_name(format!("{stem}-{}-{}{end}", preset.name, case.name))
    };
    options.save = options.save.as_ref().map(of_case);
    options.report = options.report.as_ref().map(of_case);
    Ok(options)
}

fn scaled(count: u64, factor: f64) -> u64 {
    whole((as_f64(count) * factor).round())
}

fn preset_text(measured: &[Measured], is_json: bool) -> Result<String> {
    if is_json {
        let runs: Vec<&Run> = measured.iter().map(|one| &one.run).collect();
        return json(&runs);
    }
    let mut text = presets::summary(measured).text();
    if let Some(goals) = presets::goals(measured) {
        text.push_str("\nGoals\n\n");
        text.push_str(&goals.text());
    }
    let mut caveats: Vec<String> = Vec::new();
    for caveat in measured.iter().flat_map(|one| &one.run.caveats) {
        if !caveats.contains(caveat) {
            caveats.push(caveat.clone());
        }
    }
    if !caveats.is_empty() {
        text.extend(["\nKeep in mind\n", &list_text(&caveats)]);
    }
    Ok(text)
}

fn json(results: &impl Serialize) -> Result<String> {
    let text =
        serde_json::to_string(results).map_err(|e| backend_error!("encoding the results: {e}"))?;
    Ok(text + "\n")
}

/// The command of a run, with the words quoted that a shell would split.
fn command(words: &[String]) -> String {
    let quoted = |word: &String| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+@%".contains(c);
        if !word.is_empty() && word.chars().all(is_plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    let words = words.iter().map(quoted);
    std::iter::once("nearstate".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn files(options: &Options) -> [(&'static str, Option<&Path>); 2] {
    [("--save", options.save.as_deref()), ("--report", options.report.as_deref())]
}

/// Writes the outputs, the most valuable first. A failure does not prevent the later outputs;
/// returns all failures.
fn deliver(run: &Run, options: &Options, out: &mut impl Write) -> Vec<Error> {
    let mut failures = write_files(run, options);
    let page = options.report.as_deref().filter(|page| !options.json && page.exists());
    let is_printed = report_text(run, options, page).and_then(|text| print(out, &text));
    failures.extend(is_printed.err());
    failures
}

/// Writes the saved run and the page; returns the failures.
fn write_files(run: &Run, options: &Options) -> Vec<Error> {
    let is_saved = options.save.as_deref().map_or(Ok(()), |path| saved::save(run, path));
    let is_reported = write_page(options.report.as_deref(), || report::page(run).html());
    [is_saved, is_reported].into_iter().filter_map(Result::err).collect()
}

/// Saves a run with tables of its own, writes its page, and prints its tables or JSON. Returns all
/// failures, among them that it does not count.
fn deliver_own(run: &OwnRun, options: &Options, out: &mut impl Write) -> Result<()> {
    let path = options.save.as_deref();
    let is_saved = path.map_or(Ok(()), |path| saved::write_file(path, json(run)?.as_bytes()));
    let is_reported = write_page(options.report.as_deref(), || run.page().html());
    let text = if options.json { json(run) } else { Ok(run.text()) };
    let is_printed = text.and_then(|text| print(out, &text));
    let counts = judged(run.frame().is_partial, &run.frame().invalid);
    let all = [is_saved, is_reported, is_printed, counts];
    outputs::together(all.into_iter().filter_map(Result::err).collect())
}

/// The error of a run that was stopped, or does not count for these reasons.
fn judged(is_partial: bool, invalid: &[String]) -> Result<()> {
    if is_partial {
        return Err(backend_error!("the run was stopped before its end"));
    }
    if invalid.is_empty() {
        return Ok(());
    }
    Err(backend_error!("the run does not count: {}", invalid.join("; ")))
}

fn report_text(run: &Run, options: &Options, page: Option<&Path>) -> Result<String> {
    if options.json {
        return json(run);
    }
    let mut text = report::text(run);
    if options.classes {
        text.push_str(&report::classes(run));
    }
    let page_line = page.map(|path| format!("\nreport: {}\n", path.display()));
    Ok(text + page_line.as_deref().unwrap_or_default())
}

/// The error with which a run that does not count ends the program, after its report was printed.
fn validate(run: &Run) -> Result<()> {
    let whys = run.targets.iter().map(|target| {
        let why = target.declined.as_ref()?;
        Some(format!("{}: {why}", target.name))
    });
    match whys.collect::<Option<Vec<_>>>() {
        Some(whys) if !run.is_partial => {
            let whys = whys.join("; ");
            Err(backend_error!("no target took part: {whys}"))
        }
        Some(_) | None => judged(run.is_partial, &run.invalid),
    }
}

/// Workloads, their variants and targets.
fn list(out: &mut impl Write) -> Result<()> {
    let mut text = String::from("Workloads, and their variants (the first is the default)\n");
    for workload in workloads::all() {
        let name = workload.name();
        let line = format!("{name}: {} ({})", workload.spec().title, workload.spec().source);
        text.push_str(&wrapped(&line, "\n  ", "      "));
        for (variant, meaning) in workload.variants() {
            text.push_str(&wrapped(&format!("{variant}: {meaning}"), "    ", "      "));
        }
    }
    text.push_str(&wrapped(numap::ABOUT, "\n  ", "      "));
    text.push_str(&wrapped(nudsf::ABOUT, "\n  ", "      "));
    text.push_str(&wrapped(replication::ABOUT, "\n  ", "      "));
    text.push_str("\nPresets\n");
    for preset in presets::all() {
        let line = format!("{} ({}): {}", preset.name, preset.workload, preset.about);
        text.push_str(&wrapped(&line, "\n  ", "      "));
    }
    text.push_str("\nTargets, and how they do what not every store has\n\n");
    text.push_str(&capabilities().text());
    text.push_str("\nWhat is here\n");
    for target in targets::all() {
        let here = target.version().unwrap_or_else(|e| e.to_string());
        text.push_str(&wrapped(&format!("{}: {here}", target.name()), "  ", "    "));
    }
    print(out, &text)
}

fn capabilities() -> ReportTable {
    let mut table = ReportTable::new("target|change of parts|unique tag|transaction|scan");
    let word = |way: &Support| {
        let word = match way {
            Support::Native => "native",
            Support::Emulated(_) => "emulated",
            Support::Declined(_) => "no",
        };
        word.to_owned()
    };
    for target in targets::all() {
        let can = target.capabilities();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

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
        RunCommand::try_parse_from(line).unwrap().options
    }

    #[test]
    fn a_run_in_which_all_targets_declined_ends_with_an_error() {
        let mut run = sample::run();
        run.invalid.clear();
        assert!(validate(&run).is_ok(), "some took part");
        run.targets.retain(|target| target.declined.is_some());
        let e = validate(&run).unwrap_err().to_string();
        assert!(e.contains("memcached: it has no unique tag"), "{e}");
    }

    #[test]
    fn a_run_is_reported_although_the_disk_is_full() {
        let mut out = Vec::new();
        let failures = deliver(&sample::run(), &options(&["--save", "/dev/full"]), &mut out);
        assert!(matches!(failures.as_slice(), [Error::Full { .. }]), "{failures:?}");
        assert!(String::from_utf8(out).unwrap().contains("Operations per second"));
    }

    #[test]
    fn page_and_run_are_saved_although_standard_output_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let (save, page) = (folder.path().join("a.json"), folder.path().join("a.html"));
        let words = ["--save", save.to_str().unwrap(), "--report", page.to_str().unwrap()];
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let failures = deliver(&sample::run(), &options(&words), &mut full);
        assert!(matches!(failures.as_slice(), [Error::System { .. }]), "{failures:?}");
        assert_eq!(failures[0].to_string().matches("28").count(), 1, "{failures:?}");
        assert!(saved::load(&save).is_ok());
        assert!(std::fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
    }

    #[test]
    fn each_file_that_could_not_be_written_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("nowhere/a.html");
        let words = ["--save", "/dev/full", "--report", page.to_str().unwrap()];
        let failures = deliver(&sample::run(), &options(&words), &mut Vec::new());
        let all = outputs::together(failures).unwrap_err().to_string();
        assert!(all.contains("/dev/full") && all.contains("nowhere/a.html"), "{all}");
    }

    #[test]
    fn options_without_a_meaning_are_rejected() {
        for (workload, known) in [
            (numap::NAME, numap::OPTIONS.as_slice()),
            (nudsf::NAME, &nudsf::OPTIONS),
            (replication::NAME, &replication::OPTIONS),
        ] {
            let check = |text: &str| {
                let words: Vec<String> = text.split(' ').map(str::to_owned).collect();
                crate::options::check_known(workload, known, &words)
            };
            assert_eq!(check("bench run --rounds=1 --json"), Ok(()));
            let refused = check("bench run --clients 7").unwrap_err().to_string();
            assert!(refused.contains("no --clients") && refused.contains("--targets"), "{refused}");
        }
    }
}
