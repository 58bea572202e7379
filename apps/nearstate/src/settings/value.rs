//! What the value of a setting may be, and how people write it: sizes with a unit, times with a
//! unit, file modes in octal, lists.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How several words of one setting are written where there is only one text (the environment, a
/// flag).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One word.
    One,
    /// Any number, separated by commas.
    List,
    /// Any number, separated by line ends.
    Lines,
}

/// Something that a setting may be.
pub(crate) trait Value: Sized {
    /// How many words.
    const SHAPE: Shape = Shape::One;
    /// `--flag` alone says true.
    const IS_SWITCH: bool = false;
    /// A word for what is wanted, in help texts.
    const WANTS: &'static str;

    /// Reads it. A value of shape [`Shape::One`] is given exactly one word.
    ///
    /// # Errors
    /// What would be right.
    fn read(words: &[String]) -> Result<Self, String>;
}

fn only(words: &[String]) -> &str {
    words.first().map_or("", String::as_str)
}

impl Value for PathBuf {
    const WANTS: &'static str = "PATH";
    fn read(words: &[String]) -> Result<Self, String> {
        match only(words) {
            "" => Err("give a path".to_owned()),
            path => Ok(Self::from(path)),
        }
    }
}

impl Value for Option<PathBuf> {
    const WANTS: &'static str = "PATH";
    fn read(words: &[String]) -> Result<Self, String> {
        let path = only(words);
        Ok((!path.is_empty()).then(|| path.into()))
    }
}

impl Value for Option<String> {
    const WANTS: &'static str = "TEXT";
    fn read(words: &[String]) -> Result<Self, String> {
        let text = only(words);
        Ok((!text.is_empty()).then(|| text.to_owned()))
    }
}

impl Value for Vec<String> {
    const SHAPE: Shape = Shape::List;
    const WANTS: &'static str = "TEXT,..";
    fn read(words: &[String]) -> Result<Self, String> {
        Ok(words.to_vec())
    }
}

/// Lines of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines(pub(crate) Vec<String>);

impl Value for Lines {
    const SHAPE: Shape = Shape::Lines;
    const WANTS: &'static str = "LINE";
    fn read(words: &[String]) -> Result<Self, String> {
        match words.iter().find(|line| line.contains(['\n', '\r'])) {
            Some(_) => Err("write one entry for each line".to_owned()),
            None => Ok(Self(words.to_vec())),
        }
    }
}

/// Where the Unix sockets are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnixPaths {
    /// Beside the region.
    Beside,
    /// Here.
    At(Vec<PathBuf>),
}

impl Value for UnixPaths {
    const SHAPE: Shape = Shape::List;
    const WANTS: &'static str = "PATH,..";
    fn read(words: &[String]) -> Result<Self, String> {
        match words {
            [word] if word == "beside" => Ok(Self::Beside),
            paths if paths.iter().any(|path| path.is_empty() || path == "beside") => {
                Err("give paths, or the one word `beside`, or an empty list".to_owned())
            }
            paths => Ok(Self::At(paths.iter().map(PathBuf::from).collect())),
        }
    }
}

fn address(word: &str) -> Result<SocketAddr, String> {
    word.parse().map_err(|_| {
        format!("{word:?} is no address: write 127.0.0.1:6379 or [::1]:6379, numbers only")
    })
}

impl Value for Vec<SocketAddr> {
    const SHAPE: Shape = Shape::List;
    const WANTS: &'static str = "ADDRESS:PORT,..";
    fn read(words: &[String]) -> Result<Self, String> {
        words.iter().map(|word| address(word)).collect()
    }
}

impl Value for bool {
    const IS_SWITCH: bool = true;
    const WANTS: &'static str = "true|false";
    fn read(words: &[String]) -> Result<Self, String> {
        match only(words) {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(format!("{other:?} is neither true nor false")),
        }
    }
}

/// A number from 0 to the most that a machine may have of anything that is counted here.
fn number(words: &[String]) -> Result<u32, String> {
    let word = only(words);
    word.parse::<u32>()
        .ok()
        .filter(|number| *number <= COUNT_MAX)
        .ok_or_else(|| format!("{word:?} is no whole number from 0 to {COUNT_MAX}"))
}

/// Connections, cores, entries: nobody means more than two thousand million of them.
const COUNT_MAX: u32 = i32::MAX as u32;

