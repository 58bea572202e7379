//! `nearstate serve`: a node on a region.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use nearstate_model::{Error, Result};
use nearstate_node::{Address, Config, Endpoint, Face, Node};
use nearstate_resp::RespFace;
use nearstate_resp::acl::Users;
use nearstate_resp::server::{Server, Settings};
use nearstate_resp::table::TABLE;
use nearstate_store::{CreateOptions, Region};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// What to serve, and where.
#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The region's file; created if there is none
    #[arg(long, default_value = "/dev/shm/nearstate")]
    region: PathBuf,
    /// The most that a new region may grow to: a number with KiB, MiB, GiB or TiB
    #[arg(long, default_value = "1GiB", value_parser = crate::region::bytes)]
    max: u64,
    /// Where clients come in over TCP
    #[arg(long, default_value = "127.0.0.1:6379")]
    listen: Vec<std::net::SocketAddr>,
    /// Where clients come in over a Unix socket
    #[arg(long)]
    unix: Vec<PathBuf>,
    /// How many cores serve; 0: all processors
    #[arg(long, default_value_t = 0)]
    cores: usize,
}

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(serve: &Serve) -> Result<()> {
    let options = CreateOptions { bytes_max: serve.max, ..CreateOptions::default() };
    let region = Region::attach_or_create(&serve.region, &options)?;
    let mut settings = Settings::new(Users::open(&TABLE));
    settings.port = serve.listen.first().map_or(0, std::net::SocketAddr::port);
    settings.region = serve.region.display().to_string();
    let server = Arc::new(Server::new(settings));
    let tcp = serve.listen.iter().map(|address| Address::Tcp(*address));
    let unix = serve.unix.iter().map(|path| Address::Unix { path: path.clone(), mode: 0o660 });
    let endpoint = |address| Endpoint { face: "resp".to_owned(), address };
    let config = Config {
        cores: serve.cores,
        endpoints: tcp.chain(unix).map(endpoint).collect(),
        ..Config::default()
    };
    let faces: [Arc<dyn Face>; 1] = [Arc::new(RespFace::new(server))];
    // Before the node, so that no signal is missed once clients can come.
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(|error| Error::System {
        detail: "cannot wait for signals".to_owned(),
        errno: error.raw_os_error().unwrap_or_default(),
    })?;
    let node = Node::start(&config, &region, &faces)?;
    for address in node.addresses() {
        let _ = writeln!(std::io::stderr(), "nearstate: serving {address}");
    }
    let _ = signals.forever().next();
    node.shutdown();
    node.join()
}
