//! The arguments of a request: places in bytes that somebody else holds, or a copy.

use super::{Place, place};

/// The arguments of one request, the command's name first. A copy is two pointers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Args<'a> {
    bytes: &'a [u8],
    places: &'a [Place],
}

impl<'a> Args<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a [u8], places: &'a [Place]) -> Self {
        Self { bytes, places }
    }

    /// How many there are, with the name.
    #[inline]
    pub fn len(self) -> usize {
        self.places.len()
    }

    /// Whether there is none: such a request gets no answer.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.places.is_empty()
    }

    /// Argument `index`; 0 is the command's name.
    #[inline]
    pub fn get(self, index: usize) -> Option<&'a [u8]> {
        let (from, to) = *self.places.get(index)?;
        self.bytes.get(from as usize..to as usize)
    }

    /// Those from `first` on; none if there are not so many.
    #[inline]
    #[must_use]
    pub fn from(self, first: usize) -> Self {
        Self { bytes: self.bytes, places: self.places.get(first..).unwrap_or_default() }
    }

    /// The first `count` of them, or all.
    #[inline]
    #[must_use]
    pub fn first(self, count: usize) -> Self {
        Self { bytes: self.bytes, places: self.places.get(..count).unwrap_or(self.places) }
    }

    /// One after the other, the name first.
    #[inline]
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a [u8]> + DoubleEndedIterator + Clone {
        let bytes = self.bytes;
        self.places
            .iter()
            .map(move |(from, to)| bytes.get(*from as usize..*to as usize).unwrap_or_default())
    }

    /// A copy that outlives the input: for a queue, a log.
    pub fn keep(self) -> KeptArgs {
        let mut kept = KeptArgs::default();
        kept.bytes.reserve_exact(self.iter().map(<[u8]>::len).sum());
        kept.places.reserve_exact(self.len());
        self.iter().for_each(|arg| kept.push(arg));
        kept
    }
}

/// Arguments with the bytes that they stand in.
#[derive(Clone, Debug, Default)]
pub struct KeptArgs {
    bytes: Vec<u8>,
    places: Vec<Place>,
}

impl KeptArgs {
    /// One more argument.
    pub fn push(&mut self, arg: &[u8]) {
        let from = place(self.bytes.len());
        self.bytes.extend_from_slice(arg);
        self.places.push((from, place(self.bytes.len())));
    }

    /// To be read.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.places)
    }

    /// What they take, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.places.len() * size_of::<Place>()
    }
}

impl<'a> FromIterator<&'a [u8]> for KeptArgs {
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(args: I) -> Self {
        let mut kept = Self::default();
        args.into_iter().for_each(|arg| kept.push(arg));
        kept
    }
}
