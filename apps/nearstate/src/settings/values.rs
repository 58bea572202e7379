//! The types of setting values and how they are written: sizes and times with a unit, file modes in
//! octal, lists.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use nearstate_nudsf::StorageSpec;
use nearstate_numa::CpuSet;
use nearstate_store::{NamespaceLimits, create_user_directory, user_directory};

/// How the items of a setting are separated where there is only one text (environment, flag).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemSeparator {
    /// One item.
    None,
    /// Any number of items, separated by commas.
    Comma,
    /// Any number of items, separated by line ends.
    Newline,
}

/// The type of a setting.
pub(crate) trait SettingValue: Sized {
    /// How several items are written as one text.
    const SEPARATOR: ItemSeparator = ItemSeparator::None;
    /// `--flag` without a value means true.
    const IS_SWITCH: bool = false;
    /// The placeholder of the value in help texts.
    const WANTS: &'static str;

    /// Parses the items. Without a separator there is exactly one.
    ///
    /// # Errors
    /// What is expected instead.
    fn parse(items: &[String]) -> Result<Self, String>;
}

fn only(items: &[String]) -> &str {
    items.first().map_or("", String::as_str)
}

impl SettingValue for PathBuf {
    const WANTS: &'static str = "PATH";
    fn parse(items: &[String]) -> Result<Self, String> {
        match only(items) {
            "" => Err("expected a path, got an empty value".to_owned()),
            path => Ok(Self::from(path)),
        }
    }
}

impl SettingValue for Option<PathBuf> {
    const WANTS: &'static str = "PATH";
    fn parse(items: &[String]) -> Result<Self, String> {
        let path = only(items);
        Ok((!path.is_empty()).then(|| path.into()))
    }
}

impl SettingValue for Option<String> {
    const WANTS: &'static str = "TEXT";
    fn parse(items: &[String]) -> Result<Self, String> {
        let text = only(items);
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }
}

impl SettingValue for Vec<String> {
    const SEPARATOR: ItemSeparator = ItemSeparator::Comma;
    const WANTS: &'static str = "TEXT,..";
    fn parse(items: &[String]) -> Result<Self, String> {
        Ok(items.to_vec())
    }
}

/// Lines of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextLines(pub(crate) Vec<String>);

impl SettingValue for TextLines {
    const SEPARATOR: ItemSeparator = ItemSeparator::Newline;
    const WANTS: &'static str = "LINE";
    fn parse(items: &[String]) -> Result<Self, String> {
        match items.iter().find(|line| line.contains(['\n', '\r'])) {
            Some(line) => Err(format!("{line:?} contains a line break: write one item per line")),
            None => Ok(Self(items.to_vec())),
        }
    }
}

/// The storages of the data repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StorageList(pub(crate) Vec<StorageSpec>);

impl SettingValue for StorageList {
    const SEPARATOR: ItemSeparator = ItemSeparator::Comma;
    const WANTS: &'static str = "REALM/STORAGE=NAMESPACE,..";
    fn parse(items: &[String]) -> Result<Self, String> {
        let parsed: nearstate_model::Result<Vec<_>> =
            items.iter().map(|item| StorageSpec::parse(item)).collect();
        parsed.map(Self).map_err(|error| error.to_string())
    }
}

/// The names of namespaces, and their limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NamespaceLimitLines(pub(crate) Vec<(String, NamespaceLimits)>);

impl SettingValue for NamespaceLimitLines {
    const SEPARATOR: ItemSeparator = ItemSeparator::Newline;
    const WANTS: &'static str = "LINE";
    fn parse(items: &[String]) -> Result<Self, String> {
        let mut all: Vec<(String, NamespaceLimits)> = Vec::new();
        for item in items {
            let (name, limits) = namespace_limits(item)?;
            if all.iter().any(|(known, _)| *known == name) {
                return Err(format!("namespace {name:?} has two lines: write one"));
            }
            all.push((name, limits));
        }
        Ok(Self(all))
    }
}

fn namespace_limits(item: &str) -> Result<(String, NamespaceLimits), String> {
    let expected = || format!("{item:?} is not valid: expected NAMESPACE soft=SIZE hard=SIZE");
    let mut words = item.split_whitespace();
    let name = words.next().ok_or_else(expected)?;
    let mut limits = NamespaceLimits::default();
    for word in words {
        let (field, size) = word.split_once('=').ok_or_else(expected)?;
        let limit = match field {
            "soft" => &mut limits.soft_bytes,
            "hard" => &mut limits.hard_bytes,
            _ => return Err(expected()),
        };
        *limit = ByteSize::parse(&[size.to_owned()])?.0;
    }
    if limits.is_none() {
        return Err(expected());
    }
    if limits.hard_bytes != 0 && limits.soft_bytes > limits.hard_bytes {
        return Err(format!("{item:?}: the soft limit is above the hard one"));
    }
    Ok((name.to_owned(), limits))
}

