//! `nearstate serve`: runs a node that serves a region.

mod cluster;
mod metrics;
mod peers;
mod nudsf;
mod access_control;
mod region_lock;
mod region_file;
mod memory_budget;
mod memory_limit;
mod place;

use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use nearstate_model::{Error, Result};
use nearstate_node::{Endpoint, ListenAddress, Node, NodeConfig, Protocol, check_tcp_address};
use nearstate_observe::ObserveProtocol;
use nearstate_resp::RespProtocol;
use nearstate_resp::acl::Users;
use nearstate_resp::runtime_settings::ServerLogLevel;
use nearstate_resp::server::{AuthFailure, RespServer, RespSettings};
use nearstate_store::{CreateOptions, Kind, Region, Schema};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::log;
use crate::printing;
use crate::settings::{
    LogLevel, MemoryMax, NamespaceLimitLines, SettingFlags, SettingLayers, Settings, print,
};
use access_control::AddressSource;
use memory_budget::{MemoryBudget, MemoryDemand, file_bytes};
use memory_limit::MemoryLimit;
use metrics::ServerMetrics;
use nudsf::{NudsfParts, ServerTls};
use place::NodePlace;
use region_file::ServedFile;

/// The options of `nearstate serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    flags: SettingFlags,
    #[command(flatten)]
    cluster: cluster::ClusterArgs,
    /// Print the effective settings with their origins and exit
    #[arg(long)]
    print_config: bool,
}

/// Serves until SIGTERM or SIGINT. SIGHUP reloads certificates.
pub(crate) fn run(serve: &ServeArgs) -> Result<()> {
    let begin = Instant::now();
    let layers = serve.flags.layers(std::env::vars_os())?;
    let settings = Settings::parse(&layers)?;
    if serve.print_config {
        return printing::print(&mut std::io::stdout(), &print(&layers));
    }
    log::start(settings.log_level, settings.log_format);
    let outcome = match serve.cluster.chosen() {
        None => serve_alone(&settings, &layers, begin),
        Some((file, host)) => place::find(&settings).and_then(|place| {
            let started = cluster::ClusterHost { settings: &settings, layers: &layers, place };
            started.serve(file, host, begin)
        }),
    };
    log::flush();
    outcome
}

/// Serves one region, of no cluster.
fn serve_alone(settings: &Settings, layers: &SettingLayers, begin: Instant) -> Result<()> {
    let users = access_control::users(settings, layers)?;
    access_control::addresses(settings, &users, AddressSource::Node)?;
    nudsf::check(settings)?;
    let tls = access_control::tls(settings, AddressSource::Node)?.map(ServerTls::new);
    if layers.is_plain_left_out() {
        log::emit(log::NO_PLAIN_TCP, &[]);
    }
    serve_until_signal(settings, users, tls.as_ref(), begin)
}

