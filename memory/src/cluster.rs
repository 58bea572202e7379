//! A region that belongs to a cluster: the words of the cluster page that its node writes and every
//! process reads (`docs/decisions/026-cluster.md`; `spec/region.md`, section 11).
//!
//! ```text
//! node                                       reader whose output rests on a read
//! O1  a new boot: end = 0                    R1  boot is not the present one: expired   (acquire)
//! O2  boot = the present one                 R2  end
//! O3  end = end of the lease                 R3  end is not before now: held
//! ```
//!
//! R1 that sees O2 sees O1, so R2 reads no end of an earlier boot.
//!
//! ```text
//! node that gives the partition away         writer that the log has
//! H1  fenced = 1                             G1  lock all its buckets
//! H2  each bucket: lock, unlock              G2  fenced: change nothing           (acquire)
//! H3  the end of the log                     G3  draw a position, publish, unlock
//! ```
//!
//! A writer whose lock precedes H2 of its bucket has drawn its position before H3. A later one
//! synchronizes with H2 through the lock, so G2 reads H1. A writer that checks before G1 may sleep
//! between the two, and commit behind H3.
//!
//! A region is bound to the cluster, to the boot, and to its file. A copy of the file is not bound:
//! it has the content of an earlier moment, so it counts as lost
//! (`docs/decisions/038-bound-file.md`).

use std::time::Duration;

use nearstate_model::invariant::guaranteed;
use nearstate_model::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

use crate::atomic::Ordering;
use crate::clock::{lease_clock, now_ms_coarse, present_boot};
use crate::crash::crash_point;
use crate::follow::{demotion_seal, origin};
use crate::layout::{
    CLUSTER_BOOT, CLUSTER_CHECK, CLUSTER_FILE, CLUSTER_ID, Corruption, DEMOTION_SEAL, EVICTING,
    FENCED, LEASE_BOOT, LEASE_END, LOG_ORIGIN, LOG_SOURCE_CPU, OWNER_ADDRESS,
    OWNER_ADDRESS_BYTES_MAX, VIEW_SEEN, seal, unseal,
};
use crate::log::wait::source_cpu;
use crate::member::Member;
use crate::region::map::Map;

/// The highest view: it is stored sealed, in 48 bits.
pub const VIEW_MAX: u64 = (1 << 48) - 1;

/// How long a session that commits does not look at the end of the lease: a twentieth of the
/// shortest one. After a pause, one commit may pass.
const LEASE_LOOK_MS: u64 = 16;

/// Whether this host owns the region at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerLease {
    /// The region belongs to no cluster and to no partition: its host owns it.
    Unclustered,
    /// The host owns it until this time of [`lease_clock`].
    Held {
        /// The end of the lease.
        until: Duration,
    },
    /// The lease has ended, or the host has none.
    Expired,
}

fn no_boot() -> Error {
    let detail = "cannot read /proc/sys/kernel/random/boot_id, so a lease cannot be held";
    Error::System { detail: detail.to_owned(), errno: 0 }
}

