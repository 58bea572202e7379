//! The same sessions in named blocks: a change travels as the block that it is in.

use super::super::desk::{Desk, missing, wrong};
use super::super::findings::{Row, Unit};
use super::herd::{Bodies, Herd, Subscriber};
use super::{SESSION_ROOM, STRETCH, THIRDS};
use crate::stat::sequence_average;
use crate::table::latency_text;
use nearstate_model::Result;
use nearstate_store::{BlockChange, Condition, Kind, Metadata, Namespace, Schema, Session};

/// Bytes of the block that changes: 1,280 bits of a service request (paper 1, Table II).
const STATE_BYTES: usize = 160;

/// Bytes of the block that says who it is.
const IDENTITY_BYTES: usize = 64;

/// A way to change a part of a session.
type Way<'a> = (&'static str, &'a dyn Fn(&Session, &Subscriber, &[u8]) -> Result<()>);

/// A change of one block of a session with three tags, beside a bare put of a whole one.
///
/// # Errors
/// What the region said, and `Backend` if a change is not there.
pub fn run(desk: &mut Desk<'_>, records: u64) -> Result<()> {
    let place = desk.place(records.saturating_mul(4 * SESSION_ROOM))?;
    let session = place.region.session()?;
    let [third, _] = THIRDS;
    let schema = Schema { kind: Kind::Blocks, tags: third.tags() };
    let tagged = session.namespace("session", &schema)?;
    let bare = session.namespace("bare", &Schema::default())?;
    let mut herd = Herd::new(desk.options.seed);
    let mut bodies = Bodies::new(desk.options.seed);
    let step = desk.display.begin(format!("loading {records} sessions in blocks"), records);
    while (herd.len() as u64) < records {
        let rest = usize::try_from(records).unwrap_or(usize::MAX) - herd.len();
        for subscriber in herd.arrivals(STRETCH.min(rest)) {
            let value = bodies.next(&subscriber);
            insert(&session, tagged, &subscriber, value)?;
            session.put(bare, &subscriber.key, value)?;
            step.done(1);
        }
    }
    step.finish();
    desk.collapse(&place, &format!("{records} sessions in blocks, and whole"))?;
    let ways: [Way<'_>; 3] = [
        ("patch in a transaction", &|session, subscriber, value| {
            let change = [BlockChange { name: "state", bytes: value.get(..STATE_BYTES) }];
            session.transact(|txn| txn.patch(tagged, &subscriber.key, &change))
        }),
        ("patch", &|session, subscriber, value| {
            let change = [BlockChange { name: "state", bytes: value.get(..STATE_BYTES) }];
            session.patch(tagged, &subscriber.key, &change, Condition::Always).map(|_| ())
        }),
        ("bare put of the whole", &|session, subscriber, value| {
            session.put(bare, &subscriber.key, value).map(|_| ())
        }),
    ];
    let title = format!("change of a block of {STATE_BYTES} B of a session with three tags");
    let mut row = Row::new(&title, records, Unit::Ns);
    let (rounds, ops, clock) = (desk.options.rounds(), desk.options.ops(), desk.options.clock);
    let step = desk.display.begin(title, rounds);
    for _ in 0..rounds {
        for (name, way) in ways {
            let mut turn = |ops: u64| -> Result<f64> {
                let (mut ns, mut rest) = (0, usize::try_from(ops).unwrap_or(usize::MAX));
                while rest > 0 {
                    let some = herd.some(STRETCH.min(rest));
                    rest -= some.len();
                    let begin_ns = clock.now_ns();
                    for subscriber in &some {
                        way(&session, subscriber, bodies.next(subscriber))?;
                    }
                    ns += clock.now_ns() - begin_ns;
                }
                Ok(sequence_average(ns, ops))
            };
            turn(ops / 5)?;
            row.add(name, turn(ops)?);
        }
        step.done(1);
    }
    let text = row.arms.iter().map(|arm| format!("{} {}", arm.name, latency_text(arm.median())));
    step.finish_run(&text.collect::<Vec<_>>().join(", "));
    desk.rows.push(row);
    for subscriber in herd.some(1000) {
        let value = bodies.next(&subscriber).get(..STATE_BYTES).unwrap_or_default();
        verify(&session, tagged, &subscriber, value)?;
    }
    drop(session);
    place.close_and_check()
}

fn insert(
    session: &Session,
    namespace: Namespace,
    subscriber: &Subscriber,
    value: &[u8],
) -> Result<()> {
    let (state, rest) = value.split_at_checked(STATE_BYTES).unwrap_or_default();
    let (identity, rest) = rest.split_at_checked(IDENTITY_BYTES).unwrap_or_default();
    let blocks = [("state", state), ("identity", identity), ("rest", rest)]
        .map(|(name, bytes)| BlockChange { name, bytes: Some(bytes) });
    let labels = Metadata { tags: &subscriber.tags(), expires_ms: 0 };
    session.transact(|txn| {
        txn.patch(namespace, &subscriber.key, &blocks)?;
        txn.set_metadata(namespace, &subscriber.key, labels).map(|_| ())
    })
}

/// What is written into a block is there, and the other blocks are as they were.
fn verify(
    session: &Session,
    namespace: Namespace,
    subscriber: &Subscriber,
    state: &[u8],
) -> Result<()> {
    let change = [BlockChange { name: "state", bytes: Some(state) }];
    session.transact(|txn| txn.patch(namespace, &subscriber.key, &change))?;
    let view = session.find(namespace, "teid", &subscriber.teid)?.ok_or_else(missing)?;
    let rest = view.block("rest").map_or(0, <[u8]>::len);
    if view.block("state") == Some(state) && rest + STATE_BYTES + IDENTITY_BYTES == subscriber.bytes
    {
        Ok(())
    } else {
        Err(wrong("a block is not what was written"))
    }
}
