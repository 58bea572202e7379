//! The settings of `nearstate serve`. One table defines the names that files, environment variables
//! and flags accept, the output of `--print-config`, and the example file.
//!
//! ```text
//! default  <  file (--config, else $NEARSTATE_CONFIG)  <  environment (NEARSTATE_..)  <  flags
//! ```
//!
//! A higher layer replaces the value of a lower one, lists included.

mod print;
mod layers;
mod bounded_read;
mod table;
mod closest;
mod values;

pub(crate) use bounded_read::read_bounded;
pub(crate) use layers::{SettingLayers, SettingOrigin, read as read_text};
pub(crate) use print::print;
pub(crate) use table::{SETTINGS, Settings};
pub(crate) use values::{
    LogFormat, LogLevel, MemoryMax, NamespaceLimitLines, PlaceSetting, RegionPath, UnixPaths,
    parse_address, parse_time,
};

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command};
use nearstate_model::Result;
use table::{RENAMED, flag_of};

/// The settings on the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingFlags {
    /// The settings file.
    config: Option<PathBuf>,
    values: BTreeMap<&'static str, Vec<String>>,
}

impl SettingFlags {
    /// For a command that accepts only the settings file.
    pub(crate) const fn of_file(config: Option<PathBuf>) -> Self {
        Self { config, values: BTreeMap::new() }
    }

    /// Reads and merges all layers.
    pub(crate) fn layers(
        &self,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<SettingLayers> {
        SettingLayers::gather(self.config.clone(), environment, &self.values)
    }
}

impl clap::FromArgMatches for SettingFlags {
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
        for spec in SETTINGS {
            if let Some(values) = matches.get_many::<String>(spec.name) {
                self.values.insert(spec.name, values.cloned().collect());
            }
        }
        Ok(())
    }
}

impl Args for SettingFlags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Settings file (TOML) [default: $NEARSTATE_CONFIG]");
        let command = SETTINGS.iter().fold(command.arg(config), |command, spec| {
            let mut arg =
                Arg::new(spec.name).long(spec.flag).value_name(spec.wants).help(spec.help());
            let own = flag_of(spec.name);
            if own != spec.flag {
                arg = arg.alias(own);
            }
            arg = if spec.is_list { arg.action(ArgAction::Append) } else { arg };
            if spec.is_switch {
                arg = arg.num_args(0..=1).default_missing_value("true").require_equals(true);
            }
            if let Some((section, _)) = spec.name.split_once('.') {
                arg = arg.help_heading(format!("Settings of [{section}]"));
            }
            command.arg(arg)
        });
        RENAMED.iter().fold(command, |command, (old, new)| command.arg(renamed_flag(old, new)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// A hidden flag that is always rejected, with an error that gives its new name.
fn renamed_flag(old: &'static str, new: &str) -> Arg {
    let new = SETTINGS.iter().find(|spec| spec.name == new).map_or("", |spec| spec.flag);
    let message = format!("the flag was renamed: use --{new}");
    Arg::new(format!("renamed {old}"))
        .long(flag_of(old))
        .hide(true)
        .num_args(0..=1)
        .default_missing_value("true")
        .value_parser(move |_: &str| Err::<String, _>(message.clone()))
}

#[cfg(test)]
mod tests;
