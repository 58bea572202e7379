//! What the engine keeps in etcd, and the requests and replies of its JSON gateway about it.
//!
//! ```text
//! nearstate/CLUSTER/created      the hosts that take part, as JSON; written once
//! nearstate/CLUSTER/creation     the call that created the cluster, by a random number
//! nearstate/CLUSTER/settings     the settings on which decisions rest, as JSON; written once: by
//!                                the first host that finds none, if an earlier version created it
//! nearstate/CLUSTER/head         the index of the last command
//! nearstate/CLUSTER/log/INDEX    a command; INDEX in 16 hexadecimal digits, so keys are in order
//! nearstate/CLUSTER/snapshot     8 bytes of index, and the state after that command
//! nearstate/CLUSTER/halted       why nothing is decided: a host has found that commands are lost
//! ```
//!
//! A command is appended by one transaction that compares `head`, so each index is given once.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::limits::{ENTRIES_KEPT, ENTRIES_READ_MAX};

/// The names of the keys of a cluster.
#[derive(Clone, Debug)]
pub(super) struct EtcdKeys {
    prefix: String,
}

/// What one read of etcd says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredCommands {
    /// The hosts, if the cluster was created.
    pub(super) created: Option<BTreeSet<u64>>,
    /// The index of the last command.
    pub(super) head: u64,
    /// Index and state of the snapshot, and its revision.
    pub(super) snapshot: Option<(u64, Vec<u8>)>,
    pub(super) snapshot_revision: u64,
    /// Commands from the index on that was asked for, in their order.
    pub(super) commands: Vec<StoredCommand>,
    /// The command at the index that this host has noted, if etcd still keeps it.
    pub(super) noted: Option<StoredCommand>,
    /// Why nothing is decided any more.
    pub(super) halted: Option<String>,
    /// The number of the term of etcd.
    pub(super) term: u64,
    /// The settings with which the cluster was created. An earlier version has stored none: then
    /// those of the first host of a later one.
    pub(super) settings: Option<Vec<(String, String)>>,
    /// The call that created the cluster.
    pub(super) creation: Option<u64>,
}

/// A command in etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct StoredCommand {
    pub(super) index: u64,
    pub(super) bytes: Vec<u8>,
    /// Etcd's revision at which it was written.
    pub(super) revision: u64,
}

fn text(bytes: &[u8]) -> Value {
    Value::String(BASE64.encode(bytes))
}

fn put(key: &str, value: &[u8]) -> Value {
    json!({ "request_put": { "key": text(key.as_bytes()), "value": text(value) } })
}

/// The comparison that holds as long as there is no such key.
fn is_absent(key: &str) -> Value {
    json!({
        "target": "VERSION", "result": "EQUAL", "key": text(key.as_bytes()), "version": "0",
    })
}

fn get(key: &str) -> Value {
    json!({ "request_range": { "key": text(key.as_bytes()) } })
}

impl EtcdKeys {
    pub(super) fn new(cluster: &str) -> Self {
        Self { prefix: format!("nearstate/{cluster}/") }
    }

    fn created(&self) -> String {
        format!("{}created", self.prefix)
    }

    fn creation(&self) -> String {
        format!("{}creation", self.prefix)
    }

    fn settings(&self) -> String {
        format!("{}settings", self.prefix)
    }

    fn head(&self) -> String {
        format!("{}head", self.prefix)
    }

    fn snapshot(&self) -> String {
        format!("{}snapshot", self.prefix)
    }

    pub(super) fn halted(&self) -> String {
        format!("{}halted", self.prefix)
    }

    fn command(&self, index: u64) -> String {
        format!("{}log/{index:016x}", self.prefix)
    }

    /// The end of the range of commands: `0` follows `/`.
    fn commands_end(&self) -> String {
        format!("{}log0", self.prefix)
    }

    /// Reads everything from a command on, of which a part of the commands is returned, and the
    /// command at the index that this host has noted.
    pub(super) fn read(&self, from: u64, noted: u64) -> Value {
        let commands = json!({ "request_range": {
            "key": text(self.command(from).as_bytes()),
            "range_end": text(self.commands_end().as_bytes()),
            "limit": ENTRIES_READ_MAX.to_string(),
        } });
        let (created, head) = (get(&self.created()), get(&self.head()));
        let (settings, creation) = (get(&self.settings()), get(&self.creation()));
        let (snapshot, halted) = (get(&self.snapshot()), get(&self.halted()));
        let noted = get(&self.command(noted));
        json!({ "success": [created, head, snapshot, commands, settings, creation, halted, noted] })
    }

