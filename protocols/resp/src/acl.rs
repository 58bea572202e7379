//! Access control lists: users and their permissions for commands, namespaces and channels.
//!
//! The rules are those of Redis with namespaces instead of key patterns: `on`, `off`, `>password`,
//! `#sha256`, `nopass`, `+get`, `-client|list`, `+@read`, `~{ns},*`, `~*`, `&channel`. They are
//! read from the configuration at start and never change.

mod rules;
mod user;
mod password;

pub use rules::AclRuleError;
pub use user::User;

use crate::command::command_table::CommandTable;
use password::PasswordHashes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Name of the user of a client that is not authenticated.
pub const DEFAULT_USER: &str = "default";

/// All users.
#[derive(Debug)]
pub struct Users {
    users: BTreeMap<String, Arc<User>>,
    /// Password hashes of unknown users, so that authentication takes the same time for them.
    no_passwords: PasswordHashes,
}

impl Users {
    /// Users if none is declared: the default user may do everything.
    pub fn open<R>(table: &CommandTable<R>) -> Self {
        Self::of(vec![User::unrestricted(table)])
    }

    /// Parses lines of the form `user NAME RULE...`. Empty lines and lines that start with `#` are
    /// ignored. If a user is declared, `default` has no permissions unless a line gives them.
    ///
    /// # Errors
    /// An invalid line, with its number and the correct form.
    pub fn parse<R>(text: &str, table: &CommandTable<R>) -> Result<Self, AclRuleError> {
        let users = rules::read(text, table)?;
        Ok(if users.is_empty() { Self::open(table) } else { Self::of(users) })
    }

    fn of(users: Vec<User>) -> Self {
        let users = users.into_iter().map(|user| (user.name().to_owned(), Arc::new(user)));
        Self { users: users.collect(), no_passwords: PasswordHashes::default() }
    }

    /// The user of a new connection: the default user, if it needs no password.
    pub fn initial_user(&self) -> Option<&Arc<User>> {
        self.find(DEFAULT_USER.as_bytes()).filter(|user| user.is_on() && user.is_nopass())
    }

    /// True if a user without a password can log in.
    pub fn allows_passwordless(&self) -> bool {
        self.users.values().any(|user| user.is_on() && user.is_nopass())
    }

    /// Authenticates a user that is on. Takes the same time for unknown names.
    pub fn authenticate(&self, name: &[u8], password: &[u8]) -> Option<&Arc<User>> {
        let user = self.find(name);
        let password_hashes = user.map_or(&self.no_passwords, |user| user.password_hashes());
        let is_correct = password_hashes.contains(password);
        user.filter(|user| user.is_on() && (is_correct | user.is_nopass()))
    }

    /// The user with this name.
    pub fn find(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.users.get(std::str::from_utf8(name).ok()?)
    }

    /// All users in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<User>> {
        self.users.values()
    }
}
#[cfg(test)]
mod tests;
