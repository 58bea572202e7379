//! The run: rounds of one fault each, with clients and writers, until enough fail-overs happened.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nearstate_local_cluster::{ClusterOptions, HOSTS, LocalCluster, NetworkKind, wait_until};
use nearstate_store::{Error, Kind, Namespace, OwnerLease, ReceiptState, Session};

use super::acknowledged::AcknowledgedNumbers;
use super::client::{ClientRecord, ReplyTime, RoundClient, RoundReplies};
use super::digest;
use super::fault::ClusterFault;
use super::shared_files::{
    HISTORY, LOAD, create_logged, history_file, history_key, number_in, round_file, seen_file,
};
use super::totals::FailoverTotals;
use super::writer::value_of;
use crate::clock::now_ns;
use crate::error_context::ErrorContext as _;
use crate::histories::checker::{CheckerVerdict, HistoryChecker};
use crate::histories::history::{History, HistoryOp};
use crate::histories::model::HistoryModel;
use crate::region_access::{create_folder, open_session};
use crate::rng::{Rng, seeded};
use crate::spawn::{ChildCommand, ChildProcess, ChildRole};

/// The size of the regions.
const REGION_BYTES_MAX: u64 = 64 << 20;

/// RESP clients of a round. Their numbers are above those of hosts.
const CLIENTS: u32 = 3;
const FIRST_CLIENT: u32 = 100;

/// The longest wait for a reply, for a writer that is to pause, and for equal copies, on a busy
/// machine. What takes longer is a violation.
const REPLY_MAX: Duration = Duration::from_secs(120);
const PAUSE_MAX: Duration = Duration::from_secs(120);
const EQUAL_MAX: Duration = Duration::from_secs(120);

/// Replies before a fault, and the longest time until it, so that it meets any moment.
const REPLIES_BEFORE: usize = 20;
const FAULT_AFTER_MS_MAX: u64 = 200;

/// How long clients go on after the first reply that follows a fault.
const GOES_ON: Duration = Duration::from_millis(60);

/// How long a fault lasts that does not move the owner.
const FAULT_LASTS: Duration = Duration::from_millis(300);

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct FailoverOptions {
    /// Fail-overs after which the run ends.
    pub failovers: u64,
    /// The lease of the cluster in milliseconds.
    pub lease_ms: u32,
    /// The program of the nodes.
    pub program: PathBuf,
    /// A folder of its own, in memory. It is removed after a run without violations.
    pub folder: PathBuf,
    /// Where the hosts are.
    pub network: NetworkKind,
    /// Seed of all random choices.
    pub seed: u64,
}

struct FailoverRun<'r> {
    options: &'r FailoverOptions,
    starter: &'r ChildCommand,
    cluster: LocalCluster,
    writers: [Option<ChildProcess>; HOSTS],
    /// Writers started so far.
    processes: u64,
    checker: HistoryChecker,
    acknowledged: AcknowledgedNumbers,
    round: u64,
    rng: Rng,
    totals: FailoverTotals,
}

/// Runs, and calls `tick` after every round.
pub fn run(
    options: &FailoverOptions,
    starter: &ChildCommand,
    tick: &mut dyn FnMut(&FailoverTotals),
) -> Result<FailoverTotals, String> {
    let begin = Instant::now();
    create_folder(&options.folder)?;
    let checker = HistoryChecker::start()?;
    let cluster = LocalCluster::start(ClusterOptions {
        program: options.program.clone(),
        folder: options.folder.join("cluster"),
        lease_ms: options.lease_ms,
        region_bytes_max: REGION_BYTES_MAX,
        network: options.network,
        two_copies: None,
        keeps_folder: true,
    })?;
    let (seed, lease_ms) = (options.seed, options.lease_ms);
    let mut run = FailoverRun {
        options,
        starter,
        cluster,
        writers: [const { None }; HOSTS],
        processes: 0,
        checker,
        acknowledged: AcknowledgedNumbers::default(),
        round: 0,
        rng: seeded(&[seed, 11 << 32]),
        totals: FailoverTotals { seed, lease_ms, ..FailoverTotals::default() },
    };
    let done = run.all(tick);
    run.totals.seconds = begin.elapsed().as_secs_f64();
    let FailoverRun { cluster, writers, totals, round, .. } = run;
    drop((writers, cluster));
    done.map_err(|error| {
        format!("{error}\n(round {round} of seed {seed}; files: {})", options.folder.display())
    })?;
    let folder = &options.folder;
    std::fs::remove_dir_all(folder).context(folder.display())?;
    Ok(totals)
}