    /// Creates the cluster, unless it exists.
    /// If it exists, the reply says which call created it.
    pub(super) fn create(
        &self,
        hosts: &BTreeSet<u64>,
        settings: &[(String, String)],
        call: u64,
    ) -> Value {
        let absent = is_absent(&self.created());
        let hosts = serde_json::to_vec(hosts).unwrap_or_default();
        let creation = put(&self.creation(), &call.to_le_bytes());
        let settings = serde_json::to_vec(settings).unwrap_or_default();
        let settings = put(&self.settings(), &settings);
        let created = put(&self.created(), &hosts);
        let resumed = json!({ "request_delete_range": { "key": text(self.halted().as_bytes()) } });
        json!({ "compare": [absent],
                "success": [created, put(&self.head(), b"0"), creation, settings, resumed],
                "failure": [get(&self.creation())] })
    }

    /// Stores the settings of a cluster that an earlier version has created without them, unless
    /// another host was faster.
    pub(super) fn store_settings(
        &self,
        settings: &[(String, String)],
        creation: Option<u64>,
    ) -> Value {
        let absent = is_absent(&self.settings());
        let exists = json!({
            "target": "VERSION", "result": "GREATER", "key": text(self.created().as_bytes()),
            "version": "0",
        });
        let compare: Vec<_> =
            [absent, exists].into_iter().chain(self.is_creation(creation)).collect();
        let settings = serde_json::to_vec(settings).unwrap_or_default();
        json!({ "compare": compare, "success": [put(&self.settings(), &settings)] })
    }

    /// Whether the reply to [`EtcdKeys::create`] says that this call created the cluster: now, or
    /// by an earlier attempt whose reply did not arrive.
    pub(super) fn has_created(reply: &Value, call: u64) -> bool {
        let creation = reply.pointer("/responses/0/response_range/kvs/0");
        let is_same = |kv| bytes(kv, "value").is_ok_and(|value| value == call.to_le_bytes());
        has_succeeded(reply) || creation.is_some_and(is_same)
    }

    /// The comparison that holds where this call created the cluster: nothing is written into an
    /// etcd that has another cluster of the same name.
    fn is_creation(&self, creation: Option<u64>) -> Option<Value> {
        let creation = creation?.to_le_bytes();
        Some(json!({
            "target": "VALUE", "result": "EQUAL", "key": text(self.creation().as_bytes()),
            "value": text(&creation),
        }))
    }

    /// Ends all decisions of the cluster that this call created, unless another host has.
    pub(super) fn halt(&self, reason: &str, creation: Option<u64>) -> Value {
        let compare: Vec<_> =
            std::iter::once(is_absent(&self.halted())).chain(self.is_creation(creation)).collect();
        json!({ "compare": compare, "success": [put(&self.halted(), reason.as_bytes())] })
    }

    /// Appends a command with this index, if the one before it is the last one, and decisions are
    /// made.
    pub(super) fn append(&self, index: u64, command: &[u8], creation: Option<u64>) -> Value {
        let before = index.saturating_sub(1).to_string();
        let is_last = json!({
            "target": "VALUE", "result": "EQUAL", "key": text(self.head().as_bytes()),
            "value": text(before.as_bytes()),
        });
        let head = put(&self.head(), index.to_string().as_bytes());
        let is_going_on = is_absent(&self.halted());
        let compare: Vec<_> =
            [is_last, is_going_on].into_iter().chain(self.is_creation(creation)).collect();
        json!({ "compare": compare, "success": [head, put(&self.command(index), command)] })
    }

    /// Replaces the snapshot with that revision, and deletes commands that no host needs.
    pub(super) fn compact(
        &self,
        (index, state): (u64, &[u8]),
        revision: u64,
        creation: Option<u64>,
    ) -> Value {
        let is_same = json!({
            "target": "MOD", "result": "EQUAL", "key": text(self.snapshot().as_bytes()),
            "mod_revision": revision.to_string(),
        });
        let value = [&index.to_le_bytes(), state].concat();
        let end = self.command(index.saturating_sub(ENTRIES_KEPT));
        let delete = json!({ "request_delete_range": {
            "key": text(self.command(0).as_bytes()), "range_end": text(end.as_bytes()),
        } });
        let compare: Vec<_> = std::iter::once(is_same).chain(self.is_creation(creation)).collect();
        json!({ "compare": compare, "success": [put(&self.snapshot(), &value), delete] })
    }

