//! Parses a node's metrics page into a snapshot. Any other text is rejected with the reason.
//! Metrics missing from the page count as 0.

use std::collections::BTreeMap;

use super::snapshot::{
    ClassSnapshot, CoreSnapshot, NamespaceSnapshot, NodeSnapshot, ProcessSnapshot, RegionSnapshot,
};

/// Maximum number of samples. A node has some thousands: 256 namespaces and processes, a few cores,
/// each command.
const SAMPLES_MAX: usize = 200_000;

/// A sample: a line that is not a comment.
#[derive(Debug, PartialEq)]
struct Sample {
    labels: Vec<(String, String)>,
    value: f64,
}

/// The samples of a page, by metric name.
type Families<'p> = BTreeMap<&'p str, Vec<Sample>>;

/// Parses a page.
///
/// # Errors
/// Why the text is not a node's metrics page.
pub(super) fn read(text: &str) -> Result<(NodeSnapshot, RegionSnapshot), String> {
    let families = families(text)?;
    if !families.contains_key("nearstate_build_info") {
        return Err("the page has no nearstate_build_info: give the metrics.listen address of a \
                    nearstate node. A host of a cluster has such a page at the metrics_port of \
                    each partition, and `nearstate top --cluster FILE` shows all hosts"
            .to_owned());
    }
    Ok((node(&families), region(&families)))
}

fn families(text: &str) -> Result<Families<'_>, String> {
    let mut families = Families::new();
    let mut is_whole = false;
    for (number, line) in text.lines().enumerate().take(SAMPLES_MAX) {
        if is_whole {
            return Err(format!("line {} of the page follows its end", number + 1));
        }
        is_whole = line == "# EOF";
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let Some((name, sample)) = sample(line) else {
            return Err(format!(
                "line {} of the page is not a metric: \
                 is this the metrics.listen address of a node?",
                number + 1
            ));
        };
        families.entry(name).or_default().push(sample);
    }
    if is_whole { Ok(families) } else { Err("the page is truncated: try again".to_owned()) }
}

/// `name{label="value",..} number`.
fn sample(line: &str) -> Option<(&str, Sample)> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at_checked(end)?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    if name.is_empty() || !name.chars().all(is_name) {
        return None;
    }
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    // A timestamp may follow; a node writes none.
    let value: f64 = rest.strip_prefix(' ')?.split(' ').next()?.parse().ok()?;
    value.is_finite().then_some((name, Sample { labels, value }))
}

/// Parses `label="value",..}`. Returns the labels and the remaining text.
fn labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (value, after) = quoted_value(quoted)?;
        labels.push((name.to_owned(), value));
        rest = after.strip_prefix(',').unwrap_or(after);
    }
}

/// Parses a text up to its closing quote. Returns the unescaped value and the remaining text.
fn quoted_value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match letters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

impl Sample {
    fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn text(&self, name: &str) -> String {
        self.label(name).unwrap_or_default().to_owned()
    }

    fn number(&self) -> u64 {
        whole(self.value)
    }
}

/// Counts may be written with a fraction of 0.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, and negative numbers become 0"
)]
const fn whole(value: f64) -> u64 {
    value as u64
}

fn of<'f>(families: &'f Families<'_>, name: &str) -> &'f [Sample] {
    families.get(name).map_or(&[], Vec::as_slice)
}

fn sum(families: &Families<'_>, name: &str) -> u64 {
    of(families, name).iter().map(Sample::number).fold(0, u64::saturating_add)
}

fn node(families: &Families<'_>) -> NodeSnapshot {
    let first = |name: &str| of(families, name).first();
    let number = |name: &str| sum(families, name);
    NodeSnapshot {
        version: first("nearstate_build_info")
            .map(|build| build.text("version"))
            .unwrap_or_default(),
        pid: first("nearstate_node_info")
            .and_then(|node| node.label("pid")?.parse().ok())
            .unwrap_or_default(),
        started: first("nearstate_node_start_time_seconds").map_or(0.0, |start| start.value),
        clients: number("nearstate_resp_clients"),
        requests: number("nearstate_resp_requests_total"),
        errors: number("nearstate_resp_errors_total"),
        hits: number("nearstate_resp_keyspace_hits_total"),
        misses: number("nearstate_resp_keyspace_misses_total"),
        bytes_read: number("nearstate_core_bytes_read_total"),
        bytes_written: number("nearstate_core_bytes_written_total"),
        cores: cores(families),
        classes: classes(families),
    }
}

