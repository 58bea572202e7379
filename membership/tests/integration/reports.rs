//! Reports that take long.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nearstate_node::EngineStatus;

use crate::fixture::{Cluster, Host, LONG};

/// Longer than the test: nothing but the first leader orders its commands.
const ELECTION: Duration = Duration::from_secs(60);

#[test]
fn a_report_that_blocks_delays_no_command() {
    let mut cluster = Cluster::new(3);
    let ((asked, is_asked), (release, is_released)) = (channel(), channel::<()>());
    let is_released = Mutex::new(is_released);
    // As one that looks at a file system that hangs.
    let report = Arc::new(move || {
        let _ = asked.send(());
        let _ = is_released.lock().unwrap().recv();
        "report of a slow host".to_owned()
    });
    for id in 1..=3 {
        let mut config = cluster.config(id);
        config.election = ELECTION;
        if id == 1 {
            config.report = report.clone();
        }
        cluster.hosts.insert(id, Host::start(config).unwrap());
    }
    // Host 1 creates the cluster, so it leads.
    cluster.hosts[&1].engine.initialize(&[1, 2, 3].into()).unwrap();
    cluster.propose(2, "first");
    let led = |status: EngineStatus| (status.leader, status.term);
    let before = led(cluster.hosts[&2].engine.status());
    std::thread::scope(|scope| {
        // If this test fails, the report ends.
        let release = release;
        let reports = [2, 3].map(|id| {
            let engine = &cluster.hosts[&id].engine;
            scope.spawn(move || engine.report_of(1, LONG))
        });
        is_asked.recv().unwrap();
        for command in ["second", "third"] {
            cluster.propose(2, command);
            cluster.hosts[&3].until_line(command);
        }
        assert_eq!(led(cluster.hosts[&2].engine.status()), before);
        drop(release);
        for report in reports {
            assert_eq!(report.join().unwrap().unwrap(), "report of a slow host");
        }
    });
}
