//! MongoDB's wire protocol over TCP: `mongod` where it is installed, and FerretDB, which speaks the
//! same protocol and keeps its documents in SQLite. They are two targets, and each refuses to talk
//! to the other's server.
//!
//! The client is ours because the drivers hide what is compared here: they have pools of
//! connections and threads of their own, and send one request at a time on each.

mod connection;
mod answers;
mod documents;
mod messages;

use self::connection::{Mongo, NO_TRANSACTIONS};
use super::started::{Started, first_line, free_port};
use super::wire::Socket;
use super::{Abilities, Database, Need, Target, Way};
use crate::access::{Connection, Schema};
use crate::keeper::system;
use crate::peers::{FerretDb, installed};
use nearstate_model::{Error, Result};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Ports that are tried: another program may take one between our look and the server's start.
const PORT_TRIES: usize = 3;

/// What a record takes in the server's cache beside its bytes at the most, and so does each of its
/// tags. The cache is made twice as large, so that no record has to be read from a file.
const RECORD_ROOM: u64 = 512;

/// What files of pages that are half full take for each record, in hundredths of its bytes, and
/// beside it and for each of its tags; as LMDB's were seen to. `mongod` makes room for its journal.
const FILE_PERCENT: u64 = 275;
const FILE_BESIDE: u64 = 64;
const JOURNAL_BYTES: u64 = 300 << 20;

/// The smallest cache that `mongod` takes is a quarter of a GiB.
const CACHE_GIB_MIN: u64 = 1;

/// Folders below a server's folder: `mongod` has two levels.
const FOLDERS_DEEP: usize = 4;

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Mongod,
    FerretDb,
}

/// A server of this protocol, as a target.
#[derive(Clone, Copy, Debug)]
pub struct MongoTarget(Program);

/// Both.
pub const ALL: [MongoTarget; 2] = [MongoTarget(Program::Mongod), MongoTarget(Program::FerretDb)];

impl MongoTarget {
    const fn is_ferretdb(self) -> bool {
        matches!(self.0, Program::FerretDb)
    }

    fn file(self) -> Result<PathBuf> {
        match self.0 {
            Program::Mongod => installed("mongod", "mongodb"),
            Program::FerretDb => FerretDb::here(),
        }
    }

    fn words(self, folder: &Path, port: u16, need: &Need) -> Vec<OsString> {
        match self.0 {
            Program::Mongod => mongod_words(folder, port, need),
            Program::FerretDb => {
                let address = format!("127.0.0.1:{port}");
                vec!["-listen".into(), address.into(), "-folder".into(), folder.into()]
            }
        }
    }

    fn start_at(self, need: &Need, port: u16) -> Result<Server> {
        let file = self.file()?;
        let mut started =
            Started::new(self.name(), need, &file, |folder| self.words(folder, port, need))?;
        let process = i64::from(started.process());
        let address = format!("127.0.0.1:{port}");
        let open = |schema: &Schema| Mongo::new(Socket::at(&address)?, schema, self.is_ferretdb());
        let nothing = Schema { tables: &[] };
        // At a port that is taken, somebody else would answer.
        started
            .wait(|| open(&nothing).and_then(|mut one| one.process()) == Ok(process))
            .map_err(|e| Error::Backend { detail: format!("{e} (port {port})") })?;
        open(&need.schema)?.create()?;
        if self.is_ferretdb() {
            index(&file, started.folder())?;
        }
        Ok(Server { started, address })
    }
}

impl Target for MongoTarget {
    fn name(&self) -> &'static str {
        match self.0 {
            Program::Mongod => "mongodb",
            Program::FerretDb => "ferretdb",
        }
    }

    fn version(&self) -> Result<String> {
        let line = first_line(&self.file()?, "--version")?;
        Ok(match self.0 {
            Program::Mongod => format!("mongod, {line}, standing alone"),
            Program::FerretDb => {
                format!("{line}, with an index of ours by key; MongoDB's protocol, but not MongoDB")
            }
        })
    }

    fn when_bound(&self, server_cpus: usize) -> Option<String> {
        Some(super::many_threads(server_cpus))
    }

    fn abilities(&self) -> Abilities {
        let told = |text| if self.is_ferretdb() { Way::Emulated(text) } else { Way::Native };
        Abilities {
            delta: told("the server reads the document and writes it whole, as two steps"),
            unique_tag: told("SQLite's unique index; a search by tag reads the whole table"),
            transaction: Way::Declined(NO_TRANSACTIONS),
            scan: told("the server reads and sorts the whole table for each scan"),
            pipeline: Way::Native,
            shared: Way::Native,
        }
    }

    fn folder_bytes(&self, need: &Need) -> u64 {
        let more = if self.is_ferretdb() { 0 } else { JOURNAL_BYTES };
        need.all_bytes(FILE_PERCENT, FILE_BESIDE).saturating_add(more)
    }

    fn start(&self, need: &Need) -> Result<Box<dyn Database>> {
        let mut last = Err(Error::Backend { detail: "no port was tried".to_owned() });
        for _ in 0..PORT_TRIES {
            last = self.start_at(need, free_port()?);
            if last.is_ok() {
                break;
            }
        }
        Ok(Box::new(last?))
    }

    fn connect(&self, address: &str, schema: &Schema) -> Result<Box<dyn Connection>> {
        Ok(Box::new(Mongo::new(Socket::at(address)?, schema, self.is_ferretdb())?))
    }
}

