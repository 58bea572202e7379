//! The table of variables, and the definitions that it generates: names, blocks, slots, effects.

/// `+ x - U` of a table as effects.
macro_rules! effect {
    (+) => {
        $crate::effect::Effect::Added
    };
    (x) => {
        $crate::effect::Effect::Removed
    };
    (-) => {
        $crate::effect::Effect::Untouched
    };
    (U) => {
        $crate::effect::Effect::Modified
    };
}
pub(crate) use effect;

/// An enum of names, each with its number, in the order of the table.
macro_rules! names {
    ($(#[$doc:meta])* $Name:ident { $($(#[$one_doc:meta])* $One:ident $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $Name {
            $($(#[$one_doc])* $One,)+
        }

        impl $Name {
            /// All variants, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$One),+];

            /// Its name, in texts and in stores.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$One => $text,)+
                }
            }
        }

        impl std::fmt::Display for $Name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
pub(crate) use names;

/// Generates a context from a table of its categories, blocks and variables.
///
/// A row of a variable has: getter, setter, variant, type; name, name in JSON, category, block;
/// bits of 3GPP, source; then a sign for each procedure (`+` added, `x` removed, `-` untouched, `U`
/// modified).
macro_rules! schema {
    (
        format $format:literal
        categories { $($(#[$cdoc:meta])* $Category:ident $category:literal,)+ }
        blocks { $($(#[$bdoc:meta])* $Block:ident $block:literal,)+ }
        variables { $(
            $(#[$vdoc:meta])*
            $get:ident $set:ident $Variable:ident: $Kind:ty,
            $name:literal $json:literal $InCategory:ident $InBlock:ident,
            $bits:literal $source:literal [$($effect:tt)+];
        )+ }
    ) => {
        $crate::schema::names! {
            /// Categories of variables.
            Category { $($(#[$cdoc])* $Category $category,)+ }
        }
        $crate::schema::names! {
            /// Blocks: the variables that the same procedures write, consecutively.
            Block { $($(#[$bdoc])* $Block $block,)+ }
        }
        $crate::schema::names! {
            /// State variables.
            Variable { $($(#[$vdoc])* $Variable $name,)+ }
        }

        /// All blocks, in their order in a context.
        pub const BLOCKS: &[Block] = Block::ALL;
        /// The first byte of each block: the format that these blocks have.
        pub const FORMAT: u8 = $format;
        /// Bytes of a context.
        pub const CONTEXT_BYTES: usize = $crate::layout::block_at(ROWS, Block::ALL.len());

        const ROWS: &[$crate::layout::VariableRow] = &[$(
            $crate::layout::VariableRow {
                bytes: <$Kind as $crate::value::Value>::BYTES,
                block: Block::$InBlock as usize,
                effects: &[$($crate::schema::effect!($effect)),+],
            },
        )+];

        impl Block {
            /// Its range in a context.
            pub const fn range(self) -> std::ops::Range<usize> {
                match self {
                    $(Self::$Block => const {
                        let at = $crate::layout::block_at(ROWS, Self::$Block as usize);
                        at..at + $crate::layout::block_bytes(ROWS, Self::$Block as usize)
                    },)+
                }
            }

            /// The variables of the block, in order.
            pub fn variables(self) -> impl Iterator<Item = Variable> {
                Variable::ALL.iter().copied().filter(move |variable| variable.block() == self)
            }

            /// The block with this name.
            pub fn of_name(name: &str) -> Option<Self> {
                BLOCKS.iter().copied().find(|block| block.name() == name)
            }
        }

        impl Variable {
            /// Its name in JSON.
            pub const fn json_name(self) -> &'static str {
                match self {
                    $(Self::$Variable => $json,)+
                }
            }

            /// The type of its values.
            pub const fn type_name(self) -> &'static str {
                match self {
                    $(Self::$Variable => stringify!($Kind),)+
                }
            }

            /// Its category.
            pub const fn category(self) -> Category {
                match self {
                    $(Self::$Variable => Category::$InCategory,)+
                }
            }

            /// Its block.
            pub const fn block(self) -> Block {
                match self {
                    $(Self::$Variable => Block::$InBlock,)+
                }
            }

            /// The largest number of bits that its source defines.
            pub const fn bits(self) -> u32 {
                match self {
                    $(Self::$Variable => $bits,)+
                }
            }

            /// The specification that defines it.
            pub const fn source(self) -> &'static str {
                match self {
                    $(Self::$Variable => $source,)+
                }
            }

            /// The range of its bytes in a context.
            pub const fn range(self) -> std::ops::Range<usize> {
                match self {
                    $(Self::$Variable => const {
                        let slot = $crate::layout::slot_of(ROWS, Self::$Variable as usize);
                        slot.at..slot.at + slot.bytes
                    },)+
                }
            }
        }

        /// A set of blocks.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct BlockSet(u16);

        impl BlockSet {
            /// No block.
            pub const EMPTY: Self = Self(0);
            /// Every block.
            pub const ALL: Self = Self(if Block::ALL.len() == 16 {
                u16::MAX
            } else {
                (1 << Block::ALL.len()) - 1
            });

            /// The set with one more block.
            #[must_use]
            pub const fn with(self, block: Block) -> Self {
                Self(self.0 | 1 << block as u16)
            }

            /// True if the set contains the block.
            pub const fn contains(self, block: Block) -> bool {
                self.0 & 1 << block as u16 != 0
            }

            /// The blocks of both sets.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The number of blocks.
            pub const fn len(self) -> usize {
                self.0.count_ones() as usize
            }

            /// True if the set is empty.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// Bytes of all blocks in the set.
            pub fn bytes(self) -> usize {
                self.iter().map(|block| block.range().len()).sum()
            }

            /// The blocks, in the order of a context.
            pub fn iter(self) -> impl Iterator<Item = Block> {
                BLOCKS.iter().copied().filter(move |block| self.contains(*block))
            }
        }

        impl FromIterator<Block> for BlockSet {
            fn from_iter<I: IntoIterator<Item = Block>>(blocks: I) -> Self {
                blocks.into_iter().fold(Self::EMPTY, Self::with)
            }
        }

        $crate::context::contexts! {
            blocks { $($Block,)+ }
            variables { $(
                $(#[$vdoc])*
                $get $set $Variable: $Kind,
                $name $json $InCategory $InBlock $bits $source;
            )+ }
        }
    };
}
pub(crate) use schema;
