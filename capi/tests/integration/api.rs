//! The library as C and C++ meet it: installed, compiled against with every warning an error,
//! linked statically and dynamically, and run. Also: one C process is killed, and another goes on.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::fixture::{Installed, Link, succeed};

crate::fixture::kept_in_c! {
    "c/api.c":
    every_byte_of_a_value_counts
    conditions_are_judged_on_what_is_there
    a_copy_needs_room_and_says_how_much
    a_batch_meets_every_key_in_order
    reading_allocates_nothing
    a_patch_changes_only_its_blocks
    walks_meet_what_is_there
    null_is_refused_everywhere
    absurd_lengths_are_refused_before_anything_is_read
    wrong_words_are_refused
    a_session_stays_open_while_a_view_is_held
    an_operator_is_told_of_the_region
    a_forked_child_is_told_to_attach_again
}

fn said(command: &mut Command) -> String {
    String::from_utf8(succeed(command).stdout).unwrap()
}

#[test]
fn a_killed_c_process_leaves_its_last_step_to_the_next() {
    let installed = Installed::new();
    for link in [Link::Static, Link::Shared] {
        let program = installed.compile("clients/c/examples/session.c", link);
        let folder = tempfile::tempdir().unwrap();
        let session = |word: &str| {
            let mut command = installed.command(&program);
            command.arg(word).arg(folder.path().join("smf")).arg("imsi-001010000000042");
            command
        };
        assert_eq!(said(&mut session("show")), "no context\n");
        assert_eq!(said(&mut session("establish")), "established\n");
        assert_eq!(said(&mut session("establish")), "already there\n");

        let mut writer = session("run").stdout(Stdio::piped()).spawn().unwrap();
        let mut committed = 0;
        for line in BufReader::new(writer.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            committed = line.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
            if committed == 1000 {
                // SIGKILL, in the middle of whatever it does; read on to what it still said.
                writer.kill().unwrap();
            }
        }
        writer.wait().unwrap();
        assert!(committed >= 1000, "{committed}");

        let shown = said(&mut session("show"));
        let steps = shown.lines().find_map(|line| line.strip_prefix("steps: ")).unwrap();
        let steps: u64 = steps.parse().unwrap();
        // One step may have been committed and not yet said.
        assert!(steps == committed || steps == committed + 1, "{steps} after {committed}");
        let address = format!("gnb 10.0.{}.{} teid {}", steps >> 8 & 255, steps & 255, steps * 7);
        assert!(shown.contains(&address), "a step is there whole: {shown}");
        assert!(shown.contains("qos: 5qi=9"), "{shown}");
        let report = nearstate_store::check(&folder.path().join("smf")).unwrap();
        assert!(report.is_clean() && report.records == 1, "{report:?}");
        assert_eq!(said(&mut session("release")), "released\n");
        assert_eq!(said(&mut session("show")), "no context\n");
    }
}

#[test]
fn the_cpp_example_does_what_it_says() {
    let installed = Installed::new();
    for link in [Link::Static, Link::Shared] {
        let program = installed.compile("clients/c/examples/paging.cpp", link);
        let folder = tempfile::tempdir().unwrap();
        let told = said(installed.command(&program).arg(folder.path().join("amf")));
        assert_eq!(told, "first 1 second 0 idle 99 absent 1 ue 42 connected\n");
    }
}

#[test]
fn a_failure_is_told_in_words() {
    let installed = Installed::new();
    let program = installed.compile("clients/c/examples/session.c", Link::Static);
    let letter = installed.path("letter");
    std::fs::write(&letter, vec![b'x'; 10_000]).unwrap();
    let told = installed.command(&program).arg("show").arg(&letter).arg("x").output().unwrap();
    assert_eq!(told.status.code(), Some(1));
    let said = String::from_utf8(told.stderr).unwrap();
    let expected = format!("{}: NS_NOT_A_REGION: ", letter.display());
    assert!(said.starts_with(&expected), "{said}");
}
