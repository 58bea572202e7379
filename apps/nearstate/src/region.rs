//! `nearstate region`: creates, inspects, checks and deletes regions.

use std::io::Write;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use nearstate_model::heap_usage::FREE_SIZES;
use nearstate_model::{Error, HeapUsage, Result};
use nearstate_store::{
    AttachOptions, CheckReport, CreateOptions, Inspection, NumaPolicy, Objects, PageSize, PinMode,
    Region, RemovedRegion, RepairReport, check_with, repair_with,
};
use serde_json::{Value, json};

mod follow;
mod limits;
pub(crate) mod numa;
mod policy;
mod records;

pub(crate) use follow::host_name;
use follow::{FollowArgs, PromoteArgs, following_json, following_text};
use limits::{LimitArgs, usage_json, usage_text};
use policy::PolicyArgs;

use crate::printing;

/// The subcommands of `nearstate region`.
#[derive(Debug, Subcommand)]
pub(crate) enum RegionCommand {
    /// Create a region
    Create(CreateArgs),
    /// Show sizes, namespaces and attached sessions
    Inspect(InspectArgs),
    /// Verify every byte of a region, or repair it; no process may be attached
    Check(CheckArgs),
    /// Show the limits of a namespace and what its records take, or change the limits
    Limit(LimitArgs),
    /// Show how the commits of a namespace are replicated, or change it
    Policy(PolicyArgs),
    /// Keep a copy of the region of another host, for reading and for the loss of that host
    Follow(FollowArgs),
    /// Make a copy an ordinary region, when the host that it follows is lost
    Promote(PromoteArgs),
    /// Delete a region and all its records; fails while a process is attached
    Drop(RegionArgs),
    /// Move the memory in use to 2 MiB pages, for faster reads (Linux 6.1 or later)
    Collapse(RegionArgs),
}

/// The region, and the output format.
#[derive(Debug, Args)]
pub(crate) struct RegionArgs {
    /// The region's file
    path: PathBuf,
    /// Also accept a region, or a symbolic link, that belongs to another user
    #[arg(long)]
    any_owner: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RegionArgs {
    const fn options(&self) -> AttachOptions {
        AttachOptions { any_owner: self.any_owner }
    }

    fn attach(&self) -> Result<Region> {
        Region::attach_with(&self.path, &self.options())
    }
}

/// What `check` does.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    region: RegionArgs,
    /// Correct flipped bits in metadata, rebuild free memory and the indexes of tags from the
    /// records, and report what is lost. It can be interrupted and run again
    #[arg(long)]
    repair: bool,
}

/// What `inspect` shows.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    region: RegionArgs,
    /// Also count the objects of transactional memory: opens a session and reads the header of each
    /// object
    #[arg(long)]
    objects: bool,
    /// Also count the records of each namespace: opens a session and reads the index, some 20 ms
    /// for 10 million records, and the records of a namespace in which some expire
    #[arg(long)]
    records: bool,
    /// Also show on which NUMA nodes the region's pages are
    #[arg(long)]
    nodes: bool,
}

