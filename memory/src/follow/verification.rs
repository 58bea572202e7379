//! The words of a follower that have a check value, for the check and the repair: a flipped bit is
//! found also where no process relies on the word at present.

use super::{SOURCE_WORDS, check_stored, coming, load, reached, store, stored_stamp, switch};
use crate::layout::{
    Corruption, FOLLOW_CHECK, FOLLOW_PLACES, FOLLOW_REACHED, LOG_SHIPPED, PROMOTION_STAMP,
};
use crate::region::map::Map;

/// For the check: words with a check value, also where no process relies on them at present.
pub(crate) fn check_follower(map: &Map) -> Result<(), Corruption> {
    for at in [FOLLOW_PLACES[0], FOLLOW_PLACES[1], LOG_SHIPPED] {
        check_place(map, at)?;
    }
    check_source(map)?;
    coming::check(map)?;
    reached(map)?;
    stored_stamp(map)?;
    switch::check_target(map)
}

fn check_place(map: &Map, at: u64) -> Result<(), Corruption> {
    let words = [load(map, at)?, load(map, at + 8)?];
    check_stored(map, at + 16, &words, "a position of a follower has a flipped bit")
}

fn check_source(map: &Map) -> Result<(), Corruption> {
    let mut words = [0; 4];
    for (word, at) in words.iter_mut().zip(SOURCE_WORDS) {
        *word = load(map, at)?;
    }
    check_stored(map, FOLLOW_CHECK, &words, "the log that a region followed has a flipped bit")
}

/// For the repair, behind [`super::rejoin_if_damaged`]: what is damaged and not relied on is given
/// up. The names of what was damaged.
pub(crate) fn repair_follower(map: &Map) -> Result<Vec<&'static str>, Corruption> {
    let mut damaged = Vec::new();
    let places = FOLLOW_PLACES.map(|at| (at, "a position of the follower"));
    let shipped = (LOG_SHIPPED, "the entry that followers of the log have: they may join again");
    for (at, what) in places.into_iter().chain([shipped]) {
        if check_place(map, at).is_err() {
            store(map, at + 16, 0)?;
            damaged.push(what);
        }
    }
    let sealed = [
        (FOLLOW_CHECK, check_source(map).is_err(), "the log that the region followed"),
        (FOLLOW_REACHED, reached(map).is_err(), "the position that the region had reached"),
        (coming::CHECK, coming::check(map).is_err(), "the entry that the follower applied"),
        (PROMOTION_STAMP, stored_stamp(map).is_err(), "the stamp of the last promotion"),
        (
            switch::TARGET_CHECK,
            switch::check_target(map).is_err(),
            "the log that the follower had changed to",
        ),
    ];
    for (at, is_damaged, what) in sealed {
        if is_damaged {
            store(map, at, 0)?;
            damaged.push(what);
        }
    }
    debug_assert!(check_follower(map).is_ok(), "a damaged word of a follower is left");
    Ok(damaged)
}
