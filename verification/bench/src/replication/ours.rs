//! An unlogged region, and the owner's region of a cluster of three nodes, to which this process is
//! attached.

use std::path::PathBuf;
use std::time::Duration;

use nearstate_local_cluster::{ClusterOptions, HOSTS, LocalCluster, NetworkKind, wait_until};
use nearstate_model::{Error, Result};
use nearstate_store::{
    BlockChange, CreateOptions, Kind, Namespace, ReceiptState, Region, Schema, Session,
};

use super::{OUTSTANDING, RECORDS, ReplicatedCase, ReplicatedTarget, failed, key, value};
use crate::reaper::own_program;

/// The size of the regions: the records twice, and the log's budget.
const REGION_BYTES_MAX: u64 = 512 << 20;

/// The longest wait for a follower. What takes longer is a failure of the run.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Blocks of a UE's record, of which an update writes two.
const BLOCKS: [&str; 6] = ["identity", "security", "location", "bearers", "timers", "session"];
const BLOCK_BYTES: usize = 170;

/// The namespaces of a region.
struct Tables {
    session: Session,
    values: Namespace,
    contexts: Namespace,
}

impl Tables {
    fn open(region: &Region) -> Result<Self> {
        let session = region.session()?;
        let open =
            |name: &str, kind| session.namespace(name, &Schema { kind, ..Schema::default() });
        let (values, contexts) =
            (open("bench-values", Kind::Value)?, open("bench-ue", Kind::Blocks)?);
        Ok(Self { session, values, contexts })
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

    /// Waits until a follower has all commits of this session.
    fn wait(&self) -> Result<()> {
        match self.session.wait_replicated(self.session.receipt(), WAIT_MAX)? {
            ReceiptState::Replicated => Ok(()),
            state @ (ReceiptState::Pending | ReceiptState::Lost) => {
                Err(failed(format!("a commit is {state:?} after {WAIT_MAX:?}")))
            }
        }
    }
}

/// A region without a log.
pub(super) struct LocalRegion {
    tables: Tables,
    folder: PathBuf,
}

impl LocalRegion {
    pub(super) fn start(folder: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&folder).map_err(failed)?;
        let options = CreateOptions { bytes_max: REGION_BYTES_MAX, ..CreateOptions::default() };
        let region = Region::create(&folder.join("region"), &options)?;
        let tables = Tables::open(&region)?;
        tables.fill()?;
        Ok(Self { tables, folder })
    }
}

impl Drop for LocalRegion {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
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
            ReplicatedCase::PutAndWait | ReplicatedCase::Outstanding => Ok(false),
        }
    }
}

/// The owner of a cluster.
pub(super) struct Cluster {
    tables: Tables,
    cluster: LocalCluster,
}

impl Cluster {
    pub(super) fn start(folder: PathBuf) -> Result<Self> {
        let mut cluster = LocalCluster::start(ClusterOptions {
            program: own_program()?,
            folder,
            lease_ms: 3000,
            region_bytes_max: REGION_BYTES_MAX,
            network: NetworkKind::Loopback,
            two_copies: None,
            keeps_folder: false,
        })
        .map_err(failed)?;
        let (owner, _) = cluster.wait_all_full().map_err(failed)?;
        let tables = Tables::open(&Region::attach(&cluster.region(owner))?)?;
        for namespace in [tables.values, tables.contexts] {
            wait_until("the namespaces are logged", WAIT_MAX, || {
                tables.session.is_logged(namespace).map_err(|error| error.to_string())
            })
            .map_err(failed)?;
        }
        tables.fill()?;
        tables.wait()?;
        Ok(Self { tables, cluster })
    }
}

impl ReplicatedTarget for Cluster {
    fn name(&self) -> &'static str {
        "cluster"
    }

    fn durability(&self) -> &'static str {
        "two of three hosts, in memory: survives one host, with everything that it depended on"
    }

    fn processes(&self) -> Vec<u32> {
        (0..HOSTS).filter_map(|host| self.cluster.node_id(host)).collect()
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
        }
        Ok(true)
    }
}