fn serve_until_signal(
    settings: &Settings,
    users: Users,
    tls: Option<&ServerTls>,
    begin: Instant,
) -> Result<()> {
    let place = place::find(settings)?;
    if !settings.region.path.exists() {
        // Limits that do not fit, and addresses that are taken, create no region.
        memory_budget(settings, &place, settings.region_max.0)?;
        check_addresses(settings)?;
    }
    let region = attach(settings, &place)?;
    let lock = region_lock::acquire_single(&settings.region.path, settings.is_region_shared)?;
    check_addresses(settings)?;
    let budget = memory_budget(settings, &place, region.bytes_max())?;
    report_memory(settings, budget);
    let server = Arc::new(RespServer::new(resp_settings(settings, users, budget)));
    let metrics = ServerMetrics::new(region.clone(), Arc::clone(&server));
    let path = settings.region.path.clone();
    metrics.set_file(ServedFile::watch(&path.clone(), lock.identity()?, move |is_present| {
        let event = if is_present { log::REGION_FILE_BACK } else { log::REGION_FILE_GONE };
        log::emit(event, &[("path", &path.display())]);
    })?);
    let NudsfParts { protocols: nudsf, keys: _token_keys } =
        nudsf::parts(settings, metrics.nudsf())?;
    let protocols = protocols(&server, &metrics, nudsf);
    // Before the node starts, so that no signal is lost once clients can connect.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| Error::System {
        detail: "cannot wait for signals".to_owned(),
        errno: error.raw_os_error().unwrap_or_default(),
    })?;
    let config = config(settings, &place, tls, budget.core_bytes_max);
    let node = Node::start(&config, &region, &protocols)?;
    // Not before: a node that does not start changes nothing of a region that exists.
    set_limits(&region, &settings.namespace_limits)?;
    metrics.begin(node.metrics());
    if let Some(port) = announced_port(&config, &node) {
        server.set_port(port);
    }
    for (address, endpoint) in node.addresses().iter().zip(&config.endpoints) {
        let (protocol, is_tls) = (&endpoint.protocol, endpoint.tls.is_some());
        let fields: [(&str, &dyn std::fmt::Display); 3] =
            [("address", address), ("protocol", protocol), ("tls", &is_tls)];
        log::emit(log::LISTENING, fields.get(..if is_tls { 3 } else { 2 }).unwrap_or(&fields));
    }
    report_open_files(&config, &node);
    let peers = peers::start(settings, tls.map(|tls| &tls.resp), (&region, &server))?;
    let ms = begin.elapsed().as_millis();
    log::emit(log::READY, &[("cores", &node.stats().cores.len()), ("ms", &ms)]);
    let registration = nudsf::register(settings)?;
    let signals_handle = signals.handle();
    let signal = wait_for_signal(&mut signals, settings, tls);
    log::emit(log::SHUTTING_DOWN, &[("signal", &signal)]);
    metrics.end();
    // Clients are sent elsewhere before connections end.
    drop(registration);
    drop(peers);
    node.shutdown();
    let second_signal = std::thread::spawn(move || {
        if signals.forever().any(|signal| signal != SIGHUP) {
            log::emit(log::STOPPING_AT_ONCE, &[]);
            log::flush();
            // Exiting is safe at any moment: a region survives SIGKILL.
            std::process::exit(1);
        }
    });
    let gauges = node.metrics();
    let outcome = node.join();
    signals_handle.close();
    let _ = second_signal.join();
    match &outcome {
        Ok(()) => {
            log::emit(log::STOPPED, &[("aborted", &gauges.snapshot().total().0.drain_aborts)]);
        }
        Err(error) => log::emit(log::CORE_FAILED, &[("reason", error)]),
    }
    outcome
}

/// Checks that the node can listen on each TCP address.
fn check_addresses(settings: &Settings) -> Result<()> {
    let lists = [
        &settings.listen,
        &settings.tls_listen,
        &settings.peer_listen,
        &settings.nudsf,
        &settings.nudsf_tls,
        &settings.metrics,
        &settings.sentinel_listen,
    ];
    lists.into_iter().flatten().try_for_each(|address| check_tcp_address(*address))
}

/// The protocols of all endpoints.
fn protocols(
    server: &Arc<RespServer>,
    metrics: &ServerMetrics,
    [nudsf, nudsf_tls]: [Arc<dyn Protocol>; 2],
) -> [Arc<dyn Protocol>; 5] {
    [
        Arc::new(RespProtocol::new(Arc::clone(server))),
        Arc::new(RespProtocol::sentinel(Arc::clone(server))),
        Arc::new(ObserveProtocol::new(Arc::new(metrics.clone()))),
        nudsf,
        nudsf_tls,
    ]
}

/// Sets the limits of namespaces. A namespace that does not exist is created, as for RESP clients.
fn set_limits(region: &Region, limits: &NamespaceLimitLines) -> Result<()> {
    if limits.0.is_empty() {
        return Ok(());
    }
    let session = region.session()?;
    for (name, limits) in &limits.0 {
        let namespace = match session.known_namespace(name)? {
            Some(namespace) => namespace,
            None => session.namespace(name, &Schema { kind: Kind::Mixed, ..Schema::default() })?,
        };
        session.set_limits(namespace, *limits)?;
    }
    Ok(())
}