fn cores(families: &Families<'_>) -> Vec<CoreSnapshot> {
    let mut cores: BTreeMap<u64, CoreSnapshot> = BTreeMap::new();
    let mut take = |name: &str, set: fn(&mut CoreSnapshot, &Sample)| {
        for sample in of(families, name) {
            let Some(number) = sample.label("core").and_then(|core| core.parse().ok()) else {
                continue;
            };
            set(
                cores.entry(number).or_insert(CoreSnapshot { number, ..CoreSnapshot::default() }),
                sample,
            );
        }
    };
    take("nearstate_core_connections", |core, seen| core.connections = seen.number());
    take("nearstate_core_requests_total", |core, seen| core.requests = seen.number());
    take("nearstate_executor_busy_seconds_total", |core, seen| core.busy_seconds = seen.value);
    take("nearstate_executor_long_polls_total", |core, seen| core.long_polls = seen.number());
    cores.into_values().collect()
}

fn classes(families: &Families<'_>) -> Vec<ClassSnapshot> {
    // With the position of each class on the page, to keep that order.
    let mut classes: BTreeMap<&str, (usize, ClassSnapshot)> = BTreeMap::new();
    for sample in of(families, "nearstate_resp_request_seconds_bucket") {
        let (Some(class), Some(bound)) = (sample.label("class"), sample.label("le")) else {
            continue;
        };
        // NaN is not a bound; `+Inf` is the last one.
        let Some(bound) = bound.parse::<f64>().ok().filter(|bound| !bound.is_nan()) else {
            continue;
        };
        let source = classes.len();
        let (_, known) = classes.entry(class).or_insert_with(|| {
            (source, ClassSnapshot { name: class.to_owned(), within: Vec::new() })
        });
        known.within.push((bound, sample.number()));
    }
    let mut classes: Vec<(usize, ClassSnapshot)> = classes.into_values().collect();
    classes.sort_by_key(|(source, _)| *source);
    for (_, class) in &mut classes {
        class.within.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    }
    classes.into_iter().map(|(_, class)| class).collect()
}

fn region(families: &Families<'_>) -> RegionSnapshot {
    let number = |name: &str| sum(families, &format!("nearstate_region_{name}"));
    let processes = processes(families);
    RegionSnapshot {
        path: of(families, "nearstate_node_info")
            .first()
            .map(|node| node.text("region"))
            .unwrap_or_default(),
        bytes_max: number("bytes_max"),
        bytes_taken: number("bytes_taken"),
        epoch: number("epoch"),
        oldest_pin: number("oldest_pin_epochs"),
        records: number("records"),
        sessions: number("sessions"),
        sessions_dead: number("sessions_dead"),
        namespaces: namespaces(families),
        namespaces_omitted: number("namespaces_omitted"),
        processes_omitted: number("processes").saturating_sub(processes.len() as u64),
        processes,
    }
}

fn namespaces(families: &Families<'_>) -> Vec<NamespaceSnapshot> {
    let mut seen: BTreeMap<String, NamespaceSnapshot> = BTreeMap::new();
    let mut take = |what: &str, set: fn(&mut NamespaceSnapshot, u64)| {
        for sample in of(families, &format!("nearstate_namespace_{what}")) {
            let Some(name) = sample.label("namespace") else { continue };
            let entry = seen.entry(name.to_owned()).or_default();
            name.clone_into(&mut entry.name);
            set(entry, sample.number());
        }
    };
    take("records", |namespace, records| namespace.records = records);
    take("bytes", |namespace, bytes| namespace.bytes = bytes);
    take("tags", |namespace, tags| namespace.tags = tags);
    take("used_bytes", |namespace, bytes| namespace.used_bytes = bytes);
    take("soft_limit_bytes", |namespace, bytes| namespace.soft_bytes = bytes);
    take("hard_limit_bytes", |namespace, bytes| namespace.hard_bytes = bytes);
    seen.into_values().collect()
}

