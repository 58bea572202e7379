//! By which rules a new namespace is replicated: text that `store` interprets, in two places of the
//! cluster page (`docs/decisions/029-policies.md`; `spec/region.md`, section 11).
//!
//! ```text
//! creator, under the namespaces lock         owner of the partition that begins to serve
//! B1  the state of the region, its rules     S1  the state of the region
//! B2  flags and first position               S2  lock and unlock the namespaces lock
//! B3  the entry is live                      S3  look at all namespaces
//! ```
//!
//! A creator that has not seen S1 in B1 has its lock before S2, so S3 finds its namespace. Another
//! one has made it as the new state wants. B2 precedes B3, so a process that finds a namespace
//! finds whether its commits go to the log, and no write precedes that. A creator that is killed
//! before B3 leaves no namespace.

use nearstate_model::{Error, Result, invariant};
use xxhash_rust::xxh3::xxh3_64;

use crate::atomic::Ordering;
use crate::crash::crash_point;
use crate::follow::{following, origin};
use crate::layout::{
    CATALOG_BORN_LOGGED, CATALOG_FLAGS, CATALOG_LOGGED_SINCE, CATALOG_POLICY, Corruption,
    NAMESPACE_RULES, NAMESPACE_RULES_BYTES_MAX, SUPER_NAMESPACES_LOCK, catalog_at, entry_of,
    namespace_flags, seal, unseal,
};
use crate::member::Member;
use crate::member::arena::LockSlot;
use crate::region::map::Map;

/// How the commits of a namespace are replicated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicationPolicy {
    /// They stay in this region. They never touch the log.
    #[default]
    Local,
    /// They go to the log. A commit does not wait for other hosts.
    Async,
    /// They go to the log. A commit returns when it is replicated.
    Replicated,
}

impl ReplicationPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Local, Self::Async, Self::Replicated];

    /// The word for it in settings and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Async => "async",
            Self::Replicated => "replicated",
        }
    }

    /// The policy with this [`ReplicationPolicy::name`].
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// How the policy of a new namespace is chosen.
#[derive(Clone, Copy)]
pub enum NewPolicy<'f> {
    /// The region's own namespace: it is never replicated.
    Internal,
    /// By the text of the rules.
    ByRules(&'f dyn Fn(&str) -> ReplicationPolicy),
    /// By its creator.
    Chosen(ReplicationPolicy),
}

impl std::fmt::Debug for NewPolicy<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Internal => "Internal",
            Self::ByRules(_) => "ByRules",
            Self::Chosen(policy) => policy.name(),
        })
    }
}

/// The flags of a new namespace.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InitialFlags {
    flags: u64,
    /// Its creator wants that it is never logged.
    is_local: bool,
}

/// Words of a place: check value, number of the change, bytes of the text, the text.
const PLACE_WORDS: usize = 3 + NAMESPACE_RULES_BYTES_MAX as usize / 8;

const _: () = assert!(
    NAMESPACE_RULES[0] + 8 * PLACE_WORDS as u64 <= NAMESPACE_RULES[1],
    "two places do not overlap"
);

const DAMAGED: Corruption = Corruption("the rules of new namespaces are damaged");

/// The rules in one place, and how often they had been changed then. `None`: none are there, or
/// some that were not stored completely.
fn rules_at(map: &Map, at: u64) -> Result<Option<(u64, String)>, Corruption> {
    let words = map.words::<PLACE_WORDS>(at)?.each_ref().map(|word| word.load(Ordering::Acquire));
    let [check, change, bytes, ref text @ ..] = words;
    if change == 0 {
        return if words == [0; PLACE_WORDS] { Ok(None) } else { Err(DAMAGED) };
    }
    let number = unseal(change, DAMAGED.0)?;
    if check == 0 {
        return Ok(None); // Its writer was killed.
    }
    if check != check_of(&words) || bytes > NAMESPACE_RULES_BYTES_MAX {
        return Err(DAMAGED);
    }
    let mut text: Vec<u8> = text.iter().flat_map(|word| word.to_le_bytes()).collect();
    text.truncate(bytes as usize);
    String::from_utf8(text).map(|text| Some((number, text))).map_err(|_| DAMAGED)
}

