//! `nearstate cluster`: checks a cluster file, and administers the nodes of a cluster.

mod demo;
pub(crate) mod check;
pub(crate) mod alarms;
pub(crate) mod certificate;
mod clock_skew;
mod removed;
mod resources;
mod outcome;
pub(crate) mod show;
pub(crate) mod admin;
pub(crate) mod member;
pub(crate) mod file;
pub(crate) mod machine;
mod moment;
pub(crate) mod row;
pub(crate) mod level;

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use nearstate_model::{Error, Result};
use nearstate_store::now_ms_coarse;
use serde_json::Value;

use admin::AdminRequest;
use file::{ClusterFile, FileHost, FilePartition};
use show::items;

use crate::printing::print;
use crate::settings::parse_time;

/// How long `init` waits for a node of this machine.
const START_MAX: Duration = Duration::from_secs(5);

/// How often a host that is waited for is asked.
const WAIT_STEP: Duration = Duration::from_millis(500);

/// The file, and the host whose node is asked.
#[derive(Debug, Args)]
pub(crate) struct NodeChoice {
    /// The cluster file
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: PathBuf,
    /// The host whose node is asked, and asked alone. By default the first one of this machine
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,
}

/// `nearstate cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Check a cluster file, this machine, and whether the other hosts can be reached
    Check {
        /// The cluster file
        #[arg(long, value_name = "FILE")]
        cluster: PathBuf,
        /// The host that this machine is: its certificate, directory and regions are checked too
        #[arg(long, value_name = "NAME")]
        host: Option<String>,
        /// Also check regions of other users, which a node with `--any-owner` uses
        #[arg(long)]
        any_owner: bool,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Run a cluster on this machine whose owner is cut off and killed, and verify what is left
    Demo(demo::DemoArgs),
    /// Create the cluster: once, when the nodes of all hosts run. Waits some seconds for a node of
    /// this machine
    Init {
        #[command(flatten)]
        node: NodeChoice,
        /// Although regions of this boot belong to an earlier membership, whose directories are
        /// lost on all hosts: their partitions get no owner before accept-loss names it. See "All
        /// directories of the membership are lost" in docs/operate/cluster.md
        #[arg(long)]
        new_membership: bool,
        /// With --new-membership, a host that does not answer. It must be off: what only it holds
        /// is discarded after accept-loss. Can be given several times
        #[arg(long, value_name = "NAME", requires = "new_membership")]
        without: Vec<String>,
    },
    /// Show hosts, roles, leases, positions, lags, free memory and alarms of the whole cluster
    Status {
        #[command(flatten)]
        node: NodeChoice,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the alarms of all hosts: those that are raised, then those that are cleared
    Alarms {
        #[command(flatten)]
        node: NodeChoice,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show the last events of a node
    Events(NodeChoice),
    /// Let a host of the cluster file vote, whose node runs. It votes when the command ends. With
    /// --partition: add it to the group of a partition. It joins, and counts when its copy is
    /// complete
    Add {
        #[command(flatten)]
        node: NodeChoice,
        /// The host
        name: String,
        /// Wait until the node of the host answers, at most so long: 30s, 5min
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        wait: Option<Duration>,
        /// The partition of which it is to have a copy
        #[arg(long, value_name = "NAME")]
        partition: Option<String>,
    },
    /// Take the vote from a host. Refused if fewer than three hosts would vote then, which could
    /// lose none, if no majority of them answers, or if a partition needs its copy. With
    /// --partition: remove it from the group of a partition, as soon as the other copies suffice
    Remove {
        #[command(flatten)]
        node: NodeChoice,
        /// The host
        name: String,
        /// Although the hosts that vote then could lose none of them, or a partition needs its copy
        #[arg(long, conflicts_with = "partition")]
        weaken_majority: bool,
        /// The partition of which it is to have no copy any more
        #[arg(long, value_name = "NAME")]
        partition: Option<String>,
    },
    /// Raise the cluster to the level that all hosts of its file can do, after all nodes were
    /// replaced. No earlier version can take part any more
    Finalize {
        #[command(flatten)]
        node: NodeChoice,
        /// A host that is lost: it is not waited for. If it returns with an earlier version, its
        /// node ends. Can be given several times
        #[arg(long, value_name = "NAME")]
        without: Vec<String>,
    },
    /// Let another member own the partitions that the host owns
    Drain {
        #[command(flatten)]
        node: NodeChoice,
        /// The next owner: a host whose copies of these partitions count. Otherwise the members
        /// choose
        #[arg(long, value_name = "NAME")]
        to: Option<String>,
    },
    /// Give a partition whose members are lost to a host with a complete copy. An owner that shows
    /// no life for a lease is excluded first
    AcceptLoss {
        #[command(flatten)]
        node: NodeChoice,
        /// The partition
        #[arg(long)]
        partition: String,
        /// The host that becomes the owner
        #[arg(long)]
        to: String,
        /// Although another host that answers has a copy that holds more: that is lost
        #[arg(long)]
        discard_longer_copies: bool,
    },
    /// Begin a partition anew that has no copy left, with what the region of a host has. Make sure
    /// that no other host has a copy: it is discarded
    ForceNew {
        #[command(flatten)]
        node: NodeChoice,
        /// The partition
        #[arg(long)]
        partition: String,
        /// The host that becomes the owner
        #[arg(long)]
        to: String,
        /// The records in the host's region are those of the partition from now on
        #[arg(long, required = true)]
        from_region: bool,
    },
}

/// Runs a command.
pub(crate) fn run(command: ClusterCommand, out: &mut impl Write) -> Result<()> {
    let text = match command {
        ClusterCommand::Demo(args) => demo::run(&args)?,
        ClusterCommand::Check { cluster, host, any_owner, json } => {
            let file = ClusterFile::read(&cluster)?;
            let host = host.map(|name| file.host(&name)).transpose()?;
            let rows = check::all(&file, host, any_owner);
            print(out, &check::show(&file, &rows, json))?;
            return check::refuse_failed(&rows);
        }
        ClusterCommand::Init { node, new_membership, without } => {
            created(&create(&node, new_membership.then_some(&without))?)
        }
        ClusterCommand::Finalize { node, without } => finalize(&node, &without)?,
        ClusterCommand::Status { node, json } => status(&node, json)?,
        ClusterCommand::Alarms { node, json } => {
            let statuses = statuses(&node)?;
            if json {
                format!("{}\n", show::alarms_json(&statuses))
            } else {
                show::alarms(&statuses, now_ms_coarse())
            }
        }
        ClusterCommand::Events(node) => {
            let answer = ask(&node, &AdminRequest::Events)?;
            show::events(&answer).map_err(|detail| Error::Backend { detail })?
        }
        ClusterCommand::Add { node, name, wait, partition } => {
            if let Some(max) = wait {
                wait_for(&node, &name, max)?;
            }
            match partition {
                Some(partition) => change_group(&node, &partition, (&name, true))?,
                None => vote(&node, &name, (true, false))?,
            }
        }
        ClusterCommand::Remove { node, name, weaken_majority, partition } => match partition {
            Some(partition) => change_group(&node, &partition, (&name, false))?,
            None => vote(&node, &name, (false, weaken_majority))?,
        },
        ClusterCommand::Drain { node, to } => drain(&node, to.as_deref())?,
        ClusterCommand::AcceptLoss { node, partition, to, discard_longer_copies } => {
            let file = ClusterFile::read(&node.cluster)?;
            let partition = partition_of(&file, &partition)?.id.0;
            let host = file.host(&to)?.id.0;
            let discards_longer = discard_longer_copies;
            let request = AdminRequest::AcceptLoss { partition, host, discards_longer };
            let done = ask(&node, &request)?;
            outcome::accepted(&to, &done)
        }
        ClusterCommand::ForceNew { node, partition, to, from_region: _ } => {
            let file = ClusterFile::read(&node.cluster)?;
            let partition = partition_of(&file, &partition)?.id.0;
            let host = file.host(&to)?.id.0;
            let done = ask(&node, &AdminRequest::ForceNew { partition, host })?;
            outcome::given_up(&to, &done)
        }
    };
    print(out, &text)
}

fn partition_of<'f>(file: &'f ClusterFile, name: &str) -> Result<&'f FilePartition> {
    file.partitions.iter().find(|partition| partition.name == name).ok_or_else(|| {
        Error::BadArgument { detail: format!("no partition {name:?} in the cluster file") }
    })
}

