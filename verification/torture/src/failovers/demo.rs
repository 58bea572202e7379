//! The demonstration of a cluster: signalling on three hosts, of which the owner's is cut off and
//! then killed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nearstate_local_cluster::{ClusterOptions, CopyView, HOSTS, LocalCluster, NetworkKind};
use nearstate_store::{Kind, Session};

use super::digest;
use super::shared_files::{AppendedLines, create_logged};
use super::signalling::{self, CONTEXTS, ReleasedProcedure, released};
use crate::clock::now_ns;
use crate::region_access::{create_folder, open_session};
use crate::spawn::{ChildCommand, ChildProcess, ChildRole};

/// The size of the regions.
const REGION_BYTES_MAX: u64 = 64 << 20;

/// How long each part is watched.
const BEFORE: Duration = Duration::from_secs(4);
const CUT: Duration = Duration::from_millis(1500);
const KILLED: Duration = Duration::from_secs(3);
const RETURNED: Duration = Duration::from_secs(2);

/// The longest wait for the old owner's host, once it has returned, and for equal copies.
const JOIN_MAX: Duration = Duration::from_secs(20);

/// The interval of samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(50);

/// What a demonstration is started with.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// The lease of the cluster in milliseconds.
    pub lease_ms: u32,
    /// The program of the nodes.
    pub program: PathBuf,
    /// A folder of its own, in memory, which is removed.
    pub folder: PathBuf,
    /// Where the hosts are.
    pub network: NetworkKind,
}

/// A moment of the demonstration.
#[derive(Clone, Debug)]
pub struct DemoMoment {
    /// When, in nanoseconds of the run's clock.
    pub at: u64,
    /// What happens.
    pub part: &'static str,
    /// The copies of the hosts; `None`: the node does not answer.
    pub copies: Vec<Option<CopyView>>,
    /// Procedures since the moment before.
    pub procedures: Vec<ReleasedProcedure>,
}

/// Something that was done, or happened.
#[derive(Clone, Debug)]
pub struct DemoEvent {
    pub at: u64,
    pub text: String,
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct DemoResult {
    /// When it began.
    pub begin: u64,
    pub events: Vec<DemoEvent>,
    pub procedures: Vec<ReleasedProcedure>,
    /// The names of the old and the new owner.
    pub owners: [String; 2],
    /// From the last released procedure of the old owner's host to the first of the new one's.
    pub gap_us: u64,
    /// Contexts that were compared with what was released.
    pub contexts: u64,
    /// Records of each copy that were compared.
    pub records: usize,
    /// What the nodes logged, by host.
    pub node_events: Vec<(String, Vec<String>)>,
    pub seconds: f64,
}

struct Demo<'d> {
    options: &'d DemoOptions,
    starter: &'d ChildCommand,
    cluster: LocalCluster,
    signalling: [Option<ChildProcess>; HOSTS],
    lines: AppendedLines,
    result: DemoResult,
    observe: &'d mut dyn FnMut(&DemoMoment),
}

/// Runs it, and calls `observe` twenty times a second.
pub fn run(
    options: &DemoOptions,
    starter: &ChildCommand,
    observe: &mut dyn FnMut(&DemoMoment),
) -> Result<DemoResult, String> {
    let begin = Instant::now();
    create_folder(&options.folder)?;
    let cluster = LocalCluster::start(ClusterOptions {
        program: options.program.clone(),
        folder: options.folder.join("cluster"),
        lease_ms: options.lease_ms,
        region_bytes_max: REGION_BYTES_MAX,
        network: options.network,
        two_copies: None,
        keeps_folder: false,
    })?;
    let mut demo = Demo {
        options,
        starter,
        cluster,
        signalling: [const { None }; HOSTS],
        lines: AppendedLines::default(),
        result: DemoResult { begin: now_ns(), ..DemoResult::default() },
        observe,
    };
    let done = demo.all();
    let mut result = std::mem::take(&mut demo.result);
    drop(demo);
    let _ = std::fs::remove_dir_all(&options.folder);
    done?;
    result.seconds = begin.elapsed().as_secs_f64();
    Ok(result)
}

