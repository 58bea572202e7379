//! A sample run for tests: five targets that exercise the parts of a report.

use crate::parameters::Parameters;
use crate::random::AccessDistribution;
use crate::result::{
    About, Check, ClassResult, FORMAT, LoadSettings, Noise, PaperFigure, RampPoint,
    RecordVerification, Round, Run, TargetResult, TimeSlice,
};

/// Rounds of each target.
const ROUNDS: u64 = 5;

/// Operations of each round.
const OPS: u64 = 20_000;

pub(crate) fn run() -> Run {
    Run {
        format: FORMAT,
        command: "nearstate bench run ue-signalling --targets region,redis,geode".to_owned(),
        began_s: 1_700_000_000,
        machine: vec![
            ("processor".to_owned(), "Example 3000".to_owned()),
            ("cores online".to_owned(), "2".to_owned()),
        ],
        noise: Noise { loops: 25_000, p50_ns: 18_000, p99_ns: 19_500, max_ns: 210_000, load: 0.2 },
        workload: About {
            name: "ue-signalling".to_owned(),
            title: "signalling of UEs".to_owned(),
            source: "paper 2, Table II".to_owned(),
            parameters: Parameters {
                records: 10_000,
                variant: "delta".to_owned(),
                spread: AccessDistribution::Zipfian,
                seed: 7,
                ..Parameters::default()
            },
            paper_figures: vec![PaperFigure {
                source: "paper 2, Figure 6".to_owned(),
                what: "service request, their testbed".to_owned(),
                figure: "1.4 ms".to_owned(),
            }],
        },
        load: LoadSettings {
            clients: 1,
            depth: 1,
            ops: OPS,
            warm_up: 2_000,
            rounds: 5,
            pinning: Some((vec![0], vec![1])),
            ramp_p99_ns: Some(1_000_000),
            ..LoadSettings::default()
        },
        targets: targets(),
        caveats: vec!["clients and servers share two processors".to_owned()],
        invalid: vec!["geode: its process ended in round 3".to_owned()],
        is_partial: false,
    }
}

fn targets() -> Vec<TargetResult> {
    let region = target("region", 10_000_000, 450);
    let redis = TargetResult { reconnects: 2, ..target("redis", 1_200_000_000, 58_000) };
    let geode = TargetResult {
        rounds: target("geode", 2_600_000_000, 126_000).rounds.into_iter().take(2).collect(),
        invalid: vec!["its process ended in round 3".to_owned()],
        verdict: Some(RecordVerification {
            records: 10_000,
            wrong: 3,
            absent: 0,
            examples: vec!["UE 17: GUTI is of procedure 4, not 5".to_owned()],
        }),
        ..target("geode", 2_600_000_000, 126_000)
    };
    let TargetResult { name, version, ways, .. } = target("memcached", 1, 1);
    let declined = Some("it has no unique tag".to_owned());
    let memcached = TargetResult { name, version, ways, declined, ..TargetResult::default() };
    let null = TargetResult { verdict: None, ..target("null", 1_000_000, 45) };
    vec![region, redis, geode, memcached, null]
}

fn target(name: &str, wall_ns: u64, ns: u64) -> TargetResult {
    TargetResult {
        name: name.to_owned(),
        version: format!("{name} 1.2"),
        settled: (name == "region").then(|| "2 MiB pages after collapse()".to_owned()),
        ways: vec![
            ("delta".to_owned(), "native".to_owned()),
            ("unique tag".to_owned(), format!("emulated: as {name} has it")),
        ],
        loaded: (10_000, wall_ns),
        rounds: (0..ROUNDS).map(|number| round(number, wall_ns, ns)).collect(),
        ramp: (0..6_u32).map(|step| ramp_point(f64::from(step), wall_ns, ns)).collect(),
        memory_bytes: Some(10_000 << 10),
        verdict: Some(RecordVerification { records: 10_000, ..RecordVerification::default() }),
        checks: vec![Check {
            name: "share of service requests".to_owned(),
            expected: 0.9,
            found: 0.9,
            tolerance: 0.01,
            weight: 1e5,
        }],
        ..TargetResult::default()
    }
}

/// Each round is one percent slower than the one before.
fn round(number: u64, wall_ns: u64, ns: u64) -> Round {
    let ns = ns + ns * number / 100;
    let latencies = |times: u64, share: u64| {
        (0..100).map(|i| (times * ns * (80 + i) / 100 + i, share * 10)).collect()
    };
    let class = |name: &str, times, share| ClassResult {
        name: name.to_owned(),
        latencies: latencies(times, share),
    };
    Round {
        ops: OPS,
        wall_ns: wall_ns + wall_ns * number / 100,
        client_cpu_ns: 480 * OPS,
        server_cpu_ns: if ns > 1000 { ns / 3 * OPS } else { 0 },
        bytes_out: 200 * OPS,
        bytes_in: 900 * OPS,
        unsuccessful: 0,
        steps: Some(1),
        classes: vec![class("service-request", 1, 18), class("attach", 3, 2)],
        slices: (0..10).map(|i| slice(i, wall_ns, ns)).collect(),
    }
}

fn slice(number: u64, wall_ns: u64, ns: u64) -> TimeSlice {
    let ms = (wall_ns / 10_000_000).max(1);
    let p99_ns = ns * (2 + number % 3);
    let (at_ms, ops) = (number * ms, OPS / 10);
    TimeSlice { at_ms, ms, ops, p50_ns: ns, p99_ns, max_ns: p99_ns * 9 }
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "invented figures"
)]
fn ramp_point(step: f64, wall_ns: u64, ns: u64) -> RampPoint {
    let limit = OPS as f64 * 1e9 / wall_ns as f64;
    let offered = limit * (0.2 + 0.2 * step);
    let wait = 1.0 / (1.05 - offered / limit).max(0.01);
    let p = |times: f64| (times * ns as f64 * wait) as u64;
    RampPoint {
        offered,
        done: offered.min(limit),
        p50_ns: p(1.0),
        p99_ns: p(3.0),
        p999_ns: p(8.0),
        is_sustained: step < 4.0,
    }
}
