//! The settings of `nearstate serve`: one table of keys, which is what the file, the environment
//! and the flags may say, what `--print-config` shows, and what the example file is made of.
//!
//! ```text
//! default  <  file (--config, else $NEARSTATE_CONFIG)  <  environment (NEARSTATE_..)  <  flags
//! ```
//!
//! A higher layer replaces what a lower one says of a key, lists included.

mod print;
mod layers;
mod keys;
mod nearest;
mod value;

pub(crate) use keys::{KEYS, Settings};
pub(crate) use layers::{Layers, read as read_text};
pub(crate) use print::print;
pub(crate) use value::{Form, Level, time};

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use nearstate_model::Result;

/// What the command line says of settings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    /// The file of settings.
    config: Option<PathBuf>,
    given: BTreeMap<&'static str, Vec<String>>,
}

impl Flags {
    /// Those of a command that takes the file alone.
    pub(crate) const fn of_file(config: Option<PathBuf>) -> Self {
        Self { config, given: BTreeMap::new() }
    }

    /// All layers together.
    pub(crate) fn layers(
        &self,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Layers> {
        Layers::gather(self.config.clone(), environment, &self.given)
    }
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(
        &mut self,
        matches: &ArgMatches,
    ) -> std::result::Result<(), clap::Error> {
        if let Some(path) = matches.get_one::<PathBuf>("config") {
            self.config = Some(path.clone());
        }
        for key in KEYS {
            if let Some(words) = matches.get_many::<String>(key.name) {
                self.given.insert(key.name, words.cloned().collect());
            }
        }
        Ok(())
    }
}

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("A file of settings (TOML) [else: $NEARSTATE_CONFIG]");
        KEYS.iter().fold(command.arg(config), |command, key| {
            let mut arg = Arg::new(key.name).long(key.flag).value_name(key.wants).help(key.help());
            let own = key.name.replace(['.', '_'], "-");
            if own != key.flag {
                arg = arg.alias(own);
            }
            arg = if key.is_list { arg.action(ArgAction::Append) } else { arg };
            if key.is_switch {
                arg = arg.num_args(0..=1).default_missing_value("true").require_equals(true);
            }
            if let Some((section, _)) = key.name.split_once('.') {
                arg = arg.help_heading(format!("Settings of [{section}]"));
            }
            command.arg(arg)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests;