/// The check value of all words but the first.
fn check_of(words: &[u64; PLACE_WORDS]) -> u64 {
    let bytes: Vec<u8> = words.iter().skip(1).flat_map(|word| word.to_le_bytes()).collect();
    // Not 0, which stands for no rules.
    xxh3_64(&bytes) | 1
}

/// The place of the current rules, their number and their text.
fn current(map: &Map) -> Result<Option<(u64, u64, String)>, Corruption> {
    let mut newest: Option<(u64, u64, String)> = None;
    for at in NAMESPACE_RULES {
        if let Some((change, text)) = rules_at(map, at)?
            && newest.as_ref().is_none_or(|(_, known, _)| *known < change)
        {
            newest = Some((at, change, text));
        }
    }
    Ok(newest)
}

/// For the check: of the two places one may have been left by a process that was killed.
pub(crate) fn check_rules(map: &Map) -> Result<(), Corruption> {
    current(map).map(drop)
}

/// For the repair: if rules are damaged, all are removed, because older ones may be wrong. True if
/// there were some.
pub(crate) fn repair_rules(map: &Map) -> Result<bool, Corruption> {
    if check_rules(map).is_ok() {
        return Ok(false);
    }
    for at in NAMESPACE_RULES {
        for word in map.words::<PLACE_WORDS>(at)? {
            word.store(0, Ordering::Release);
        }
    }
    Ok(true)
}

