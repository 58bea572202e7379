//! Walks over namespaces: `KEYS`, `SCAN`, `RANDOMKEY`, `DBSIZE`, `FLUSHALL`. A slice at a time, so
//! that others are served in between; whole at once between `MULTI` and `EXEC`.

mod in_txn;
mod tasks;

use super::arg;
use super::keyspace_walk::{areas, takes};
use super::scan_options::{self, ScanOptions};
use crate::command_context::CommandContext;
use crate::parse::Args;
use crate::pattern;
use crate::reply::Reply;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::sliced_task::{TaskProgress, SlicedTask};
use std::ops::ControlFlow;
use tasks::{DbsizeTask, FlushTask, KeysTask, RandomKeyTask, ScanTask};

/// Begins work; what ends within a slice is answered at once.
fn begin(client: &mut CommandContext<'_>, mut work: impl SlicedTask + 'static, reply: &mut Reply<'_>) -> CommandResult {
    if work.step(client.records, client.server, reply)? == TaskProgress::More {
        client.link.work = Some(Box::new(work));
    }
    Ok(())
}

/// `KEYS pattern`
pub(crate) fn keys(client: &mut CommandContext<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    pattern::judge(arg(args, 1))?;
    let pattern = Some(arg(args, 1)).filter(|pattern| *pattern != b"*");
    let areas = areas(client.records, pattern)?;
    if client.txn.is_some() {
        let begun = reply.mark();
        let mut count = 0;
        in_txn::each_key(client, &areas, |said, _| {
            if takes(pattern, said) {
                reply.bulk(said);
                count += 1;
            }
            if reply.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        reply.close_array(begun, count);
        return Ok(());
    }
    begin(client, KeysTask::new(areas, pattern), reply)
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`
pub(crate) fn scan(client: &mut CommandContext<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let cursor = scan_options::read_cursor(arg(args, 1))?;
    let options = ScanOptions::read(args.from(2), true)?;
    let areas = areas(client.records, options.pattern)?;
    if client.txn.is_some() {
        let (mut found, mut bytes) = (Vec::new(), 0);
        in_txn::each_key(client, &areas, |said, _| {
            if options.takes(said) {
                found.push(said.to_vec());
                bytes += said.len() + size_of::<Vec<u8>>();
                reply.judge_more(bytes);
            }
            if reply.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(form) = options.form {
            found = in_txn::of_form(client, found, form)?;
        }
        scan_options::whole(reply, |reply| {
            for said in &found {
                reply.bulk(said);
            }
            found.len()
        });
        return Ok(());
    }
    begin(client, ScanTask::new(areas, cursor, options), reply)
}

/// `RANDOMKEY`
pub(crate) fn randomkey(client: &mut CommandContext<'_>, _: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let areas = areas(client.records, None)?;
    if client.txn.is_some() {
        reply.bulk_or_nil(in_txn::any_key(client, &areas)?.as_deref());
        return Ok(());
    }
    let picking = RandomKeyTask::new(client.session(), areas)?;
    begin(client, picking, reply)
}

/// `DBSIZE`
pub(crate) fn dbsize(client: &mut CommandContext<'_>, _: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let areas = areas(client.records, None)?;
    if client.txn.is_some() {
        let mut count = 0;
        in_txn::each_key(client, &areas, |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        reply.count(count);
        return Ok(());
    }
    begin(client, DbsizeTask::new(areas), reply)
}

/// `FLUSHALL [ASYNC | SYNC]`, `FLUSHDB [ASYNC | SYNC]`
pub(crate) fn flush(client: &mut CommandContext<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> CommandResult {
    let is_word =
        |word: &[u8]| word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync");
    if args.len() > 2 || !args.from(1).iter().all(is_word) {
        return Err(ErrorReply::SYNTAX);
    }
    let areas = areas(client.records, None)?;
    if client.txn.is_some() {
        in_txn::delete_all(client, &areas)?;
        reply.ok();
        return Ok(());
    }
    begin(client, FlushTask::new(areas), reply)
}
