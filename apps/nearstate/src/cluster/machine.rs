//! What a machine must be able to do as a host of a cluster: keep time, and give its node time.
//!
//! Files under `/proc` and `/sys` are read below a root, so that tests can replace them.

use std::path::{Path, PathBuf};

use super::row::{CheckRow, RowOutcome};

/// Clock sources that count interrupts. Interrupts are lost while the machine is paused or busy,
/// so a lease would last longer than its time.
const LOSES_TIME: [&str; 3] = ["jiffies", "refined-jiffies", "pit"];

/// Clock sources that are counters of hardware or of a hypervisor.
const KEEPS_TIME: [&str; 9] = [
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "xen",
    "arch_sys_counter",
    "riscv_clocksource",
    "timebase",
    "hpet",
    "acpi_pm",
];

/// The share of stolen time, in thousandths, from which a warning is given.
const STOLEN_PER_MILLE_MAX: u64 = 10;

/// Where the files of the kernel are.
#[derive(Clone, Debug)]
pub(crate) struct KernelFiles(PathBuf);

impl Default for KernelFiles {
    fn default() -> Self {
        Self(PathBuf::from("/"))
    }
}

impl KernelFiles {
    /// Files below another root.
    #[cfg(test)]
    pub(crate) fn below(root: &Path) -> Self {
        Self(root.to_owned())
    }