/// The settings of the RESP protocol.
fn resp_settings(settings: &Settings, users: Users, budget: MemoryBudget) -> RespSettings {
    let mut resp = RespSettings::new(users);
    settings.apply_to(&mut resp);
    resp.messages_bytes_max = usize::try_from(budget.pubsub_bytes_max).unwrap_or(usize::MAX);
    let first = settings.listen.first().or(settings.tls_listen.first());
    resp.port = first.map_or(0, std::net::SocketAddr::port);
    resp.on_auth_failure = log_auth_failure;
    resp.on_soft_limit = |namespace, usage| {
        let fields: &log::LogFields<'_> = &[
            ("namespace", &namespace),
            ("used_bytes", &usage.used_bytes),
            ("soft_bytes", &usage.limits.soft_bytes),
            ("hard_bytes", &usage.limits.hard_bytes),
        ];
        log::emit(log::SOFT_LIMIT_EXCEEDED, fields);
    };
    resp.log_level = match settings.log_level {
        LogLevel::Error | LogLevel::Warn => ServerLogLevel::Warning,
        LogLevel::Info => ServerLogLevel::Notice,
        LogLevel::Debug => ServerLogLevel::Debug,
    };
    resp.on_log_level = |level| {
        log::set_level(match level {
            ServerLogLevel::Warning => LogLevel::Warn,
            ServerLogLevel::Notice | ServerLogLevel::Verbose => LogLevel::Info,
            ServerLogLevel::Debug => LogLevel::Debug,
        });
    };
    resp
}

/// The memory limit, if there is one.
fn memory_limit(settings: &Settings) -> Option<MemoryLimit> {
    match settings.memory_max {
        MemoryMax::Auto => memory_limit::of_this_process(),
        MemoryMax::None => None,
        MemoryMax::Bytes(bytes) => {
            Some(MemoryLimit { bytes, origin: "limits.memory_max".to_owned() })
        }
    }
}

/// Divides the memory limit, if there is one, among the limits of the node.
fn memory_budget(
    settings: &Settings,
    place: &NodePlace,
    region_bytes: u64,
) -> Result<MemoryBudget> {
    let path = &settings.region.path;
    let demand = MemoryDemand {
        region: if memory_limit::is_in_memory(path) { file_bytes(path, region_bytes) } else { 0 },
        cores: Node::core_count(place.cores(settings))? as u64,
        connections_max: settings.connections_max.0.into(),
        rings_max: settings.rings_max.0 as u64,
        output_bytes_max: settings.output_bytes_max.0,
        core_bytes_max: settings.core_bytes_max.0,
        pubsub_bytes_max: settings.pubsub_bytes_max.0,
    };
    demand.divide(memory_limit(settings).as_ref())
}

fn report_memory(settings: &Settings, budget: MemoryBudget) {
    let Some(limit) = memory_limit(settings) else { return };
    let fields: &log::LogFields<'_> = &[
        ("memory_max", &limit.bytes),
        ("origin", &limit.origin),
        ("core_bytes_max", &budget.core_bytes_max),
        ("pubsub_bytes_max", &budget.pubsub_bytes_max),
    ];
    log::emit(log::MEMORY_LIMITED, fields);
}

/// The port of the first TCP address of RESP clients, which the kernel may have chosen.
fn announced_port(config: &NodeConfig, node: &Node) -> Option<u16> {
    let endpoints = node.addresses().iter().zip(&config.endpoints);
    let mut ports = endpoints.filter_map(|(address, endpoint)| match address {
        ListenAddress::Tcp(address) if endpoint.protocol == RespProtocol::NAME => {
            Some(address.port())
        }
        ListenAddress::Tcp(_) | ListenAddress::Unix { .. } => None,
    });
    ports.next()
}

fn log_auth_failure(failure: &AuthFailure<'_>) {
    let (user, is_checked) = (failure.user.unwrap_or("unknown"), !failure.is_refused);
    let fields: &log::LogFields<'_> = &[
        ("client", &failure.client),
        ("user", &user),
        ("failures", &failure.failures),
        ("checked", &is_checked),
    ];
    log::emit(log::AUTH_FAILED, fields);
}

/// Reports that the process may open too few files for the configured number of connections.
fn report_open_files(config: &NodeConfig, node: &Node) {
    let (wanted, connections) = (config.limits.connections_max, node.connections_max());
    if connections < wanted {
        let needed = config.limits.files_needed(node.stats().cores.len());
        let fields: &log::LogFields<'_> = &[
            ("connections", &connections),
            ("connections_max", &wanted),
            ("files_needed", &needed),
        ];
        log::emit(log::FEWER_CONNECTIONS, fields);
    }
}

