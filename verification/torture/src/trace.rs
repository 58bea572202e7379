//! A child that executes one operation instruction by instruction (`ptrace(2)`).
//!
//! The child requests tracing ([`allow`]) and stops itself before the operation and after it
//! ([`stop_here`]). It waits in a stop between any two instructions.

use std::cell::Cell;
use std::path::Path;
use std::time::Duration;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::error_context::ErrorContext as _;
use crate::spawn::{ChildCommand, ChildProcess, ChildRole};

/// Stops a traced child, which does not get it.
const PAUSE: Signal = Signal::SIGUSR1;

/// Why a sweep has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SweepError {
    /// This machine does not permit a process to trace its child: nothing was tested.
    NotPermitted(String),
    Violation(String),
}

/// The child requests tracing.
pub(crate) fn allow() -> Result<(), String> {
    ptrace::traceme().context("not permitted to be traced")
}

/// The child stops itself.
pub(crate) fn stop_here() {
    let _ = raise(Signal::SIGSTOP);
}

/// A traced child, in a stop. Dropping it kills the child.
#[derive(Debug)]
pub(crate) struct TracedChild {
    child: ChildProcess,
    pid: Pid,
    /// The operation is over.
    is_over: Cell<bool>,
}

impl TracedChild {
    /// Starts a child, which runs until the operation begins.
    pub(crate) fn start(
        starter: &ChildCommand,
        folder: &Path,
        role: &ChildRole<'_>,
    ) -> Result<Self, SweepError> {
        let child = starter.start(folder, role).map_err(SweepError::Violation)?;
        let pid = Pid::from_raw(child.process.id().cast_signed());
        let traced = Self { child, pid, is_over: Cell::new(false) };
        let begun = match traced.wait_for_stop() {
            Ok(Signal::SIGSTOP) => {
                ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL).context("ptrace")
            }
            Ok(_) => Err("the traced child did not stop itself first".to_owned()),
            Err(error) => Err(error),
        };
        let error_output = traced.child.error_output();
        match begun {
            Ok(()) => Ok(traced),
            Err(_) if error_output.contains("not permitted") => {
                Err(SweepError::NotPermitted(error_output))
            }
            Err(error) => Err(SweepError::Violation(format!("{error}: {error_output}"))),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.process.id()
    }

    /// Lets the child run for some time, at most to the end of the operation.
    pub(crate) fn run_for(&self, time: Duration) -> Result<(), String> {
        ptrace::cont(self.pid, None).context("ptrace")?;
        std::thread::sleep(time);
        kill(self.pid, PAUSE).context(PAUSE)?;
        self.is_over.set(self.wait_for_stop()? == Signal::SIGSTOP);
        Ok(())
    }

    /// Executes one instruction. False if the operation is over.
    pub(crate) fn step(&self) -> Result<bool, String> {
        if self.is_over.get() {
            return Ok(false);
        }
        ptrace::step(self.pid, None).context("ptrace")?;
        self.is_over.set(self.wait_for_stop()? == Signal::SIGSTOP);
        Ok(!self.is_over.get())
    }

    /// Lets the child complete its work, which must succeed.
    pub(crate) fn finish(mut self) -> Result<(), String> {
        if !self.is_over.get() {
            // It stops itself once more.
            ptrace::cont(self.pid, None).context("ptrace")?;
            self.wait_for_stop()?;
        }
        ptrace::detach(self.pid, None).context("ptrace")?;
        self.child.wait_for_success()
    }

    /// Kills the child.
    pub(crate) fn kill(mut self) -> Result<(), String> {
        self.child.kill()
    }

    /// Waits until the child stops, and returns the signal.
    fn wait_for_stop(&self) -> Result<Signal, String> {
        let status = waitpid(self.pid, None).context("wait")?;
        match status {
            WaitStatus::Stopped(_, signal @ (Signal::SIGTRAP | Signal::SIGSTOP | PAUSE)) => {
                Ok(signal)
            }
            WaitStatus::Exited(..)
            | WaitStatus::Signaled(..)
            | WaitStatus::Stopped(..)
            | WaitStatus::PtraceEvent(..)
            | WaitStatus::PtraceSyscall(_)
            | WaitStatus::Continued(_)
            | WaitStatus::StillAlive => {
                Err(format!("a traced child: {status:?}: {}", self.child.error_output().trim()))
            }
        }
    }

    /// True if the next instruction is an atomic read-modify-write. Such an instruction takes or
    /// gives something that other processes want, too. Plain stores cannot be told so cheaply.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn is_atomic_next(&self) -> Result<bool, String> {
        let context = |e| format!("ptrace: {e}");
        let at = usize::try_from(ptrace::getregs(self.pid).map_err(context)?.rip)
            .map_err(|e| e.to_string())?;
        let word = ptrace::read(self.pid, std::ptr::without_provenance_mut(at)).map_err(context)?;
        Ok(is_atomic(word.to_le_bytes()))
    }

    /// Not known on this machine.
    #[cfg(not(target_arch = "x86_64"))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "as on x86_64")]
    pub(crate) fn is_atomic_next(&self) -> Result<bool, String> {
        Ok(false)
    }
}

/// True for an instruction with the prefix LOCK, and for an exchange with memory, which locks
/// without it.
#[cfg(any(target_arch = "x86_64", test))]
fn is_atomic(code: [u8; 8]) -> bool {
    let is_prefix =
        |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf2..=0xf3);
    let mut rest = code.into_iter().skip_while(|byte| is_prefix(byte)).peekable();
    if rest.next_if(|byte| (0x40..0x50).contains(byte)).is_none() && rest.peek() == Some(&0xf0) {
        return true;
    }
    matches!((rest.next(), rest.next()), (Some(0x86 | 0x87), Some(operands)) if operands < 0xc0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_and_exchanges_with_memory_are_atomic() {
        // lock cmpxchg [rdi], rsi; xchg [rax], rcx; xchg al, [rdx]; cs lock inc dword [rax].
        for code in [
            [0xf0, 0x48, 0x0f, 0xb1, 0x37, 0, 0, 0],
            [0x48, 0x87, 0x08, 0, 0, 0, 0, 0],
            [0x86, 0x02, 0, 0, 0, 0, 0, 0],
            [0x2e, 0xf0, 0xff, 0x00, 0, 0, 0, 0],
        ] {
            assert!(is_atomic(code), "{code:x?}");
        }
        // mov [rdi], rsi; xchg rax, rcx; push rbp; an immediate with the bytes of a prefix.
        for code in [
            [0x48, 0x89, 0x37, 0, 0, 0, 0, 0],
            [0x48, 0x87, 0xc8, 0, 0, 0, 0, 0],
            [0x55, 0xf0, 0, 0, 0, 0, 0, 0],
            [0xb8, 0xf0, 0xf0, 0xf0, 0xf0, 0, 0, 0],
        ] {
            assert!(!is_atomic(code), "{code:x?}");
        }
    }
}
