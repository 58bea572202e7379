//! `nearstate region follow` and `promote`: a copy of another host's region, and its succession.

use std::io::{IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use nearstate_model::{Error, Result};
use nearstate_node::{ClientTls, FollowConfig, FollowEvent, FollowProgress, follow};
use nearstate_store::{CreateOptions, Following, Region};
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::{RegionArgs, mib, parse_bytes, print};

/// What `follow` follows.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  nearstate serve --peer 127.0.0.1:7000                           # the source
  nearstate region follow /dev/shm/copy --from 127.0.0.1:7000     # the follower
  nearstate region promote /dev/shm/copy                          # when the source is lost

Processes of this host read the copy as any region. They cannot write its namespaces before it is
promoted. The command runs until it is interrupted, and connects again when the connection ends.")]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct FollowArgs {
    /// The region's file. It is created if it does not exist
    path: PathBuf,
    /// Address of the source: what `nearstate serve --peer` listens on
    #[arg(long, value_name = "HOST:PORT", value_parser = source_address)]
    from: String,
    /// Maximum size of a region that is created; at least that of the source [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    max: Option<u64>,
    /// Certificate authority of the source's certificate (PEM): use TLS
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,
    /// Certificate of this host (PEM), if the source requires one
    #[arg(long, value_name = "FILE", requires_all = ["tls_ca", "tls_key"])]
    tls_certificate: Option<PathBuf>,
    /// The private key of the certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Allow a source on another host without TLS: others can read and change what is sent
    #[arg(long)]
    insecure: bool,
    /// Name of this host in messages [default: the host name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Discard what the region has followed before, and get all records again
    #[arg(long)]
    discard: bool,
    /// End when the region has all records
    #[arg(long)]
    until_joined: bool,
    /// Print each event as a line of JSON
    #[arg(long)]
    json: bool,
}

/// What `promote` promotes.
#[derive(Debug, Args)]
pub(crate) struct PromoteArgs {
    #[command(flatten)]
    region: RegionArgs,
    /// Also promote a region that has not received all records
    #[arg(long)]
    incomplete: bool,
}

/// The host's name.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "unnamed".to_owned(),
        name => name.to_owned(),
    }
}

/// The address of a source: a name or an IP address, and a port.
fn source_address(text: &str) -> std::result::Result<String, String> {
    let expected = || format!("{text:?} is not valid: expected HOST:PORT, such as 10.0.0.1:7000");
    let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
    let is_port = port.parse::<u16>().is_ok_and(|port| port != 0);
    let in_brackets = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = match in_brackets {
        Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
        // An IPv6 address needs brackets: its last group would be taken for a port.
        None => !host.is_empty() && !host.contains([':', '[', ']', '/', ' ']),
    };
    if is_port && is_host { Ok(text.to_owned()) } else { Err(expected()) }
}

