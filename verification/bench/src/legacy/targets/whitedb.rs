//! WhiteDB, the surrogate of paper 1. Its library is GPL-3.0, so nothing of it is linked here: its
//! nodes are a separate C program (`verification/peers/whitedb`) that is compiled when it is first
//! needed, where the library is installed, and that speaks the same protocol.

use super::{Database, Need, Target, placed};
use crate::keeper::{own_program, system};
use crate::legacy::protocol::{Kind, Mode, Said};
use nearstate_model::{Error, Result};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::{env, fs};

const INSTALL: &str = "apt-get install -y libwgdb-dev gcc";

/// Where distributions put the library's header.
const HEADERS: [&str; 2] = ["/usr/include/whitedb/dbapi.h", "/usr/local/include/whitedb/dbapi.h"];

/// Names where the source is looked for, before the places around the program.
const SOURCE_VARIABLE: &str = "NEARSTATE_PEERS";
const SOURCE: &str = "verification/peers/whitedb/node.c";

/// WhiteDB as a target.
#[derive(Clone, Copy, Debug)]
pub struct WhiteDb;

impl Target for WhiteDb {
    fn name(&self) -> &'static str {
        "whitedb"
    }

    fn version(&self) -> Result<String> {
        built()?;
        let output =
            Command::new("dpkg-query").args(["-W", "-f=${Version}", "libwgdb-dev"]).output();
        let version = output.ok().filter(|o| o.status.success()).map_or_else(
            || "of unknown version".to_owned(),
            |o| String::from_utf8_lossy(&o.stdout).trim().to_owned(),
        );
        Ok(format!("libwgdb {version}"))
    }

    fn kinds(&self, mode: Mode) -> &'static [Kind] {
        match mode {
            Mode::Read => &[Kind::Step, Kind::View, Kind::Copy, Kind::Chain],
            Mode::Write => &[Kind::Put, Kind::PutHeld],
        }
    }

    fn open(&self, need: &Need, loaded: &mut dyn FnMut(u64)) -> Result<Box<dyn Database>> {
        let program = built()?;
        let mut segment = Segment::start(&program, need)?;
        if need.records > 0 {
            let (records, bytes, seed) = (need.records, need.record_bytes, need.seed);
            segment.ask(&format!("load {records} {bytes} {seed}"), loaded)?;
            segment.ask("index", loaded)?;
        }
        Ok(Box::new(segment))
    }
}

/// A database in a System V shared memory segment, owned by a keeper that removes it when its
/// standard input ends.
#[derive(Debug)]
struct Segment {
    program: PathBuf,
    key: u32,
    keeper: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Segment {
    fn start(program: &Path, need: &Need) -> Result<Self> {
        let (start, before) = placed(&program.display().to_string(), need.numa_node);
        let mut command = Command::new(start);
        command.args(before).arg("keep").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut keeper = command.spawn().map_err(|e| system("starting whitedb-node", &e))?;
        let (commands, answers) = (keeper.stdin.take(), keeper.stdout.take());
        let (Some(commands), Some(answers)) = (commands, answers) else {
            return Err(Error::Backend { detail: "whitedb-node has no pipes".to_owned() });
        };
        // A key of our own process; the keeper refuses one that is taken.
        let key = 0x6E73_0000 | (std::process::id() & 0xFFFF);
        let answers = BufReader::new(answers);
        let mut segment =
            Self { program: program.to_owned(), key, keeper, commands: Some(commands), answers };
        segment.ask(&format!("create {key} {}", need.db_bytes), &mut |_| ())?;
        Ok(segment)
    }

    /// Sends a command and waits until it is done.
    fn ask(&mut self, command: &str, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let gone = |e: &std::io::Error| system("talking with whitedb-node", e);
        if let Some(commands) = &mut self.commands {
            writeln!(commands, "{command}").map_err(|e| gone(&e))?;
        }
        let mut line = String::new();
        loop {
            line.clear();
            if self.answers.read_line(&mut line).map_err(|e| gone(&e))? == 0 {
                return Err(Error::Backend {
                    detail: format!("whitedb-node ended while it was asked to {command:?}"),
                });
            }
            match Said::parse(&line)? {
                Said::Progress(records) => progress(records),
                Said::Ready | Said::Done => return Ok(()),
                Said::Error(detail) => return Err(Error::Backend { detail }),
                other @ (Said::Sequence(..)
                | Said::Span(..)
                | Said::Histogram(_)
                | Said::Verified(..)) => {
                    return Err(Error::Backend {
                        detail: format!("whitedb-node said {other} to {command:?}"),
                    });
                }
            }
        }
    }
}

impl Database for Segment {
    fn address(&self) -> String {
        self.key.to_string()
    }

    fn node_program(&self) -> Result<Command> {
        let mut command = Command::new(&self.program);
        // The library tells about itself on what the program makes its standard error.
        command.arg("node").stderr(Stdio::null());
        Ok(command)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.keeper.wait();
    }
}

/// The node program, compiled beside this one if it is older than its source.
fn built() -> Result<PathBuf> {
    if !HEADERS.iter().any(|h| Path::new(h).exists()) {
        return Err(Error::BadArgument {
            detail: format!("the WhiteDB library is not installed: {INSTALL}"),
        });
    }
    let source = source()?;
    let own = own_program()?;
    let folder = own.parent().map_or_else(env::temp_dir, |p| p.join("peers"));
    fs::create_dir_all(&folder).map_err(|e| {
        system(&format!("making {}: give a folder that can be written", folder.display()), &e)
    })?;
    let program = folder.join("whitedb-node");
    let changed = |path: &Path| fs::metadata(path).and_then(|m| m.modified());
    if let (Ok(program_changed), Ok(source_changed)) = (changed(&program), changed(&source))
        && program_changed >= source_changed
    {
        return Ok(program);
    }
    compile(&source, &program)?;
    Ok(program)
}

fn compile(source: &Path, program: &Path) -> Result<()> {
    // Two runs may compile at once: each into a name of its own, then one of them wins.
    let own = program.with_extension(std::process::id().to_string());
    let output = Command::new("cc")
        .args(["-O3", "-Wall", "-o"])
        .args([&own, source])
        .args(["-lwgdb", "-lm"])
        .output()
        .map_err(|e| system(&format!("starting cc for WhiteDB's node: {INSTALL}"), &e))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Backend {
            detail: format!("cc could not build {}: {}", source.display(), errors.trim()),
        });
    }
    fs::rename(&own, program).map_err(|e| system("placing whitedb-node", &e))
}

/// The source of the node program: where a variable says, around the program, or where this was
/// built.
fn source() -> Result<PathBuf> {
    let named = env::var_os(SOURCE_VARIABLE).map(|p| PathBuf::from(p).join("whitedb/node.c"));
    let own = own_program()?;
    let around = own.ancestors().map(|a| a.join(SOURCE));
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|a| a.join(SOURCE));
    named.into_iter().chain(around).chain(built_from).find(|p| p.exists()).ok_or_else(|| {
        Error::BadArgument {
            detail: format!(
                "{SOURCE} is not found: run from a checkout, or name the folder verification/peers \
                 with {SOURCE_VARIABLE}"
            ),
        }
    })
}
