//! `nearstate bench`: experiments, and the two internal roles of this program, client and reaper,
//! that the bench starts as child processes.

use clap::{Args, Subcommand};
use nearstate_bench::{client, code, commands, nudsf, options, peer_commands, reaper, run_command};
use nearstate_model::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What to measure.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    Run(Box<options::Options>),
    Code(code::CodeOptions),
    Compare(commands::Compare),
    Render(commands::Render),
    /// Show, install and verify the stores that `bench run` compares with
    #[command(subcommand)]
    Peers(peer_commands::PeersCommand),
    /// One client of `bench run`, connected to it by pipes
    #[command(hide = true)]
    WorkloadClient,
    /// The bare service of `bench run nudsf`
    #[command(hide = true)]
    HttpPeer {
        /// The port on the loopback interface
        port: u16,
        /// The responses
        replies: PathBuf,
    },
    /// Replaced by workloads of `bench run`
    #[command(hide = true, disable_help_flag = true)]
    Micro(ReplacedCommand),
    /// Replaced by presets of `bench run`
    #[command(hide = true, disable_help_flag = true)]
    Access(ReplacedCommand),
    /// Replaced by workloads of `bench run`
    #[command(hide = true, disable_help_flag = true)]
    Transactions(ReplacedCommand),
    /// Owns a folder and a server, and removes both when its standard input ends
    #[command(hide = true)]
    Reaper {
        /// The folder
        folder: PathBuf,
        /// The server's program and arguments
        #[arg(last = true)]
        server: Vec<OsString>,
    },
}

/// The words of a command that no longer exists.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReplacedCommand {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

impl ReplacedCommand {
    fn has(&self, word: &str) -> bool {
        self.words.iter().any(|given| given == word)
    }
}

/// Prints the command that replaces an old one, and exits with status 2, as for an unknown command.
fn replaced(old: &str, new: &str) -> ! {
    let text = format!("nearstate: `{old}` was replaced: run `nearstate bench {new}`");
    // Without standard error only the status is left.
    let _ = writeln!(std::io::stderr(), "{text}");
    std::process::exit(2)
}

/// Runs the command.
pub(crate) fn run(command: BenchCommand) -> Result<()> {
    match command {
        BenchCommand::Access(_) => replaced("bench access", "run micro --preset thesis"),
        BenchCommand::Transactions(words) if words.has("tatp") => {
            replaced("bench transactions --only tatp", "run tatp")
        }
        BenchCommand::Transactions(words) if words.has("sessions") => {
            replaced("bench transactions --only sessions", "run sgw-session")
        }
        BenchCommand::Transactions(words) if words.has("several") => {
            replaced("bench transactions --only several", "run micro-tx")
        }
        BenchCommand::Transactions(_) => {
            replaced("bench transactions", "run txn --preset transactions")
        }
        BenchCommand::Micro(words) if words.has("--server") => {
            replaced("bench micro --server", "run kv --preset server")
        }
        BenchCommand::Micro(_) => replaced("bench micro", "run micro --preset operations"),
        BenchCommand::Code(options) => code::run(&options, &mut std::io::stdout().lock()),
        BenchCommand::Run(options) => {
            run_command::run(&options, &words(), stop_flag(), &mut std::io::stdout().lock())
        }
        BenchCommand::Compare(options) => {
            commands::run_compare(&options, &mut std::io::stdout().lock())
        }
        BenchCommand::Render(options) => {
            commands::run_render(&options, &mut std::io::stdout().lock())
        }
        BenchCommand::Peers(command) => peer_commands::run(&command, &mut std::io::stdout().lock()),
        BenchCommand::WorkloadClient => {
            client::serve(std::io::stdin().lock(), std::io::stdout().lock())
        }
        BenchCommand::HttpPeer { port, replies } => nudsf::serve_bare(port, &replies),
        BenchCommand::Reaper { folder, server } => reaper::serve(&folder, &server),
    }
}

/// A second signal within this time counts as the same request to stop: `timeout` sends one signal
/// to this process and one to its process group.
const SAME_REQUEST: Duration = Duration::from_secs(2);

/// Interval at which a thread checks whether the first signal has arrived.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Set when a signal requests the end of the run. The run then stops the processes that it started
/// and prints its partial results.
fn stop_flag() -> &'static AtomicBool {
    let flag: &'static Arc<AtomicBool> = Box::leak(Box::new(Arc::new(AtomicBool::new(false))));
    let is_meant = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // A later signal ends the program at once. The reapers then clean up.
        let at_once =
            signal_hook::flag::register_conditional_shutdown(signal, 130, is_meant.clone());
        let asked = signal_hook::flag::register(signal, flag.clone());
        debug_assert!(
            at_once.is_ok() && asked.is_ok(),
            "handlers for these signals can be registered"
        );
    }
    std::thread::spawn(move || {
        while !flag.load(Ordering::Relaxed) {
            std::thread::sleep(POLL_INTERVAL);
        }
        std::thread::sleep(SAME_REQUEST);
        is_meant.store(true, Ordering::Relaxed);
    });
    flag
}

/// The arguments of the command line, without the program name.
fn words() -> Vec<String> {
    std::env::args().skip(1).collect()
}
