//! The process that looks at a region after its bit was flipped: the offline check, the repair, and
//! the check once more.

use std::io::Write as _;
use std::path::Path;

use nearstate_store::{AttachOptions, Error, check, repair_with};

use super::worker::{WORKERS, report_path};

/// The number of its report.
pub(crate) const NUMBER: u16 = WORKERS;

/// A child's role. Its report says `found` or `clean`, and `unrepaired` with the reason.
pub(crate) fn play(folder: &Path) -> Result<(), String> {
    let path = folder.join("region");
    let io = |e: std::io::Error| e.to_string();
    let mut report = std::fs::File::create(report_path(folder, NUMBER)).map_err(io)?;
    match check(&path) {
        Ok(checked) if checked.is_clean() => return writeln!(report, "clean").map_err(io),
        Ok(checked) => {
            let first = checked.faults.first().map_or("", String::as_str).replace('\n', " ");
            writeln!(report, "found {first}").map_err(io)?;
        }
        Err(error @ (Error::NotARegion { .. } | Error::Damaged { .. } | Error::Stalled { .. })) => {
            writeln!(report, "found {error}").map_err(io)?;
        }
        Err(error) => return writeln!(report, "unrepaired check: {error}").map_err(io),
    }
    let left = match repair_with(&path, &AttachOptions::default()) {
        Err(error) => format!("repair: {error}"),
        Ok(_) => match check(&path) {
            Ok(checked) if checked.is_clean() => return Ok(()),
            Ok(checked) => checked.faults.join("; "),
            Err(error) => format!("check: {error}"),
        },
    };
    writeln!(report, "unrepaired {}", left.replace('\n', " ")).map_err(io)
}
