//! Each misconfiguration has its own error.

use crate::fixture::config;
use nearstate_cluster::{
    ClusterConfig, ConfigError, CopyMissingPolicy, HostConfig, HostId, Lease, PartitionId,
};

fn error(change: impl FnOnce(&mut ClusterConfig)) -> ConfigError {
    let mut config = config(3, 2);
    assert_eq!(config.validate(), Ok(()));
    change(&mut config);
    config.validate().unwrap_err()
}

#[test]
fn each_misconfiguration_has_its_own_error() {
    let partition = PartitionId(1);
    let cases = [
        (error(|c| c.hosts.clear()), ConfigError::NoHosts),
        (error(|c| c.partitions.clear()), ConfigError::NoPartitions),
        (error(|c| c.hosts[0].id = HostId(0)), ConfigError::HostIdZero("1".to_owned())),
        (error(|c| c.hosts[1].id = HostId(1)), ConfigError::DuplicateHostId(HostId(1))),
        (
            error(|c| c.hosts[1].name = "1".to_owned()),
            ConfigError::DuplicateHostName("1".to_owned()),
        ),
        (error(|c| c.hosts[1].name.clear()), ConfigError::InvalidName(String::new())),
        (error(|c| c.copies = 4), ConfigError::CopiesAboveHosts { copies: 4, hosts: 3 }),
        (
            error(|c| c.acknowledgements = 4),
            ConfigError::AcknowledgementsAboveCopies { acknowledgements: 4, copies: 3 },
        ),
        (error(|c| c.acknowledgements = 1), ConfigError::TooFewAcknowledgements(1)),
        (error(|c| c.lease_ms = 299), ConfigError::LeaseOutOfRange(299)),
        (error(|c| c.lease_ms = 10_001), ConfigError::LeaseOutOfRange(10_001)),
        (
            error(|c| c.partitions[0].group[1] = HostId(9)),
            ConfigError::UnknownHost { partition, host: HostId(9) },
        ),
        (
            error(|c| c.partitions[0].group[1] = HostId(1)),
            ConfigError::DuplicateMember { partition, host: HostId(1) },
        ),
        (
            error(|c| c.partitions[0].group.truncate(2)),
            ConfigError::GroupSize { partition, members: 2, copies: 3 },
        ),
        (
            error(|c| c.partitions.push(c.partitions[0].clone())),
            ConfigError::DuplicatePartitionId(partition),
        ),
        (
            error(|c| {
                let mut second = c.partitions[0].clone();
                second.id = PartitionId(2);
                c.partitions.push(second);
            }),
            ConfigError::DuplicatePartitionName("ue".to_owned()),
        ),
        (
            error(|c| {
                let host = |id| HostConfig { id: HostId(id), name: id.to_string() };
                c.hosts = (1..=65).map(host).collect();
            }),
            ConfigError::TooManyHosts(65),
        ),
        (
            error(|c| {
                let host = |id| HostConfig { id: HostId(id), name: id.to_string() };
                c.hosts = (1..=8).map(host).collect();
                c.copies = 8;
            }),
            ConfigError::TooManyCopies(8),
        ),
    ];
    let mut texts: Vec<String> = Vec::new();
    for (found, expected) in cases {
        assert_eq!(found, expected);
        texts.push(found.to_string());
    }
    texts.sort();
    texts.dedup_by(|a, b| a == b);
    assert_eq!(texts.len(), 18, "each error says something else");
}

#[test]
fn one_copy_suffices_only_of_two_and_after_two_leases_to_a_day() {
    let degrade = |copies, after_ms| {
        let mut config = config(3, 2);
        config.copies = copies;
        config.partitions[0].group.truncate(copies.into());
        config.copy_missing = CopyMissingPolicy::Degrade { after_ms };
        config.validate()
    };
    assert_eq!(degrade(3, 900), Err(ConfigError::DegradeNeedsTwoCopies { copies: 3 }));
    for (after_ms, is_valid) in [(599, false), (600, true), (86_400_000, true), (86_400_001, false)]
    {
        let refused = Err(ConfigError::DegradeOutOfRange { after_ms, least_ms: 600 });
        assert_eq!(degrade(2, after_ms), if is_valid { Ok(()) } else { refused });
    }
}

/// The fastest and the slowest clock: the owner's lease ends before the promise.
#[test]
fn a_lease_ends_before_its_promises_for_clocks_that_differ_by_two_percent() {
    for ms in [300, 301, 1_000, 10_000] {
        let lease = Lease::from_ms(ms).unwrap();
        // Real time is the clock's time divided by its rate.
        let (owner, promise) = (lease.owner_ns() * 100 / 98, lease.promise_ns() * 100 / 102);
        assert!(owner + 1_000_000 < promise, "{ms} ms: {owner} and {promise}");
    }
}
