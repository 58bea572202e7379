//! `nearstate bench micro`: single operations of a region beside LMDB, `DashMap`, Redis and
//! `WhiteDB`, taken in turns on one processor, and judged by the goals of the first milestone.

pub mod output;
pub mod measure;
pub mod growth;
pub mod whitedb;
pub mod calls;
pub mod companion;
pub mod role;
pub mod listing;
pub mod probe;
pub mod findings;
pub mod options;
pub mod peers;
pub mod loops;
pub mod work;
pub mod clock;

use crate::legacy::access::display::Display;
use crate::legacy::place::{self, Places};
use crate::legacy::server;
use crate::machine::{Machine, bytes_text};
use clock::Clock;
use findings::Findings;
use measure::Desk;
use nearstate_model::{Error, Result};
use options::{Group, Options};
use peers::{NAMES, version};
use std::io::Write;

/// Runs what the options ask for. Progress goes to standard error, the tables or the JSON to `out`.
///
/// # Errors
/// The first thing that went wrong, in words that say what would help.
pub fn run(options: &Options, command: &str, out: &mut impl Write) -> Result<()> {
    let machine = Machine::look();
    let places = Places::look().ok_or_else(|| Error::System {
        detail: "the kernel does not tell on which processors this may run".to_owned(),
        errno: 0,
    })?;
    if options.server {
        return server(options, places, &machine, out);
    }
    let (targets, versions, mut caveats) = choose(options)?;
    check_room(options, &machine, targets.len() as u64)?;
    caveats.extend(remarks(options, &targets, places));
    let display = Display::new(measure::steps(options));
    let rows = Vec::new();
    let mut desk = Desk { options, targets: &targets, places, display: &display, rows, caveats };
    display.say(&format!("{} on {}", targets.join(", "), machine.line()));
    desk.measure()?;
    let growth = if options.wants(Group::Growth) && targets.iter().any(|t| t == findings::OURS) {
        place::pin(places.measuring);
        growth::curve(options, &options.sizes(), &display)?
    } else {
        Vec::new()
    };
    display.finish();
    let Desk { rows, caveats, .. } = desk;
    let command = command.to_owned();
    let findings = Findings { command, machine, versions, caveats, rows, growth };
    let text = if options.json {
        format!("{:#}\n", output::json(&findings))
    } else {
        output::text(&findings)
    };
    write!(out, "{text}").map_err(|e| crate::keeper::system("writing the results", &e))
}

/// The cores of a node, and the node beside Redis.
fn server(
    options: &Options,
    places: Places,
    machine: &Machine,
    out: &mut impl Write,
) -> Result<()> {
    place::pin(places.measuring);
    let (rounds, count) =
        if options.quick { (1, server::COUNT / 10) } else { (options.rounds, server::COUNT) };
    let now = match options.clock {
        Clock::Wall => || Clock::Wall.now_ns(),
        Clock::Thread => || Clock::Thread.now_ns(),
    };
    let mut keys = vec![options.keys_middle()];
    if options.keys_most() > options.keys_middle() {
        keys.push(options.keys_most());
    }
    let executor = server::executor::Method { rounds, count, now, other: places.companion };
    let contest = server::contest::Method {
        rounds,
        keys,
        value_bytes: options.value_bytes,
        requests: if options.quick { options.ops() / 10 } else { options.ops() },
        dir: options.dir.clone(),
        seed: options.seed,
        places,
    };
    let display = Display::new(0);
    display.say(&format!("servers on {}", machine.line()));
    let outcome = server::run(&executor, &contest, &mut |what| display.say(what), out);
    display.finish();
    outcome
}

type Chosen = (Vec<String>, Vec<(String, String)>, Vec<String>);

/// The targets that were asked for, or all; those that are not here are named.
fn choose(options: &Options) -> Result<Chosen> {
    let (mut targets, mut versions, mut missing) = (Vec::new(), Vec::new(), Vec::new());
    let is_asked = |name: &&&str| {
        options.targets.is_empty() || options.targets.iter().any(|asked| asked == **name)
    };
    for name in NAMES.iter().filter(is_asked) {
        match version(name) {
            Ok(version) => {
                versions.push(((*name).to_owned(), version));
                targets.push((*name).to_owned());
            }
            Err(e) => missing.push(format!("{name} is left out: {e}")),
        }
    }
    if targets.is_empty() {
        return Err(Error::BadArgument { detail: missing.join("; ") });
    }
    Ok((targets, versions, missing))
}

/// All targets are loaded at once, so that they can take turns.
fn check_room(options: &Options, machine: &Machine, targets: u64) -> Result<()> {
    let each = options.value_bytes + options.value_bytes / 2 + 512;
    let turns = options.keys_most() * each * targets;
    let most = options.sizes().last().copied().unwrap_or(0);
    let curve = if options.wants(Group::Growth) {
        peers::region::room(most, options.growth_value_bytes) + most * 20
    } else {
        0
    };
    let need = turns.max(curve);
    if need > machine.memory_bytes_available {
        return Err(Error::BadArgument {
            detail: format!(
                "this needs {} of memory and {} are free: give smaller --keys or --sizes, or \
                 fewer --targets",
                bytes_text(need),
                bytes_text(machine.memory_bytes_available)
            ),
        });
    }
    Ok(())
}

/// What has to be known to judge the figures.
fn remarks(options: &Options, targets: &[String], places: Places) -> Vec<String> {
    let mut out = vec![
        "every value that is read is touched: its first and its last byte are summed; the step to \
         the next record touches neither key nor value"
            .to_owned(),
        format!(
            "measured on processor {}, companions and servers on {}; targets take turns, each turn \
             after an unmeasured one; medians, and ratios round by round",
            places.measuring, places.companion
        ),
    ];
    if options.clock == Clock::Thread {
        out.push(
            "only time in which the measuring thread ran is counted (--clock thread), but for \
             redis, whitedb and the ten writers"
                .to_owned(),
        );
    }
    let has = |name: &str| targets.iter().any(|t| t == name);
    if has("lmdb") {
        out.push(
            "lmdb: MDB_NOSYNC, WRITEMAP, NOMETASYNC, NOTLS, NORDAHEAD on the folder in memory; one \
             renewed read transaction for each get, or for each batch; one write transaction for \
             each put; its map stays on 4 KiB pages: it has no way to ask for larger ones"
                .to_owned(),
        );
    }
    if has("whitedb") {
        out.push(
            "whitedb: through its own program, not in turns; its put is an append under its lock"
                .to_owned(),
        );
    }
    out
}
