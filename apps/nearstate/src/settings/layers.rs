//! What each layer says of each setting, and who has the last word.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use nearstate_model::{Error, Result};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::keys::{KEYS, Key, Sayings};
use super::nearest::nearest;
use super::value::Value;

/// The variable that names the file.
const CONFIG_VARIABLE: &str = "NEARSTATE_CONFIG";

/// What the variables of all settings begin with.
const VARIABLES: &str = "NEARSTATE_";

/// Variables that are ours but no settings: those of tests, and those that Kubernetes sets for
/// every pod beside a service of the name `nearstate`.
const NO_SETTINGS: &[&str] = &[
    "NEARSTATE_CRASH_AT",
    "NEARSTATE_JITTER",
    "NEARSTATE_PLANT",
    "NEARSTATE_PORT",
    "NEARSTATE_SERVICE_",
];

/// The setting of addresses of plain TCP.
const PLAIN: &str = "listen";

/// The setting that makes clients show certificates.
const CERTIFICATES: &str = "tls.client_authorities";

/// The largest file of settings. Some settings are lists of users.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Who says something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nobody.
    Default,
    /// The file.
    File {
        /// Which.
        path: PathBuf,
        /// In which line.
        line: usize,
    },
    /// A variable of the environment.
    Environment(String),
    /// A flag.
    Flag(&'static str),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => write!(f, "${name}"),
            Self::Flag(flag) => write!(f, "--{flag}"),
        }
    }
}

/// What is said of a setting by whoever has the last word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    /// The value, or several of a list.
    pub(crate) words: Vec<String>,
    /// By whom.
    pub(crate) source: Source,
}

/// What all layers say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    said: BTreeMap<&'static str, Said>,
}

fn wrong(source: &dyn fmt::Display, what: &str) -> Error {
    Error::BadArgument { detail: format!("{source}: {what}") }
}

