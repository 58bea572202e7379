//! One user and the permission check of a request.

use super::DEFAULT_USER;
use super::password::PasswordHashes;
use crate::command::command_table::CommandTable;
use crate::command::{CommandFlags, CommandSpec, KeyspaceScope};
use crate::key_name::{KeyName, pattern_namespace};
use crate::parse::Args;
use crate::reply::error_reply::ErrorReply;
use nearstate_store::glob;
use std::collections::BTreeSet;

/// One user.
#[derive(Clone, Debug)]
pub struct User {
    pub(super) name: String,
    pub(super) is_on: bool,
    pub(super) is_nopass: bool,
    pub(super) password_hashes: PasswordHashes,
    /// A bit for each command, by its number.
    pub(super) commands: Vec<u64>,
    /// The rules that resulted in `commands`.
    pub(super) command_rules: Vec<String>,
    pub(super) namespaces: NamespaceRule,
    pub(super) channels: ChannelRule,
    /// True if every request is allowed, so that no check is needed.
    pub(super) is_unrestricted: bool,
}

/// Namespaces whose keys are allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamespaceRule {
    All,
    These(BTreeSet<String>),
}

/// Channels that are allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChannelRule {
    All,
    Matching(BTreeSet<Vec<u8>>),
}

const NO_KEY: ErrorReply = ErrorReply::fixed(
    "NOPERM this user has no permissions to access one of the keys used as arguments",
);
const NO_CHANNEL: ErrorReply = ErrorReply::fixed(
    "NOPERM this user has no permissions to access one of the channels used as arguments",
);

impl User {
    /// A user without permissions.
    pub(super) fn new<R>(name: &str, table: &CommandTable<R>) -> Self {
        Self {
            name: name.to_owned(),
            is_on: false,
            is_nopass: false,
            password_hashes: PasswordHashes::default(),
            commands: vec![0; table.commands().len().div_ceil(64)],
            command_rules: vec!["-@all".to_owned()],
            namespaces: NamespaceRule::These(BTreeSet::new()),
            channels: ChannelRule::Matching(BTreeSet::new()),
            is_unrestricted: false,
        }
    }

    /// The default user of a server without declared users.
    pub(super) fn unrestricted<R>(table: &CommandTable<R>) -> Self {
        let mut user = Self::new(DEFAULT_USER, table);
        user.commands.fill(u64::MAX);
        Self {
            is_on: true,
            is_nopass: true,
            command_rules: vec!["+@all".to_owned()],
            namespaces: NamespaceRule::All,
            channels: ChannelRule::All,
            is_unrestricted: true,
            ..user
        }
    }

    /// Name of the user.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the user can log in.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether every command, key and channel is allowed.
    pub fn is_unrestricted(&self) -> bool {
        self.is_unrestricted
    }

    /// Whether every password is accepted.
    pub fn is_nopass(&self) -> bool {
        self.is_nopass
    }

    pub(super) fn password_hashes(&self) -> &PasswordHashes {
        &self.password_hashes
    }

    /// Checks the permissions for a request with valid command and arity.
    ///
    /// # Errors
    /// The command, a key, a scanned namespace or a channel is not allowed.
    #[inline]
    pub fn check<R>(&self, command: &CommandSpec<R>, args: Args<'_>) -> Result<(), ErrorReply> {
        if self.is_unrestricted || command.flags.has(CommandFlags::NO_AUTH) {
            return Ok(());
        }
        self.check_each(command, args)
    }

    fn check_each<R>(&self, command: &CommandSpec<R>, args: Args<'_>) -> Result<(), ErrorReply> {
        if !self.may_run(command) {
            let name = command.name;
            let text = format!("NOPERM this user has no permissions to run the '{name}' command");
            return Err(ErrorReply::new(text));
        }
        if let NamespaceRule::These(_) = self.namespaces {
            let mut keys = command.keys.of(args);
            let all = keys.all(|at| args.get(at).is_none_or(|key| self.may_touch(key)));
            if !all || !self.may_walk(scoped_namespaces(command.walk, args)) {
                return Err(NO_KEY);
            }
        }
        if let ChannelRule::Matching(patterns) = &self.channels {
            // A pattern must equal a pattern in the rules: matching it could allow more channels
            // than the rules do.
            let is_pattern = matches!(command.name, "psubscribe" | "punsubscribe");
            let is_allowed = |channel: &[u8]| {
                let mut matching = patterns.iter().filter(|one| glob::matches(one, channel));
                if is_pattern { patterns.contains(channel) } else { matching.next().is_some() }
            };
            if !command.channels.of(args).all(|at| args.get(at).is_none_or(is_allowed)) {
                return Err(NO_CHANNEL);
            }
        }
        Ok(())
    }

