//! Presets of servers: the node, Redis and Valkey.

use super::{Goal, Preset, case};

/// Options of one client process with many connections, over TCP.
macro_rules! tcp {
    ($words:literal) => {
        concat!($words, " --targets node,redis,valkey --spread uniform --rounds 5 --warm-up 20000")
    };
}

/// The same over Unix sockets.
macro_rules! unix {
    ($words:literal) => {
        concat!(
            $words,
            " --targets node-unix,redis-unix,valkey-unix --spread uniform --rounds 5 \
             --warm-up 20000"
        )
    };
}

const GET_TCP: &[Goal] =
    &[Goal::ServerTimePeer("node", "redis", 0.75), Goal::TimesPeer("node", "redis", 1.2)];
const GET_UNIX: &[Goal] = &[
    Goal::ServerTimePeer("node-unix", "redis-unix", 0.72),
    Goal::TimesPeer("node-unix", "redis-unix", 1.4),
];
const GET_PIPELINES: &[Goal] = &[Goal::TimesPeer("node", "redis", 2.6)];
const SET_PIPELINES: &[Goal] = &[Goal::ServerTimePeer("node", "redis", 0.55)];
const GET_PIPELINES_1M: &[Goal] = &[Goal::TimesPeer("node", "redis", 2.8)];
const SADD: &[Goal] = &[Goal::TimePeer("node", "redis", 1.2)];
const SADD_UNIX: &[Goal] = &[Goal::TimePeer("node-unix", "redis-unix", 1.2)];
const ONE_CLIENT: &[Goal] = &[Goal::NsAtMost("node", 10_000.0)];
const BESIDE_SCAN: &[Goal] = &[Goal::TimesCase("node", "ten-clients", 1.3)];

pub(super) const PRESETS: [Preset; 3] = [
    Preset {
        name: "server",
        workload: "kv",
        about: "the node, Redis and Valkey: 50 connections, pipelines of 16, idle connections, \
                one client, and reads during a SCAN",
        cases: &[
            case(
                "get-tcp",
                tcp!("--variant get --connections 50 --depth 50 --ops 200000"),
                GET_TCP,
            ),
            case("set-tcp", tcp!("--variant set --connections 50 --depth 50 --ops 200000"), &[]),
            case(
                "get-unix",
                unix!("--variant get --connections 50 --depth 50 --ops 200000"),
                GET_UNIX,
            ),
            case("set-unix", unix!("--variant set --connections 50 --depth 50 --ops 200000"), &[]),
            case(
                "get-pipelines",
                tcp!("--variant get --connections 50 --depth 800 --ops 800000"),
                GET_PIPELINES,
            ),
            case(
                "set-pipelines",
                tcp!("--variant set --connections 50 --depth 800 --ops 800000"),
                SET_PIPELINES,
            ),
            case(
                "get-pipelines-1m",
                tcp!("--variant get --connections 50 --depth 800 --ops 800000 --records 1000000"),
                GET_PIPELINES_1M,
            ),
            case("one-client-tcp", tcp!("--variant get --ops 50000 --busy-poll"), ONE_CLIENT),
            case("one-client-unix", unix!("--variant get --ops 50000 --busy-poll"), &[]),
            case(
                "idle",
                "--variant idle --connections 1000 --records 1000 --ops 3000 --warm-up 1000 \
                 --rounds 1 --targets node,redis,valkey",
                &[Goal::ServerNsAtMost("node", 500.0)],
            ),
            case("ten-clients", tcp!("--variant get --connections 10 --depth 10 --ops 50000"), &[]),
            case(
                "beside-scan",
                tcp!("--variant get-beside-scan --connections 10 --depth 10 --ops 50000"),
                BESIDE_SCAN,
            ),
        ],
    },
    Preset {
        name: "collections",
        workload: "sets",
        about: "the node, Redis and Valkey: sets of 20,000 members that are added one by one",
        cases: &[
            case(
                "sadd-tcp",
                "--ops 20000 --warm-up 20000 --rounds 5 --targets node,redis,valkey",
                SADD,
            ),
            case(
                "sadd-unix",
                "--ops 20000 --warm-up 20000 --rounds 5 \
                 --targets node-unix,redis-unix,valkey-unix",
                SADD_UNIX,
            ),
        ],
    },
    Preset {
        name: "latency",
        workload: "kv",
        about: "round trip of a GET of 1 KB over TCP, a Unix socket and a ring, all busy-polling",
        cases: &[case(
            "get",
            "--variant get --records 1000 --ops 50000 --rounds 5 --busy-poll \
             --targets node,node-unix,node-ring",
            &[Goal::NsAtMost("node-ring", 1_200.0)],
        )],
    },
];