fn id_words(id: [u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(id);
    [both, both >> 64].map(|half| half as u64)
}

/// The check value of a cluster id.
fn id_check(words: [u64; 2]) -> u64 {
    let [one, other] = words;
    // Not 0, which stands for none.
    xxh3_64(&(u128::from(one) | u128::from(other) << 64).to_le_bytes()) | 1
}

/// The words of the cluster id. Without a check value they are not verified: an earlier version
/// has stored them, or the process that stored them was killed.
fn cluster_id(map: &Map) -> Result<[u64; 2], Corruption> {
    let load = |at| Ok::<_, Corruption>(map.word(at)?.load(Ordering::Acquire));
    let words = [load(CLUSTER_ID)?, load(CLUSTER_ID + 8)?];
    match load(CLUSTER_CHECK)? {
        0 => Ok(words),
        check if check == id_check(words) => Ok(words),
        _ => Err(Corruption("the cluster id has a flipped bit")),
    }
}

fn store_cluster_id(map: &Map, words: [u64; 2]) -> Result<(), Corruption> {
    store(map, CLUSTER_CHECK, 0)?;
    store(map, CLUSTER_ID, words[0])?;
    store(map, CLUSTER_ID + 8, words[1])?;
    store(map, CLUSTER_CHECK, id_check(words))?;
    debug_assert!(cluster_id(map) == Ok(words), "the id that was stored is the one that is read");
    Ok(())
}

/// For the repair: the single bit of the id whose flip makes the check value fit. Without one the
/// check value itself is damaged.
fn repair_cluster_id(map: &Map) -> Result<(), Corruption> {
    let load = |at| Ok::<_, Corruption>(map.word(at)?.load(Ordering::Acquire));
    let (words, check) = ([load(CLUSTER_ID)?, load(CLUSTER_ID + 8)?], load(CLUSTER_CHECK)?);
    let flipped = |bit: u32| {
        let [one, other] = words;
        if bit < u64::BITS { [one ^ 1 << bit, other] } else { [one, other ^ 1 << (bit % 64)] }
    };
    let corrected = (0..2 * u64::BITS).map(flipped).find(|words| id_check(*words) == check);
    store_cluster_id(map, corrected.unwrap_or(words))
}

fn sealed(map: &Map, at: u64, what: &'static str) -> Result<u64, Corruption> {
    match map.word(at)?.load(Ordering::Acquire) {
        0 => Ok(0),
        word => unseal(word, what),
    }
}

fn store(map: &Map, at: u64, value: u64) -> Result<(), Corruption> {
    map.word(at)?.store(value, Ordering::Release);
    Ok(())
}

/// The highest view that the region's host has seen.
pub(crate) fn view_seen(map: &Map) -> Result<u64, Corruption> {
    sealed(map, VIEW_SEEN, "the highest view seen has a flipped bit")
}

/// True while writers of logged namespaces are refused.
pub(crate) fn is_fenced(map: &Map) -> Result<bool, Corruption> {
    Ok(sealed(map, FENCED, "the fence of the region has a flipped bit")? != 0)
}

fn lease(map: &Map) -> Result<(u64, u64), Corruption> {
    let boot = sealed(map, LEASE_BOOT, "the boot of the lease has a flipped bit")?;
    Ok((boot, sealed(map, LEASE_END, "the end of the lease has a flipped bit")?))
}

fn evicting(map: &Map) -> Result<u64, Corruption> {
    sealed(map, EVICTING, "the eviction of a member has a flipped bit")
}

fn bound_boot(map: &Map) -> Result<u64, Corruption> {
    sealed(map, CLUSTER_BOOT, "the boot of the region has a flipped bit")
}

fn bound_file(map: &Map) -> Result<u64, Corruption> {
    sealed(map, CLUSTER_FILE, "the name of the bound file has a flipped bit")
}

/// Is the mapped file the one that was bound? An earlier version has not stored which one it is.
fn is_bound_file(map: &Map) -> Result<bool, Corruption> {
    let bound = bound_file(map)?;
    Ok(bound == 0 || bound == map.file_identity())
}

/// The sealed words of a cluster, for the check.
pub(crate) fn check_words(map: &Map) -> Result<(), Corruption> {
    cluster_id(map)?;
    evicting(map)?;
    bound_boot(map)?;
    bound_file(map)?;
    origin(map)?;
    view_seen(map)?;
    is_fenced(map)?;
    lease(map)?;
    map.check_clock()?;
    demotion_seal(map)?;
    source_cpu(map)?;
    owner_address(map).map(drop)
}

/// For the repair: a lease that is damaged has ended, a fence that is damaged stands, and of a
/// damaged view nothing is known, so the copy joins again ([`crate::follow::rejoin`]). The names of
/// what was damaged.
pub(crate) fn repair_words(map: &Map) -> Result<Vec<&'static str>, Corruption> {
    let mut damaged = Vec::new();
    if lease(map).is_err() {
        store(map, LEASE_END, seal(0))?;
        store(map, LEASE_BOOT, seal(1))?;
        damaged.push("the owner's lease: it has ended");
    }
    if is_fenced(map).is_err() {
        store(map, FENCED, seal(1))?;
        damaged.push("the fence: writers of logged namespaces are refused until the node starts");
    }
    if map.check_clock().is_err() {
        map.clear_clock()?;
        damaged.push("the clock of expiry: it is that of the host");
    }
    let bound = [view_seen, evicting, bound_boot, bound_file];
    if bound.iter().any(|word| word(map).is_err()) {
        for at in [VIEW_SEEN, EVICTING, CLUSTER_BOOT, CLUSTER_FILE] {
            store(map, at, 0)?;
        }
        damaged.push("what the region knows of its cluster: the copy joins again");
    }
    if cluster_id(map).is_err() {
        repair_cluster_id(map)?;
        damaged.push("the cluster id");
    }
    if origin(map).is_err() {
        store(map, LOG_ORIGIN, 0)?;
        damaged.push("the origin of the log: its followers join again");
    }
    if demotion_seal(map).is_err() {
        store(map, DEMOTION_SEAL, 0)?;
        damaged.push("what a demotion knows of its log: its receipts are not decided");
    }
    if source_cpu(map).is_err() {
        store(map, LOG_SOURCE_CPU, 0)?;
        damaged.push("the processor of the source of the log: it tells it again");
    }
    if owner_address(map).is_err() {
        store(map, OWNER_ADDRESS, 0)?;
        damaged.push("the address of the owner: it is told again");
    }
    Ok(damaged)
}

