//! Validates the superblock of a region (`spec/region.md`, section 1).

use nearstate_model::limits::{REGION_BYTES_MAX, REGION_BYTES_MIN};
use xxhash_rust::xxh3::xxh3_64;

use crate::layout::{
    CHUNK_BYTES, FLAG_FENCED, FORMAT, HEAP, MAGIC, SUPER_CHECK, SUPER_CHUNKS, SUPER_FORMAT,
    SUPER_HEAP, SUPER_LENGTH, SUPER_MAGIC, SUPER_PAGE, region_bytes,
};

/// The content of a region's superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Bytes of the file.
    pub length: u64,
    /// Page bytes.
    pub page: u64,
    /// Number of chunks of the heap.
    pub chunks: u64,
    /// Pins are fenced.
    pub is_fenced: bool,
}

/// Validates the first page of a file: magic, format and checksum.
///
/// # Errors
/// What is wrong and what to do.
pub fn validate_superblock(page: &[u8]) -> Result<Superblock, String> {
    let word = |at: u64| -> u64 {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        page.get(at..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |bytes: &[u8; 8]| u64::from_le_bytes(*bytes))
    };
    if page.len() < 4096 {
        return Err("shorter than a region's first page: not a region, or truncated".to_owned());
    }
    if word(SUPER_MAGIC) != MAGIC {
        return Err("not a region (wrong magic): give the path of one".to_owned());
    }
    let format = word(SUPER_FORMAT) as u32;
    let flags = (word(SUPER_FORMAT) >> 32) as u32;
    let sum = page.get(..120).map(xxh3_64);
    if format > FORMAT && sum == Some(word(SUPER_CHECK)) {
        return Err(format!(
            "a region of format {format}, and this build knows up to {FORMAT}: use a newer build"
        ));
    }
    if sum != Some(word(SUPER_CHECK)) {
        return Err("the superblock is damaged (its checksum differs): `nearstate region check \
                    --repair` corrects a single flipped bit; otherwise restore the file"
            .to_owned());
    }
    if (1..FORMAT).contains(&format) {
        return Err(format!(
            "a region of format {format}, of an older build, and this build reads format {FORMAT} \
             only: use that build, or drop the region and create it again"
        ));
    }
    let (length, page_bytes) = (word(SUPER_LENGTH), word(SUPER_PAGE));
    let chunks = word(SUPER_CHUNKS);
    let is_sound = format == FORMAT
        && flags & !FLAG_FENCED == 0
        && word(SUPER_HEAP) == HEAP
        && page_bytes.is_power_of_two()
        && (4096..=1 << 30).contains(&page_bytes)
        && (REGION_BYTES_MIN / CHUNK_BYTES..=REGION_BYTES_MAX / CHUNK_BYTES).contains(&chunks)
        && length == region_bytes(chunks, page_bytes);
    if !is_sound {
        return Err("the superblock has values that no build writes: restore the file".to_owned());
    }
    Ok(Superblock { length, page: page_bytes, chunks, is_fenced: flags & FLAG_FENCED != 0 })
}

/// The byte whose single flipped bit made a superblock invalid, and its value without the flip.
/// `None` if the superblock is valid, or if no flip or several make it so.
pub(crate) fn corrected_byte(page: &[u8]) -> Option<(usize, u8)> {
    if validate_superblock(page).is_ok() {
        return None;
    }
    let mut tried = page.to_vec();
    let mut found = None;
    for at in 0..SUPER_CHECK as usize + 8 {
        for bit in 0..u8::BITS {
            *tried.get_mut(at)? ^= 1 << bit;
            if validate_superblock(&tried).is_ok() {
                if found.is_some() {
                    return None;
                }
                found = Some((at, *tried.get(at)?));
            }
            *tried.get_mut(at)? ^= 1 << bit;
        }
    }
    found
}
