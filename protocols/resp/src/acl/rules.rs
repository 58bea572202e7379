//! Parser of the configuration lines that declare users.

use super::password;
use super::user::{ChannelRule, NamespaceRule, User};
use crate::command::command_table::CommandTable;
use crate::command::{AclCategories, CommandSpec};
use crate::key_name::{PLAIN_NAMESPACE, is_nameable};
use std::collections::BTreeSet;
use std::fmt;

/// An invalid line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclRuleError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong, and the correct form.
    pub what: String,
}

impl fmt::Display for AclRuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for AclRuleError {}

/// Parses all users.
pub(super) fn read<R>(text: &str, table: &CommandTable<R>) -> Result<Vec<User>, AclRuleError> {
    let mut users: Vec<User> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let user = one(line, table).map_err(|what| AclRuleError { line: number, what })?;
        if users.iter().any(|other| other.name == user.name) {
            let what = format!("user '{}' is declared twice: write one line", user.name);
            return Err(AclRuleError { line: number, what });
        }
        users.push(user);
    }
    Ok(users)
}

fn one<R>(line: &str, table: &CommandTable<R>) -> Result<User, String> {
    let mut words = line.split_ascii_whitespace();
    let (Some("user"), Some(name)) = (words.next(), words.next()) else {
        return Err(
            "write `user NAME RULE...`, such as `user xapp on >secret ~{ns},* +@all`".to_owned()
        );
    };
    let mut user = User::new(name, table);
    for (number, rule) in (3..).zip(words) {
        apply(&mut user, rule, table).map_err(|what| format!("word {number}: {what}"))?;
    }
    if user.is_on && !user.is_nopass && user.password_hashes.is_empty() {
        return Err(format!(
            "user '{name}' is on but has no password: add `>password`, `#` and its SHA-256, or \
             `nopass`"
        ));
    }
    user.is_unrestricted = user.namespaces == NamespaceRule::All
        && user.channels == ChannelRule::All
        && table.commands().iter().all(|command| user.may_run(command));
    Ok(user)
}

fn apply<R>(user: &mut User, rule: &str, table: &CommandTable<R>) -> Result<(), String> {
    match rule {
        "on" => user.is_on = true,
        "off" => user.is_on = false,
        "nopass" => {
            user.is_nopass = true;
            user.password_hashes.clear();
        }
        "resetpass" => {
            user.is_nopass = false;
            user.password_hashes.clear();
        }
        "allkeys" | "~*" => user.namespaces = NamespaceRule::All,
        "resetkeys" => user.namespaces = NamespaceRule::These(BTreeSet::new()),
        "allchannels" | "&*" => user.channels = ChannelRule::All,
        "resetchannels" => user.channels = ChannelRule::Matching(BTreeSet::new()),
        "allcommands" => every_command(user, true),
        "nocommands" => every_command(user, false),
        "reset" => *user = User::new(&user.name, table),
        "sanitize-payload" | "skip-sanitize-payload" | "clearselectors" => {}
        _ => return apply_prefixed(user, rule, table),
    }
    Ok(())
}

/// Applies a rule that starts with a prefix character.
fn apply_prefixed<R>(user: &mut User, rule: &str, table: &CommandTable<R>) -> Result<(), String> {
    let mut rest = rule.chars();
    match rest.next() {
        Some('>') if rest.as_str().is_empty() => {
            return Err("missing password: write it directly after `>`".to_owned());
        }
        Some('>') => password(user, password::hash(rest.as_str().as_bytes())),
        Some('#') => {
            let what = "write `#` and the SHA-256 of a password in 64 hexadecimal digits";
            password(user, password::of_digits(rest.as_str()).ok_or(what)?);
        }
        Some('~') => namespace(user, rest.as_str())?,
        Some('&') => channel(user, rest.as_str())?,
        Some(sign @ ('+' | '-')) => command(user, rest.as_str(), sign == '+', table)?,
        _ => {
            // The word is not shown: it may be a password without its `>`.
            return Err("unknown rule: use on, off, nopass, >password, #sha256, \
                        +command, -command, +@category, -@category, ~{namespace},*, ~*, \
                        &channel, allkeys, allchannels, allcommands, nocommands, resetpass, \
                        resetkeys, resetchannels and reset"
                .to_owned());
        }
    }
    Ok(())
}

fn password(user: &mut User, secret: [u8; 32]) {
    user.is_nopass = false;
    user.password_hashes.add(secret);
}

fn namespace(user: &mut User, pattern: &str) -> Result<(), String> {
    let name = pattern.strip_prefix('{').and_then(|rest| rest.strip_suffix("},*"));
    let is_glob = |name: &str| name.contains(['*', '?', '[', '\\']);
    let name = match name {
        // Clients cannot name the namespace of the keys without a namespace; rules use the empty
        // name.
        Some("") => PLAIN_NAMESPACE,
        Some(name) if is_nameable(name.as_bytes()) && !is_glob(name) => name,
        _ => {
            return Err(format!(
                "'~{pattern}' does not name a namespace: write `~{{name}},*`, `~{{}},*` for the \
                 keys without a namespace, or `~*` for all keys"
            ));
        }
    };
    // As in Redis, more rules do not restrict `~*`.
    if let NamespaceRule::These(names) = &mut user.namespaces {
        names.insert(name.to_owned());
    }
    Ok(())
}

fn channel(user: &mut User, pattern: &str) -> Result<(), String> {
    if pattern.is_empty() {
        return Err("`&` without a channel: write `&channel`, or `&*` for all".to_owned());
    }
    if let ChannelRule::Matching(patterns) = &mut user.channels {
        patterns.insert(pattern.as_bytes().to_vec());
    }
    Ok(())
}

fn command<R>(
    user: &mut User,
    name: &str,
    is_allowed: bool,
    table: &CommandTable<R>,
) -> Result<(), String> {
    let sign = if is_allowed { '+' } else { '-' };
    let rule = format!("{sign}{}", name.to_ascii_lowercase());
    if name.eq_ignore_ascii_case("@all") {
        every_command(user, is_allowed);
        return Ok(());
    }
    let chosen: Vec<u16> = if let Some(category) = name.strip_prefix('@') {
        let Some(category) = AclCategories::find(category.as_bytes()) else {
            let all: Vec<&str> = AclCategories::iter().map(|(_, name)| name).collect();
            return Err(format!("unknown category '{name}', use one of {}, all", all.join(", ")));
        };
        numbers(table, |command| command.categories().has(category))
    } else {
        let Some(found) = table.find(name.as_bytes()) else {
            return Err(table.not_found(name));
        };
        // A command includes its subcommands. A subcommand includes its container, which does
        // nothing alone.
        numbers(table, |command| {
            command.name == found.name || command.name_and_subcommand().0 == found.name
        })
    };
    for number in chosen {
        let (word, bit) = (usize::from(number / 64), 1 << (number % 64));
        if let Some(word) = user.commands.get_mut(word) {
            *word = if is_allowed { *word | bit } else { *word & !bit };
        }
    }
    user.command_rules.retain(|rules| rules.get(1..) != rule.get(1..));
    user.command_rules.push(rule);
    Ok(())
}

fn every_command(user: &mut User, is_allowed: bool) {
    user.commands.fill(if is_allowed { u64::MAX } else { 0 });
    user.command_rules = vec![if is_allowed { "+@all" } else { "-@all" }.to_owned()];
}

fn numbers<R>(table: &CommandTable<R>, is: impl Fn(&CommandSpec<R>) -> bool) -> Vec<u16> {
    let chosen = table.commands().iter().filter(|command| is(command));
    chosen.map(|command| command.number).collect()
}
