//! Timers: armed ones, which cost memory and a place in an index; then others that are created
//! while they are due, until all of these have fired and are deleted.

use super::load::{GENERATORS, Load};
use super::result::{ServerKind, TimersResult};
use super::servers::{HttpClient, Servers};
use crate::processes::cpu_ns;
use crate::stat::as_f64;
use nearstate_model::Result;
use std::time::{Duration, Instant};

const TIMERS: &str = "/nudsf-timer/v1/Realm01/Storage01/timers";

const JSON: &str = "Content-Type: application/json";

/// Timers of one run of the load generator, which keeps their paths in memory.
const CHUNK: u64 = 100_000;

/// Timers that are created and fired, at most.
const FIRED_MAX: u64 = 100_000;

/// How often the node is asked whether all timers have fired.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The longest time until all timers have fired.
const FIRE_MAX: Duration = Duration::from_secs(600);

/// Measures `count` armed timers, and up to 100,000 that fire among them.
pub(super) fn run(servers: &Servers, load: &Load, count: u64) -> Result<TimersResult> {
    let (port, process) = (servers.port(ServerKind::Node), [servers.process(ServerKind::Node)]);
    let mut client = HttpClient::connect(port)?;
    let (region, cpu, begun) = (servers.region_bytes()?, cpu_ns(&process), Instant::now());
    for first in (0..count).step_by(usize::try_from(CHUNK).unwrap_or(usize::MAX)) {
        let all = first..(first + CHUNK).min(count);
        let paths: Vec<String> = all.map(|index| format!("{TIMERS}/armed{index}")).collect();
        let body = r#"{"expires":"2999-01-01T00:00:00Z","metaTags":{"ueId":["1"]}}"#;
        load.put_all((port, GENERATORS), &paths, JSON, body)?;
    }
    let created_s = begun.elapsed().as_secs_f64();
    let create_cpu_ns = cpu_ns(&process).saturating_sub(cpu) / count;
    let bytes_per_timer = servers.region_bytes()?.saturating_sub(region) / count;
    let fired = count.min(FIRED_MAX);
    let paths: Vec<String> = (0..fired).map(|index| format!("{TIMERS}/due{index}")).collect();
    let (cpu, begun) = (cpu_ns(&process), Instant::now());
    let due = r#"{"expires":"2020-01-01T00:00:00Z","deleteAfter":0}"#;
    load.put_all((port, GENERATORS), &paths, JSON, due)?;
    // All have one time, so that they fire in the order of their keys: the greatest is the last.
    let last = paths.iter().max().map(String::as_str).unwrap_or_default();
    while client.request("GET", last, &[], "")?.status != 404
        || client.request("GET", &format!("{TIMERS}?expired-filter"), &[], "")?.status != 204
    {
        if begun.elapsed() > FIRE_MAX {
            return Err(backend_error!("timers have not fired in time"));
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
    let fired_s = begun.elapsed().as_secs_f64();
    Ok(TimersResult {
        timers: count,
        created_per_s: as_f64(count) / created_s,
        create_cpu_ns,
        bytes_per_timer,
        fired_per_s: as_f64(fired) / fired_s,
        create_and_fire_cpu_ns: cpu_ns(&process).saturating_sub(cpu) / fired.max(1),
        fired,
    })
}
