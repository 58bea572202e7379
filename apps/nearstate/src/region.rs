//! `nearstate region`: create, inspect, check and drop regions.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nearstate_model::{Error, Result};
use nearstate_store::{
    CheckReport, CreateOptions, Inspection, NumaPolicy, Objects, PageSize, PinMode, Region, check,
};
use serde_json::{Value, json};

/// What to do with a region.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a region
    Create(Create),
    /// Show sizes, namespaces and attached sessions
    Inspect(Inspect),
    /// Verify every byte of a region that nobody is attached to
    Check(Place),
    /// Remove a region and all its records; refused while a living process is attached
    Drop(Place),
    /// Back what was written so far with 2 MiB pages (faster reads; Linux 6.1 and later)
    Collapse(Place),
}

/// Which region, and how to answer.
#[derive(Debug, Args)]
pub(crate) struct Place {
    /// The region's file
    path: PathBuf,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
}

/// What to show.
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    place: Place,
    /// Count the objects of the transactional memory too: opens a session and reads the header of
    /// each
    #[arg(long)]
    objects: bool,
}

/// How to create it.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The region's file: on tmpfs (/dev/shm) for memory speed, on hugetlbfs for huge pages, on any
    /// other file system to keep it over a restart of the host
    path: PathBuf,
    /// The most it may grow to: a number with KiB, MiB, GiB or TiB
    #[arg(long, default_value = "1GiB", value_parser = bytes)]
    max: u64,
    /// Page size; 2MiB needs a path on a hugetlbfs mount
    #[arg(long, value_enum, default_value_t = Page::Small)]
    page: Page,
    /// Take all of the memory now
    #[arg(long)]
    populate: bool,
    /// Place the memory on these NUMA nodes only (for example 0,1)
    #[arg(long, value_delimiter = ',', conflicts_with = "numa_interleave")]
    numa_bind: Vec<u32>,
    /// Place the memory page by page over these NUMA nodes
    #[arg(long, value_delimiter = ',')]
    numa_interleave: Vec<u32>,
    /// How a reader's pin becomes visible; fenced where there is no membarrier(2)
    #[arg(long, value_enum, default_value_t = Pin::Auto)]
    pin: Pin,
    /// File mode, octal: who may attach
    #[arg(long, default_value = "600", value_parser = mode)]
    mode: u32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Page {
    #[value(name = "4KiB")]
    Small,
    #[value(name = "2MiB")]
    Huge,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Pin {
    Auto,
    Asymmetric,
    Fenced,
}

/// Does it.
pub(crate) fn run(command: Command, out: &mut dyn Write) -> Result<()> {
    match command {
        Command::Create(create) => {
            let path = create.path.clone();
            Region::create(&path, &create.into_options())?;
            say(out, &format!("created {}", path.display()))
        }
        Command::Inspect(Inspect { place, objects }) => {
            let region = Region::attach(&place.path)?;
            let seen = region.inspect()?;
            let objects = if objects { Some(region.objects()?) } else { None };
            let answer = if place.json {
                inspection_json(&seen, objects).to_string()
            } else {
                text(&seen, objects)
            };
            say(out, &answer)
        }
        Command::Check(place) => {
            let report = check(&place.path)?;
            let answer =
                if place.json { report_json(&report).to_string() } else { verdict(&report) };
            say(out, &answer)?;
            if report.is_clean() {
                return Ok(());
            }
            Err(Error::Damaged {
                detail: format!("{} faults found by the check", report.faults_count),
            })
        }
        Command::Drop(place) => {
            Region::remove(&place.path)?;
            say(out, &format!("dropped {}", place.path.display()))
        }
        Command::Collapse(place) => {
            let bytes = Region::attach(&place.path)?.collapse()?;
            say(out, &format!("{} MiB have 2 MiB pages", bytes >> 20))
        }
    }
}

impl Create {
    fn into_options(self) -> CreateOptions {
        CreateOptions {
            bytes_max: self.max,
            page: match self.page {
                Page::Small => PageSize::Small,
                Page::Huge => PageSize::Huge2M,
            },
            populate: self.populate,
            numa: match (self.numa_bind.is_empty(), self.numa_interleave.is_empty()) {
                (false, _) => NumaPolicy::Bind(self.numa_bind),
                (_, false) => NumaPolicy::Interleave(self.numa_interleave),
                _ => NumaPolicy::Default,
            },
            pin: match self.pin {
                Pin::Auto => PinMode::Auto,
                Pin::Asymmetric => PinMode::Asymmetric,
                Pin::Fenced => PinMode::Fenced,
            },
            mode: self.mode,
        }
    }
}

fn say(out: &mut dyn Write, text: &str) -> Result<()> {
    writeln!(out, "{text}").map_err(|error| Error::System {
        detail: "cannot write the answer".to_owned(),
        errno: error.raw_os_error().unwrap_or(0),
    })
}

/// A size: a number, and KiB, MiB, GiB or TiB (or K, M, G, T, which mean the same).
pub(crate) fn bytes(text: &str) -> std::result::Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().map_err(|_| "give a size as 512MiB or 4GiB".to_owned())?;
    let unit = text.get(digits.len()..).unwrap_or_default().to_ascii_lowercase();
    let shift = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("{unit:?} is no unit of size: give KiB, MiB, GiB or TiB")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| "larger than any machine".to_owned())
}

