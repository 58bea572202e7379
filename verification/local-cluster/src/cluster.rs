//! The cluster: three hosts with one partition, of which the third one may be a witness.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::network::{HostNetwork, NetworkKind};
use crate::process::HostProcess;
use crate::status::{self, CopyView};

/// Hosts of a cluster.
pub const HOSTS: usize = 3;

/// Their names.
const NAMES: [&str; HOSTS] = ["a", "b", "c"];

/// The longest wait for the nodes to answer, and for all copies to count. A join takes seconds on a
/// busy machine.
const READY_MAX: Duration = Duration::from_secs(60);

/// How often a state is asked for.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// What is written at a time until a disk is full.
const FILL_BYTES: usize = 4096;

/// What a cluster is started with.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The `nearstate` program.
    pub program: PathBuf,
    /// A folder in memory, for regions, logs and the membership's files. It is created, and removed
    /// with the cluster.
    pub folder: PathBuf,
    /// The lease in milliseconds.
    pub lease_ms: u32,
    /// The largest size of each region.
    pub region_bytes_max: u64,
    /// Where the hosts are.
    pub network: NetworkKind,
    /// Two hosts have copies and the third one is a witness: what `cluster.when_copy_missing` says.
    /// `None`: all three have copies.
    pub two_copies: Option<&'static str>,
    /// Keep the folder when the cluster is dropped.
    pub keeps_folder: bool,
}

impl ClusterOptions {
    fn copies(&self) -> usize {
        HOSTS - usize::from(self.two_copies.is_some())
    }
}

/// A running cluster. Dropping it ends all processes.
#[derive(Debug)]
pub struct LocalCluster {
    options: ClusterOptions,
    nodes: [Option<HostProcess>; HOSTS],
    network: HostNetwork,
    port: u16,
}

/// Waits until a condition holds.
pub fn wait_until(
    what: &str,
    most: Duration,
    mut holds: impl FnMut() -> Result<bool, String>,
) -> Result<(), String> {
    let begin = Instant::now();
    while !holds()? {
        if begin.elapsed() > most {
            return Err(format!("not within {} s: {what}", most.as_secs()));
        }
        std::thread::sleep(POLL_EVERY);
    }
    Ok(())
}

