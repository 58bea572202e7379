//! The tags of a namespace: the properties of each, and the state of its index. A new property of
//! tags starts here, in [`TagSchema`].
//!
//! ```text
//! count of schema changes u64 | count u8
//! | count x { id u8, bits u8, state u8, name bytes u8, name }
//! ```

use nearstate_memory::Corruption;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{TAG_NAME_BYTES_MAX, TAGS_DECLARED_MAX};
use nearstate_model::{Error, Result, invariant};

const CUT: Corruption = Corruption("a namespace's tags are cut short");
const UNIQUE: u8 = 1;
const ORDERED: u8 = 2;
const COUNTED: u8 = 4;
const REQUIRED: u8 = 8;
/// Its records are in posting lists. Set for every tag that is neither unique nor ordered.
const LISTED: u8 = 16;
const _: () = assert!(
    (UNIQUE | ORDERED | COUNTED | REQUIRED | LISTED).count_ones() == 5,
    "each property of a tag has a bit of its own"
);
const _: () = assert!(TAGS_DECLARED_MAX <= u8::MAX as usize, "a tag's number has 8 bits");
const _: () = assert!(TAG_NAME_BYTES_MAX <= u8::MAX as usize, "a tag counts its name in 8 bits");

/// A tag as an application declares it (TS 29.598, `MetaSchema`: a `MetaTag` with its `keyType`,
/// `sort` and `presence`). With no property at all it is found by equality.
#[expect(
    clippy::struct_excessive_bools,
    reason = "four properties that exclude none of each other"
)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagSchema {
    /// Its name.
    pub name: String,
    /// At most one record of the namespace has a value (`UNIQUE_KEY`): a commit that gives it to a
    /// second one is refused with `TagTaken`. Costs one posting for each record.
    pub is_unique: bool,
    /// The tag can be searched by range and prefix, in the order of the bytes (`sort`). A change of
    /// the tag costs twice as much as with equality alone.
    pub is_ordered: bool,
    /// The number of records with a value is known without reading them (`COUNT_KEY`). Writers that
    /// add and remove the same value conflict at its count only if their numbers are equal modulo
    /// 8.
    pub is_counted: bool,
    /// Each record must have the tag (`presence`): a commit that leaves one without it is refused
    /// with `BadArgument`. Applies to writers after the declaration.
    pub is_required: bool,
}

/// The state of a tag's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagState {
    /// Writers maintain it; older records are being added.
    Building,
    /// Complete.
    Ready,
    /// Rejected because of existing records; its entries are being removed.
    Leaving,
    /// Removed. Its number is free.
    Gone,
}

/// A declared tag.
#[expect(
    clippy::struct_excessive_bools,
    reason = "four properties that exclude none of each other"
)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Name.
    pub name: String,
    /// Number within the namespace.
    pub id: u8,
    /// See [`TagSchema`].
    pub is_unique: bool,
    /// See [`TagSchema`].
    pub is_ordered: bool,
    /// See [`TagSchema`].
    pub is_counted: bool,
    /// See [`TagSchema`].
    pub is_required: bool,
    /// The state of its index.
    pub state: TagState,
}

impl From<Tag> for TagSchema {
    fn from(tag: Tag) -> Self {
        Self {
            name: tag.name,
            is_unique: tag.is_unique,
            is_ordered: tag.is_ordered,
            is_counted: tag.is_counted,
            is_required: tag.is_required,
        }
    }
}

impl Tag {
    /// True if writers keep its index.
    pub(crate) const fn is_kept(&self) -> bool {
        matches!(self.state, TagState::Building | TagState::Ready)
    }

    /// True if its values have lists of postings: it is looked up by equality alone, and many
    /// records may have one value.
    pub(crate) const fn has_lists(&self) -> bool {
        !self.is_unique && !self.is_ordered
    }

    /// True if a declaration wants it as it is.
    pub(crate) fn has_properties_of(&self, wanted: &TagSchema) -> bool {
        (self.is_unique, self.is_ordered, self.is_counted, self.is_required)
            == (wanted.is_unique, wanted.is_ordered, wanted.is_counted, wanted.is_required)
    }
}

/// All tags that a namespace ever had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TagSet {
    /// The count of schema changes at which the set was written. The namespace flags have at least
    /// this count.
    pub(crate) generation: u64,
    tags: Vec<Tag>,
}

impl TagSet {
    pub(crate) fn tags(&self) -> impl Iterator<Item = &Tag> {
        self.tags.iter()
    }

