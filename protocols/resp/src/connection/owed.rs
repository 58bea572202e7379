//! What must be replicated before a reply leaves, beside the commits of its request
//! (`docs/decisions/029-policies.md`).

use crate::command::CommandFlags;
use crate::command_context::RespCommand;
use crate::connection_state::ConnectionState;
use crate::core_context::CoreContext;
use crate::parse::Args;
use crate::records::KeyedRecords;
use crate::reply::error_reply::ErrorReply;

/// Whether a reply may owe something: nothing, as long as the region has no log.
#[inline]
pub(super) fn is_logged(core: &CoreContext) -> bool {
    !matches!(core.records.session().log_tail_position(), Ok(0))
}

/// Notes what the reply to a command tells of, in a region with a log.
#[inline(never)]
pub(super) fn owe(
    core: &CoreContext,
    connection: &mut ConnectionState,
    (command, args): (&RespCommand, Args<'_>),
    done: Result<(), ErrorReply>,
) -> Result<(), ErrorReply> {
    match done {
        Ok(()) if command.may_write() => owe_unchanged(&core.records, command, args),
        Ok(()) if command.flags.has(CommandFlags::READONLY) => {
            owe_reads(core, connection, command, args)
        }
        Err(error) if error.tells_of_records() => {
            let keys = command.keys.of(args).filter_map(|at| args.get(at));
            core.records.owe_reads(keys).map_err(ErrorReply::from).and(Err(error))
        }
        done => done,
    }
}

/// Behind a read: what it tells of may be a commit that a fail-over discards.
fn owe_reads(
    core: &CoreContext,
    connection: &mut ConnectionState,
    command: &RespCommand,
    args: Args<'_>,
) -> Result<(), ErrorReply> {
    let keys = command.keys.of(args).filter_map(|at| args.get(at));
    if connection.task.is_some() {
        // It reads in slices.
        let reads = connection.task_reads.get_or_insert_default();
        reads.keys.extend(keys.map(<[u8]>::to_vec));
        return Ok(());
    }
    Ok(core.records.owe_reads(keys)?)
}

/// Behind a write: one that has changed nothing stands for the one that has made its change, and
/// tells of records as a read does.
fn owe_unchanged(
    records: &KeyedRecords,
    command: &RespCommand,
    args: Args<'_>,
) -> Result<(), ErrorReply> {
    if records.session().owes_receipt() {
        return Ok(());
    }
    let keys = || command.keys.of(args).filter_map(|at| args.get(at));
    records.check_leases(keys())?;
    Ok(records.owe_keys(keys())?)
}