/// What `create` creates.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The region's file: on tmpfs (/dev/shm) for memory speed, on hugetlbfs for huge pages. On a
    /// disk file system it survives an orderly restart of the host; after a power cut, old and new
    /// pages can be mixed
    path: PathBuf,
    /// Maximum size of the heap: a number with KiB, MiB, GiB or TiB. The tables of the file take up
    /// to 132 MiB and 0.2 % of the heap besides
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes)]
    max: u64,
    /// Page size; 2MiB requires a path on a hugetlbfs mount
    #[arg(long, value_enum, default_value_t = PageSizeArg::Small)]
    page: PageSizeArg,
    /// Allocate all memory now
    #[arg(long)]
    populate: bool,
    /// Bind the memory to these NUMA nodes (for example 0,1)
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    #[arg(conflicts_with = "numa_interleave")]
    numa_bind: Vec<u32>,
    /// Interleave the memory over these NUMA nodes, page by page
    #[arg(long, value_name = "NODES", value_delimiter = ',')]
    numa_interleave: Vec<u32>,
    /// NUMA nodes of the memory: bind:NODES, interleave:NODES, preferred:NODES, or auto: prefer the
    /// node of the processors that this process may use
    #[arg(long, value_name = "POLICY", value_parser = numa::parse_numa)]
    #[arg(conflicts_with_all = ["numa_bind", "numa_interleave"])]
    numa: Option<numa::NumaArg>,
    /// How readers publish their pins: with membarrier(2), with a fence per read, or auto:
    /// membarrier(2) if the kernel has it
    #[arg(long, value_enum, default_value_t = PinModeArg::Auto)]
    pin: PinModeArg,
    /// File mode, in octal; it limits which users can attach
    #[arg(long, default_value = "600", value_parser = parse_mode)]
    mode: u32,
    /// Also create the region through a symbolic link that belongs to another user
    #[arg(long)]
    any_owner: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PageSizeArg {
    #[value(name = "4KiB")]
    Small,
    #[value(name = "2MiB")]
    Huge,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PinModeArg {
    Auto,
    Asymmetric,
    Fenced,
}

/// Runs a subcommand.
pub(crate) fn run(command: RegionCommand, out: &mut dyn Write) -> Result<()> {
    match command {
        RegionCommand::Create(args) => create(args, out),
        RegionCommand::Inspect(args) => inspect(&args, out),
        RegionCommand::Check(args) => check(&args, out),
        RegionCommand::Limit(args) => limits::run(&args, out),
        RegionCommand::Policy(args) => policy::run(&args, out),
        RegionCommand::Follow(args) => follow::run_follow(&args, out),
        RegionCommand::Promote(args) => follow::run_promote(&args, out),
        RegionCommand::Drop(args) => {
            let removed = Region::remove_with(&args.path, &args.options())?;
            print(
                out,
                &if args.json { removal_json(&args, &removed) } else { removal_text(&removed) },
            )
        }
        RegionCommand::Collapse(args) => {
            let bytes = args.attach()?.collapse()?;
            let json = json!({"path": args.path.display().to_string(), "bytes": bytes});
            let text = format!("{} MiB are on 2 MiB pages", bytes >> 20);
            print(out, &if args.json { json.to_string() } else { text })
        }
    }
}

fn inspect(args: &InspectArgs, out: &mut dyn Write) -> Result<()> {
    let region = args.region.attach()?;
    let seen = region.inspect()?;
    let objects = if args.objects { Some(region.objects()?) } else { None };
    let pages = args.nodes.then(|| region.pages_by_node()).transpose()?;
    let records = args.records.then(|| records::counts(&region)).transpose()?;
    if args.region.json {
        let mut json = inspection_json(&seen, objects);
        if let Some(object) = json.as_object_mut() {
            let pages = pages.map(|pages| ("pages_by_node".to_owned(), numa::pages_json(&pages)));
            let records = records.map(|all| ("records".to_owned(), records::json(&all)));
            object.extend(pages.into_iter().chain(records));
        }
        return print(out, &json.to_string());
    }
    let nodes = pages.map(|pages| format!("\nmemory      {}", numa::pages_text(&pages)));
    let records = records.map(|all| records::text(&all));
    let more = nodes.unwrap_or_default() + &records.unwrap_or_default();
    print(out, &(inspection_text(&seen, objects) + &more))
}

fn check(args: &CheckArgs, out: &mut dyn Write) -> Result<()> {
    let (path, options) = (&args.region.path, args.region.options());
    let repair = args.repair.then(|| repair_with(path, &options)).transpose()?;
    let report = check_with(path, &options)?;
    let text = if args.region.json {
        let mut json = report_json(&report);
        if let (Some(repair), Some(object)) = (&repair, json.as_object_mut()) {
            object.insert("repaired".to_owned(), json!(repair.repaired));
            object.insert("repaired_count".to_owned(), json!(repair.repaired_count));
            object.insert("lost".to_owned(), json!(repair.lost));
            object.insert("lost_count".to_owned(), json!(repair.lost_count));
            object.insert("zeroed_count".to_owned(), json!(repair.zeroed_count));
            object.insert("unaccounted_bytes".to_owned(), json!(repair.unaccounted_bytes));
        }
        json.to_string()
    } else {
        let repair = repair.as_ref().map_or(String::new(), |repair| repair_text(repair) + "\n");
        repair + &report_text(&report)
    };
    print(out, &text)?;
    let lost = repair.map_or(0, |repair| repair.lost_count);
    if report.is_clean() && lost == 0 {
        return Ok(());
    }
    let detail = match (report.faults_count, lost) {
        (0, lost) => format!("{lost} records or parts of the region are lost, see above"),
        (faults, _) => format!("the check found {faults} faults"),
    };
    Err(Error::Damaged { detail })
}

fn repair_text(report: &RepairReport) -> String {
    let lines = |word: &str, texts: &[String], count: u64| {
        let mut lines: Vec<String> = texts.iter().map(|text| format!("{word}: {text}")).collect();
        let named = texts.len() as u64;
        lines.extend((count > named).then(|| format!("... and {} more", count - named)));
        lines
    };
    let mut all = lines("repaired", &report.repaired, report.repaired_count);
    all.extend(lines("lost", &report.lost, report.lost_count));
    if report.zeroed_count != 0 {
        all.push(format!(
            "{} parts were zeros, {} bytes are not accounted for",
            report.zeroed_count, report.unaccounted_bytes
        ));
    }
    all.push(format!("{} repairs, {} losses", report.repaired_count, report.lost_count));
    all.join("\n")
}

fn removal_text(removed: &RemovedRegion) -> String {
    let links =
        removed.links.iter().map(|link| format!(" and the symbolic link {}", link.display()));
    format!("deleted {}{}", removed.file.display(), links.collect::<String>())
}

fn removal_json(args: &RegionArgs, removed: &RemovedRegion) -> String {
    let links: Vec<String> = removed.links.iter().map(|link| link.display().to_string()).collect();
    json!({
        "path": args.path.display().to_string(), "file": removed.file.display().to_string(),
        "links": links, "is_deleted": true,
    })
    .to_string()
}

fn create(args: CreateArgs, out: &mut dyn Write) -> Result<()> {
    let (path, mode, is_json) = (args.path.clone(), args.mode, args.json);
    let options = args.into_options()?;
    let is_placed = options.numa != NumaPolicy::Default;
    let region = Region::create(&path, &options)?;
    let seen = region.inspect()?;
    let file_bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
    let pages = is_placed.then(|| region.pages_by_node()).transpose()?;
    let placed = match &pages {
        Some(pages) => numa::check(&options.numa, &region.numa_policy()?, pages),
        None => Ok(None),
    };
    if placed.is_err() {
        Region::remove_with(&path, &AttachOptions { any_owner: options.any_owner })?;
    }
    let note = placed?;
    let next = format!("nearstate serve --region {}", path.display());
    let text = if is_json {
        let json = json!({
            "path": path.display().to_string(), "bytes_on_disk": seen.bytes_on_disk,
            "bytes_max": seen.bytes_max, "file_bytes_max": file_bytes,
            "page_bytes": seen.page_bytes, "mode": format!("{mode:o}"),
            "is_fenced": seen.is_fenced, "next": next,
            "pages_by_node": pages.as_ref().map(numa::pages_json),
            "numa_policy": is_placed.then(|| numa::policy_text(&options.numa)), "note": note,
        });
        json.to_string()
    } else {
        format!(
            "created  {}\nheap     {} at most\nfile     {} allocated, {} at most\n\
             pages    {} KiB, pins {}\nmode     {mode:o}\n{}next     {next}",
            path.display(),
            mib(seen.bytes_max),
            mib(seen.bytes_on_disk),
            mib(file_bytes),
            seen.page_bytes >> 10,
            pin_mode(&seen),
            pages.as_ref().map_or(String::new(), |pages| {
                let policy = numa::policy_text(&options.numa);
                let note = note.map_or(String::new(), |note| format!("note     {note}\n"));
                format!("memory   {}, policy {policy}\n{note}", numa::pages_text(pages))
            }),
        )
    };
    print(out, &text)
}

impl CreateArgs {
    fn into_options(self) -> Result<CreateOptions> {
        Ok(CreateOptions {
            bytes_max: self.max,
            page: match self.page {
                PageSizeArg::Small => PageSize::Small,
                PageSizeArg::Huge => PageSize::Huge2M,
            },
            populate: self.populate,
            numa: match (self.numa, self.numa_bind.is_empty(), self.numa_interleave.is_empty()) {
                (Some(policy), _, _) => policy.resolve()?,
                (_, false, _) => NumaPolicy::Bind(self.numa_bind),
                (_, _, false) => NumaPolicy::Interleave(self.numa_interleave),
                (None, true, true) => NumaPolicy::Default,
            },
            pin: match self.pin {
                PinModeArg::Auto => PinMode::Auto,
                PinModeArg::Asymmetric => PinMode::Asymmetric,
                PinModeArg::Fenced => PinMode::Fenced,
            },
            mode: self.mode,
            any_owner: self.any_owner,
            hash_seed: None,
        })
    }
}

fn print(out: &mut dyn Write, text: &str) -> Result<()> {
    printing::print(out, &format!("{text}\n"))
}

/// Parses a size: a number with KiB, MiB, GiB or TiB. K, M, G and T mean the same. GB is refused:
/// it is 7 % less than GiB, and programs differ about which of the two it means.
///
/// # Errors
/// What is expected instead.
pub(crate) fn parse_bytes(text: &str) -> std::result::Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 =
        digits.parse().map_err(|_| format!("{text:?} is not a size: expected 512MiB or 4GiB"))?;
    let unit = text.get(digits.len()..).unwrap_or_default().to_ascii_lowercase();
    let shift = match unit.as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "kb" | "mb" | "gb" | "tb" => {
            let clear = format!("{digits}{}iB", unit.get(..1).unwrap_or_default().to_uppercase());
            return Err(format!("{text:?} is ambiguous: write {clear}, which counts in 1024"));
        }
        _ => return Err(format!("unknown unit {unit:?}: expected KiB, MiB, GiB or TiB")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} exceeds the address space"))
}

