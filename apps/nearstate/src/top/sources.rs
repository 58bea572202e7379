//! Where snapshots come from: a node's page, a region's file, or both.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::region_source::RegionSource;
use super::snapshot::Snapshot;
use super::{fetch, parse_metrics};

/// What is looked at.
#[derive(Debug)]
pub(super) struct TopSources {
    node: Option<SocketAddr>,
    region: Option<RegionSource>,
    start: Instant,
}

/// What one look has found.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Poll {
    pub(super) snapshot: Snapshot,
    /// What could not be seen, and why.
    pub(super) faults: Vec<String>,
}

/// The address of this host where one that listens everywhere is reached.
pub(super) fn reached(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}

impl TopSources {
    /// At least one of them is given.
    pub(super) fn new(node: Option<SocketAddr>, region: Option<&Path>) -> Self {
        let region = region.map(|path| RegionSource::new(PathBuf::from(path)));
        Self { node: node.map(reached), region, start: Instant::now() }
    }

    /// What is looked at, for people.
    pub(super) fn node(&self) -> Option<SocketAddr> {
        self.node
    }

    /// Looks at all of it. What the node says of its region stands where the region itself is not
    /// looked at.
    pub(super) fn poll(&mut self) -> Poll {
        let mut poll = Poll::default();
        if let Some(address) = self.node {
            let page = fetch::metrics(address);
            let read = page.and_then(|text| {
                parse_metrics::read(&text).map_err(|why| format!("{address}: {why}"))
            });
            match read {
                Ok((node, region)) => {
                    poll.snapshot.node = Some(node);
                    poll.snapshot.region = Some(region);
                }
                Err(why) => poll.faults.push(why),
            }
        }
        // Rates are of what the page counts; counting a region's records takes its time.
        poll.snapshot.at = self.start.elapsed();
        if let Some(source) = &mut self.region {
            match source.poll() {
                Ok(region) => poll.snapshot.region = Some(region),
                Err(why) => {
                    poll.snapshot.region = None;
                    poll.faults.push(why);
                }
            }
        }
        poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearstate_store::{CreateOptions, Region};

    #[test]
    fn one_of_both_may_be_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let _region = Region::create(&path, &CreateOptions::default()).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let poll = TopSources::new(Some(address), Some(&path)).poll();
        assert!(poll.snapshot.node.is_none() && poll.snapshot.region.is_some());
        assert_eq!(poll.faults.len(), 1, "{:?}", poll.faults);
        let poll = TopSources::new(None, Some(&path)).poll();
        assert!(poll.faults.is_empty() && poll.snapshot.region.is_some());
    }

    #[test]
    fn an_address_that_listens_everywhere_is_reached_on_this_host() {
        for (address, wanted) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.1:1", "10.0.0.1:1")]
        {
            assert_eq!(reached(address.parse().unwrap()), wanted.parse().unwrap());
        }
    }
}