    /// Forgets the history of all keys before a revision.
    pub(super) fn compaction(revision: u64) -> Value {
        json!({ "revision": revision.to_string() })
    }

    /// Watches all keys of the cluster.
    pub(super) fn watch(&self) -> Value {
        let mut end = self.prefix.clone();
        // The character behind `/`.
        end.pop();
        end.push('0');
        json!({ "create_request": {
            "key": text(self.prefix.as_bytes()), "range_end": text(end.as_bytes()),
        } })
    }

    /// What the reply to [`EtcdKeys::read`] says.
    ///
    /// # Errors
    /// What is not as expected: another program has written the keys.
    pub(super) fn stored(reply: &Value) -> Result<StoredCommands, String> {
        let values = |at: usize| reply.pointer(&format!("/responses/{at}/response_range/kvs"));
        let one = |at: usize| values(at).and_then(|all| all.get(0));
        let mut stored = StoredCommands {
            term: number(reply.pointer("/header/raft_term")),
            ..StoredCommands::default()
        };
        if let Some(created) = one(0) {
            let hosts = serde_json::from_slice(&bytes(created, "value")?);
            stored.created = Some(hosts.map_err(|error| format!("the hosts: {error}"))?);
        }
        if let Some(head) = one(1) {
            let text = String::from_utf8(bytes(head, "value")?).unwrap_or_default();
            stored.head = text.parse().map_err(|_| format!("{text:?} is no index"))?;
        }
        if let Some(snapshot) = one(2) {
            let value = bytes(snapshot, "value")?;
            let (index, state) = value.split_first_chunk().ok_or("the snapshot is too short")?;
            stored.snapshot = Some((u64::from_le_bytes(*index), state.to_vec()));
            stored.snapshot_revision = number(snapshot.get("mod_revision"));
        }
        if let Some(settings) = one(4) {
            let lines = serde_json::from_slice(&bytes(settings, "value")?);
            stored.settings = Some(lines.map_err(|error| format!("the settings: {error}"))?);
        }
        if let Some(creation) = one(5) {
            let value = bytes(creation, "value")?;
            let number = value.as_slice().try_into().map_err(|_| "the creation is no number")?;
            stored.creation = Some(u64::from_le_bytes(number));
        }
        if let Some(halted) = one(6) {
            stored.halted = Some(String::from_utf8_lossy(&bytes(halted, "value")?).into_owned());
        }
        let commands = values(3).and_then(Value::as_array).into_iter().flatten();
        stored.commands = commands.map(StoredCommand::of).collect::<Result<_, _>>()?;
        stored.noted = one(7).map(StoredCommand::of).transpose()?;
        Ok(stored)
    }
}

impl StoredCommand {
    /// The command in a key and its value.
    fn of(command: &Value) -> Result<Self, String> {
        let key = String::from_utf8(bytes(command, "key")?).unwrap_or_default();
        let index = key.rsplit('/').next().unwrap_or_default();
        let index = u64::from_str_radix(index, 16).map_err(|_| format!("the key {key:?}"))?;
        let revision = number(command.get("mod_revision"));
        Ok(Self { index, bytes: bytes(command, "value")?, revision })
    }
}

/// The number of the etcd that replies, which all its members share.
pub(super) fn cluster_id(reply: &Value) -> Option<&str> {
    reply.pointer("/header/cluster_id").and_then(Value::as_str)
}

/// True if the comparisons of a transaction held.
pub(super) fn has_succeeded(reply: &Value) -> bool {
    reply.get("succeeded").and_then(Value::as_bool).unwrap_or(false)
}

