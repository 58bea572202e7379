//! An unlogged region, and the owner's region of a cluster of three nodes, to which this process is
//! attached.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nearstate_local_cluster::{ClusterOptions, HOSTS, LocalCluster, NetworkKind, wait_until};
use nearstate_model::{Error, Result};
use nearstate_store::{
    BlockChange, CreateOptions, Kind, Metadata, Namespace, Receipt, ReceiptState, Region, Schema,
    Session, TagSchema,
};

use super::{
    BLOCK_BYTES, OUTSTANDING, RECORDS, ReplicatedCase, ReplicatedTarget, STEADY_STEP,
    STEADY_WRITES, TargetFolder, failed, key, value,
};
use crate::clock::monotonic_ns as now_ns;
use crate::reaper::own_program;

/// The size of the regions: the records twice, and the log's budget.
const REGION_BYTES_MAX: u64 = 512 << 20;

/// The longest wait for a follower. What takes longer is a failure of the run.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Blocks of a UE's record, of which an update writes two.
const BLOCKS: [&str; 6] = ["identity", "security", "location", "bearers", "timers", "session"];

/// The namespaces of a region.
struct Tables {
    session: Session,
    values: Namespace,
    contexts: Namespace,
    tagged: Namespace,
}

impl Tables {
    fn open(region: &Region) -> Result<Self> {
        let session = region.session()?;
        let open =
            |name: &str, kind| session.namespace(name, &Schema { kind, ..Schema::default() });
        let (values, contexts) =
            (open("bench-values", Kind::Value)?, open("bench-ue", Kind::Blocks)?);
        let tags = [("guti", true), ("ip", true), ("cell", false)].map(|(name, is_unique)| {
            TagSchema { name: name.to_owned(), is_unique, ..TagSchema::default() }
        });
        let schema = Schema { tags: tags.to_vec(), ..Schema::default() };
        let tagged = session.namespace("bench-tagged", &schema)?;
        Ok(Self { session, values, contexts, tagged })
    }

    fn fill(&self) -> Result<()> {
        let bytes = [7; BLOCK_BYTES];
        for number in 0..RECORDS {
            self.put(number)?;
            self.relieved(|| {
                let blocks = BLOCKS.map(|name| BlockChange { name, bytes: Some(&bytes) });
                self.session
                    .transact(|txn| txn.patch(self.contexts, key(number).as_bytes(), &blocks))
            })?;
        }
        Ok(())
    }

    /// Waits for the followers when the log is full, and writes again.
    fn relieved(&self, write: impl Fn() -> Result<()>) -> Result<()> {
        loop {
            match write() {
                Err(Error::Behind { .. }) => {
                    self.session.wait_replicated(self.session.receipt(), WAIT_MAX)?;
                }
                done => return done,
            }
        }
    }

    fn put(&self, number: u64) -> Result<()> {
        let (key, value) = (key(number), value(number));
        self.relieved(|| self.session.put(self.values, key.as_bytes(), &value).map(drop))
    }

    fn update(&self, number: u64) -> Result<()> {
        let key = key(number);
        let bytes = number.to_le_bytes().repeat(BLOCK_BYTES / 8);
        let blocks = ["location", "timers"].map(|name| BlockChange { name, bytes: Some(&bytes) });
        self.relieved(|| {
            self.session.transact(|txn| {
                let found = txn.get(self.contexts, key.as_bytes())?;
                if found.is_none_or(|view| view.block("identity").is_none()) {
                    return Err(failed(format!("{key} has no identity")));
                }
                txn.patch(self.contexts, key.as_bytes(), &blocks)
            })
        })
    }

    fn insert(&self, number: u64) -> Result<()> {
        let (key, value, cell) = (number.to_be_bytes(), value(number), number % 1000);
        let (guti, ip, cell) = (number.to_le_bytes(), (!number).to_le_bytes(), cell.to_le_bytes());
        let tags: &[(&str, &[u8])] = &[("guti", &guti), ("ip", &ip), ("cell", &cell)];
        let metadata = Metadata { tags, ..Metadata::default() };
        self.relieved(|| {
            self.session.transact(|txn| txn.put_with_metadata(self.tagged, &key, &value, metadata))
        })
    }

