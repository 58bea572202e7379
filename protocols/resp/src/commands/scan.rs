//! Commands that scan namespaces: `KEYS`, `SCAN`, `RANDOMKEY`, `DBSIZE`, `FLUSHALL`. They run in
//! slices between which other clients are served, and in one piece between `MULTI` and `EXEC`.

mod in_txn;
mod tasks;

use super::arg;
use super::deferred_array::ArrayTask;
use super::key_iterator::{list_namespaces, matches};
use super::scan_options::{self, ScanKind, ScanOptions};
use crate::command_context::CommandContext;
use crate::parse::Args;
use crate::pattern;
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use std::ops::ControlFlow;
use tasks::{DbsizeTask, FlushTask, KeysSource, RandomKeyTask, ScanSource};

/// `KEYS pattern`
pub(crate) fn keys(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    pattern::validate(arg(args, 1))?;
    let pattern = Some(arg(args, 1)).filter(|pattern| *pattern != b"*");
    let namespaces = list_namespaces(ctx.records, pattern)?;
    if ctx.txn.is_some() {
        let begun = reply.mark();
        let mut count = 0;
        in_txn::each_key(ctx, &namespaces, |key_text, _| {
            if matches(pattern, key_text) {
                reply.bulk(key_text);
                count += 1;
            }
            if reply.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        reply.close_array(begun, count);
        return Ok(());
    }
    ctx.begin(ArrayTask::new(KeysSource::new(namespaces, pattern)), reply)
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`
pub(crate) fn scan(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let cursor = scan_options::read_cursor(arg(args, 1))?;
    let options = ScanOptions::read(args.from(2), ScanKind::Keys)?;
    let namespaces = list_namespaces(ctx.records, options.pattern)?;
    if ctx.txn.is_some() {
        let (mut found, mut bytes) = (Vec::new(), 0);
        in_txn::each_key(ctx, &namespaces, |key_text, _| {
            if options.matches(key_text) {
                found.push(key_text.to_vec());
                bytes += key_text.len() + size_of::<Vec<u8>>();
                reply.check_room_for(bytes);
            }
            if reply.is_over() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if let Some(form) = options.record_type {
            found = in_txn::with_type(ctx, found, form)?;
        }
        scan_options::write_single_page(reply, |reply| {
            for key_text in &found {
                reply.bulk(key_text);
            }
            found.len()
        });
        return Ok(());
    }
    ctx.begin(ArrayTask::new(ScanSource::new(namespaces, cursor, options)), reply)
}

/// `RANDOMKEY`
pub(crate) fn randomkey(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let namespaces = list_namespaces(ctx.records, None)?;
    if ctx.txn.is_some() {
        reply.bulk_or_nil(in_txn::any_key(ctx, &namespaces)?.as_deref());
        return Ok(());
    }
    let picking = RandomKeyTask::new(ctx.session(), namespaces)?;
    ctx.begin(picking, reply)
}

/// `DBSIZE`
pub(crate) fn dbsize(
    ctx: &mut CommandContext<'_>,
    _: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let namespaces = list_namespaces(ctx.records, None)?;
    if ctx.txn.is_some() {
        let mut count = 0;
        in_txn::each_key(ctx, &namespaces, |_, _| {
            count += 1;
            ControlFlow::Continue(())
        })?;
        reply.count(count);
        return Ok(());
    }
    ctx.begin(DbsizeTask::new(namespaces), reply)
}

/// `FLUSHALL [ASYNC | SYNC]`, `FLUSHDB [ASYNC | SYNC]`
pub(crate) fn flush(
    ctx: &mut CommandContext<'_>,
    args: Args<'_>,
    reply: &mut ReplyWriter<'_>,
) -> CommandResult {
    let is_word = |type_name: &[u8]| {
        type_name.eq_ignore_ascii_case(b"async") || type_name.eq_ignore_ascii_case(b"sync")
    };
    if args.len() > 2 || !args.from(1).iter().all(is_word) {
        return Err(ErrorReply::SYNTAX);
    }
    let namespaces = list_namespaces(ctx.records, None)?;
    if ctx.txn.is_some() {
        in_txn::delete_all(ctx, &namespaces)?;
        reply.ok();
        return Ok(());
    }
    ctx.begin(FlushTask::new(namespaces), reply)
}
