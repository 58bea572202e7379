//! The library as C and C++ programs use it, including the death of a process.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use crate::fixture::{Installed, Linkage, succeed};

crate::fixture::c_tests! {
    "c/api.c":
    every_byte_of_a_value_counts
    conditions_apply_to_the_current_record
    a_copy_into_a_small_buffer_reports_the_size
    a_batch_reports_every_key_in_order
    reading_allocates_nothing
    a_patch_changes_only_its_blocks
    iterations_report_existing_records
    a_view_is_not_released_while_its_parts_are_reported
    null_is_rejected_everywhere
    excessive_lengths_are_rejected_before_anything_is_read
    invalid_arguments_are_rejected
    a_session_stays_open_while_a_view_is_held
    a_region_reports_its_statistics
    the_bytes_of_a_region_add_up
    the_version_of_the_header_is_that_of_the_library
    a_forked_child_must_attach_again
    a_copy_from_a_truncated_file_is_not_a_value
    an_iteration_over_a_truncated_file_fails
    a_view_of_a_truncated_file_is_noticed
    in_a_truncated_file_nothing_counts_as_replicated
}

fn output_of(command: &mut Command) -> String {
    String::from_utf8(succeed(command).stdout).unwrap()
}

#[test]
fn a_killed_c_process_leaves_its_last_committed_step() {
    let installed = Installed::new();
    for link in [Linkage::Static, Linkage::Shared] {
        let program = installed.compile("clients/c/examples/session.c", link);
        let folder = tempfile::tempdir().unwrap();
        let session = |word: &str| {
            let mut command = installed.command(&program);
            command.arg(word).arg(folder.path().join("smf")).arg("imsi-001010000000042");
            command
        };
        assert_eq!(output_of(&mut session("show")), "no context\n");
        assert_eq!(output_of(&mut session("establish")), "established\n");
        assert_eq!(output_of(&mut session("establish")), "already exists\n");

        let mut writer = session("run").stdout(Stdio::piped()).spawn().unwrap();
        let mut committed = 0;
        for line in BufReader::new(writer.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            committed = line.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
            if committed == 1000 {
                // SIGKILL at an arbitrary point; then read the remaining output.
                writer.kill().unwrap();
            }
        }
        writer.wait().unwrap();
        assert!(committed >= 1000, "{committed}");

        let shown = output_of(&mut session("show"));
        let steps = shown.lines().find_map(|line| line.strip_prefix("steps: ")).unwrap();
        let steps: u64 = steps.parse().unwrap();
        // One step may be committed and not printed.
        assert!(steps == committed || steps == committed + 1, "{steps} after {committed}");
        let address = format!("gnb 10.0.{}.{} teid {}", steps >> 8 & 255, steps & 255, steps * 7);
        assert!(shown.contains(&address), "the step is complete: {shown}");
        assert!(shown.contains("qos: 5qi=9"), "{shown}");
        let report = nearstate_store::check(&folder.path().join("smf")).unwrap();
        assert!(report.is_clean() && report.records == 1, "{report:?}");
        assert_eq!(output_of(&mut session("release")), "released\n");
        assert_eq!(output_of(&mut session("show")), "no context\n");
    }
}

#[test]
fn the_cpp_example_works() {
    let installed = Installed::new();
    for link in [Linkage::Static, Linkage::Shared] {
        let program = installed.compile("clients/c/examples/paging.cpp", link);
        let folder = tempfile::tempdir().unwrap();
        let output = output_of(installed.command(&program).arg(folder.path().join("amf")));
        assert_eq!(output, "first 1 second 0 idle 99 absent 1 ue 42 connected\n");
    }
}

#[test]
fn an_error_is_reported_with_a_message() {
    let installed = Installed::new();
    let program = installed.compile("clients/c/examples/session.c", Linkage::Static);
    let file = installed.path("text");
    std::fs::write(&file, vec![b'x'; 10_000]).unwrap();
    let output = installed.command(&program).arg("show").arg(&file).arg("x").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let output_of = String::from_utf8(output.stderr).unwrap();
    let expected = format!("{}: NS_NOT_A_REGION: ", file.display());
    assert!(output_of.starts_with(&expected), "{output_of}");
}
