//! `nearstate bench run`: a run, and what is told of it.

use crate::options::Options;
use crate::result::Run;
use crate::targets::{self, Way};
use crate::{report, run, saved, workloads};
use nearstate_bench::table::{Align, Table, wrapped};
use nearstate_model::{Error, Result};
use std::io::Write;
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
    let run = run::run(options, command, stop)?;
    tell(&run, options, out)?;
    judge(&run)
}

fn tell(run: &Run, options: &Options, out: &mut impl Write) -> Result<()> {
    // What can be lost least comes first; but if there is no room for it, the tables are all that
    // is left of the run.
    let is_saved = options.save.as_deref().map_or(Ok(()), |path| saved::save(run, path));
    if options.json {
        let text = serde_json::to_string(run)
            .map_err(|e| Error::Backend { detail: format!("the results cannot be told: {e}") })?;
        writeln!(out, "{text}").map_err(|e| wrote(&e))?;
    } else {
        write!(out, "{}", report::text(run)).map_err(|e| wrote(&e))?;
        if options.classes {
            write!(out, "{}", report::classes(run)).map_err(|e| wrote(&e))?;
        }
    }
    if let Some(path) = &options.report {
        saved::write_file(path, report::page(run).html().as_bytes())?;
        if !options.json {
            writeln!(out, "\nreport: {}", path.display()).map_err(|e| wrote(&e))?;
        }
    }
    is_saved
}

/// A run that does not count ends the program with an error, whatever was printed.
fn judge(run: &Run) -> Result<()> {
    if run.is_partial {
        return Err(Error::Backend { detail: "the run was stopped before its end".to_owned() });
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
    Error::System { detail: "writing the results".to_owned(), errno: e.raw_os_error().unwrap_or(0) }
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
        let wide = text.lines().find(|line| line.chars().count() > nearstate_bench::table::WIDTH);
        assert_eq!(wide, None, "{text}");
    }

    #[test]
    fn a_run_that_finds_no_room_on_the_disk_is_still_told() {
        let line = ["run", "ue-signalling", "--save", "/dev/full"];
        let options = Line::try_parse_from(line).unwrap().options;
        let mut out = Vec::new();
        let e = tell(&sample::run(), &options, &mut out).unwrap_err();
        assert!(matches!(e, Error::Full { .. }), "{e}");
        assert!(String::from_utf8(out).unwrap().contains("Operations per second"));
    }
}