/// The hosts whose nodes may be on this machine: the one that is named, or all.
fn candidates<'f>(node: &NodeChoice, file: &'f ClusterFile) -> Result<Vec<&'f FileHost>> {
    match &node.host {
        Some(name) => Ok(vec![file.host(name)?]),
        None => Ok(file.hosts.iter().collect()),
    }
}

/// Asks the first node that answers. One that is stopped is said rather than one that is not there.
fn ask(node: &NodeChoice, request: &AdminRequest) -> Result<Value> {
    let file = ClusterFile::read(&node.cluster)?;
    let mut last = None;
    for host in candidates(node, &file)? {
        match admin::request(&admin::socket_path(&file.directory(host)), request) {
            Err(error @ Error::System { .. }) => {
                let is_better = last.is_none() || admin::is_silent(&error);
                last = if is_better { Some(error) } else { last };
            }
            outcome => return outcome,
        }
    }
    Err(last.unwrap_or_else(|| Error::BadArgument { detail: "the file has no host".to_owned() }))
}

/// Creates the cluster. A node that was started just now is waited for.
/// `anew`: although regions are of an earlier membership, without these hosts.
fn create(node: &NodeChoice, anew: Option<&Vec<String>>) -> Result<Value> {
    let begin = Instant::now();
    let request = &match anew {
        None => AdminRequest::Init,
        Some(without) => AdminRequest::InitAnew { without: host_ids(node, without)? },
    };
    loop {
        match ask(node, request) {
            Err(Error::System { .. }) if begin.elapsed() < START_MAX => {
                std::thread::sleep(WAIT_STEP);
            }
            outcome => return outcome,
        }
    }
}

