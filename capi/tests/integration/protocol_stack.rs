//! The ported protocol stack of `clients/c`: its workers are killed at random, and its lists and
//! chains are whole each time. And the walk that says so finds what is planted.

use std::io::{BufRead as _, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use crate::fixture::{Installed, Link, succeed};

const SOURCE: &str = "clients/c/examples/protocol_stack.c";

/// Kills of workers in one test.
const KILLS: u64 = 120;

struct Stack {
    installed: Installed,
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Stack {
    /// The example, with one piece of its text replaced by another.
    fn with(planted: Option<(&str, &str)>, link: Link) -> Self {
        let installed = Installed::new();
        let mut source = PathBuf::from(SOURCE);
        if let Some((text, other)) = planted {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let whole = std::fs::read_to_string(root.join(SOURCE)).unwrap();
            assert!(whole.contains(text), "the example has no {text:?} any more");
            source = installed.path("planted.c");
            std::fs::write(&source, whole.replace(text, other)).unwrap();
        }
        let program = installed.compile(source.to_str().unwrap(), link);
        Self { installed, program, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("stack")
    }

    fn ask(&self, word: &str) -> Command {
        let mut command = self.installed.command(&self.program);
        command.arg(word).arg(self.path());
        command
    }

    fn worker(&self) -> Worker {
        let mut child = self.ask("work").stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Worker { child, lines }
    }
}

/// A process that serves packets, until it is dropped: then it is killed.
struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Waits until it has said so many lines, each after some hundred packets.
    fn hear(&mut self, lines: u64) {
        for _ in 0..lines {
            let line = self.lines.next().map(Result::unwrap);
            let said = line.as_deref().unwrap_or("nothing more: it has ended");
            assert!(said.contains("packets"), "the worker said {said}");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let ended = self.child.try_wait().unwrap();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        if !std::thread::panicking() {
            assert!(ended.is_none(), "the worker ended by itself: {ended:?}");
        }
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[test]
fn a_ported_stack_is_whole_whenever_a_worker_is_killed() {
    let stack = Stack::with(None, Link::Static);
    let mut dice = u64::from(std::process::id()) | 1;
    eprintln!("seed {dice}");
    let mut roll = |sides: u64| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice % sides
    };
    let mut survivor = stack.worker();
    survivor.hear(1);
    for kill in 1..=KILLS {
        let mut victim = stack.worker();
        // Some die while they attach, most somewhere in a burst.
        victim.hear(roll(4));
        for _ in 0..roll(1 << 20) {
            std::hint::spin_loop();
        }
        drop(victim);
        let told = said(&succeed(&mut stack.ask("verify")));
        assert!(told.starts_with("whole: "), "after kill {kill}: {told}");
        if kill % 20 == 0 {
            survivor.hear(1);
            drop(survivor);
            let told = said(&succeed(&mut stack.ask("audit")));
            assert!(told.contains("objects leaked"), "after kill {kill}: {told}");
            survivor = stack.worker();
        }
    }
    drop(survivor);
    succeed(&mut stack.ask("audit"));
    let report = nearstate_store::check(&stack.path()).unwrap();
    assert!(report.is_clean() && report.bytes_leaked == 0, "{report:?}");
}

#[test]
fn the_demonstration_ends_well() {
    let stack = Stack::with(None, Link::Shared);
    let told = said(&succeed(&mut stack.ask("demo")));
    assert_eq!(told.lines().filter(|line| line.starts_with("whole: ")).count(), 21, "{told}");
    assert!(told.lines().last().unwrap().ends_with("objects leaked"), "{told}");
}

#[test]
fn a_planted_fault_is_found() {
    // A wrong link leads to a wrong place, or to what was freed.
    for (text, planted, words) in [
        // An object that nobody frees.
        ("return ns_txn_free(txn, node);", "return NS_OK;", ["LEAKED"].as_slice()),
        // A list whose way back is not the way there.
        (
            "other_->field.previous = node_->field.previous;",
            "(void)other_;",
            &["BROKEN", "NS_NO_OBJECT"],
        ),
        // A session that stays in its chain when it goes to the list.
        ("        changed->first = 0;\n", "        (void)changed;\n", &["BROKEN", "NS_NO_OBJECT"]),
    ] {
        let stack = Stack::with(Some((text, planted)), Link::Static);
        let mut worker = stack.ask("work").stdout(Stdio::piped()).spawn().unwrap();
        // It may stumble over its own fault and end; what counts is what the walk says.
        BufReader::new(worker.stdout.take().unwrap()).lines().take(30).for_each(drop);
        worker.kill().unwrap();
        worker.wait().unwrap();
        let told = stack.ask("audit").output().unwrap();
        let told = (told.status.success(), said(&told));
        assert!(!told.0 && words.iter().any(|word| told.1.contains(word)), "{text}: {told:?}");
    }
}
