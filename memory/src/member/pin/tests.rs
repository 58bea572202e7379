//! What pins hold.

use super::*;
use crate::fixture::{TestRegionPath, has_key, put_key};
use crate::heap::usage::heap_usage;
use crate::region::file::{CreateOptions, Region};

/// Words of pins whose far end is that of a former pin.
fn scan(now: u64, pins: &[AtomicU64]) -> SafeEpochs {
    let far_end = &AtomicU64::new(1);
    SafeEpochs::scan(now, pins.iter().map(|pin| PinWords { pin, far_end }))
}

#[test]
fn an_age_is_rounded_up_by_less_than_a_five_hundredth() {
    let mut age = 0_u64;
    while age < 1 << 40 {
        let retired = (1 << 41) + 7;
        let life = Life::decode(retire(retired - age, retired));
        assert_eq!(life.retired, retired);
        let found = retired - life.born;
        assert!(found >= age && found - age <= age / 512, "{age} became {found}");
        age += 1 + age / 3;
    }
    assert_eq!(Life::decode(retire(9, 7)).born, 0, "a birth in the future");
    assert_eq!(Life::decode(retire(RETIRED | 5, 7)).born, 0, "retired twice");
    let held = hold(5);
    assert!(is_retired(held) && is_held(held) && !is_held(5) && !is_held(retire(5, 7)));
    assert_eq!(retire(held, 7), retire(5, 7), "its birth epoch is kept");
    assert!(!scan(100, &[]).is_reusable(held), "the log holds it");
    let flipped = retire(7, 7) & !RETIRED;
    assert!(flipped > 1 << EPOCH_BITS, "a flip makes it a live cell of epoch {flipped}");
    assert!(is_reusable(NEVER_READ, 2), "the first pin of a region holds it");
}

#[test]
fn a_pin_keeps_what_was_live_between_its_ends() {
    let pins: Vec<AtomicU64> = [(10, 12), (90, 95)]
        .map(|(start, end): (u64, u64)| AtomicU64::new(start + ((end - start) << EPOCH_BITS)))
        .into();
    let safe = scan(100, &pins);
    assert_eq!((safe.all, safe.recent, safe.stalled.len()), (10, 100, 2));
    for (born, retired, is_free) in [
        (5, 8, true),
        (5, 9, false),
        (12, 30, false),
        (13, 30, true),
        (13, 88, true),
        (13, 89, false),
        (96, 97, true),
        (96, 99, false),
    ] {
        let word = retire(born, retired);
        assert_eq!(safe.is_reusable(word), is_free, "{born} to {retired}");
        assert_eq!(safe.is_set_aside(word), !is_free && retired <= 98);
    }
    // A reader without a known end keeps everything since its start.
    let endless = [AtomicU64::new(10 + (REACH_FAR << EPOCH_BITS))];
    let safe = scan(100, &endless);
    assert!(safe.is_set_aside(retire(50, 60)) && safe.is_reusable(retire(5, 8)));
}

#[test]
fn the_end_of_a_pin_that_reaches_far_is_in_another_word() {
    let (epoch, start) = (AtomicU64::new(0), 1000);
    let (pin, far_end) = (&AtomicU64::new(start), &AtomicU64::new(start));
    let words = PinWords { pin, far_end };
    for end in [start, start + 1, start + REACH_FAR - 1, start + REACH_FAR, 1 << 40] {
        epoch.store(end << 16, Ordering::Relaxed);
        assert_eq!(extend(&epoch, words, false), end << 16);
        assert_eq!(PinInterval::load(words), Some(PinInterval { start, end }));
        let safe = SafeEpochs::scan(1 << 41, std::iter::once(words));
        assert!(safe.is_set_aside(retire(end, 1 << 40)) && !safe.would_hold(end + 1));
        assert!(safe.is_reusable(retire(end + 1, end + 5)), "written after it stopped");
    }
    // A process that does not store the second word, or a former pin of the slot.
    for other in [0, start, start + REACH_FAR - 1] {
        far_end.store(other, Ordering::Relaxed);
        assert_eq!(PinInterval::load(words), Some(PinInterval { start, end: u64::MAX }));
    }
    unpin(pin);
    assert_eq!(PinInterval::load(words), None);
}

