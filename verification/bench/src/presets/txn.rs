//! Presets of transactions.

use super::Preset;

/// All of them.
pub(super) const PRESETS: [Preset; 0] = [];
