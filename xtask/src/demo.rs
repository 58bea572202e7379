//! `cargo xtask demo`: signalling of 100,000 UEs against our region, our node and a real Redis,
//! with the node killed during the run, in under two minutes; then a cluster of three nodes that
//! loses a host, in a quarter of a minute.

use crate::{packages, run};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// The targets: our region through its own calls and through SDL's, our node and a Redis over
/// TCP, one client each. The node is killed in the middle round.
const RUN: &[&str] =
    &["bench", "run", "ue-signalling", "--targets", "region,sdl,node,redis", "--kill", "node"];
const ROUNDS: &str = "3";
/// Seconds of a round of a target.
const ROUND_TIME: &str = "4";
const UES: &str = "100000";
/// More than the fastest target does in a round.
const OPS_MAX: &str = "20000000";
const REPORT: &str = "report/demo.html";
const SAVED: &str = "report/demo.json";
/// The page of the cluster that loses a host.
const CLUSTER_REPORT: &str = "report/cluster.html";
const SECONDS_MAX: f64 = 120.0;
/// How the program is built: a user waits for it.
const PROFILE: [&str; 2] = ["--profile", "demo"];

/// Builds the program and lets it run the workload. `--ues N` changes how many UEs.
pub(crate) fn run(root: &Path, words: &[String]) -> Result<bool, String> {
    let ues = match words {
        [] => UES,
        [flag, ues] if flag == "--ues" => ues,
        _ => return Err("the only option is `--ues N`, such as `--ues 10000`".to_owned()),
    };
    packages::install_missing(packages::ALL)?;
    println!("building the program (once; a few minutes on two cores)");
    let build = ["build", "--package", "nearstate"];
    run::show(run::cargo().args(build).args(PROFILE).current_dir(root))?;
    let report = root.join(REPORT);
    let folder = report.parent().ok_or("the report has no folder")?;
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let begun = Instant::now();
    run::show(
        run::cargo()
            .args(["run", "--quiet", "--package", "nearstate"])
            .args(PROFILE)
            .arg("--")
            .args(RUN)
            .args(["--records", ues, "--ops", OPS_MAX, "--warm-up", "2000"])
            .args(["--rounds", ROUNDS, "--round-time", ROUND_TIME])
            .args(["--report", REPORT, "--save", SAVED])
            .current_dir(root),
    )?;
    let took = begun.elapsed().as_secs_f64();
    if !report.is_file() {
        return Err(format!("the bench ended well and wrote no {REPORT}"));
    }
    println!("\nreport: {} (opens offline in any browser)", report.display());
    println!("the run took {took:.0} s with {ues} UE{}", if ues == "1" { "" } else { "s" });
    println!("\na cluster of three nodes loses the host of the owner");
    run::show(
        run::cargo()
            .args(["run", "--quiet", "--package", "nearstate"])
            .args(PROFILE)
            .arg("--")
            .args(["cluster", "demo", "--report", CLUSTER_REPORT])
            .current_dir(root),
    )?;
    println!("report: {} (opens offline in any browser)", root.join(CLUSTER_REPORT).display());
    println!("paper 1's experiments: nearstate bench run --preset thesis --scale 0.1");
    if took > SECONDS_MAX {
        println!("that is more than two minutes: try fewer --ues");
    }
    Ok(true)
}
