//! Formats numbers and names for columns.

use std::time::Duration;

/// Placeholder for unknown values.
pub(super) const UNKNOWN: &str = "-";

/// An integer with thousands separators: `1,234,567`.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (source, digit) in digits.chars().enumerate() {
        if source > 0 && (digits.len() - source).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Three digits and a unit: `12.3k`.
fn short(number: f64, step: f64, units: &[&str]) -> String {
    let (mut size, mut unit) = (number, "");
    for larger in units {
        if size.abs() < step {
            break;
        }
        (size, unit) = (size / step, larger);
    }
    if unit.is_empty() && size.fract() == 0.0 || size.abs() >= 99.95 {
        format!("{size:.0}{unit}")
    } else {
        format!("{size:.1}{unit}")
    }
}

/// A rate per second.
pub(super) fn rate(each_second: f64) -> String {
    // A very small rate is not shown as 0.
    if each_second > 0.0 && each_second < 0.05 {
        return "<0.1".to_owned();
    }
    short(each_second, 1000.0, &["k", "M", "G"])
}

/// A signed rate per second.
pub(super) fn change(each_second: f64) -> String {
    let sign = if each_second > 0.0 { "+" } else { "" };
    format!("{sign}{}", short(each_second, 1000.0, &["k", "M", "G"]))
}

/// A size.
#[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
pub(super) fn bytes(bytes: u64) -> String {
    let text = short(bytes as f64, 1024.0, &[" KiB", " MiB", " GiB", " TiB"]);
    if bytes < 1024 { format!("{text} B") } else { text }
}

/// A time that something took, in seconds.
pub(super) fn latency(seconds: f64) -> String {
    let nanos = seconds * 1e9;
    let (size, unit) = match nanos {
        small if small < 1e3 => (nanos, "ns"),
        small if small < 1e6 => (nanos / 1e3, "us"),
        small if small < 1e9 => (nanos / 1e6, "ms"),
        _ => (seconds, "s"),
    };
    if size >= 99.95 { format!("{size:.0} {unit}") } else { format!("{size:.1} {unit}") }
}

/// A long duration: `3d 04:05:06`.
pub(super) fn span(time: Duration) -> String {
    let all = time.as_secs();
    let (days, hours, minutes, seconds) = (all / 86_400, all / 3600 % 24, all / 60 % 60, all % 60);
    let clock = format!("{hours:02}:{minutes:02}:{seconds:02}");
    if days > 0 { format!("{days}d {clock}") } else { clock }
}

/// A percentage: `43 %`.
pub(super) fn share(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// The formatted value, or the placeholder.
pub(super) fn or_unknown<T>(value: Option<T>, shown: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNKNOWN.to_owned(), shown)
}

/// A name from an external source. Characters that control the terminal are escaped.
pub(super) fn name(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() || is_invisible(letter) {
            shown.extend(letter.escape_default());
        } else {
            shown.push(letter);
        }
    }
    shown
}

/// Zero-width characters, and those that change the direction of text.
const fn is_invisible(letter: char) -> bool {
    matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(letter, '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(count(0), "0");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!([rate(0.0), rate(0.01), rate(7.0)], ["0", "<0.1", "7"]);
        assert_eq!([rate(7.25), rate(1234.0), rate(999_960.0)], ["7.2", "1.2k", "1000k"]);
        assert_eq!([change(0.0), change(12.0), change(-1500.0)], ["0", "+12", "-1.5k"]);
        assert_eq!([bytes(7), bytes(1536), bytes(300 << 20)], ["7 B", "1.5 KiB", "300 MiB"]);
        assert_eq!([latency(2e-7), latency(15e-6), latency(0.25)], ["200 ns", "15.0 us", "250 ms"]);
        assert_eq!(latency(2.0), "2.0 s");
        assert_eq!(span(Duration::from_secs(3 * 86_400 + 4 * 3600 + 306)), "3d 04:05:06");
        assert_eq!(share(0.434), "43 %");
        assert_eq!(or_unknown(None::<f64>, rate), "-");
    }

    #[test]
    fn names_cannot_control_the_terminal() {
        assert_eq!(name("ue-context"), "ue-context");
        assert_eq!(name("ü {x}"), "ü {x}");
        assert_eq!(name("\u{1b}[2J\n\u{202e}x"), "\\u{1b}[2J\\n\\u{202e}x");
    }
}
