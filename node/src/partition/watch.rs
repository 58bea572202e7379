//! The thread that reads the own log while one copy suffices (rule 12 of decision 026): no follower
//! does, and the log has to be read, said to be written, and forgotten all the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_store::{FollowPosition, Session, StreamItem};

use crate::peer::group::PartitionInput;
use crate::peer::served::PeerShared;

/// The entries that are read before the driver is told.
const ENTRIES_AT_ONCE: usize = 256;

/// The sleeps of an idle log: a commit that waits, waits as long for the driver to learn of it.
const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// The thread. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct LogWatch {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LogWatch {
    pub(super) fn start(shared: &Arc<PeerShared>, view: u64) -> Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let session = shared.region.session()?;
        let (shared, ending) = (Arc::clone(shared), Arc::clone(&is_over));
        let thread = std::thread::Builder::new()
            .name("ns-log-watch".to_owned())
            .spawn(move || watch(&shared, &session, view, &ending))
            .map_err(|error| {
                let detail = format!("cannot start a thread: {error}");
                Error::System { detail, errno: error.raw_os_error().unwrap_or(0) }
            })?;
        Ok(Self { is_over, thread: Some(thread) })
    }
}

impl Drop for LogWatch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn watch(shared: &PeerShared, session: &Session, view: u64, is_over: &AtomicBool) {
    let mut failed = None;
    while !is_over.load(Ordering::Acquire) {
        // A damaged log says so once; the driver sees a log that does not go on.
        let Err(error) = read(shared, session, view, is_over) else { continue };
        let reason = error.to_string();
        if failed.as_ref() != Some(&reason) {
            if let Some(group) = &shared.group {
                group.tell(PartitionInput::FollowFailed { view, reason: reason.clone() });
            }
            failed = Some(reason);
        }
        std::thread::park_timeout(SLEEP_MAX);
    }
}

/// Reads the log behind what is replicated until it is over.
fn read(shared: &PeerShared, session: &Session, view: u64, is_over: &AtomicBool) -> Result<()> {
    let Some(group) = &shared.group else { return Ok(()) };
    let mut stream = session.commit_stream_behind(session.replicated_position()?)?;
    let (mut told, mut sleep) = (None, SLEEP_MIN);
    while !is_over.load(Ordering::Acquire) {
        let mut last = None;
        for _ in 0..ENTRIES_AT_ONCE {
            match stream.next()? {
                None => break,
                Some(StreamItem::Transaction(entry)) => {
                    let check = entry.check_value()?;
                    last = Some(FollowPosition { position: entry.number, check });
                }
                Some(StreamItem::Lost { .. }) => {}
            }
        }
        stream.release();
        let position = stream.passed_position();
        if let Some(last) = last {
            let _storing = shared.storing_shipped();
            session.note_last_entry(last)?;
        }
        if told == Some(position) {
            std::thread::park_timeout(sleep);
            sleep = (sleep * 2).min(SLEEP_MAX);
        } else {
            told = Some(position);
            group.tell(PartitionInput::LogWritten { view, position });
            sleep = SLEEP_MIN;
        }
        session.release_to(shared.member_floor())?;
    }
    Ok(())
}
