//! Arguments of the tag commands: namespaces, names, values and pairs, with their limits.

use crate::commands::arg;
use crate::key_name::{KeyName, PLAIN_NAMESPACE, is_literal, pattern_namespace};
use crate::number::integer;
use crate::parse::Args;
use crate::reply::error_reply::ErrorReply;
use nearstate_model::limits::{
    NAMESPACE_NAME_BYTES_MAX, TAG_NAME_BYTES_MAX, TAG_VALUE_BYTES_MAX, TAGS_MAX,
};

/// A tag and its value.
pub(super) type TagPair<'a> = (&'a str, &'a [u8]);

const NO_NAMESPACE: ErrorReply = ErrorReply::fixed(
    "ERR invalid namespace pattern: write {ns},* where ns has 1 to 255 bytes of UTF-8 without { \
     } , and NUL",
);
const NO_TAGS: ErrorReply = ErrorReply::fixed(
    "ERR a key without a namespace cannot have tags: name it {ns},key, where ns has 1 to 255 \
     bytes of UTF-8 without { } , and NUL, and declare its tags with TAG DECLARE {ns},* tag",
);
const _: () = assert!(NAMESPACE_NAME_BYTES_MAX == 255, "the texts above say it");

/// The namespace of a pattern `{ns},*`.
pub(super) fn namespace_of(pattern: &[u8]) -> Result<&str, ErrorReply> {
    match pattern_namespace(pattern) {
        Some(name) if name.key == b"*" => Ok(name.namespace),
        Some(_) => Err(NO_NAMESPACE),
        None => Err(match KeyName::of(pattern).namespace {
            PLAIN_NAMESPACE => NO_NAMESPACE,
            namespace => unaddressable_namespace(namespace),
        }),
    }
}

/// Error for a namespace that no pattern can name.
#[cold]
pub(super) fn unaddressable_namespace(namespace: &str) -> ErrorReply {
    ErrorReply::new(format!(
        "ERR namespace '{namespace}' cannot have tags: its name contains * ? [ or \\, which are \
         special in patterns; use another namespace"
    ))
}

/// A valid name of a tag.
pub(super) fn tag_name(given: &[u8]) -> Result<&str, ErrorReply> {
    let is_right =
        |name: &&str| (1..=TAG_NAME_BYTES_MAX).contains(&name.len()) && !name.contains('\0');
    str::from_utf8(given).ok().filter(is_right).ok_or_else(|| {
        ErrorReply::new(format!(
            "ERR invalid tag name: it must have 1 to {TAG_NAME_BYTES_MAX} bytes of UTF-8 \
             without NUL"
        ))
    })
}

pub(super) fn value_of(given: &[u8]) -> Result<&[u8], ErrorReply> {
    if given.len() <= TAG_VALUE_BYTES_MAX {
        return Ok(given);
    }
    Err(ErrorReply::new(format!(
        "ERR tag value of {} bytes is too long: the limit is {TAG_VALUE_BYTES_MAX}; use a \
         digest of the value",
        given.len()
    )))
}

/// As many pairs as argument `at` says, and the arguments after them.
pub(super) fn counted(args: Args<'_>, at: usize) -> Result<(Args<'_>, Args<'_>), ErrorReply> {
    let count = integer(arg(args, at)).and_then(|count| usize::try_from(count).ok());
    let count = count.ok_or(ErrorReply::NOT_INTEGER)?;
    let behind = args.from(at + 1);
    let words = count.saturating_mul(2);
    if behind.len() < words {
        return Err(ErrorReply::new(format!(
            "ERR wrong number of arguments: {count} pairs of name and value expected, {} \
             arguments given",
            behind.len()
        )));
    }
    Ok((behind.first(words), behind.from(words)))
}

pub(super) fn tags_of(pairs: Args<'_>) -> Result<Vec<TagPair<'_>>, ErrorReply> {
    let count = pairs.len() / 2;
    if count > TAGS_MAX {
        return Err(ErrorReply::new(format!(
            "ERR {count} tags exceed the limit of {TAGS_MAX} per record: store data that is not \
             searched in the value"
        )));
    }
    let at = (0..pairs.len()).step_by(2);
    at.map(|at| Ok((tag_name(arg(pairs, at))?, value_of(arg(pairs, at + 1))?))).collect()
}

#[cold]
pub(super) fn tag_not_declared(namespace: &str, tag: &str) -> ErrorReply {
    if namespace == PLAIN_NAMESPACE {
        return NO_TAGS;
    }
    if !is_literal(namespace) {
        return unaddressable_namespace(namespace);
    }
    ErrorReply::new(format!(
        "ERR tag '{tag}' is not declared: send TAG DECLARE {{{namespace}}},* {tag} first"
    ))
}