/// What the host that is named knows; without a name, what all hosts know.
fn statuses(node: &NodeChoice) -> Result<Vec<Value>> {
    if node.host.is_some() {
        return Ok(vec![ask(node, &AdminRequest::Status)?]);
    }
    match ask(node, &AdminRequest::ClusterStatus)? {
        Value::Array(statuses) => Ok(statuses),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            Err(Error::Backend { detail: "the node does not answer with a list".to_owned() })
        }
    }
}

/// The status of the whole cluster, or of one host, as JSON or as a table.
pub(crate) fn status(node: &NodeChoice, is_json: bool) -> Result<String> {
    let statuses = statuses(node)?;
    if is_json {
        return Ok(format!("{}\n", Value::Array(statuses)));
    }
    Ok(show::table(&statuses, now_ms_coarse()))
}

/// Waits until the node of a host answers.
fn wait_for(node: &NodeChoice, name: &str, max: Duration) -> Result<()> {
    ClusterFile::read(&node.cluster)?.host(name)?;
    let begin = Instant::now();
    loop {
        let statuses = ask(node, &AdminRequest::ClusterStatus)?;
        let status = statuses.as_array().into_iter().flatten().find(|one| one["host"] == name);
        let reason = status.and_then(|status| status["unreachable"].as_str());
        match reason {
            None => return Ok(()),
            Some(reason) if begin.elapsed() >= max => {
                let detail = format!("{name} has not answered within {max:?}: {reason}");
                return Err(Error::Backend { detail });
            }
            Some(_) => std::thread::sleep(WAIT_STEP),
        }
    }
}

fn created(done: &Value) -> String {
    let level = &done["level"];
    let mut text = match done["reason"].as_str() {
        None if done["created"] == false => {
            format!("the membership that is there goes on, with level {level}\n")
        }
        None => format!("the cluster is created, with level {level}\n"),
        Some(reason) => format!(
            "the cluster is created, with level {level}: `nearstate cluster finalize` raises it \
             ({reason})\n"
        ),
    };
    let without_owner = items(done, "without_owner").filter_map(Value::as_str).map(|partition| {
        format!(
            "{partition} has no owner: `nearstate cluster accept-loss --partition {partition} \
             --to HOST` names it\n"
        )
    });
    let leased = items(done, "leased").filter_map(Value::as_str);
    text.extend(without_owner.chain(leased.map(|reason| format!("not changed: {reason}\n"))));
    let silent: Vec<&str> = items(done, "silent").filter_map(Value::as_str).collect();
    if silent.is_empty() {
        return text;
    }
    let silent = format!(
        "not asked, because they do not answer: {}. These hosts must be off. What only they hold \
         is discarded after accept-loss\n",
        silent.join(", ")
    );
    text + &silent
}