/// Waits for the signal that stops the node. SIGHUP reloads the certificates.
fn wait_for_signal(signals: &mut Signals, settings: &Settings, tls: Option<&ServerTls>) -> i32 {
    for signal in signals.forever() {
        if signal != SIGHUP {
            return signal;
        }
        let Some(tls) = tls else { continue };
        match access_control::tls(settings, AddressSource::Node) {
            Ok(Some(read)) => {
                tls.renew(&read);
                log::emit(log::CERTIFICATES_RELOADED, &[]);
            }
            Ok(None) => {}
            Err(error) => log::emit(log::CERTIFICATES_NOT_RELOADED, &[("reason", &error)]),
        }
    }
    SIGTERM
}

fn attach(settings: &Settings, place: &NodePlace) -> Result<Region> {
    let begin = Instant::now();
    let options = CreateOptions {
        bytes_max: settings.region_max.0,
        mode: settings.region_mode.0,
        any_owner: settings.is_any_owner,
        numa: place.numa_policy(),
        ..CreateOptions::default()
    };
    settings.region.prepare()?;
    let region = Region::attach_or_create(&settings.region.path, &options)?;
    access_control::region(settings);
    let seen = region.inspect()?;
    let memory = place.memory_of(&region);
    let (path, sessions) = (settings.region.path.display(), seen.members.len());
    let ms = begin.elapsed().as_millis();
    let mut fields: Vec<(&str, &dyn std::fmt::Display)> = vec![
        ("path", &path),
        ("bytes_taken", &seen.bytes_taken),
        ("bytes_max", &seen.bytes_max),
        ("sessions", &sessions),
        ("ms", &ms),
    ];
    if let Some(memory) = &memory {
        fields.push(("memory", memory));
    }
    log::emit(log::REGION_ATTACHED, &fields);
    Ok(region)
}

fn config(
    settings: &Settings,
    place: &NodePlace,
    tls: Option<&ServerTls>,
    core_bytes_max: u64,
) -> NodeConfig {
    let tcp = settings.listen.iter().map(|address| ListenAddress::Tcp(*address));
    let mode = settings.unix_mode.0;
    let paths = settings.unix_paths();
    if paths.is_empty() && settings.is_unix_auto() {
        log::emit(log::NO_UNIX_SOCKET, &[("region", &settings.region.path.display())]);
    }
    let any_owner = settings.is_any_owner;
    let unix = paths.into_iter().map(|path| ListenAddress::Unix { path, mode, any_owner });
    let endpoint = |protocol: &str| {
        let protocol = protocol.to_owned();
        move |address| Endpoint { protocol: protocol.clone(), address, tls: None }
    };
    let observe = settings.metrics.iter().map(|address| ListenAddress::Tcp(*address));
    let sentinel = settings.sentinel_listen.iter().map(|address| ListenAddress::Tcp(*address));
    let endpoints = tcp.chain(unix).map(endpoint(RespProtocol::NAME));
    let over_tls = settings.tls_listen.iter().map(|address| ListenAddress::Tcp(*address));
    let over_tls_endpoints = over_tls.map(endpoint(RespProtocol::NAME));
    let over_tls_endpoints = over_tls_endpoints
        .map(|endpoint| Endpoint { tls: tls.map(|tls| tls.resp.clone()), ..endpoint });
    NodeConfig {
        cores: place.cores(settings),
        is_pinned: settings.pin_cores,
        processors: place.processors.clone(),
        endpoints: endpoints
            .chain(over_tls_endpoints)
            .chain(sentinel.map(endpoint(RespProtocol::SENTINEL)))
            .chain(observe.map(endpoint(ObserveProtocol::NAME)))
            .chain(nudsf::endpoints(settings, tls))
            .collect(),
        limits: settings.limits(core_bytes_max),
        spin: settings.spin(),
        on_long_poll: |poll| {
            let class = format!("{:?}", poll.class).to_ascii_lowercase();
            let fields: &log::LogFields<'_> =
                &[("task", &poll.task), ("class", &class), ("us", &poll.time.as_micros())];
            log::emit(log::LONG_POLL, fields);
        },
        on_stuck_task: |stuck| {
            let fields: &log::LogFields<'_> =
                &[("core", &stuck.core), ("task", &stuck.task), ("ms", &stuck.time.as_millis())];
            log::emit(log::STUCK_POLL, fields);
        },
        on_forced_close: |close| {
            let reason = close.reason.name();
            let fields: &log::LogFields<'_> = &[("client", &close.address), ("reason", &reason)];
            log::emit(log::CLIENT_DISCONNECTED, fields);
        },
    }
}