    fn read(&self, case: ReplicatedCase, number: u64) -> Result<Option<Vec<u8>>> {
        let key = key(number);
        let view = match case {
            ReplicatedCase::Update => self.session.get(self.contexts, key.as_bytes())?,
            ReplicatedCase::Insert => self.session.get(self.tagged, &number.to_be_bytes())?,
            ReplicatedCase::Put
            | ReplicatedCase::PutAndWait
            | ReplicatedCase::Outstanding
            | ReplicatedCase::Steady => self.session.get(self.values, key.as_bytes())?,
        };
        Ok(view.and_then(|view| match case {
            ReplicatedCase::Update => view.block("location").map(<[u8]>::to_vec),
            ReplicatedCase::Put
            | ReplicatedCase::PutAndWait
            | ReplicatedCase::Outstanding
            | ReplicatedCase::Steady
            | ReplicatedCase::Insert => Some(view.bytes().to_vec()),
        }))
    }

    fn clear(&self, inserted: Range<u64>) -> Result<()> {
        for number in inserted {
            let key = number.to_be_bytes();
            self.relieved(|| self.session.delete(self.tagged, &key).map(drop))?;
        }
        Ok(())
    }

    /// Waits until a follower has all commits of this session.
    fn wait(&self) -> Result<()> {
        match self.session.wait_replicated(self.session.receipt(), WAIT_MAX)? {
            ReceiptState::Replicated => Ok(()),
            state @ (ReceiptState::Pending | ReceiptState::Lost | ReceiptState::Unknown) => {
                Err(failed(format!("a commit is {state:?} after {WAIT_MAX:?}")))
            }
        }
    }
}

/// A region without a log.
pub(super) struct LocalRegion {
    tables: Tables,
    _folder: TargetFolder,
}

impl LocalRegion {
    pub(super) fn start(folder: PathBuf) -> Result<Self> {
        let folder = TargetFolder::create(folder)?;
        let options = CreateOptions { bytes_max: REGION_BYTES_MAX, ..CreateOptions::default() };
        let region = Region::create(&folder.0.join("region"), &options)?;
        let tables = Tables::open(&region)?;
        tables.fill()?;
        Ok(Self { tables, _folder: folder })
    }
}

impl ReplicatedTarget for LocalRegion {
    fn name(&self) -> &'static str {
        "region"
    }

    fn durability(&self) -> &'static str {
        "one host, in memory: survives every process, not the host (not waited for)"
    }

    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }

    fn step(&mut self, case: ReplicatedCase, number: u64) -> Result<bool> {
        match case {
            ReplicatedCase::Put => self.tables.put(number).map(|()| true),
            ReplicatedCase::Update => self.tables.update(number).map(|()| true),
            ReplicatedCase::Insert => self.tables.insert(number).map(|()| true),
            ReplicatedCase::PutAndWait | ReplicatedCase::Outstanding | ReplicatedCase::Steady => {
                Ok(false)
            }
        }
    }

    fn read(&mut self, case: ReplicatedCase, number: u64) -> Result<Option<Vec<u8>>> {
        self.tables.read(case, number)
    }

    fn clear(&mut self, inserted: Range<u64>) -> Result<()> {
        self.tables.clear(inserted)
    }
}

/// Receipts that wait for the thread that measures them. At one in a millisecond, a lag of seconds.
const SAMPLES_WAITING_MAX: usize = 4096;

/// Every such step of the steady rate a receipt is measured: one in a millisecond.
const SAMPLE_EVERY: u64 = 10;

