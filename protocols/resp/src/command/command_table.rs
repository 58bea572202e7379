//! The commands of the table, found by name.

use crate::command::Command;
use crate::parse::Args;
use crate::reply::error_reply::ErrorReply;
use std::fmt::Write as _;

/// All commands, in the order of their names.
#[derive(Debug)]
pub struct CommandTable<R> {
    commands: Vec<Command<R>>,
    /// At least four for each command, a power of two: the place in `commands` and 1, or 0.
    slots: Vec<u16>,
}

impl<R: Copy> CommandTable<R> {
    /// Of these commands; each name stands there once.
    pub fn new<'a>(commands: impl IntoIterator<Item = &'a Command<R>>) -> Self
    where
        R: 'a,
    {
        let mut commands: Vec<Command<R>> = commands.into_iter().copied().collect();
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
    /// All, in the order of their names.
    pub fn commands(&self) -> &[Command<R>] {
        &self.commands
    }

    /// The command of this name in any case; `client|setname` for a subcommand.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<&Command<R>> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        self.find_hashed(hash(HASH_BEGIN, name), |own| own.as_bytes().eq_ignore_ascii_case(name))
    }

    /// The subcommands of a command.
    pub fn subcommands_of(&self, container: &str) -> impl Iterator<Item = &Command<R>> {
        self.commands
            .iter()
            .filter(move |command| matches!(command.name_and_subcommand(), (of, Some(_)) if of == container))
    }

    /// The command that a request asks for, with the right number of arguments.
    ///
    /// # Errors
    /// There is none of this name, which the text says with the nearest one, or it takes another
    /// number of arguments.
    #[inline]
    pub fn lookup(&self, args: Args<'_>) -> Result<&Command<R>, ErrorReply> {
        let command = self.lookup_any_arity(args)?;
        command.check_arity(args)?;
        Ok(command)
    }

    /// The command that a request asks for, however many arguments it has.
    ///
    /// # Errors
    /// There is none of this name, which the text says with the nearest one.
    #[inline]
    pub fn lookup_any_arity(&self, args: Args<'_>) -> Result<&Command<R>, ErrorReply> {
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

    fn part(&self, name: &[u8], part: &[u8]) -> Option<&Command<R>> {
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
    fn find_hashed(&self, hash: u32, is: impl Fn(&str) -> bool) -> Option<&Command<R>> {
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
            let _ = write!(text, "(the nearest that is offered is '{}')", near.replace('|', " "));
        }
        ErrorReply::new(text)
    }

    /// That there is no command of this name, for whoever writes a configuration.
    pub fn not_found(&self, name: &str) -> String {
        match self.closest(name.as_bytes()) {
            Some(near) => format!("there is no command '{name}': is '{near}' meant?"),
            None => format!("there is no command '{name}': docs/resp.md lists all"),
        }
    }

    fn closest(&self, name: &[u8]) -> Option<&'static str> {
        closest(name, self.commands.iter().map(|command| command.name))
    }

    #[cold]
    fn unknown_part(&self, container: &str, part: &[u8]) -> ErrorReply {
        let mut offered = String::new();
        for (_, own) in self.subcommands_of(container).map(Command::name_and_subcommand) {
            let comma = if offered.is_empty() { "" } else { ", " };
            let _ = write!(offered, "{comma}{}", own.unwrap_or_default());
        }
        let (part, container) = (clip(part), container.to_ascii_uppercase());
        ErrorReply::new(format!("ERR unknown subcommand '{part}'. {container} offers: {offered}"))
    }
}

/// How much of a stranger's bytes an error shows, as in Redis.
const SHOWN_BYTES_MAX: usize = 128;

/// The beginning of somebody's bytes, as text.
fn clip(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..SHOWN_BYTES_MAX).unwrap_or(bytes)).into_owned()
}

/// No name is longer, and a stranger may send one of half a gigabyte: it is not even hashed.
const NAME_BYTES_MAX: usize = 48;

/// What a hash of nothing is.
const HASH_BEGIN: u32 = 0x811c_9dc5;

/// FNV-1a: goes on from the hash of what stood before, with the bytes in lower case. Whoever sends
/// crafted names meets a few steps more, no list: the slots are filled by the table alone.
#[inline]
fn hash(before: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(before, |hash, byte| {
        (hash ^ u32::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0193)
    })
}

/// The slot where the search for a hash begins. `slots` is a power of two.
#[inline]
fn slot(hash: u32, slots: usize) -> usize {
    // The upper half of such a hash is the better one.
    (hash ^ (hash >> 15)) as usize & slots.wrapping_sub(1)
}

#[inline]
fn slot_after(at: usize, slots: usize) -> usize {
    (at + 1) & (slots - 1)
}

/// The name that is nearest to what was typed, if it is near at all.
fn closest<'a>(typed: &[u8], names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // No name is longer; what is much longer is near to none.
    let typed = typed.get(..TYPED_BYTES_MAX).unwrap_or(typed).to_ascii_lowercase();
    let allowed = (typed.len() / 3).clamp(1, 3);
    names
        .map(|name| (distance(&typed, name.as_bytes()), name))
        .filter(|(steps, _)| *steps <= allowed)
        .min()
        .map(|(_, name)| name)
}

const TYPED_BYTES_MAX: usize = 32;

/// How many bytes must be put in, left out, replaced, or swapped with the next one (Damerau,
/// without a second change of what was swapped).
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
