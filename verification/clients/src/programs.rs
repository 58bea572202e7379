//! Starts the node or Redis for a test, on a free loopback port and with a folder of its own. The
//! process is killed when the test ends, also by a panic.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, thread};

/// Longer than any start takes on a busy machine. A server that exits earlier is detected at once.
const START_MAX: Duration = Duration::from_secs(60);

/// How often a starting server is polled.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Free ports that are tried, in case other processes take them first.
const PORTS_MAX: usize = 5;

/// Names the `nearstate` to test. Without it, cargo builds one from these sources.
pub(crate) const PROGRAM_VARIABLE: &str = "NEARSTATE_PROGRAM";

/// A running server. Dropping it kills the process.
#[derive(Debug)]
pub struct TestServer {
    child: Child,
    /// Starts it again, with the same arguments.
    command: Command,
    /// The address that it listens on.
    pub address: SocketAddr,
    /// The file of its standard error.
    errors: PathBuf,
    folder: tempfile::TempDir,
}

impl TestServer {
    /// A node with two cores and a region of its own, and these additional arguments.
    pub fn node(more: &[&str]) -> Result<Self, String> {
        let program = program()?;
        Self::at_free_port(&|address, folder| {
            let mut command = Command::new(&program);
            // The node would read these as settings.
            let is_setting = |name: &OsString| name.to_string_lossy().starts_with("NEARSTATE_");
            for (name, _) in env::vars_os().filter(|(name, _)| is_setting(name)) {
                command.env_remove(name);
            }
            command.args(["serve", "--listen", &address.to_string(), "--cores", "2", "--region"]);
            command.arg(folder.join("region")).args(more);
            command
        })
    }

    /// Debian's Redis with one database and no persistence, and these additional arguments.
    pub fn redis(more: &[&str]) -> Result<Self, String> {
        Self::at_free_port(&|address, folder| {
            let mut command = Command::new("redis-server");
            command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
            command.args(["--save", "", "--appendonly", "no", "--daemonize", "no", "--dir"]);
            command.arg(folder).args(["--databases", "1"]).args(more);
            command
        })
    }

    fn at_free_port(make: &dyn Fn(SocketAddr, &Path) -> Command) -> Result<Self, String> {
        let mut last = String::new();
        for _ in 0..PORTS_MAX {
            let free = TcpListener::bind("127.0.0.1:0").and_then(|bound| bound.local_addr());
            let address = free.map_err(|error| format!("no free port: {error}"))?;
            let folder = folder()?;
            let command = make(address, folder.path());
            let mut server = Self::start(command, folder, address)?;
            // If another process takes the port first, the server exits and the next port is tried.
            if server.is_started()? {
                return Ok(server);
            }
            last = server.error_output();
        }
        Err(format!("{PORTS_MAX} servers exited at once after their start: {last}"))
    }

