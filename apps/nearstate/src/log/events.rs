//! Every kind of event that is logged. An id is never reused for another kind. 1xxx: life cycle of
//! the node; 2xxx: access control; 3xxx: problems while serving.

use super::{LogEvent, LogRate};
use crate::settings::LogLevel;

macro_rules! events {
    (@rate) => { LogRate::TenPerSecond };
    (@rate $rate:ident) => { LogRate::$rate };
    ($($name:ident = $id:literal $level:ident $($rate:ident)?
        $message:literal, $advice:literal;)+) => {
        $(pub(crate) const $name: &LogEvent = &LogEvent {
            id: $id,
            level: LogLevel::$level,
            rate: events!(@rate $($rate)?),
            message: $message,
            advice: $advice,
        };)+

        /// All events, in the order of their ids.
        #[cfg(test)]
        pub(crate) const ALL: &[&LogEvent] = &[$($name),+];
    };
}

events! {
    REGION_ATTACHED = "NS-1001" Info "region attached",
        "`ms` includes the recovery of sessions whose processes were killed.";
    LISTENING = "NS-1002" Info "listening",
        "Clients can connect to this address.";
    READY = "NS-1003" Info "ready",
        "All addresses accept connections. `ms` counts from the start of the command.";
    SHUTTING_DOWN = "NS-1004" Info "shutting down",
        "No new connections are accepted. Replies in flight are sent, for at most \
         `limits.shutdown_timeout`.";
    STOPPED = "NS-1005" Info "stopped",
        "`aborted` connections did not finish in time. If this happens regularly, raise \
         `limits.shutdown_timeout`.";
    STOPPING_AT_ONCE = "NS-1006" Warn "second signal, stopping at once",
        "No acknowledged write is lost. Clients see closed connections.";
    NO_PLAIN_TCP = "NS-1007" Info "plain TCP is closed: client certificates are required",
        "`tls.client_ca` is set and `listen` is not. Set `listen` if clients of this host may \
         connect without a certificate.";
    CERTIFICATES_RELOADED = "NS-1008" Info "certificates reloaded",
        "After SIGHUP. New connections use the new certificate; open ones are not affected.";
    FEWER_CONNECTIONS = "NS-1009" Warn "fewer connections than limits.connections_max",
        "The process may open too few files: `connections` clients can connect. Raise the hard \
         limit (`LimitNOFILE=` in systemd, `ulimit -Hn`) to at least `files_needed`, or lower \
         `limits.connections_max`.";
    MEMORY_LIMITED = "NS-1010" Info "memory is limited",
        "The limit of the control group, or `limits.memory_max`, and the limits that were derived \
         from it.";
    FOLLOWER_CONNECTED = "NS-1011" Info "a follower is connected",
        "`joins=true`: it gets all records first.";
    FOLLOWER_JOINED = "NS-1012" Info "a follower has all records",
        "From here on it can be promoted if this host is lost.";
    PLACED = "NS-1013" Info "cores are placed",
        "The processors of the cores in their order, and the memory node that a new region \
         prefers. `place` decides.";

    CLUSTER_HOST_READY = "NS-1014" Info "the host takes part in its cluster",
        "`nearstate cluster init` creates a new cluster, `nearstate cluster status` shows it.";
    CLUSTER_OWNER = "NS-1015" Info "this host owns the partition",
        "It serves clients as soon as it has a lease (`NS-1016`).";
    CLUSTER_LEASE = "NS-1016" Info "this host has a lease of the partition",
        "It serves the clients of the partition. Clears `NS-3009`.";
    CLUSTER_OWNER_ENDED = "NS-1017" Info "this host does not own the partition any more",
        "`nearstate cluster status` shows the owner. Clients connect there.";
    CLUSTER_OWNER_HEARD = "NS-1018" Info "the owner of the partition is heard again",
        "Clears `NS-3010`.";
    CLUSTER_FROZEN = "NS-1019" Info "the copy is frozen for a report",
        "The members of the group decide which one owns the partition.";
    CLUSTER_DISCARDED = "NS-1020" Info "the copy is discarded and joins anew",
        "This host was the owner, or its copy has another history. Until it has joined, the \
         partition has one copy less.";
    MEMBERSHIP_RECOVERED = "NS-1021" Info "the membership works again",
        "Clears `NS-3012`.";
    NRF_REGISTERED = "NS-1022" Info "registered with the NRF",
        "Network functions can discover the node.";
    NRF_DEREGISTERED = "NS-1023" Info "the registration with the NRF is removed",
        "Network functions do not discover the node any more.";
    TOKEN_KEYS_FETCHED = "NS-1024" Info "keys of access tokens fetched",
        "`nudsf.token_keys_url` has answered with this number of keys.";
    ALARM_CLEARED = "NS-1025" Info "an alarm is cleared",
        "Its condition does not hold any more.";
    CLUSTER_ADMITTING = "NS-1026" Info "the other copy of two is counted again",
        "One copy sufficed. When `NS-5012` is cleared, two are needed again.";
    HOST_VOTES_AGAIN = "NS-1027" Info "this host votes again",
        "It acts for its partitions, as after a start. Clears `NS-3024`.";
    REGION_FILE_BACK = "NS-1028" Info "the region's file has its name again",
        "Clears `NS-3027`.";
    MEMBER_LEFT = "NS-1029" Info "the connection of a member has ended",
        "It connects again by itself. So it is when the owner changes, or a node is restarted. \
         `NS-3011` and the alarms tell when a copy is missing.";
    MEMBER_TOO_EARLY = "NS-1030" Info OncePerCause "a member is not served yet",
        "The owner changes, or a host starts. The member connects again by itself. One line per \
         minute for each cause; `suppressed` counts the others.";

    COPY_RETRIED = "NS-1031" Info "a step of a copy is tried again",
        "`reason` says what failed. At a fail-over, and when a host joins again, it passes. If it \
         is repeated for two seconds, `NS-3008` follows.";

    UNAUTHENTICATED = "NS-2001" Warn "clients at this address are not authenticated",
        "`insecure` is set. Declare users, or restrict access to the address by other means.";
    PLAIN_TEXT_PASSWORDS = "NS-2002" Warn "passwords are sent over unencrypted TCP",
        "Users authenticate over plain TCP. Use an address of `tls.listen` instead.";
    SECRET_READABLE = "NS-2003" Warn "a secret file is readable by other users",
        "`chmod 600` the file. It contains passwords, password hashes or the TLS key.";
    REGION_MODE_TOO_WIDE = "NS-2004" Warn "the mode of the region's file is wider than region.mode",
        "Other users of this host can attach the region, which bypasses users and passwords. \
         `chmod` the file, or set `region.mode` to the intended mode.";
    NO_UNIX_SOCKET = "NS-2005" Warn "no Unix socket: the automatic path is too long",
        "Set `unix` to a shorter path, or to an empty list if no Unix socket is needed.";
    CERTIFICATES_NOT_RELOADED = "NS-2006" Warn "certificates not reloaded, the old ones are kept",
        "After SIGHUP. `reason` names the invalid file. Correct it, and send SIGHUP again.";
    AUTH_FAILED = "NS-2007" Warn "an authentication failed",
        "`failures` counts those of the client's address that are not forgotten; \
         `checked=false`: the password was not checked because of them. Correct the password of \
         the client. Many failures of unknown clients are an attack: restrict access to the \
         address.";

    FOLLOWER_REFUSED = "NS-2008" Warn "a follower was refused",
        "`reason` says what does not fit. `busy`: raise `peer.followers_max`. `cluster`: it is no \
         host of the cluster file. `settings`: its cluster file is another one; use the same on \
         all hosts. `fork`: the region of this node was restored from a copy; give the follower a \
         new region. A connection that is closed before it says anything, as by `nearstate cluster \
         check`, is none.";

    MEMBER_REFUSED = "NS-2009" Warn OncePerCause "a member of the cluster was refused",
        "`reason` says what does not fit: the cluster file differs between hosts (then it names \
         the first setting), the certificate has another name, or a host that is not in it \
         connects. One line per minute for each cause; `suppressed` counts the others.";
    TOKEN_KEYS_FAILED = "NS-2011" Warn "keys of access tokens not fetched",
        "`nudsf.token_keys_url` does not answer with a key set. The last keys stay in force for a \
         day. Then, and before the first keys, Nudsf answers 503.";
    CLUSTER_CHECK = "NS-2012" Warn "a check of the host has a warning",
        "`detail` says what may go wrong. `nearstate cluster check --host` shows all checks.";

    LONG_POLL = "NS-3001" Warn OnePerMinute "a task blocked its core",
        "Other clients of the core waited. At most one line per minute; `suppressed` counts the \
         events since the last one. Occasional events are caused by a busy machine, a \
         large request or a debugger. Repeated events of one task are a bug: report it.";
    STUCK_POLL = "NS-3002" Error "a task does not return",
        "One core serves no clients. Save a stack trace (`gdb -p`), report it, restart.";
    CLIENT_DISCONNECTED = "NS-3003" Warn "a client was disconnected",
        "`reason`: slow_reader, request_timeout, too_large, out_of_memory, tls_handshake, \
         auth_timeout. Check that client; the limits are in `[limits]`.";
    CORE_FAILED = "NS-3004" Error "a core failed",
        "Its last message precedes this line. The node exits. Start it again; the region recovers.";
    SOFT_LIMIT_EXCEEDED = "NS-3005" Warn "a namespace exceeds its soft limit",
        "Its records take `used_bytes`. At `hard_bytes`, if there is one, writes are refused. \
         Delete records, or raise the limits (`nearstate region limit`). One line until the usage \
         was below the limit again.";
    FOLLOWER_LEFT = "NS-3006" Warn "a follower is no longer connected",
        "It connects again by itself. Until then nothing is copied; with `peer.keep`, commits are \
         refused when the log is full.";
    NAMESPACE_NOT_LOGGED = "NS-3007" Warn "a namespace is not sent to followers",
        "It could not be added to the log, and is tried again. `reason` says why.";
    CLUSTER_COPY_FAILED = "NS-3008" Error "the copy of a partition failed",
        "It was repeated for two seconds, and is tried again. `reason` says what failed. Meanwhile \
         the host does not count as a member of the group.";
    CLUSTER_LEASE_ENDED = "NS-3009" Error "the lease of the partition has ended",
        "Too few members answer. Writers are refused (`Fenced`) until they answer (`NS-1016`), or \
         another host owns the partition. Check the network and the other hosts.";
    CLUSTER_OWNER_SILENT = "NS-3010" Warn "the owner of the partition is silent",
        "If enough members say so, another host takes over. `NS-1018` clears it.";
    CLUSTER_EVICTING = "NS-3011" Warn "a member is removed from those that count",
        "That is decided: it has not answered for two leases. It counts again when it has \
         everything. Until then the group survives one loss less.";
    MEMBERSHIP_FAILED = "NS-3012" Error "the membership has stopped on this host",
        "`reason` says what failed: a file, mostly because of a full disk, or the \
         requests to etcd, whose endpoints `NS-5006` names. The host does not vote and \
         does not learn decisions. It tries again every second; `NS-1021` clears it. If \
         the directory was removed or replaced while the node ran, or holds another \
         command than another host at the same place, or if a host that has voted \
         starts with an empty one, it stays: remove the host, empty the directory, add \
         it.";
    CLUSTER_REGION_LOST = "NS-3013" Error "the region of an owned partition is lost",
        "Another member takes over. Check why the region's file is another one.";
    CLUSTER_FORK = "NS-3014" Error "a copy has another history",
        "A region was restored from an older copy, or repaired. The copy that does not belong to \
         the owner's history joins anew.";
    CLUSTER_CLIENTS_FAILED = "NS-3015" Error "the clients of an owned partition are not served",
        "`reason` says what failed, mostly an address in use. Free it: the node tries again every \
         second.";
    NRF_FAILED = "NS-3016" Warn "a request to the NRF failed",
        "It is repeated, after at most a minute. `reason` says why.";
    ALARM_RAISED = "NS-3017" Warn "an alarm is raised",
        "`alarm` is its id, see the table of alarms in `docs/operate/cluster.md`. `NS-1025` clears \
         it.";
    CLUSTER_DEGRADING = "NS-3018" Error "one copy of two is to suffice",
        "The other one has been missing for the time of `cluster.when_copy_missing`. The loss of \
         this host loses commits from now on. Start the node of the other host.";
    STOPPED_KILLED = "NS-3019" Warn "a stopped process was killed",
        "It was stopped with a lock for which a change of the region's role, or the copy, waited. \
         `cluster.kill_stopped` allows that. Its commit was finished or undone.";
    STOPPED_KEPT = "NS-3020" Error "a stopped process holds a lock",
        "The region cannot change its role, or the copy cannot go on, until the process goes on or \
         ends. `reason` says why the node did not kill it. Continue it (`kill -CONT`), or kill it.";
    NUDSF_SET_ASIDE = "NS-3021" Error "a timer or a subscription cannot expire",
        "It is kept, and its expiry is not notified. `reason` says why: it is larger than a 128th \
         of the region, or has too many tags. Delete it, or put it again with less.";
    NUDSF_NOTIFIER_FAILED = "NS-3022" Error "the notifier of Nudsf failed",
        "It is tried again; not each attempt has a line. `reason` says what failed.";
    CLUSTER_THREAD_FAILED = "NS-3023" Error "a thread of the cluster has ended by a panic",
        "The process ends with status 1, and other hosts take over. The supervisor starts it \
         again. The message of the panic precedes this line: report it.";
    HOST_REMOVED = "NS-3024" Warn "this host has no vote, and acts for no partition",
        "It was removed (`nearstate cluster remove`), and learns no further decision. Stop its \
         node, or `nearstate cluster add` it: then `NS-1027` follows.";
    REGION_COPIED = "NS-3025" Warn "the region's file is a copy of another file",
        "It was restored or moved to another file system, so it may be older than what this host \
         had. It counts as lost, and joins anew from the other hosts. If no other copy is left: \
         `nearstate cluster force-new`.";
    LEVEL_TOO_HIGH = "NS-3026" Error "this program cannot do the level of the cluster",
        "The process ends with status 1, and acts for no partition. `decided` is the level of the \
         cluster, `highest` what this program can do. Start the version of the other hosts.";
    REGION_FILE_GONE = "NS-3027" Error "the region's file was removed or replaced",
        "The node and attached processes go on, but a process that attaches now does not find the \
         region, and its records are gone when the last process ends. In a cluster, drain the \
         host and restart its node: it joins again. Else copy the region before, with `nearstate \
         region follow` from `peer.listen`. Keep cleaners away: a system user, or `RemoveIPC=no` \
         in `logind.conf`.";
    DRAIN_UNDECIDED = "NS-3028" Error "a drain is not decided: writers are refused until it is",
        "The membership did not answer in the last step of `nearstate cluster drain`, and may \
         decide it later. `NS-5015` is raised until it has. Start a majority of the voters, or \
         etcd.";
    CLOCK_STEPPED = "NS-3029" Warn "the wall clock of this host was stepped",
        "`seconds` forward, or back if it is negative. Records of a cluster's partitions end when \
         they would have ended without it (`NS-5019`). Find out why: NTP steps a clock at a start, \
         and slews it later. Let the node start after the clock is set (`time-sync.target`).";
}
