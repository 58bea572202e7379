//! The layers that set settings (default, file, environment, flags) and the value that each setting
//! has in the end. Unknown and renamed settings are rejected with the name to use instead.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use nearstate_model::{Error, Result};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::bounded_read::read_bounded;
use super::closest::closest;
use super::table::{RENAMED, RawSettings, SETTINGS, SettingSpec, variable_of};
use super::values::SettingValue;

/// The variable that names the file.
const CONFIG_VARIABLE: &str = "NEARSTATE_CONFIG";

/// The prefix of the variables of all settings.
const VARIABLES: &str = "NEARSTATE_";

/// Variables with the prefix that are not settings: those of tests, and those that Kubernetes sets
/// in every pod if a service is named `nearstate`.
const NO_SETTINGS: &[&str] = &[
    "NEARSTATE_CRASH_AT",
    "NEARSTATE_JITTER",
    "NEARSTATE_PLANT",
    "NEARSTATE_PORT",
    "NEARSTATE_PROGRAM",
    "NEARSTATE_SERVICE_",
];

/// The setting with the addresses of plain TCP.
const PLAIN: &str = "listen";

/// The setting that requires client certificates.
const CLIENT_CA: &str = "tls.client_ca";

/// Maximum size of a settings file. Some settings are lists of users.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a setting was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SettingOrigin {
    /// It was not set.
    Default,
    /// In a file.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// In an environment variable.
    Environment(String),
    /// By a flag.
    Flag(&'static str),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "${name}"),
            Self::Flag(flag) => write!(f, "--{flag}"),
        }
    }
}

/// A setting as the highest layer that sets it gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RawSetting {
    /// The value, or the items of a list.
    pub(crate) items: Vec<String>,
    /// Where it was set.
    pub(crate) origin: SettingOrigin,
}

/// All layers, merged.
#[derive(Clone, Debug, Default)]
pub(crate) struct SettingLayers {
    raw: BTreeMap<&'static str, RawSetting>,
}

fn invalid(origin: &dyn fmt::Display, what: &str) -> Error {
    Error::BadArgument { detail: format!("{origin}: {what}") }
}

fn spec_of(name: &str) -> Option<&'static SettingSpec> {
    SETTINGS.iter().find(|spec| spec.name == name)
}

/// `FILE: unknown setting "prot" (line 3), did you mean "port"?`, or the new name of a renamed one.
fn unknown_in_file(origin: &SettingOrigin, typed: &str, names: &[String]) -> Error {
    let (path, place) = match origin {
        SettingOrigin::File { path, line } => {
            (path.display().to_string(), format!(" (line {line})"))
        }
        SettingOrigin::Default | SettingOrigin::Environment(_) | SettingOrigin::Flag(_) => {
            (origin.to_string(), String::new())
        }
    };
    if let Some((_, new)) = RENAMED.iter().find(|(old, _)| *old == typed) {
        let what = format!("setting {typed:?}{place} was renamed: use {new:?}");
        return invalid(&path, &what);
    }
    invalid(&path, &format!("unknown setting {typed:?}{place}{}", suggestion(typed, names)))
}

fn suggestion(typed: &str, names: &[String]) -> String {
    match closest(typed, names) {
        Some(name) => format!(", did you mean {name:?}?"),
        None => "; `nearstate serve --help` lists all settings".to_owned(),
    }
}

fn unknown_variable(name: &str) -> Error {
    if let Some((_, new)) = RENAMED.iter().find(|(old, _)| variable_of(old) == *name) {
        let new = variable_of(new);
        return invalid(&"environment", &format!("variable {name:?} was renamed: use {new:?}"));
    }
    let names = SETTINGS.iter().map(SettingSpec::variable).collect::<Vec<_>>();
    let what = format!("unknown variable {name:?}{}", suggestion(name, &names));
    invalid(&"environment", &what)
}

impl SettingLayers {
    /// Reads and merges all layers.
    ///
    /// # Errors
    /// `BadArgument`: an unknown setting, with its line and the closest known one; `System`: a file
    /// that cannot be read.
    pub(crate) fn gather(
        config: Option<PathBuf>,
        environment: impl Iterator<Item = (OsString, OsString)>,
        flags: &BTreeMap<&'static str, Vec<String>>,
    ) -> Result<Self> {
        let mut layers = Self::default();
        let variables = own_variables(environment)?;
        let named = variables.get(CONFIG_VARIABLE).filter(|path| !path.is_empty());
        if let Some(path) = config.or_else(|| named.map(PathBuf::from)) {
            layers.add_file(&path, &read(&path)?)?;
        }
        layers.add_environment(&variables)?;
        for spec in SETTINGS {
            let Some(values) = flags.get(spec.name) else { continue };
            let items = values.iter().flat_map(|value| spec.items(value)).collect();
            let origin = SettingOrigin::Flag(spec.flag);
            layers.raw.insert(spec.name, RawSetting { items, origin });
        }
        Ok(layers)
    }

    /// Adds the text of a file.
    pub(crate) fn add_file(&mut self, path: &Path, text: &str) -> Result<()> {
        let at = |offset: usize| SettingOrigin::File {
            path: path.to_owned(),
            line: text.get(..offset).unwrap_or(text).matches('\n').count() + 1,
        };
        let document = DeTable::parse(text).map_err(|error| {
            let origin = at(error.span().map_or(0, |span| span.start));
            invalid(&origin, &format!("not valid TOML: {}", error.message()))
        })?;
        self.add_table("", document.get_ref(), &at)
    }