/// The numbers of hosts of the file.
fn host_ids(node: &NodeChoice, names: &[String]) -> Result<Vec<u16>> {
    let file = ClusterFile::read(&node.cluster)?;
    names.iter().map(|name| Ok(file.host(name)?.id.0)).collect()
}

fn finalize(node: &NodeChoice, without: &[String]) -> Result<String> {
    let done = ask(node, &AdminRequest::Finalize { without: host_ids(node, without)? })?;
    let level = done.get("level").unwrap_or(&Value::Null);
    Ok(if done.get("raised").and_then(Value::as_bool) == Some(true) {
        format!("the cluster has level {level} from now on\n")
    } else {
        format!("the cluster has level {level}, which is the highest one of its hosts\n")
    })
}

fn vote(node: &NodeChoice, name: &str, (votes, weakens): (bool, bool)) -> Result<String> {
    let file = ClusterFile::read(&node.cluster)?;
    let host = file.host(name)?.id.0;
    ask(node, &AdminRequest::Vote { host, votes, weakens })?;
    Ok(format!("{name} {}\n", if votes { "votes" } else { "does not vote any more" }))
}

fn change_group(
    node: &NodeChoice,
    partition: &str,
    (name, is_member): (&str, bool),
) -> Result<String> {
    let file = ClusterFile::read(&node.cluster)?;
    let host = file.host(name)?.id.0;
    let number = partition_of(&file, partition)?.id.0;
    let done = ask(node, &AdminRequest::Member { partition: number, host, is_member })?;
    let counts = done.get("counts").and_then(Value::as_bool) == Some(true);
    Ok(match (is_member, counts) {
        (true, true) => format!("{name} is a member of {partition}, and counts\n"),
        (true, false) => format!(
            "{name} is a member of {partition}: it joins, and counts when its copy is complete \
             (`nearstate cluster status`)\n"
        ),
        (false, _) => format!("{name} is no member of {partition} any more\n"),
    })
}

/// An error behind what was done already.
fn after(done: &str, error: Error) -> Error {
    if done.is_empty() {
        return error;
    }
    let (done, reason) = (done.trim_end().replace('\n', "; "), admin::reason(&error));
    Error::Backend { detail: format!("{reason}. Done before: {done}") }
}

fn drain(node: &NodeChoice, to: Option<&str>) -> Result<String> {
    let file = ClusterFile::read(&node.cluster)?;
    let to = to.map(|name| file.host(name)).transpose()?;
    let status = ask(node, &AdminRequest::Status)?;
    let host = status.get("host").and_then(Value::as_str).unwrap_or("the host");
    // The node that has said what it owns, and no other one.
    let node = &NodeChoice { cluster: node.cluster.clone(), host: Some(host.to_owned()) };
    let mut text = String::new();
    // Also without a lease, and before it serves.
    let is_owned = |copy: &&Value| copy.get("owner").and_then(Value::as_str) == Some(host);
    let to_drain: Vec<&Value> = items(&status, "partitions").filter(is_owned).collect();
    if let Some(to) = to {
        // Each one is looked at before the first one is drained.
        for copy in &to_drain {
            if !items(copy, "full").any(|name| name.as_str() == Some(&to.name)) {
                let partition = copy.get("partition").and_then(Value::as_str).unwrap_or("?");
                let detail = format!(
                    "{} has no copy of {partition} that counts (COUNTED in cluster status): wait \
                     until it has, or name another host. Nothing has changed",
                    to.name
                );
                return Err(Error::BadArgument { detail });
            }
        }
    }
    for copy in to_drain {
        let Some(name) = copy.get("partition").and_then(Value::as_str) else { continue };
        let partition = partition_of(&file, name)?.id.0;
        let request = match to {
            Some(to) => AdminRequest::DrainTo { partition, host: to.id.0 },
            None => AdminRequest::Drain { partition },
        };
        let done = ask(node, &request).map_err(|error| after(&text, error))?;
        let owner = done.get("owner").and_then(Value::as_str).unwrap_or("another member");
        text.extend([host, " is drained: ", owner, " owns ", name, "\n"]);
        if let Some(warning) = done.get("warning").and_then(Value::as_str) {
            text.extend(["warning: ", warning, "\n"]);
        }
    }
    Ok(if text.is_empty() {
        format!("{host} owns no partition: nothing to drain. `cluster status` shows the owners\n")
    } else {
        text
    })
}
