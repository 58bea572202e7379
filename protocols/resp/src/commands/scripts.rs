//! `EVAL` and its like: the scripts that the clients send, told apart by their SHA-1.

#![expect(clippy::unnecessary_wraps, reason = "the function of a row has one form")]

use super::arg;
use crate::command_context::{Change, Client};
use crate::expiry_options::Unit;
use crate::number::{integer, integer_or_refuse};
use crate::parse::Args;
use crate::records::{Fault, Found, Kept};
use crate::reply::Reply;
use crate::reply::error_reply::Refusal;
use crate::script::Script;
use nearstate_store::now_ms_coarse;

type Answer = Result<(), Refusal>;

const UNKNOWN: Refusal = Refusal::fixed(
    "ERR this server runs no Lua: it knows the lock scripts of redis-py, ricsdl and sdlgo. Use \
     SETIE, DELIE, or MULTI with WATCH instead",
);

/// What ricsdl's script answers for a lock that is not there, and for one of somebody else.
const NO_LOCK: i64 = -10;
const NOT_MINE: i64 = -11;

/// `EVAL script keys [key ..] [arg ..]`
pub(crate) fn eval(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    let call = Call::read(args)?;
    call.run(client, Script::of_text(arg(args, 1)).ok_or(UNKNOWN)?, reply)
}

/// `EVALSHA sha1 keys [key ..] [arg ..]`
pub(crate) fn evalsha(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    let call = Call::read(args)?;
    call.run(client, Script::of_sha(arg(args, 1)).ok_or(Refusal::NO_SCRIPT)?, reply)
}

/// `EVAL_RO script keys [key ..] [arg ..]`
pub(crate) fn eval_ro(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    let call = Call::read(args)?;
    call.run_reading(client, Script::of_text(arg(args, 1)).ok_or(UNKNOWN)?, reply)
}

/// `EVALSHA_RO sha1 keys [key ..] [arg ..]`
pub(crate) fn evalsha_ro(client: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    let call = Call::read(args)?;
    call.run_reading(client, Script::of_sha(arg(args, 1)).ok_or(Refusal::NO_SCRIPT)?, reply)
}

/// `SCRIPT LOAD script`
pub(crate) fn load(_: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    let script = Script::of_text(arg(args, 2)).ok_or(UNKNOWN)?;
    reply.bulk(script.sha().as_bytes());
    Ok(())
}

/// `SCRIPT EXISTS sha1 ..`
pub(crate) fn exists(_: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    let shas = args.from(2);
    reply.array(shas.len());
    for sha in shas.iter() {
        reply.int(Script::of_sha(sha).is_some().into());
    }
    Ok(())
}

/// `SCRIPT FLUSH [ASYNC|SYNC]`
pub(crate) fn flush(_: &mut Client<'_>, args: Args<'_>, reply: &mut Reply<'_>) -> Answer {
    let is = |word: &str| arg(args, 2).eq_ignore_ascii_case(word.as_bytes());
    if args.len() > 3 || args.len() == 3 && !is("async") && !is("sync") {
        return Err(Refusal::fixed("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
    }
    reply.ok();
    Ok(())
}

/// What a script is given.
#[derive(Clone, Copy)]
struct Call<'a> {
    key: Option<&'a [u8]>,
    argv: Args<'a>,
}

impl<'a> Call<'a> {
    fn read(args: Args<'a>) -> Result<Self, Refusal> {
        let keys = integer_or_refuse(arg(args, 2))?;
        let keys = usize::try_from(keys)
            .map_err(|_| Refusal::fixed("ERR Number of keys can't be negative"))?;
        if keys > args.len() - 3 {
            let text = "ERR Number of keys can't be greater than number of args";
            return Err(Refusal::fixed(text));
        }
        let key = if keys > 0 { args.get(3) } else { None };
        Ok(Self { key, argv: args.from(3 + keys) })
    }

    fn run(self, client: &Client<'_>, script: Script, reply: &mut Reply<'_>) -> Answer {
        let wanted = match script {
            Script::Release | Script::Validity => 1,
            Script::Refresh | Script::Reacquire => 2,
            Script::Extend => 3,
        };
        let Some(key) = self.key.filter(|_| self.argv.len() >= wanted) else {
            return Err(Refusal::new(format!(
                "ERR this script takes a key and {wanted} arguments behind it"
            )));
        };
        let answer = match script {
            Script::Validity => self.validity(client, key)?,
            Script::Refresh | Script::Release | Script::Reacquire | Script::Extend => {
                client.change(|change| self.change(change, key, script))?
            }
        };
        reply.int(answer);
        Ok(())
    }

    fn run_reading(self, client: &Client<'_>, script: Script, reply: &mut Reply<'_>) -> Answer {
        if script != Script::Validity {
            let text = "ERR Write commands are not allowed from read-only scripts.";
            return Err(Refusal::fixed(text));
        }
        self.run(client, script, reply)
    }

    fn token(self) -> &'a [u8] {
        arg(self.argv, 0)
    }

    fn validity(self, client: &Client<'_>, key: &[u8]) -> Result<i64, Refusal> {
        let Some(found) = client.read(key)? else { return Ok(NO_LOCK) };
        let answer = if found.string()? == self.token() { left_ms(&found) } else { NOT_MINE };
        client.session().whole()?;
        Ok(answer)
    }

    /// The scripts that change a lock, which they do only for who has its token.
    fn change(self, change: &Change<'_, '_>, key: &[u8], script: Script) -> Result<i64, Fault> {
        let Some(found) = change.read(key)? else { return Ok(0) };
        if found.string()? != self.token() {
            return Ok(0);
        }
        let (left, kept) = (left_ms(&found), Kept::of(&found));
        drop(found);
        let ms = || integer(arg(self.argv, 1)).ok_or(Refusal::NOT_INTEGER);
        match script {
            Script::Release | Script::Validity => {
                change.delete(key)?;
            }
            Script::Refresh | Script::Reacquire => end_in(change, key, kept, Some(ms()?))?,
            Script::Extend if left < 0 => return Ok(0),
            Script::Extend => {
                let is_more = arg(self.argv, 2) == b"0";
                end_in(change, key, kept, ms()?.checked_add(if is_more { left } else { 0 }))?;
            }
        }
        Ok(1)
    }
}

/// `PTTL` of a record that is there.
fn left_ms(found: &Found<'_>) -> i64 {
    match found.expires_ms() {
        0 => -1,
        end => i64::try_from(end.saturating_sub(now_ms_coarse())).unwrap_or(i64::MAX),
    }
}

/// `PEXPIRE`: lets a record end so many milliseconds from now; at once if that is not ahead.
fn end_in(
    change: &Change<'_, '_>,
    key: &[u8],
    mut kept: Kept,
    ms: Option<i64>,
) -> Result<(), Fault> {
    let unit = Unit { is_seconds: false, is_absolute: false };
    let end = ms.and_then(|ms| unit.end_of(ms)).ok_or_else(|| Refusal::expire_time("pexpire"))?;
    match u64::try_from(end) {
        Ok(end) if end > now_ms_coarse() => {
            kept.expires_ms = end;
            let spot = change.spot(key, 0)?;
            let tags = kept.tags();
            change.txn.set_metadata(spot.namespace, spot.key, kept.labels(&tags))?;
        }
        _ => drop(change.delete(key)?),
    }
    Ok(())
}
