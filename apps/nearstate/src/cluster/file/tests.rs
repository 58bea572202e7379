//! Cluster files with mistakes, and one without.

use super::*;

pub(crate) const GOOD: &str = r#"
[cluster]
name = "east"
copies = 3

[[host]]
id = 1
name = "a"
peer = "127.0.0.1:7001"
membership = "127.0.0.1:7101"
[[host]]
id = 2
name = "b"
peer = "127.0.0.1:7002"
membership = "127.0.0.1:7102"
clients = "127.0.0.2"
[[host]]
id = 3
name = "c"
peer = "127.0.0.1:7003"
membership = "127.0.0.1:7103"
clients = "127.0.0.3"

[[partition]]
id = 1
name = "amf"
group = ["a", "b", "c"]
port = 6379
"#;

#[test]
fn a_file_with_defaults_is_complete() {
    let file = ClusterFile::parse(GOOD).unwrap();
    assert_eq!(file.lease, Duration::from_millis(300));
    assert_eq!(file.voters(), BTreeSet::from([1, 2, 3]));
    let (host, partition) = (file.host("b").unwrap(), &file.partitions[0]);
    let region = file.region_file(host, partition);
    assert_eq!(region, Path::new("/dev/shm/nearstate-east-b-amf"));
    assert_eq!(file.directory(host), Path::new("/var/lib/nearstate/east-b"));
    assert!(file.host("d").unwrap_err().to_string().contains("it has a, b, c"));
}

/// A host with the name of another one.
const FOURTH: &str = "[[host]]\nid = 4\nname = \"a\"\npeer = \"127.0.0.1:7004\"\n\
                      membership = \"127.0.0.1:7104\"\n[[partition]]";

#[test]
fn namespaces_have_the_policy_of_the_first_list_that_matches() {
    let lists = "copies = 3\nnamespaces = [\"ue*\"]\nreplicated = [\"*session*\"]\n\
                 local = [\"cache*\"]";
    let file = ClusterFile::parse(&GOOD.replacen("copies = 3", lists, 1)).unwrap();
    for (name, policy) in [
        ("ue", ReplicationPolicy::Async),
        ("ue-sessions", ReplicationPolicy::Replicated),
        ("cache-of-sessions", ReplicationPolicy::Local),
        ("other", ReplicationPolicy::Local),
    ] {
        assert_eq!(file.namespaces.policy_for(name), policy, "{name}");
    }
    let default = ClusterFile::parse(GOOD).unwrap().namespaces;
    assert_eq!(default.policy_for("any"), ReplicationPolicy::Async);
}