/// From the last reply of the owner to the first one of another host, in microseconds. If the owner
/// stayed: the longest time without a reply after the fault.
fn gap_us(replies: &[ReplyTime], owner: usize, fault_at: u64, has_moved: bool) -> u64 {
    if has_moved {
        let first = replies.iter().find(|reply| reply.host != owner && reply.at > fault_at);
        let last = replies.iter().rfind(|reply| reply.host == owner);
        return match (last, first) {
            (Some(last), Some(first)) => first.at.saturating_sub(last.at) / 1000,
            _ => 0,
        };
    }
    let pairs = replies.iter().zip(replies.iter().skip(1));
    let after = pairs.filter(|(_, next)| next.at > fault_at);
    after.map(|(one, next)| (next.at - one.at) / 1000).max().unwrap_or(0)
}

impl FailoverRun<'_> {
    fn all(&mut self, tick: &mut dyn FnMut(&FailoverTotals)) -> Result<(), String> {
        self.create_namespaces()?;
        while self.totals.failovers < self.options.failovers {
            self.round()?;
            tick(&self.totals);
        }
        Ok(())
    }

    fn create_namespaces(&mut self) -> Result<(), String> {
        let (owner, _) = self.cluster.wait_all_full()?;
        let session = self.session(owner)?;
        for name in [HISTORY, LOAD] {
            create_logged(&session, name, Kind::Value, PAUSE_MAX)?;
        }
        Ok(())
    }

    fn session(&self, host: usize) -> Result<Session, String> {
        open_session(&self.cluster.region(host))
    }

    fn start_writers(&mut self) -> Result<(), String> {
        for host in 0..HOSTS {
            let more = self.cluster.region(host).to_string_lossy().into_owned();
            let Some(writer) = self.writers.get_mut(host).filter(|writer| writer.is_none()) else {
                continue;
            };
            self.processes += 1;
            // It says itself that it pauses.
            let number = u16::try_from(host).unwrap_or(u16::MAX);
            let seen = seen_file(&self.options.folder, number);
            std::fs::write(&seen, self.round.to_string()).map_err(|error| error.to_string())?;
            let role = ChildRole {
                role: "cluster-writer",
                number: host as u64,
                seed: self.options.seed,
                round: self.processes,
                more: &more,
                has_pipes: true,
                ..ChildRole::default()
            };
            *writer = Some(self.starter.start(&self.options.folder, &role)?);
        }
        Ok(())
    }

    fn set_round(&self, round: u64) -> Result<(), String> {
        // Writers never read a part of it.
        let file = round_file(&self.options.folder);
        let part = file.with_extension("part");
        std::fs::write(&part, round.to_string())
            .and_then(|()| std::fs::rename(&part, &file))
            .context(file.display())
    }

    fn round(&mut self) -> Result<(), String> {
        self.round += 1;
        let fault = ClusterFault::draw(&mut self.rng, self.round, self.cluster.has_links());
        let context = |error: String| format!("{}: {error}", fault.name());
        let (owner, view) = self.cluster.wait_all_full()?;
        self.set_round(self.round)?;
        self.start_writers()?;
        let (records, replies, fault_at) = self.play(fault, owner).map_err(context)?;
        self.heal(fault, owner).map_err(context)?;
        let (next_owner, next_view) = self.cluster.wait_all_full().map_err(context)?;
        self.pause_writers().map_err(context)?;
        let has_moved = next_view != view;
        if !has_moved && fault.moves_the_owner() {
            return Err(context("the owner stayed".to_owned()));
        }
        let session = self.session(next_owner)?;
        self.check_acknowledged(&session).map_err(context)?;
        self.check_copies().map_err(context)?;
        self.check_history(&session, records).map_err(context)?;
        let us = gap_us(&replies, owner, fault_at, has_moved && next_owner != owner);
        self.totals.count(fault, has_moved, us);
        self.totals.requests_replicated += replies.len() as u64;
        Ok(())
    }

    /// Lets clients run while the fault happens. Returns what they did, and when it happened.
    fn play(
        &mut self,
        fault: ClusterFault,
        owner: usize,
    ) -> Result<(Vec<ClientRecord>, Vec<ReplyTime>, u64), String> {
        let addresses: Vec<_> = (0..HOSTS).map(|host| self.cluster.clients(host)).collect();
        let (is_over, replies) = (AtomicBool::new(false), RoundReplies::default());
        let round = self.round;
        let seeds: Vec<u64> = (0..CLIENTS).map(|_| self.rng.u64(..)).collect();
        let (records, fault_at) = std::thread::scope(|scope| {
            let (addresses, is_over, replies) = (&addresses, &is_over, &replies);
            let clients: Vec<_> = (FIRST_CLIENT..)
                .zip(seeds)
                .map(|(number, seed)| {
                    let rng = seeded(&[seed]);
                    let client = RoundClient {
                        number,
                        round,
                        addresses,
                        host: owner,
                        rng,
                        is_over,
                        replies,
                    };
                    scope.spawn(move || client.run())
                })
                .collect();
            let fault_at = self.inject(fault, owner, replies);
            is_over.store(true, Ordering::Release);
            let records = clients
                .into_iter()
                .map(|client| client.join().map_err(|_| "a client has panicked".to_owned()));
            let records = records.collect::<Result<Vec<_>, _>>();
            fault_at.and_then(|at| Ok((records?, at)))
        })?;
        Ok((records, replies.sorted(), fault_at))
    }

    /// Waits until clients are served, makes something fail, and waits until they are served again.
    fn inject(
        &mut self,
        fault: ClusterFault,
        owner: usize,
        replies: &RoundReplies,
    ) -> Result<u64, String> {
        wait_until("clients are served before the fault", REPLY_MAX, || {
            self.cluster.check_running()?;
            Ok(replies.count() >= REPLIES_BEFORE)
        })?;
        std::thread::sleep(Duration::from_millis(self.rng.u64(..FAULT_AFTER_MS_MAX)));
        let fault_at = now_ns();
        let served_from = self.make_fail(fault, owner)?.unwrap_or(fault_at);
        wait_until("clients are served after the fault", REPLY_MAX, || {
            let is_next = |reply: &ReplyTime| {
                reply.at > served_from && (reply.host != owner || !fault.moves_the_owner())
            };
            Ok(replies.any(is_next))
        })?;
        std::thread::sleep(GOES_ON);
        Ok(fault_at)
    }

    fn drop_writer(&mut self, host: usize) {
        if let Some(writer) = self.writers.get_mut(host) {
            drop(writer.take());
        }
    }

    /// True if a writer has ended by SIGKILL.
    fn is_writer_killed(&mut self, host: usize) -> Result<bool, String> {
        let Some(writer) = self.writers.get_mut(host).and_then(Option::as_mut) else {
            return Ok(false);
        };
        let ended = writer.process.try_wait().context("wait")?;
        let signal = ended.and_then(|status| status.signal());
        Ok(signal == Some(nix::sys::signal::Signal::SIGKILL as i32))
    }

    fn signal_writer(&self, host: usize, signal: nix::sys::signal::Signal) -> Result<(), String> {
        let Some(writer) = self.writers.get(host).and_then(Option::as_ref) else { return Ok(()) };
        let id = i32::try_from(writer.process.id()).map_err(|error| error.to_string())?;
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), signal).context(signal)
    }

    /// Makes something fail. Returns when clients are to be served again, if that is later.
    fn make_fail(&mut self, fault: ClusterFault, owner: usize) -> Result<Option<u64>, String> {
        let member = (owner + 1) % HOSTS;
        match fault {
            ClusterFault::HostLost => self.lose_host(owner)?,
            ClusterFault::MemberLost => {
                self.lose_host(member)?;
                std::thread::sleep(FAULT_LASTS);
                return Ok(Some(now_ns()));
            }
            ClusterFault::NodeKilled => self.cluster.kill_node(owner),
            ClusterFault::NodeRestarted => {
                self.cluster.kill_node(owner);
                self.cluster.start_node(owner)?;
            }
            ClusterFault::NodeStopped => {
                self.cluster.stop_node(owner)?;
                let ms = self.rng.u64(u64::from(self.options.lease_ms) * 5 / 4..1800);
                std::thread::sleep(Duration::from_millis(ms));
                self.cluster.resume_node(owner)?;
                return Ok(Some(now_ns()));
            }
            ClusterFault::OwnerMute => self.set_ways(owner, true, false)?,
            ClusterFault::OwnerDeaf => self.set_ways(owner, false, false)?,
            ClusterFault::DiskFullThenKilled => {
                self.cluster.fill_disk(owner)?;
                std::thread::sleep(FAULT_LASTS);
                self.cluster.kill_node(owner);
            }
            ClusterFault::MemberDiskFull => {
                self.cluster.fill_disk(member)?;
                std::thread::sleep(FAULT_LASTS);
                return Ok(Some(now_ns()));
            }
            ClusterFault::WriterKilled => self.drop_writer(owner),
            ClusterFault::WriterStopped => {
                self.signal_writer(owner, nix::sys::signal::Signal::SIGSTOP)?;
                self.cluster.kill_node(owner);
            }
        }
        Ok(None)
    }

    fn lose_host(&mut self, host: usize) -> Result<(), String> {
        if self.cluster.has_links() {
            self.cluster.cut(host)?;
        }
        self.cluster.kill_node(host);
        self.drop_writer(host);
        Ok(())
    }

    /// Opens or cuts the ways from the owner to the members, or those to the owner.
    fn set_ways(&self, owner: usize, is_from: bool, is_open: bool) -> Result<(), String> {
        for member in (0..HOSTS).filter(|host| *host != owner) {
            let (from, to) = if is_from { (owner, member) } else { (member, owner) };
            if is_open {
                self.cluster.open_way(from, to)?;
            } else {
                self.cluster.cut_way(from, to)?;
            }
        }
        Ok(())
    }

    /// Ends a fault.
    fn heal(&mut self, fault: ClusterFault, owner: usize) -> Result<(), String> {
        let member = (owner + 1) % HOSTS;
        match fault {
            ClusterFault::HostLost => self.return_host(owner)?,
            ClusterFault::MemberLost => self.return_host(member)?,
            ClusterFault::NodeKilled => self.cluster.start_node(owner)?,
            ClusterFault::WriterStopped => {
                self.cluster.start_node(owner)?;
                self.cluster.wait_all_full()?;
                if self.is_writer_killed(owner)? {
                    // It slept in a commit, and the region had to change its role: NS-3019.
                    self.drop_writer(owner);
                } else {
                    self.signal_writer(owner, nix::sys::signal::Signal::SIGCONT)?;
                }
            }
            ClusterFault::OwnerMute => self.set_ways(owner, true, true)?,
            ClusterFault::OwnerDeaf => self.set_ways(owner, false, true)?,
            ClusterFault::DiskFullThenKilled => {
                self.cluster.free_disk(owner)?;
                self.cluster.start_node(owner)?;
            }
            ClusterFault::MemberDiskFull => self.cluster.free_disk(member)?,
            ClusterFault::NodeRestarted
            | ClusterFault::NodeStopped
            | ClusterFault::WriterKilled => {}
        }
        self.start_writers()
    }

    fn return_host(&mut self, host: usize) -> Result<(), String> {
        if self.cluster.has_links() {
            self.cluster.connect(host)?;
        }
        self.cluster.start_node(host)
    }

    fn pause_writers(&mut self) -> Result<(), String> {
        self.set_round(0)?;
        for host in 0..HOSTS {
            let host_number = u16::try_from(host).unwrap_or(u16::MAX);
            let seen = seen_file(&self.options.folder, host_number);
            wait_until("the writers pause", PAUSE_MAX, || {
                if let Some(writer) = self.writers.get_mut(host).and_then(Option::as_mut) {
                    writer.check_running()?;
                }
                Ok(number_in(&seen) == 0)
            })?;
        }
        Ok(())
    }

    fn namespace(session: &Session, name: &str) -> Result<Namespace, String> {
        let found = session.known_namespace(name).map_err(|error| error.to_string())?;
        found.ok_or_else(|| format!("LOST: the namespace {name}"))
    }

    fn check_acknowledged(&mut self, session: &Session) -> Result<(), String> {
        let load = Self::namespace(session, LOAD)?;
        for host in 0..HOSTS {
            let host = u16::try_from(host).unwrap_or(u16::MAX);
            self.acknowledged.read(&self.options.folder, host)?;
            self.totals.records_compared += self.acknowledged.check(session, load, host)?;
        }
        self.totals.transactions_replicated = self.acknowledged.count;
        Ok(())
    }

    /// All copies have the same records, with the same versions.
    fn check_copies(&mut self) -> Result<(), String> {
        let regions: Vec<_> = (0..HOSTS).map(|host| self.cluster.region(host)).collect();
        let (waited, found) = digest::wait_equal(&regions, EQUAL_MAX);
        self.totals.copies_compared += HOSTS as u64;
        let [one, rest @ ..] = found.as_slice() else { return waited };
        let differences: Vec<_> =
            rest.iter().map(|other| digest::differences(one, other)).collect();
        waited.map_err(|error| {
            let copies: Vec<_> = (0..HOSTS).map(|host| self.cluster.copy(host)).collect();
            format!("DIVERGENT: {error}: {differences:#?}, {copies:#?}")
        })
    }

    fn check_history(
        &mut self,
        session: &Session,
        records: Vec<ClientRecord>,
    ) -> Result<(), String> {
        let (model, round) = (HistoryModel::Registers, self.round);
        let start = vec![None; model.keys() as usize];
        let name = format!("{}-{round}", self.options.seed);
        let mut history = History::new(name.clone(), model, &start);
        for host in 0..HOSTS {
            let number = u16::try_from(host).unwrap_or(u16::MAX);
            let file = history_file(&self.options.folder, number, round);
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            history.take(u32::from(number), &text, &[])?;
            let _ = std::fs::remove_file(&file);
        }
        history.ops.extend(records.into_iter().flat_map(|record| record.ops));
        history.ops.push(self.read_end(session)?);
        history.resolve_unknown();
        self.totals.operations += history.ops.len() as u64;
        let page = self.options.folder.join(format!("{name}.html"));
        match self.checker.ask(&history, &page)? {
            CheckerVerdict::Legal => self.totals.histories_checked += 1,
            CheckerVerdict::Undecided => self.totals.histories_undecided += 1,
            CheckerVerdict::Illegal => {
                let file = self.options.folder.join(format!("{name}.json"));
                let text = history.json(0, "").to_string();
                std::fs::write(&file, text).map_err(|error| error.to_string())?;
                let (file, page) = (file.display(), page.display());
                return Err(format!("not strictly serializable: {file} and {page}"));
            }
        }
        Ok(())
    }

    /// Reads all registers of the round as one more operation, and removes them.
    fn read_end(&self, session: &Session) -> Result<HistoryOp, String> {
        let failed = |error: Error| format!("the last read: {error}");
        let namespace = Self::namespace(session, HISTORY)?;
        let (call, round) = (now_ns(), self.round);
        let mut reads = Vec::new();
        for key in 0..HistoryModel::Registers.keys() {
            let view =
                session.get(namespace, history_key(round, key).as_bytes()).map_err(failed)?;
            reads.push((key, value_of(view.as_ref().map(nearstate_store::View::bytes))));
        }
        let receipt = session.receipt_of_all().map_err(failed)?;
        let state = session.wait_replicated(receipt, PAUSE_MAX).map_err(failed)?;
        let lease = session.owner_lease().map_err(failed)?;
        if state != ReceiptState::Replicated || !matches!(lease, OwnerLease::Held { .. }) {
            return Err(format!("the owner replicates nothing when all copies count: {lease:?}"));
        }
        let ret = now_ns();
        for key in 0..HistoryModel::Registers.keys() {
            session.delete(namespace, history_key(round, key).as_bytes()).map_err(failed)?;
        }
        Ok(HistoryOp { client: 99, call, ret, is_unknown: false, reads, writes: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_between_the_hosts_or_the_longest_pause_of_one() {
        let reply = |ms: u64, host| ReplyTime { at: ms * 1_000_000, host };
        let moved = [reply(1, 0), reply(5, 0), reply(7, 0), reply(307, 1), reply(308, 2)];
        assert_eq!(gap_us(&moved, 0, 6_000_000, true), 300_000);
        let stayed = [reply(1, 0), reply(50, 0), reply(60, 0), reply(90, 0), reply(95, 0)];
        assert_eq!(gap_us(&stayed, 0, 55_000_000, false), 30_000);
        assert_eq!(gap_us(&[], 0, 0, true), 0);
    }
}