fn processes(families: &Families<'_>) -> Vec<ProcessSnapshot> {
    let mut seen: BTreeMap<(u64, String), ProcessSnapshot> = BTreeMap::new();
    let mut take = |what: &str, set: fn(&mut ProcessSnapshot, u64)| {
        for sample in of(families, &format!("nearstate_region_process_{what}")) {
            let Some(pid) = sample.label("pid").and_then(|pid| pid.parse().ok()) else { continue };
            let name = sample.text("name");
            let empty = ProcessSnapshot { pid, name: name.clone(), ..ProcessSnapshot::default() };
            set(seen.entry((pid, name)).or_insert(empty), sample.number());
        }
    };
    take("sessions", |process, sessions| process.sessions = sessions);
    take("oldest_pin_epochs", |process, behind| process.oldest_pin = behind);
    take("held_bytes", |process, bytes| process.held_bytes = bytes);
    take("held_seconds", |process, seconds| process.held_seconds = seconds);
    seen.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# HELP nearstate_build_info Constant 1.
# TYPE nearstate_build_info gauge
nearstate_build_info{version=\"0.1.0\"} 1
nearstate_node_info{pid=\"77\",region=\"/dev/shm/amf\"} 1
nearstate_node_start_time_seconds 1700000000.5
nearstate_core_connections{core=\"1\"} 3
nearstate_core_connections{core=\"0\"} 2
nearstate_core_requests_total{core=\"0\"} 10
nearstate_core_bytes_read_total{core=\"0\"} 100
nearstate_core_bytes_read_total{core=\"1\"} 11
nearstate_executor_busy_seconds_total{core=\"1\"} 0.25
nearstate_executor_long_polls_total{core=\"1\"} 4
nearstate_region_bytes_max 1073741824
nearstate_region_records 7
nearstate_region_processes 2
nearstate_region_process_sessions{pid=\"77\",name=\"near\\\"x\\\\y\\nz\"} 2
nearstate_region_process_oldest_pin_epochs{pid=\"77\",name=\"near\\\"x\\\\y\\nz\"} 5
nearstate_region_process_held_bytes{pid=\"77\",name=\"near\\\"x\\\\y\\nz\"} 4096
nearstate_region_process_held_seconds{pid=\"77\",name=\"near\\\"x\\\\y\\nz\"} 12
nearstate_namespace_records{namespace=\"a}b,c\"} 7
nearstate_namespace_bytes{namespace=\"a}b,c\"} 448
nearstate_resp_requests_total 10
nearstate_resp_request_seconds_bucket{le=\"+Inf\",class=\"write\"} 3
nearstate_resp_request_seconds_bucket{le=\"+Inf\",class=\"read\"} 9
nearstate_resp_request_seconds_bucket{le=\"0.001\",class=\"read\"} 4
# EOF
";

    #[test]
    fn a_page_is_parsed_into_node_and_region() {
        let (node, region) = read(PAGE).unwrap();
        assert_eq!((node.version.as_str(), node.pid, node.started), ("0.1.0", 77, 1_700_000_000.5));
        assert_eq!((node.requests, node.bytes_read), (10, 111));
        let core =
            |number, connections| CoreSnapshot { number, connections, ..CoreSnapshot::default() };
        let zero = CoreSnapshot { requests: 10, ..core(0, 2) };
        assert_eq!(
            node.cores,
            [zero, CoreSnapshot { busy_seconds: 0.25, long_polls: 4, ..core(1, 3) }]
        );
        let [write, read] = node.classes.as_slice() else { panic!("{:?}", node.classes) };
        assert_eq!((write.name.as_str(), read.name.as_str()), ("write", "read"));
        assert_eq!(read.within, [(0.001, 4), (f64::INFINITY, 9)]);
        assert_eq!((region.path.as_str(), region.records), ("/dev/shm/amf", 7));
        let name = "a}b,c".to_owned();
        assert_eq!(
            region.namespaces,
            [NamespaceSnapshot { name, records: 7, bytes: 448, ..NamespaceSnapshot::default() }]
        );
        let name = "near\"x\\y\nz".to_owned();
        assert_eq!(
            region.processes,
            [ProcessSnapshot {
                pid: 77,
                name,
                sessions: 2,
                oldest_pin: 5,
                held_bytes: 4096,
                held_seconds: 12
            }]
        );
        assert_eq!(region.processes_omitted, 1);
    }

    #[test]
    fn other_texts_are_rejected_with_the_reason() {
        for (text, wanted) in [
            ("", "truncated"),
            ("# EOF\n", "nearstate_build_info"),
            ("up 1\n# EOF\n", "metrics_port"),
            ("nearstate_build_info{version=\"1\"} 1\n", "truncated"),
            ("<html>\n# EOF\n", "line 1"),
            ("a 1\nnearstate_build_info{version=\"1} 1\n# EOF\n", "line 2"),
            ("a one\n# EOF\n", "line 1"),
            ("a 1\n# EOF\nb 1\n", "follows its end"),
            ("a{b=\"c\" 1\n# EOF\n", "line 1"),
            (" 1\n# EOF\n", "line 1"),
        ] {
            let why = read(text).unwrap_err();
            assert!(why.contains(wanted), "{text:?}: {why}");
        }
    }

    #[test]
    fn arbitrary_bytes_are_rejected_without_a_panic() {
        let mut seed = 7_u64;
        let pieces =
            ["a", "{", "}", "=", "\"", "\\", ",", " ", "1", "\n", "# EOF", "é", "core", "le"];
        for _ in 0..20_000 {
            let mut text = "nearstate_build_info 1\nnearstate_core_connections".to_owned();
            for _ in 0..12 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text.push_str(pieces[usize::try_from(seed >> 33).unwrap() % pieces.len()]);
            }
            let _ = read(&text);
            let _ = read(&format!("{text}\n# EOF\n"));
        }
    }
}
