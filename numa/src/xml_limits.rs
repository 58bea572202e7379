//! Refuses an XML text that would cost a parser more than its size: deep nesting, declarations,
//! namespaces, tags with very many attributes. A file of hwloc has none of these.

/// A file of hwloc has about 20 levels. The parser calls itself for each.
const DEPTH_MAX: usize = 128;

/// The object with the most attributes has about 25. The parser compares each with all others.
const TAG_ATTRIBUTES_MAX: usize = 256;

/// A machine of 65,536 processors has 330,000 objects with 7 each.
const ATTRIBUTES_MAX: usize = 4_000_000;

/// Reads the tags of a text, before a parser does. What is no XML at all is left to the parser.
///
/// # Errors
/// Why the text is refused, and where.
pub(crate) fn check(text: &str) -> Result<(), String> {
    let mut rest = text;
    let (mut depth, mut attributes) = (0_usize, 0_usize);
    while let Some(at) = rest.find('<') {
        let tag = rest.get(at..).unwrap_or_default();
        let line = || 1 + text.len().checked_sub(tag.len()).map_or(0, |at| lines_before(text, at));
        let end = match declaration(tag) {
            Declaration::Refused(why) => return Err(format!("{why} (line {})", line())),
            Declaration::Skipped(end) => end,
            Declaration::None => {
                let Some(element) = XmlTag::read(tag) else { return Ok(()) };
                attributes += element.attributes;
                if tag.starts_with("</") {
                    depth = depth.saturating_sub(1);
                } else if !element.is_empty {
                    depth += 1;
                }
                let why = element.excess(depth, attributes);
                if let Some(why) = why {
                    return Err(format!("{why} (line {})", line()));
                }
                element.end
            }
        };
        rest = tag.get(end..).unwrap_or_default();
    }
    Ok(())
}

fn lines_before(text: &str, at: usize) -> usize {
    text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count()
}

/// What starts with `<!` or `<?`.
enum Declaration {
    None,
    /// Its length.
    Skipped(usize),
    Refused(&'static str),
}

fn declaration(tag: &str) -> Declaration {
    // The end of what is not closed is the end of the text.
    let until =
        |end: &str| Declaration::Skipped(tag.find(end).map_or(tag.len(), |at| at + end.len()));
    match tag {
        _ if tag.starts_with("<?") => until("?>"),
        _ if tag.starts_with("<!--") => until("-->"),
        _ if tag.starts_with("<![CDATA[") => until("]]>"),
        _ if tag.starts_with("<!") => {
            let end = tag.find('>').map_or(tag.len(), |at| at + 1);
            let inside = tag.get(2..end).unwrap_or_default();
            let is_closed = inside.matches('"').count().is_multiple_of(2);
            let is_plain = is_closed && !inside.contains(['<', '[', '\'']);
            if inside.starts_with("DOCTYPE") && is_plain {
                Declaration::Skipped(end)
            } else {
                Declaration::Refused("it declares entities or elements")
            }
        }
        _ => Declaration::None,
    }
}

/// The tag of an element.
struct XmlTag {
    end: usize,
    attributes: usize,
    is_empty: bool,
    has_namespace: bool,
}

impl XmlTag {
    /// `None` if it has no end, or `<` in it.
    fn read(tag: &str) -> Option<Self> {
        let (mut quote, mut attributes, mut before) = (None, 0, 0);
        for (at, byte) in tag.bytes().enumerate().skip(1) {
            match (quote, byte) {
                (_, b'<') => return None,
                (None, b'"' | b'\'') => quote = Some(byte),
                (Some(open), _) if open == byte => {
                    quote = None;
                    attributes += 1;
                }
                (None, b'>') => {
                    let has_namespace = tag.get(..at).is_some_and(|tag| tag.contains("xmlns"));
                    let is_empty = before == b'/';
                    return Some(Self { end: at + 1, attributes, is_empty, has_namespace });
                }
                _ => {}
            }
            before = byte;
        }
        None
    }

    fn excess(&self, depth: usize, attributes: usize) -> Option<String> {
        if depth > DEPTH_MAX {
            return Some(format!("its elements are nested more than {DEPTH_MAX} deep"));
        }
        if self.attributes > TAG_ATTRIBUTES_MAX {
            return Some(format!("an element has {} attributes", self.attributes));
        }
        if attributes > ATTRIBUTES_MAX {
            return Some(format!("its elements have more than {ATTRIBUTES_MAX} attributes"));
        }
        self.has_namespace.then(|| "it uses XML namespaces".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_hwloc_writes_passes() {
        for text in [
            "<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology \
             version=\"2.0\"><object type=\"PU\" name='a>b'/></topology>",
            "<a><!-- <b><c> --><![CDATA[<<<]]></a>",
            "no XML at all",
            "<a",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        let deep = "<a>".repeat(128) + &"</a>".repeat(128);
        assert_eq!(check(&deep.repeat(20)), Ok(()));
    }

    #[test]
    fn what_costs_a_parser_more_than_its_size_is_refused() {
        let wide = |n: usize| (0..n).map(|i| format!(" a{i}=''")).collect::<Vec<_>>().concat();
        for (text, reason) in [
            ("\n".to_owned() + &"<a>".repeat(129), "nested more than 128 deep (line 2)"),
            (format!("<a{}/>", wide(257)), "has 257 attributes"),
            ("<a b='' c=''/>".repeat(2_000_001), "more than 4000000 attributes"),
            ("<!DOCTYPE t [<!ENTITY a 'b'>]><t/>".to_owned(), "declares entities"),
            // A quote that hides the end of the declaration.
            ("<!DOCTYPE t SYSTEM \"a>b<!--\"><t/>".to_owned(), "declares entities"),
            ("<!ENTITY a \"b\"><t/>".to_owned(), "declares entities"),
            ("<t xmlns:a=\"b\"/>".to_owned(), "namespaces"),
        ] {
            let refused = check(&text).unwrap_err();
            assert!(refused.contains(reason), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_checked(text in "[<>/!?\\[\\]a='\" -]{0,60}") {
            let _ = check(&text);
        }
    }
}
