//! The pin of a member slot.

use crate::atomic::Ordering;
use crate::layout::{Corruption, MEMBER_PIN, member_at};
use crate::member::pin::PinWords;
use crate::region::map::Map;

/// The words of the pin of a slot.
pub(crate) fn pin_words(map: &Map, index: u32) -> Result<PinWords<'_>, Corruption> {
    let [pin, far_end] = map.words::<2>(member_at(index) + MEMBER_PIN)?;
    Ok(PinWords { pin, far_end })
}

/// Clears the pin of a slot whose member has ended: first the word that means nothing without the
/// other one.
pub(crate) fn clear_pin(map: &Map, index: u32) -> Result<(), Corruption> {
    let PinWords { pin, far_end } = pin_words(map, index)?;
    far_end.store(0, Ordering::Release);
    pin.store(0, Ordering::Release);
    Ok(())
}
