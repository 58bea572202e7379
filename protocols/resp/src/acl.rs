//! Users and what they may do: commands, namespaces, channels.
//!
//! Rules are those of Redis, as far as they can be kept by namespaces: `on`, `off`, `>password`,
//! `#sha256`, `nopass`, `+get`, `-client|list`, `+@read`, `~{ns},*`, `~*`, `&channel`. They are
//! read from the configuration, once; nothing changes them while the server runs.

mod rules;
mod user;
mod password;

pub use rules::AclRuleError;
pub use user::User;

use crate::command::command_table::CommandTable;
use password::PasswordHashes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Who a client is until he says it.
pub const DEFAULT_USER: &str = "default";

/// All users.
#[derive(Debug)]
pub struct Users {
    users: BTreeMap<String, Arc<User>>,
    /// Whom a name that is not there is compared with, so that the answer takes as long.
    no_passwords: PasswordHashes,
}

impl Users {
    /// Nobody was declared: everybody may do everything.
    pub fn open<R>(table: &CommandTable<R>) -> Self {
        Self::of(vec![User::unrestricted(table)])
    }

    /// Reads lines of the form `user NAME RULE...`; empty ones and those that begin with `#` say
    /// nothing. Once a user is declared, `default` may do nothing unless a line says so.
    ///
    /// # Errors
    /// A line that says something else, by its number, with what would be right.
    pub fn parse<R>(text: &str, table: &CommandTable<R>) -> Result<Self, AclRuleError> {
        let users = rules::read(text, table)?;
        Ok(if users.is_empty() { Self::open(table) } else { Self::of(users) })
    }

    fn of(users: Vec<User>) -> Self {
        let users = users.into_iter().map(|user| (user.name().to_owned(), Arc::new(user)));
        Self { users: users.collect(), no_passwords: PasswordHashes::default() }
    }

    /// Who a client is that has said nothing yet: the default user, if that needs no password.
    pub fn initial_user(&self) -> Option<&Arc<User>> {
        self.find(DEFAULT_USER.as_bytes()).filter(|user| user.is_on() && user.is_nopass())
    }

    /// True if somebody whom nobody has given a password may come in, by whatever name.
    pub fn allows_passwordless(&self) -> bool {
        self.users.values().any(|user| user.is_on() && user.is_nopass())
    }

    /// The user of this name, if the password is his and he is on. Takes as long for a name that
    /// is not there.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<&Arc<User>> {
        let user = self.find(name);
        let password_hashes = user.map_or(&self.no_passwords, |user| user.password_hashes());
        let is_correct = password_hashes.contains(password);
        user.filter(|user| user.is_on() && (is_correct | user.is_nopass()))
    }

    /// The user of this name.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.users.get(std::str::from_utf8(name).ok()?)
    }

    /// All, in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<User>> {
        self.users.values()
    }
}
#[cfg(test)]
mod tests;
