//! `nearstate bench compare` and `nearstate bench render`: reports on saved runs.

use crate::outputs::{print, write_page};
use crate::own_run::OwnRun;
use crate::{compare, outputs, report, saved};
use clap::Args;
use nearstate_model::Result;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Compare two saved runs, figure by figure, with a verdict that the rounds allow
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Both runs must have the same workload, parameters, load and machine; else it says in what they
differ, and gives no verdict. Give each run four rounds or more: fewer decide little.

Example:
  nearstate bench run ue-signalling --targets region --rounds 6 --save before.json
  nearstate bench run ue-signalling --targets region --rounds 6 --save after.json
  nearstate bench compare before.json after.json")]
pub struct Compare {
    /// The run that is compared with
    #[arg(value_name = "A.json")]
    pub first: PathBuf,

    /// The run that is compared
    #[arg(value_name = "B.json")]
    pub second: PathBuf,

    /// Write a page that opens offline
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Show a saved run again: as tables or as a page
#[derive(Args, Clone, Debug)]
pub struct Render {
    /// The run
    #[arg(value_name = "A.json")]
    pub run: PathBuf,

    /// Write a page that opens offline
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Print the latencies of each class of operations too
    #[arg(long)]
    pub classes: bool,
}

/// Compares two saved runs.
pub fn run_compare(options: &Compare, out: &mut impl Write) -> Result<()> {
    let html = options.html.as_deref();
    outputs::check(&[("--html", html)], &[&options.first, &options.second])?;
    let (first, second) = (saved::load(&options.first)?, saved::load(&options.second)?);
    let comparison = compare::compare(&first, &second);
    // The page is written first: standard output may be closed.
    let is_written = write_page(html, || compare::page(&comparison).html());
    let text = compare::text(&comparison) + &page_line(html, &is_written);
    both_errors(is_written, print(out, &text))?;
    if comparison.obstacles.is_empty() {
        return Ok(());
    }
    Err(bad_argument!("the runs cannot be compared: the differences are listed above"))
}

/// Shows a saved run again.
pub fn run_render(options: &Render, out: &mut impl Write) -> Result<()> {
    let html = options.html.as_deref();
    outputs::check(&[("--html", html)], &[&options.run])?;
    if let Some(run) = OwnRun::load(&options.run)? {
        let is_written = write_page(html, || run.page().html());
        let text = run.text() + &page_line(html, &is_written);
        return both_errors(is_written, print(out, &text));
    }
    let run = saved::load(&options.run)?;
    let is_written = write_page(html, || report::page(&run).html());
    let mut text = report::text(&run);
    if options.classes {
        text.push_str(&report::classes(&run));
    }
    text.push_str(&page_line(html, &is_written));
    both_errors(is_written, print(out, &text))
}

/// Both failures, if there are two.
fn both_errors(is_written: Result<()>, is_printed: Result<()>) -> Result<()> {
    outputs::together([is_written, is_printed].into_iter().filter_map(Result::err).collect())
}

fn page_line(path: Option<&Path>, is_written: &Result<()>) -> String {
    let path = path.filter(|_| is_written.is_ok());
    path.map(|path| format!("\npage: {}\n", path.display())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use nearstate_model::Error;
    use std::fs::OpenOptions;

    fn render(run: PathBuf) -> Render {
        Render { run, html: None, classes: false }
    }

    #[test]
    fn a_saved_run_is_rendered_as_tables_and_page() {
        let folder = tempfile::tempdir().unwrap();
        let (run, page) = (folder.path().join("a.json"), folder.path().join("a.html"));
        saved::save(&sample::run(), &run).unwrap();
        let mut out = Vec::new();
        let options = Render { html: Some(page.clone()), classes: true, ..render(run) };
        run_render(&options, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("region by class of operations") && text.contains("a.html"));
        assert!(std::fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
    }

    #[test]
    fn two_saved_runs_are_compared() {
        let folder = tempfile::tempdir().unwrap();
        let first = folder.path().join("a.json");
        saved::save(&sample::run(), &first).unwrap();
        let page = folder.path().join("c.html");
        let html = Some(page.clone());
        let options = Compare { second: first.clone(), first, html };
        let mut out = Vec::new();
        run_compare(&options, &mut out).unwrap();
        assert!(String::from_utf8(out).unwrap().contains("0 faster, 0 slower, 27 the same"));
        assert!(page.is_file());
        // A script must not read this as equality.
        let other = folder.path().join("b.json");
        let mut run = sample::run();
        run.load.clients += 1;
        saved::save(&run, &other).unwrap();
        let options = Compare { first: other, second: folder.path().join("a.json"), html: None };
        let mut out = Vec::new();
        let refused = run_compare(&options, &mut out).unwrap_err();
        assert!(matches!(refused, Error::BadArgument { .. }), "{refused}");
        assert!(String::from_utf8(out).unwrap().contains("NOT COMPARABLE"));
    }

    #[test]
    fn a_page_does_not_replace_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("a.json");
        saved::save(&sample::run(), &run).unwrap();
        let html = Some(folder.path().join("./a.json"));
        let options = Render { html: html.clone(), ..render(run.clone()) };
        let (mut out, second) = (Vec::new(), folder.path().join("none"));
        let e = run_render(&options, &mut out).unwrap_err().to_string();
        assert!(e.contains("--html") && e.contains("the run that is read"), "{e}");
        let options = Compare { first: second, second: run.clone(), html };
        let e = run_compare(&options, &mut out).unwrap_err().to_string();
        assert!(e.contains("--html") && e.contains("the run that is read"), "{e}");
        assert!(saved::load(&run).is_ok() && out.is_empty());
    }

    #[test]
    fn a_page_is_written_although_standard_output_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let (run, page) = (folder.path().join("a.json"), folder.path().join("a.html"));
        saved::save(&sample::run(), &run).unwrap();
        let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let options = Render { html: Some(page.clone()), ..render(run) };
        let e = run_render(&options, &mut full).unwrap_err();
        assert!(matches!(e, Error::System { .. }), "{e}");
        assert!(page.is_file());
    }

    #[test]
    fn unreadable_and_unwritable_files_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let none = folder.path().join("none.json");
        let e = run_render(&render(none.clone()), &mut Vec::new()).unwrap_err().to_string();
        assert!(e.contains("none.json"), "{e}");
        saved::save(&sample::run(), &none).unwrap();
        let html = Some(PathBuf::from("/dev/full"));
        let e = run_render(&Render { html, ..render(none.clone()) }, &mut Vec::new()).unwrap_err();
        assert!(matches!(e, Error::Full { .. }), "{e}");
        let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let e = run_render(&render(none), &mut full).unwrap_err();
        assert!(matches!(e, Error::System { .. }), "{e}");
    }
}