/// A thread that measures the time from commits until a follower has them. Receipts become
/// replicated in their order, so one that waits behind another one is measured right.
struct LagSampler {
    receipts: Option<SyncSender<(Receipt, u64)>>,
    lags: Receiver<Result<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl LagSampler {
    fn start(region: &Region) -> Result<Self> {
        let session = region.session()?;
        let (receipts, committed) = sync_channel::<(Receipt, u64)>(SAMPLES_WAITING_MAX);
        let (measured, lags) = std::sync::mpsc::channel();
        let run = move || {
            for (receipt, at) in committed {
                let lag = match session.wait_replicated(receipt, WAIT_MAX) {
                    Ok(ReceiptState::Replicated) => Ok(now_ns() - at),
                    Ok(state) => Err(failed(format!("a commit is {state:?}"))),
                    Err(error) => Err(error),
                };
                if measured.send(lag).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().spawn(run).map_err(failed)?;
        Ok(Self { receipts: Some(receipts), lags, thread: Some(thread) })
    }

    fn add(&self, receipt: Receipt) -> Result<()> {
        let Some(receipts) = &self.receipts else { return Ok(()) };
        receipts.send((receipt, now_ns())).map_err(failed)
    }

    /// Everything that was measured.
    fn finish(mut self) -> Result<Vec<u64>> {
        self.receipts = None;
        let lags = self.lags.iter().collect();
        if let Some(thread) = self.thread.take() {
            thread.join().map_err(|_| failed("the thread that measures the lag has failed"))?;
        }
        lags
    }
}

/// The steady rate of a round.
struct SteadyRound {
    sampler: LagSampler,
    began: Instant,
    steps: u32,
}

/// The hosts of a cluster that have a copy. A write waits for one of them beside the owner.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ClusterSize {
    /// All three.
    Three,
    /// Two. The third one is a witness, as Redis with one replica and two Sentinels beside.
    Two,
}

/// The owner of a cluster.
pub(super) struct OwnCluster {
    copies: ClusterSize,
    tables: Tables,
    region: Region,
    owner: usize,
    steady: Option<SteadyRound>,
    nodes: LocalCluster,
}

impl OwnCluster {
    pub(super) fn start(folder: PathBuf, copies: ClusterSize) -> Result<Self> {
        let mut cluster = LocalCluster::start(ClusterOptions {
            program: own_program()?,
            folder,
            lease_ms: 3000,
            region_bytes_max: REGION_BYTES_MAX,
            network: NetworkKind::Loopback,
            two_copies: (copies == ClusterSize::Two).then_some("stop"),
            keeps_folder: false,
        })
        .map_err(failed)?;
        let (owner, _) = cluster.wait_all_full().map_err(failed)?;
        let region = Region::attach(&cluster.region(owner))?;
        let tables = Tables::open(&region)?;
        for namespace in [tables.values, tables.contexts, tables.tagged] {
            wait_until("the namespaces are logged", WAIT_MAX, || {
                tables.session.is_logged(namespace).map_err(|error| error.to_string())
            })
            .map_err(failed)?;
        }
        tables.fill()?;
        tables.wait()?;
        Ok(Self { copies, tables, region, owner, steady: None, nodes: cluster })
    }

    /// Some puts, once it is their time.
    fn steady_step(&mut self, number: u64) -> Result<()> {
        let steady = match &mut self.steady {
            Some(steady) => steady,
            none => none.insert(SteadyRound {
                sampler: LagSampler::start(&self.region)?,
                began: Instant::now(),
                steps: 0,
            }),
        };
        std::thread::sleep((STEADY_STEP * steady.steps).saturating_sub(steady.began.elapsed()));
        steady.steps += 1;
        (number..number + STEADY_WRITES).try_for_each(|number| self.tables.put(number))?;
        if u64::from(steady.steps).is_multiple_of(SAMPLE_EVERY) {
            steady.sampler.add(self.tables.session.receipt())?;
        }
        Ok(())
    }
}

impl ReplicatedTarget for OwnCluster {
    fn name(&self) -> &'static str {
        match self.copies {
            ClusterSize::Three => "cluster",
            ClusterSize::Two => "cluster-2",
        }
    }

    fn durability(&self) -> &'static str {
        match self.copies {
            ClusterSize::Three => {
                "two of three hosts, in memory: survives one host, with everything it depended on"
            }
            ClusterSize::Two => "both hosts that have a copy, in memory: survives one of them",
        }
    }

    fn processes(&self) -> Vec<u32> {
        (0..HOSTS).filter_map(|host| self.nodes.node_id(host)).collect()
    }

    fn followers(&self) -> Vec<u32> {
        let copies = match self.copies {
            ClusterSize::Three => HOSTS,
            ClusterSize::Two => HOSTS - 1,
        };
        let others = (0..copies).filter(|host| *host != self.owner);
        others.filter_map(|host| self.nodes.node_id(host)).collect()
    }

    fn wait_replicated(&mut self) -> Result<Vec<u64>> {
        let lags = self.steady.take().map_or_else(|| Ok(Vec::new()), |it| it.sampler.finish())?;
        self.tables.wait()?;
        Ok(lags)
    }

    fn read(&mut self, case: ReplicatedCase, number: u64) -> Result<Option<Vec<u8>>> {
        self.tables.read(case, number)
    }

    fn clear(&mut self, inserted: Range<u64>) -> Result<()> {
        self.tables.clear(inserted)?;
        self.tables.wait()
    }

    fn step(&mut self, case: ReplicatedCase, number: u64) -> Result<bool> {
        match case {
            ReplicatedCase::Put => self.tables.put(number)?,
            ReplicatedCase::Update => self.tables.update(number)?,
            ReplicatedCase::PutAndWait => {
                self.tables.put(number)?;
                self.tables.wait()?;
            }
            ReplicatedCase::Outstanding => {
                (number..number + OUTSTANDING).try_for_each(|number| self.tables.put(number))?;
                self.tables.wait()?;
            }
            ReplicatedCase::Insert => self.tables.insert(number)?,
            ReplicatedCase::Steady => self.steady_step(number)?,
        }
        Ok(true)
    }
}
