//! The node and its peer, started for a test on a free port of loopback, with a folder of their
//! own, and ended by their process id, however the test ends.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, thread};

/// Longer than any start takes on a busy machine; a server that ends earlier is noticed at once.
const START_MAX: Duration = Duration::from_secs(60);

/// How often a starting server is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How many free ports are tried, should others take them as soon as they are found.
const PORTS_MAX: usize = 5;

/// Names a `nearstate` to test instead of the one that cargo builds from these sources.
const PROGRAM_VARIABLE: &str = "NEARSTATE_PROGRAM";

/// A server that runs while this lives.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Where it listens.
    pub address: SocketAddr,
    /// What it writes to its standard error.
    errors: PathBuf,
    folder: tempfile::TempDir,
}

impl Server {
    /// A node of two cores on a region of its own, with these words more.
    ///
    /// # Errors
    /// Why it does not serve, with what it wrote.
    pub fn node(more: &[&str]) -> Result<Self, String> {
        let program = program()?;
        Self::at_free_port(&|address, folder| {
            let mut command = Command::new(&program);
            // These are settings of a node, or none that it knows.
            let is_ours = |name: &OsString| name.to_string_lossy().starts_with("NEARSTATE_");
            for (name, _) in env::vars_os().filter(|(name, _)| is_ours(name)) {
                command.env_remove(name);
            }
            command.args(["serve", "--listen", &address.to_string(), "--cores", "2", "--region"]);
            command.arg(folder.join("region")).args(more);
            command
        })
    }

    /// Debian's Redis, of one database, which keeps nothing on a disk, with these words more.
    ///
    /// # Errors
    /// Why it does not serve.
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
            let address = free.map_err(|why| format!("no free port: {why}"))?;
            let folder = folder()?;
            let mut command = make(address, folder.path());
            let mut server = Self::start(&mut command, folder, address)?;
            // Another process may take the port first; then this one ends, and the next is tried.
            if server.is_started()? {
                return Ok(server);
            }
            last = server.written();
        }
        Err(format!("{PORTS_MAX} servers have ended as soon as they were started: {last}"))
    }

    fn start(
        command: &mut Command,
        folder: tempfile::TempDir,
        address: SocketAddr,
    ) -> Result<Self, String> {
        let errors = folder.path().join("errors");
        let file = File::create(&errors).map_err(|why| format!("{}: {why}", errors.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().map_err(|why| {
            format!("{program}: {why}: `cargo xtask test` installs what the tests need")
        })?;
        Ok(Self { child, address, errors, folder })
    }

    /// Waits until it answers; false if it has ended.
    fn is_started(&mut self) -> Result<bool, String> {
        let begun = Instant::now();
        while !self.answers() {
            if !self.is_running() {
                return Ok(false);
            }
            if begun.elapsed() > START_MAX {
                return Err(format!("a server that neither serves nor ends: {}", self.written()));
            }
            thread::sleep(LOOK_EVERY);
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

    /// What it has written to its standard error.
    pub fn written(&self) -> String {
        fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The folder that goes with it.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ends exactly the process that was started above.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            let _ = writeln!(std::io::stderr(), "the server wrote: {}", self.written());
        }
    }
}

/// A folder in memory, if there is one.
fn folder() -> Result<tempfile::TempDir, String> {
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    tempfile::Builder::new()
        .prefix("nearstate-clients-")
        .tempdir_in(base)
        .map_err(|why| format!("no folder in {base}: {why}"))
}

/// The root of the house.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The folder that cargo builds into.
///
/// # Errors
/// If this is not a test that cargo has built.
pub fn build_folder() -> Result<PathBuf, String> {
    let test = env::current_exe().map_err(|why| format!("own path: {why}"))?;
    // TARGET/PROFILE/deps/TEST
    let folder = test.ancestors().nth(3).ok_or("a test that stands in no build folder")?;
    Ok(folder.to_owned())
}

/// The `nearstate` of these sources. A test may only name programs of its own package, so cargo is
/// asked to build it; after `cargo test --workspace` there is nothing left to build.
fn program() -> Result<PathBuf, String> {
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
    // As a test of its own package, in the whole workspace: what other packages want of the same
    // libraries for their tests is a part of what is built, and `cargo build` would leave it out.
    build.args(["test", "--quiet", "--no-run", "--workspace", "--test", "integration"]);
    if folder == "release" {
        build.arg("--release");
    }
    build.arg("--target-dir").arg(&target).current_dir(root());
    told(&mut build)?;
    Ok(target.join(folder).join("nearstate"))
}

/// Runs a command to its end and returns all that it said.
///
/// # Errors
/// That it cannot be started or did not end well, with all that it said.
pub fn told(command: &mut Command) -> Result<String, String> {
    fed(command, b"")
}

/// As [`told`], of a command that reads this from its standard input.
///
/// # Errors
/// As [`told`].
pub fn fed(command: &mut Command, input: &[u8]) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|why| {
        format!("{program}: {why}: `cargo xtask test` installs what the tests need")
    })?;
    let feed = child.stdin.take();
    let ended = thread::scope(|scope| {
        // It may say much before it has read all. Whether it has read all is its own affair.
        scope.spawn(move || feed.map(|mut feed| feed.write_all(input)));
        child.wait_with_output()
    });
    let ended = ended.map_err(|why| format!("{program}: {why}"))?;
    let mut said = String::from_utf8_lossy(&ended.stdout).into_owned();
    said.push_str(&String::from_utf8_lossy(&ended.stderr));
    if ended.status.success() {
        Ok(said)
    } else {
        Err(format!("{program}: {}\n{said}", ended.status))
    }
}