impl Member {
    /// The rules by which new namespaces are replicated, if the region has some.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn namespace_rules(&self) -> Result<Option<String>> {
        Ok(current(self.map())?.map(|(_, _, text)| text))
    }

    /// Stores the rules by which new namespaces are replicated, if they are others than the present
    /// ones. Waits for creators that have read those, and whatever else this process has stored
    /// before is seen by every later creator: S2. A kill leaves the old or the new rules.
    ///
    /// # Errors
    /// `BadArgument`: a text of more than [`NAMESPACE_RULES_BYTES_MAX`] bytes; `Stalled`,
    /// `Damaged`, `Forked`.
    pub fn set_namespace_rules(&self, text: &str) -> Result<()> {
        self.check_usable()?;
        let bytes = text.len() as u64;
        if bytes > NAMESPACE_RULES_BYTES_MAX {
            let detail = format!(
                "the rules of new namespaces have {bytes} bytes, and the most are \
                 {NAMESPACE_RULES_BYTES_MAX}: use fewer or shorter patterns"
            );
            return Err(Error::BadArgument { detail });
        }
        self.operation(|| {
            let payload = self.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
            let done = self.store_rules(text);
            self.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?;
            Ok(done?)
        })
    }

    fn store_rules(&self, text: &str) -> Result<(), Corruption> {
        invariant!(self.has_lock(LockSlot::Split), "rules are stored without a lock");
        let map = self.map();
        let present = current(map)?;
        let change = present.as_ref().map_or(0, |(_, change, _)| *change) + 1;
        if present.as_ref().is_some_and(|(_, _, present)| present == text) {
            return Ok(());
        }
        let [one, other] = NAMESPACE_RULES;
        let at = if present.is_some_and(|(at, _, _)| at == one) { other } else { one };
        let mut words = [0; PLACE_WORDS];
        let [_, number, bytes, filled @ ..] = &mut words;
        invariant!(text.len() <= 8 * filled.len(), "rules of {} bytes are stored", text.len());
        (*number, *bytes) = (seal(change), text.len() as u64);
        for (to, chunk) in filled.iter_mut().zip(text.as_bytes().chunks(8)) {
            let mut word = [0; 8];
            for (to, from) in word.iter_mut().zip(chunk) {
                *to = *from;
            }
            *to = u64::from_le_bytes(word);
        }
        let [check, place @ ..] = map.words::<PLACE_WORDS>(at)?;
        check.store(0, Ordering::Release);
        crash_point!("rules.begun");
        // The number first: a place without one has nothing.
        for (word, value) in place.iter().zip(words.iter().skip(1)) {
            word.store(*value, Ordering::Release);
            crash_point!("rules.filled");
        }
        check.store(check_of(&words), Ordering::Release);
        crash_point!("rules.stored");
        Ok(())
    }

    /// Waits for every creation of a namespace that has begun before: S2.
    ///
    /// # Errors
    /// `Stalled`: a stopped process creates a namespace; `Damaged`, `Forked`.
    pub fn wait_for_creations(&self) -> Result<()> {
        self.check_usable()?;
        self.operation(|| {
            let payload = self.acquire(SUPER_NAMESPACES_LOCK, LockSlot::Split)?;
            Ok(self.release(SUPER_NAMESPACES_LOCK, LockSlot::Split, payload)?)
        })
    }

    /// B1, under the namespaces lock.
    pub(super) fn initial_flags(&self, policy: NewPolicy<'_>) -> Result<InitialFlags> {
        invariant!(self.has_lock(LockSlot::Split), "the rules may change meanwhile");
        let map = self.map();
        let (wanted, is_chosen) = match policy {
            NewPolicy::Internal => return Ok(InitialFlags::default()),
            NewPolicy::ByRules(policy_of) => {
                let rules = current(map)?;
                (rules.map_or(ReplicationPolicy::Local, |(_, _, text)| policy_of(&text)), false)
            }
            NewPolicy::Chosen(wanted) => (wanted, true),
        };
        let waits = match wanted {
            ReplicationPolicy::Local => return Ok(InitialFlags { flags: 0, is_local: is_chosen }),
            ReplicationPolicy::Async => 0,
            ReplicationPolicy::Replicated => namespace_flags::REPLICATED,
        };
        let logged = namespace_flags::LOGGED | waits;
        let flags = if following(map)?.is_some() {
            // The owner decides about its namespace of this name.
            namespace_flags::FOLLOWED | waits
        } else if origin(map)? != 0 {
            logged | namespace_flags::LOSSLESS
        } else if is_chosen {
            logged
        } else {
            0
        };
        Ok(InitialFlags { flags, is_local: false })
    }

    /// B2, before the entry is live: a namespace that is logged is so before its first write.
    pub(super) fn begin_namespace(&self, index: u32, initial: InitialFlags) -> Result<()> {
        invariant!(self.has_lock(LockSlot::Split), "a namespace begins without a lock");
        let (map, at) = (self.map(), catalog_at(index));
        if initial.is_local {
            map.word(at + CATALOG_POLICY)?.store(seal(LOCAL), Ordering::Release);
        }
        map.word(at + CATALOG_FLAGS)?.store(seal(initial.flags), Ordering::Release);
        crash_point!("birth.flagged");
        if initial.flags & namespace_flags::LOGGED != 0 {
            self.end_log_declaration(index)?;
            let since = map.word(at + CATALOG_LOGGED_SINCE)?.load(Ordering::Acquire);
            map.word(at + CATALOG_BORN_LOGGED)?.store(since, Ordering::Release);
        }
        crash_point!("birth.logged");
        Ok(())
    }

    /// True if the log has every commit that a namespace ever had.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_born_logged(&self, namespace: u32) -> Result<bool, Corruption> {
        let at = catalog_at(entry_of(namespace));
        let [since, born] =
            [CATALOG_LOGGED_SINCE, CATALOG_BORN_LOGGED].map(|word| map_word(self.map(), at + word));
        let (since, born) = (since?, born?);
        Ok(born != 0 && since == born)
    }

    /// How the commits of a namespace are replicated.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn replication_policy(&self, namespace: u32) -> Result<ReplicationPolicy, Corruption> {
        let word = map_word(self.map(), catalog_at(entry_of(namespace)) + CATALOG_FLAGS)?;
        Ok(policy_of(unseal(word, "the flags of a namespace have a flipped bit")?))
    }

    /// True if the commits of a namespace wait for other hosts, and this host makes them.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_replicated_from_here(&self, namespace: u32) -> Result<bool, Corruption> {
        let word = map_word(self.map(), catalog_at(entry_of(namespace)) + CATALOG_FLAGS)?;
        let flags = unseal(word, "the flags of a namespace have a flipped bit")?;
        let is_owned = flags & namespace_flags::FOLLOWED == 0;
        Ok(is_owned && policy_of(flags) == ReplicationPolicy::Replicated)
    }

    /// A followed namespace may be written from here on. Without a log its commits have nothing to
    /// wait for.
    ///
    /// # Errors
    /// As [`Member::update_namespace_flags`].
    pub fn open_to_writers(&self, namespace: u32) -> Result<()> {
        let changed = self.update_namespace_flags(namespace, |flags| {
            let is_logged = flags & namespace_flags::LOGGED != 0;
            let waits = if is_logged { 0 } else { namespace_flags::REPLICATED };
            flags & !(namespace_flags::FOLLOWED | waits)
        });
        changed.map(drop)
    }

    /// Stores whether commits in a logged or followed namespace wait until they are replicated.
    /// `checks_fence`: unless writers of logged namespaces are refused. Then nothing is changed.
    /// Returns whether it was done. Under the lock of a bucket, which a hand-over that has refused
    /// them waits for.
    ///
    /// # Errors
    /// As [`Member::update_namespace_flags`].
    pub fn set_commits_wait(
        &self,
        namespace: u32,
        policy: ReplicationPolicy,
        checks_fence: bool,
    ) -> Result<bool> {
        self.with_namespace_kept(namespace, || {
            if checks_fence && self.is_fenced_off_now()? {
                return Ok(false);
            }
            self.change_flags(namespace, |flags| match policy {
                ReplicationPolicy::Replicated => flags | namespace_flags::REPLICATED,
                ReplicationPolicy::Local | ReplicationPolicy::Async => {
                    flags & !namespace_flags::REPLICATED
                }
            })?;
            Ok(true)
        })
    }

    /// True if a namespace is never to be logged, whatever the rules say.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_kept_local(&self, namespace: u32) -> Result<bool, Corruption> {
        kept_local(self.map(), namespace)
    }

    /// Stores whether a namespace is never to be logged. As flags, under the lock of a bucket, so
    /// that it is not removed meanwhile.
    ///
    /// # Errors
    /// As [`Member::update_namespace_flags`].
    pub fn set_kept_local(&self, namespace: u32, is_local: bool) -> Result<()> {
        let word = self.map().word(catalog_at(entry_of(namespace)) + CATALOG_POLICY)?;
        self.with_namespace_kept(namespace, || {
            word.store(if is_local { seal(LOCAL) } else { 0 }, Ordering::Release);
            crash_point!("policy.stored");
            Ok(())
        })?;
        self.check_not_truncated()
    }
}

/// The value of the word of a namespace that is never logged.
const LOCAL: u64 = 1;

fn map_word(map: &Map, at: u64) -> Result<u64, Corruption> {
    Ok(map.word(at)?.load(Ordering::Acquire))
}

fn kept_local(map: &Map, namespace: u32) -> Result<bool, Corruption> {
    match map_word(map, catalog_at(entry_of(namespace)) + CATALOG_POLICY)? {
        0 => Ok(false),
        word => Ok(unseal(word, "the policy of a namespace has a flipped bit")? == LOCAL),
    }
}

/// How the commits of a namespace are replicated, by its flags.
pub(crate) const fn policy_of(flags: u64) -> ReplicationPolicy {
    if flags & (namespace_flags::LOGGED | namespace_flags::FOLLOWED) == 0 {
        ReplicationPolicy::Local
    } else if flags & namespace_flags::REPLICATED == 0 {
        ReplicationPolicy::Async
    } else {
        ReplicationPolicy::Replicated
    }
}
