//! The servers of a run, all on one processor: the node, the bare service, Redis; and their
//! content.

use super::bare::{RepliedBody, Replies};
use super::cases::{
    BLOCK_BYTES, CASES, CaseKind, LARGE_BYTES, LoadCase, SPREAD, STORAGE, put_path, search_path,
};
use super::result::ServerKind;
use crate::peers;
use crate::reaper::{own_program, system};
use crate::targets::DatabaseSpec;
use crate::targets::started::{ServerProcess, free_port};
use nearstate_model::{Error, Result};
use nearstate_resp_client::{RespClient, RespReply, TimeoutSocket};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;

/// The tags of the two bodies of the PUTs that are measured: no search of a case finds them.
pub(super) const PUT_TAGS: [u64; 2] = [1_000_000, 2_000_000];

/// The content type of [`put_body`].
pub(super) const MIXED: &str = "Content-Type: multipart/mixed; boundary=b";

/// Records of a group: those that a search finds.
const GROUP: u64 = 10;

/// Requests that are sent before their responses are read.
const PIPELINE: u64 = 64;

/// Writes a record and keeps the index of its two tags.
const SCRIPT: &str = "local k=KEYS[1] local old=redis.call('HMGET',k,'supi','group') \
    if old[1] then redis.call('SREM','supi:'..old[1],k) \
    redis.call('SREM','group:'..old[2],k) redis.call('DEL',k) end \
    redis.call('HSET',k,unpack(ARGV)) redis.call('SADD','supi:'..ARGV[2],k) \
    return redis.call('SADD','group:'..ARGV[4],k)";

/// The tags of a record; the first two are indexed.
fn tags(index: u64) -> Vec<(String, String)> {
    let mut tags = vec![
        ("supi".to_owned(), format!("imsi-26201{index:010}")),
        ("group".to_owned(), format!("g{}", index / GROUP)),
    ];
    tags.extend((0..8).map(|tag| (format!("tag{tag}"), format!("value {index} {tag}"))));
    tags
}

/// The body of a PUT of a record.
pub(super) fn put_body(index: u64) -> String {
    record_body(index, BLOCK_BYTES)
}

fn record_body(index: u64, bytes: usize) -> String {
    let tags: Vec<String> =
        tags(index).iter().map(|(name, value)| format!("\"{name}\":[\"{value}\"]")).collect();
    format!(
        "--b\r\nContent-Id: meta\r\nContent-Type: application/json\r\n\r\n{{\"tags\":{{{}}}}}\r\n\
         --b\r\nContent-Id: context\r\nContent-Type: application/octet-stream\r\n\r\n{}\r\n\
         --b--\r\n",
        tags.join(","),
        "x".repeat(bytes)
    )
}

