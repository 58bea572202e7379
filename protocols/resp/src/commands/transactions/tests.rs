//! The cost of a transaction: how often it validates its reads.

use super::*;
use crate::command::command_table::CommandTable;
use crate::command_context::CommandFn;
use crate::commands::strings;
use crate::core_context::test_core::TestCore;
use crate::parse::OwnedArgs;
use crate::reply::RespVersion;
use crate::table::TABLE;
use nearstate_node::clock::Clock;
use nearstate_store::{Namespace, Session};
use std::cell::{Cell, OnceCell};
use std::sync::LazyLock;

const KEYS: usize = 100;

thread_local! {
    /// Reads of all runs.
    static READS: Cell<usize> = const { Cell::new(0) };
    /// A session that stands for another process, and the namespace of the keys.
    static OTHER: OnceCell<(Session, Namespace)> = const { OnceCell::new() };
}

/// Counts a read. After the first one, another session changes its record.
fn count_read() {
    READS.set(READS.get() + 1);
    if READS.get() == 1 {
        OTHER.with(|other| {
            let (session, namespace) = other.get().unwrap();
            session.put(*namespace, b"0", b"new").unwrap();
        });
    }
}

fn get(ctx: &mut CommandContext<'_>, args: Args<'_>, reply: &mut ReplyWriter<'_>) -> CommandResult {
    let done = strings::get(ctx, args, reply);
    count_read();
    done
}

static CATALOGUE: LazyLock<CommandTable<CommandFn>> = LazyLock::new(|| {
    let command = RespCommand { run: get, ..*TABLE.find(b"get").unwrap() };
    CommandTable::new(&[command])
});

/// If each read validated all reads before it, the cost would grow with the square of their number,
/// and the first run would end at the second read.
#[test]
fn reads_of_an_exec_are_validated_once_after_the_last() {
    let test = TestCore::new(&Clock::new_virtual());
    let (core, mut connection) = (&test.core, test.connection());
    let session = test.region.session().unwrap();
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|key| format!("{{n}},{key}").into_bytes()).collect();
    let namespace = core.records.resolve_or_create(b"{n},", 0).unwrap().namespace;
    for key in 0..KEYS {
        session.put(namespace, key.to_string().as_bytes(), b"old").unwrap();
    }
    OTHER.with(|other| other.set((session, namespace)).unwrap());
    let mut ctx = CommandContext {
        table: &CATALOGUE,
        server: &test.server,
        records: &core.records,
        connection: &mut connection,
        txn: None,
    };

    let requests = keys.iter().map(|key| (0, OwnedArgs::from_iter([b"GET", key.as_slice()])));
    ctx.connection.queue =
        Some(CommandQueue { requests: requests.collect(), ..CommandQueue::default() });
    let mut output = Vec::new();
    let mut reply = ReplyWriter::new(&mut output, RespVersion::Resp2);
    exec(&mut ctx, Args::default(), &mut reply).unwrap();
    assert!(output.starts_with(b"*100\r\n$3\r\nnew\r\n$3\r\nold\r\n"), "{}", output.escape_ascii());
    assert_eq!(READS.replace(0), 2 * KEYS, "both runs read all");

    OTHER.with(|other| {
        let (session, namespace) = other.get().unwrap();
        session.put(*namespace, b"0", b"old").unwrap();
    });
    let found = ctx.change(|change| {
        let mut all = Vec::new();
        for key in &keys {
            let found = change.read(key);
            count_read();
            all.push(found?.unwrap().string()?.to_vec());
        }
        // An error that results from inconsistent reads is not reported.
        match all.first() {
            Some(first) if first == b"old" => Err(ErrorReply::SYNTAX.into()),
            _ => Ok(all),
        }
    });
    let found = found.unwrap();
    assert_eq!((found.len(), found.first().unwrap().as_slice()), (KEYS, &b"new"[..]));
    assert_eq!(READS.get(), 2 * KEYS, "both runs read all");
}