/// Parses a file mode in octal.
///
/// # Errors
/// What is expected instead.
pub(crate) fn parse_mode(text: &str) -> std::result::Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| format!("{text:?} is not a file mode: expected octal, such as 600 or 660"))
}

fn mib(bytes: u64) -> String {
    format!("{}.{} MiB", bytes >> 20, (bytes >> 10 & 1023) * 10 / 1024)
}

const fn pin_mode(seen: &Inspection) -> &'static str {
    if seen.is_fenced { "fenced" } else { "asymmetric (membarrier)" }
}

/// How much of the free memory is usable for cells of some sizes.
fn free_text(heap: &HeapUsage) -> String {
    let sizes = FREE_SIZES.iter().zip(heap.free_by_size);
    let usable: Vec<String> =
        sizes.map(|(size, bytes)| format!("{} B: {}", size, mib(bytes))).collect();
    format!("usable      {}; the largest range {}", usable.join(", "), mib(heap.free_largest))
}

fn heap_json(heap: &HeapUsage) -> Value {
    let by_size: Vec<Value> = FREE_SIZES
        .iter()
        .zip(heap.free_by_size)
        .map(|(size, bytes)| json!({"size": size, "bytes": bytes}))
        .collect();
    let held_back: Vec<Value> = heap
        .held_back
        .iter()
        .map(|held| {
            json!({"pid": held.process.pid, "name": held.process.name, "index": held.session,
                   "bytes": held.bytes, "epochs": held.epochs, "ms": held.ms})
        })
        .collect();
    let in_operation: Vec<Value> = heap
        .in_operation
        .iter()
        .map(|kept| {
            json!({"pid": kept.process.pid, "name": kept.process.name, "index": kept.session,
                   "bytes": kept.bytes})
        })
        .collect();
    json!({
        "bytes_total": heap.total, "bytes_live": heap.live, "bytes_retired": heap.retired,
        "bytes_kept": heap.kept, "bytes_free": heap.free, "bytes_free_largest": heap.free_largest,
        "free_by_size": by_size, "held_back": held_back, "in_operation": in_operation,
    })
}