/// The region is not a copy of its cluster any more, as one of another boot. True if it was.
pub(crate) fn unbind(map: &Map) -> Result<bool, Corruption> {
    let was_bound = map.word(CLUSTER_BOOT)?.load(Ordering::Acquire) != 0;
    store(map, CLUSTER_BOOT, 0)?;
    Ok(was_bound)
}

fn address_check(bytes: &[u8]) -> u64 {
    // Not 0, which stands for no address.
    xxh3_64(bytes) | 1
}

fn owner_address(map: &Map) -> Result<Option<String>, Corruption> {
    const DAMAGED: Corruption = Corruption("the address of the owner has a flipped bit");
    let load = |at| Ok::<_, Corruption>(map.word(at)?.load(Ordering::Acquire));
    let check = load(OWNER_ADDRESS)?;
    if check == 0 {
        return Ok(None);
    }
    let bytes = load(OWNER_ADDRESS + 8)?;
    if bytes > OWNER_ADDRESS_BYTES_MAX {
        return Err(DAMAGED);
    }
    let mut text = Vec::new();
    for at in (0..bytes).step_by(8) {
        text.extend_from_slice(&load(OWNER_ADDRESS + 16 + at)?.to_le_bytes());
    }
    text.truncate(guaranteed(usize::try_from(bytes).ok(), "an address has 112 bytes at most"));
    if address_check(&text) != check {
        return Err(DAMAGED);
    }
    String::from_utf8(text).map(Some).map_err(|_| DAMAGED)
}

