//! `nearstate bench micro --server`: what a core of the node costs.

pub mod executor;
pub mod near;

use nearstate_model::Result;
use std::io::Write;

/// Operations of one round.
pub const COUNT: u64 = 2_000_000;

/// Measures, and prints tables.
///
/// # Errors
/// `System` if the kernel refuses something, or the output.
pub fn run(method: &executor::Method, out: &mut impl Write) -> Result<()> {
    let costs = executor::measure(method)?;
    let trips = near::measure(method.rounds, method.count / 40, method.other)?;
    for table in [executor::table(&costs), near::table(&trips)] {
        writeln!(out, "{}", table.text())
            .map_err(|e| crate::keeper::system("writing the results", &e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::monotonic_ns;

    #[test]
    fn every_cost_is_measured_in_every_round() {
        let method = executor::Method { rounds: 2, count: 20_000, now: monotonic_ns, other: 0 };
        let costs = executor::measure(&method).unwrap();
        assert!(costs.iter().all(|cost| cost.nanos.len() == 2));
        assert!(costs.iter().flat_map(|cost| &cost.nanos).all(|nanos| *nanos > 0.0), "{costs:?}");
        let mut out = Vec::new();
        run(&executor::Method { rounds: 1, ..method }, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("suspend and resume") && text.contains("ring"), "{text}");
    }
}
