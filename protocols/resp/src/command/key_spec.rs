//! Where in a request the keys and the channels stand.

use crate::parse::Args;
use std::iter::StepBy;
use std::ops::Range;

/// Which arguments of a request are of one sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgPositions {
    /// None.
    None,
    /// From `first` to `last`, each `step`th. Below zero they count from the end: -1 is the last
    /// argument.
    Span {
        /// The first one.
        first: i8,
        /// The last one that may be one.
        last: i8,
        /// From one to the next.
        step: u8,
    },
    /// So many as argument `count` says, from `first` on, each `step`th.
    Counted {
        /// The argument with the count.
        count: u8,
        /// The first one.
        first: u8,
        /// From one to the next.
        step: u8,
    },
    /// Every second one of those behind the places that `count` counts.
    AfterCounted {
        /// The argument with the count.
        count: u8,
        /// The first of those that are counted.
        first: u8,
        /// How many arguments each of those takes.
        step: u8,
    },
}

impl ArgPositions {
    /// Argument 1.
    pub const ONE: Self = Self::span(1, 1, 1);
    /// All from argument 1 on.
    pub const ALL: Self = Self::span(1, -1, 1);
    /// Arguments 1 and 2.
    pub const TWO: Self = Self::span(1, 2, 1);

    /// From `first` to `last`, each `step`th.
    pub const fn span(first: i8, last: i8, step: u8) -> Self {
        Self::Span { first, last, step }
    }

    /// The places of this request's arguments. A count that is no number, or larger than there are
    /// arguments, gives none: the command will refuse it.
    #[inline]
    pub fn of(self, args: Args<'_>) -> StepBy<Range<usize>> {
        let (from, to, step) = self.bounds(args).unwrap_or((0, 0, 1));
        (from..to.min(args.len())).step_by(step.max(1))
    }

    /// What `COMMAND` says: first, last, step. What is counted is not said there.
    pub fn triple(self) -> (i64, i64, i64) {
        match self {
            Self::None | Self::Counted { .. } | Self::AfterCounted { .. } => (0, 0, 0),
            Self::Span { first, last, step } => (first.into(), last.into(), step.into()),
        }
    }

    /// Whether there are none in any request.
    pub const fn is_none(self) -> bool {
        matches!(self, Self::None)
    }

    /// Whether only a look at the arguments tells where they are.
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::Counted { .. } | Self::AfterCounted { .. })
    }

    #[inline]
    fn bounds(self, args: Args<'_>) -> Option<(usize, usize, usize)> {
        match self {
            Self::None => None,
            Self::Span { first, last, step } => {
                Some((index(first, args)?, index(last, args)? + 1, usize::from(step)))
            }
            Self::Counted { count, first, step } => {
                let end = counted_end(args, count, first, step)?;
                Some((usize::from(first), end, usize::from(step)))
            }
            Self::AfterCounted { count, first, step } => {
                Some((counted_end(args, count, first, step)?, args.len(), 2))
            }
        }
    }
}

/// The argument that `at` names, from the end if it is below zero.
#[inline]
fn index(at: i8, args: Args<'_>) -> Option<usize> {
    match usize::try_from(at) {
        Ok(at) => Some(at),
        Err(_) => args.len().checked_sub(usize::from(at.unsigned_abs())),
    }
}

/// The place behind the last of those that argument `count` counts.
fn counted_end(args: Args<'_>, count: u8, first: u8, step: u8) -> Option<usize> {
    let count = std::str::from_utf8(args.get(usize::from(count))?).ok()?.parse::<usize>().ok()?;
    let end = count.checked_mul(usize::from(step))?.checked_add(usize::from(first))?;
    (end <= args.len()).then_some(end)
}

/// What of the records a command looks at beside those that its keys name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyspaceScope {
    /// Nothing.
    None,
    /// The keys that the pattern in this argument matches.
    Pattern(u8),
    /// The keys that the pattern behind the word `MATCH` matches, or all.
    Match,
    /// All.
    All,
}
