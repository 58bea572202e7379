//! All commands, with a hash table of their names.

use crate::command::CommandSpec;
use crate::parse::Args;
use crate::reply::error_reply::ErrorReply;
use std::fmt::Write as _;

/// All commands in the order of their names.
#[derive(Debug)]
pub struct CommandTable<R> {
    commands: Vec<CommandSpec<R>>,
    /// Open addressing, at least four slots per command, a power of two. A slot is the index in
    /// `commands` plus 1, or 0 if empty.
    slots: Vec<u16>,
}

impl<R: Copy> CommandTable<R> {
    /// A table of commands with distinct names.
    pub fn new<'a>(commands: impl IntoIterator<Item = &'a CommandSpec<R>>) -> Self
    where
        R: 'a,
    {
        let mut commands: Vec<CommandSpec<R>> = commands.into_iter().copied().collect();
        commands.sort_by_key(|command| command.name);
        let mut slots = vec![0; (commands.len() * 4).next_power_of_two()];
        for (number, command) in (0..).zip(&mut commands) {
            command.number = number;
            let mut at = slot(hash(HASH_BEGIN, command.name.as_bytes()), slots.len());
            while slots.get(at).is_some_and(|taken| *taken != 0) {
                at = slot_after(at, slots.len());
            }
            if let Some(free) = slots.get_mut(at) {
                *free = number + 1;
            }
        }
        Self { commands, slots }
    }
}

impl<R> CommandTable<R> {
    /// All commands in the order of their names.
    pub fn commands(&self) -> &[CommandSpec<R>] {
        &self.commands
    }

    /// The command with this name, in any case; `client|setname` for a subcommand.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<&CommandSpec<R>> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        self.find_hashed(hash(HASH_BEGIN, name), |own| own.as_bytes().eq_ignore_ascii_case(name))
    }

    /// The subcommands of a command.
    pub fn subcommands_of(&self, container: &str) -> impl Iterator<Item = &CommandSpec<R>> {
        self.commands.iter().filter(move |command| {
            let (of, part) = command.name_and_subcommand();
            of == container && part.is_some()
        })
    }

    /// The command of a request, with a valid number of arguments.
    ///
    /// # Errors
    /// The command is unknown (the error names the closest one) or the number of arguments is
    /// wrong.
    #[inline]
    pub fn lookup(&self, args: Args<'_>) -> Result<&CommandSpec<R>, ErrorReply> {
        let command = self.lookup_any_arity(args)?;
        command.check_arity(args)?;
        Ok(command)
    }

    /// The command of a request, regardless of the number of arguments.
    ///
    /// # Errors
    /// The command is unknown. The error names the closest one.
    #[inline]
    pub fn lookup_any_arity(&self, args: Args<'_>) -> Result<&CommandSpec<R>, ErrorReply> {
        let name = args.get(0).unwrap_or_default();
        let command = self.find(name).filter(|_| !name.contains(&b'|'));
        let Some(command) = command else { return Err(self.unknown(name, args)) };
        match args.get(1) {
            Some(part) if command.has_subcommands() => {
                self.part(name, part).ok_or_else(|| self.unknown_part(command.name, part))
            }
            _ => Ok(command),
        }
    }

    /// As [`Self::lookup_any_arity`], without an error.
    pub fn find_requested(&self, args: Args<'_>) -> Option<&CommandSpec<R>> {
        let name = args.get(0).unwrap_or_default();
        let command = self.find(name).filter(|_| !name.contains(&b'|'))?;
        match args.get(1) {
            Some(part) if command.has_subcommands() => self.part(name, part),
            _ => Some(command),
        }
    }

    fn part(&self, name: &[u8], part: &[u8]) -> Option<&CommandSpec<R>> {
        if part.len() > NAME_BYTES_MAX {
            return None;
        }
        let wanted = hash(hash(hash(HASH_BEGIN, name), b"|"), part);
        self.find_hashed(wanted, |own| {
            let Some((container, own)) = own.split_once('|') else { return false };
            container.as_bytes().eq_ignore_ascii_case(name)
                && own.as_bytes().eq_ignore_ascii_case(part)
        })
    }

    #[inline]
    fn find_hashed(&self, hash: u32, is: impl Fn(&str) -> bool) -> Option<&CommandSpec<R>> {
        let mut at = slot(hash, self.slots.len());
        loop {
            let number = usize::from(*self.slots.get(at)?);
            let command = self.commands.get(number.checked_sub(1)?)?;
            if is(command.name) {
                return Some(command);
            }
            at = slot_after(at, self.slots.len());
        }
    }

    #[cold]
    fn unknown(&self, name: &[u8], args: Args<'_>) -> ErrorReply {
        if name.eq_ignore_ascii_case(b"near") {
            return ErrorReply::fixed(
                "ERR the command NEAR was renamed: send LOCAL REGION or LOCAL RING",
            );
        }
        let mut text = format!("ERR unknown command '{}', with args beginning with: ", clip(name));
        let from = text.len();
        for arg in args.from(1).iter() {
            if text.len() - from >= SHOWN_BYTES_MAX {
                break;
            }
            // Writing to a String cannot fail.
            let _ = write!(text, "'{}' ", clip(arg));
        }
        if let Some(near) = self.closest(name) {
            let _ = write!(text, "(did you mean '{}'?)", near.replace('|', " "));
        }
        ErrorReply::new(text)
    }

    /// The error for an unknown command name in a configuration.
    pub fn not_found(&self, name: &str) -> String {
        match self.closest(name.as_bytes()) {
            Some(near) => format!("unknown command '{name}', did you mean '{near}'?"),
            None => format!("unknown command '{name}': docs/resp.md lists all commands"),
        }
    }

    fn closest(&self, name: &[u8]) -> Option<&'static str> {
        closest(name, self.commands.iter().map(|command| command.name))
    }

    #[cold]
    fn unknown_part(&self, container: &str, part: &[u8]) -> ErrorReply {
        let mut offered = String::new();
        for (_, own) in self.subcommands_of(container).map(CommandSpec::name_and_subcommand) {
            let comma = if offered.is_empty() { "" } else { ", " };
            let _ = write!(offered, "{comma}{}", own.unwrap_or_default());
        }
        let (part, container) = (clip(part), container.to_ascii_uppercase());
        ErrorReply::new(format!("ERR unknown subcommand '{part}'. {container} supports: {offered}"))
    }
}

