//! What all hosts of a cluster can do: a number in the decided state, which an operator raises.

use std::fmt;

/// What hosts can do. A program that can do one level can do all lower ones. The decided level
/// rises when all hosts can do more (`nearstate cluster finalize`), and never falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterLevel(pub u16);

impl ClusterLevel {
    /// The level of a cluster that nothing was decided about.
    pub const FIRST: Self = Self(1);

    /// From this one on, the group of a partition can be changed.
    pub const GROUP_CHANGES: Self = Self(2);

    /// From this one on, a partition can continue behind what regions have seen.
    pub const RAISED_VIEWS: Self = Self(3);

    /// From this one on, an operator can name the host to which a partition is drained.
    pub const HAND_OVERS: Self = Self(4);

    /// From this one on, a partition does not begin anew behind a report of a complete copy.
    pub const KEPT_REPORTS: Self = Self(5);

    /// From this one on, any copy that has what was sealed may be the owner's, until enough members
    /// are full again.
    pub const SEALED_COPIES: Self = Self(6);

    /// The highest level that this program can do.
    pub const HIGHEST: Self = Self::SEALED_COPIES;
}

impl Default for ClusterLevel {
    fn default() -> Self {
        Self::FIRST
    }
}

impl fmt::Display for ClusterLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