    fn start(
        mut command: Command,
        folder: tempfile::TempDir,
        address: SocketAddr,
    ) -> Result<Self, String> {
        let errors = folder.path().join("errors");
        let file =
            File::create(&errors).map_err(|error| format!("{}: {error}", errors.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let child = spawn(&mut command)?;
        Ok(Self { child, command, address, errors, folder })
    }

    /// Sends SIGKILL, and starts the server again with the same folder and address.
    pub fn kill_and_restart(&mut self) -> Result<(), String> {
        self.child.kill().map_err(|error| format!("the server is not killed: {error}"))?;
        self.child.wait().map_err(|error| format!("the server does not exit: {error}"))?;
        self.child = spawn(&mut self.command)?;
        if self.is_started()? {
            return Ok(());
        }
        Err(format!("the server does not start again: {}", self.error_output()))
    }

    /// Waits until it replies. Returns false if it has exited.
    fn is_started(&mut self) -> Result<bool, String> {
        let begun = Instant::now();
        while !self.answers() {
            if !self.is_running() {
                return Ok(false);
            }
            if begun.elapsed() > START_MAX {
                return Err(format!(
                    "the server neither serves nor exits: {}",
                    self.error_output()
                ));
            }
            thread::sleep(POLL_EVERY);
        }
        Ok(self.is_running())
    }

    fn answers(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address) else { return false };
        let mut reply = [0; 7];
        let is_set = stream.set_read_timeout(Some(START_MAX)).is_ok();
        let is_asked = is_set && stream.write_all(b"*1\r\n$4\r\nPING\r\n").is_ok();
        is_asked && stream.read_exact(&mut reply).is_ok() && reply == *b"+PONG\r\n"
    }

    /// Processor time of its threads so far.
    pub fn processor_time(&self) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let ran = |task: fs::DirEntry| -> Option<u64> {
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        let all = tasks.into_iter().flatten().filter_map(Result::ok).filter_map(ran);
        Duration::from_nanos(all.sum())
    }

    /// Memory of the process that is not shared: all but its region.
    pub fn private_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok())
            .map_or(0, |kilobytes| kilobytes << 10)
    }

    /// Its standard error so far.
    pub fn error_output(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Whether the process is running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The server's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let _ = writeln!(
                std::io::stderr(),
                "standard error of the server: {}",
                self.error_output()
            );
        }
    }
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|error| {
        format!("{program}: {error}: `cargo xtask test` installs what the tests need")
    })
}

/// A temporary folder, in memory if possible.
fn folder() -> Result<tempfile::TempDir, String> {
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    tempfile::Builder::new()
        .prefix("nearstate-clients-")
        .tempdir_in(base)
        .map_err(|error| format!("no folder in {base}: {error}"))
}

/// The root of the workspace.
pub fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap_or(root)
}

/// Cargo's target folder.
pub fn build_folder() -> Result<PathBuf, String> {
    let own = env::current_exe().map_err(|error| format!("own path: {error}"))?;
    // TARGET/PROFILE/deps/TEST or TARGET/PROFILE/PROGRAM
    let is_test = own.parent().is_some_and(|parent| parent.ends_with("deps"));
    let folder = own.ancestors().nth(if is_test { 3 } else { 2 });
    Ok(folder.ok_or("this program is not in a target folder")?.to_owned())
}

/// The `nearstate` of these sources. Cargo passes a test only the paths of programs of its own
/// package, so this calls cargo to build it. After `cargo test --workspace` nothing is left to
/// build.
pub(crate) fn program() -> Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM
        .get_or_init(|| match env::var_os(PROGRAM_VARIABLE) {
            Some(program) => Ok(PathBuf::from(program)),
            None => built(),
        })
        .clone()
}

fn built() -> Result<PathBuf, String> {
    let target = build_folder()?;
    let folder = if cfg!(debug_assertions) { "debug" } else { "release" };
    let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo build` would resolve other features of the dependencies and build them again.
    build.args(["test", "--quiet", "--no-run", "--workspace", "--test", "integration"]);
    if folder == "release" {
        build.arg("--release");
    }
    build.arg("--target-dir").arg(&target).current_dir(root());
    output_of(&mut build)?;
    Ok(target.join(folder).join("nearstate"))
}

/// Runs a command and returns its standard output and standard error.
pub fn output_of(command: &mut Command) -> Result<String, String> {
    output_with_input(command, b"")
}

/// As [`output_of`], with this standard input.
pub fn output_with_input(command: &mut Command, input: &[u8]) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(command)?;
    let stdin = child.stdin.take();
    let ended = thread::scope(|scope| {
        // A thread of its own: the command may write much before it has read everything.
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(input)));
        child.wait_with_output()
    });
    let ended = ended.map_err(|error| format!("{program}: {error}"))?;
    let mut output = String::from_utf8_lossy(&ended.stdout).into_owned();
    output.push_str(&String::from_utf8_lossy(&ended.stderr));
    if ended.status.success() {
        Ok(output)
    } else {
        Err(format!("{program}: {}\n{output}", ended.status))
    }
}