fn inspection_text(seen: &Inspection, objects: Option<Objects>) -> String {
    let mut lines = vec![
        format!("region      {}", seen.path.display()),
        format!(
            "format      {}, pages of {} KiB, pins {}",
            seen.format,
            seen.page_bytes >> 10,
            pin_mode(seen)
        ),
        format!("size        {} used of {}", mib(seen.bytes_taken), mib(seen.bytes_max)),
        format!(
            "heap        {} live, {} retired, {} kept by sessions, {} free",
            mib(seen.heap.live),
            mib(seen.heap.retired),
            mib(seen.heap.kept),
            mib(seen.heap.free)
        ),
        free_text(&seen.heap),
        format!("allocated   {}", mib(seen.bytes_on_disk)),
        format!("epoch       {}", seen.epoch),
    ];
    lines.extend(seen.following.map(following_text));
    lines.push(format!("namespaces  {}", seen.namespaces.len()));
    for namespace in &seen.namespaces {
        let name = String::from_utf8_lossy(&namespace.name);
        let usage =
            namespace.usage.map_or(String::new(), |usage| ", ".to_owned() + &usage_text(usage));
        let policy = namespace.policy.name();
        lines.push(format!("            {name} ({} buckets), {policy}{usage}", namespace.buckets));
    }
    if let Some(objects) = objects {
        lines.push(format!("objects     {} of {} bytes", objects.count, objects.bytes));
    }
    lines.push(format!("sessions    {}", seen.members.len()));
    for member in &seen.members {
        let pin = member.pinned_epoch.map_or(String::new(), |e| format!(", holds epoch {e}"));
        let life = if member.is_alive { "" } else { ", dead: recovered at the next attach" };
        let held = seen.heap.held_back.iter().find(|held| held.session == member.index);
        let held = held.map_or(String::new(), |held| {
            format!(
                ", holds back {} of retired records{}, {} epochs",
                mib(held.bytes),
                held.time(),
                held.epochs
            )
        });
        lines.push(format!("            {}{pin}{held}{life}", member.process));
    }
    lines.join("\n")
}