fn key_of(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// `no setting "lissen"; the nearest is "listen"`.
fn unknown(typed: &str, names: &[String]) -> String {
    match nearest(typed, names) {
        Some(near) => format!("there is no setting {typed:?}; the nearest is {near:?}"),
        None => format!("there is no setting {typed:?}; `nearstate serve --help` shows all"),
    }
}

impl Layers {
    /// Takes all layers together.
    ///
    /// # Errors
    /// `BadArgument`: a key that is not known, with its place and the nearest one that is;
    /// `System`: a file that cannot be read.
    pub(crate) fn gather(
        config: Option<PathBuf>,
        environment: impl Iterator<Item = (OsString, OsString)>,
        flags: &BTreeMap<&'static str, Vec<String>>,
    ) -> Result<Self> {
        let mut layers = Self::default();
        let variables = ours(environment)?;
        let named = variables.get(CONFIG_VARIABLE).filter(|path| !path.is_empty());
        if let Some(path) = config.or_else(|| named.map(PathBuf::from)) {
            layers.take_file(&path, &read(&path)?)?;
        }
        layers.take_environment(&variables)?;
        for key in KEYS {
            let Some(words) = flags.get(key.name) else { continue };
            let words = words.iter().flat_map(|word| key.words(word)).collect();
            layers.said.insert(key.name, Said { words, source: Source::Flag(key.flag) });
        }
        Ok(layers)
    }

    /// Takes the text of a file.
    pub(crate) fn take_file(&mut self, path: &Path, text: &str) -> Result<()> {
        let at = |offset: usize| Source::File {
            path: path.to_owned(),
            line: text.get(..offset).unwrap_or(text).matches('\n').count() + 1,
        };
        let document = DeTable::parse(text).map_err(|error| {
            let place = at(error.span().map_or(0, |span| span.start));
            wrong(&place, &format!("this is not TOML: {}", error.message()))
        })?;
        self.take_table("", document.get_ref(), &at)
    }

    fn take_table(
        &mut self,
        section: &str,
        table: &DeTable<'_>,
        at: &dyn Fn(usize) -> Source,
    ) -> Result<()> {
        for (name, value) in table {
            let place = at(name.span().start);
            let full = match section {
                "" => name.get_ref().to_string(),
                section => format!("{section}.{}", name.get_ref()),
            };
            if let Some(key) = key_of(&full) {
                let words = words(key, value.get_ref()).map_err(|what| wrong(&place, &what))?;
                self.said.insert(key.name, Said { words, source: place });
                continue;
            }
            let is_section = section.is_empty()
                && KEYS.iter().any(|key| key.name.starts_with(&format!("{full}.")));
            match value.get_ref() {
                DeValue::Table(inner) if is_section => self.take_table(&full, inner, at)?,
                DeValue::Table(_) if section.is_empty() => {
                    let sections = KEYS.iter().filter_map(|key| key.name.split_once('.'));
                    let names = sections.map(|(section, _)| section.to_owned()).collect::<Vec<_>>();
                    return Err(wrong(&place, &unknown(&full, &names)));
                }
                DeValue::Table(_)
                | DeValue::String(_)
                | DeValue::Integer(_)
                | DeValue::Float(_)
                | DeValue::Boolean(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_) => {
                    if is_section {
                        return Err(wrong(&place, &format!("{full} is a section: write [{full}]")));
                    }
                    let names = KEYS.iter().map(|key| key.name.to_owned()).collect::<Vec<_>>();
                    return Err(wrong(&place, &unknown(&full, &names)));
                }
            }
        }
        Ok(())
    }

    fn take_environment(&mut self, variables: &BTreeMap<String, String>) -> Result<()> {
        for (name, text) in variables {
            let Some(key) = KEYS.iter().find(|key| key.variable() == *name) else {
                if name == CONFIG_VARIABLE || NO_SETTINGS.iter().any(|ours| name.starts_with(ours))
                {
                    continue;
                }
                let names = KEYS.iter().map(Key::variable).collect::<Vec<_>>();
                return Err(wrong(&"the environment", &unknown(name, &names)));
            };
            let source = Source::Environment(name.clone());
            self.said.insert(key.name, Said { words: key.words(text), source });
        }
        Ok(())
    }

    /// What is said of a setting, or holds if nobody says anything.
    pub(crate) fn said(&self, key: &Key) -> Said {
        self.said.get(key.name).cloned().unwrap_or_else(|| {
            let words = if key.name == PLAIN && self.demands_certificates() {
                Vec::new()
            } else {
                key.words(key.default)
            };
            Said { words, source: Source::Default }
        })
    }

    /// Whether clients have to show certificates. Then nobody comes in over plain TCP unless
    /// somebody has said where: every user of the host would reach the default address and be asked
    /// for nothing.
    pub(crate) fn demands_certificates(&self) -> bool {
        let said = self.said.get(CERTIFICATES);
        said.is_some_and(|said| said.words.iter().any(|word| !word.is_empty()))
    }

    /// True if an address of plain TCP is left out for that reason.
    pub(crate) fn is_plain_left_out(&self) -> bool {
        self.demands_certificates() && !self.said.contains_key(PLAIN)
    }

    /// Who says a setting.
    pub(crate) fn source(&self, name: &str) -> Source {
        key_of(name).map_or(Source::Default, |key| self.said(key).source)
    }
}

impl Sayings for Layers {
    fn value<T: Value>(&self, name: &'static str) -> Result<T> {
        let key = key_of(name).ok_or_else(|| Error::BadArgument {
            detail: format!("there is no setting {name:?}"),
        })?;
        let said = self.said(key);
        T::read(&said.words).map_err(|what| wrong(&said.source, &format!("{name}: {what}")))
    }
}

/// The variables of the environment that are ours.
fn ours(
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<BTreeMap<String, String>> {
    let mut ours = BTreeMap::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(VARIABLES)) else { continue };
        let Ok(value) = value.into_string() else {
            return Err(wrong(&format!("${name}"), "its value is not UTF-8"));
        };
        ours.insert(name.to_owned(), value);
    }
    Ok(ours)
}

/// A file of settings or of users, whole.
pub(crate) fn read(path: &Path) -> Result<String> {
    let fault = |e: std::io::Error| Error::System {
        detail: format!("reading {}", path.display()),
        errno: e.raw_os_error().unwrap_or(0),
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(fault)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(fault)?;
    let path = path.display();
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(wrong(&path, "larger than a MiB: is this the right file?"));
    }
    String::from_utf8(bytes).map_err(|_| wrong(&path, "not UTF-8: is this the right file?"))
}

/// The words that a value of TOML stands for.
fn words(key: &Key, value: &DeValue<'_>) -> std::result::Result<Vec<String>, String> {
    let word = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.to_string()),
        DeValue::Boolean(truth) => Ok(truth.to_string()),
        DeValue::Integer(_)
        | DeValue::Float(_)
        | DeValue::Datetime(_)
        | DeValue::Array(_)
        | DeValue::Table(_) => Err(format!("{}: write {} as a text", key.name, key.wants)),
    };
    if let DeValue::Array(values) = value {
        if !key.is_list {
            return Err(format!("{}: one value, and no list", key.name));
        }
        return values.iter().map(|value| word(Spanned::get_ref(value))).collect();
    }
    let one = word(value)?;
    Ok(if key.is_list { key.words(&one) } else { vec![one] })
}
