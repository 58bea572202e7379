//! What a follower keeps of the log that it applies, for members that have applied less when the
//! owner is lost (`docs/decisions/026-cluster.md`).

use std::collections::{BTreeMap, VecDeque};

use nearstate_model::{Error, Result};
use nearstate_store::FollowPosition;
use nearstate_wire::{KeptMessage, Message};

/// The most memory of kept messages: half a second of a 1 Gb/s link. The oldest are dropped, and a
/// member that needs one of these joins.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// A message that was applied.
#[derive(Debug)]
enum KeptItem {
    /// A namespace was announced or removed.
    Namespace { number: u32, message: KeptMessage },
    /// An entry of the log.
    Entry { place: FollowPosition, message: KeptMessage },
}

impl KeptItem {
    const fn bytes(&self) -> usize {
        match self {
            Self::Namespace { message, .. } | Self::Entry { message, .. } => {
                message.bytes() + size_of::<Self>()
            }
        }
    }

    const fn message(&self) -> &KeptMessage {
        match self {
            Self::Namespace { message, .. } | Self::Entry { message, .. } => message,
        }
    }
}

/// The last entries of a log, with the namespaces that they need.
#[derive(Debug, Default)]
pub(crate) struct KeptLog {
    /// Everything behind this place is kept. `None`: nothing is.
    begin: Option<FollowPosition>,
    /// The namespaces that were announced before the first item.
    namespaces: BTreeMap<u32, KeptMessage>,
    /// The number of the last namespace of each name.
    numbers: BTreeMap<String, u32>,
    items: VecDeque<KeptItem>,
    bytes: usize,
}

fn is_removal(message: &KeptMessage) -> bool {
    matches!(message.message(), Ok(Message::Removed { .. }))
}

fn refused(error: &nearstate_wire::WireError) -> Error {
    Error::BadArgument { detail: error.to_string() }
}

impl KeptLog {
    /// The copy has everything up to a place, and nothing behind it is kept.
    pub(crate) fn begin_at(&mut self, place: FollowPosition) {
        self.begin = None;
        self.drop_items_while(|_| true);
        self.begin = Some(place);
    }

    /// Nothing is kept until [`KeptLog::begin_at`].
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// A connection continues at this place.
    pub(crate) fn continue_at(&mut self, place: FollowPosition) {
        if self.last() != Some(place) {
            self.clear();
            self.begin_at(place);
        }
    }

    /// The last place that is known.
    fn last(&self) -> Option<FollowPosition> {
        let place = |item: &KeptItem| match item {
            KeptItem::Entry { place, .. } => Some(*place),
            KeptItem::Namespace { .. } => None,
        };
        self.items.iter().rev().find_map(place).or(self.begin)
    }

    /// Keeps a message that is applied. `keep` copies it.
    pub(crate) fn push(
        &mut self,
        message: &Message<'_>,
        keep: impl FnOnce() -> KeptMessage,
    ) -> Result<()> {
        let item = match message {
            Message::Namespace(namespace) => {
                // A connection does not tell of a removal that was before it.
                let older = self.numbers.insert(namespace.name.to_owned(), namespace.number);
                if let Some(number) = older.filter(|older| *older != namespace.number) {
                    let removed = KeptMessage::of(&Message::Removed { number });
                    self.push_namespace(number, removed.map_err(|error| refused(&error))?);
                }
                self.push_namespace(namespace.number, keep());
                return Ok(());
            }
            Message::Removed { number } => {
                self.numbers.retain(|_, known| known != number);
                self.push_namespace(*number, keep());
                return Ok(());
            }
            Message::Entry(entry) if self.begin.is_some() => KeptItem::Entry {
                place: FollowPosition { position: entry.position, check: entry.check },
                message: keep(),
            },
            // The records of a walk belong to no position.
            Message::Record(_) | Message::Absent(_) => {
                self.begin = None;
                self.drop_items_while(|_| true);
                return Ok(());
            }
            Message::Entry(_)
            | Message::Joined { .. }
            | Message::Hello(_)
            | Message::Welcome(_)
            | Message::Refusal(_)
            | Message::Position(_)
            | Message::Acknowledge(_)
            | Message::Switch(_) => return Ok(()),
        };
        self.push_item(item);
        Ok(())
    }

    fn push_namespace(&mut self, number: u32, message: KeptMessage) {
        self.push_item(KeptItem::Namespace { number, message });
    }

    fn push_item(&mut self, item: KeptItem) {
        self.bytes += item.bytes();
        self.items.push_back(item);
        while self.bytes > KEPT_BYTES_MAX {
            self.drop_first();
        }
    }

    /// Every full member has applied the log up to this position.
    pub(crate) fn trim(&mut self, floor: u64) {
        self.drop_items_while(|item| match item {
            KeptItem::Entry { place, .. } => place.position <= floor,
            KeptItem::Namespace { .. } => true,
        });
    }

