//! What one cache miss costs on this machine: a walk in which each step waits for the one before,
//! over memory of the same kind, with the same pages, as what is measured beside it.

use super::desk::{Place, missing, wrong};
use crate::legacy::content::mix;
use crate::legacy::micro::work::key_of;
use crate::machine::bytes_text;
use crate::stat::sequence_average;
use nearstate_model::Result;
use nearstate_store::{Namespace, Schema, Session, View};
use std::hint::black_box;

/// A step is to another line.
const LINE: usize = 64;
/// A record of the walk: 16,384 lines.
const CHUNK: usize = 1 << 20;
const CHUNK_LINES: usize = CHUNK / LINE;

/// A cycle through all lines of a region, in an order that no prefetcher foresees.
#[derive(Debug)]
pub struct Chase {
    place: Place,
    session: Session,
    namespace: Namespace,
    chunks: u64,
    at: usize,
}

impl Chase {
    /// Lays the cycle out in a fresh region, over at least so many bytes.
    ///
    /// # Errors
    /// What the region said.
    pub fn lay(place: Place, bytes: u64, seed: u64) -> Result<Self> {
        let session = place.region.session()?;
        let namespace = session.namespace("chase", &Schema::default())?;
        let chunks = bytes.div_ceil(CHUNK as u64).max(1);
        let next = cycle(usize::try_from(chunks).unwrap_or(usize::MAX) * CHUNK_LINES, seed)?;
        let mut value = vec![0; CHUNK];
        for (chunk, lines) in (0..).zip(next.chunks(CHUNK_LINES)) {
            for (line, to) in value.as_chunks_mut::<LINE>().0.iter_mut().zip(lines) {
                if let Some(word) = line.first_chunk_mut::<4>() {
                    *word = to.to_le_bytes();
                }
            }
            session.put(namespace, &key_of(chunk), &value)?;
        }
        Ok(Self { place, session, namespace, chunks, at: 0 })
    }

    /// The bytes that it goes over, in words.
    pub fn footprint(&self) -> String {
        bytes_text(self.chunks * CHUNK as u64)
    }

    /// The region that it is in.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// So many steps; nanoseconds for each, by this clock.
    ///
    /// # Errors
    /// What the region said.
    pub fn steps(&mut self, steps: u64, now_ns: impl Fn() -> u64) -> Result<f64> {
        let views: Result<Vec<View<'_>>> = (0..self.chunks)
            .map(|chunk| self.session.get(self.namespace, &key_of(chunk))?.ok_or_else(missing))
            .collect();
        let views = views?;
        let chunks: Vec<&[[u8; LINE]]> =
            views.iter().map(|view| view.bytes().as_chunks::<LINE>().0).collect();
        let mut at = self.at;
        let begin_ns = now_ns();
        for _ in 0..steps {
            let line = chunks.get(at / CHUNK_LINES).and_then(|c| c.get(at % CHUNK_LINES));
            let Some([a, b, c, d, ..]) = line else { return Err(wrong("a walk left its memory")) };
            at = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        }
        let ns = now_ns() - begin_ns;
        drop(views);
        self.at = black_box(at);
        Ok(sequence_average(ns, steps))
    }

    /// Ends it and gives its memory back.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn close(self) -> Result<()> {
        drop(self.session);
        self.place.close_and_check()
    }
}

/// Where each line leads to: one cycle through all of them (Sattolo).
fn cycle(lines: usize, seed: u64) -> Result<Vec<u32>> {
    let last = u32::try_from(lines).map_err(|_| wrong("a walk over more than 256 GiB"))?;
    let mut next: Vec<u32> = (0..last).collect();
    let mut chance = mix(seed);
    for at in (1..next.len()).rev() {
        chance = mix(chance);
        next.swap(at, usize::try_from(chance % at as u64).unwrap_or(0));
    }
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_meets_every_line_once_before_it_is_back() {
        let next = cycle(10_000, 5).unwrap();
        let (mut at, mut steps) = (0, 0);
        loop {
            at = next[at] as usize;
            steps += 1;
            if at == 0 {
                break;
            }
        }
        assert_eq!(steps, 10_000);
    }
}