/// True if no packet to the address leaves the host.
fn is_local(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Follows until SIGINT or SIGTERM.
pub(crate) fn run_follow(args: &FollowArgs, out: &mut dyn Write) -> Result<()> {
    if args.tls_ca.is_none() && !args.insecure && !is_local(&args.from) {
        let detail = format!(
            "{} is on another host, and the connection would not be encrypted: give --tls-ca, or \
             --insecure if the network restricts access",
            args.from
        );
        return Err(Error::BadArgument { detail });
    }
    let own = args.tls_certificate.as_deref().zip(args.tls_key.as_deref());
    let tls = args.tls_ca.as_deref().map(|ca| ClientTls::read(ca, own)).transpose()?;
    let (region, is_created) = open_region(&args.path, args.max)?;
    let mut has_connected = false;
    let followed = follow_until_over(args, &region, tls.as_ref(), (out, &mut has_connected));
    // A copy that has connected may have been promoted since: then it follows nothing either.
    if is_created && !has_connected && region.inspect()?.following.is_none() {
        // Nothing was copied. A later call with another size begins anew.
        drop(region);
        Region::remove(&args.path)?;
    }
    followed
}

/// Creates the region, or attaches to one that exists. True if it was created.
fn open_region(path: &Path, max: Option<u64>) -> Result<(Region, bool)> {
    let default = CreateOptions::default();
    let options = CreateOptions { bytes_max: max.unwrap_or(default.bytes_max), ..default };
    match Region::create(path, &options) {
        Ok(region) => return Ok((region, true)),
        Err(Error::AlreadyExists { .. }) => {}
        Err(error) => return Err(error),
    }
    let region = Region::attach(path)?;
    let seen = region.inspect()?;
    let found = seen.bytes_max;
    let mut others = seen.members.iter().filter(|one| one.is_alive);
    if seen.following.is_none()
        && let Some(other) = others.find(|one| one.process.pid != std::process::id())
    {
        let detail = format!(
            "{} follows no other region, and {} has attached it, which could write none of its \
             namespaces any more: give the path of another region, or end that process first",
            path.display(),
            other.process
        );
        return Err(Error::BadArgument { detail });
    }
    match max {
        // The size of a region is a multiple of some hundred KiB.
        Some(max) if max.abs_diff(found) >= 1 << 20 => Err(Error::BadArgument {
            detail: format!(
                "{} exists, with a size of {}, not {} (--max): leave --max out, or follow with a \
                 new region",
                path.display(),
                mib(found),
                mib(max)
            ),
        }),
        Some(_) | None => Ok((region, false)),
    }
}

fn follow_until_over(
    args: &FollowArgs,
    region: &Region,
    tls: Option<&ClientTls>,
    (out, has_connected): (&mut dyn Write, &mut bool),
) -> Result<()> {
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_over)).map_err(|error| {
            let errno = error.raw_os_error().unwrap_or(0);
            Error::System { detail: "cannot wait for signals".to_owned(), errno }
        })?;
    }
    let name = args.name.clone().unwrap_or_else(host_name);
    let mut report = FollowReport::new(args, out, Arc::clone(&is_over));
    let mut on_event = |event: &FollowEvent<'_>| {
        *has_connected |= matches!(event, FollowEvent::Connected { .. });
        report.take(event);
    };
    let mut config = FollowConfig {
        certificate_name: None,
        source: &args.from,
        tls,
        name: &name,
        discards: args.discard,
        on_event: &mut on_event,
        is_over: &|| is_over.load(Ordering::Acquire),
    };
    follow(region, &mut config)?;
    let following = region.session()?.following()?;
    let position = following.map_or(0, |copy| copy.reached.max(copy.applied.position));
    let has_all = report.end(position);
    // A script goes on with the copy.
    if args.until_joined && !has_all {
        let detail =
            format!("interrupted before {} had all records (--until-joined)", args.path.display());
        return Err(Error::Backend { detail });
    }
    Ok(())
}

/// Shows the events.
struct FollowReport<'o> {
    out: &'o mut dyn Write,
    is_json: bool,
    until_joined: bool,
    is_over: Arc<AtomicBool>,
    has_all: bool,
    bar: ProgressBar,
    last: FollowProgress,
}

impl<'o> FollowReport<'o> {
    fn new(args: &FollowArgs, out: &'o mut dyn Write, is_over: Arc<AtomicBool>) -> Self {
        let bar = if args.json || !std::io::stderr().is_terminal() {
            ProgressBar::hidden()
        } else {
            let style = ProgressStyle::with_template("{spinner} {elapsed_precise}  {msg}");
            let bar = ProgressBar::new_spinner();
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        };
        let (is_json, until_joined) = (args.json, args.until_joined);
        let last = FollowProgress::default();
        Self { out, is_json, until_joined, is_over, has_all: false, bar, last }
    }

    fn say(&mut self, text: &str, json: &Value) {
        let line = if self.is_json { json.to_string() } else { text.to_owned() };
        // A closed standard output ends no copy.
        let _ = self.bar.suspend(|| writeln!(self.out, "{line}").and_then(|()| self.out.flush()));
    }

    fn take(&mut self, event: &FollowEvent<'_>) {
        match event {
            FollowEvent::Connected { source, joins } => {
                let how = if *joins { "gets all records" } else { "continues" };
                let json = json!({"event": "connected", "source": source, "joins": joins});
                self.say(&format!("connected to {source}: {how}"), &json);
            }
            FollowEvent::Joined { position, records } => {
                let text = format!("has all records, up to position {position}");
                let json = json!({"event": "joined", "position": position, "records": records});
                self.say(&text, &json);
                self.note_all();
            }
            FollowEvent::Disconnected { reason, retry } => {
                let ms = retry.as_millis();
                let text = format!("disconnected: {reason}; connects again in {ms} ms");
                let json = json!({"event": "disconnected", "reason": reason, "retry_ms": ms});
                self.say(&text, &json);
            }
            FollowEvent::Progress(progress) => {
                if self.is_json && *progress != self.last {
                    self.say("", &progress_json(progress));
                }
                self.bar.set_message(progress_text(progress));
                self.last = *progress;
                // A copy that continues does not join.
                let has_all = !progress.is_joining && progress.tail != 0;
                if has_all && progress.position >= progress.tail {
                    self.note_all();
                }
            }
        }
    }

