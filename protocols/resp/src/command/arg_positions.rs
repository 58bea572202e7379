//! Positions of keys and channels in a request.

use crate::parse::Args;
use std::iter::StepBy;
use std::ops::Range;

/// Positions of the arguments of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgPositions {
    /// None.
    None,
    /// From `first` to `last`, every `step`th. Negative positions count from the end: -1 is the
    /// last argument.
    Span {
        /// First position.
        first: i8,
        /// Last possible position.
        last: i8,
        /// Distance of two positions.
        step: u8,
    },
    /// As many as argument `count` says, from `first` on, every `step`th.
    Counted {
        /// Position of the count.
        count: u8,
        /// First position.
        first: u8,
        /// Distance of two positions.
        step: u8,
    },
    /// Every second argument after those that argument `count` counts.
    AfterCounted {
        /// Position of the count.
        count: u8,
        /// First counted position.
        first: u8,
        /// Number of arguments per counted item.
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

    /// From `first` to `last`, every `step`th.
    pub const fn span(first: i8, last: i8, step: u8) -> Self {
        Self::Span { first, last, step }
    }

    /// The positions in a request. None if the count is not a number or exceeds the arguments: the
    /// command then rejects the request.
    #[inline]
    pub fn of(self, args: Args<'_>) -> StepBy<Range<usize>> {
        let (from, to, step) = self.bounds(args).unwrap_or((0, 0, 1));
        (from..to.min(args.len())).step_by(step.max(1))
    }

    /// First, last and step as in `COMMAND`, which does not describe counted arguments.
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

    /// Whether the positions depend on an argument.
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

/// The argument at a position, from the end if negative.
#[inline]
fn index(at: i8, args: Args<'_>) -> Option<usize> {
    match usize::try_from(at) {
        Ok(at) => Some(at),
        Err(_) => args.len().checked_sub(usize::from(at.unsigned_abs())),
    }
}

/// The position after the arguments that argument `count` counts.
fn counted_end(args: Args<'_>, count: u8, first: u8, step: u8) -> Option<usize> {
    let count = std::str::from_utf8(args.get(usize::from(count))?).ok()?.parse::<usize>().ok()?;
    let end = count.checked_mul(usize::from(step))?.checked_add(usize::from(first))?;
    (end <= args.len()).then_some(end)
}

/// The records that a command accesses in addition to those of its keys.
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
