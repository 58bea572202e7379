//! All commands, with a hash table of their names.

use crate::command::CommandSpec;
use crate::parse::Args;
use crate::reply::error_reply::ErrorReply;
use std::cell::Cell;
use std::fmt;
use std::fmt::Write as _;

/// All commands in the order of their names.
#[derive(Debug)]
pub struct CommandTable<R> {
    commands: Vec<CommandSpec<R>>,
    /// Open addressing, at least four slots per command, a power of two. A slot is the index in
    /// `commands` plus 1, or 0 if empty.
    slots: Vec<u16>,
    /// The same for the names of at most eight bytes that are no subcommands: the packed name, and
    /// the index in `commands`. 0: empty.
    short_slots: Vec<(u64, u16)>,
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
        let short = || commands.iter().filter(|command| !command.name.contains('|'));
        let short =
            || short().filter_map(|command| Some((packed(command.name.as_bytes())?, command)));
        let mut short_slots = vec![(0, 0); (short().count() * 4).next_power_of_two()];
        for (name, command) in short() {
            let mut at = short_slot(name, short_slots.len());
            while short_slots.get(at).is_some_and(|(taken, _)| *taken != 0) {
                at = slot_after(at, short_slots.len());
            }
            if let Some(free) = short_slots.get_mut(at) {
                *free = (name, command.number);
            }
        }
        Self { commands, slots, short_slots }
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

    /// As [`CommandTable::find`], without subcommands.
    #[inline]
    fn find_command(&self, name: &[u8]) -> Option<&CommandSpec<R>> {
        if let Some(wanted) = packed(name) {
            let mut at = short_slot(wanted, self.short_slots.len());
            while let Some((found, number)) = self.short_slots.get(at) {
                if *found == wanted {
                    return self.commands.get(usize::from(*number));
                }
                if *found == 0 {
                    return None;
                }
                at = slot_after(at, self.short_slots.len());
            }
        }
        self.find(name).filter(|_| !name.contains(&b'|'))
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
        let Some(command) = self.find_command(name) else { return Err(self.unknown(name, args)) };
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
        let command = self.find_command(name)?;
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

/// Names and their commands that were requested last.
const RECENT_SLOTS: usize = 16;

/// A name of at most eight bytes as a client has sent it, see [`word`], and its command.
type RecentSlot<R> = Cell<(u64, Option<&'static CommandSpec<R>>)>;

/// The commands that were requested last, on one core. Clients send few of them, each in the same
/// case.
pub struct RecentCommands<R: 'static> {
    table: &'static CommandTable<R>,
    slots: [RecentSlot<R>; RECENT_SLOTS],
}

impl<R> fmt::Debug for RecentCommands<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecentCommands").finish_non_exhaustive()
    }
}

impl<R> RecentCommands<R> {
    /// None of the commands of this table.
    pub fn new(table: &'static CommandTable<R>) -> Self {
        Self { table, slots: std::array::from_fn(|_| Cell::new((0, None))) }
    }