#[test]
fn each_mistake_has_its_own_error() {
    let long = format!("copies = 3\nreplicated = [\"{}\"]", "x".repeat(950));
    for (from, to, error) in [
        ("\"a\", \"b\", \"c\"", "\"a\", \"b\", \"d\"", "names host \"d\", which is unknown"),
        ("id = 2", "id = 1", "two hosts have the number 1"),
        ("[[partition]]", FOURTH, "two hosts have the name \"a\""),
        ("copies = 3", "copies = 4", "4 copies are configured, but only 3 hosts"),
        ("copies = 3", "copies = 2", "has 3 hosts, but 2 copies are configured"),
        (", \"c\"]", "]", "has 2 hosts, but 3 copies are configured"),
        ("copies = 3", "copies = 3\nacknowledgements = 1", "at least 2"),
        ("copies = 3", "copies = 3\nlease = \"10ms\"", "outside 300 to 10000 ms"),
        ("copies = 3", "copies = 3\nelection = \"290ms\"", "does not end within a lease"),
        ("copies = 3", "copies = 3\nelection = \"1ms\"", "takes at least 50ms"),
        ("copies = 3", "copies = 3\ncopies = 3", "duplicate key `copies`"),
        ("copies = 3", "copies = 3\nengine = \"zoo\"", "unknown engine \"zoo\""),
        ("copies = 3", "copies = 3\nengine = \"etcd\"", "requires [etcd] with endpoints"),
        ("[[partition]]", "[etcd]\nendpoints = []\n[[partition]]", "cluster.engine is \"raft\""),
        ("copies = 3", "copies = 3\nregions = \"x\"", "is not an absolute path"),
        ("copies = 3", "copies = 3\nlocal = [\"\"]", "is no pattern of a namespace's name"),
        ("copies = 3", &long, "and a region has room for 936"),
        ("copies = 3", "copies = 3\nlaese = \"1s\"", "line 5: unknown field `laese`"),
        ("127.0.0.1:7102", "127.0.0.1:7001", "is the address of"),
        ("127.0.0.1:7102", "10.0.0.1:7102", "without certificates: add [tls]"),
        ("name = \"east\"", "name = \"\"", "of the cluster: expected 1 to 16"),
        ("name = \"amf\"", "name = \"a/b\"", "of a partition: expected letters"),
        ("port = 6379", "port = 99999", "line 28"),
        ("port = 6379", "port = 6379\ntls_port = 6379", "is the address of"),
        ("port = 6379", "port = 0", "a port is 0"),
        ("port = 6379", "port = 6379\nnudsf_port = 0", "a port is 0"),
        ("port = 6379", "port = 6379\nregion_max = \"many\"", "region_max"),
        ("port = 6379", "port = 6379\nregion_max = \"1KiB\"", "\"1KiB\" is outside"),
    ] {
        assert!(GOOD.contains(from), "{from}");
        let refused = ClusterFile::parse(&GOOD.replacen(from, to, 1)).unwrap_err();
        assert!(refused.contains(error), "{to}: {refused:?} does not say {error:?}");
    }
}

/// Two hosts with copies, a third one that votes, and a policy.
fn site(policy: &str) -> String {
    let cluster = format!("copies = 2\nwhen_copy_missing = \"{policy}\"");
    let text = GOOD.replacen("copies = 3", &cluster, 1).replacen(", \"c\"]", "]", 1);
    text.replacen("clients = \"127.0.0.3\"", "clients = \"127.0.0.3\"\nwitness = true", 1)
}

#[test]
fn a_witness_votes_and_one_copy_of_two_suffices_after_a_time() {
    use nearstate_cluster::CopyMissingPolicy;
    let file = ClusterFile::parse(&site("degrade after 10s")).unwrap();
    assert_eq!(file.voters(), BTreeSet::from([1, 2, 3]));
    assert!(file.host("c").unwrap().witness && !file.host("b").unwrap().witness);
    assert_eq!(file.config.copy_missing, CopyMissingPolicy::Degrade { after_ms: 10_000 });
    let stop = ClusterFile::parse(&site("stop")).unwrap();
    assert_eq!(stop.config.copy_missing, CopyMissingPolicy::Stop);
    assert_eq!(ClusterFile::parse(GOOD).unwrap().config.copy_missing, CopyMissingPolicy::Stop);
}

#[test]
fn the_clock_of_expiry_is_steady_or_that_of_the_host() {
    let with = |text: &str| {
        ClusterFile::parse(&GOOD.replacen("copies = 3", &format!("copies = 3\n{text}"), 1))
    };
    for (text, is_host_clock) in
        [("", false), ("expiry_clock = \"steady\"", false), ("expiry_clock = \"host\"", true)]
    {
        assert_eq!(with(text).unwrap().is_host_clock, is_host_clock, "{text}");
    }
    let refused = with("expiry_clock = \"ntp\"").unwrap_err();
    assert!(refused.contains("\"ntp\": expected \"steady\" or \"host\""), "{refused}");
}