    /// The tag with this number.
    #[inline]
    pub(crate) fn numbered(&self, id: u8) -> Option<&Tag> {
        self.tags.get(usize::from(id))
    }

    /// Those that each record must have.
    #[inline]
    pub(crate) fn required(&self) -> impl Iterator<Item = &Tag> {
        self.tags.iter().filter(|tag| tag.is_required && tag.is_kept())
    }

    /// As [`TagSet::tag`], by the bytes of its name.
    #[inline]
    pub(crate) fn named(&self, name: &[u8]) -> Option<&Tag> {
        self.tags.iter().find(|tag| tag.name.as_bytes() == name && tag.is_kept())
    }

    /// The tag with this name, unless it was removed.
    pub(crate) fn tag(&self, name: &str) -> Option<&Tag> {
        self.named(name.as_bytes())
    }

    /// Adds the tags that do not exist yet. True if a tag is new or not complete yet.
    ///
    /// # Errors
    /// `BadName`; `BadArgument` for too many tags and for one that is there in another form.
    pub(crate) fn declare(&mut self, wanted: &[TagSchema]) -> Result<bool> {
        let mut is_open = false;
        let is_twice = |(index, tag): &(usize, &TagSchema)| {
            wanted.iter().take(*index).any(|before| before.name == tag.name)
        };
        if let Some((_, tag)) = wanted.iter().enumerate().find(is_twice) {
            return Err(Error::BadArgument {
                detail: format!("the tag {:?} is declared twice: declare it once", tag.name),
            });
        }
        for tag in wanted {
            let bytes = tag.name.len();
            if bytes == 0 || bytes > TAG_NAME_BYTES_MAX || tag.name.contains('\0') {
                return Err(Error::BadName { bytes });
            }
            if let Some(known) = self.tag(&tag.name) {
                if !known.has_properties_of(tag) {
                    return Err(Error::BadArgument {
                        detail: format!(
                            "the tag {:?} is declared in another form already: open the \
                             namespace without it, or take another name",
                            tag.name
                        ),
                    });
                }
                is_open |= known.state == TagState::Building;
                continue;
            }
            // The number of one that is gone has no entries left.
            let gone = self.tags.iter().position(|tag| tag.state == TagState::Gone);
            let index = gone.unwrap_or(self.tags.len());
            if index >= TAGS_DECLARED_MAX {
                return Err(Error::BadArgument {
                    detail: format!("a namespace has at most {TAGS_DECLARED_MAX} tags"),
                });
            }
            let id = guaranteed(u8::try_from(index).ok(), "TAGS_DECLARED_MAX fits into 8 bits");
            let new = Tag {
                name: tag.name.clone(),
                id,
                is_unique: tag.is_unique,
                is_ordered: tag.is_ordered,
                is_counted: tag.is_counted,
                is_required: tag.is_required,
                state: TagState::Building,
            };
            match self.tags.get_mut(index) {
                Some(gone) => {
                    invariant!(gone.state == TagState::Gone, "the number {id} is free");
                    *gone = new;
                }
                None => self.tags.push(new),
            }
            invariant!(
                self.numbered(id).is_some_and(|tag| tag.id == id),
                "tag {id} is number {id}"
            );
            is_open = true;
        }
        Ok(is_open)
    }

    /// Moves every tag in one state, and of these numbers, to another.
    pub(crate) fn move_on(&mut self, from: TagState, to: TagState, ids: &[u8]) {
        invariant!(
            matches!(
                (from, to),
                (TagState::Building, TagState::Ready | TagState::Leaving)
                    | (TagState::Leaving, TagState::Gone)
            ),
            "a tag goes from {from:?} to {to:?}"
        );
        for tag in &mut self.tags {
            if tag.state == from && ids.contains(&tag.id) {
                tag.state = to;
            }
        }
    }

