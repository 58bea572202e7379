//! The machine on which a figure was measured: without it the figure says nothing.

use std::fs;

/// Properties of this machine from `/proc` and `/sys`.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Name of the processor.
    pub cpu: String,
    /// Processors online.
    pub cores: usize,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    pub numa_nodes: usize,
    /// Caches of the first processor, such as `L2 1 MiB`.
    pub caches: Vec<String>,
    /// Kernel release.
    pub kernel: String,
    /// Frequency governor, or why it is unknown.
    pub governor: String,
    /// Host name of the operating system's release file, such as `Debian GNU/Linux 12`.
    pub system: String,
}

impl Machine {
    /// Detects the properties. Those that cannot be read are "unknown".
    pub fn detect() -> Self {
        let cpuinfo = text("/proc/cpuinfo");
        let meminfo = text("/proc/meminfo");
        let cpu = value_of(&cpuinfo, "model name", ':').unwrap_or_else(|| "unknown".to_owned());
        Self {
            cpu,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kibibytes(&meminfo, "MemTotal"),
            numa_nodes: numa_nodes(),
            caches: caches(),
            kernel: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            governor: or_unknown(&text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            system: value_of(&text("/etc/os-release"), "PRETTY_NAME", '=')
                .map_or_else(|| "unknown".to_owned(), |n| n.trim_matches('"').to_owned()),
        }
    }

    /// Name and value of every property, for a table or a report.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        vec![
            ("processor", self.cpu.clone()),
            ("cores online", self.cores.to_string()),
            ("NUMA nodes", self.numa_nodes.to_string()),
            ("caches", self.caches.join(", ")),
            ("memory", bytes_text(self.memory_bytes)),
            ("kernel", self.kernel.clone()),
            ("system", self.system.clone()),
            ("frequency governor", self.governor.clone()),
        ]
    }

    /// One line for a terminal.
    pub fn line(&self) -> String {
        format!(
            "{}, {} cores, {}, Linux {}",
            self.cpu,
            self.cores,
            bytes_text(self.memory_bytes),
            self.kernel
        )
    }
}

/// A number of bytes with a unit, and one decimal for small numbers.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut amount = crate::stat::as_f64(bytes);
    let mut unit = "B";
    for next in UNITS {
        unit = next;
        if amount < 1024.0 {
            break;
        }
        if next != "TiB" {
            amount /= 1024.0;
        }
    }
    if (amount - amount.round()).abs() < 0.05 || amount >= 100.0 {
        format!("{amount:.0} {unit}")
    } else {
        format!("{amount:.1} {unit}")
    }
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn or_unknown(text: &str) -> String {
    let text = text.trim();
    if text.is_empty() { "not visible (a virtual machine?)".to_owned() } else { text.to_owned() }
}

fn value_of(text: &str, name: &str, separator: char) -> Option<String> {
    text.lines()
        .filter_map(|line| line.split_once(separator))
        .find(|(key, _)| key.trim() == name)
        .map(|(_, value)| value.trim().to_owned())
}

fn kibibytes(meminfo: &str, name: &str) -> u64 {
    value_of(meminfo, name, ':')
        .and_then(|v| v.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()))
        .map_or(0, |kib| kib << 10)
}

fn numa_nodes() -> usize {
    let Ok(entries) = fs::read_dir("/sys/devices/system/node") else { return 1 };
    let is_node = |name: &str| {
        name.strip_prefix("node").is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()))
    };
    entries.flatten().filter(|e| is_node(&e.file_name().to_string_lossy())).count().max(1)
}

fn caches() -> Vec<String> {
    let of = |index: usize, name: &str| {
        text(&format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}")).trim().to_owned()
    };
    (0..8)
        .filter(|i| of(*i, "type") == "Data" || of(*i, "type") == "Unified")
        .map(|i| format!("L{} {}", of(i, "level"), size_text(&of(i, "size"))))
        .collect()
}

fn size_text(size: &str) -> String {
    size.strip_suffix('K')
        .and_then(|n| n.parse::<u64>().ok())
        .map_or_else(|| size.to_owned(), |kib| bytes_text(kib << 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        assert_eq!(bytes_text(0), "0 B");
        assert_eq!(bytes_text(1024), "1 KiB");
        assert_eq!(bytes_text(1536), "1.5 KiB");
        assert_eq!(bytes_text(10_240_000), "9.8 MiB");
        assert_eq!(bytes_text(24 << 30), "24 GiB");
    }

    #[test]
    fn a_property_is_found_by_its_whole_name() {
        let text = "MemFree: 5 kB\nMemTotal:  2048 kB\n";
        assert_eq!(kibibytes(text, "MemTotal"), 2 << 20);
        assert_eq!(kibibytes(text, "Mem"), 0);
    }

    #[test]
    fn this_machine_has_a_core_and_memory() {
        let machine = Machine::detect();
        assert!(machine.cores >= 1 && machine.memory_bytes > 0 && !machine.kernel.is_empty());
    }
}
