//! A state machine of the engine, to which a command is applied before the one of the node: a
//! command that its program cannot apply, or at which it panics, changes nothing of the node's.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use nearstate_model::{Error, Result};
use nearstate_node::{EngineState, StateMachine};

/// What a panic says.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default()
}

/// Both state machines. After an error the one of the engine is of no use.
pub(crate) struct OwnMachine {
    /// Engines share it among threads, and use it on one at a time.
    own: Mutex<Box<dyn StateMachine>>,
    node: Arc<EngineState>,
}

impl fmt::Debug for OwnMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnMachine").finish_non_exhaustive()
    }
}

impl OwnMachine {
    /// A state machine in its first state.
    pub(crate) fn new(own: Box<dyn StateMachine>, node: Arc<EngineState>) -> Self {
        Self { own: Mutex::new(own), node }
    }

    fn own(&mut self) -> &mut dyn StateMachine {
        &mut **self.own.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a command.
    pub(crate) fn apply(&mut self, index: u64, command: &[u8]) -> Result<()> {
        caught(&format!("command {index}"), || {
            self.own().apply(index, command)?;
            self.node.apply(index, command)
        })
    }

    /// Replaces the state by the one after the command with this index.
    pub(crate) fn restore(&mut self, index: u64, state: &[u8]) -> Result<()> {
        caught("a snapshot", || {
            self.own().restore(state)?;
            self.node.restore(index, state)
        })
    }

    pub(crate) fn snapshot(&mut self) -> Vec<u8> {
        self.own().snapshot()
    }
}

/// Makes a panic an error: without that, an engine would not notice before the next command.
fn caught(what: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        Err(Error::Backend { detail: format!("{what} has caused a panic: {text}") })
    })
}
