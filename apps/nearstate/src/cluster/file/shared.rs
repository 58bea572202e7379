//! The settings that all hosts must share (`docs/operate/cluster.md`, "The same file on all
//! hosts").

use nearstate_cluster::CopyMissingPolicy;
use nearstate_node::SharedSettings;

use super::ClusterFile;

impl ClusterFile {
    /// What all hosts share. A host with other ones is refused by the others.
    pub(crate) fn shared_settings(&self) -> SharedSettings {
        let mut lines = self.numbers();
        let policy = match self.config.copy_missing {
            CopyMissingPolicy::Stop => "stop".to_owned(),
            CopyMissingPolicy::Degrade { after_ms } => format!("degrade after {after_ms} ms"),
        };
        lines.push(named("cluster.lease", format!("{} ms", self.config.lease_ms)));
        lines.push(named("cluster.when_copy_missing", policy));
        let mut hosts: Vec<_> = self.all_hosts().collect();
        hosts.sort_by_key(|host| host.id);
        lines.extend(hosts.into_iter().map(|host| {
            let part = match (host.witness, host.votes) {
                (true, _) => "a witness",
                (false, true) => "votes",
                (false, false) => "does not vote",
            };
            named(&format!("host {}", host.id), format!("{}, {part}", host.name))
        }));
        lines.extend(self.groups(true));
        SharedSettings::new(lines)
    }

    /// What the decisions of the membership rest on: it never changes once the cluster is created.
    pub(crate) fn decided_settings(&self) -> SharedSettings {
        let mut lines = self.numbers();
        lines.extend(self.groups(false));
        SharedSettings::new(lines)
    }

    fn numbers(&self) -> Vec<(String, String)> {
        vec![
            named("cluster.engine", self.engine_name().to_owned()),
            named("cluster.copies", self.config.copies.to_string()),
            named("cluster.acknowledgements", self.config.acknowledgements.to_string()),
        ]
    }

    fn groups(&self, with_names: bool) -> Vec<(String, String)> {
        let mut partitions: Vec<_> = self.partitions.iter().collect();
        partitions.sort_by_key(|partition| partition.id);
        let group = |partition: &&super::FilePartition| {
            let hosts: Vec<String> = partition.group.iter().map(ToString::to_string).collect();
            let name = if with_names { format!("{}, ", partition.name) } else { String::new() };
            let value = format!("{name}group {}", hosts.join(" "));
            named(&format!("partition {}", partition.id), value)
        };
        partitions.iter().map(group).collect()
    }
}

fn named(name: &str, value: String) -> (String, String) {
    (name.to_owned(), value)
}

#[cfg(test)]
mod tests {
    use super::super::tests::GOOD;
    use super::*;

    fn parsed(from: &str, to: &str) -> ClusterFile {
        assert!(GOOD.contains(from), "{from}");
        ClusterFile::parse(&GOOD.replacen(from, to, 1)).unwrap()
    }

    #[test]
    fn each_setting_that_hosts_share_differs_by_its_name() {
        let own = ClusterFile::parse(GOOD).unwrap();
        for (from, to, name, is_decided) in [
            ("copies = 3", "copies = 3\nlease = \"1s\"", "cluster.lease is \"300 ms\" here", false),
            ("copies = 3", "copies = 3\nacknowledgements = 3", "cluster.acknowledgements", true),
            ("name = \"amf\"", "name = \"smf\"", "partition 1", false),
            ("[\"a\", \"b\", \"c\"]", "[\"b\", \"a\", \"c\"]", "partition 1", true),
            ("id = 3", "id = 4", "host 3", true),
        ] {
            let other = parsed(from, to);
            let shared = other.shared_settings();
            let difference = own.shared_settings().difference(shared.summary());
            assert!(difference.as_ref().is_some_and(|text| text.contains(name)), "{difference:?}");
            let decided = own.decided_settings() != other.decided_settings();
            assert_eq!(decided, is_decided, "{to}");
        }
        // Addresses, ports and sizes belong to each file.
        for (from, to) in [
            ("127.0.0.1:7001", "127.0.0.1:7009"),
            ("port = 6379", "port = 6380\nregion_max = \"2GiB\""),
            ("copies = 3", "copies = 3\nnamespaces = [\"ue*\"]\nelection = \"100ms\""),
        ] {
            assert_eq!(own.shared_settings(), parsed(from, to).shared_settings(), "{to}");
        }
    }

    #[test]
    fn a_text_of_shared_settings_is_as_the_page_says() {
        let file = ClusterFile::parse(GOOD).unwrap();
        let expected = "cluster.engine = raft\ncluster.copies = 3\ncluster.acknowledgements = 2\n\
                        cluster.lease = 300 ms\ncluster.when_copy_missing = stop\n\
                        host 1 = a, votes\nhost 2 = b, votes\nhost 3 = c, votes\n\
                        partition 1 = amf, group 1 2 3\n";
        assert_eq!(file.shared_settings().summary().text, expected);
    }
}
