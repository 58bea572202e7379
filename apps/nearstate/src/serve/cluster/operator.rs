//! Requests of operators to a host of a cluster, what it reports to the other hosts, and the thread
//! that looks for alarms.

use std::collections::BTreeSet;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use nearstate_cluster::{Command, HostId, PartitionId, ViewNumber};
use nearstate_model::{Error, Result};
use nearstate_node::{ClusterDriver, ConsensusEngine};
use serde_json::{Value, json};

use crate::cluster::admin::{self, AdminRequest};
use crate::cluster::file::{ClusterFile, FileHost};
use crate::cluster::show;

use super::facts::HostFacts;

/// The longest wait for the membership in a request of an operator.
const DECISION_MAX: Duration = Duration::from_secs(5);

/// The longest wait for the report of another host. All are asked at the same time.
const REPORT_MAX: Duration = Duration::from_secs(1);

/// How often alarms are looked for.
const ALARM_INTERVAL: Duration = Duration::from_millis(500);

/// What a host knows of itself. It exists before the driver, which the engine's start needs.
#[derive(Debug)]
pub(super) struct HostReport {
    pub(super) file: Arc<ClusterFile>,
    pub(super) host: FileHost,
    pub(super) facts: Arc<HostFacts>,
    /// Weak, because the engine, which the driver has, calls this.
    pub(super) driver: OnceLock<Weak<ClusterDriver>>,
}

impl HostReport {
    /// The status of this host with its alarms.
    pub(super) fn status(&self) -> Value {
        let driver = self.driver.get().and_then(Weak::upgrade);
        let status = driver.map(|driver| driver.status()).unwrap_or_default();
        show::to_json((&self.file, &self.host), &status, &self.facts.alarms().to_json())
    }
}

/// What requests of operators are carried out with.
pub(super) struct OperatorContext {
    pub(super) report: Arc<HostReport>,
    pub(super) driver: Arc<ClusterDriver>,
    pub(super) engine: Arc<dyn ConsensusEngine>,
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    started.map(drop).map_err(|error| Error::System {
        detail: format!("cannot start a thread: {error}"),
        errno: error.raw_os_error().unwrap_or_default(),
    })
}

/// Answers operators and looks for alarms until the process ends.
pub(super) fn start(listener: UnixListener, context: OperatorContext) -> Result<()> {
    let (report, driver) = (Arc::clone(&context.report), Arc::clone(&context.driver));
    spawn("ns-alarms", move || {
        loop {
            report.facts.update_alarms((&report.file, &report.host), &driver.status());
            std::thread::sleep(ALARM_INTERVAL);
        }
    })?;
    spawn("ns-admin", move || {
        for stream in listener.incoming().flatten() {
            admin::answer(&stream, |request| context.carry_out(request));
        }
    })
}

impl OperatorContext {
    fn carry_out(&self, request: AdminRequest) -> Result<Value> {
        match request {
            AdminRequest::Status => Ok(self.report.status()),
            AdminRequest::ClusterStatus => Ok(self.cluster_status()),
            AdminRequest::Events => Ok(json!(self.report.facts.events())),
            AdminRequest::Init => {
                self.engine.initialize(&self.report.file.voters())?;
                Ok(Value::Null)
            }
            AdminRequest::Voters(voters) => {
                let voters: BTreeSet<u64> = voters.into_iter().collect();
                self.engine.change_voters(&voters, DECISION_MAX)?;
                Ok(Value::Null)
            }
            AdminRequest::Drain { partition } => {
                let (partition, view) = self.view(partition)?;
                self.decide(&Command::Exclude { partition, view })
            }
            AdminRequest::AcceptLoss { partition, host } => {
                let (partition, view) = self.view(partition)?;
                self.decide(&Command::AcceptLoss { partition, view, host: HostId(host) })
            }
            AdminRequest::ForceNew { partition, host } => {
                let (partition, view) = self.view(partition)?;
                self.decide(&Command::ForceNew { partition, view, host: HostId(host) })
            }
        }
    }

    /// The status of all hosts, in the order of the file. They are asked at the same time, so this
    /// takes [`REPORT_MAX`] if one of them is lost.
    fn cluster_status(&self) -> Value {
        let hosts = &self.report.file.hosts;
        std::thread::scope(|scope| {
            let asked: Vec<_> =
                hosts.iter().map(|host| scope.spawn(move || self.status_of(host))).collect();
            asked.into_iter().filter_map(|asked| asked.join().ok()).collect()
        })
    }

    fn status_of(&self, host: &FileHost) -> Value {
        if host.id == self.report.host.id {
            return self.report.status();
        }
        let reported = self.engine.report_of(host.id.0.into(), REPORT_MAX);
        let parsed = reported.and_then(|text| {
            serde_json::from_str(&text).map_err(|error| Error::Backend {
                detail: format!("the report of {} is not valid: {error}", host.name),
            })
        });
        parsed
            .unwrap_or_else(|error| json!({ "host": host.name, "unreachable": error.to_string() }))
    }

    fn view(&self, partition: u32) -> Result<(PartitionId, ViewNumber)> {
        let status = self.driver.status();
        let copy = status.copies.iter().find(|copy| copy.partition == partition);
        let copy = copy.ok_or_else(|| Error::BadArgument {
            detail: format!("this host has no copy of partition {partition}"),
        })?;
        Ok((PartitionId(partition), ViewNumber(copy.view)))
    }

    fn decide(&self, command: &Command) -> Result<Value> {
        let index = self.engine.propose_and_wait(command.encode(), DECISION_MAX)?;
        Ok(json!({ "index": index }))
    }
}