/// The processors of a node's cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlaceSetting {
    /// In ascending order.
    None,
    /// By the topology of the machine.
    Auto,
    /// These.
    Cpus(CpuSet),
}

impl SettingValue for PlaceSetting {
    const WANTS: &'static str = "none|auto|CPUS";
    fn parse(items: &[String]) -> Result<Self, String> {
        match only(items) {
            "none" => Ok(Self::None),
            "auto" => Ok(Self::Auto),
            list => match list.parse::<CpuSet>() {
                Ok(cpus) if !cpus.is_empty() => Ok(Self::Cpus(cpus)),
                _ => Err(format!("{list:?} is not valid: expected none, auto or a list like 2-5")),
            },
        }
    }
}

/// The path of the region's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RegionPath {
    pub(crate) path: PathBuf,
    /// It is the default path, whose directory is created.
    is_auto: bool,
}

impl RegionPath {
    /// A path that is not the default one.
    pub(crate) const fn of(path: PathBuf) -> Self {
        Self { path, is_auto: false }
    }

    /// Creates the directory of the default path.
    ///
    /// # Errors
    /// `BadArgument` if another user could change what is in it, `System`.
    pub(crate) fn prepare(&self) -> nearstate_model::Result<()> {
        if self.is_auto { create_user_directory(&user_directory()) } else { Ok(()) }
    }
}

impl SettingValue for RegionPath {
    const WANTS: &'static str = "PATH";
    fn parse(items: &[String]) -> Result<Self, String> {
        match only(items) {
            "" => Err("expected a path or \"auto\", got an empty value".to_owned()),
            "auto" => Ok(Self { path: user_directory().join("region"), is_auto: true }),
            path => Ok(Self { path: PathBuf::from(path), is_auto: false }),
        }
    }
}

/// The paths of the Unix sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnixPaths {
    /// The region's path followed by `.sock`.
    Auto,
    /// These paths.
    At(Vec<PathBuf>),
}

impl SettingValue for UnixPaths {
    const SEPARATOR: ItemSeparator = ItemSeparator::Comma;
    const WANTS: &'static str = "PATH,..";
    fn parse(items: &[String]) -> Result<Self, String> {
        match items {
            [item] if item == "auto" => Ok(Self::Auto),
            [item] if item == "beside" => Err("\"beside\" was renamed: use \"auto\"".to_owned()),
            paths if paths.iter().any(|path| path.is_empty() || path == "auto") => {
                Err("expected paths, or \"auto\" alone, or an empty list".to_owned())
            }
            paths => Ok(Self::At(paths.iter().map(PathBuf::from).collect())),
        }
    }
}

/// Parses an address with a port.
///
/// # Errors
/// What is expected instead.
pub(crate) fn parse_address(item: &str) -> Result<SocketAddr, String> {
    item.parse().map_err(|_| {
        format!(
            "{item:?} is not an address: expected IP:PORT, such as 127.0.0.1:6379 or [::1]:6379"
        )
    })
}

impl SettingValue for Vec<SocketAddr> {
    const SEPARATOR: ItemSeparator = ItemSeparator::Comma;
    const WANTS: &'static str = "ADDRESS:PORT,..";
    fn parse(items: &[String]) -> Result<Self, String> {
        items.iter().map(|item| parse_address(item)).collect()
    }
}

impl SettingValue for bool {
    const IS_SWITCH: bool = true;
    const WANTS: &'static str = "true|false";
    fn parse(items: &[String]) -> Result<Self, String> {
        match only(items) {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(format!("{other:?} is not valid: expected true or false")),
        }
    }
}

/// Upper bound of counts (connections, cores, entries): larger values are mistakes.
const COUNT_MAX: u32 = i32::MAX as u32;

/// A whole number from 0 to [`COUNT_MAX`].
fn number(items: &[String]) -> Result<u32, String> {
    let item = only(items);
    item.parse::<u32>().ok().filter(|number| *number <= COUNT_MAX).ok_or_else(|| {
        format!("{item:?} is not valid: expected a whole number from 0 to {COUNT_MAX}")
    })
}

/// A count that may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CountSetting(pub(crate) usize);

impl SettingValue for CountSetting {
    const WANTS: &'static str = "NUMBER";
    fn parse(items: &[String]) -> Result<Self, String> {
        Ok(Self(number(items)? as usize))
    }
}

/// A count of at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PositiveCount(pub(crate) u32);

impl SettingValue for PositiveCount {
    const WANTS: &'static str = "NUMBER";
    fn parse(items: &[String]) -> Result<Self, String> {
        match number(items)? {
            0 => Err("0 would reject every client: expected at least 1".to_owned()),
            number => Ok(Self(number)),
        }
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) u64);

/// Lower bound of sizes: a limit below one page rejects ordinary requests.
const BYTES_MIN: u64 = 4096;

