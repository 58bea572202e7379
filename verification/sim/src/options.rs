//! What a run simulates. Everything else follows from the seed.

use nearstate_cluster::{CopyMissingPolicy, Switch};

/// Which faults a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    /// None.
    Quiet,
    /// Delay, loss, duplication, reordering, cuts, kills, pauses; no region is lost.
    NoLoss,
    /// The same, and logs that have forgotten what members that are not full lack: these join.
    ForgetfulLogs,
    /// Delay, loss, duplication, reordering, cuts, kills, pauses and lost regions.
    All,
    /// The same without lost regions; but processes of owners end, and start with an older copy of
    /// the region's file.
    OlderOwners,
    /// The same with processes of members.
    OlderMembers,
    /// The host of the first owner is lost for ever, once everything is replicated.
    OwnerLost,
    /// Nothing reaches the first owner any more but the commands of consensus.
    OwnerDeaf,
    /// The two hosts are cut off from each other. When the copy of one suffices, that one is lost
    /// for ever, and an operator gives the partition to the other.
    DegradedOwnerLost,
    /// The same, but the owner is only cut off from everything for a while.
    DegradedOwnerCut,
    /// The same, but the owner lives: the other host is cut off, and its operator errs.
    DegradedOwnerLives,
}

/// What a run simulates.
#[derive(Debug, Clone)]
pub struct SimulationOptions {
    /// Copies (RF). `None`: 2 to 5, by the seed.
    pub copies: Option<u8>,
    /// Acknowledgements (n). `None`: 2 to RF, by the seed.
    pub acknowledgements: Option<u8>,
    /// Milliseconds without the other copy after which one of two suffices. `None`: never.
    pub degrade_after_ms: Option<u32>,
    /// Which faults.
    pub faults: Faults,
    /// Operators add hosts to the group and remove them, during the faults.
    pub changes_group: bool,
    /// Operators drain the owner, during the faults.
    pub drains: bool,
    /// Milliseconds with faults.
    pub fault_ms: u64,
    /// Rules that do not hold.
    pub off: Vec<Switch>,
    /// Keep the last lines of what happened, for a report.
    pub keeps_log: bool,
}

impl SimulationOptions {
    /// All faults, any group, all rules.
    pub fn all() -> Self {
        Self {
            copies: None,
            acknowledgements: None,
            degrade_after_ms: None,
            faults: Faults::All,
            changes_group: false,
            drains: false,
            fault_ms: 12_000,
            off: Vec::new(),
            keeps_log: false,
        }
    }

    /// The same without this rule.
    #[must_use]
    pub fn without(mut self, switch: Switch) -> Self {
        self.off.push(switch);
        self
    }

    /// The same with another kind of faults.
    #[must_use]
    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// The same with groups of this size.
    #[must_use]
    pub fn with_group(mut self, copies: u8, acknowledgements: u8) -> Self {
        self.copies = Some(copies);
        self.acknowledgements = Some(acknowledgements);
        self
    }

    /// The same with two more hosts, and operators that change the group.
    #[must_use]
    pub fn with_group_changes(mut self) -> Self {
        self.changes_group = true;
        self
    }

    /// The same, and operators drain the owner, also to a host that they name.
    #[must_use]
    pub fn with_drains(mut self) -> Self {
        self.drains = true;
        self
    }

    /// Two hosts, of which one suffices after this time. The witness is the consensus.
    #[must_use]
    pub fn with_degradation(mut self, after_ms: u32) -> Self {
        self.degrade_after_ms = Some(after_ms);
        self.with_group(2, 2)
    }

    /// What an owner does while a copy is missing.
    pub(crate) fn policy(&self) -> CopyMissingPolicy {
        self.degrade_after_ms
            .map_or(CopyMissingPolicy::Stop, |after_ms| CopyMissingPolicy::Degrade { after_ms })
    }

    /// The same, and the report says what happened.
    #[must_use]
    pub fn with_log(mut self) -> Self {
        self.keeps_log = true;
        self
    }

    /// Are regions lost, so that an operator may be needed?
    pub(crate) const fn loses_regions(&self) -> bool {
        matches!(self.faults, Faults::All | Faults::OlderOwners | Faults::OlderMembers)
    }

    /// Does the rule not hold?
    pub(crate) fn is_off(&self, switch: Switch) -> bool {
        self.off.contains(&switch)
    }
}
