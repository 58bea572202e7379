//! The bytes of a cluster's state, for snapshots of consensus.
//!
//! All numbers are little-endian. Format u8 (4 from level 4 on; 3 at levels 2 and 3; at the first
//! one 2 if a partition is degraded, else 1), lease in ms u32, from format 3 on level u16,
//! partitions u16, and for each, in the
//! order of their numbers: partition u32; group u8 and for each host u16; acknowledgements u8;
//! view u64; revision u64; owner u16; full u8 and hosts; phase u8 (0 serving, 1 sealing), u8 and
//! the suspects, or the reporters, each followed by 48 bytes of its position; origin u64; seal u8
//! (0, 1) and 48 bytes if 1; loss u8 (0, 1), and if 1: view u64, longest and sealed as seal;
//! registered u8, and for each host u16 and process u64; from format 2 on degraded u8 (0, 1), and
//! renewed u64 if 1; from format 3 on leaving u8 and hosts; in format 4 preferred u16 (0: none).
//! Sets are in ascending order, so a state has exactly one encoding.

use crate::config::Lease;
use crate::group::{AcceptedLoss, Degraded, GroupPhase, GroupState};
use crate::id::{HostId, Monotonic, PartitionId, Revision, ViewNumber};
use crate::level::ClusterLevel;
use crate::limits::{COPIES_MAX, PARTITIONS_MAX};
use crate::position::LogPosition;
use crate::state::ClusterState;
use crate::switches::Switches;
use nearstate_model::invariant;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const FORMAT: u8 = 1;

/// The format of a state of the first level in which a partition is degraded.
const DEGRADED_FORMAT: u8 = 2;

/// The format of a state above the first level. Programs that cannot do more do not read it.
const LEVEL_FORMAT: u8 = 3;

/// The format of a state in which an operator may prefer a host.
const PREFERRED_FORMAT: u8 = 4;

/// The bytes are no state of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotError {
    /// A later program has written them.
    Format(u8),
    /// They are damaged.
    Damaged {
        /// How many bytes were read before the first one that is wrong or missing.
        at: usize,
    },
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Format(format) => write!(
                f,
                "a snapshot of the cluster's state has format {format}, and this program reads 1 \
                 to {PREFERRED_FORMAT}: start a later version on this host"
            ),
            Self::Damaged { at } => {
                write!(f, "a snapshot of the cluster's state is damaged behind byte {at}")
            }
        }
    }
}

impl std::error::Error for SnapshotError {}

impl ClusterState {
    /// The bytes of this state.
    pub fn encode(&self) -> Vec<u8> {
        let format = self.format();
        let mut bytes = vec![format];
        bytes.extend(self.lease.ms().to_le_bytes());
        if format >= LEVEL_FORMAT {
            bytes.extend(self.level.0.to_le_bytes());
        }
        let Ok(count) = u16::try_from(self.groups.len()) else {
            invariant!("at most {PARTITIONS_MAX} partitions are configured");
        };
        bytes.extend(count.to_le_bytes());
        for group in self.groups.values() {
            encode_group(group, &mut bytes);
            if format != FORMAT {
                encode_degraded(group.degraded, &mut bytes);
            }
            if format >= LEVEL_FORMAT {
                encode_hosts(group.leaving.iter(), &mut bytes);
            }
            if format >= PREFERRED_FORMAT {
                bytes.extend(group.preferred.map_or(0, |host| host.0).to_le_bytes());
            }
        }
        bytes
    }

    fn format(&self) -> u8 {
        if self.level >= ClusterLevel::HAND_OVERS {
            PREFERRED_FORMAT
        } else if self.level > ClusterLevel::FIRST {
            LEVEL_FORMAT
        } else if self.groups.values().any(|group| group.degraded.is_some()) {
            DEGRADED_FORMAT
        } else {
            FORMAT
        }
    }

    /// The state of these bytes, which may be any. At most [`PARTITIONS_MAX`] partitions.
    ///
    /// # Errors
    /// The bytes are not exactly one state that commands can lead to.
    pub fn decode(bytes: &[u8]) -> Result<Self, SnapshotError> {
        if let Some(format) = bytes.first().filter(|format| **format > PREFERRED_FORMAT) {
            return Err(SnapshotError::Format(*format));
        }
        let mut input = Input { rest: bytes };
        let state = decode_state(&mut input).filter(|_| input.rest.is_empty());
        state.ok_or(SnapshotError::Damaged { at: bytes.len() - input.rest.len() })
    }
}

