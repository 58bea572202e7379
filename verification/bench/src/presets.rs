//! Presets: documented sets of runs with fixed options, and the goals that their figures are held
//! against.
//!
//! A preset is a list of cases. A case is a run of one workload, given as words of the command line
//! of `bench run`. Options that the user gives replace those of the case.

mod outcome;
mod micro;
mod server;
mod thesis;
mod txn;

pub use outcome::{Measured, goals, summary};

use nearstate_model::Result;

/// A set of runs.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The word of the command line.
    pub name: &'static str,
    /// The workload of all of its cases.
    pub workload: &'static str,
    /// Its purpose, in one sentence.
    pub about: &'static str,
    /// Its runs, in order.
    pub cases: &'static [Case],
}

/// One run of a preset.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name within the preset, and a part of the names of its files.
    pub name: &'static str,
    /// Options of `bench run`, as `--name value` or `--name`, separated by spaces.
    pub words: &'static str,
    /// The goals for its figures.
    pub goals: &'static [Goal],
}

const fn case(name: &'static str, words: &'static str, goals: &'static [Goal]) -> Case {
    Case { name, words, goals }
}

/// A bound on a figure of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The largest time of an operation of one client on the target, in nanoseconds.
    NsAtMost(&'static str, f64),
    /// The smallest rate of the target over all clients, in operations per second.
    RateAtLeast(&'static str, f64),
    /// The smallest ratio of the target's rate to a peer's.
    TimesPeer(&'static str, &'static str, f64),
    /// The largest ratio of the target's time to a peer's.
    TimePeer(&'static str, &'static str, f64),
    /// The largest ratio of the target's time to its time in another case of the preset.
    TimesCase(&'static str, &'static str, f64),
    /// The largest ratio of the target's time to the sum of its times in two other cases.
    TimesSum(&'static str, [&'static str; 2], f64),
    /// The largest ratio of the processor time of the target's servers to that of a peer's servers.
    ServerTimePeer(&'static str, &'static str, f64),
    /// The largest processor time of the target's servers for an operation, in nanoseconds.
    ServerNsAtMost(&'static str, f64),
    /// The largest mean time of an operation of a class of the target, in nanoseconds.
    ClassNsAtMost(&'static str, &'static str, f64),
    /// The largest memory of a record, in bytes.
    BytesAtMost(&'static str, f64),
}

/// Every preset.
pub fn all() -> impl Iterator<Item = Preset> {
    let single = micro::PRESETS.into_iter().chain(server::PRESETS);
    thesis::PRESETS.into_iter().chain(txn::PRESETS).chain(single)
}

/// Names that stand for several presets.
const GROUPS: [(&str, &[&str]); 3] = [
    ("goals", &["operations", "sessions", "location-register", "signalling"]),
    ("thesis", &["thesis-1", "thesis-2", "thesis-3", "thesis-4", "thesis-5", "thesis-6"]),
    (
        "thesis-numa",
        &["thesis-numa-1", "thesis-numa-2", "thesis-numa-3", "thesis-numa-4", "thesis-numa-5"],
    ),
];

/// The presets of this name, which may be that of a group.
pub fn named(name: &str) -> Result<Vec<Preset>> {
    let members = GROUPS.iter().find(|(group, _)| *group == name).map(|(_, members)| *members);
    let wanted = members.unwrap_or(std::slice::from_ref(&name));
    let presets: Vec<Preset> = all().filter(|preset| wanted.contains(&preset.name)).collect();
    if presets.is_empty() {
        let groups = GROUPS.iter().map(|(group, _)| *group);
        let names: Vec<&str> = groups.chain(all().map(|preset| preset.name)).collect();
        return Err(bad_argument!("unknown preset {name:?}, expected one of {}", names.join(", ")));
    }
    Ok(presets)
}

/// The presets with these cases only; all if none are named. An error if no preset has a case of a
/// name.
pub fn selected(presets: Vec<Preset>, cases: &[String]) -> Result<Vec<(Preset, Case)>> {
    let of = |preset: Preset| preset.cases.iter().map(move |case| (preset, *case));
    let all: Vec<(Preset, Case)> = presets.into_iter().flat_map(of).collect();
    let is_known = |name: &&String| all.iter().any(|(_, case)| case.name == **name);
    if let Some(unknown) = cases.iter().find(|name| !is_known(name)) {
        let names: Vec<&str> = all.iter().map(|(_, case)| case.name).collect();
        return Err(bad_argument!(
            "unknown case {unknown:?}, expected some of {}",
            names.join(", ")
        ));
    }
    let is_selected = |name: &str| cases.is_empty() || cases.iter().any(|case| case == name);
    Ok(all.into_iter().filter(|(_, case)| is_selected(case.name)).collect())
}

/// The command line of a case: `run`, the workload, the options of the case that `given` does not
/// replace, and `given` without [`PRESET_OPTIONS`].
pub fn command_line(preset: &Preset, case: &Case, given: &[String]) -> Vec<String> {
    let mut out = vec!["run".to_owned()];
    let own = without_preset(given);
    if !own.iter().any(|word| word == preset.workload) {
        out.push(preset.workload.to_owned());
    }
    let mut words = case.words.split_whitespace().peekable();
    while let Some(option) = words.next() {
        let value = words.next_if(|word| !word.starts_with("--"));
        if !is_given(&own, option) {
            out.push(option.to_owned());
            out.extend(value.map(str::to_owned));
        }
    }
    out.extend(own);
    out
}

fn is_given(words: &[String], option: &str) -> bool {
    words.iter().any(|word| {
        word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
    })
}

/// Options that select and scale cases. A run has none of them.
const PRESET_OPTIONS: [&str; 3] = ["--preset", "--cases", "--scale"];

fn without_preset(words: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if PRESET_OPTIONS.contains(&word.as_str()) {
            words.next();
        } else if !PRESET_OPTIONS.iter().any(|option| is_given(std::slice::from_ref(word), option))
        {
            out.push(word.clone());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RunCommand;
    use crate::targets::region::on_node;
    use crate::{targets, workloads};
    use clap::Parser as _;
    use std::collections::BTreeSet;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_of_the_user_replace_those_of_a_case() {
        let case = Case { name: "a", words: "--variant put --ops 10 --own-records", goals: &[] };
        let preset = Preset { name: "p", workload: "micro", about: "", cases: &[] };
        let line = command_line(&preset, &case, &words("--preset p --ops=7 --json"));
        assert_eq!(line.join(" "), "run micro --variant put --own-records --ops=7 --json");
        let line = command_line(&preset, &case, &words("micro --preset=p --variant view"));
        assert_eq!(line.join(" "), "run --ops 10 --own-records micro --variant view");
        let line = command_line(&preset, &case, &words("--preset p --cases a,b --seed 5"));
        assert_eq!(line.join(" "), "run micro --variant put --ops 10 --own-records --seed 5");
    }

    #[test]
    fn every_case_is_a_command_line_of_a_known_workload_and_its_goals_name_targets() {
        for preset in all() {
            let kind = workloads::named(preset.workload).unwrap();
            let names: BTreeSet<&str> = preset.cases.iter().map(|case| case.name).collect();
            assert_eq!(names.len(), preset.cases.len(), "{}: names are unique", preset.name);
            for case in preset.cases {
                let line = command_line(&preset, case, &[]);
                let options = RunCommand::try_parse_from(&line)
                    .map_or_else(|e| panic!("{line:?}: {e}"), |line| line.options);
                let variants = kind.variants();
                if let Some(variant) = &options.variant {
                    assert!(variants.iter().any(|(name, _)| name == variant), "{line:?}");
                }
                for target in &on_node::expanded(&options.targets).unwrap() {
                    assert!(targets::named(target).is_ok(), "{line:?}");
                }
                for goal in case.goals {
                    outcome::check_names(goal, &names, &options.targets);
                    if let Goal::ClassNsAtMost(_, class, _) = goal {
                        assert!(kind.spec().classes.contains(class), "{goal:?}: no such class");
                    }
                }
            }
        }
    }

    #[test]
    fn cases_are_selected_by_name() {
        let goals = || named("goals").unwrap();
        let all = selected(goals(), &[]).unwrap();
        assert_eq!(all.len(), goals().iter().map(|preset| preset.cases.len()).sum::<usize>());
        let some = selected(goals(), &["put-1k".to_owned(), "view-1k".to_owned()]).unwrap();
        let names: Vec<&str> = some.iter().map(|(_, case)| case.name).collect();
        assert_eq!(names, ["view-1k", "put-1k"], "in the order of the preset");
        let e = selected(goals(), &["view-2k".to_owned()]).unwrap_err().to_string();
        assert!(e.contains("view-2k") && e.contains("view-1k"), "{e}");
    }

    #[test]
    fn groups_have_only_presets_that_exist() {
        for (group, members) in GROUPS {
            assert_eq!(named(group).unwrap().len(), members.len(), "{group}");
        }
        assert!(named("thesis-9").unwrap_err().to_string().contains("thesis-numa"));
    }
}
