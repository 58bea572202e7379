//! Sets of processors, in the notation of the kernel.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use nearstate_model::{Error, Result};

/// Processors are numbered below this. Linux supports 8,192; the rest is for sparse numbers.
/// It bounds the memory that a hostile list can request.
pub const CPUS_MAX: u32 = 65_536;

/// A set of processors, or of NUMA nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no member.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a number is a member.
    pub fn contains(&self, number: u32) -> bool {
        self.0.contains(&number)
    }

    /// Adds a number. Returns false if it was a member.
    pub fn insert(&mut self, number: u32) -> bool {
        self.0.insert(number)
    }

    /// Removes a number. Returns false if it was no member.
    pub fn remove(&mut self, number: u32) -> bool {
        self.0.remove(&number)
    }

    /// The members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// The lowest member.
    pub fn first(&self) -> Option<u32> {
        self.0.first().copied()
    }

    /// The members of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// The members that the other set lacks.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }

    /// Whether all members are in the other set.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }

    /// Reads a mask: hexadecimal words of 32 bits with commas between them, the highest first, as
    /// the kernel (`ff,ffffffff`) and hwloc (`0x000000ff,0xffffffff`) write it.
    ///
    /// # Errors
    /// `BadArgument`: the word that is no number, or a mask that is infinite or too long.
    pub fn from_mask(text: &str) -> Result<Self> {
        let mut set = Self::new();
        let words: Vec<&str> = text.trim().split(',').collect();
        if words.len() > (CPUS_MAX / 32) as usize {
            return Err(bad(text, "it has too many words"));
        }
        for (index, word) in words.iter().rev().enumerate() {
            let digits = word.trim().trim_start_matches("0x");
            if digits == "f...f" {
                return Err(bad(text, "the set is infinite"));
            }
            if digits.is_empty() && words.len() > 1 {
                continue; // hwloc leaves words of zeros empty.
            }
            let bits = u32::from_str_radix(digits, 16)
                .map_err(|_| bad(text, &format!("{word:?} is no hexadecimal word of 32 bits")))?;
            let base = u32::try_from(index).map_err(|_| bad(text, "it is too long"))? * 32;
            set.0.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| base + bit));
        }
        Ok(set)
    }
}

#[cold]
fn bad(text: &str, why: &str) -> Error {
    let start: String = text.chars().take(60).collect();
    Error::BadArgument {
        detail: format!("{start:?} is no set of processors: {why}; expected a list such as 0-3,8"),
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        Self(numbers.into_iter().collect())
    }
}

impl Extend<u32> for CpuSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, numbers: I) {
        self.0.extend(numbers);
    }
}

impl FromStr for CpuSet {
    type Err = Error;

    /// Reads a list: numbers and ranges with commas between them. An empty text is the empty set.
    fn from_str(text: &str) -> Result<Self> {
        let (mut set, mut listed) = (Self::new(), 0);
        if text.trim().is_empty() {
            return Ok(set);
        }
        for item in text.trim().split(',') {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let number = |digits: &str| {
                let digits = digits.trim();
                let number = digits.parse::<u32>().ok().filter(|_| !digits.starts_with('+'));
                let number =
                    number.ok_or_else(|| bad(text, &format!("{digits:?} is no number")))?;
                if number < CPUS_MAX {
                    return Ok(number);
                }
                Err(bad(text, &format!("{number} is above the maximum of {}", CPUS_MAX - 1)))
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(bad(text, &format!("the range {item:?} ends before it starts")));
            }
            // A short text with many ranges would take minutes.
            listed += last - first + 1;
            if listed > CPUS_MAX {
                return Err(bad(text, &format!("it lists more than {CPUS_MAX} numbers")));
            }
            set.0.extend(first..=last);
        }
        Ok(set)
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut members = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = members.next() {
            let mut last = first;
            while members.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_and_masks_are_read() {
        let list = |text: &str| text.parse::<CpuSet>().unwrap().iter().collect::<Vec<_>>();
        assert_eq!(list("0-2,8\n"), [0, 1, 2, 8]);
        assert_eq!(list(" "), [] as [u32; 0]);
        let mask = |text: &str| CpuSet::from_mask(text).unwrap().to_string();
        assert_eq!(mask("00000000,0000000f"), "0-3");
        assert_eq!(mask("0x00000001,,0x80000000"), "31,64");
        assert_eq!(mask("0x0"), "");
    }

    #[test]
    fn what_is_no_set_is_refused_with_the_reason() {
        for (text, reason) in [
            ("0-", "\"\" is no number"),
            ("3-1", "ends before it starts"),
            ("0-4294967295", "above the maximum"),
            ("99999999999", "is no number"),
            ("+1", "is no number"),
            ("all", "is no number"),
            (&*"0-65535,".repeat(1000), "more than 65536 numbers"),
        ] {
            let refused = text.parse::<CpuSet>().unwrap_err().to_string();
            assert!(refused.contains(reason) && refused.contains("such as"), "{refused}");
        }
        for (text, reason) in [
            ("0xf...f", "infinite"),
            ("", "hexadecimal"),
            ("123456789", "hexadecimal"),
            (&*"1,".repeat(3000), "too many words"),
        ] {
            let refused = CpuSet::from_mask(text).unwrap_err().to_string();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn a_written_list_reads_as_the_same_set(numbers: Vec<u16>) {
            let set: CpuSet = numbers.into_iter().map(u32::from).collect();
            prop_assert_eq!(set.to_string().parse::<CpuSet>().unwrap(), set);
        }

        #[test]
        fn any_text_gives_a_set_or_an_error(text: String) {
            let _ = text.parse::<CpuSet>();
            let _ = CpuSet::from_mask(&text);
        }
    }
}
