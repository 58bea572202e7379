//! Tags of a namespace of contexts, independent of a store.

/// The declaration of a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagDeclaration {
    /// Its name.
    pub name: &'static str,
    /// True if no two records have the same value.
    pub is_unique: bool,
}
