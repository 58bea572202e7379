//! What the older measurements of transactions still need: processes that add to counters.

pub mod companion;
pub mod role;
pub mod work;
pub mod clock;