/// Ports that are free on all addresses of loopback; in a new namespace, all are.
fn ports(kind: NetworkKind) -> Result<[u16; 2 * HOSTS + 1], String> {
    if kind == NetworkKind::Namespaces {
        return Ok([7000, 7001, 7000, 7001, 7000, 7001, 6379]);
    }
    let failed = |error: std::io::Error| format!("a free port: {error}");
    let mut ports = [0; 2 * HOSTS + 1];
    let mut listeners = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind("0.0.0.0:0").map_err(failed)?;
        *port = listener.local_addr().map_err(failed)?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

fn file_text(options: &ClusterOptions, ports: &[u16; 2 * HOSTS + 1]) -> String {
    let place = options.folder.display();
    let mut text = format!(
        "[cluster]\nname = \"local\"\ncopies = {}\nlease = \"{}ms\"\ninsecure = true\n\
         regions = \"{place}/{{host}}-{{partition}}\"\ndirectory = \"{place}/{{host}}.d\"\n",
        options.copies(),
        options.lease_ms
    );
    if let Some(policy) = options.two_copies {
        let _ = writeln!(text, "when_copy_missing = \"{policy}\"");
    }
    for ((host, name), pair) in NAMES.iter().enumerate().zip(ports.chunks(2)) {
        let address = options.network.address(host);
        let [peer, membership] = pair else { continue };
        let _ = write!(
            text,
            "[[host]]\nid = {}\nname = \"{name}\"\npeer = \"{address}:{peer}\"\n\
             membership = \"{address}:{membership}\"\nclients = \"{address}\"\n",
            host + 1
        );
        if host >= options.copies() {
            text.push_str("witness = true\n");
        }
    }
    let [.., port] = ports;
    let group = NAMES.get(..options.copies()).unwrap_or_default();
    let _ = write!(
        text,
        "[[partition]]\nid = 1\nname = \"amf\"\ngroup = {group:?}\nport = {port}\n\
         region_max = \"{}\"\n",
        options.region_bytes_max
    );
    text
}

impl LocalCluster {
    /// Starts all nodes, creates the cluster, and waits until every copy counts.
    pub fn start(options: ClusterOptions) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{}: {error}", options.folder.display());
        fs::create_dir_all(&options.folder).map_err(failed)?;
        let ports = ports(options.network)?;
        let text = file_text(&options, &ports);
        let [.., port] = ports;
        let network = HostNetwork::start(options.network, HOSTS)?;
        fs::write(options.folder.join("cluster.toml"), text).map_err(failed)?;
        let mut cluster = Self { options, nodes: [const { None }; HOSTS], network, port };
        for host in 0..HOSTS {
            let directory = cluster.directory(host);
            fs::create_dir_all(&directory)
                .map_err(|error| format!("{}: {error}", directory.display()))?;
            cluster.network.mount(&directory)?;
            cluster.start_node(host)?;
        }
        wait_until("the nodes answer operators", READY_MAX, || {
            cluster.check_running()?;
            Ok((0..HOSTS).all(|host| cluster.copy(host).is_some()))
        })?;
        status::init(&cluster.socket(0))?;
        cluster.wait_all_full()?;
        Ok(cluster)
    }

    /// The cluster file.
    pub fn file(&self) -> PathBuf {
        self.options.folder.join("cluster.toml")
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.options.folder
    }

    /// The lease.
    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.options.lease_ms.into())
    }

    /// The name of a host.
    pub fn name(&self, host: usize) -> &'static str {
        NAMES.get(host).copied().unwrap_or("?")
    }

    /// The host with this name.
    pub fn host_of(&self, name: &str) -> Option<usize> {
        NAMES.iter().position(|one| *one == name)
    }

    /// The region of a host.
    pub fn region(&self, host: usize) -> PathBuf {
        self.options.folder.join(format!("{}-amf", self.name(host)))
    }

    /// Where a host serves RESP clients while it owns the partition.
    pub fn clients(&self, host: usize) -> SocketAddr {
        SocketAddr::new(self.options.network.address(host), self.port)
    }

    /// True if links can be cut and disks can be full.
    pub fn has_links(&self) -> bool {
        self.options.network == NetworkKind::Namespaces
    }

    fn directory(&self, host: usize) -> PathBuf {
        self.options.folder.join(format!("{}.d", self.name(host)))
    }

    fn socket(&self, host: usize) -> PathBuf {
        self.directory(host).join("admin.sock")
    }

    fn log_file(&self, host: usize) -> PathBuf {
        self.options.folder.join(format!("{}.log", self.name(host)))
    }

    /// The log of a host's nodes.
    pub fn log(&self, host: usize) -> String {
        fs::read_to_string(self.log_file(host)).unwrap_or_default()
    }

    /// Starts the node of a host that has none.
    pub fn start_node(&mut self, host: usize) -> Result<(), String> {
        let program = self.options.program.to_string_lossy().into_owned();
        let file = self.file().to_string_lossy().into_owned();
        let mut words = vec![program.as_str(), "serve", "--cluster", &file, "--host"];
        words.extend([self.name(host), "--cores", "1"]);
        if self.has_links() {
            words.push("--insecure");
        }
        let log = self.log_file(host);
        let process = HostProcess::start(&self.network.prefix(host), &words, &log)?;
        if let Some(node) = self.nodes.get_mut(host) {
            *node = Some(process);
        }
        Ok(())
    }

    fn node(&mut self, host: usize) -> Result<&mut HostProcess, String> {
        let node = self.nodes.get_mut(host).and_then(Option::as_mut);
        node.ok_or_else(|| format!("host {host} has no node"))
    }

    /// The process of a host's node.
    pub fn node_id(&self, host: usize) -> Option<u32> {
        self.nodes.get(host).and_then(Option::as_ref).map(HostProcess::id)
    }

    /// SIGKILL. Nothing if the host has no node.
    pub fn kill_node(&mut self, host: usize) {
        if let Some(node) = self.nodes.get_mut(host) {
            drop(node.take());
        }
    }

    /// SIGSTOP.
    pub fn stop_node(&mut self, host: usize) -> Result<(), String> {
        self.node(host)?.stop()
    }

    /// SIGCONT.
    pub fn resume_node(&mut self, host: usize) -> Result<(), String> {
        self.node(host)?.resume()
    }

    /// Cuts the links of a host, both ways.
    pub fn cut(&self, host: usize) -> Result<(), String> {
        self.network.set_link(host, false)
    }

    /// Connects a host that was cut off.
    pub fn connect(&self, host: usize) -> Result<(), String> {
        self.network.set_link(host, true)
    }

    /// What one host sends to another does not arrive any more.
    pub fn cut_way(&self, from: usize, to: usize) -> Result<(), String> {
        self.network.set_way(from, to, false)
    }

    /// Ends [`LocalCluster::cut_way`].
    pub fn open_way(&self, from: usize, to: usize) -> Result<(), String> {
        self.network.set_way(from, to, true)
    }

    /// Fills the file system of a host's membership.
    pub fn fill_disk(&self, host: usize) -> Result<(), String> {
        if !self.has_links() {
            return Err("the hosts have no file systems of their own".to_owned());
        }
        let path = self.directory(host).join("filler");
        let mut file = fs::File::create(&path).map_err(|error| error.to_string())?;
        while file.write_all(&[7; FILL_BYTES]).is_ok() {}
        Ok(())
    }

    /// Ends [`LocalCluster::fill_disk`].
    pub fn free_disk(&self, host: usize) -> Result<(), String> {
        let path = self.directory(host).join("filler");
        fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Fails if a node has ended by itself.
    pub fn check_running(&mut self) -> Result<(), String> {
        for (host, node) in self.nodes.iter_mut().enumerate() {
            if let Some(end) = node.as_mut().and_then(HostProcess::end) {
                return Err(format!("the node of host {host} has ended by itself: {end}"));
            }
        }
        Ok(())
    }

    /// The copy of a host. `None`: its node does not answer.
    pub fn copy(&self, host: usize) -> Option<CopyView> {
        self.nodes.get(host)?.as_ref()?;
        status::copy(&self.socket(host)).ok()
    }

    /// The last events of a host, empty if its node does not answer.
    pub fn events(&self, host: usize) -> Vec<String> {
        status::events(&self.socket(host)).unwrap_or_default()
    }

    /// The host that owns the partition and has a lease. Of two, which a cut may show, the one in
    /// the higher view.
    pub fn owner(&self) -> Option<(usize, CopyView)> {
        let copies = (0..HOSTS).filter_map(|host| Some((host, self.copy(host)?)));
        let owners = copies.filter(|(_, copy)| copy.role == "owner" && copy.lease_ms > 0);
        owners.max_by_key(|(_, copy)| copy.view)
    }

    /// Waits until a host owns the partition and every copy counts. Returns it and its view.
    pub fn wait_all_full(&mut self) -> Result<(usize, u64), String> {
        let mut found = (0, 0);
        let waited = wait_until("all copies count", READY_MAX, || {
            self.check_running()?;
            let copies = self.options.copies();
            let owner = self.owner().filter(|(_, copy)| copy.full.len() == copies);
            Ok(owner.map(|(host, copy)| found = (host, copy.view)).is_some())
        });
        match waited {
            Ok(()) => Ok(found),
            Err(error) => {
                let copies: Vec<_> = (0..HOSTS).map(|host| self.copy(host)).collect();
                Err(format!("{error}: {copies:#?}"))
            }
        }
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            drop(node.take());
        }
        self.network.unmount();
        if !self.options.keeps_folder {
            let _ = fs::remove_dir_all(&self.options.folder);
        }
    }
}