impl Member {
    /// The highest view that this host has seen. Nothing of a lower one is applied.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn view_seen(&self) -> Result<u64, Corruption> {
        view_seen(self.map())
    }

    /// This host has seen a view: from now on nothing of a lower one is applied. Returns the
    /// highest view that it has seen. It survives a kill.
    ///
    /// # Errors
    /// `BadArgument`: a view above [`VIEW_MAX`]; `Damaged`, `Forked`.
    pub fn raise_view_seen(&self, view: u64) -> Result<u64> {
        self.check_usable()?;
        if view > VIEW_MAX {
            let detail = format!("view {view} is above the highest one, {VIEW_MAX}");
            return Err(Error::BadArgument { detail });
        }
        // A damaged word is not replaced.
        view_seen(self.map())?;
        // Sealed words are ordered as their values.
        self.map().word(VIEW_SEEN)?.fetch_max(seal(view), Ordering::AcqRel);
        crash_point!("cluster.frozen");
        self.check_not_truncated()?;
        Ok(view_seen(self.map())?)
    }

    /// The revision in which the owner has acted last, and the member that it has proposed to
    /// evict at that revision; 0 if there is none.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn evicting(&self) -> Result<Option<(u64, u16)>> {
        let word = evicting(self.map())?;
        let host = guaranteed(u16::try_from(word & 0xffff).ok(), "16 bits are left of a word");
        Ok((word != 0).then_some((word >> 16, host)))
    }

    /// Stores the revision in which the owner acts, and the member that it does not count any
    /// more, or 0. It survives a kill.
    ///
    /// # Errors
    /// `BadArgument`: a revision above 2^32 - 1; `Damaged`, `Forked`.
    pub fn set_evicting(&self, evicting: Option<(u64, u16)>) -> Result<()> {
        self.check_usable()?;
        let word = match evicting {
            None => 0,
            Some((revision, host)) => {
                if revision > u64::from(u32::MAX) {
                    let detail = format!("revision {revision} is above the highest one");
                    return Err(Error::BadArgument { detail });
                }
                seal(revision << 16 | u64::from(host))
            }
        };
        store(self.map(), EVICTING, word)?;
        crash_point!("cluster.evicting");
        self.check_not_truncated()
    }

    /// The cluster to which the region was ever bound.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn bound_cluster(&self) -> Result<Option<[u8; 16]>> {
        let [one, other] = cluster_id(self.map())?;
        let id = u128::from(one) | u128::from(other) << 64;
        Ok((id != 0).then(|| id.to_le_bytes()))
    }

    /// True if this file was bound to this cluster since the machine was started: otherwise its
    /// content may be that of another moment.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_bound(&self, cluster_id: [u8; 16]) -> Result<bool> {
        let map = self.map();
        // A damaged id is that of no cluster: the copy joins again.
        if self::cluster_id(map) != Ok(id_words(cluster_id)) {
            return Ok(false);
        }
        let is_of_boot = present_boot().is_some_and(|boot| bound_boot(map) == Ok(boot));
        Ok(is_of_boot && is_bound_file(map) == Ok(true))
    }

    /// True if the region was bound as another file, so that this one is a copy of that, or if it
    /// is not known because the word is damaged.
    pub fn is_copied_file(&self) -> bool {
        is_bound_file(self.map()) != Ok(true)
    }

    /// A region that an earlier version has bound is bound to its present file, if it is bound to
    /// this cluster.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn bind_file(&self, cluster_id: [u8; 16]) -> Result<()> {
        self.check_usable()?;
        if self.is_bound(cluster_id)? && bound_file(self.map())? == 0 {
            store(self.map(), CLUSTER_FILE, seal(self.map().file_identity()))?;
        }
        self.check_not_truncated()
    }

    /// The content of the region, in this file, is that of a copy of this cluster from now on. Its
    /// host has no lease until it is told one. A kill in between leaves a region that is not bound,
    /// but one that is bound stays so.
    ///
    /// # Errors
    /// `System`: the kernel does not tell which boot this is; `Damaged`, `Forked`.
    pub fn bind(&self, cluster_id: [u8; 16]) -> Result<()> {
        self.check_usable()?;
        let Some(boot) = present_boot() else { return Err(no_boot()) };
        let map = self.map();
        if lease(map)?.0 == 0 {
            // Before the region is bound: that a host has had no lease does not make it the owner.
            store(map, LEASE_END, seal(0))?;
            store(map, LEASE_BOOT, seal(boot))?;
        }
        if self.is_bound(cluster_id)? && bound_file(map)? != 0 {
            return self.check_not_truncated();
        }
        store(map, CLUSTER_BOOT, 0)?;
        store_cluster_id(map, id_words(cluster_id))?;
        store(map, CLUSTER_FILE, seal(map.file_identity()))?;
        store(map, CLUSTER_BOOT, seal(boot))?;
        self.check_not_truncated()?;
        debug_assert!(is_bound_file(map) == Ok(true), "the file that was bound is the mapped one");
        Ok(())
    }

    /// The region is no copy of its cluster any more, as one of another boot.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn unbind(&self) -> Result<()> {
        self.check_usable()?;
        unbind(self.map())?;
        self.check_not_truncated()
    }

    /// True while writers of logged namespaces are refused. Cost: one load.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn is_fenced(&self) -> Result<bool, Corruption> {
        is_fenced(self.map())
    }

    /// True if this member's writes of logged namespaces are refused: G2, with the locks of the
    /// write held. What a follower applies is admitted: its source has committed it.
    ///
    /// A node that was killed does not refuse them when its lease ends. So a session that commits
    /// looks at the end of the lease too, again and again: at each commit it would cost as much as
    /// the clock.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub fn is_fenced_off(&self) -> Result<bool, Corruption> {
        if self.is_fenced()? {
            return Ok(!self.is_follower.get());
        }
        Ok(self.log.lease_looked_ms.get() == 0 && self.is_lease_over())
    }

    /// As [`Member::is_fenced_off`], with a look at the end of the lease: for what is rare, such as
    /// changes of namespaces.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn is_fenced_off_now(&self) -> Result<bool, Corruption> {
        self.log.lease_looked_ms.set(0);
        self.is_fenced_off()
    }

    /// A logged commit judges by this time: in a while, the next one looks at the lease.
    #[inline]
    pub(crate) fn note_commit_time(&self, now_ms: u64) {
        if now_ms.abs_diff(self.log.lease_looked_ms.get()) > LEASE_LOOK_MS {
            self.log.lease_looked_ms.set(0);
        }
    }

    /// True if the host was told a lease, which has ended. Without one the fence alone says what is
    /// refused. The same holds if the words are damaged.
    #[cold]
    fn is_lease_over(&self) -> bool {
        // A container may show another boot id. After a reboot the clock is before the end until
        // the node has started, and refuses writers itself.
        let is_over = lease(self.map())
            .is_ok_and(|(_, end)| end != 0 && lease_clock() >= Duration::from_micros(end));
        let is_over = is_over && !self.is_follower.get();
        self.log.lease_looked_ms.set(if is_over { 0 } else { now_ms_coarse() });
        is_over
    }

    /// True while this member applies the log of another region.
    #[inline]
    pub const fn is_follower(&self) -> bool {
        self.is_follower.get()
    }

    /// Says whether this member applies the log of another region. It has the follower's lock.
    pub fn set_follower(&self, is_follower: bool) {
        self.is_follower.set(is_follower);
        // Another process may have followed meanwhile.
        self.log.follow_place.set(None);
    }

    /// Refuses writers of logged namespaces from now on, or admits them again. Writers that have
    /// checked that under their locks end their commit.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn set_fenced(&self, is_fenced: bool) -> Result<()> {
        self.check_usable()?;
        store(self.map(), FENCED, seal(is_fenced.into()))?;
        crash_point!("cluster.fenced");
        self.check_not_truncated()
    }

    /// The host owns the region until this time of [`lease_clock`], at the longest until it is
    /// said again. One process at a time says so.
    ///
    /// # Errors
    /// `System`: the kernel does not tell which boot this is, so no lease is possible; `Damaged`,
    /// `Forked`.
    pub fn set_lease_end(&self, until: Duration) -> Result<()> {
        self.check_usable()?;
        let Some(boot) = present_boot() else { return Err(no_boot()) };
        let map = self.map();
        if map.word(LEASE_BOOT)?.load(Ordering::Acquire) != seal(boot) {
            store(map, LEASE_END, seal(0))?; // O1
            crash_point!("cluster.lease_ended");
            store(map, LEASE_BOOT, seal(boot))?; // O2
        }
        // A time that the word cannot hold is cut: the lease ends earlier, and never later.
        let micros = u64::try_from(until.as_micros()).unwrap_or(0);
        store(map, LEASE_END, seal(micros & VIEW_MAX))?; // O3
        self.check_not_truncated()
    }

    /// The end of the lease by the clock of this boot, which may have passed. Zero: there is none.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn lease_end(&self) -> Result<Duration> {
        let (boot, end) = lease(self.map())?;
        let is_present = present_boot() == Some(boot);
        Ok(if is_present { Duration::from_micros(end) } else { Duration::ZERO })
    }

    /// The region belongs to no cluster any more.
    ///
    /// # Errors
    /// `Damaged`, `Forked`.
    pub fn end_leases(&self) -> Result<()> {
        self.check_usable()?;
        unbind(self.map())?;
        store(self.map(), LEASE_END, 0)?;
        store(self.map(), LEASE_BOOT, 0)?;
        self.check_not_truncated()
    }

    /// Whether this host owns the region. Output that rests on a read may leave the host only if
    /// the lease is held after the read. Cost: three loads and the clock.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn owner_lease(&self) -> Result<OwnerLease> {
        let (boot, end) = lease(self.map())?;
        if boot == 0 {
            // An earlier version has bound the region, and its host has had no lease since.
            let is_bound = bound_boot(self.map())? != 0;
            return Ok(if is_bound { OwnerLease::Expired } else { OwnerLease::Unclustered });
        }
        let until = Duration::from_micros(end);
        // A copy of the file has what the file said of an earlier moment.
        let is_told = present_boot() == Some(boot) && is_bound_file(self.map())?;
        let is_held = is_told && lease_clock() < until;
        Ok(if is_held { OwnerLease::Held { until } } else { OwnerLease::Expired })
    }

    /// The address of the host that owns a followed region, if it is known.
    ///
    /// # Errors
    /// `Damaged`.
    pub fn owner_address(&self) -> Result<Option<String>> {
        Ok(owner_address(self.map())?)
    }

    /// Stores where the owner of the region is. A kill in between leaves none.
    ///
    /// # Errors
    /// `BadArgument`: a text of more than 112 bytes; `Damaged`, `Forked`.
    pub fn set_owner_address(&self, address: Option<&str>) -> Result<()> {
        self.check_usable()?;
        let map = self.map();
        let bytes = address.unwrap_or_default().as_bytes();
        if bytes.len() as u64 > OWNER_ADDRESS_BYTES_MAX {
            let detail = format!(
                "the address {:?} has {} bytes, and the most are {OWNER_ADDRESS_BYTES_MAX}",
                address.unwrap_or_default(),
                bytes.len()
            );
            return Err(Error::BadArgument { detail });
        }
        store(map, OWNER_ADDRESS, 0)?;
        if !bytes.is_empty() {
            for (at, chunk) in (OWNER_ADDRESS + 16..).step_by(8).zip(bytes.chunks(8)) {
                let mut word = [0; 8];
                for (to, from) in word.iter_mut().zip(chunk) {
                    *to = *from;
                }
                store(map, at, u64::from_le_bytes(word))?;
            }
            store(map, OWNER_ADDRESS + 8, bytes.len() as u64)?;
            store(map, OWNER_ADDRESS, address_check(bytes))?;
        }
        self.check_not_truncated()
    }
}