/// The servers.
#[derive(Debug)]
pub(super) struct Servers {
    node: ServerProcess,
    bare: ServerProcess,
    redis: ServerProcess,
    ports: [u16; 3],
    script: String,
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

fn node_words(folder: &Path, port: u16, bytes: u64) -> Vec<OsString> {
    let mut all = words(&["serve", "--cores", "1", "--log-level", "error", "--region"]);
    all.push(folder.join("region").into());
    all.extend(words(&["--max", &bytes.to_string(), "--listen", "", "--unix"]));
    all.push(folder.join("socket").into());
    all.extend(words(&["--nudsf", &format!("127.0.0.1:{port}")]));
    // The load is meant: refusals would count as failures.
    all.extend(words(&[
        "--nudsf-storages",
        "Realm01/Storage01=ue",
        "--nudsf-overload-delay",
        "1h",
    ]));
    all
}

fn is_open(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

impl Servers {
    /// Starts and fills the servers.
    pub(super) fn start(spec: &DatabaseSpec, records: u64, timers: u64) -> Result<Self> {
        let program = own_program()?;
        let ports = [free_port()?, free_port()?, free_port()?];
        let [node_port, bare_port, redis_port] = ports;
        let bytes = (records * 8 + timers * 4 + (256 << 10)) << 10;
        let mut node = ServerProcess::new("the node", spec, &program, |folder| {
            node_words(folder, node_port, bytes)
        })?;
        node.wait(|| is_open(node_port))?;
        let replies = fill_node(node_port, records)?;
        let file = node.folder().join("replies");
        let text = serde_json::to_string(&replies)
            .map_err(|e| backend_error!("encoding the replies: {e}"))?;
        std::fs::write(&file, text).map_err(|e| system("writing the replies", &e))?;
        let mut bare = ServerProcess::new("the bare service", spec, &program, |_| {
            let mut all = words(&["bench", "http-peer", &bare_port.to_string()]);
            all.push(file.into());
            all
        })?;
        bare.wait(|| is_open(bare_port))?;
        let redis_program = peers::installed("redis-server", "redis")?;
        let mut redis = ServerProcess::new("redis", spec, &redis_program, |folder| {
            let mut all = words(&["--bind", "127.0.0.1", "--port", &redis_port.to_string()]);
            all.extend(words(&["--save", "", "--appendonly", "no", "--dir"]));
            all.push(folder.into());
            all
        })?;
        redis.wait(|| is_open(redis_port))?;
        let script = fill_redis(redis_port)?;
        Ok(Self { node, bare, redis, ports, script })
    }

    const fn of(&self, kind: ServerKind) -> &ServerProcess {
        match kind {
            ServerKind::Node => &self.node,
            ServerKind::Bare => &self.bare,
            ServerKind::Redis => &self.redis,
        }
    }

    pub(super) const fn process(&self, kind: ServerKind) -> u32 {
        self.of(kind).process()
    }

    /// The folder of the node, with its region.
    pub(super) fn folder(&self) -> &Path {
        self.node.folder()
    }

    pub(super) const fn port(&self, kind: ServerKind) -> u16 {
        let [node, bare, redis] = self.ports;
        match kind {
            ServerKind::Node => node,
            ServerKind::Bare => bare,
            ServerKind::Redis => redis,
        }
    }

    pub(super) const fn redis_port(&self) -> u16 {
        self.port(ServerKind::Redis)
    }

    /// Bytes of the region that records and indexes use.
    pub(super) fn region_bytes(&self) -> Result<u64> {
        let mut node = connect(&format!("unix:{}", self.folder().join("socket").display()))?;
        let info = text_of(ask(&mut node, &["INFO", "memory"])?)?;
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        let used = used.and_then(|used| used.trim().parse().ok());
        used.ok_or_else(|| backend_error!("INFO memory: {info}"))
    }

    /// The command of Redis for a case.
    pub(super) fn redis_command(&self, case: &LoadCase) -> Vec<String> {
        if case.kind != CaseKind::PutRecord {
            return case.redis();
        }
        let mut command = case.redis();
        // A record that no other case reads, and tags that differ from those that it has.
        command.extend([&self.script, "1", "p__rand_int__"].map(str::to_owned));
        let replaced = ["supi", "imsi-__rand_int__", "group", "p__rand_int__"];
        command.extend(replaced.map(str::to_owned));
        command.extend(redis_fields(1, BLOCK_BYTES).split_off(replaced.len()));
        command
    }

    /// Compares what the cases read with what was written: the references of each search of the
    /// node, and the reply of Redis to the command of each case.
    pub(super) fn check_content(&self) -> Result<()> {
        let mut node = HttpClient::connect(self.port(ServerKind::Node))?;
        let filled = SPREAD * GROUP;
        for group in 0..SPREAD {
            let found = node.request("GET", &search_path(group), &[], "")?.body;
            let wanted = group * GROUP..(group + 1) * GROUP;
            if !wanted.clone().all(|index| found.contains(&format!("/records/r{index}\""))) {
                return Err(backend_error!(
                    "the search for group {group} of {filled} records: {found}"
                ));
            }
        }
        let mut redis = connect(&format!("127.0.0.1:{}", self.redis_port()))?;
        for case in &CASES {
            let command = self.redis_command(case);
            let words: Vec<&str> = command.iter().map(String::as_str).collect();
            let reply = ask(&mut redis, &words)?;
            if !is_expected(case.kind, &reply) {
                let reply = format!("{reply:?}");
                return Err(backend_error!("the case {} of redis: {reply:.200}", case.name));
            }
        }
        Ok(())
    }
}

/// Whether a reply of Redis is the one that the content of the server leads to.
fn is_expected(kind: CaseKind, reply: &RespReply) -> bool {
    let has_block = |bytes| matches!(reply, RespReply::Bulk(value) if value.len() == bytes);
    let sorted = |mut items: Vec<Vec<u8>>| {
        items.sort_unstable();
        items
    };
    let has_all = |all: Vec<String>| {
        let items = reply.items().iter().map(|item| item.clone().into_bulk().ok().flatten());
        let items = items.map(Option::unwrap_or_default);
        sorted(items.collect()) == sorted(all.into_iter().map(String::into_bytes).collect())
    };
    match kind {
        CaseKind::GetRecord => has_all(redis_fields(1, BLOCK_BYTES)),
        CaseKind::PutRecord => matches!(reply, RespReply::Integer(0 | 1)),
        CaseKind::GetBlock => has_block(BLOCK_BYTES),
        CaseKind::Search => has_all((GROUP..2 * GROUP).map(|at| format!("r{at}")).collect()),
        CaseKind::GetLarge => has_block(LARGE_BYTES),
    }
}

fn redis_fields(index: u64, bytes: usize) -> Vec<String> {
    let mut fields: Vec<String> =
        tags(index).into_iter().flat_map(|(name, value)| [name, value]).collect();
    fields.extend(["context".to_owned(), "x".repeat(bytes)]);
    fields
}

type RedisClient = RespClient<TimeoutSocket>;

fn connect(address: &str) -> Result<RedisClient> {
    crate::targets::wire::connect(address).map(RespClient::new)
}

/// Sends a command. An error reply is an error.
fn ask(client: &mut RedisClient, command: &[&str]) -> Result<RespReply> {
    let words: Vec<&[u8]> = command.iter().map(|word| word.as_bytes()).collect();
    let reply = client.request(&words).map_err(|e| system("sending a command of Redis", &e))?;
    if let RespReply::Error(text) = &reply {
        return Err(backend_error!("{}", String::from_utf8_lossy(text).into_owned()));
    }
    Ok(reply)
}

fn text_of(reply: RespReply) -> Result<String> {
    let bytes = reply.into_bulk().map_err(|detail| Error::Backend { detail })?;
    Ok(String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned())
}

/// Fills Redis. Returns the name of the script.
fn fill_redis(port: u16) -> Result<String> {
    let mut redis = connect(&format!("127.0.0.1:{port}"))?;
    let script = text_of(ask(&mut redis, &["SCRIPT", "LOAD", SCRIPT])?)?;
    for index in 0..SPREAD * GROUP {
        let (key, fields) = (format!("r{index}"), redis_fields(index, BLOCK_BYTES));
        let mut command = vec!["EVALSHA", &script, "1", &key];
        command.extend(fields.iter().map(String::as_str));
        ask(&mut redis, &command)?;
    }
    ask(&mut redis, &["HSET", "large", "context", &"x".repeat(LARGE_BYTES)])?;
    Ok(script)
}

/// Fills the node, and returns its responses, which the bare service repeats.
fn fill_node(port: u16, records: u64) -> Result<Replies> {
    let mut client = HttpClient::connect(port)?;
    let schema = "{\"schemaId\":\"s\",\"metaTags\":[{\"tagName\":\"supi\",\"keyType\":\
        \"SEARCH_KEY\"},{\"tagName\":\"group\",\"keyType\":\"SEARCH_KEY\"}]}";
    let path = format!("{STORAGE}/meta-schemas/s");
    client.request("PUT", &path, &["Content-Type: application/json"], schema)?;
    let records = records.max(SPREAD * GROUP);
    for first in (0..records).step_by(usize::try_from(PIPELINE).unwrap_or(1)) {
        let all = first..(first + PIPELINE).min(records);
        for index in all.clone() {
            let path = format!("{STORAGE}/records/r{index}");
            client.send("PUT", &path, &[MIXED], &put_body(index))?;
        }
        for _ in all {
            client.read()?;
        }
    }
    let large = format!("{STORAGE}/records/large");
    client.request("PUT", &large, &[MIXED], &record_body(0, LARGE_BYTES))?;
    let (put, record) = (put_path(0), format!("{STORAGE}/records/r1"));
    client.request("PUT", &put, &[MIXED], &put_body(0))?;
    Ok(Replies {
        // The response to a replacement.
        put: client.request("PUT", &put, &[MIXED], &put_body(PUT_TAGS[0]))?,
        record: client.request("GET", &record, &[], "")?,
        block: client.request("GET", &format!("{record}/blocks/context"), &[], "")?,
        search: client.request("GET", &search_path(0), &[], "")?,
        large: client.request("GET", &large, &[], "")?,
    })
}

/// A client of HTTP/1.1 that fills the node and looks at it.
#[derive(Debug)]
pub(super) struct HttpClient(BufReader<TcpStream>);

impl HttpClient {
    pub(super) fn connect(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port))
            .and_then(|stream| stream.set_nodelay(true).map(|()| stream));
        Ok(Self(BufReader::new(stream.map_err(|e| system("connecting to a server", &e))?)))
    }

