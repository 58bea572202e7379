//! The effect of a procedure on a state variable.

/// The four signs of paper 2's Table I.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// `+`: after the procedure the variable is present.
    Added,
    /// `×`: after the procedure the variable is absent.
    Removed,
    /// `•`: the procedure does not touch it.
    Untouched,
    /// `U`: the variable has a new value.
    Modified,
}

impl Effect {
    /// The sign of the table in ASCII: `+`, `x`, `.`, `U`.
    pub const fn sign(self) -> char {
        match self {
            Self::Added => '+',
            Self::Removed => 'x',
            Self::Untouched => '.',
            Self::Modified => 'U',
        }
    }

    /// True if the variable's bytes are written.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Untouched)
    }
}
