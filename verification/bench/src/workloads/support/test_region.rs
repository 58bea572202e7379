//! A region in which tests run a workload.

use crate::targets::region::RegionConnection;
use crate::workloads::{Parameters, Tally, WorkloadKind};
use nearstate_model::Result;
use nearstate_store::{CreateOptions, Region};

/// Runs `steps` operations of each client in turn, and then `spoil` on the first one's connection.
/// Returns how many records were wrong afterwards.
#[expect(clippy::panic_in_result_fn, reason = "a test fails by panicking")]
pub(crate) fn wrong_after(
    kind: &dyn WorkloadKind,
    (variant, clients): (&str, usize),
    steps: usize,
    spoil: impl FnOnce(&mut RegionConnection),
) -> Result<u64> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("region");
    let options = CreateOptions { bytes_max: 64 << 20, ..CreateOptions::default() };
    let _region = Region::create(&path, &options).unwrap();
    let parameters =
        Parameters { records: 40, variant: variant.to_owned(), ..Parameters::default() };
    let schema = kind.schema(&parameters);
    let open = |client| {
        let connection = RegionConnection::open(path.to_str().unwrap(), &schema).unwrap();
        (kind.client(&parameters, client, clients).unwrap(), connection)
    };
    let mut clients: Vec<_> = (0..clients).map(open).collect();
    for (workload, connection) in &mut clients {
        workload.load(connection, &mut |_| ())?;
    }
    for _ in 0..steps {
        for (workload, connection) in &mut clients {
            workload.step(connection, 1, &mut Tally::default())?;
        }
    }
    spoil(&mut clients[0].1);
    let verdicts = clients.iter_mut().map(|(workload, connection)| {
        let verdict = workload.verify(connection, &mut |_| ())?;
        assert!(verdict.records > 0, "{variant}");
        Ok(verdict.wrong)
    });
    verdicts.sum()
}
