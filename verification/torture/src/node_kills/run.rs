//! The run: clients and embedded writers write, the node is killed and restarted, and all records
//! are read back and checked.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nearstate_store::{CreateOptions, Region, Schema, Session};

use super::client::PipelinedClient;
use super::embedded::{self, WriterProgress, increments_of, progress};
use super::injected_fault::InjectedFault;
use super::node_process::NodeProcess;
use super::readback;
use super::shared_counters::{Increments, SharedCounter};
use super::totals::{ClientCounts, NodeKillTotals};
use crate::error_context::ErrorContext as _;
use crate::region_access::{clean_up, create_folder};
use crate::rng::{Rng, percent, seeded};
use crate::spawn::{ChildCommand, ChildProcess, ChildRole};
use crate::verify::check_clean;

/// The size of the region.
const BYTES_MAX: u64 = 1 << 30;

/// The size of the values that fill the region.
const FILL_BYTES: usize = 16 << 10;

/// Operations that each embedded writer must complete while no node is running.
const WHILE_DOWN: u64 = 20;

/// Longer than any embedded writer waits for the processor on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// The longest time after which a starting node is killed.
const STARTING_US_MAX: u64 = 60_000;

/// Parameters of a run.
#[derive(Clone, Debug)]
pub struct NodeKillOptions {
    /// Nodes to kill.
    pub kills: u64,
    /// Kills between two offline checks, for which all processes stop.
    pub kills_per_check: u64,
    /// Clients at sockets, alternately over TCP and over the Unix socket.
    pub clients: u16,
    /// Processes that have attached the region and write.
    pub embedded: u16,
    /// Bytes that the region contains before the first start: the duration of a start must not
    /// depend on them.
    pub fill_bytes: u64,
    /// A folder of its own. It is created, and removed after a run without violations. Its path is
    /// short enough for a Unix socket in it.
    pub folder: PathBuf,
    /// Seed of all random choices.
    pub seed: u64,
    /// The longest time that a node serves.
    pub pause_us_max: u64,
    /// A fault to be detected.
    pub injected_fault: InjectedFault,
}

struct NodeKillRun<'r> {
    options: &'r NodeKillOptions,
    starter: &'r ChildCommand,
    rng: Rng,
    clients: Vec<PipelinedClient>,
    embedded: Vec<ChildProcess>,
    /// Increments of the shared counters by the clients at sockets, as last read.
    increments: Increments,
    starts: u64,
    totals: NodeKillTotals,
}

/// Runs, and calls `tick` after every kill.
pub fn run(
    options: &NodeKillOptions,
    starter: &ChildCommand,
    tick: &mut dyn FnMut(&NodeKillTotals),
) -> Result<NodeKillTotals, String> {
    let begin = Instant::now();
    let folder = &options.folder;
    create_folder(folder)?;
    let clients = 0..usize::from(options.clients);
    let mut run = NodeKillRun {
        options,
        starter,
        rng: seeded(&[options.seed, 6 << 32]),
        clients: clients
            .map(|n| PipelinedClient::new(n, options.seed, options.injected_fault))
            .collect(),
        embedded: Vec::new(),
        increments: Increments::default(),
        starts: 0,
        totals: NodeKillTotals { seed: options.seed, ..NodeKillTotals::default() },
    };
    let done = run.all(tick);
    run.embedded.clear();
    run.totals.seconds = begin.elapsed().as_secs_f64();
    clean_up(done, folder, |error| {
        let (kills, seed) = (run.totals.kills, options.seed);
        format!("{error}\n(after {kills} kills of seed {seed}; files: {})", folder.display())
    })?;
    Ok(run.totals)
}

