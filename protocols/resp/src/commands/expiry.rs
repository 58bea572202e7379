//! When keys end: `EXPIRE`, `TTL` and what belongs to them.

use super::arg;
use crate::command_context::Client;
use crate::expiry_options::Unit;
use crate::number::integer_or_refuse;
use crate::parse::Args;
use crate::records::Kept;
use crate::reply::Reply;
use crate::reply::error_reply::Refusal;
use nearstate_store::now_ms_coarse;

type Answer = Result<(), Refusal>;

const AFTER_SECONDS: Unit = Unit { is_seconds: true, is_absolute: false };
const AFTER_MS: Unit = Unit { is_seconds: false, is_absolute: false };
const AT_SECONDS: Unit = Unit { is_seconds: true, is_absolute: true };
const AT_MS: Unit = Unit { is_seconds: false, is_absolute: true };

/// Which present ends give way to a new one: `NX`, `XX`, `GT`, `LT`.
#[expect(clippy::struct_excessive_bools, reason = "four words that a client may give together")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Given {
    none: bool,
    some: bool,
    earlier: bool,
    later: bool,
}

impl Given {
    fn read(options: Args<'_>) -> Result<Self, Refusal> {
        let mut given = Self::default();
        for option in options.iter() {
            match option.to_ascii_lowercase().as_slice() {
                b"nx" => given.none = true,
                b"xx" => given.some = true,
                b"gt" => given.earlier = true,
                b"lt" => given.later = true,
                _ => {
                    let shown = String::from_utf8_lossy(option);
                    return Err(Refusal::new(format!("ERR Unsupported option {shown}")));
                }
            }
        }
        if given.none && (given.some || given.earlier || given.later) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(Refusal::fixed(text));
        }
        if given.earlier && given.later {
            let text = "ERR GT and LT options at the same time are not compatible";
            return Err(Refusal::fixed(text));
        }
        Ok(given)
    }

    /// Whether a record that ends at `present`, 0 for never, is to end at `new`.
    fn allows(self, present: u64, new: i64) -> bool {
        // Never is later than any time.
        let present = i64::try_from(present).ok().filter(|present| *present != 0);
        let is_none = !self.none || present.is_none();
        let is_some = !self.some || present.is_some();
        let is_earlier = !self.earlier || present.is_some_and(|present| present < new);
        let is_later = !self.later || present.is_none_or(|present| present > new);
        is_none && is_some && is_earlier && is_later
    }
}

/// Lets a key end at a time; at once if that has passed.
fn end(client: &Client<'_>, args: Args<'_>, unit: Unit, name: &str) -> Result<bool, Refusal> {
    let given = Given::read(args.from(3))?;
    let number = integer_or_refuse(arg(args, 2))?;
    let new = unit.end_of(number).ok_or_else(|| Refusal::expire_time(name))?;
    client.change(|change| {
        let Some(spot) = change.records.find(arg(args, 1))? else { return Ok(false) };
        let Some(found) = change.read_at(spot)? else { return Ok(false) };
        if !given.allows(found.expires_ms(), new) {
            return Ok(false);
        }
        let mut kept = Kept::of(&found);
        drop(found);
        match u64::try_from(new).ok().filter(|new| *new > now_ms_coarse()) {
            Some(new) => {
                kept.expires_ms = new;
                let tags = kept.tags();
                change.txn.set_metadata(spot.namespace, spot.key, kept.labels(&tags))?;
            }
            None => drop(change.txn.delete(spot.namespace, spot.key)?),
        }
        Ok(true)
    })
}

/// `EXPIRE key seconds [NX | XX | GT | LT]`
pub(crate) fn expire(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    reply.int(end(client, args, AFTER_SECONDS, "expire")?.into());
    Ok(())
}

/// `PEXPIRE key milliseconds [NX | XX | GT | LT]`
pub(crate) fn pexpire(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    reply.int(end(client, args, AFTER_MS, "pexpire")?.into());
    Ok(())
}

/// `EXPIREAT key seconds-since-1970 [NX | XX | GT | LT]`
pub(crate) fn expireat(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    reply.int(end(client, args, AT_SECONDS, "expireat")?.into());
    Ok(())
}

/// `PEXPIREAT key milliseconds-since-1970 [NX | XX | GT | LT]`
pub(crate) fn pexpireat(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    reply.int(end(client, args, AT_MS, "pexpireat")?.into());
    Ok(())
}

/// `PERSIST key`
pub(crate) fn persist(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    let has_ended = client.change(|change| {
        let Some(spot) = change.records.find(arg(args, 1))? else { return Ok(false) };
        let Some(found) = change.read_at(spot)? else { return Ok(false) };
        if found.expires_ms() == 0 {
            return Ok(false);
        }
        let mut kept = Kept::of(&found);
        drop(found);
        kept.expires_ms = 0;
        let tags = kept.tags();
        Ok(change.txn.set_metadata(spot.namespace, spot.key, kept.labels(&tags))?)
    })?;
    reply.int(has_ended.into());
    Ok(())
}

/// Tells when a key ends: -2 if it is not there, -1 if never, else what `told` makes of it.
fn tell(
    client: &Client<'_>,
    args: Args<'_>,
    told: impl Fn(u64) -> u64,
    reply: &mut Reply<'_>,
) -> Answer {
    let key = arg(args, 1);
    reply.int(match client.read(key)? {
        None => -2,
        Some(found) if found.expires_ms() == 0 => -1,
        Some(found) => i64::try_from(told(found.expires_ms())).unwrap_or(i64::MAX),
    });
    Ok(())
}

/// Seconds, rounded.
const fn seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1000
}

fn left(end: u64) -> u64 {
    end.saturating_sub(now_ms_coarse())
}

/// `TTL key`
pub(crate) fn ttl(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    tell(client, args, |end| seconds(left(end)), reply)
}

/// `PTTL key`
pub(crate) fn pttl(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    tell(client, args, left, reply)
}

/// `EXPIRETIME key`
pub(crate) fn expiretime(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    tell(client, args, seconds, reply)
}

/// `PEXPIRETIME key`
pub(crate) fn pexpiretime(
    client: &mut Client<'_>,
    args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Answer {
    tell(client, args, |end| end, reply)
}
