//! `nearstate bench transactions`: transactions beside plain operations on the same records, taken
//! in turns on one processor; sessions with tags; TATP; counters; writers that conflict.

pub mod output;
pub mod contention;
pub mod counters;
pub mod tatp;
pub mod sessions;
pub mod chase;
pub mod reads;
pub mod update;
pub mod desk;
pub mod findings;
pub mod options;

use crate::legacy::access::display::Display;
use crate::legacy::micro::clock::Clock;
use crate::legacy::micro::work::Material;
use crate::legacy::place::{Places, pin};
use crate::machine::Machine;
use desk::{CONTEXT_BYTES, Desk};
use findings::Findings;
use nearstate_model::{Error, Result};
use options::{Group, Options};
use std::io::Write;

/// Runs what the options ask for. Progress goes to standard error, the tables or the JSON to `out`.
///
/// # Errors
/// The first thing that went wrong, in words that say what would help; `Backend` if the region does
/// not hold what was written.
pub fn run(options: &Options, command: &str, out: &mut impl Write) -> Result<()> {
    let machine = Machine::look();
    let places = Places::look().ok_or_else(|| Error::System {
        detail: "the kernel does not tell on which processors this may run".to_owned(),
        errno: 0,
    })?;
    let display = Display::new(steps(options));
    display.say(&machine.line());
    let caveats = remarks(options, places);
    let (rows, sheets) = (Vec::new(), Vec::new());
    let mut desk = Desk { options, places, display: &display, rows, sheets, caveats };
    measure(&mut desk)?;
    display.finish();
    let Desk { rows, sheets, caveats, .. } = desk;
    let findings = Findings { command: command.to_owned(), machine, caveats, rows, sheets };
    let text = if options.json {
        format!("{:#}\n", output::json(&findings))
    } else if options.markdown {
        output::markdown(&findings)
    } else {
        output::text(&findings)
    };
    write!(out, "{text}").map_err(|e| crate::keeper::system("writing the results", &e))
}

fn measure(desk: &mut Desk<'_>) -> Result<()> {
    pin(desk.places.measuring);
    for records in desk.options.keys() {
        let groups = [Group::Update, Group::Several, Group::Reads];
        if groups.into_iter().any(|group| desk.options.wants(group)) {
            contexts(desk, records)?;
        }
    }
    if desk.options.wants(Group::Sessions) {
        for records in desk.options.keys() {
            sessions::run(desk, records)?;
        }
    }
    if desk.options.wants(Group::Tatp) {
        tatp::run(desk)?;
    }
    if desk.options.wants(Group::Counters) {
        counters::run(desk)?;
    }
    if desk.options.wants(Group::Contention) {
        contention::run(desk)?;
    }
    desk.places.unpin();
    Ok(())
}

/// What is measured on a region of contexts.
fn contexts(desk: &mut Desk<'_>, records: u64) -> Result<()> {
    let contexts = desk.contexts(records)?;
    let material = Material::new(records, CONTEXT_BYTES, desk.options.seed);
    if desk.options.wants(Group::Update) {
        update::one(desk, &contexts, &material)?;
    }
    if desk.options.wants(Group::Several) {
        update::several(desk, &contexts, &material)?;
    }
    if desk.options.wants(Group::Reads) {
        reads::four(desk, &contexts, &material)?;
    }
    let desk::Contexts { session, place, .. } = contexts;
    drop(session);
    place.close_and_check()
}

/// How many lines of progress there will be.
fn steps(options: &Options) -> usize {
    let each = [(Group::Update, 1), (Group::Several, 3), (Group::Reads, 1), (Group::Sessions, 3)];
    let wanted = each.into_iter().filter(|(group, _)| options.wants(*group));
    let mut steps = options.keys().len() * wanted.map(|(_, steps)| steps).sum::<usize>();
    steps += usize::from(options.wants(Group::Tatp)) + usize::from(options.wants(Group::Counters));
    if options.wants(Group::Contention) {
        steps += 2 * options.sessions.len();
    }
    steps
}

/// What has to be known to judge the figures.
fn remarks(options: &Options, places: Places) -> Vec<String> {
    let mut out = vec![format!(
        "measured on processor {}; arms take turns on the same records, each turn after an \
         unmeasured one; medians, and ratios round by round",
        places.measuring
    )];
    if options.clock == Clock::Thread {
        out.push(
            "only time in which the measuring thread ran is counted (--clock thread), but for \
             latencies and conflicting writers"
                .to_owned(),
        );
    }
    out
}