#[test]
fn each_mistake_of_a_site_has_its_own_error() {
    let good = site("degrade after 10s");
    for (from, to, error) in [
        ("degrade after 10s", "wait", "\"wait\": expected \"stop\", or \"degrade after TIME\""),
        ("degrade after 10s", "degrade after soon", "cluster.when_copy_missing: "),
        ("degrade after 10s", "degrade after 500ms", "expected 600 (two leases) to"),
        ("\"b\"]", "\"c\"]", "is a witness, and belongs to the group of partition \"amf\""),
        ("witness = true", "witness = true\nvotes = false", "is a witness and does not vote"),
        ("witness = true", "votes = false", "two hosts vote: the loss of one stops"),
    ] {
        assert!(good.contains(from), "{from}");
        let refused = ClusterFile::parse(&good.replacen(from, to, 1)).unwrap_err();
        assert!(refused.contains(error), "{to}: {refused:?} does not say {error:?}");
    }
    let fourth = FOURTH.replace("name = \"a\"", "name = \"d\"\nvotes = false");
    let four = GOOD.replacen("[[partition]]", &fourth, 1).replacen("\"c\"]", "\"d\"]", 1);
    let refused = ClusterFile::parse(&four).unwrap_err();
    assert!(refused.contains("\"d\" does not vote, and belongs to the group"), "{refused}");
    let three =
        GOOD.replacen("copies = 3", "copies = 3\nwhen_copy_missing = \"degrade after 1s\"", 1);
    let refused = ClusterFile::parse(&three).unwrap_err();
    assert!(refused.contains("one copy of two can suffice, not one of 3"), "{refused}");
    let etcd = good.replacen("copies = 2", "copies = 2\nengine = \"etcd\"", 1)
        + "[etcd]\nendpoints = [\"http://127.0.0.1:2379\"]\n";
    let refused = ClusterFile::parse(&etcd).unwrap_err();
    assert!(refused.contains("and etcd orders the decisions"), "{refused}");
}

#[test]
fn an_address_that_is_not_valid_is_named_with_its_host_and_key() {
    for (from, to, wanted) in [
        (
            "peer = \"127.0.0.1:7002\"",
            "peer = \"amf:7002\"",
            "host \"b\", peer: \"amf:7002\" is not",
        ),
        (
            "membership = \"127.0.0.1:7103\"",
            "membership = \"::1\"",
            "host \"c\", membership: \"::1\"",
        ),
        (
            "clients = \"127.0.0.2\"",
            "clients = \"x\"",
            "host \"b\", clients: \"x\" is not an address",
        ),
    ] {
        let said = ClusterFile::parse(&GOOD.replace(from, to)).unwrap_err();
        assert!(said.starts_with(wanted), "{said}");
    }
}

/// What was decided names it, and the settings that hosts compare: so files can be changed one
/// after the other.
#[test]
fn a_host_that_was_removed_takes_part_in_nothing_and_changes_no_setting_that_hosts_share() {
    let before = ClusterFile::parse(GOOD).unwrap();
    // Another host may have its addresses.
    let fourth = "name = \"c\"\nremoved = true\npeer = \"127.0.0.1:7001\"";
    let text = GOOD.replacen("name = \"c\"\npeer = \"127.0.0.1:7003\"", fourth, 1);
    let file = ClusterFile::parse(&text).unwrap();
    assert_eq!(file.shared_settings(), before.shared_settings());
    assert_eq!(file.decided_settings(), before.decided_settings());
    assert_eq!((&file.config, file.voters()), (&before.config, before.voters()));
    let names = |hosts: &[FileHost]| hosts.iter().map(|host| host.name.clone()).collect::<Vec<_>>();
    assert_eq!(
        (names(&file.hosts), names(&file.removed)),
        (names(&before.hosts[..2]), names(&before.hosts[2..]))
    );
    assert_eq!(file.members().keys().copied().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(file.addresses().len(), 2);
    assert_eq!(file.host_name(HostId(3)), "c");
    let refused = file.host("c").unwrap_err().to_string();
    assert!(refused.contains("is removed in the cluster file"), "{refused}");
    // A new cluster has no history.
    before.check_begins().unwrap();
    let refused = file.check_begins().unwrap_err().to_string();
    assert!(refused.contains("out of its groups"), "{refused}");
}