/// A file mode in octal.
pub(crate) fn mode(text: &str) -> std::result::Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "give a file mode in octal, as 600 or 660".to_owned())
}

fn text(seen: &Inspection, objects: Option<Objects>) -> String {
    let mib = |bytes: u64| format!("{}.{} MiB", bytes >> 20, (bytes >> 10 & 1023) * 10 / 1024);
    let mut lines = vec![
        format!("region      {}", seen.path.display()),
        format!("format      {}, pages of {} KiB, pins {}", seen.format, seen.page_bytes >> 10, {
            if seen.is_fenced { "fenced" } else { "asymmetric (membarrier)" }
        }),
        format!("size        {} taken of {}", mib(seen.bytes_taken), mib(seen.bytes_max)),
        format!("on disk     {}", mib(seen.bytes_on_disk)),
        format!("epoch       {}", seen.epoch),
        format!("namespaces  {}", seen.namespaces.len()),
    ];
    for namespace in &seen.namespaces {
        let name = String::from_utf8_lossy(&namespace.name);
        lines.push(format!("            {name} ({} buckets)", namespace.buckets));
    }
    if let Some(objects) = objects {
        lines.push(format!("objects     {} of {} bytes", objects.count, objects.bytes));
    }
    lines.push(format!("sessions    {}", seen.members.len()));
    for member in &seen.members {
        let pin = member.pinned_epoch.map_or(String::new(), |e| format!(", holds epoch {e}"));
        let life = if member.is_alive { "" } else { ", dead: recovered by the next who attaches" };
        lines.push(format!("            {}{pin}{life}", member.process));
    }
    lines.join("\n")
}

fn inspection_json(seen: &Inspection, objects: Option<Objects>) -> Value {
    let namespaces: Vec<Value> = seen
        .namespaces
        .iter()
        .map(|n| json!({"name": String::from_utf8_lossy(&n.name), "buckets": n.buckets}))
        .collect();
    let members: Vec<Value> = seen
        .members
        .iter()
        .map(|m| {
            json!({"index": m.index, "pid": m.process.pid, "name": m.process.name,
                   "since_ms": m.since_ms, "pinned_epoch": m.pinned_epoch, "is_alive": m.is_alive})
        })
        .collect();
    json!({
        "path": seen.path.display().to_string(), "format": seen.format,
        "created_ms": seen.created_ms, "bytes_max": seen.bytes_max,
        "bytes_taken": seen.bytes_taken, "bytes_on_disk": seen.bytes_on_disk,
        "page_bytes": seen.page_bytes, "is_fenced": seen.is_fenced, "epoch": seen.epoch,
        "namespaces": namespaces, "members": members,
        "objects": objects.map(|all| json!({"count": all.count, "bytes": all.bytes})),
    })
}

fn verdict(report: &CheckReport) -> String {
    let mut lines: Vec<String> = report.faults.iter().map(|f| format!("fault: {f}")).collect();
    let named = report.faults.len() as u64;
    if report.faults_count > named {
        lines.push(format!("... and {} more", report.faults_count - named));
    }
    lines.push(format!(
        "{}: {} records in {} namespaces; {} KiB live, {} KiB index, {} KiB free, {} KiB leaked",
        if report.is_clean() { "clean" } else { "DAMAGED" },
        report.records,
        report.namespaces,
        report.bytes_live >> 10,
        report.bytes_index >> 10,
        report.bytes_free >> 10,
        report.bytes_leaked >> 10,
    ));
    lines.join("\n")
}

fn report_json(report: &CheckReport) -> Value {
    json!({
        "is_clean": report.is_clean(), "faults": report.faults, "faults_count": report.faults_count,
        "namespaces": report.namespaces, "records": report.records,
        "bytes_live": report.bytes_live, "bytes_index": report.bytes_index,
        "bytes_free": report.bytes_free, "bytes_leaked": report.bytes_leaked,
        "bytes_taken": report.bytes_taken,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("4G"), Ok(4 << 30));
        assert_eq!(bytes("4096"), Ok(4096));
        assert!(bytes("4 parsecs").is_err());
        assert!(bytes("").is_err());
        assert!(bytes("99999999T").is_err());
        assert_eq!(mode("660"), Ok(0o660));
        assert!(mode("999").is_err());
    }
}