    /// Every tag in use becomes one that is being built: its index was removed by a repair.
    pub(crate) fn build_again(&mut self) {
        for tag in self.tags.iter_mut().filter(|tag| tag.state == TagState::Ready) {
            tag.state = TagState::Building;
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = self.generation.to_le_bytes().to_vec();
        // Decoded tags are counted in 8 bits, and tags are added up to TAGS_DECLARED_MAX.
        out.push(guaranteed(u8::try_from(self.tags.len()).ok(), "tags count in 8 bits"));
        for (number, tag) in self.tags.iter().enumerate() {
            invariant!(usize::from(tag.id) == number, "tag {} has number {number}", tag.id);
            let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
            let bits = bit(tag.is_unique, UNIQUE)
                | bit(tag.is_ordered, ORDERED)
                | bit(tag.is_counted, COUNTED)
                | bit(tag.is_required, REQUIRED)
                | bit(tag.has_lists(), LISTED);
            let state = match tag.state {
                TagState::Building => 0,
                TagState::Ready => 1,
                TagState::Leaving => 2,
                TagState::Gone => 3,
            };
            let bytes = guaranteed(u8::try_from(tag.name.len()).ok(), "names count in 8 bits");
            out.extend_from_slice(&[tag.id, bits, state, bytes]);
            out.extend_from_slice(tag.name.as_bytes());
        }
        debug_assert!(Self::decode(&out).as_ref() == Ok(self), "encoded tags read back");
        out
    }

    /// The reverse. Total: any bytes give tags or damage.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Corruption> {
        let (generation, rest) = bytes.split_first_chunk::<8>().ok_or(CUT)?;
        let (count, mut rest) = rest.split_first().ok_or(CUT)?;
        let mut tags = Vec::new();
        for _ in 0..*count {
            let ([id, bits, state, name_bytes], after) =
                rest.split_first_chunk::<4>().ok_or(CUT)?;
            let (name, after) = after.split_at_checked(usize::from(*name_bytes)).ok_or(CUT)?;
            let name = str::from_utf8(name).map_err(|_| Corruption("a tag's name is not UTF-8"))?;
            let state = match state {
                0 => TagState::Building,
                1 => TagState::Ready,
                2 => TagState::Leaving,
                3 => TagState::Gone,
                _ => return Err(Corruption("a tag is in a state that does not exist")),
            };
            if usize::from(*id) != tags.len() {
                return Err(Corruption("a tag has another number than its position"));
            }
            let tag = Tag {
                name: name.to_owned(),
                id: *id,
                is_unique: bits & UNIQUE != 0,
                is_ordered: bits & ORDERED != 0,
                is_counted: bits & COUNTED != 0,
                is_required: bits & REQUIRED != 0,
                state,
            };
            if tag.has_lists() != (bits & LISTED != 0) {
                return Err(Corruption(
                    "a tag has an index of another form than this program reads",
                ));
            }
            tags.push(tag);
            rest = after;
        }
        if !rest.is_empty() {
            return Err(Corruption("a namespace's tags are longer than they say"));
        }
        Ok(Self { generation: u64::from_le_bytes(*generation), tags })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn unique(name: &str) -> TagSchema {
        TagSchema { name: name.to_owned(), is_unique: true, ..TagSchema::default() }
    }

    #[test]
    fn a_tag_keeps_its_number_and_its_form() {
        let mut set = TagSet::default();
        assert!(set.declare(&[unique("guti"), unique("imsi")]).unwrap());
        set.move_on(TagState::Building, TagState::Ready, &[0, 1]);
        assert!(!set.declare(&[unique("imsi")]).unwrap());
        assert_eq!(set.tag("imsi").unwrap().id, 1);
        let other = TagSchema { is_unique: false, ..unique("imsi") };
        assert!(set.declare(&[other]).unwrap_err().to_string().contains("another form"));
        assert_eq!(TagSet::decode(&set.encode()).unwrap(), set);
        let many: Vec<_> = (0..TAGS_DECLARED_MAX).map(|n| unique(&n.to_string())).collect();
        assert!(set.declare(&many).is_err());
        let twice = set.declare(&[unique("supi"), unique("supi")]).unwrap_err();
        assert!(twice.to_string().contains("twice"), "{twice}");
        assert!(matches!(set.declare(&[unique("")]), Err(Error::BadName { bytes: 0 })));
    }

    #[test]
    fn an_index_of_another_form_is_not_misread() {
        let mut set = TagSet::default();
        set.declare(&[TagSchema { name: "dnn".to_owned(), ..TagSchema::default() }]).unwrap();
        let mut bytes = set.encode();
        // Generation, count, number, and then the form.
        assert_eq!(bytes[10], LISTED);
        for form in [0, LISTED | ORDERED, LISTED | UNIQUE] {
            bytes[10] = form;
            assert!(TagSet::decode(&bytes).is_err(), "{form}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_tags_or_damage(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = TagSet::decode(&bytes);
        }
    }
}