    /// Whether a command is allowed.
    #[inline]
    pub fn may_run<R>(&self, command: &CommandSpec<R>) -> bool {
        let (word, bit) = (usize::from(command.number / 64), command.number % 64);
        self.commands.get(word).is_some_and(|word| word >> bit & 1 == 1)
    }

    /// Whether a key is allowed.
    #[inline]
    pub fn may_touch(&self, key: &[u8]) -> bool {
        match &self.namespaces {
            NamespaceRule::All => true,
            NamespaceRule::These(names) => names.contains(KeyName::of(key).namespace),
        }
    }

    /// Whether all keys of a pattern are allowed; `None`: the pattern concerns all namespaces.
    pub fn may_walk_pattern(&self, namespace: Option<KeyName<'_>>) -> bool {
        self.may_walk(match namespace {
            Some(name) => ScopedNamespaces::Namespace(name.namespace),
            None => ScopedNamespaces::All,
        })
    }

    fn may_walk(&self, scoped_namespaces: ScopedNamespaces<'_>) -> bool {
        match (&self.namespaces, scoped_namespaces) {
            (NamespaceRule::All, _) | (_, ScopedNamespaces::Nothing) => true,
            (NamespaceRule::These(names), ScopedNamespaces::Namespace(name)) => {
                names.contains(name)
            }
            (NamespaceRule::These(_), ScopedNamespaces::All) => false,
        }
    }

    /// The password hashes, as SHA-256 in hexadecimal digits.
    pub fn passwords(&self) -> impl ExactSizeIterator<Item = String> {
        self.password_hashes.hex_digits()
    }

    /// Rules for commands: `-@all +get`.
    pub fn command_rules(&self) -> String {
        self.command_rules.join(" ")
    }

    /// Rules for keys: `~{ns},*`.
    pub fn key_rules(&self) -> String {
        match &self.namespaces {
            NamespaceRule::All => "~*".to_owned(),
            NamespaceRule::These(names) => {
                let rules: Vec<String> = names.iter().map(|name| key_rule(name)).collect();
                rules.join(" ")
            }
        }
    }

    /// Rules for channels: `&channel`. A configuration contains only valid UTF-8.
    pub fn channel_rules(&self) -> String {
        match &self.channels {
            ChannelRule::All => "&*".to_owned(),
            ChannelRule::Matching(patterns) => {
                let rules = patterns.iter().map(|one| format!("&{}", String::from_utf8_lossy(one)));
                rules.collect::<Vec<String>>().join(" ")
            }
        }
    }

    /// The complete line of `ACL LIST`, which can be parsed again.
    pub fn line(&self) -> String {
        let mut words = vec!["user".to_owned(), self.name.clone()];
        words.push(if self.is_on { "on" } else { "off" }.to_owned());
        if self.is_nopass {
            words.push("nopass".to_owned());
        }
        words.extend(self.passwords().map(|digits| format!("#{digits}")));
        words.push(self.key_rules());
        if let ChannelRule::Matching(_) = self.channels {
            words.push("resetchannels".to_owned());
        }
        words.push(self.channel_rules());
        words.push(self.command_rules());
        words.retain(|word| !word.is_empty());
        words.join(" ")
    }
}

/// `~{ns},*`, or `~{},*` for the keys without a namespace.
fn key_rule(namespace: &str) -> String {
    if namespace == crate::key_name::PLAIN_NAMESPACE {
        return "~{},*".to_owned();
    }
    format!("~{{{namespace}}},*")
}

/// The namespaces that a request scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScopedNamespaces<'a> {
    Nothing,
    Namespace(&'a str),
    All,
}

fn scoped_namespaces(walk: KeyspaceScope, args: Args<'_>) -> ScopedNamespaces<'_> {
    let pattern = match walk {
        KeyspaceScope::None => return ScopedNamespaces::Nothing,
        KeyspaceScope::All => return ScopedNamespaces::All,
        KeyspaceScope::Pattern(at) => args.get(usize::from(at)),
        KeyspaceScope::Match => match_of(args),
    };
    match pattern.and_then(pattern_namespace) {
        Some(name) => ScopedNamespaces::Namespace(name.namespace),
        None => ScopedNamespaces::All,
    }
}

/// The pattern of `SCAN cursor [MATCH pattern] [COUNT n] ...`; the last one counts.
fn match_of(args: Args<'_>) -> Option<&[u8]> {
    let mut words = args.from(2).iter();
    let mut pattern = None;
    while let (Some(word), Some(value)) = (words.next(), words.next()) {
        if word.eq_ignore_ascii_case(b"match") {
            pattern = Some(value);
        }
    }
    pattern
}
