//! Description of a command: one row of the table.
//!
//! `R` is the function that executes it. Code that only reads descriptions (ACL, `COMMAND`,
//! documentation) is generic over it.

pub mod command_table;
pub mod stats;
pub(crate) mod key_access;
mod arg_positions;
mod flags;

pub use arg_positions::{ArgPositions, KeyspaceScope};
pub use flags::{AclCategories, CommandFlags, CommandGroup};

use crate::parse::Args;
use crate::reply::error_reply::ErrorReply;

/// A command or subcommand.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec<R> {
    /// Lower case; subcommands as `client|setname`.
    pub name: &'static str,
    /// Number of arguments including the names of command and subcommand; negative for a minimum.
    pub arity: i8,
    /// Flags.
    pub flags: CommandFlags,
    /// Which arguments are keys.
    pub keys: ArgPositions,
    /// Which arguments are channels.
    pub channels: ArgPositions,
    /// Keys that the command accesses in addition to its key arguments.
    pub walk: KeyspaceScope,
    /// Group in the documentation.
    pub group: CommandGroup,
    /// ACL categories beyond those that follow from flags and group.
    pub also: AclCategories,
    /// Summary in one sentence.
    pub summary: &'static str,
    /// Time complexity.
    pub complexity: &'static str,
    /// Differences from the command in Redis 7; empty if there are none.
    pub differs: &'static str,
    /// Index in the order of names, assigned by [`CommandTable`](command_table::CommandTable).
    pub number: u16,
    /// Executes the command.
    pub run: R,
}

impl<R> CommandSpec<R> {
    /// Whether its first argument names a subcommand.
    #[inline]
    pub const fn has_subcommands(&self) -> bool {
        self.flags.has(CommandFlags::CONTAINER)
    }

    /// Whether `MONITOR` shows it: no administrative ones, as in Redis, and no passwords.
    pub fn is_monitored(&self) -> bool {
        let hidden = [CommandFlags::SKIP_MONITOR, CommandFlags::ADMIN, CommandFlags::SECRET];
        !hidden.iter().any(|flag| self.flags.has(*flag))
    }

    /// True if it may change records. A script has no flag that says so.
    #[inline]
    pub fn may_write(&self) -> bool {
        self.flags.has(CommandFlags::WRITE) || matches!(self.name, "eval" | "evalsha")
    }

    /// All ACL categories.
    pub fn categories(&self) -> AclCategories {
        // A container that is never executed is in no category of its group, as in Redis.
        if self.has_subcommands() && self.arity < -1 {
            return AclCategories::SLOW;
        }
        let mut found = self.flags.categories();
        if self.group == CommandGroup::Scripts {
            // As in Redis: permission to read does not include scripts.
            found = found.without(AclCategories::READ);
        }
        found.and(self.group.categories()).and(self.also)
    }

    /// The name of the command, and of the subcommand if it is one.
    pub fn name_and_subcommand(&self) -> (&'static str, Option<&'static str>) {
        match self.name.split_once('|') {
            Some((container, own)) => (container, Some(own)),
            None => (self.name, None),
        }
    }

    /// Checks the number of arguments.
    ///
    /// # Errors
    /// Redis' text.
    #[inline]
    pub fn check_arity(&self, args: Args<'_>) -> Result<(), ErrorReply> {
        let wanted = usize::from(self.arity.unsigned_abs());
        let is_right = if self.arity < 0 { args.len() >= wanted } else { args.len() == wanted };
        if is_right { Ok(()) } else { Err(ErrorReply::arity(self.name)) }
    }
}
