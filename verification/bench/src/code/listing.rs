//! Locked instructions in the path of a read: the running program is disassembled, and the probe
//! functions are followed into every function of this project that they call.

use super::probes::NAMES;
use crate::reaper::{own_program, system};
use nearstate_model::Result;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const INSTALL: &str = "objdump and nm are not installed: apt-get install -y binutils";

/// The names of this project's functions contain this; others (memcpy, the allocator) are not
/// followed.
const OURS: &str = "nearstate";

/// The listing of one probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    /// What the probe does, for the table.
    pub(super) what: &'static str,
    /// Instructions of the probe itself, which has the whole hot path inlined.
    pub(super) instructions: u64,
    /// Of those, locked ones: `lock` prefix, `xchg` with memory.
    pub(super) locked: u64,
    /// Full fences among them.
    pub(super) fences: u64,
    /// Functions of this project that it calls, directly or not: the rare branches.
    pub(super) others: u64,
    /// Locked instructions in those.
    pub(super) others_locked: u64,
    /// Full fences in those.
    pub(super) others_fences: u64,
}

/// Reads the listings of all probes.
pub(super) fn read_all() -> Result<Vec<Listing>> {
    let program = own_program()?;
    let symbols = symbols(&program)?;
    NAMES
        .iter()
        .map(|(name, what)| {
            let symbol = symbols
                .iter()
                .find(|s| s.contains(name))
                .ok_or_else(|| backend_error!("{name} is not in the program's symbols"))?;
            Ok(Listing { what, ..follow(&program, symbol)? })
        })
        .collect()
}

fn text_of(tool: &str, arguments: &[&str], program: &Path) -> Result<String> {
    let output = Command::new(tool)
        .args(arguments)
        .arg(program)
        .output()
        .map_err(|_| bad_argument!("{INSTALL}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(system(&format!("{tool}: {}", why.trim()), &std::io::Error::other("")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn symbols(program: &Path) -> Result<Vec<String>> {
    let text = text_of("nm", &["--defined-only"], program)?;
    Ok(text.lines().filter_map(|l| l.split_whitespace().nth(2)).map(str::to_owned).collect())
}

fn follow(program: &Path, first: &str) -> Result<Listing> {
    let mut listing = Listing::default();
    let mut waiting = vec![first.to_owned()];
    let mut met: BTreeSet<String> = waiting.iter().cloned().collect();
    while let Some(symbol) = waiting.pop() {
        let option = format!("--disassemble={symbol}");
        let text = text_of("objdump", &["-d", "--no-show-raw-insn", "-w", &option], program)?;
        let function = Disassembly::parse(&text);
        if function.instructions == 0 {
            return Err(backend_error!("objdump shows nothing of {symbol}"));
        }
        if symbol == first {
            listing.instructions = function.instructions;
            listing.locked = function.locked;
            listing.fences = function.fences;
        } else {
            listing.others += 1;
            listing.others_locked += function.locked;
            listing.others_fences += function.fences;
        }
        for called in function.calls {
            if called.contains(OURS) && met.insert(called.clone()) {
                waiting.push(called);
            }
        }
    }
    Ok(listing)
}

/// What one function contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Disassembly {
    instructions: u64,
    locked: u64,
    fences: u64,
    calls: Vec<String>,
}

impl Disassembly {
    fn parse(text: &str) -> Self {
        let mut seen = Self::default();
        for line in text.lines() {
            // "  401000:\tlock cmpxchg %rdx,(%rdi)"
            let Some((address, instruction)) = line.split_once(":\t") else { continue };
            if !address.trim().bytes().all(|b| b.is_ascii_hexdigit()) {
                continue;
            }
            let words: Vec<&str> = instruction.split_whitespace().collect();
            let Some(first) = words.first() else { continue };
            seen.instructions += 1;
            let is_exchange = words.iter().any(|w| w.starts_with("xchg"));
            // An exchange with memory locks by itself; `xchg %ax,%ax` does nothing.
            let is_locked = *first == "lock" || is_exchange && instruction.contains('(');
            seen.locked += u64::from(is_locked);
            seen.fences += u64::from(*first == "mfence");
            if first.starts_with("call") || first.starts_with('j') {
                seen.calls.extend(target_of(instruction));
            }
        }
        seen
    }
}

/// The function that is called; `None` for a jump within one.
fn target_of(instruction: &str) -> Option<String> {
    let (_, rest) = instruction.split_once('<')?;
    let (name, _) = rest.rsplit_once('>')?;
    if name.contains("+0x") { None } else { Some(name.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_instructions_fences_and_calls_are_seen() {
        let text = "\n0000000000401000 <a>:\n  401000:\tmov    (%rdi),%rax\n  \
                    401003:\tlock cmpxchg %rdx,(%rdi)\n  401008:\txchg   %rax,0x8(%rdi)\n  \
                    40100c:\txchg   %ax,%ax\n  40100e:\tmfence\n  \
                    401011:\tcall   402000 <_RNv_nearstate>\n  401016:\tjne    401000 <a+0x6>\n  \
                    401018:\tjmp    403000 <b>\n";
        let seen = Disassembly::parse(text);
        assert_eq!((seen.instructions, seen.locked, seen.fences), (8, 2, 1));
        assert_eq!(seen.calls, ["_RNv_nearstate", "b"]);
    }
}
