//! What is known of a command: one row of the table.
//!
//! `R` is what carries it out; the rows are the same for whoever only reads them (users, the
//! answer to `COMMAND`, the documentation).

pub mod command_table;
pub mod stats;
mod key_spec;
mod flags;

pub use flags::{AclCategories, CommandFlags, CommandGroup};
pub use key_spec::{ArgPositions, KeyspaceScope};

use crate::parse::Args;
use crate::reply::error_reply::ErrorReply;

/// One command, or one subcommand, of the table.
#[derive(Clone, Copy, Debug)]
pub struct Command<R> {
    /// In lower case; that of a subcommand is `client|setname`.
    pub name: &'static str,
    /// How many arguments with the name (and the subcommand's); below zero: at least so many.
    pub arity: i8,
    /// What kind of command it is.
    pub flags: CommandFlags,
    /// Which arguments are keys.
    pub keys: ArgPositions,
    /// Which arguments are channels that it publishes to or subscribes to.
    pub channels: ArgPositions,
    /// What of a namespace it walks.
    pub walk: KeyspaceScope,
    /// The chapter that it stands in.
    pub group: CommandGroup,
    /// Categories of users' rules beyond those that follow from flags and group.
    pub also: AclCategories,
    /// What it does, in a line.
    pub summary: &'static str,
    /// What it costs.
    pub complexity: &'static str,
    /// How it differs from the command of that name in Redis 7; empty if in nothing.
    pub differs: &'static str,
    /// Its place among all, which the catalogue gives it.
    pub number: u16,
    /// Carries it out.
    pub run: R,
}

impl<R> Command<R> {
    /// Whether its first argument names a subcommand.
    #[inline]
    pub const fn has_subcommands(&self) -> bool {
        self.flags.has(CommandFlags::CONTAINER)
    }

    /// All categories that it is in.
    pub fn categories(&self) -> AclCategories {
        // What is never carried out itself is in no group, as in Redis.
        if self.has_subcommands() && self.arity < -1 {
            return AclCategories::SLOW;
        }
        let mut found = self.flags.categories();
        if self.group == CommandGroup::Scripts {
            // As in Redis: who may read may not therefore run scripts.
            found = found.without(AclCategories::READ);
        }
        found.and(self.group.categories()).and(self.also)
    }

    /// The name of the command that this is a subcommand of, and its own.
    pub fn name_and_subcommand(&self) -> (&'static str, Option<&'static str>) {
        match self.name.split_once('|') {
            Some((container, own)) => (container, Some(own)),
            None => (self.name, None),
        }
    }

    /// Refuses a request with too few or too many arguments.
    ///
    /// # Errors
    /// The text of Redis.
    #[inline]
    pub fn check_arity(&self, args: Args<'_>) -> Result<(), ErrorReply> {
        let wanted = usize::from(self.arity.unsigned_abs());
        let is_right = if self.arity < 0 { args.len() >= wanted } else { args.len() == wanted };
        if is_right { Ok(()) } else { Err(ErrorReply::arity(self.name)) }
    }
}