/// A number, 0 included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number(pub(crate) usize);

impl Value for Number {
    const WANTS: &'static str = "NUMBER";
    fn read(words: &[String]) -> Result<Self, String> {
        Ok(Self(number(words)? as usize))
    }
}

/// A number that is not 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) u32);

impl Value for Count {
    const WANTS: &'static str = "NUMBER";
    fn read(words: &[String]) -> Result<Self, String> {
        match number(words)? {
            0 => Err("0 would let nobody in: give at least 1".to_owned()),
            number => Ok(Self(number)),
        }
    }
}

/// A size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

/// The least of any size: a bound below a page refuses what everybody sends.
const BYTES_MIN: u64 = 4096;

impl Value for Bytes {
    const WANTS: &'static str = "SIZE";
    fn read(words: &[String]) -> Result<Self, String> {
        match crate::region::bytes(only(words))? {
            small if small < BYTES_MIN => Err("give at least 4KiB".to_owned()),
            bytes if usize::try_from(bytes).is_ok_and(|b| isize::try_from(b).is_ok()) => {
                Ok(Self(bytes))
            }
            _ => Err("larger than any machine".to_owned()),
        }
    }
}

/// A time: a number with us, ms, s, min or h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Time(pub(crate) Duration);

/// The longest time. What should never happen is not bounded by a time.
const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl Value for Time {
    const WANTS: &'static str = "TIME";
    fn read(words: &[String]) -> Result<Self, String> {
        time(only(words)).map(Self)
    }
}

/// A time as people write it.
///
/// # Errors
/// What would be right.
pub(crate) fn time(word: &str) -> Result<Duration, String> {
    let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 =
        digits.parse().map_err(|_| format!("{word:?} is no time: write 500ms, 30s or 5min"))?;
    let micros = match word.get(digits.len()..).unwrap_or_default() {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "h" => 3_600_000_000,
        unit => return Err(format!("{unit:?} is no unit of time: us, ms, s, min, h")),
    };
    let time = number.checked_mul(micros).map(Duration::from_micros);
    match time.filter(|time| *time <= TIME_MAX) {
        Some(Duration::ZERO) => Err("give a time above 0".to_owned()),
        Some(time) => Ok(time),
        None => Err("longer than a year".to_owned()),
    }
}

/// Who may, as for `chmod`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode(pub(crate) u32);

impl Value for Mode {
    const WANTS: &'static str = "MODE";
    fn read(words: &[String]) -> Result<Self, String> {
        let mode = crate::region::mode(only(words))?;
        if mode & 0o600 == 0o600 && mode & 0o111 == 0 {
            return Ok(Self(mode));
        }
        Err(format!("{mode:o}: the owner reads and writes, nobody executes: 600, 660 or 666"))
    }
}

/// What a core does before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spinning {
    /// As it is measured to pay.
    Adaptive,
    /// Sleeps at once.
    Never,
    /// Looks for so long, always.
    For(Duration),
}

impl Value for Spinning {
    const WANTS: &'static str = "adaptive|never|TIME";
    fn read(words: &[String]) -> Result<Self, String> {
        match only(words) {
            "adaptive" => Ok(Self::Adaptive),
            "never" => Ok(Self::Never),
            _ => match Time::read(words) {
                Ok(Time(time)) => Ok(Self::For(time)),
                Err(why) => Err(format!("adaptive, never or a time: {why}")),
            },
        }
    }
}

/// How much is logged: this, and what is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// It does not go on.
    Error,
    /// Somebody should look.
    Warn,
    /// It goes as it should.
    Info,
    /// For whoever looks for a fault.
    Debug,
}

impl Level {
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

impl Value for Level {
    const WANTS: &'static str = "error|warn|info|debug";
    fn read(words: &[String]) -> Result<Self, String> {
        let word = only(words);
        [Self::Error, Self::Warn, Self::Info, Self::Debug]
            .into_iter()
            .find(|level| level.name() == word)
            .ok_or_else(|| format!("{word:?} is none of {}", Self::WANTS))
    }
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `level id message key=value ..`
    Text,
    /// An object of JSON.
    Json,
}

impl Value for Form {
    const WANTS: &'static str = "text|json";
    fn read(words: &[String]) -> Result<Self, String> {
        match only(words) {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(format!("{other:?} is neither text nor json")),
        }
    }
}
