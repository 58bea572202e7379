//! Keys of which each value is a word.

use nearstate_node::RealtimeMode;

/// `cluster.expiry_clock`: `steady`, or `host`: the wall clock of the owner's host, with its steps.
pub(super) fn is_host_clock(text: &str) -> Result<bool, String> {
    match text {
        "steady" => Ok(false),
        "host" => Ok(true),
        _ => Err(format!("cluster.expiry_clock {text:?}: expected \"steady\" or \"host\"")),
    }
}

/// `cluster.realtime`.
pub(super) fn realtime(text: &str) -> Result<RealtimeMode, String> {
    match text {
        "auto" => Ok(RealtimeMode::Auto),
        "off" => Ok(RealtimeMode::Off),
        "require" => Ok(RealtimeMode::Require),
        _ => Err(format!("cluster.realtime {text:?}: expected \"auto\", \"off\" or \"require\"")),
    }
}
