//! Parses the part of a region's URL after `region:`. Any text results in a URL or an error.

use std::path::PathBuf;

use nearstate_store::{CreateOptions, NumaPolicy, PageSize, PinMode};

use crate::error::{Error, Result};

/// The location of a region, and how to create it if requested.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RegionUrl {
    pub(crate) path: PathBuf,
    pub(crate) create: Option<CreateOptions>,
    /// Also accept a region that belongs to another user.
    pub(crate) any_owner: bool,
}

/// Parses `/path?option=value&..`.
pub(crate) fn parse(text: &str) -> Result<RegionUrl> {
    let (path, options) = text.split_once('?').unwrap_or((text, ""));
    if path.is_empty() {
        return Err(Error::refused("the URL has no path; give region:/path of a region's file"));
    }
    let mut create = CreateOptions::default();
    let mut is_creating = false;
    let mut named: Option<&str> = None;
    for option in options.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "create" => is_creating = boolean(name, value)?,
            "max" => create.bytes_max = bytes(value)?,
            "page" => create.page = page(value)?,
            "populate" => create.populate = boolean(name, value)?,
            "numa" => create.numa = numa(value)?,
            "pin" => create.pin = pin(value)?,
            "mode" => create.mode = mode(value)?,
            "any_owner" => create.any_owner = boolean(name, value)?,
            _ => {
                return Err(Error::refused(format!(
                    "unknown option `{name}`; give create, max, page, populate, \
                     numa, pin, mode or any_owner"
                )));
            }
        }
        if !["create", "any_owner"].contains(&name) {
            named = Some(name);
        }
    }
    if let (Some(name), false) = (named, is_creating) {
        return Err(Error::refused(format!(
            "`{name}` has an effect only on creation; add create=1"
        )));
    }
    let any_owner = create.any_owner;
    Ok(RegionUrl { path: PathBuf::from(path), create: is_creating.then_some(create), any_owner })
}

fn refused<T>(name: &str, value: &str, right: &str) -> Result<T> {
    Err(Error::refused(format!("{name}={value} is not valid; give {right}")))
}

/// Parses a switch.
pub(crate) fn boolean(name: &str, value: &str) -> Result<bool> {
    match value {
        "1" => Ok(true),
        "0" => Ok(false),
        _ => refused(name, value, "0 or 1"),
    }
}

fn bytes(value: &str) -> Result<u64> {
    let digits = value.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match value.get(digits.len()..) {
        Some("") => Some(0),
        Some("KiB") => Some(10),
        Some("MiB") => Some(20),
        Some("GiB") => Some(30),
        Some("TiB") => Some(40),
        _ => None,
    };
    let number = digits.parse::<u64>().ok();
    match number.zip(shift).and_then(|(number, shift)| number.checked_mul(1 << shift)) {
        Some(bytes) => Ok(bytes),
        None => refused("max", value, "bytes, or a number with KiB, MiB, GiB or TiB"),
    }
}

fn page(value: &str) -> Result<PageSize> {
    match value {
        "4KiB" => Ok(PageSize::Small),
        "2MiB" => Ok(PageSize::Huge2M),
        _ => refused("page", value, "4KiB or 2MiB"),
    }
}

fn numa(value: &str) -> Result<NumaPolicy> {
    let nodes = |text: &str| {
        let nodes: Option<Vec<u32>> = text.split(',').map(|node| node.parse().ok()).collect();
        nodes.filter(|nodes| !nodes.is_empty())
    };
    let policy = match value.split_once(':') {
        None if value == "default" => Some(NumaPolicy::Default),
        Some(("bind", text)) => nodes(text).map(NumaPolicy::Bind),
        Some(("interleave", text)) => nodes(text).map(NumaPolicy::Interleave),
        Some(("preferred", text)) => nodes(text).map(NumaPolicy::Preferred),
        _ => None,
    };
    match policy {
        Some(policy) => Ok(policy),
        None => refused("numa", value, "default, bind:0,1, interleave:0,1 or preferred:0"),
    }
}

fn pin(value: &str) -> Result<PinMode> {
    match value {
        "auto" => Ok(PinMode::Auto),
        "asymmetric" => Ok(PinMode::Asymmetric),
        "fenced" => Ok(PinMode::Fenced),
        _ => refused("pin", value, "auto, asymmetric or fenced"),
    }
}

fn mode(value: &str) -> Result<u32> {
    match u32::from_str_radix(value, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => refused("mode", value, "an octal file mode such as 0660"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_option_is_parsed() {
        let text = "/dev/shm/ue?create=1&max=4GiB&page=2MiB&populate=1&numa=bind:0,3&pin=fenced\
                    &mode=0660&any_owner=1";
        let url = parse(text).unwrap();
        assert_eq!(url.path, PathBuf::from("/dev/shm/ue"));
        let expected = CreateOptions {
            bytes_max: 4 << 30,
            page: PageSize::Huge2M,
            populate: true,
            numa: NumaPolicy::Bind(vec![0, 3]),
            pin: PinMode::Fenced,
            mode: 0o660,
            any_owner: true,
            hash_seed: None,
        };
        assert_eq!(url.create, Some(expected));
    }

    #[test]
    fn without_create_a_region_is_only_attached() {
        let (path, create) = (PathBuf::from("/x"), None);
        assert_eq!(parse("/x").unwrap(), RegionUrl { path, create, any_owner: false });
        assert!(parse("/x?any_owner=1").unwrap().any_owner);
        assert_eq!(parse("/x?create=0").unwrap().create, None);
        assert!(parse("/x?max=1GiB").is_err(), "an option without effect is a mistake");
    }

    #[test]
    fn wrong_options_are_refused() {
        for wrong in [
            "",
            "?create=1",
            "/x?creat=1",
            "/x?create=yes",
            "/x?create=1&max=",
            "/x?create=1&max=GiB",
            "/x?create=1&max=1GB",
            "/x?create=1&max=-1",
            "/x?create=1&max=99999999TiB",
            "/x?create=1&page=1GiB",
            "/x?create=1&numa=bind:",
            "/x?create=1&numa=bind:a",
            "/x?create=1&pin=",
            "/x?create=1&mode=999",
            "/x?create=1&mode=7777",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_region_url_or_an_error(
            text in "(/x)?[?]?((create|max|page|numa|pin|mode)?[=]?[01a-zA-Z:,é]{0,9}&?){0,4}"
        ) {
            let _ = parse(&text);
        }
    }
}
