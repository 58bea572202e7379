//! The thread that makes the reports of this host. What a report looks at may block: a file system,
//! a region with many cells. The thread of the engine sends heartbeats and votes meanwhile.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use tokio::sync::oneshot;

use crate::limits::CONNECTIONS_MAX;

use super::config::ReportSource;

/// Makes reports on a thread of its own, one after the other. The thread ends behind this, when its
/// last report is made.
#[derive(Debug)]
pub(crate) struct Reporter {
    asked: SyncSender<oneshot::Sender<String>>,
}

impl Reporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(report: ReportSource) -> io::Result<Self> {
        // Each connection asks for one report at a time. Those that have ended wait here as well
        // while a report blocks: further ones are refused.
        let (asked, requests) = sync_channel(CONNECTIONS_MAX);
        let thread = std::thread::Builder::new().name("ns-report".to_owned());
        thread.spawn(move || run(&requests, &report))?;
        Ok(Self { asked })
    }

    /// What this host reports of itself now, when the reports that were begun before are made.
    /// `None`: too many wait for it.
    pub(crate) async fn report(&self) -> Option<String> {
        let (answer, answered) = oneshot::channel();
        self.asked.try_send(answer).ok()?;
        answered.await.ok()
    }
}

/// One report answers all requests that came before it was begun.
fn run(requests: &Receiver<oneshot::Sender<String>>, report: &ReportSource) {
    while let Ok(first) = requests.recv() {
        let waiting: Vec<_> = std::iter::once(first).chain(requests.try_iter()).collect();
        // A connection that has ended does not wait any more.
        let mut waiting = waiting.into_iter().filter(|one| !one.is_closed()).peekable();
        if waiting.peek().is_none() {
            continue;
        }
        let text = report();
        for one in waiting {
            let _ = one.send(text.clone());
        }
    }
}
