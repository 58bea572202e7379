//! A context as bytes: views, setters, checks, draws, text and JSON.

use std::fmt;

use nearstate_model::{Error, Result};
use serde_json::{Map, Value as Json};

use crate::draw::Draw;
use crate::value::{Value, is_zero, kind_of};

/// The error of bytes that are not a context.
#[cold]
pub(crate) fn no_context<T>(detail: fmt::Arguments<'_>) -> Result<T> {
    Err(Error::BadArgument { detail: format!("not a UE context: {detail}") })
}

/// Calls `take` with the name and the value of each member of a context in JSON.
pub(crate) fn each_member(
    json: &Json,
    mut take: impl FnMut(&str, &Json) -> std::result::Result<bool, String>,
) -> Result<()> {
    let Some(members) = json.as_object() else {
        return no_context(format_args!("give a JSON object, not {}", kind_of(json)));
    };
    for (name, value) in members {
        match take(name, value) {
            Ok(true) => {}
            Ok(false) => return no_context(format_args!("{name:?} is not one of its variables")),
            Err(what) => return no_context(format_args!("{name}: {what}")),
        }
    }
    Ok(())
}

/// Adds a present variable to a JSON object.
pub(crate) fn insert(object: &mut Map<String, Json>, name: &str, value: Json) {
    object.insert(name.to_owned(), value);
}

/// The value of a variable that a draw determines.
#[inline]
pub(crate) fn drawn<T: Value>(draw: u64, number: u64) -> T {
    T::drawn(Draw::new(draw, if T::SALT == 0 { number + 1 } else { T::SALT }))
}

/// The error in the header of a block.
#[inline]
pub(crate) fn check_head(
    head: &[u8],
    known: u8,
    variables: usize,
) -> std::result::Result<(), &'static str> {
    let Some((format, present)) = head.split_first() else { return Err("has no head") };
    if *format != known {
        return Err("is of a format that this program does not know");
    }
    let mut left = variables;
    for byte in present {
        if left < 8 && byte >> left != 0 {
            return Err("has variables that do not exist");
        }
        left = left.saturating_sub(8);
    }
    Ok(())
}

/// The error in the bytes of a variable.
#[inline]
pub(crate) fn check_slot<T: Value>(
    slot: &[u8],
    is_present: bool,
) -> std::result::Result<(), &'static str> {
    if is_present {
        T::check(slot)
    } else if is_zero(slot) {
        Ok(())
    } else {
        Err("is absent, but its bytes are not 0")
    }
}

/// One line of the text of a context. The first line of a category has its name.
pub(crate) fn line(
    f: &mut fmt::Formatter<'_>,
    category: (&mut &'static str, &'static str),
    name: &str,
    value: Option<&dyn fmt::Display>,
) -> fmt::Result {
    let (last, now) = category;
    let heading = if *last == now { "" } else { now };
    *last = now;
    match value {
        Some(value) => writeln!(f, "{heading:<22}{name:<24}{value}"),
        None => writeln!(f, "{heading:<22}{name:<24}-"),
    }
}