/// Whether one of these pins holds a cell with this life.
fn is_held_by(pins: &[AtomicU64], word: u64) -> bool {
    let far_end = &AtomicU64::new(1);
    let mut pins = pins.iter().filter_map(|pin| PinInterval::load(PinWords { pin, far_end }));
    pins.any(|pin| pin.holds_word(word))
}

#[test]
fn overlapping_pins_beyond_those_told_apart_hold_what_they_hold() {
    // Two hundred pins in twenty groups. Between the pins of a group no cell can have lived.
    let pins: Vec<AtomicU64> = (0..200_u64)
        .map(|pin| AtomicU64::new((10 + 40 * (pin * 7 % 20) + 3 * (pin / 20)) | (1 << EPOCH_BITS)))
        .collect();
    let safe = scan(2000, &pins);
    assert_eq!(safe.stalled.len(), 20);
    for born in 0..900 {
        for retired in born..born + 50 {
            let word = retire(born, retired);
            let is_held = is_held_by(&pins, word);
            assert_eq!(safe.is_set_aside(word), is_held, "{born} to {retired}");
        }
    }
}

#[test]
fn of_more_pins_than_are_told_apart_the_nearest_hold_as_one() {
    // An old one, and ninety-nine with gaps of 100 and 200 epochs in turn.
    let starts = (1..100_u64).map(|pin| 1_000_000 + 150 * pin + 50 * (pin % 2));
    let pins: Vec<AtomicU64> = std::iter::once(10).chain(starts).map(AtomicU64::new).collect();
    let safe = scan(2_000_000, &pins);
    assert_eq!(safe.stalled.len(), STALLED_MAX);
    for pin in &pins {
        let start = pin.load(Ordering::Relaxed);
        assert!(safe.is_set_aside(retire(start, start)), "what reader {start} may use");
    }
    // The largest gap stays.
    assert!(safe.is_reusable(retire(500_000, 1_000_000)), "a cell of the largest gap");
    // Gaps of one size are not all closed.
    let even: Vec<AtomicU64> = (1..=33).map(|pin| AtomicU64::new(100 * pin)).collect();
    let safe = scan(2_000_000, &even);
    assert_eq!(safe.stalled.len(), STALLED_MAX);
    let held = (1..33).filter(|gap| safe.is_set_aside(retire(100 * gap + 10, 100 * gap + 90)));
    assert_eq!(held.count(), 1);
    // A reader without an end holds all that follows it.
    let mut pins: Vec<AtomicU64> = (1..=40).map(|pin| AtomicU64::new(100 * pin)).collect();
    pins.push(AtomicU64::new(0x802 | (REACH_FAR << EPOCH_BITS)));
    let safe = scan(2_000_000, &pins);
    assert_eq!(safe.stalled.len(), 21);
    assert!(safe.is_set_aside(retire(5000, 6000)) && safe.is_reusable(retire(110, 190)));
}

/// A session keeps a view while it reads now and then, for more epochs than the word of its pin has
/// room for. Then it stops.
#[test]
fn a_reader_with_an_old_view_that_stops_holds_nothing_that_is_written_later() {
    let path = TestRegionPath::new("old-view");
    let region = Region::create(path.path(), &CreateOptions::default()).unwrap();
    let [writer, reader] = [(), ()].map(|()| region.member().unwrap());
    let table = writer.namespace(b"records", 1).unwrap();
    let put_all = || {
        for number in 0..50_u32 {
            put_key(&writer, table, &number.to_be_bytes()).unwrap();
        }
    };
    put_all();
    let view = reader.pin().unwrap();
    assert!(has_key(&reader, table, &[0; 4]).unwrap());
    for _ in 0..REACH_FAR + 10 {
        writer.operation(|| writer.advance()).unwrap();
    }
    put_all();
    assert!(has_key(&reader, table, &[0; 4]).unwrap());
    put_all();
    let retired = || heap_usage(writer.map(), u64::MAX, u64::MAX).unwrap().retired;
    let before = retired();
    for _ in 0..2000 {
        put_all();
    }
    let after = retired();
    assert!(after < before + (1 << 18), "{before} bytes were retired, {after} after it stopped");
    drop(view);
}