/// Maximum bytes of client input in an error, as in Redis.
const SHOWN_BYTES_MAX: usize = 128;

/// The start of client input, as text.
fn clip(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..SHOWN_BYTES_MAX).unwrap_or(bytes)).into_owned()
}

/// Longer than every command name. Longer input is rejected without hashing: it may have half a
/// gigabyte.
const NAME_BYTES_MAX: usize = 48;

/// FNV-1a offset basis.
const HASH_BEGIN: u32 = 0x811c_9dc5;

/// FNV-1a of the lower-case bytes, continued from `before`. Only command names are in the table, so
/// crafted input causes at most a few more probes.
#[inline]
fn hash(before: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(before, |hash, byte| {
        (hash ^ u32::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0193)
    })
}

/// The first slot of a hash. `slots` is a power of two.
#[inline]
fn slot(hash: u32, slots: usize) -> usize {
    // The upper half of an FNV hash is better distributed.
    (hash ^ (hash >> 15)) as usize & slots.wrapping_sub(1)
}

#[inline]
fn slot_after(at: usize, slots: usize) -> usize {
    (at + 1) & (slots - 1)
}

/// The most similar name, if it is similar enough.
fn closest<'a>(typed: &[u8], names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // Much longer input is similar to no name.
    let typed = typed.get(..TYPED_BYTES_MAX).unwrap_or(typed).to_ascii_lowercase();
    let allowed = (typed.len() / 3).clamp(1, 3);
    names
        .map(|name| (distance(&typed, name.as_bytes()), name))
        .filter(|(steps, _)| *steps <= allowed)
        .min()
        .map(|(_, name)| name)
}

const TYPED_BYTES_MAX: usize = 32;

/// Damerau-Levenshtein distance (optimal string alignment): insertions, deletions, replacements and
/// swaps of adjacent bytes.
fn distance(left: &[u8], right: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, one) in left.iter().enumerate() {
        let mut this = vec![row + 1];
        for (column, other) in right.iter().enumerate() {
            let cell = |row: &[usize], at: usize| row.get(at).copied().unwrap_or(usize::MAX / 2);
            let is_swap = column > 0
                && row > 0
                && right.get(column - 1) == Some(one)
                && left.get(row - 1) == Some(other);
            let swapped = if is_swap { cell(&before, column - 1) + 1 } else { usize::MAX };
            let replaced = cell(&last, column) + usize::from(one != other);
            let moved = cell(&last, column + 1).min(cell(&this, column)) + 1;
            this.push(replaced.min(moved).min(swapped));
        }
        before = std::mem::replace(&mut last, this);
    }
    last.last().copied().unwrap_or_default()
}