fn inspection_json(seen: &Inspection, objects: Option<Objects>) -> Value {
    let namespaces: Vec<Value> = seen
        .namespaces
        .iter()
        .map(|n| {
            json!({"name": String::from_utf8_lossy(&n.name), "buckets": n.buckets,
                   "policy": n.policy.name(),
                   "usage": n.usage.map(usage_json)})
        })
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
        "heap": heap_json(&seen.heap), "namespaces": namespaces, "members": members,
        "follows": seen.following.map(following_json),
        "objects": objects.map(|all| json!({"count": all.count, "bytes": all.bytes})),
    })
}

fn report_text(report: &CheckReport) -> String {
    let mut lines: Vec<String> = report.faults.iter().map(|f| format!("fault: {f}")).collect();
    let named = report.faults.len() as u64;
    if report.faults_count > named {
        lines.push(format!("... and {} more", report.faults_count - named));
    }
    lines.push(format!(
        "{}: {} records in {} namespaces; {} KiB live, {} KiB index, {} KiB free, {} KiB held by \
         the log, {} KiB leaked",
        if report.is_clean() { "clean" } else { "DAMAGED" },
        report.records,
        report.namespaces,
        report.bytes_live >> 10,
        report.bytes_index >> 10,
        report.bytes_free >> 10,
        report.bytes_held >> 10,
        report.bytes_leaked >> 10,
    ));
    if report.is_clean() {
        lines.push(free_text(&report.heap));
    }
    lines.join("\n")
}

fn report_json(report: &CheckReport) -> Value {
    json!({
        "is_clean": report.is_clean(), "faults": report.faults, "faults_count": report.faults_count,
        "namespaces": report.namespaces, "records": report.records,
        "bytes_live": report.bytes_live, "bytes_index": report.bytes_index,
        "bytes_free": report.bytes_free, "bytes_held": report.bytes_held,
        "bytes_leaked": report.bytes_leaked, "bytes_taken": report.bytes_taken,
        "heap": heap_json(&report.heap),
    })
}

#[cfg(test)]
mod tests;
