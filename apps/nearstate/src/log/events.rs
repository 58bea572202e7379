//! Every kind of event that is logged. An id is never given to another kind; 1xxx: the life of the
//! node, 2xxx: who may come in, 3xxx: what went wrong while it serves.

use super::Event;
use crate::settings::Level;

macro_rules! events {
    ($($name:ident = $id:literal $level:ident $message:literal, $advice:literal;)+) => {
        $(pub(crate) const $name: &Event = &Event {
            id: $id,
            level: Level::$level,
            message: $message,
            advice: $advice,
        };)+

        /// All of them, in the order of their ids.
        #[cfg(test)]
        pub(crate) const ALL: &[&Event] = &[$($name),+];
    };
}

events! {
    REGION_ATTACHED = "NS-1001" Info "region attached",
        "Sizes and how long it took; recovery of sessions that were killed is part of that.";
    SERVING = "NS-1002" Info "serving",
        "Clients may come in at this address.";
    READY = "NS-1003" Info "ready",
        "Everything listens; `ms` counts from the start of the command.";
    SHUTTING_DOWN = "NS-1004" Info "shutting down",
        "Nobody is accepted any more; answers under way are sent, for `limits.drain_max` at most.";
    STOPPED = "NS-1005" Info "stopped",
        "`cut` connections did not end in time. If there are some each time, raise \
         `limits.drain_max`.";
    SHUTTING_DOWN_AT_ONCE = "NS-1006" Warn "second signal, ending at once",
        "Nothing that was acknowledged is lost; clients see their connections cut.";
    NO_PLAIN_TCP = "NS-1007" Info "no plain TCP: clients have to show certificates",
        "`tls.client_authorities` is set and `listen` is not. Say `listen` if clients of this host \
         may come in without a certificate.";
    CERTIFICATES_RENEWED = "NS-1008" Info "certificates were read again",
        "After SIGHUP: who comes from now on is shown the new certificate. Who is there stays.";

    OPEN_TO_ALL = "NS-2001" Warn "anybody who reaches this address may do everything",
        "Somebody has said `insecure`. Declare users, or keep strangers away by other means.";
    IN_THE_CLEAR = "NS-2002" Warn "passwords cross the network in the clear",
        "Users are asked for their passwords over plain TCP. Let them come in over `tls.listen`.";
    SECRET_READABLE = "NS-2003" Warn "others may read a file of secrets",
        "`chmod 600` it: it holds passwords, what they hash to, or the key of TLS.";
    REGION_OPEN = "NS-2004" Warn "the region's file has a wider mode than is set",
        "Other users of this host may attach past all users and passwords: `chmod` it, or set \
         `region.mode` to what is meant.";
    NO_UNIX_SOCKET = "NS-2005" Warn "no Unix socket beside the region: its path is too long",
        "Set `unix` to a shorter path, or to an empty list if nobody needs one.";
    CERTIFICATES_KEPT = "NS-2006" Warn "certificates could not be read again, the old ones stay",
        "After SIGHUP: `reason` says which file is wrong. Mend it, and send SIGHUP again.";

    LONG_POLL = "NS-3001" Warn "a task has kept its core for long",
        "Other clients of the core have waited. Once in a while it is a busy machine (or a \
         debugger); again and again with one task name it is a bug: report it.";
    STUCK = "NS-3002" Error "a task does not return",
        "One core serves nobody now. Take a stack of the process (`gdb -p`), report it, restart.";
    DISMISSED = "NS-3003" Warn "a client was sent away",
        "`reason`: slow_reader, half_sent, too_large, out_of_memory, handshake. Look \
         at that client; the bounds are under `[limits]`.";
    CORE_ENDED = "NS-3004" Error "a core has ended",
        "Its last words stand above. The node ends; start it again, the region recovers.";
}