fn encode_group(group: &GroupState, bytes: &mut Vec<u8>) {
    bytes.extend(group.partition.0.to_le_bytes());
    encode_hosts(group.group.iter(), bytes);
    bytes.push(group.acknowledgements);
    bytes.extend(group.view.0.to_le_bytes());
    bytes.extend(group.revision.0.to_le_bytes());
    bytes.extend(group.owner.0.to_le_bytes());
    encode_hosts(group.full.iter(), bytes);
    match &group.phase {
        GroupPhase::Serving { suspects } => {
            bytes.push(0);
            encode_hosts(suspects.iter(), bytes);
        }
        GroupPhase::Sealing { reports } => {
            bytes.extend([1, count(reports.len())]);
            for (host, held) in reports {
                bytes.extend(host.0.to_le_bytes());
                held.encode(bytes);
            }
        }
    }
    bytes.extend(group.origin.0.to_le_bytes());
    encode_position(group.seal.as_ref(), bytes);
    bytes.push(u8::from(group.loss.is_some()));
    if let Some(loss) = &group.loss {
        bytes.extend(loss.view.0.to_le_bytes());
        encode_position(loss.longest.as_ref(), bytes);
        encode_position(loss.sealed.as_ref(), bytes);
    }
    bytes.push(count(group.registered.len()));
    for (host, process) in &group.registered {
        bytes.extend(host.0.to_le_bytes());
        bytes.extend(process.to_le_bytes());
    }
}

fn encode_degraded(degraded: Option<Degraded>, bytes: &mut Vec<u8>) {
    bytes.push(u8::from(degraded.is_some()));
    if let Some(Degraded { renewed }) = degraded {
        bytes.extend(renewed.0.to_le_bytes());
    }
}

fn encode_position(position: Option<&LogPosition>, bytes: &mut Vec<u8>) {
    bytes.push(u8::from(position.is_some()));
    if let Some(position) = position {
        position.encode(bytes);
    }
}

fn encode_hosts<'a>(hosts: impl ExactSizeIterator<Item = &'a HostId>, bytes: &mut Vec<u8>) {
    bytes.push(count(hosts.len()));
    for host in hosts {
        bytes.extend(host.0.to_le_bytes());
    }
}

fn count(hosts: usize) -> u8 {
    match u8::try_from(hosts) {
        Ok(count) if hosts <= COPIES_MAX => count,
        _ => invariant!("a group has at most {COPIES_MAX} hosts, not {hosts}"),
    }
}

struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take().map(u8::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn view(&mut self) -> Option<ViewNumber> {
        self.u64().map(ViewNumber)
    }

    fn host(&mut self) -> Option<HostId> {
        self.take().map(u16::from_le_bytes).filter(|host| *host != 0).map(HostId)
    }

    #[expect(clippy::option_option, reason = "damaged bytes, or no host")]
    fn optional_host(&mut self) -> Option<Option<HostId>> {
        let host = self.take().map(u16::from_le_bytes)?;
        Some((host != 0).then_some(HostId(host)))
    }

    fn hosts(&mut self) -> Option<Vec<HostId>> {
        let count = usize::from(self.u8()?);
        if count > COPIES_MAX {
            return None;
        }
        (0..count).map(|_| self.host()).collect()
    }

    /// Hosts in ascending order, without repetition.
    fn host_set(&mut self) -> Option<BTreeSet<HostId>> {
        let hosts = self.hosts()?;
        let is_ascending = hosts.iter().zip(hosts.iter().skip(1)).all(|(a, b)| a < b);
        is_ascending.then(|| hosts.into_iter().collect())
    }

    /// Hosts in ascending order, without repetition, each with a value.
    fn map<T>(
        &mut self,
        mut value: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<BTreeMap<HostId, T>> {
        let count = usize::from(self.u8()?);
        if count > COPIES_MAX {
            return None;
        }
        let mut map = BTreeMap::new();
        for _ in 0..count {
            let (host, value) = (self.host()?, value(self)?);
            if map.keys().next_back().is_some_and(|last| *last >= host) {
                return None;
            }
            map.insert(host, value);
        }
        Some(map)
    }

    fn position(&mut self) -> Option<LogPosition> {
        let (position, rest): (_, &'a [u8]) = LogPosition::decode(self.rest)?;
        self.rest = rest;
        Some(position)
    }

    #[expect(clippy::option_option, reason = "damaged bytes, or an absent position")]
    fn optional_position(&mut self) -> Option<Option<LogPosition>> {
        if self.flag()? { self.position().map(Some) } else { Some(None) }
    }

    fn flag(&mut self) -> Option<bool> {
        self.u8().filter(|flag| *flag <= 1).map(|flag| flag == 1)
    }
}

fn decode_state(input: &mut Input<'_>) -> Option<ClusterState> {
    let format = input.u8()?;
    let lease = Lease::from_ms(input.take().map(u32::from_le_bytes)?).ok()?;
    let level = if format >= LEVEL_FORMAT {
        ClusterLevel(input.take().map(u16::from_le_bytes)?)
    } else {
        ClusterLevel::FIRST
    };
    let count = usize::from(input.take().map(u16::from_le_bytes)?);
    if count > PARTITIONS_MAX {
        return None;
    }
    let mut groups = BTreeMap::new();
    for _ in 0..count {
        let group = decode_group(format, input)?;
        if groups.keys().next_back().is_some_and(|last| *last >= group.partition) {
            return None;
        }
        groups.insert(group.partition, group);
    }
    let state = ClusterState { lease, level, groups };
    (state.format() == format).then_some(state)
}

fn decode_group(format: u8, input: &mut Input<'_>) -> Option<GroupState> {
    let partition = PartitionId(input.take().map(u32::from_le_bytes)?);
    let group = input.hosts()?;
    let acknowledgements = input.u8()?;
    let (view, revision) = (input.view()?, Revision(input.u64()?));
    let owner = input.host()?;
    let full = input.host_set()?;
    let phase = decode_phase(input)?;
    let origin = input.view()?;
    let seal = input.optional_position()?;
    let loss = if input.flag()? {
        let (view, longest, sealed) =
            (input.view()?, input.optional_position()?, input.optional_position()?);
        Some(AcceptedLoss { view, longest, sealed })
    } else {
        None
    };
    let registered = input.map(Input::u64)?;
    let degraded = if format != FORMAT && input.flag()? {
        Some(Degraded { renewed: Monotonic(input.u64()?) })
    } else {
        None
    };
    let leaving = if format >= LEVEL_FORMAT { input.host_set()? } else { BTreeSet::new() };
    let preferred = if format >= PREFERRED_FORMAT { input.optional_host()? } else { None };
    let state = GroupState {
        partition,
        group,
        acknowledgements,
        view,
        revision,
        owner,
        full,
        phase,
        origin,
        seal,
        loss,
        registered,
        degraded,
        leaving,
        preferred,
        switches: Switches::default(),
    };
    is_possible(&state).then_some(state)
}

fn decode_phase(input: &mut Input<'_>) -> Option<GroupPhase> {
    if !input.flag()? {
        return Some(GroupPhase::Serving { suspects: input.host_set()? });
    }
    let reports = input.map(Input::position)?;
    Some(GroupPhase::Sealing { reports })
}

/// What every state that commands lead to has.
fn is_possible(state: &GroupState) -> bool {
    let members: BTreeSet<_> = state.group.iter().copied().collect();
    let others: BTreeSet<HostId> = match &state.phase {
        GroupPhase::Serving { suspects } => suspects.clone(),
        GroupPhase::Sealing { reports } => reports.keys().copied().collect(),
    };
    members.len() == state.group.len()
        && others.is_subset(&members)
        && state.registered.keys().all(|host| members.contains(host))
        && state.full.is_subset(&members)
        && state.full.contains(&state.owner)
        && state.leaving.is_subset(&state.full)
        && !state.leaving.contains(&state.owner)
        && (2..=members.len()).contains(&usize::from(state.acknowledgements))
        && (ViewNumber::FIRST..=state.view).contains(&state.origin)
        && (state.degraded.is_none() || state.full.len() == 1 && state.acknowledgements == 2)
        && (!state.is_operator_needed() || state.full.len() == 1)
        && state.preferred.is_none_or(|host| {
            state.excluded().is_some() && !state.is_operator_needed() && state.can_take_over(host)
        })
}