impl SettingValue for ByteSize {
    const WANTS: &'static str = "SIZE";
    fn parse(items: &[String]) -> Result<Self, String> {
        let item = only(items);
        match crate::region::parse_bytes(item)? {
            small if small < BYTES_MIN => {
                Err(format!("{item:?} is too small: expected at least 4KiB"))
            }
            bytes if usize::try_from(bytes).is_ok_and(|b| isize::try_from(b).is_ok()) => {
                Ok(Self(bytes))
            }
            _ => Err(format!("{item:?} exceeds the address space")),
        }
    }
}

/// A size in bytes that is derived if it is not set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AutoSize(pub(crate) Option<u64>);

impl SettingValue for AutoSize {
    const WANTS: &'static str = "auto|SIZE";
    fn parse(items: &[String]) -> Result<Self, String> {
        match only(items) {
            "auto" => Ok(Self(None)),
            _ => ByteSize::parse(items).map(|ByteSize(bytes)| Self(Some(bytes))),
        }
    }
}

/// The memory that the node and its region may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryMax {
    /// The limit of the control group.
    Auto,
    /// Not limited.
    None,
    /// This many bytes.
    Bytes(u64),
}

impl SettingValue for MemoryMax {
    const WANTS: &'static str = "auto|none|SIZE";
    fn parse(items: &[String]) -> Result<Self, String> {
        match only(items) {
            "auto" => Ok(Self::Auto),
            "none" => Ok(Self::None),
            _ => ByteSize::parse(items).map(|ByteSize(bytes)| Self::Bytes(bytes)),
        }
    }
}

/// A time: a number with us, ms, s, min or h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeSpan(pub(crate) Duration);

/// Upper bound of times: larger values are mistakes.
const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl SettingValue for TimeSpan {
    const WANTS: &'static str = "TIME";
    fn parse(items: &[String]) -> Result<Self, String> {
        parse_time(only(items)).map(Self)
    }
}

/// Parses a time such as `500ms`.
///
/// # Errors
/// What is expected instead.
pub(crate) fn parse_time(item: &str) -> Result<Duration, String> {
    let digits = item.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{item:?} is not a time: expected 500ms, 30s or 5min"))?;
    let micros = match item.get(digits.len()..).unwrap_or_default() {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "h" => 3_600_000_000,
        "" => return Err(format!("{item:?} has no unit: expected us, ms, s, min or h")),
        unit => return Err(format!("unknown unit {unit:?}: expected us, ms, s, min or h")),
    };
    let time = number.checked_mul(micros).map(Duration::from_micros);
    match time.filter(|time| *time <= TIME_MAX) {
        Some(Duration::ZERO) => Err(format!("{item:?} is not valid: expected more than 0")),
        Some(time) => Ok(time),
        None => Err(format!("{item:?} is longer than a year")),
    }
}

/// A file mode, as for `chmod`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileMode(pub(crate) u32);

impl SettingValue for FileMode {
    const WANTS: &'static str = "MODE";
    fn parse(items: &[String]) -> Result<Self, String> {
        let mode = crate::region::parse_mode(only(items))?;
        if mode & 0o600 == 0o600 && mode & 0o111 == 0 {
            return Ok(Self(mode));
        }
        Err(format!(
            "mode {mode:o} is not valid: the owner must read and write, execution is not allowed; \
             expected 600, 660 or 666"
        ))
    }
}

/// What an idle core does before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpinSetting {
    /// Busy-polls while polling finds work.
    Adaptive,
    /// Sleeps at once.
    Never,
    /// Always busy-polls for this long.
    For(Duration),
}

impl SettingValue for SpinSetting {
    const WANTS: &'static str = "adaptive|never|TIME";
    fn parse(items: &[String]) -> Result<Self, String> {
        match only(items) {
            "adaptive" => Ok(Self::Adaptive),
            "never" => Ok(Self::Never),
            item => match parse_time(item) {
                Ok(time) => Ok(Self::For(time)),
                Err(_) => Err(format!(
                    "{item:?} is not valid: expected adaptive, never or a time such as 50us"
                )),
            },
        }
    }
}

/// The severity of a log event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogLevel {
    /// The process cannot continue.
    Error,
    /// An operator should look.
    Warn,
    /// Normal operation.
    Info,
    /// Details for debugging.
    Debug,
}

impl LogLevel {
    /// Its name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}

impl SettingValue for LogLevel {
    const WANTS: &'static str = "error|warn|info|debug";
    fn parse(items: &[String]) -> Result<Self, String> {
        let item = only(items);
        [Self::Error, Self::Warn, Self::Info, Self::Debug]
            .into_iter()
            .find(|level| level.name() == item)
            .ok_or_else(|| format!("{item:?} is not valid: expected {}", Self::WANTS))
    }
}

/// The format of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// `level id message key=value ..`
    Text,
    /// A JSON object.
    Json,
}

impl SettingValue for LogFormat {
    const WANTS: &'static str = "text|json";
    fn parse(items: &[String]) -> Result<Self, String> {
        match only(items) {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("{other:?} is not valid: expected text or json")),
        }
    }
}