    fn read(&self, path: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.0.join(Path::new(path))).ok()?;
        Some(text.trim().to_owned())
    }

    /// The checks of the machine.
    pub(crate) fn rows(&self) -> Vec<CheckRow> {
        let all = [
            Some(self.clock_source()),
            Some(self.boot()),
            self.pauses(),
            self.quota(),
            self.stolen(),
        ];
        all.into_iter().flatten().collect()
    }

    fn clock_source(&self) -> CheckRow {
        let row = |outcome, detail| CheckRow::new("clock source", "this machine", outcome, detail);
        let source = self.read("sys/devices/system/clocksource/clocksource0/current_clocksource");
        let Some(source) = source else {
            let detail = "the kernel does not tell its clock source: make sure that it counts \
                          while the machine is paused";
            return row(RowOutcome::Warning, detail.to_owned());
        };
        if LOSES_TIME.contains(&source.as_str()) {
            let detail = format!(
                "the clock source {source:?} cannot carry a lease, because it loses time: boot \
                 the kernel with another one (clocksource=tsc)"
            );
            return row(RowOutcome::Failed, detail);
        }
        if KEEPS_TIME.contains(&source.as_str()) {
            return row(RowOutcome::Passed, source);
        }
        let detail = format!("{source:?} is unknown: its rate must be right to 2 %");
        row(RowOutcome::Warning, detail)
    }

    fn boot(&self) -> CheckRow {
        let row = |outcome, detail| CheckRow::new("boot id", "this machine", outcome, detail);
        match self.read("proc/sys/kernel/random/boot_id") {
            Some(id) if !id.is_empty() => row(RowOutcome::Passed, id),
            Some(_) | None => {
                let detail = "/proc/sys/kernel/random/boot_id cannot be read, so a lease cannot \
                              be held: mount /proc";
                row(RowOutcome::Failed, detail.to_owned())
            }
        }
    }

    /// A virtual machine may be paused without its clock counting.
    fn pauses(&self) -> Option<CheckRow> {
        let processors = self.read("proc/cpuinfo")?;
        let flags = processors.lines().find(|line| line.starts_with("flags"))?;
        flags.split_whitespace().any(|flag| flag == "hypervisor").then(|| {
            let detail = "the clock of a virtual machine must count while the machine is paused or \
                          migrated: else a paused owner answers reads after its lease";
            CheckRow::new("virtual machine", "this machine", RowOutcome::Warning, detail.to_owned())
        })
    }

    /// A process that has used up its quota stops, for up to a period.
    fn quota(&self) -> Option<CheckRow> {
        let line = self.read("sys/fs/cgroup/cpu.max")?;
        let (quota, period) = line.split_once(' ')?;
        let (quota, period) = (quota.parse::<u64>().ok()?, period.parse::<u64>().ok()?);
        let detail = format!(
            "the control group has {quota} us of processor time in each {period} us: when they \
             are used up, the node stops and may lose its lease"
        );
        Some(CheckRow::new("processor quota", "this machine", RowOutcome::Warning, detail))
    }

    /// The time that a hypervisor gave to others, since the start.
    fn stolen(&self) -> Option<CheckRow> {
        let text = self.read("proc/stat")?;
        let line = text.lines().next()?.strip_prefix("cpu ")?.to_owned();
        let fields: Vec<u64> = line.split_whitespace().filter_map(|one| one.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; the rest is part of user.
        let (all, stolen) = (fields.iter().take(8).sum::<u64>(), *fields.get(7)?);
        let per_mille = stolen.saturating_mul(1000).checked_div(all)?;
        let detail = format!("{}.{} % of the time was stolen", per_mille / 10, per_mille % 10);
        let is_much = per_mille > STOLEN_PER_MILLE_MAX;
        let outcome = if is_much { RowOutcome::Warning } else { RowOutcome::Passed };
        Some(CheckRow::new("stolen time", "this machine", outcome, detail))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The outcome of a check on a machine with these files.
    fn outcome(files: &[(&str, &str)], check: &str) -> Option<(RowOutcome, String)> {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let rows = KernelFiles::below(folder.path()).rows();
        let row = rows.into_iter().find(|row| row.check == check)?;
        Some((row.outcome, row.detail))
    }

    #[test]
    fn a_clock_source_that_loses_time_cannot_carry_a_lease() {
        let path = "sys/devices/system/clocksource/clocksource0/current_clocksource";
        for (source, wanted) in [
            ("tsc\n", RowOutcome::Passed),
            ("kvm-clock\n", RowOutcome::Passed),
            ("jiffies\n", RowOutcome::Failed),
            ("refined-jiffies\n", RowOutcome::Failed),
            ("sundial\n", RowOutcome::Warning),
        ] {
            let (outcome, detail) = outcome(&[(path, source)], "clock source").unwrap();
            assert_eq!(outcome, wanted, "{source}: {detail}");
            assert!(detail.contains(source.trim()), "{detail}");
        }
        assert_eq!(outcome(&[], "clock source").unwrap().0, RowOutcome::Warning);
    }

    #[test]
    fn a_machine_without_a_boot_id_holds_no_lease() {
        let path = "proc/sys/kernel/random/boot_id";
        assert_eq!(outcome(&[(path, "0f-1\n")], "boot id").unwrap().0, RowOutcome::Passed);
        assert_eq!(outcome(&[(path, "\n")], "boot id").unwrap().0, RowOutcome::Failed);
        assert_eq!(outcome(&[], "boot id").unwrap().0, RowOutcome::Failed);
    }

    #[test]
    fn what_stops_a_node_for_a_while_is_a_warning() {
        let virtual_machine = [("proc/cpuinfo", "model : x\nflags\t\t: fpu hypervisor lm\n")];
        assert_eq!(outcome(&virtual_machine, "virtual machine").unwrap().0, RowOutcome::Warning);
        assert_eq!(outcome(&[("proc/cpuinfo", "flags : fpu lm\n")], "virtual machine"), None);
        let quota = |text| outcome(&[("sys/fs/cgroup/cpu.max", text)], "processor quota");
        assert!(quota("50000 100000\n").unwrap().1.contains("50000 us"));
        assert_eq!(quota("max 100000\n"), None);
        let stolen = |steal: u32| {
            let stat = format!("cpu  50 0 0 {} 0 0 0 {steal} 0 0\ncpu0 1 1\n", 950 - steal);
            outcome(&[("proc/stat", &stat)], "stolen time").unwrap()
        };
        assert_eq!(stolen(5), (RowOutcome::Passed, "0.5 % of the time was stolen".to_owned()));
        assert_eq!(stolen(20).0, RowOutcome::Warning);
    }
}
