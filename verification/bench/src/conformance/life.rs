//! Databases: the facts that they report, and their end.

use super::{CheckResult, TargetUnderTest, ensure, put_value, value};
use crate::targets::Support;
use nearstate_model::Error;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::time::Duration;

pub(super) fn resources(tested: &TargetUnderTest<'_>) -> CheckResult {
    for process in tested.database.processes() {
        let is_there = Path::new(&format!("/proc/{process}")).exists();
        ensure!(is_there, "process {process} is not there")?;
    }
    let mut other = tested.target.start(&tested.database_spec())?;
    other.alive()?;
    let memory = other.memory_bytes();
    let is_in_clients = matches!(tested.target.capabilities().shared, Support::Declined(_));
    ensure!(is_in_clients || memory.is_some_and(|bytes| bytes > 4096), "memory: {memory:?}")
}

pub(super) fn second(tested: &TargetUnderTest<'_>) -> CheckResult {
    let other = tested.target.start(&tested.database_spec())?;
    let address = other.address();
    ensure!(address != tested.database.address(), "both at {address}")?;
    let mut one = tested.connect()?;
    let mut two = tested.target.connect(&address, &tested.schema)?;
    put_value(&mut one, b"l1", b"first")?;
    ensure!(value(&mut two, b"l1")?.is_none(), "a record of the first")?;
    put_value(&mut two, b"l1", b"second")?;
    ensure!(value(&mut one, b"l1")?.as_deref() == Some(b"first"), "of the second")?;
    let processes = other.processes();
    drop(other);
    for process in processes {
        let is_there = Path::new(&format!("/proc/{process}")).exists();
        ensure!(!is_there, "process {process} outlives its database")?;
    }
    ensure!(value(&mut one, b"l1")?.as_deref() == Some(b"first"), "the first lives on")
}

/// How long a killed process may take to end: its memory is given back first.
const END_PAUSES: u32 = 1000;
const END_PAUSE: Duration = Duration::from_millis(10);

/// The server is killed: open connections, new connections and a status check all fail.
pub(super) fn dead(tested: &TargetUnderTest<'_>) -> CheckResult {
    let mut other = tested.target.start(&tested.database_spec())?;
    let mut one = tested.target.connect(&other.address(), &tested.schema)?;
    put_value(&mut one, b"x", b"x")?;
    for process in other.processes() {
        if let Some(process) = i32::try_from(process).ok().and_then(Pid::from_raw) {
            let _ = kill_process(process, Signal::KILL);
        }
    }
    // The kernel needs some time to end a process and to close its sockets.
    let mut pauses = 0;
    while other.alive().is_ok() && pauses < END_PAUSES {
        std::thread::sleep(END_PAUSE);
        pauses += 1;
    }
    for attempt in ["the first", "the second"] {
        let answer = value(&mut one, b"x");
        ensure!(
            matches!(answer, Err(Error::Backend { .. })),
            "{attempt} read of a dead server: {answer:?}"
        )?;
    }
    let alive = other.alive();
    ensure!(matches!(alive, Err(Error::Backend { .. })), "alive: {alive:?}")?;
    let again = tested.target.connect(&other.address(), &tested.schema).map(drop);
    ensure!(matches!(again, Err(Error::Backend { .. })), "a new connection: {again:?}")
}
