//! The thread of the driver. It waits between its steps, and waits for nothing in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use nearstate_model::{Error, Result};
use nearstate_store::crash::is_planted;
use nearstate_store::lease_clock;

use super::super::inbox::SharedDriver;
use super::super::notice::{ClusterNotice, Notices, PanicNotice};
use super::Driver;
use crate::realtime::{RealtimeMode, keep_leases};

/// The name of the driver's thread.
const THREAD: &str = "ns-cluster";

/// How often in each lease the driver looks at the time.
const TICKS_PER_LEASE: u32 = 16;

/// The running thread, and whether it runs before ordinary threads and with locked memory.
pub(super) type LeaseThread = (JoinHandle<()>, bool);

/// Starts the thread.
///
/// # Errors
/// `System`: no thread; `BadArgument`: what it requires is refused.
pub(super) fn start(
    (shared, notices): (&Arc<SharedDriver<Driver>>, Notices),
    is_over: &Arc<AtomicBool>,
    (lease, mode): (Duration, RealtimeMode),
) -> Result<LeaseThread> {
    let told = PanicNotice { thread: THREAD, notices };
    let (shared, is_over) = (Arc::clone(shared), Arc::clone(is_over));
    let (sender, asked) = sync_channel(1);
    let work = move || {
        let kept = if mode == RealtimeMode::Off { Ok(false) } else { keep_leases().map(|_| true) };
        let is_refused = mode == RealtimeMode::Require && kept.is_err();
        // The thread that starts this one waits for it.
        let _ = sender.send(kept);
        if !is_refused {
            run((&shared, &told), &is_over, lease / TICKS_PER_LEASE);
        }
    };
    let thread = std::thread::Builder::new().name(THREAD.to_owned()).spawn(work);
    let thread = thread.map_err(|error| {
        let detail = format!("cannot start a thread: {error}");
        Error::System { detail, errno: error.raw_os_error().unwrap_or(0) }
    })?;
    match asked.recv().unwrap_or(Ok(false)) {
        Ok(is_realtime) => Ok((thread, is_realtime)),
        Err(_) if mode != RealtimeMode::Require => Ok((thread, false)),
        Err(missing) => {
            let detail = format!("cluster.realtime = \"require\": {missing}");
            Err(Error::BadArgument { detail })
        }
    }
}

fn run(
    (shared, told): (&SharedDriver<Driver>, &PanicNotice),
    is_over: &AtomicBool,
    tick: Duration,
) {
    shared.inbox.begin();
    let mut ticked = Duration::ZERO;
    while !is_over.load(Ordering::Acquire) {
        // A defect that a test has planted.
        while is_planted("driver-spins") {
            std::hint::spin_loop();
        }
        let is_running = shared.step(|driver| {
            driver.take_events();
            driver.take_inputs();
            if lease_clock() >= ticked + tick {
                ticked = lease_clock();
                driver.tick();
            }
        });
        if !is_running {
            // A step has panicked on the thread of a connection.
            (told.notices)(&ClusterNotice::Panicked { thread: told.thread });
            break;
        }
        std::thread::park_timeout((ticked + tick).saturating_sub(lease_clock()));
    }
    // It waits for the threads of its connections.
    drop(shared.end());
}