impl NodeKillRun<'_> {
    fn all(&mut self, tick: &mut dyn FnMut(&NodeKillTotals)) -> Result<(), String> {
        self.create()?;
        for number in 0..self.options.embedded {
            embedded::begin(&self.options.folder, number)?;
        }
        let mut is_last = false;
        while !is_last {
            self.start_embedded()?;
            let until = self.options.kills.min(self.totals.kills + self.options.kills_per_check);
            let mut node = self.start_node()?;
            while self.totals.kills < until {
                node = self.kill_one(node)?;
                tick(&self.totals);
            }
            node.stop()?;
            self.stop_embedded()?;
            self.check()?;
            is_last = self.totals.kills >= self.options.kills;
        }
        Ok(())
    }

    fn create(&self) -> Result<(), String> {
        let context = |e| format!("create: {e}");
        let options = CreateOptions { bytes_max: BYTES_MAX, ..CreateOptions::default() };
        let path = self.options.folder.join("region");
        let region = Region::create(&path, &options).map_err(context)?;
        let session = region.session().map_err(context)?;
        let bulk = session.namespace("bulk", &Schema::default()).map_err(context)?;
        let value = vec![7; FILL_BYTES];
        for number in 0..self.options.fill_bytes / FILL_BYTES as u64 {
            session.put(bulk, number.to_string().as_bytes(), &value).map_err(context)?;
        }
        Ok(())
    }

    fn start_embedded(&mut self) -> Result<(), String> {
        let folder = &self.options.folder;
        for number in 0..self.options.embedded {
            let role = ChildRole {
                role: "served-embedded",
                number: number.into(),
                seed: self.rng.u64(..),
                has_pipes: true,
                ..ChildRole::default()
            };
            self.embedded.push(self.starter.start(folder, &role)?);
        }
        self.wait_for_embedded("before a node is started")?;
        Ok(())
    }

    fn stop_embedded(&mut self) -> Result<(), String> {
        for mut child in std::mem::take(&mut self.embedded) {
            // Its standard input ends.
            drop(child.process.stdin.take());
            child.wait_for_success()?;
        }
        Ok(())
    }

    fn progress(&self) -> Result<Vec<WriterProgress>, String> {
        let all = 0..self.options.embedded;
        all.map(|number| progress(&self.options.folder, number)).collect()
    }

    /// Waits until each embedded writer has completed more operations.
    fn wait_for_embedded(&mut self, when: &str) -> Result<u64, String> {
        let begin = Instant::now();
        let before = self.progress()?;
        loop {
            self.embedded.iter_mut().try_for_each(ChildProcess::check_running)?;
            let now = self.progress()?;
            let more = now.iter().zip(&before).map(|(now, before)| now.acked - before.acked);
            if more.clone().all(|more| more >= WHILE_DOWN) {
                return Ok(more.sum());
            }
            if begin.elapsed() > WAIT_MAX {
                return Err(format!("embedded writers make no progress {when}: {now:?}"));
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn spawn_node(&mut self) -> Result<NodeProcess, String> {
        self.starts += 1;
        NodeProcess::spawn(self.starter, &self.options.folder, self.starts)
    }

    fn start_node(&mut self) -> Result<NodeProcess, String> {
        let mut node = self.spawn_node()?;
        let took = node.wait_until_serving()?;
        self.totals.starts_us.push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        Ok(node)
    }

    /// Lets all processes write, kills the node, starts another, and checks its records.
    fn kill_one(&mut self, node: NodeProcess) -> Result<NodeProcess, String> {
        let pause = Duration::from_micros(self.rng.u64(..=self.options.pause_us_max));
        let mut connections = Vec::new();
        for number in 0..self.clients.len() {
            connections.push(node.client(number)?);
        }
        std::thread::scope(|scope| {
            let clients = self.clients.iter_mut().zip(connections);
            let clients: Vec<_> = clients
                .map(|(client, connection)| {
                    scope.spawn(move || client.run_until_closed(connection))
                })
                .collect();
            std::thread::sleep(pause);
            let killed = node.kill();
            for client in clients {
                client.join().map_err(|_| "a client has panicked")??;
            }
            killed
        })?;
        self.totals.kills += 1;
        self.totals.embedded_while_down += self.wait_for_embedded("while the node is down")?;
        if self.totals.kills < self.options.kills && percent(&mut self.rng, 10) {
            let starting = self.spawn_node()?;
            std::thread::sleep(Duration::from_micros(self.rng.u64(..STARTING_US_MAX)));
            starting.kill()?;
            self.totals.kills += 1;
            self.totals.kills_starting += 1;
        }
        let node = self.start_node()?;
        self.check_records(&node)?;
        Ok(node)
    }

    /// Reads all records back, over a socket and from the region, and checks them.
    fn check_records(&mut self, node: &NodeProcess) -> Result<(), String> {
        let folder = &self.options.folder;
        let session = readback::session(folder)?;
        let mut connection = node.client(self.rng.usize(..2))?;
        let (mut least, mut most) = (Increments::default(), Increments::default());
        for client in &mut self.clients {
            let namespace = client.namespace();
            let found = readback::by_socket(&mut connection, &namespace)?;
            let embedded = readback::by_session(&session, &namespace)?;
            if found != embedded {
                return Err(format!(
                    "{namespace}: over a socket {found:?}, out of the region {embedded:?}"
                ));
            }
            let bounds = client.resolve(found)?;
            least.merge(bounds.least);
            most.merge(bounds.most);
            self.totals.records_by_socket += client.records() as u64;
            self.totals.records_by_session += client.records() as u64;
        }
        for number in 0..self.options.embedded {
            let read = readback::check_by_socket(folder, number, &mut connection)?;
            self.totals.records_by_socket += read;
            let read = readback::check_by_session(folder, number, &session)?;
            self.totals.records_by_session += read;
        }
        for counter in SharedCounter::ALL {
            let now = self.increments_by_sockets(counter, &session)?;
            let before = self.increments.of(counter);
            let (from, until) = (before + least.of(counter), before + most.of(counter));
            if !(from..=until).contains(&now) {
                return Err(format!(
                    "{counter:?} was incremented {now} times at sockets; {from} were acknowledged \
                     or visible, {until} with all that was in flight"
                ));
            }
            let by_socket = readback::counter_by_socket(&mut connection, counter)?;
            let is_right = match counter {
                SharedCounter::Sockets => by_socket == now,
                SharedCounter::All => by_socket >= now,
            };
            if !is_right {
                return Err(format!(
                    "{counter:?} is {by_socket} over a socket, and {now} in the region"
                ));
            }
            self.set_increments(counter, now);
        }
        self.sum_up()
    }

    fn set_increments(&mut self, counter: SharedCounter, now: u64) {
        match counter {
            SharedCounter::Sockets => self.increments.sockets = now,
            SharedCounter::All => self.increments.all = now,
        }
    }

    /// Increments of a counter by the clients at sockets: its value without the increments of the
    /// embedded writers, read at a moment at which none of them is executing an operation.
    fn increments_by_sockets(
        &self,
        counter: SharedCounter,
        session: &Session,
    ) -> Result<u64, String> {
        if counter == SharedCounter::Sockets {
            return readback::counter(session, counter);
        }
        let begin = Instant::now();
        loop {
            let before = self.progress()?;
            let found = readback::counter(session, counter)?;
            let after = self.progress()?;
            if before == after && after.iter().all(|writer| writer.acked == writer.begun) {
                let embedded: u64 = after.iter().map(|writer| increments_of(writer.acked)).sum();
                return found.checked_sub(embedded).ok_or_else(|| {
                    format!(
                        "{counter:?} is {found}; embedded writers incremented it {embedded} times"
                    )
                });
            }
            if begin.elapsed() > WAIT_MAX {
                return Err("the embedded writers were never idle".to_owned());
            }
        }
    }

    fn sum_up(&mut self) -> Result<(), String> {
        let mut sum = ClientCounts::default();
        for client in &self.clients {
            sum.answered += client.counts.answered;
            sum.transactions += client.counts.transactions;
            sum.cut_short += client.counts.cut_short;
            sum.cut_short_done += client.counts.cut_short_done;
        }
        self.totals.requests = sum;
        self.totals.embedded = self.progress()?.iter().map(|writer| writer.acked).sum();
        Ok(())
    }

    fn check(&mut self) -> Result<(), String> {
        let path = self.options.folder.join("region");
        // Recovers dead sessions that no process has recovered yet.
        let region = Region::attach(&path).context("attach")?;
        region.inspect().context("inspect")?;
        drop(region);
        let checked = check_clean(&path)?;
        self.totals.checks += 1;
        self.totals.bytes_leaked += checked.bytes_leaked;
        self.totals.bytes_taken = checked.bytes_taken;
        Ok(())
    }
}