    fn send(&mut self, method: &str, path: &str, headers: &[&str], body: &str) -> Result<()> {
        let mut text = format!("{method} {path} HTTP/1.1\r\nHost: udsf\r\n");
        for header in headers {
            let _ = write!(text, "{header}\r\n");
        }
        let _ = write!(text, "Content-Length: {}\r\n\r\n{body}", body.len());
        let sent = self.0.get_mut().write_all(text.as_bytes());
        sent.map_err(|e| system("sending a request", &e))
    }

    /// Reads a response: its headers other than that of its length, and its body.
    fn read(&mut self) -> Result<RepliedBody> {
        let failed = |e: std::io::Error| system("reading a response", &e);
        let mut reply = RepliedBody::default();
        let (mut line, mut length) = (String::new(), 0);
        self.0.read_line(&mut line).map_err(failed)?;
        reply.status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        loop {
            line.clear();
            self.0.read_line(&mut line).map_err(failed)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.parse().unwrap_or(0),
                "date" => {}
                name => reply.headers.push((name.to_owned(), value.to_owned())),
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).map_err(failed)?;
        reply.body = String::from_utf8_lossy(&body).into_owned();
        Ok(reply)
    }

    /// Sends a request that succeeds or finds nothing.
    pub(super) fn request(
        &mut self,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &str,
    ) -> Result<RepliedBody> {
        self.send(method, path, headers, body)?;
        let reply = self.read()?;
        if reply.status >= 300 && reply.status != 404 {
            return Err(backend_error!("{method} {path}: {} {}", reply.status, reply.body));
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_reply_of_redis_is_not_the_expected_one() {
        let bulks = |all: Vec<String>| {
            RespReply::Array(all.into_iter().map(|one| RespReply::Bulk(one.into())).collect())
        };
        let group: Vec<String> = (10..20).rev().map(|at| format!("r{at}")).collect();
        assert!(is_expected(CaseKind::Search, &bulks(group)));
        assert!(is_expected(CaseKind::GetRecord, &bulks(redis_fields(1, BLOCK_BYTES))));
        for kind in CASES.map(|case| case.kind) {
            assert!(!is_expected(kind, &bulks(Vec::new())), "{kind:?}");
        }
    }

    #[test]
    fn puts_change_tags_of_records_that_no_other_case_reads() {
        for case in &CASES {
            assert!(case.paths().iter().all(|path| !path.contains("/records/p")), "{}", case.name);
        }
        let groups: Vec<String> = PUT_TAGS.map(|index| tags(index)[1].1.clone()).to_vec();
        assert_ne!(groups[0], groups[1]);
        assert!((0..SPREAD).all(|group| !groups.contains(&format!("g{group}"))), "{groups:?}");
    }
}
