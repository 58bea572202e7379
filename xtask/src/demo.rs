//! `cargo xtask demo`: the thesis's experiment on this machine, in under two minutes.

use crate::{packages, run};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// How much of the thesis's sizes fits into the demo's time on two cores.
const SCALE: &str = "0.1";
const REPORT: &str = "report/demo.html";
const SECONDS_MAX: f64 = 120.0;

/// Builds the release program and lets it run the six presets. `--scale S` changes how much.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<bool, String> {
    let scale = match words {
        [] => SCALE,
        [flag, scale] if flag == "--scale" => scale,
        _ => return Err("the only option is `--scale S`, such as `--scale 0.05`".to_owned()),
    };
    packages::install_missing(packages::ALL)?;
    println!("building the release program (once; a few minutes on two cores)");
    run::show(
        run::cargo().args(["build", "--release", "--package", "nearstate"]).current_dir(root),
    )?;
    let report = root.join(REPORT);
    let folder = report.parent().ok_or("the report has no folder")?;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let begun = Instant::now();
    run::show(
        run::cargo()
            .args(["run", "--quiet", "--release", "--package", "nearstate", "--"])
            .args(["bench", "access", "--preset", "all", "--scale", scale, "--report", REPORT])
            .current_dir(root),
    )?;
    let took = begun.elapsed().as_secs_f64();
    if !report.is_file() {
        return Err(format!("the bench ended well and wrote no {REPORT}"));
    }
    println!("\nreport: {} (opens offline in any browser)", report.display());
    println!("the experiment took {took:.0} s at scale {scale}");
    if took > SECONDS_MAX {
        println!("that is more than two minutes: try a smaller --scale");
    }
    Ok(true)
}
