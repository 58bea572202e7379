//! Pipes: each byte arrives once and in order, words are stored again only after they were read,
//! and no side sleeps while there is a byte for it or room.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::{check, read, start, wait_for, write};
use crate::atomic::{AtomicU64, Ordering};
use crate::pipe::words::{
    FOR_BYTES, FOR_ROOM, PipeMemory, PipeReader, PipeWords, PipeWriter, fall_asleep,
    must_ring_doorbell,
};

/// The mutants, and for each the model that must fail.
pub(super) const MUTANTS: &[(&str, &str)] = &[
    ("pipe-tail-relaxed", PIPE),
    ("tail-load-relaxed", PIPE),
    ("head-relaxed", PIPE),
    ("head-load-relaxed", PIPE),
    ("head-early", PIPE),
    ("room-unchecked", PIPE),
    ("pipe-tail-relaxed", PIECES),
    ("head-word", PIECES),
    ("sleep-no-fence", SLEEP),
    ("doorbell-no-fence", SLEEP),
];

const PIPE: &str =
    "pipe::words_are_read_after_they_are_written_and_stored_again_after_they_are_read";
const PIECES: &str = "pipe::bytes_of_a_word_that_is_stored_again_arrive_once_and_in_order";
const SLEEP: &str = "pipe::no_side_sleeps_while_there_are_bytes_or_room";

/// Words whose unordered accesses loom reports.
struct Cells(Vec<UnsafeCell<u64>>);

impl PipeMemory for Cells {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn load(&self, index: usize) -> u64 {
        read(&self.0[index])
    }

    fn store(&self, index: usize, word: u64) {
        write(&self.0[index], word);
    }
}

struct PipeModel<W> {
    tail: AtomicU64,
    head: AtomicU64,
    words: W,
    writer_sleeps: AtomicU64,
    reader_sleeps: AtomicU64,
    /// Doorbells that were rung.
    doorbells: [AtomicU64; 2],
}

impl<W: PipeMemory> PipeModel<W> {
    fn new(words: W) -> Arc<Self> {
        Arc::new(Self {
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            words,
            writer_sleeps: AtomicU64::new(0),
            reader_sleeps: AtomicU64::new(0),
            doorbells: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    fn pipe(&self) -> PipeWords<'_, W> {
        PipeWords { tail: &self.tail, head: &self.head, words: &self.words }
    }
}

fn cells(count: usize) -> Cells {
    Cells((0..count).map(|_| UnsafeCell::new(0)).collect())
}

#[test]
fn words_are_read_after_they_are_written_and_stored_again_after_they_are_read() {
    check(|| {
        // Whole words, so that no word is stored while it is read.
        let shared = PipeModel::new(cells(1));
        let writing = start(&shared, |shared: &PipeModel<Cells>| {
            let mut writer = PipeWriter::default();
            for word in 1..=2_u64 {
                while writer.write(&shared.pipe(), &word.to_le_bytes()).unwrap() == 0 {
                    thread::yield_now();
                }
            }
        });
        let reading = start(&shared, |shared: &PipeModel<Cells>| {
            let mut reader = PipeReader::default();
            for word in 1..=2_u64 {
                let mut into = [0; 8];
                while reader.read(&shared.pipe(), &mut into).unwrap() == 0 {
                    thread::yield_now();
                }
                assert_eq!(u64::from_le_bytes(into), word);
            }
        });
        wait_for([writing, reading]);
    });
}

/// Words as in a real ring.
struct SleepModel(Vec<AtomicU64>);

impl PipeMemory for SleepModel {
    fn count(&self) -> u64 {
        self.0.len() as u64
    }

    fn load(&self, index: usize) -> u64 {
        self.0[index].load(Ordering::Relaxed)
    }

    fn store(&self, index: usize, word: u64) {
        self.0[index].store(word, Ordering::Relaxed);
    }
}

#[test]
fn bytes_of_a_word_that_is_stored_again_arrive_once_and_in_order() {
    check(|| {
        let shared = PipeModel::new(SleepModel(vec![AtomicU64::new(0)]));
        let writing = start(&shared, |shared: &PipeModel<SleepModel>| {
            let mut writer = PipeWriter::default();
            for piece in [&[1, 2, 3][..], &[4, 5, 6, 7], &[8, 9]] {
                let mut rest = piece;
                while !rest.is_empty() {
                    let count = writer.write(&shared.pipe(), rest).unwrap();
                    rest = &rest[count..];
                    if count == 0 {
                        thread::yield_now();
                    }
                }
            }
        });
        let reading = start(&shared, |shared: &PipeModel<SleepModel>| {
            let (mut reader, mut next) = (PipeReader::default(), 1);
            while next <= 9 {
                let mut into = [0; 5];
                let count = reader.read(&shared.pipe(), &mut into).unwrap();
                for byte in &into[..count] {
                    assert_eq!(*byte, next);
                    next += 1;
                }
                if count == 0 {
                    thread::yield_now();
                }
            }
        });
        wait_for([writing, reading]);
    });
}

#[test]
fn no_side_sleeps_while_there_are_bytes_or_room() {
    check(|| {
        let shared = PipeModel::new(SleepModel(vec![AtomicU64::new(0)]));
        // The pipe is full, so the writer needs room. The reader waits for the next bytes.
        let mut full = PipeWriter::default();
        assert_eq!(full.write(&shared.pipe(), &[1; 8]), Ok(8));
        let slept = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let is_asleep = Arc::clone(&slept);
        let writing = start(&shared, move |shared: &PipeModel<SleepModel>| {
            let mut writer = full;
            if writer.write(&shared.pipe(), &[2]).unwrap() == 0 {
                fall_asleep(&shared.writer_sleeps, FOR_ROOM);
                if writer.room(&shared.pipe()).unwrap() == 0 {
                    is_asleep[0].store(1, Ordering::Relaxed);
                    return;
                }
                writer.write(&shared.pipe(), &[2]).unwrap();
            }
            if must_ring_doorbell(&shared.reader_sleeps, FOR_BYTES) {
                shared.doorbells[1].fetch_add(1, Ordering::Relaxed);
            }
        });
        let is_asleep = Arc::clone(&slept);
        let reading = start(&shared, move |shared: &PipeModel<SleepModel>| {
            let mut reader = PipeReader::default();
            assert_eq!(reader.read(&shared.pipe(), &mut [0; 8]), Ok(8));
            if must_ring_doorbell(&shared.writer_sleeps, FOR_ROOM) {
                shared.doorbells[0].fetch_add(1, Ordering::Relaxed);
            }
            fall_asleep(&shared.reader_sleeps, FOR_BYTES);
            if reader.available(&shared.pipe()).unwrap() == 0 {
                is_asleep[1].store(1, Ordering::Relaxed);
            }
        });
        wait_for([writing, reading]);
        let asleep = slept.each_ref().map(|one| one.load(Ordering::Relaxed) == 1);
        let rung = shared.doorbells.each_ref().map(|one| one.load(Ordering::Relaxed) > 0);
        assert!(
            !asleep[0] || rung[0],
            "the writer sleeps, there is room, and no doorbell was rung"
        );
        // A reader may sleep if the writer was woken and has not written yet.
        assert!(!asleep[1] || rung[1] || asleep[0], "the reader sleeps while there is a byte");
    });
}