    /// The table.
    #[inline]
    pub const fn table(&self) -> &'static CommandTable<R> {
        self.table
    }

    /// As [`CommandTable::lookup`].
    ///
    /// # Errors
    /// Those of [`CommandTable::lookup`].
    #[inline]
    pub fn lookup(&self, args: Args<'_>) -> Result<&'static CommandSpec<R>, ErrorReply> {
        match args.get(0).and_then(|name| self.find(name)) {
            Some(command) => command.check_arity(args).map(|()| command),
            None => self.lookup_new(args),
        }
    }

    /// The command of a name that is in use, if it has no subcommands.
    #[inline]
    pub(crate) fn find(&self, name: &[u8]) -> Option<&'static CommandSpec<R>> {
        let wanted = word(name)?;
        let (found, command) = self.slot(wanted)?.get();
        command.filter(|_| found == wanted)
    }

    #[inline]
    fn slot(&self, word: u64) -> Option<&RecentSlot<R>> {
        self.slots.get(short_slot(word, RECENT_SLOTS))
    }

    #[inline(never)]
    fn lookup_new(&self, args: Args<'_>) -> Result<&'static CommandSpec<R>, ErrorReply> {
        let command = self.table.lookup(args)?;
        if let Some(word) = args.get(0).and_then(word)
            && let Some(slot) = self.slot(word)
            // Of those with subcommands the next argument decides.
            && !command.has_subcommands()
            && !command.name.contains('|')
        {
            slot.set((word, Some(command)));
        }
        Ok(command)
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

/// A name of one to eight bytes, as a number that is not 0. Two names have two numbers.
#[inline]
fn word(name: &[u8]) -> Option<u64> {
    let half = |bytes: &[u8; 4]| u64::from(u32::from_le_bytes(*bytes));
    let shift = |bytes: usize| 8 * bytes;
    let word = match *name {
        [a] => u64::from(a),
        [a, .., z] if name.len() <= 3 => {
            let middle = u64::from(*name.get(1)?);
            u64::from(a) | middle << 8 | u64::from(z) << shift(name.len() - 1)
        }
        _ if name.len() <= 8 => {
            half(name.first_chunk()?) | half(name.last_chunk()?) << shift(name.len() - 4)
        }
        _ => return None,
    };
    // A name that ends with a zero byte would be that of a shorter one.
    (*name.last()? != 0).then_some(word)
}

/// As [`word`], of the name in lower case.
#[inline]
fn packed(name: &[u8]) -> Option<u64> {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let word = word(name)?;
    // Bit 7 of each byte of `A` to `Z`, which have bit 5 in lower case.
    let low_bits = word & (0x7f * LOW);
    let is_upper = (low_bits + (0x80 - 0x41) * LOW) ^ (low_bits + (0x80 - 0x5b) * LOW);
    Some(word | (is_upper & !word & (0x80 * LOW)) >> 2)
}

/// The first slot of a packed name.
#[inline]
fn short_slot(name: u64, slots: usize) -> usize {
    // 2^64 divided by the golden ratio: the upper half depends on all bytes.
    (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & slots.wrapping_sub(1)
}

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

#[cfg(test)]
mod tests {
    use super::RecentCommands;
    use crate::parse::OwnedArgs;
    use crate::table::TABLE;

    #[test]
    fn a_name_is_found_in_any_case() {
        for command in TABLE.commands() {
            for name in [command.name.to_owned(), command.name.to_ascii_uppercase()] {
                let found = TABLE.find(name.as_bytes()).map(|found| found.name);
                assert_eq!(found, Some(command.name));
                let found = TABLE.find_command(name.as_bytes()).map(|found| found.name);
                assert_eq!(found, (!name.contains('|')).then_some(command.name));
            }
        }
    }

    #[test]
    fn a_recent_command_is_that_of_the_table() {
        let recent = RecentCommands::new(&TABLE);
        // Each name twice: first from the table. Names of one slot replace each other.
        for _ in 0..2 {
            for command in TABLE.commands() {
                let (name, part) = command.name_and_subcommand();
                for name in [name.to_owned(), name.to_ascii_uppercase()] {
                    for words in 1..6 {
                        let words = [part].into_iter().flatten().chain(["1"; 6]).take(words);
                        let args: OwnedArgs =
                            [&*name].into_iter().chain(words).map(str::as_bytes).collect();
                        let numbers = [
                            recent.lookup(args.args()),
                            recent.lookup(args.args()),
                            TABLE.lookup(args.args()),
                        ]
                        .map(|found| found.map(|found| found.number).map_err(|e| e.to_string()));
                        assert_eq!(numbers[0], numbers[2], "{name} {part:?}");
                        assert_eq!(numbers[1], numbers[2], "{name} {part:?}");
                    }
                }
            }
        }
        let get: OwnedArgs = [&b"get"[..], b"key"].into_iter().collect();
        assert!(recent.lookup(get.args()).is_ok());
        assert!(recent.find(b"get").is_some_and(|command| command.name == "get"));
        for name in [&b"ge"[..], b"get\0", b"client", b"tag", b"", b"a longer name"] {
            assert!(recent.find(name).is_none(), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn similar_names_are_other_names() {
        for name in ["", "g", "ge", "ge\0", "get\0", "get\0\0\0\0\0", "\x07et", "\u{c7}t", "gett"] {
            assert!(TABLE.find_command(name.as_bytes()).is_none(), "{name:?}");
        }
        for command in TABLE.commands() {
            for at in 0..command.name.len() {
                // Each bit but that of the case of a letter.
                for bit in [0, 1, 2, 3, 4, 6, 7] {
                    let mut name = command.name.as_bytes().to_vec();
                    name[at] ^= 1 << bit;
                    let found = TABLE.find_command(&name).map(|found| found.name.as_bytes());
                    assert!(found.is_none_or(|found| found.eq_ignore_ascii_case(&name)));
                }
            }
        }
    }
}
