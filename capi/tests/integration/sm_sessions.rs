//! The SMF of `clients/c/examples/sm_sessions.c`, as concurrent processes: one watches in an event
//! loop, others create, find, count and release sessions, and one is killed.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::fixture::{Installed, Linkage, succeed};

struct Smf {
    installed: Installed,
    program: PathBuf,
    folder: tempfile::TempDir,
}

/// A process that watches. It is killed when this is dropped.
struct Watcher {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Watcher {
    fn read_line(&mut self) -> String {
        self.lines.next().unwrap().unwrap()
    }
}

impl Smf {
    fn new(link: Linkage) -> Self {
        let installed = Installed::new();
        let program = installed.compile("clients/c/examples/sm_sessions.c", link);
        Self { installed, program, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("smf")
    }

    fn command(&self, word: &str, words: &[&str]) -> Command {
        let mut command = self.installed.command(&self.program);
        command.arg(word).arg(self.path()).args(words);
        command
    }

    fn output(&self, word: &str, words: &[&str]) -> String {
        String::from_utf8(succeed(&mut self.command(word, words)).stdout).unwrap()
    }

    fn watcher(&self, count: &str) -> Watcher {
        let mut child = self.command("watch", &[count]).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut watcher = Watcher { child, lines };
        assert_eq!(watcher.read_line(), "watching");
        watcher
    }
}

#[test]
fn sessions_are_found_counted_searched_and_watched_by_other_processes() {
    for link in [Linkage::Static, Linkage::Shared] {
        let smf = Smf::new(link);
        let (mut watcher, mut victim) = (smf.watcher("5"), smf.watcher("1000"));
        assert_eq!(smf.output("establish", &["imsi-1", "100", "internet"]), "established\n");
        assert_eq!(watcher.read_line(), "created imsi-1");
        assert_eq!(victim.read_line(), "created imsi-1");
        // A watcher that is killed in its event loop does not affect the others.
        victim.child.kill().unwrap();
        assert_eq!(smf.output("establish", &["imsi-2", "200", "ims"]), "established\n");
        assert_eq!(smf.output("establish", &["imsi-3", "300", "internet"]), "established\n");
        assert_eq!(watcher.read_line(), "created imsi-2");
        assert_eq!(watcher.read_line(), "created imsi-3");
        assert_eq!(smf.output("establish", &["imsi-4", "200", "ims"]), "the TEID is taken\n");
        assert_eq!(smf.output("packet", &["200"]), "imsi-2: 5qi=9 arp=8\n");
        assert_eq!(smf.output("packet", &["201"]), "no session\n");
        let listed = smf.output("list", &["internet"]);
        assert_eq!(listed, "imsi-1\nimsi-3\n2 now, 3 ever established\n");
        assert_eq!(smf.output("idle", &["internet", "imsi-1"]), "imsi-3\n");
        // A handover: the session gets another TEID; the old one is free again.
        assert_eq!(smf.output("establish", &["imsi-2", "201", "ims"]), "established\n");
        assert_eq!(watcher.read_line(), "updated imsi-2");
        assert_eq!(smf.output("packet", &["200"]), "no session\n");
        assert_eq!(smf.output("release", &["imsi-1"]), "released\n");
        assert_eq!(smf.output("release", &["imsi-1"]), "no session\n");
        assert_eq!(watcher.read_line(), "deleted imsi-1");
        assert!(watcher.child.wait().unwrap().success());
        assert_eq!(smf.output("list", &["internet"]), "imsi-3\n1 now, 4 ever established\n");
        victim.child.wait().unwrap();
        let report = nearstate_store::check(&smf.path()).unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
}

#[test]
fn the_guide_declares_the_tags_of_the_example() {
    let guide = include_str!("../../../clients/c/README.md");
    let shown = guide
        .split("```c\n")
        .skip(1)
        .find(|shown| shown.contains("ns_tag_schema "))
        .and_then(|rest| rest.split("```").next())
        .unwrap();
    let tags = shown.split("ns_namespace_add_tags").next().unwrap();
    assert!(tags.starts_with("ns_tag_schema tags[] = {"), "{tags}");
    let example = include_str!("../../../clients/c/examples/sm_sessions.c");
    let dedented: String =
        example.lines().map(|line| line.replacen("    ", "", 1) + "\n").collect();
    assert!(dedented.contains(tags), "{tags}");
}