/// A number, which the gateway writes as text and leaves out if it is 0.
fn number(value: Option<&Value>) -> u64 {
    value.and_then(Value::as_str).and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// The bytes of a field, which the gateway leaves out if there are none.
fn bytes(of: &Value, name: &str) -> Result<Vec<u8>, String> {
    let text = of.get(name).and_then(Value::as_str).unwrap_or_default();
    BASE64.decode(text).map_err(|error| format!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &str, value: &[u8]) -> Value {
        json!({ "key": text(key.as_bytes()), "value": text(value), "mod_revision": "7" })
    }

    fn range(kvs: &[Value]) -> Value {
        json!({ "response_range": { "kvs": kvs } })
    }

    #[test]
    fn a_reply_is_read_or_refused() {
        let snapshot = [&5_u64.to_le_bytes()[..], b"state"].concat();
        let reply = json!({ "header": { "raft_term": "3" }, "responses": [
            range(&[kv("nearstate/east/created", b"[1,2]")]),
            range(&[kv("nearstate/east/head", b"6")]),
            range(&[kv("nearstate/east/snapshot", &snapshot)]),
            range(&[kv("nearstate/east/log/0000000000000006", b"go")]),
            range(&[kv("nearstate/east/settings", br#"[["cluster.copies","3"]]"#)]),
            range(&[kv("nearstate/east/creation", &9_u64.to_le_bytes())]),
            range(&[kv("nearstate/east/halted", b"lost")]),
            range(&[kv("nearstate/east/log/0000000000000004", b"no")]),
        ] });
        let stored = EtcdKeys::stored(&reply).unwrap();
        let wanted = StoredCommands {
            created: Some([1, 2].into()),
            head: 6,
            snapshot: Some((5, b"state".to_vec())),
            snapshot_revision: 7,
            commands: vec![StoredCommand { index: 6, bytes: b"go".to_vec(), revision: 7 }],
            noted: Some(StoredCommand { index: 4, bytes: b"no".to_vec(), revision: 7 }),
            halted: Some("lost".to_owned()),
            term: 3,
            settings: Some(vec![("cluster.copies".to_owned(), "3".to_owned())]),
            creation: Some(9),
        };
        assert_eq!(stored, wanted);
        assert_eq!(EtcdKeys::stored(&json!({})).unwrap(), StoredCommands::default());
        for (at, bad) in [
            (0, kv("nearstate/east/created", b"x")),
            (1, kv("nearstate/east/head", b"many")),
            (2, kv("nearstate/east/snapshot", b"short")),
            (3, kv("nearstate/east/log/last", b"go")),
            (3, json!({ "key": "!", "value": "" })),
            (4, kv("nearstate/east/settings", b"[1]")),
            (5, kv("nearstate/east/creation", b"short")),
            (7, kv("nearstate/east/log/last", b"no")),
        ] {
            let mut reply = reply.clone();
            reply["responses"][at] = range(&[bad]);
            assert!(EtcdKeys::stored(&reply).is_err(), "{reply}");
        }
    }

    #[test]
    fn a_call_knows_what_an_attempt_without_an_answer_created() {
        let exists = |creation: u64| {
            json!({ "responses": [
                range(&[kv("nearstate/east/creation", &creation.to_le_bytes())]),
            ] })
        };
        assert!(EtcdKeys::has_created(&json!({ "succeeded": true }), 7));
        assert!(EtcdKeys::has_created(&exists(7), 7));
        assert!(!EtcdKeys::has_created(&exists(8), 7));
        assert!(!EtcdKeys::has_created(&json!({ "responses": [range(&[])] }), 7));
    }

    #[test]
    fn nothing_is_written_where_another_call_created_the_cluster() {
        let keys = EtcdKeys::new("east");
        let named = text(&9_u64.to_le_bytes());
        for (body, has_creation) in [
            (keys.append(7, b"go", Some(9)), true),
            (keys.compact((7, b"state"), 3, Some(9)), true),
            // An earlier version has stored none.
            (keys.append(7, b"go", None), false),
        ] {
            let compare = body["compare"].as_array().unwrap();
            let is_it = |one: &Value| one["value"] == named && one["result"] == "EQUAL";
            assert_eq!(compare.iter().any(is_it), has_creation, "{body}");
        }
    }

    #[test]
    fn keys_of_commands_are_in_the_order_of_their_indexes() {
        let keys = EtcdKeys::new("east");
        let names: Vec<_> = [0, 9, 10, 255, 256, u64::MAX].map(|index| keys.command(index)).into();
        assert!(names.is_sorted() && names.iter().all(|name| *name < keys.commands_end()));
    }
}
