//! The processors of the table: servers of every target share some, the client has another one.

use nearstate_model::{Error, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::cpus;
use crate::options::Options;
use crate::reaper::system;
use crate::targets::on_cpus;

/// Where processes run while the table is measured. The thread that measures, which is the client,
/// returns to all its processors at the end.
pub(super) struct Placement {
    client: usize,
    servers: Vec<usize>,
    before: CpuSet,
}

impl Drop for Placement {
    fn drop(&mut self) {
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// The first of these processors for the client, so many behind it for servers. `None` of a single
/// processor: all share it.
fn divide(cpus: &[usize], servers: usize) -> Result<Option<(usize, Vec<usize>)>> {
    match cpus.split_first() {
        Some((client, others)) if servers <= others.len() => {
            Ok(Some((*client, others.iter().take(servers).copied().collect())))
        }
        Some(_) | None if servers == 1 => Ok(None),
        Some(_) | None => Err(Error::BadArgument {
            detail: format!(
                "--server-cpus {servers}: there are {} processors, and the client needs one: give \
                 fewer",
                cpus.len()
            ),
        }),
    }
}

impl Placement {
    /// Binds this thread. `None`: no process is bound.
    pub(super) fn bind(options: &Options) -> Result<Option<Self>> {
        let Some(cpus) = cpus::allowed().filter(|_| !options.unpinned) else { return Ok(None) };
        let servers = usize::try_from(options.server_cpus).unwrap_or(usize::MAX);
        let Some((client, servers)) = divide(&cpus, servers)? else { return Ok(None) };
        let refused = |e: rustix::io::Errno| {
            system(&format!("binding the client to processor {client}"), &e.into())
        };
        let before = sched_getaffinity(None).map_err(refused)?;
        cpus::bind(&[client]).map_err(refused)?;
        Ok(Some(Self { client, servers, before }))
    }

    /// Starts servers.
    pub(super) fn start<T>(bound: Option<&Self>, start: impl FnOnce() -> Result<T>) -> Result<T> {
        on_cpus(bound.map_or(&[][..], |placement| &placement.servers), start)
    }

    /// What a reader of the table has to know.
    pub(super) fn caveat(bound: Option<&Self>) -> String {
        let Some(Self { client, servers, .. }) = bound else {
            return "no process is bound to a processor".to_owned();
        };
        let servers: Vec<String> = servers.iter().map(ToString::to_string).collect();
        format!(
            "all servers of all targets run on processor {}, the client on processor {client}",
            servers.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RunCommand;

    #[test]
    fn the_client_has_a_processor_that_no_server_has() {
        assert_eq!(divide(&[0, 1], 1).unwrap(), Some((0, vec![1])));
        assert_eq!(divide(&[2, 3, 5, 7], 2).unwrap(), Some((2, vec![3, 5])));
        assert_eq!(divide(&[4], 1).unwrap(), None, "all share one");
        let refused = divide(&[0, 1], 2).unwrap_err().to_string();
        assert!(refused.contains("--server-cpus 2: there are 2"), "{refused}");
    }

    fn options(more: &[&str]) -> Options {
        let line = [&["run", "ue-signalling"], more].concat();
        <RunCommand as clap::Parser>::try_parse_from(line).unwrap().options
    }

    #[test]
    fn servers_start_on_their_processors_and_the_client_returns_to_all() {
        let allowed = cpus::allowed().unwrap();
        let pinned = options(&[]);
        let bound = Placement::bind(&pinned).unwrap();
        let at_start = Placement::start(bound.as_ref(), || Ok(cpus::allowed())).unwrap();
        if let Some(Placement { client, servers, .. }) = &bound {
            assert_eq!(at_start.as_ref(), Some(servers));
            assert_eq!(cpus::allowed(), Some(vec![*client]));
        }
        drop(bound);
        assert_eq!(cpus::allowed(), Some(allowed.clone()));
        let unpinned = options(&["--unpinned"]);
        assert!(Placement::bind(&unpinned).unwrap().is_none());
        assert_eq!(cpus::allowed(), Some(allowed));
    }
}
