//! Keyspace notifications: the flags that enable them and the names of events, as in Redis.

pub mod watches;

use nearstate_model::{Error, Result};
use nearstate_store::{EventKind, Form};

/// The value of `notify-keyspace-events`: a flag per class of events and per kind of channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceEvents {
    bits: u16,
}

/// The flags in the order in which Redis prints them.
const LETTERS: [u8; 14] = *b"g$lshzxetdnKEm";

/// Flags included in `A`.
const ALL: u16 = bits(b"g$lshzxetd");

/// Classes of events that occur.
const HAPPENING: u16 = bits(b"g$shxn");

/// Bits of flags; 0 for unknown flags.
const fn bits(flags: &[u8]) -> u16 {
    let mut bits = 0;
    let mut rest = flags;
    while let [flag, others @ ..] = rest {
        bits |= bit(*flag);
        rest = others;
    }
    bits
}

const fn bit(flag: u8) -> u16 {
    let mut bit = 1;
    let mut rest: &[u8] = &LETTERS;
    while let [known, others @ ..] = rest {
        if *known == flag {
            return bit;
        }
        bit <<= 1;
        rest = others;
    }
    0
}

/// One flag: a class of events or a kind of channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventClass(u16);

impl EventClass {
    /// `K`: publish to the channel of the key.
    pub const KEYSPACE: Self = Self(bit(b'K'));
    /// `E`: publish to the channel of the event.
    pub const KEYEVENT: Self = Self(bit(b'E'));
    /// `g`: events of keys of all types.
    pub const GENERIC: Self = Self(bit(b'g'));
    /// `$`
    pub const STRING: Self = Self(bit(b'$'));
    /// `h`
    pub const HASH: Self = Self(bit(b'h'));
    /// `s`
    pub const SET: Self = Self(bit(b's'));
    /// `x`
    pub const EXPIRED: Self = Self(bit(b'x'));
    /// `n`
    pub const NEW: Self = Self(bit(b'n'));
}

impl KeyspaceEvents {
    /// None.
    pub const NONE: Self = Self { bits: 0 };

    /// Parses flags as Redis does.
    ///
    /// # Errors
    /// `BadArgument`: an unknown flag, with Redis' text.
    pub fn parse(flags: &[u8]) -> Result<Self> {
        let mut bits = 0;
        for flag in flags {
            bits |= match (*flag, bit(*flag)) {
                (b'A', _) => ALL,
                (_, 0) => {
                    return Err(Error::BadArgument {
                        detail: "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.".to_owned(),
                    });
                }
                (_, bit) => bit,
            };
        }
        Ok(Self { bits })
    }

    /// The flags as Redis prints them: `A` for all that it includes, and then no `n`.
    pub fn flags(self) -> String {
        let has_all = self.bits & ALL == ALL;
        let implied = if has_all { ALL | EventClass::NEW.0 } else { 0 };
        let shown = LETTERS.into_iter().filter(|flag| self.bits & !implied & bit(*flag) != 0);
        has_all.then_some(b'A').into_iter().chain(shown).map(char::from).collect()
    }

    /// True if a class of events or a kind of channel is enabled.
    pub const fn has(self, class: EventClass) -> bool {
        self.bits & class.0 != 0
    }

    /// True if an event that occurs here is published.
    pub const fn is_any(self) -> bool {
        let channels = EventClass::KEYSPACE.0 | EventClass::KEYEVENT.0;
        self.bits & HAPPENING != 0 && self.bits & channels != 0
    }

    pub(crate) const fn bits(self) -> u16 {
        self.bits
    }

    pub(crate) const fn of_bits(bits: u16) -> Self {
        Self { bits }
    }
}

/// Names of an event of the region, in the order in which Redis would publish them.
///
/// The region knows that a record was created, changed or deleted and its type, but not the
/// command. Therefore all changes of a hash are `hset`.
pub fn names_of(kind: EventKind, form: Form) -> impl Iterator<Item = (EventClass, &'static str)> {
    let new = (kind == EventKind::Created).then_some((EventClass::NEW, "new"));
    let named = match (kind, form) {
        (EventKind::Deleted, _) => (EventClass::GENERIC, "del"),
        (EventKind::Expired, _) => (EventClass::EXPIRED, "expired"),
        (EventKind::Created | EventKind::Updated, Form::Value) => (EventClass::STRING, "set"),
        (EventKind::Created | EventKind::Updated, Form::Blocks) => (EventClass::HASH, "hset"),
        (EventKind::Created | EventKind::Updated, Form::Set) => (EventClass::SET, "sadd"),
    };
    new.into_iter().chain(std::iter::once(named))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_flags_are_parsed_and_printed_like_redis() {
        for (text, shown) in [
            ("", ""),
            ("KEA", "AKE"),
            ("KEAn", "AKE"),
            ("Kn", "nK"),
            ("AKEnm", "AKEm"),
            ("Kg$lshzxetdnm", "AKm"),
            ("E", "E"),
            ("xxEgx", "gxE"),
        ] {
            let events = KeyspaceEvents::parse(text.as_bytes()).unwrap();
            assert_eq!(events.flags(), shown, "{text}");
        }
        for text in ["Kq", "kea", "K E", "\u{e9}"] {
            let Err(Error::BadArgument { detail }) = KeyspaceEvents::parse(text.as_bytes()) else {
                panic!("{text} was taken")
            };
            assert_eq!(detail, "Invalid event class character. Use 'Ag$lshzxeKEtmdn'.");
        }
    }

    #[test]
    fn events_need_an_event_class_and_a_channel_class() {
        for (text, is_any) in [
            ("", false),
            ("KE", false),
            ("A", false),
            ("Klzetdm", false),
            ("Kx", true),
            ("E$", true),
            ("En", true),
            ("KEA", true),
        ] {
            let events = KeyspaceEvents::parse(text.as_bytes()).unwrap();
            assert_eq!(events.is_any(), is_any, "{text}");
        }
    }

    #[test]
    fn events_have_the_names_that_redis_uses() {
        let named = |kind, form| names_of(kind, form).map(|(_, name)| name).collect::<Vec<_>>();
        assert_eq!(named(EventKind::Created, Form::Value), ["new", "set"]);
        assert_eq!(named(EventKind::Updated, Form::Blocks), ["hset"]);
        assert_eq!(named(EventKind::Created, Form::Set), ["new", "sadd"]);
        assert_eq!(named(EventKind::Deleted, Form::Set), ["del"]);
        assert_eq!(named(EventKind::Expired, Form::Blocks), ["expired"]);
    }
}
