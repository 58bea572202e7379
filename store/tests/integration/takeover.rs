//! The region of a member of a cluster: fenced, promoted with its log, switched, demoted; and what a
//! kill at each step of that leaves.

use std::collections::BTreeMap;
use std::time::Duration;

use nearstate_store::{
    CreateOptions, Demotion, Error, FeedStart, FollowPosition, FollowState, LogIdentity, Namespace,
    OwnerLease, ReceiptState, Region, Schema, Session, WhenFull, lease_clock,
};

use crate::fixture::{TestFolder, clean, in_child_killed_at};
use crate::follow::{Host, contents, key, run, start};

const CLUSTER: [u8; 16] = *b"0123456789abcdef";

fn put(session: &Session, ns: Namespace, numbers: std::ops::Range<u64>) {
    for number in numbers {
        session.put(ns, &key(number % 50), &number.to_le_bytes()).unwrap();
    }
}
