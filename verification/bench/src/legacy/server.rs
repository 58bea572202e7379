//! `nearstate bench micro --server`: what a core of the node costs.

pub mod contest;
pub mod rival;
pub mod traffic;
pub mod executor;
pub mod near;

use nearstate_model::Result;
use std::io::Write;

/// Operations of one round.
pub const COUNT: u64 = 2_000_000;

/// Measures, and prints tables. `say` is told what is being done.
///
/// # Errors
/// `System`, `Backend`: the kernel refuses something, a server does not start, or the output.
pub fn run(
    executor: &executor::Method,
    contest: &contest::Method,
    say: &mut dyn FnMut(&str),
    out: &mut impl Write,
) -> Result<()> {
    say("the executor of a core");
    let costs = executor::measure(executor)?;
    say("round trips over TCP, a Unix socket and a ring");
    let trips = near::measure(executor.rounds, executor.count / 40, executor.other)?;
    let contest = contest::run(contest, say)?;
    let failed = |e| crate::keeper::system("writing the results", &e);
    writeln!(out, "{}", executor::table(&costs).text()).map_err(failed)?;
    writeln!(out, "{}", near::table(&trips).text()).map_err(failed)?;
    contest.iter().try_for_each(|table| writeln!(out, "{}", table.text()).map_err(failed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::legacy::protocol::monotonic_ns;

    #[test]
    fn every_cost_is_measured_in_every_round() {
        let method = executor::Method { rounds: 2, count: 20_000, now: monotonic_ns, other: 0 };
        let costs = executor::measure(&method).unwrap();
        assert!(costs.iter().all(|cost| cost.nanos.len() == 2));
        assert!(costs.iter().flat_map(|cost| &cost.nanos).all(|nanos| *nanos > 0.0), "{costs:?}");
        let text = executor::table(&costs).text();
        assert!(text.contains("suspend and resume"), "{text}");
    }

    #[test]
    fn every_way_is_measured_in_every_round() {
        let trips = near::measure(2, 300, 1).unwrap();
        assert!(trips.iter().all(|trip| trip.p50.len() == 2 && trip.p99.len() == 2));
        assert!(trips.iter().flat_map(|trip| &trip.p50).all(|nanos| *nanos > 0.0), "{trips:?}");
        assert!(near::table(&trips).text().contains("ring, both look"));
    }
}