    fn drop_items_while(&mut self, is_over: impl Fn(&KeptItem) -> bool) {
        while self.items.front().is_some_and(&is_over) {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let Some(item) = self.items.pop_front() else { return };
        self.bytes -= item.bytes();
        match item {
            KeptItem::Entry { place, .. } => {
                if self.begin.is_some() {
                    self.begin = Some(place);
                }
            }
            KeptItem::Namespace { number, message } => {
                if is_removal(&message) {
                    self.namespaces.remove(&number);
                } else {
                    self.namespaces.insert(number, message);
                }
            }
        }
    }

    /// True if a member that has applied the log up to this place gets everything else from here.
    pub(crate) fn covers(&self, place: FollowPosition) -> bool {
        // Without a check value nothing tells that the member has the same log.
        place.check != 0
            && (self.begin == Some(place)
                || self.items.iter().any(
                    |item| matches!(item, KeptItem::Entry { place: kept, .. } if *kept == place),
                ))
    }

    /// The messages for a member at this place: the namespaces that exist there, and what follows.
    /// It may have been further than the first item: a namespace that was removed and created
    /// again before its place must not be announced as the old one, or its records are discarded.
    pub(crate) fn behind(&self, position: u64) -> Vec<&KeptMessage> {
        let is_at_or_before = |item: &KeptItem| match item {
            KeptItem::Entry { place, .. } => place.position <= position,
            KeptItem::Namespace { .. } => false,
        };
        let first = self.items.iter().rposition(is_at_or_before).map_or(0, |last| last + 1);
        let mut namespaces: BTreeMap<u32, &KeptMessage> =
            self.namespaces.iter().map(|(number, message)| (*number, message)).collect();
        for item in self.items.iter().take(first) {
            match item {
                KeptItem::Namespace { number, message } if is_removal(message) => {
                    namespaces.remove(number);
                }
                KeptItem::Namespace { number, message } => {
                    namespaces.insert(*number, message);
                }
                KeptItem::Entry { .. } => {}
            }
        }
        let later = self.items.iter().skip(first).map(KeptItem::message);
        namespaces.into_values().chain(later).collect()
    }
}

#[cfg(test)]
mod tests {
    use nearstate_model::OneOrMany;
    use nearstate_wire::{EntryMessage, NamespaceKind, NamespaceMessage};

    use super::*;

    fn entry(position: u64) -> Message<'static> {
        Message::Entry(EntryMessage {
            position,
            check: position,
            time_ms: 0,
            records: OneOrMany::NONE,
        })
    }

    fn namespace(number: u32) -> Message<'static> {
        Message::Namespace(NamespaceMessage {
            number,
            kind: NamespaceKind::Value,
            stamp: 0,
            name: "sessions",
            commits_wait: false,
            tags: Vec::new(),
        })
    }

    fn push(kept: &mut KeptLog, message: &Message<'_>) {
        kept.push(message, || KeptMessage::of(message).unwrap()).unwrap();
    }

    fn told(kept: &KeptLog, position: u64) -> Vec<String> {
        let name = |message: &KeptMessage| {
            let message = message.message().unwrap();
            if let Message::Namespace(namespace) = &message {
                format!("namespace {}", namespace.number)
            } else if let Message::Removed { number } = message {
                format!("removed {number}")
            } else {
                let Message::Entry(entry) = message else { panic!("{message:?} is not kept") };
                format!("entry {}", entry.position)
            }
        };
        kept.behind(position).into_iter().map(name).collect()
    }

    #[test]
    fn a_member_behind_a_removal_is_not_told_of_the_namespace_before_it() {
        let mut kept = KeptLog::default();
        push(&mut kept, &namespace(5));
        kept.begin_at(FollowPosition { position: 10, check: 10 });
        push(&mut kept, &entry(11));
        push(&mut kept, &Message::Removed { number: 5 });
        push(&mut kept, &namespace(7));
        for position in 12..=14 {
            push(&mut kept, &entry(position));
        }
        assert_eq!(told(&kept, 13), ["namespace 7", "entry 14"]);
        let all = ["namespace 5", "entry 11", "removed 5", "namespace 7", "entry 12", "entry 13"];
        assert_eq!(told(&kept, 10)[..6], all);
        kept.trim(12);
        assert_eq!(told(&kept, 12), ["namespace 7", "entry 13", "entry 14"]);
    }

    #[test]
    fn a_removal_while_the_member_was_away_is_told_when_the_name_is_used_again() {
        let mut kept = KeptLog::default();
        push(&mut kept, &namespace(5));
        kept.begin_at(FollowPosition { position: 10, check: 10 });
        push(&mut kept, &entry(11));
        // Another connection.
        kept.continue_at(FollowPosition { position: 11, check: 11 });
        push(&mut kept, &namespace(7));
        push(&mut kept, &namespace(7));
        push(&mut kept, &entry(12));
        push(&mut kept, &entry(13));
        let all =
            ["namespace 5", "entry 11", "removed 5", "namespace 7", "namespace 7", "entry 12"];
        assert_eq!(told(&kept, 10)[..6], all);
        assert_eq!(told(&kept, 12), ["namespace 7", "entry 13"]);
    }
}
