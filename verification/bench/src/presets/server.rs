//! Presets of servers: the node beside Redis and Valkey.

use super::{Case, Goal, Preset};

/// A case of one client process with many connections.
macro_rules! case {
    ($name:literal, $words:literal, $goals:expr) => {
        Case {
            name: $name,
            words: concat!($words, " --spread uniform --rounds 5 --warm-up 20000"),
            goals: $goals,
        }
    };
}

/// All of them.
pub(super) const PRESETS: [Preset; 2] = [
    Preset {
        name: "server",
        workload: "kv",
        about: "the node beside Redis and Valkey: 50 connections, pipelines of 16, idle \
                connections, one client, and reads beside SCAN",
        cases: &[
            case!(
                "get-tcp",
                "--variant get --connections 50 --depth 50 --ops 200000 \
                 --targets node,redis,valkey",
                &[
                    Goal::ServerTimePeer("node", "redis", 0.8),
                    Goal::TimesPeer("node", "redis", 1.2)
                ]
            ),
            case!(
                "set-tcp",
                "--variant set --connections 50 --depth 50 --ops 200000 \
                 --targets node,redis,valkey",
                &[]
            ),
            case!(
                "get-unix",
                "--variant get --connections 50 --depth 50 --ops 200000 \
                 --targets node-unix,redis-unix,valkey-unix",
                &[
                    Goal::ServerTimePeer("node-unix", "redis-unix", 0.72),
                    Goal::TimesPeer("node-unix", "redis-unix", 1.4)
                ]
            ),
            case!(
                "set-unix",
                "--variant set --connections 50 --depth 50 --ops 200000 \
                 --targets node-unix,redis-unix,valkey-unix",
                &[]
            ),
            case!(
                "get-pipelines",
                "--variant get --connections 50 --depth 800 --ops 800000 \
                 --targets node,redis,valkey",
                &[Goal::TimesPeer("node", "redis", 2.6)]
            ),
            case!(
                "set-pipelines",
                "--variant set --connections 50 --depth 800 --ops 800000 \
                 --targets node,redis,valkey",
                &[Goal::ServerTimePeer("node", "redis", 0.55)]
            ),
            case!(
                "get-pipelines-1m",
                "--variant get --connections 50 --depth 800 --ops 800000 --records 1000000 \
                 --targets node,redis,valkey",
                &[Goal::TimesPeer("node", "redis", 2.8)]
            ),
            case!(
                "one-client-tcp",
                "--variant get --ops 50000 --busy-poll --targets node,redis,valkey",
                &[Goal::NsAtMost("node", 10_000.0)]
            ),
            case!(
                "one-client-unix",
                "--variant get --ops 50000 --busy-poll --targets node-unix,redis-unix,valkey-unix",
                &[]
            ),
            Case {
                name: "idle",
                words: "--variant idle --connections 1000 --records 1000 --ops 3000 \
                        --warm-up 1000 --rounds 1 --targets node,redis,valkey",
                goals: &[Goal::ServerNsAtMost("node", 500.0)],
            },
            case!(
                "ten-clients",
                "--variant get --connections 10 --depth 10 --ops 50000 \
                 --targets node,redis,valkey",
                &[]
            ),
            case!(
                "beside-scan",
                "--variant get-beside-scan --connections 10 --depth 10 --ops 50000 \
                 --targets node,redis,valkey",
                &[Goal::TimesCase("node", "ten-clients", 1.3)]
            ),
        ],
    },
    Preset {
        name: "latency",
        workload: "kv",
        about: "round trip of a GET of 1 KB over TCP, a Unix socket and a ring, all busy-polling",
        cases: &[Case {
            name: "get",
            words: "--variant get --records 1000 --ops 50000 --rounds 5 --busy-poll \
                    --targets node,node-unix,node-ring",
            goals: &[Goal::NsAtMost("node-ring", 1_200.0)],
        }],
    },
];
