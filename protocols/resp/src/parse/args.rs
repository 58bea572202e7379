//! Arguments of a request: borrowed from the input, or copied.

use super::{ArgRange, offset};

/// The arguments of a request, starting with the command's name. Cheap to copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Args<'a> {
    bytes: &'a [u8],
    ranges: &'a [ArgRange],
}

impl<'a> Args<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8], ranges: &'a [ArgRange]) -> Self {
        Self { bytes, ranges }
    }

    /// Number of arguments including the name.
    #[inline]
    pub fn len(self) -> usize {
        self.ranges.len()
    }

    /// Whether there are none: such a request has no reply.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.ranges.is_empty()
    }

    /// Argument `index`; 0 is the command's name.
    #[inline]
    pub fn get(self, index: usize) -> Option<&'a [u8]> {
        let (from, to) = *self.ranges.get(index)?;
        self.bytes.get(from as usize..to as usize)
    }

    /// The arguments from `first` on.
    #[inline]
    #[must_use]
    pub fn from(self, first: usize) -> Self {
        Self { bytes: self.bytes, ranges: self.ranges.get(first..).unwrap_or_default() }
    }

    /// The first `count` arguments, or all.
    #[inline]
    #[must_use]
    pub fn first(self, count: usize) -> Self {
        Self { bytes: self.bytes, ranges: self.ranges.get(..count).unwrap_or(self.ranges) }
    }

    /// Iterates over the arguments, starting with the name.
    #[inline]
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + Clone {
        let bytes = self.bytes;
        self.ranges
            .iter()
            .map(move |(from, to)| bytes.get(*from as usize..*to as usize).unwrap_or_default())
    }

    /// A copy that outlives the input, for a queue or a log.
    pub fn keep(self) -> OwnedArgs {
        let mut kept = OwnedArgs::default();
        kept.bytes.reserve_exact(self.iter().map(<[u8]>::len).sum());
        kept.ranges.reserve_exact(self.len());
        self.iter().for_each(|arg| kept.push(arg));
        kept
    }
}

/// Arguments with their bytes.
#[derive(Clone, Debug, Default)]
pub struct OwnedArgs {
    bytes: Vec<u8>,
    ranges: Vec<ArgRange>,
}

impl OwnedArgs {
    /// Adds an argument.
    pub fn push(&mut self, arg: &[u8]) {
        let from = offset(self.bytes.len());
        self.bytes.extend_from_slice(arg);
        self.ranges.push((from, offset(self.bytes.len())));
    }

    /// Borrows the arguments.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.ranges.len() * size_of::<ArgRange>()
    }
}

impl<'a> FromIterator<&'a [u8]> for OwnedArgs {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(args: I) -> Self {
        let mut kept = Self::default();
        args.into_iter().for_each(|arg| kept.push(arg));
        kept
    }
}
