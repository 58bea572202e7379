//! One user: what he may do, judged for each request.

use super::DEFAULT_USER;
use super::password::PasswordHashes;
use crate::command::command_table::CommandTable;
use crate::command::{Command, CommandFlags, KeyspaceScope};
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
    /// A bit for each command of the catalogue, by its number.
    pub(super) commands: Vec<u64>,
    /// The rules that `commands` was made of.
    pub(super) command_rules: Vec<String>,
    pub(super) namespaces: NamespaceRule,
    pub(super) channels: ChannelRule,
    /// Whether nothing is forbidden to him: then nothing needs to be looked at.
    pub(super) is_unrestricted: bool,
}

/// Which namespaces' keys he may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NamespaceRule {
    All,
    These(BTreeSet<String>),
}

/// Which channels he may use.
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
    /// A user who may do nothing.
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

    /// The default user of a server where nobody was declared.
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

    /// His name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether he may come in at all.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Whether nothing is forbidden to him: every command, key and channel.
    pub fn is_unrestricted(&self) -> bool {
        self.is_unrestricted
    }

    /// Whether any password is right.
    pub fn is_nopass(&self) -> bool {
        self.is_nopass
    }

    pub(super) fn password_hashes(&self) -> &PasswordHashes {
        &self.password_hashes
    }

    /// Judges a request whose command and number of arguments are right.
    ///
    /// # Errors
    /// What he may not: the command, one of the keys, the namespaces that it walks, one of the
    /// channels.
    #[inline]
    pub fn check<R>(&self, command: &Command<R>, args: Args<'_>) -> Result<(), ErrorReply> {
        if self.is_unrestricted || command.flags.has(CommandFlags::NO_AUTH) {
            return Ok(());
        }
        self.check_each(command, args)
    }

    fn check_each<R>(&self, command: &Command<R>, args: Args<'_>) -> Result<(), ErrorReply> {
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
            // A pattern is allowed where it is written in the rules; else somebody could ask for
            // more than those match.
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

    /// Whether he may run this command.
    #[inline]
    pub fn may_run<R>(&self, command: &Command<R>) -> bool {
        let (word, bit) = (usize::from(command.number / 64), command.number % 64);
        self.commands.get(word).is_some_and(|word| word >> bit & 1 == 1)
    }

    /// Whether he may use this key.
    #[inline]
    pub fn may_touch(&self, key: &[u8]) -> bool {
        match &self.namespaces {
            NamespaceRule::All => true,
            NamespaceRule::These(names) => names.contains(KeyName::of(key).namespace),
        }
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

    /// His passwords, as SHA-256 in hexadecimal digits.
    pub fn passwords(&self) -> impl ExactSizeIterator<Item = String> {
        self.password_hashes.hex_digits()
    }

    /// His rules about commands: `-@all +get`.
    pub fn command_rules(&self) -> String {
        self.command_rules.join(" ")
    }

    /// His rules about keys: `~{ns},*`.
    pub fn key_rules(&self) -> String {
        match &self.namespaces {
            NamespaceRule::All => "~*".to_owned(),
            NamespaceRule::These(names) => {
                let rules: Vec<String> = names.iter().map(|name| key_rule(name)).collect();
                rules.join(" ")
            }
        }
    }

    /// His rules about channels: `&channel`. What is not UTF-8 cannot stand in a configuration.
    pub fn channel_rules(&self) -> String {
        match &self.channels {
            ChannelRule::All => "&*".to_owned(),
            ChannelRule::Matching(patterns) => {
                let rules = patterns.iter().map(|one| format!("&{}", String::from_utf8_lossy(one)));
                rules.collect::<Vec<String>>().join(" ")
            }
        }
    }

    /// All of it in one line, as `ACL LIST` shows it; such a line can be read again.
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

/// `~{ns},*`; the keys that name no namespace are `~{},*`.
fn key_rule(namespace: &str) -> String {
    if namespace == crate::key_name::PLAIN_NAMESPACE {
        return "~{},*".to_owned();
    }
    format!("~{{{namespace}}},*")
}

/// Which namespaces a request walks.
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