impl Demo<'_> {
    fn all(&mut self) -> Result<(), String> {
        let (owner, _) = self.cluster.wait_all_full()?;
        create_logged(&self.session(owner)?, CONTEXTS, Kind::Blocks, JOIN_MAX)?;
        let name = |host| self.cluster.name(host).to_owned();
        let old = name(owner);
        for host in 0..HOSTS {
            self.start_signalling(host)?;
        }
        self.say(format!("signalling runs on all hosts, {old} owns the partition"));
        self.watch("all hosts run", BEFORE)?;
        if self.cluster.has_links() {
            self.cluster.cut(owner)?;
            self.say(format!("{old} is cut off"));
        } else {
            // Without links of their own, a stopped node is what comes closest.
            self.cluster.stop_node(owner)?;
            self.say(format!("the node of {old} is stopped"));
        }
        self.watch("the owner is cut off", CUT)?;
        self.cluster.kill_node(owner);
        if let Some(process) = self.signalling.get_mut(owner) {
            drop(process.take());
        }
        self.say(format!("everything on {old} is killed"));
        self.watch("the owner is killed", KILLED)?;
        if self.cluster.has_links() {
            self.cluster.connect(owner)?;
        }
        self.cluster.start_node(owner)?;
        self.say(format!("{old} returns"));
        self.until_all_count()?;
        self.start_signalling(owner)?;
        self.say(format!("{old} has joined: all copies count"));
        self.watch("all hosts run again", RETURNED)?;
        self.verify(owner)
    }

    fn say(&mut self, text: String) {
        self.result.events.push(DemoEvent { at: now_ns(), text });
    }

    fn session(&self, host: usize) -> Result<Session, String> {
        open_session(&self.cluster.region(host))
    }

    fn start_signalling(&mut self, host: usize) -> Result<(), String> {
        let region = self.cluster.region(host).to_string_lossy().into_owned();
        let role = ChildRole {
            role: "cluster-signalling",
            number: host as u64,
            seed: now_ns(),
            more: &region,
            has_pipes: true,
            ..ChildRole::default()
        };
        let process = self.starter.start(&self.options.folder, &role)?;
        if let Some(slot) = self.signalling.get_mut(host) {
            *slot = Some(process);
        }
        Ok(())
    }

    fn sample(&mut self, part: &'static str) -> Result<(), String> {
        self.cluster.check_running()?;
        self.signalling.iter_mut().flatten().try_for_each(ChildProcess::check_running)?;
        let mut procedures = Vec::new();
        for host in 0..HOSTS {
            procedures.extend(released(&mut self.lines, &self.options.folder, host)?);
        }
        let copies = (0..HOSTS).map(|host| {
            // A node that is stopped would hold up the view.
            let is_asked = self.cluster.has_links() || !part.contains("cut off");
            is_asked.then(|| self.cluster.copy(host)).flatten()
        });
        let copies = copies.collect();
        self.result.procedures.extend(procedures.iter().copied());
        (self.observe)(&DemoMoment { at: now_ns(), part, copies, procedures });
        Ok(())
    }

    fn watch(&mut self, part: &'static str, duration: Duration) -> Result<(), String> {
        let begin = Instant::now();
        while begin.elapsed() < duration {
            self.sample(part)?;
            std::thread::sleep(SAMPLE_EVERY);
        }
        Ok(())
    }

    fn until_all_count(&mut self) -> Result<(), String> {
        let begin = Instant::now();
        while self.cluster.owner().is_none_or(|(_, copy)| copy.full.len() < HOSTS) {
            if begin.elapsed() > JOIN_MAX {
                return Err(format!("not within {} s: all copies count", JOIN_MAX.as_secs()));
            }
            self.sample("the old owner joins")?;
            std::thread::sleep(SAMPLE_EVERY);
        }
        Ok(())
    }

    /// Ends the processes, and compares everything.
    fn verify(&mut self, old: usize) -> Result<(), String> {
        for process in &mut self.signalling {
            if let Some(mut process) = process.take() {
                drop(process.process.stdin.take());
                process.wait_for_success()?;
            }
        }
        self.sample("everything is compared")?;
        self.result.procedures.sort_unstable_by_key(|one| one.replicated);
        let (owner, _) = self.cluster.wait_all_full()?;
        let name = |host| self.cluster.name(host).to_owned();
        self.result.owners = [name(old), name(owner)];
        self.result.gap_us = gap_us(&self.result.procedures, old);
        self.result.contexts = signalling::check(&self.session(owner)?, &self.result.procedures)?;
        let regions: Vec<_> = (0..HOSTS).map(|host| self.cluster.region(host)).collect();
        let (waited, digests) = digest::wait_equal(&regions, JOIN_MAX);
        waited?;
        self.result.records = digests.first().map_or(0, digest::CopyDigest::len);
        let events = |host| (self.cluster.name(host).to_owned(), self.cluster.events(host));
        self.result.node_events = (0..HOSTS).map(events).collect();
        Ok(())
    }
}

/// From the last procedure of a host, before another one began, to the first one of that.
fn gap_us(procedures: &[ReleasedProcedure], old: usize) -> u64 {
    let first = procedures.iter().find(|one| one.host != old);
    let Some(first) = first else { return 0 };
    let last = procedures.iter().rfind(|one| one.host == old && one.replicated < first.replicated);
    last.map_or(0, |last| (first.replicated - last.replicated) / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_between_the_last_of_the_old_and_the_first_of_the_new_owner() {
        let one = |host, ms: u64| ReleasedProcedure {
            host,
            ue: 1,
            count: 1,
            committed: 0,
            replicated: ms * 1_000_000,
        };
        assert_eq!(gap_us(&[one(0, 1), one(0, 5), one(2, 405), one(0, 900)], 0), 400_000);
        assert_eq!(gap_us(&[one(0, 1)], 0), 0);
    }
}
