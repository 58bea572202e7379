//! The ported protocol stack of `clients/c`: its workers are killed at random, and its lists and
//! chains are intact each time. Its verification detects planted faults.

use std::io::{BufRead as _, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use crate::fixture::{Installed, Linkage, succeed};

const SOURCE: &str = "clients/c/examples/protocol_stack.c";

/// Number of workers killed in one test.
const KILLS: u64 = 120;

struct Stack {
    installed: Installed,
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Stack {
    /// The example, with one part of its text replaced.
    fn with(planted: Option<(&str, &str)>, link: Linkage) -> Self {
        let installed = Installed::new();
        let mut source = PathBuf::from(SOURCE);
        if let Some((text, other)) = planted {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
            let whole = std::fs::read_to_string(root.join(SOURCE)).unwrap();
            assert!(whole.contains(text), "the example no longer contains {text:?}");
            source = installed.path("planted.c");
            std::fs::write(&source, whole.replace(text, other)).unwrap();
        }
        let program = installed.compile(source.to_str().unwrap(), link);
        Self { installed, program, folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("stack")
    }

    fn command(&self, word: &str) -> Command {
        let mut command = self.installed.command(&self.program);
        command.arg(word).arg(self.path());
        command
    }

    fn worker(&self) -> Worker {
        let mut child = self.command("work").stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Worker { child, lines }
    }
}

/// A process that serves packets. It is killed when this is dropped.
struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Waits for this many lines of output; a line follows some hundred packets.
    fn read(&mut self, lines: u64) {
        for _ in 0..lines {
            let line = self.lines.next().map(Result::unwrap);
            let output_text = line.as_deref().unwrap_or("nothing more: it has ended");
            assert!(
                output_text.contains("packets"),
                "unexpected output of the worker: {output_text}"
            );
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

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[test]
fn a_ported_stack_is_intact_after_every_kill_of_a_worker() {
    let stack = Stack::with(None, Linkage::Static);
    let mut random = u64::from(std::process::id()) | 1;
    eprintln!("seed {random}");
    let mut roll = |sides: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % sides
    };
    let mut survivor = stack.worker();
    survivor.read(1);
    for kill in 1..=KILLS {
        let mut victim = stack.worker();
        // Some workers are killed while they attach, most of them in a burst.
        victim.read(roll(4));
        for _ in 0..roll(1 << 20) {
            std::hint::spin_loop();
        }
        drop(victim);
        let result = output_text(&succeed(&mut stack.command("verify")));
        assert!(result.starts_with("whole: "), "after kill {kill}: {result}");
        if kill % 20 == 0 {
            survivor.read(1);
            drop(survivor);
            let result = output_text(&succeed(&mut stack.command("audit")));
            assert!(result.contains("objects leaked"), "after kill {kill}: {result}");
            survivor = stack.worker();
        }
    }
    drop(survivor);
    succeed(&mut stack.command("audit"));
    let report = nearstate_store::check(&stack.path()).unwrap();
    assert!(report.is_clean() && report.bytes_leaked == 0, "{report:?}");
}

#[test]
fn the_demonstration_succeeds() {
    let stack = Stack::with(None, Linkage::Shared);
    let result = output_text(&succeed(&mut stack.command("demo")));
    assert_eq!(result.lines().filter(|line| line.starts_with("whole: ")).count(), 21, "{result}");
    assert!(result.lines().last().unwrap().ends_with("objects leaked"), "{result}");
}

#[test]
fn a_planted_fault_is_detected() {
    // A wrong link leads to another object or to a freed one.
    for (text, planted, words) in [
        // An object that is never freed.
        ("return ns_txn_free(txn, node);", "return NS_OK;", ["LEAKED"].as_slice()),
        // A list whose backward links differ from its forward links.
        (
            "other_->field.previous = node_->field.previous;",
            "(void)other_;",
            &["BROKEN", "NS_NO_OBJECT"],
        ),
        // A session that stays in its chain when it moves to the list.
        ("        changed->first = 0;\n", "        (void)changed;\n", &["BROKEN", "NS_NO_OBJECT"]),
    ] {
        let stack = Stack::with(Some((text, planted)), Linkage::Static);
        let mut worker = stack.command("work").stdout(Stdio::piped()).spawn().unwrap();
        // The worker may fail because of its own fault; only the result of the verification counts.
        BufReader::new(worker.stdout.take().unwrap()).lines().take(30).for_each(drop);
        worker.kill().unwrap();
        worker.wait().unwrap();
        let result = stack.command("audit").output().unwrap();
        let result = (result.status.success(), output_text(&result));
        assert!(
            !result.0 && words.iter().any(|word| result.1.contains(word)),
            "{text}: {result:?}"
        );
    }
}
