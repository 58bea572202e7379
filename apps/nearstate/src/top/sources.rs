//! The sources of snapshots: a node's metrics page, a region's file, or both.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nearstate_store::AttachOptions;

use super::region_source::RegionSource;
use super::snapshot::Snapshot;
use super::{fetch, parse_metrics};

/// The polled sources.
#[derive(Debug)]
pub(super) struct TopSources {
    node: Option<SocketAddr>,
    region: Option<RegionSource>,
    start: Instant,
}

/// The result of one poll.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Poll {
    pub(super) snapshot: Snapshot,
    /// Sources that could not be read, with the reason.
    pub(super) faults: Vec<String>,
}

/// Replaces an unspecified address by the loopback address.
pub(super) fn connectable(mut address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V4(_) | IpAddr::V6(_) => {}
    }
    address
}

impl TopSources {
    /// At least one source must be given.
    pub(super) fn new(
        node: Option<SocketAddr>,
        region: Option<&Path>,
        options: AttachOptions,
    ) -> Self {
        let region = region.map(|path| RegionSource::new(PathBuf::from(path), options));
        Self { node: node.map(connectable), region, start: Instant::now() }
    }

    /// The node's address.
    pub(super) fn node(&self) -> Option<SocketAddr> {
        self.node
    }

    /// Polls all sources. Without a region source, the region's data comes from the node's page.
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
        // Rates refer to the time of the page. Counting the region's records takes longer.
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
    fn one_of_two_sources_may_be_unreachable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let _region = Region::create(&path, &CreateOptions::default()).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let poll = TopSources::new(Some(address), Some(&path), AttachOptions::default()).poll();
        assert!(poll.snapshot.node.is_none() && poll.snapshot.region.is_some());
        assert_eq!(poll.faults.len(), 1, "{:?}", poll.faults);
        let poll = TopSources::new(None, Some(&path), AttachOptions::default()).poll();
        assert!(poll.faults.is_empty() && poll.snapshot.region.is_some());
    }

    #[test]
    fn an_unspecified_address_becomes_the_loopback_address() {
        for (address, wanted) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("10.0.0.1:1", "10.0.0.1:1")]
        {
            assert_eq!(connectable(address.parse().unwrap()), wanted.parse().unwrap());
        }
    }
}