    fn add_table(
        &mut self,
        section: &str,
        table: &DeTable<'_>,
        at: &dyn Fn(usize) -> SettingOrigin,
    ) -> Result<()> {
        for (name, value) in table {
            let origin = at(name.span().start);
            let full = match section {
                "" => name.get_ref().to_string(),
                section => format!("{section}.{}", name.get_ref()),
            };
            if let Some(spec) = spec_of(&full) {
                let items = items(spec, value.get_ref()).map_err(|what| invalid(&origin, &what))?;
                self.raw.insert(spec.name, RawSetting { items, origin });
                continue;
            }
            let prefix = format!("{full}.");
            let is_section =
                section.is_empty() && SETTINGS.iter().any(|spec| spec.name.starts_with(&prefix));
            // A section of which every setting was renamed: the error names the setting.
            let was_section =
                section.is_empty() && RENAMED.iter().any(|(old, _)| old.starts_with(&prefix));
            match value.get_ref() {
                DeValue::Table(inner) if is_section || was_section => {
                    self.add_table(&full, inner, at)?;
                }
                DeValue::Table(_) if section.is_empty() => {
                    let sections = SETTINGS.iter().filter_map(|spec| spec.name.split_once('.'));
                    let names = sections.map(|(section, _)| section.to_owned()).collect::<Vec<_>>();
                    return Err(unknown_in_file(&origin, &full, &names));
                }
                DeValue::Table(_)
                | DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_) => {
                    if is_section {
                        let what = format!("{full} is a section: write [{full}]");
                        return Err(invalid(&origin, &what));
                    }
                    let names =
                        SETTINGS.iter().map(|spec| spec.name.to_owned()).collect::<Vec<_>>();
                    return Err(unknown_in_file(&origin, &full, &names));
                }
            }
        }
        Ok(())
    }

    fn add_environment(&mut self, variables: &BTreeMap<String, String>) -> Result<()> {
        for (name, text) in variables {
            let Some(spec) = SETTINGS.iter().find(|spec| spec.variable() == *name) else {
                let is_no_setting = NO_SETTINGS.iter().any(|other| name.starts_with(other));
                if name == CONFIG_VARIABLE || is_no_setting {
                    continue;
                }
                return Err(unknown_variable(name));
            };
            let origin = SettingOrigin::Environment(name.clone());
            self.raw.insert(spec.name, RawSetting { items: spec.items(text), origin });
        }
        Ok(())
    }

    /// The setting as the highest layer gives it, or its default.
    pub(crate) fn raw(&self, spec: &SettingSpec) -> RawSetting {
        self.raw.get(spec.name).cloned().unwrap_or_else(|| {
            let items = if spec.name == PLAIN && self.requires_client_certificates() {
                Vec::new()
            } else {
                spec.items(spec.default)
            };
            RawSetting { items, origin: SettingOrigin::Default }
        })
    }

    /// True if clients must present certificates. Plain TCP is then closed unless `listen` is set:
    /// every user of the host can reach the default address, which requires no certificate.
    pub(crate) fn requires_client_certificates(&self) -> bool {
        let raw = self.raw.get(CLIENT_CA);
        raw.is_some_and(|raw| raw.items.iter().any(|item| !item.is_empty()))
    }

    /// True if the default address of plain TCP is left out for that reason.
    pub(crate) fn is_plain_left_out(&self) -> bool {
        self.requires_client_certificates() && !self.raw.contains_key(PLAIN)
    }

    /// Where a setting was set.
    pub(crate) fn origin(&self, name: &str) -> SettingOrigin {
        spec_of(name).map_or(SettingOrigin::Default, |spec| self.raw(spec).origin)
    }
}

impl RawSettings for SettingLayers {
    fn value<T: SettingValue>(&self, name: &'static str) -> Result<T> {
        let spec = spec_of(name)
            .ok_or_else(|| Error::BadArgument { detail: format!("unknown setting {name:?}") })?;
        let raw = self.raw(spec);
        T::parse(&raw.items).map_err(|what| invalid(&raw.origin, &format!("{name}: {what}")))
    }
}

/// The environment variables with our prefix.
fn own_variables(
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<BTreeMap<String, String>> {
    let mut variables = BTreeMap::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(VARIABLES)) else { continue };
        let Ok(value) = value.into_string() else {
            return Err(invalid(&format!("${name}"), "the value is not valid UTF-8"));
        };
        variables.insert(name.to_owned(), value);
    }
    Ok(variables)
}

/// Reads a whole file of settings or of users.
pub(crate) fn read(path: &Path) -> Result<String> {
    let failure = |e: std::io::Error| match e.raw_os_error() {
        Some(errno) => Error::System { detail: format!("cannot read {}", path.display()), errno },
        None => invalid(&path.display(), &e.to_string()),
    };
    let bytes = read_bounded(path, FILE_BYTES_MAX).map_err(failure)?;
    let path = path.display();
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(invalid(&path, "the file is larger than 1 MiB: check the path"));
    }
    let not_text = |_| invalid(&path, "the file is not valid UTF-8: check the path");
    String::from_utf8(bytes).map_err(not_text)
}

/// The items of a TOML value.
fn items(spec: &SettingSpec, value: &DeValue<'_>) -> std::result::Result<Vec<String>, String> {
    let item = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.to_string()),
        DeValue::Boolean(truth) => Ok(truth.to_string()),
        DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => Err(format!("{}: expected {} as a string", spec.name, spec.wants)),
    };
    if let DeValue::Array(values) = value {
        if !spec.is_list {
            return Err(format!("{}: expected one value, not a list", spec.name));
        }
        return values.iter().map(|value| item(Spanned::get_ref(value))).collect();
    }
    let one = item(value)?;
    Ok(if spec.is_list { spec.items(&one) } else { vec![one] })
}
