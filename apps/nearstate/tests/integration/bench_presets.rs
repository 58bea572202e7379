//! Presets of `nearstate bench run`, the commands that they replace, and the process that removes
//! what a run leaves behind.

use std::path::Path;
use std::process::{Command, Output, Stdio};

const NEARSTATE: &str = env!("CARGO_BIN_EXE_nearstate");

fn bench(arguments: &[&str]) -> Output {
    Command::new(NEARSTATE).arg("bench").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn folder(name: &str) -> std::path::PathBuf {
    let folder =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Runs a preset of the thesis at a hundredth of its size and returns the runs of its cases.
fn small_thesis(preset: &str, target: &str) -> Vec<serde_json::Value> {
    let dir = folder(&format!("{preset}-{target}"));
    let path = dir.to_str().unwrap();
    let words = ["run", "--preset", preset, "--scale", "0.01", "--clients", "2"];
    let more = ["--targets", target, "--dir", path, "--json"];
    let output = bench(&[&words[..], &more].concat());
    assert!(output.status.success(), "{preset}, {target}: {}", text(&output.stderr));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "{target} leaves files");
    std::fs::remove_dir(&dir).unwrap();
    let runs: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    runs.as_array().unwrap().clone()
}

fn check_cases(runs: &[serde_json::Value], cases: usize) {
    assert_eq!(runs.len(), cases);
    for run in runs {
        let target = &run["targets"][0];
        let has_figures = target["rounds"][0]["ops"].as_u64().unwrap() > 0;
        let is_declined = target["declined"].is_string();
        assert!(has_figures != is_declined, "{run}");
    }
}

#[test]
fn the_thesis_experiments_run_against_a_region() {
    check_cases(&small_thesis("thesis-1", "region"), 1);
    check_cases(&small_thesis("thesis-2", "region"), 5);
    check_cases(&small_thesis("thesis-numa-2", "region"), 5);
}

#[test]
fn the_thesis_experiments_run_against_whitedb_where_it_is_installed() {
    if !Path::new("/usr/include/whitedb/dbapi.h").exists() {
        eprintln!("skipped: libwgdb-dev is not installed");
        return;
    }
    check_cases(&small_thesis("thesis-1", "whitedb"), 1);
    check_cases(&small_thesis("thesis-2", "whitedb"), 5);
}

#[test]
fn replaced_commands_print_the_new_command_and_exit_with_status_2() {
    let cases: &[(&[&str], &str)] = &[
        (&["access", "--preset", "all"], "nearstate bench run micro --preset thesis"),
        (&["micro", "--quick"], "nearstate bench run micro --preset operations"),
        (&["micro", "--server"], "nearstate bench run kv --preset server"),
        (&["transactions"], "nearstate bench run txn --preset transactions"),
        (&["transactions", "--only", "tatp"], "nearstate bench run tatp"),
        (&["transactions", "--only", "sessions"], "nearstate bench run sgw-session"),
        (&["transactions", "--only", "several"], "nearstate bench run micro-tx"),
    ];
    for (words, new) in cases {
        let output = bench(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(new), "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn an_unknown_preset_is_an_error_with_the_names() {
    let output = bench(&["run", "--preset", "thesis-9"]);
    assert!(!output.status.success());
    let errors = text(&output.stderr);
    assert!(errors.contains("unknown preset \"thesis-9\"") && errors.contains("thesis-6"));
}

#[test]
fn a_reaper_removes_its_folder_when_its_input_ends() {
    let kept = folder("kept").join("inside");
    std::fs::create_dir_all(&kept).unwrap();
    std::fs::write(kept.join("file"), b"x").unwrap();
    let mut reaper = Command::new(NEARSTATE)
        .args(["bench", "reaper"])
        .arg(&kept)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    assert!(kept.exists());
    drop(reaper.stdin.take());
    assert!(reaper.wait().unwrap().success());
    assert!(!kept.exists());
    std::fs::remove_dir(kept.parent().unwrap()).unwrap();
}