/// Generates `ContextView`, `ContextText` and `Context` of a table, for its `Block`, `BlockSet`,
/// `Variable`, `Category`, `ROWS`, `FORMAT` and `CONTEXT_BYTES`.
macro_rules! contexts {
    (
        blocks { $($Block:ident,)+ }
        variables { $(
            $(#[$vdoc:meta])*
            $get:ident $set:ident $Variable:ident: $Kind:ty,
            $name:literal $json:literal $InCategory:ident $InBlock:ident $bits:literal
            $source:literal;
        )+ }
    ) => {
        /// A borrowed context: bytes that were checked once, and are read without a copy.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct ContextView<'a> {
            bytes: &'a [u8; CONTEXT_BYTES],
        }

        impl<'a> ContextView<'a> {
            /// Checks bytes and returns a view of them, whose accessors cannot fail.
            ///
            /// Cost: checks the type of each present variable, and that the bytes of the others
            /// are 0.
            ///
            /// # Errors
            /// `BadArgument`: not [`CONTEXT_BYTES`] bytes, a block of another format, or a variable
            /// with a value that its type does not have.
            #[inline]
            pub fn new(bytes: &'a [u8]) -> nearstate_model::Result<Self> {
                let Ok(bytes) = <&[u8; CONTEXT_BYTES]>::try_from(bytes) else {
                    return $crate::context::no_context(format_args!(
                        "{} bytes, but a context has {}", bytes.len(), CONTEXT_BYTES
                    ));
                };
                check(bytes, BlockSet::ALL)?;
                Ok(Self { bytes })
            }

            /// The bytes.
            pub const fn as_bytes(self) -> &'a [u8; CONTEXT_BYTES] {
                self.bytes
            }

            /// The bytes of a block.
            pub fn block(self, block: Block) -> &'a [u8] {
                self.bytes.get(block.range()).unwrap_or_default()
            }

            /// True if no variable of the block is present. Such a block need not be stored.
            pub fn is_block_empty(self, block: Block) -> bool {
                block.variables().all(|variable| !self.has(variable))
            }

            /// True if the variable is present.
            pub fn has(self, variable: Variable) -> bool {
                match variable {
                    $(Variable::$Variable => {
                        const SLOT: $crate::layout::VariableSlot =
                            $crate::layout::slot_of(ROWS, Variable::$Variable as usize);
                        $crate::layout::is_present::<
                            CONTEXT_BYTES, { SLOT.present_at }, { SLOT.present_bit },
                        >(self.bytes)
                    })+
                }
            }

            /// The bytes of a variable, if it is present.
            pub fn raw(self, variable: Variable) -> Option<&'a [u8]> {
                self.has(variable).then(|| self.bytes.get(variable.range()).unwrap_or_default())
            }

            $(
                $(#[$vdoc])*
                #[doc = concat!("\n\n", $name, ": at most ", $bits, " bits, ", $source, ".")]
                #[inline]
                pub fn $get(self) -> Option<$Kind> {
                    const SLOT: $crate::layout::VariableSlot =
                        $crate::layout::slot_of(ROWS, Variable::$Variable as usize);
                    let slot = $crate::layout::slot::<
                        CONTEXT_BYTES, { SLOT.at }, { SLOT.bytes },
                    >(self.bytes);
                    $crate::layout::is_present::<
                        CONTEXT_BYTES, { SLOT.present_at }, { SLOT.present_bit },
                    >(self.bytes)
                    .then(|| <$Kind as $crate::value::Value>::load(slot))
                }
            )+

            /// The present variables as a JSON object.
            pub fn json(self, keys: $crate::value::KeyText) -> serde_json::Value {
                let mut object = serde_json::Map::new();
                $(
                    if let Some(value) = self.$get() {
                        let value = $crate::value::Value::json(&value, keys);
                        $crate::context::insert(&mut object, $json, value);
                    }
                )+
                serde_json::Value::Object(object)
            }

            /// The context as text with a line for each variable.
            pub fn text(self, keys: $crate::value::KeyText) -> ContextText<'a> {
                ContextText { view: self, keys }
            }
        }

        impl std::fmt::Display for ContextView<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.text($crate::value::KeyText::Short).fmt(f)
            }
        }

        impl std::fmt::Debug for ContextView<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }

        /// A context as text: category, variable, value.
        #[derive(Clone, Copy, Debug)]
        pub struct ContextText<'a> {
            view: ContextView<'a>,
            keys: $crate::value::KeyText,
        }

        impl std::fmt::Display for ContextText<'_> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let mut last = "";
                $(
                    let value = self.view.$get();
                    let text =
                        value.as_ref().map(|value| $crate::value::ValueText(value, self.keys));
                    let text = text.as_ref().map(|text| text as &dyn std::fmt::Display);
                    let category = Category::$InCategory.name();
                    $crate::context::line(f, (&mut last, category), $name, text)?;
                )+
                Ok(())
            }
        }

        /// An owned context: read, changed in place, converted to bytes.
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct Context {
            bytes: [u8; CONTEXT_BYTES],
        }

        impl Context {
            /// A context without any variable.
            pub const EMPTY: Self = Self { bytes: empty() };

            /// Checks bytes and copies them.
            ///
            /// # Errors
            /// As [`ContextView::new`].
            #[inline]
            pub fn from_bytes(bytes: &[u8]) -> nearstate_model::Result<Self> {
                ContextView::new(bytes).map(ContextView::to_context)
            }

            /// A context from its stored blocks; a missing block is empty.
            ///
            /// # Errors
            /// As [`Context::set_block`].
            pub fn from_blocks<'a>(
                block: impl Fn(Block) -> Option<&'a [u8]>,
            ) -> nearstate_model::Result<Self> {
                let mut context = Self::EMPTY;
                let mut blocks = BlockSet::EMPTY;
                for each in BLOCKS {
                    if let Some(bytes) = block(*each) {
                        context.load_trusted_block(*each, bytes)?;
                        blocks = blocks.with(*each);
                    }
                }
                check(&context.bytes, blocks)?;
                Ok(context)
            }

            /// A view, for reads.
            #[inline]
            pub const fn view(&self) -> ContextView<'_> {
                ContextView { bytes: &self.bytes }
            }

            /// The bytes.
            #[inline]
            pub const fn as_bytes(&self) -> &[u8; CONTEXT_BYTES] {
                &self.bytes
            }

            /// Replaces the whole context, as [`Context::load_trusted_block`] replaces a block.
            ///
            /// # Errors
            /// `BadArgument`: not [`CONTEXT_BYTES`] bytes.
            #[inline]
            pub fn load_trusted(&mut self, bytes: &[u8]) -> nearstate_model::Result<()> {
                if bytes.len() != CONTEXT_BYTES {
                    return $crate::context::no_context(format_args!(
                        "{} bytes, but a context has {CONTEXT_BYTES}", bytes.len()
                    ));
                }
                self.bytes.copy_from_slice(bytes);
                Ok(())
            }

            /// Checks and replaces a block.
            ///
            /// # Errors
            /// As [`ContextView::new`], for this block; the context stays unchanged.
            pub fn set_block(&mut self, block: Block, bytes: &[u8]) -> nearstate_model::Result<()> {
                let mut changed = *self;
                changed.load_trusted_block(block, bytes)?;
                check(&changed.bytes, BlockSet::EMPTY.with(block))?;
                *self = changed;
                Ok(())
            }

            /// Replaces a block without a check of its content: for bytes that are known to be
            /// valid, such as those of a [`ContextView`]. Invalid bytes cause unspecified values,
            /// but no panic.
            ///
            /// # Errors
            /// `BadArgument`: another number of bytes.
            #[inline]
            pub fn load_trusted_block(
                &mut self,
                block: Block,
                bytes: &[u8],
            ) -> nearstate_model::Result<()> {
                let slot = self.bytes.get_mut(block.range()).unwrap_or_default();
                if slot.len() != bytes.len() {
                    return $crate::context::no_context(format_args!(
                        "{} bytes for block {block}, which has {}", bytes.len(), slot.len()
                    ));
                }
                slot.copy_from_slice(bytes);
                Ok(())
            }

            $(
                #[doc = concat!("Sets ", $name, "; `None` removes it.")]
                #[inline]
                pub fn $set(&mut self, value: impl Into<Option<$Kind>>) {
                    const SLOT: $crate::layout::VariableSlot =
                        $crate::layout::slot_of(ROWS, Variable::$Variable as usize);
                    let value = value.into();
                    $crate::layout::set_present::<
                        CONTEXT_BYTES, { SLOT.present_at }, { SLOT.present_bit },
                    >(&mut self.bytes, value.is_some());
                    if let Some(slot) = $crate::layout::slot_mut::<
                        CONTEXT_BYTES, { SLOT.at }, { SLOT.bytes },
                    >(&mut self.bytes)
                    {
                        match value {
                            Some(value) => $crate::value::Value::store(&value, slot),
                            None => *slot = [0; SLOT.bytes],
                        }
                    }
                }
            )+

            /// Parses the JSON object of [`ContextView::json`] with whole keys.
            ///
            /// # Errors
            /// `BadArgument` with the name of the member that is unknown or invalid.
            pub fn from_json(json: &serde_json::Value) -> nearstate_model::Result<Self> {
                let mut context = Self::EMPTY;
                $crate::context::each_member(json, |name, value| {
                    match name {
                        $($json => {
                            let value = <$Kind as $crate::value::Value>::from_json(value)?;
                            context.$set(value);
                        })+
                        _ => return Ok(false),
                    }
                    Ok(true)
                })?;
                Ok(context)
            }

            /// Applies the effects of a column of the table to the variables of some blocks.
            #[inline]
            fn change<const COLUMN: usize, const BLOCKS: u16>(&mut self, draw: u64) {
                use $crate::effect::Effect;
                $({
                    let effect = const {
                        let is_in = BLOCKS & 1 << Block::$InBlock as u16 != 0;
                        let effect =
                            $crate::layout::effect(ROWS, Variable::$Variable as usize, COLUMN);
                        if is_in { effect } else { Effect::Untouched }
                    };
                    match effect {
                        Effect::Added | Effect::Modified => {
                            self.$set($crate::context::drawn::<$Kind>(
                                draw, Variable::$Variable as u64
                            ));
                        }
                        Effect::Removed => self.$set(None),
                        Effect::Untouched => {}
                    }
                })+
            }
        }

        impl Default for Context {
            fn default() -> Self {
                Self::EMPTY
            }
        }

        impl std::fmt::Display for Context {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.view(), f)
            }
        }

        impl std::fmt::Debug for Context {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.view(), f)
            }
        }

        impl ContextView<'_> {
            /// An owned copy.
            #[inline]
            pub const fn to_context(self) -> Context {
                Context { bytes: *self.bytes }
            }
        }

        /// Blocks without variables.
        const fn empty() -> [u8; CONTEXT_BYTES] {
            let mut bytes = [0; CONTEXT_BYTES];
            $({
                let (_, from) = bytes.split_at_mut(Block::$Block.range().start);
                if let [format, ..] = from {
                    *format = FORMAT;
                }
            })+
            bytes
        }

        /// Checks the headers and the variables of some blocks.
        #[inline]
        fn check(bytes: &[u8; CONTEXT_BYTES], blocks: BlockSet) -> nearstate_model::Result<()> {
            $(
                if blocks.contains(Block::$Block) {
                    const HEAD: $crate::layout::BlockHeader =
                        $crate::layout::block_header(ROWS, Block::$Block as usize);
                    let head = $crate::layout::slot::<
                        CONTEXT_BYTES, { HEAD.at }, { HEAD.bytes },
                    >(bytes);
                    if let Err(what) = $crate::context::check_head(head, FORMAT, HEAD.variables) {
                        let block = Block::$Block;
                        return $crate::context::no_context(format_args!("block {block} {what}"));
                    }
                }
            )+
            $(
                if blocks.contains(Block::$InBlock) {
                    const SLOT: $crate::layout::VariableSlot =
                        $crate::layout::slot_of(ROWS, Variable::$Variable as usize);
                    let slot = $crate::layout::slot::<
                        CONTEXT_BYTES, { SLOT.at }, { SLOT.bytes },
                    >(bytes);
                    let is_present = $crate::layout::is_present::<
                        CONTEXT_BYTES, { SLOT.present_at }, { SLOT.present_bit },
                    >(bytes);
                    if let Err(what) = $crate::context::check_slot::<$Kind>(slot, is_present) {
                        return $crate::context::no_context(format_args!("{} {}", $name, what));
                    }
                }
            )+
            Ok(())
        }
    };
}
pub(crate) use contexts;