/// Adds the index that FerretDB's searches by key lack: our Go program says why.
fn index(file: &Path, folder: &Path) -> Result<()> {
    let output = Command::new(file)
        .args(["-index", "-folder"])
        .arg(folder)
        .output()
        .map_err(|e| system(&format!("starting {}", file.display()), &e))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Backend { detail: format!("ferretdb: {said}") })
}

fn mongod_words(folder: &Path, port: u16, need: &Need) -> Vec<OsString> {
    let tags = need.schema.tables.iter().map(|table| table.tags.len()).max().unwrap_or(0);
    let room = RECORD_ROOM.saturating_mul(1 + tags as u64);
    let bytes = need.records.saturating_mul(need.record_bytes.saturating_add(room));
    let gib = (bytes.saturating_mul(2) >> 30).saturating_add(CACHE_GIB_MIN).to_string();
    let port = port.to_string();
    let mut words: Vec<OsString> = vec!["--dbpath".into(), folder.into(), "--logpath".into()];
    words.push(folder.join("log").into());
    let more = ["--bind_ip", "127.0.0.1", "--port", &port, "--nounixsocket", "--quiet"];
    words.extend(more.map(OsString::from));
    words.extend(["--wiredTigerCacheSizeGB", &gib].map(OsString::from));
    // It would write figures of its own to a file every second.
    words.extend(["--setParameter", "diagnosticDataCollectionEnabled=false"].map(OsString::from));
    words
}

#[derive(Debug)]
struct Server {
    started: Started,
    address: String,
}

impl Database for Server {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn processes(&self) -> Vec<u32> {
        self.started.processes()
    }

    /// What it takes itself, and its files, which are in memory too.
    fn memory_bytes(&mut self) -> Option<u64> {
        let files = bytes_below(self.started.folder(), FOLDERS_DEEP);
        Some(self.started.own_memory_bytes().saturating_add(files))
    }

    fn alive(&mut self) -> Result<()> {
        self.started.alive()
    }
}

/// What the files of a folder take.
fn bytes_below(folder: &Path, deep: usize) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(seen) if seen.is_dir() && deep > 0 => bytes_below(&entry.path(), deep - 1),
        Ok(seen) => seen.blocks() * 512,
        Err(_) => 0,
    };
    entries.filter_map(std::result::Result::ok).map(bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stand_in_is_never_called_mongodb() {
        let [mongodb, ferretdb] = ALL;
        assert_eq!((mongodb.name(), ferretdb.name()), ("mongodb", "ferretdb"));
        if let Ok(version) = ferretdb.version() {
            assert!(version.starts_with("FerretDB v") && version.contains("not MongoDB"));
        }
        let ours = ferretdb.abilities();
        for way in [ours.delta, ours.unique_tag, ours.scan] {
            assert!(matches!(way, Way::Emulated(_)), "{way:?}");
        }
    }

    #[test]
    fn mongod_listens_on_the_loopback_alone_and_its_cache_holds_every_record() {
        let need = Need {
            schema: Schema { tables: &[] },
            records: 1 << 20,
            record_bytes: 1536,
            clients: 1,
            folder: PathBuf::new(),
            server_cpus: Vec::new(),
            stop: None,
            layout: None,
        };
        let words = mongod_words(Path::new("/f"), 4711, &need);
        let after = |word: &str| {
            let at = words.iter().position(|there| there == word)?;
            words.get(at + 1)?.to_str()
        };
        assert_eq!(after("--bind_ip"), Some("127.0.0.1"));
        assert_eq!(after("--port"), Some("4711"));
        assert_eq!((after("--dbpath"), after("--logpath")), (Some("/f"), Some("/f/log")));
        assert_eq!(after("--wiredTigerCacheSizeGB"), Some("5"));
    }

    #[test]
    fn the_files_of_a_folder_are_counted_with_those_below() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        for name in ["one", "a/two", "a/b/three"] {
            fs::write(folder.path().join(name), vec![7; 8192]).unwrap();
        }
        assert!(bytes_below(folder.path(), FOLDERS_DEEP) >= 3 * 8192);
        assert!(bytes_below(folder.path(), 0) < 3 * 8192);
        assert_eq!(bytes_below(Path::new("/no/such/folder"), 1), 0);
    }
}