    fn note_all(&mut self) {
        self.has_all = true;
        if self.until_joined {
            self.is_over.store(true, Ordering::Release);
        }
    }

    /// True if the region had all records at some time.
    fn end(mut self, position: u64) -> bool {
        self.bar.finish_and_clear();
        let text = format!("ended at position {position}");
        self.say(&text, &json!({"event": "ended", "position": position}));
        self.has_all
    }
}

fn progress_text(progress: &FollowProgress) -> String {
    let FollowProgress { is_joining, records, entries, position, tail } = *progress;
    if is_joining {
        return format!("joining: {records} records");
    }
    let behind = tail.saturating_sub(position);
    format!("position {position}, {behind} behind, {entries} transactions")
}

fn progress_json(progress: &FollowProgress) -> Value {
    json!({
        "event": "progress", "is_joining": progress.is_joining, "records": progress.records,
        "entries": progress.entries, "position": progress.position, "tail": progress.tail,
    })
}

/// The line of `inspect` about a region that follows another one.
pub(super) fn following_text(following: Following) -> String {
    let [one, other] = following.source.region;
    format!(
        "follows     region {one:016x}{other:016x}, {} at position {}",
        state_word(following),
        following.applied.position
    )
}

const fn state_word(following: Following) -> &'static str {
    match following.state {
        nearstate_store::FollowState::Joining => "joining",
        nearstate_store::FollowState::Full => "full",
        nearstate_store::FollowState::Extending => "joining further namespaces",
        nearstate_store::FollowState::Promoting => "being promoted",
        nearstate_store::FollowState::Demoting => "being demoted",
    }
}

/// The same for programs.
pub(super) fn following_json(following: Following) -> Value {
    let [one, other] = following.source.region;
    json!({
        "region": format!("{one:016x}{other:016x}"), "state": state_word(following),
        "incarnation": following.source.incarnation, "position": following.applied.position,
    })
}

/// Promotes a region.
pub(crate) fn run_promote(args: &PromoteArgs, out: &mut dyn Write) -> Result<()> {
    let session = args.region.attach()?.session()?;
    let promotion = session.promote(args.incomplete)?;
    let path = args.region.path.display().to_string();
    let text = if args.region.json {
        json!({
            "path": path, "namespaces": promotion.namespaces, "position": promotion.position,
        })
        .to_string()
    } else {
        let plural = if promotion.namespaces == 1 { "" } else { "s" };
        format!(
            "promoted {path}: {} namespace{plural} may be written, it has everything up to \
             position {} of the region that it followed",
            promotion.namespaces, promotion.position
        )
    };
    print(out, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_a_host_and_a_port() {
        for valid in ["127.0.0.1:7000", "amf-1.example.com:65535", "[::1]:7000", "localhost:1"] {
            assert_eq!(source_address(valid).as_deref(), Ok(valid));
        }
        for invalid in
            ["nonsense", "h:99999", "h:0", "h:", ":7000", "::1:7000", "[::1]", "[x]:1", "a b:1", ""]
        {
            let said = source_address(invalid).unwrap_err();
            assert!(said.contains("expected HOST:PORT"), "{invalid}: {said}");
        }
    }

    #[test]
    fn the_event_joined_has_the_records_of_the_copy() {
        let args = FollowArgs {
            path: PathBuf::from("copy"),
            from: "localhost:7000".to_owned(),
            max: None,
            tls_ca: None,
            tls_certificate: None,
            tls_key: None,
            insecure: false,
            name: None,
            discard: false,
            until_joined: true,
            json: true,
        };
        let (mut out, is_over) = (Vec::new(), Arc::new(AtomicBool::new(false)));
        let mut report = FollowReport::new(&args, &mut out, Arc::clone(&is_over));
        // The last progress was told before the last records came.
        report.take(&FollowEvent::Progress(FollowProgress {
            is_joining: true,
            records: 512,
            ..FollowProgress::default()
        }));
        report.take(&FollowEvent::Joined { position: 9, records: 1000 });
        assert!(is_over.load(Ordering::Acquire));
        assert!(report.end(9));
        let last = String::from_utf8(out).unwrap();
        let joined = last.lines().find(|line| line.contains("joined")).unwrap();
        let joined: Value = serde_json::from_str(joined).unwrap();
        assert_eq!(joined, json!({"event": "joined", "position": 9, "records": 1000}));
    }
}
