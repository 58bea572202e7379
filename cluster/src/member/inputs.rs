//! What a member learns of connections.

use super::PartitionMember;
use crate::activity::MemberActivity;
use crate::effect::{Effects, HostEffect};
use crate::id::{HostId, Monotonic, ViewNumber};
use crate::input::{ConnectionNumber, FollowerAcknowledgement, OwnerMessage};
use crate::switches::Switch;

impl PartitionMember {
    pub(crate) fn connected(
        &mut self,
        now: Monotonic,
        (host, view, connection): (HostId, ViewNumber, ConnectionNumber),
    ) {
        if let MemberActivity::Serving(serving, owner) = &mut self.activity
            && view == *serving
        {
            owner.connected(now, host, connection);
        }
    }

    pub(crate) fn disconnected(&mut self, host: HostId, connection: ConnectionNumber) {
        if let MemberActivity::Serving(_, owner) = &mut self.activity {
            owner.disconnected(host, connection);
        }
    }

    pub(crate) fn behind(&mut self, host: HostId, connection: ConnectionNumber) {
        if let MemberActivity::Serving(_, owner) = &mut self.activity {
            owner.behind(host, connection);
        }
    }

    pub(crate) fn written(&mut self, view: ViewNumber, position: u64) {
        if let MemberActivity::Serving(serving, owner) = &mut self.activity
            && view == *serving
        {
            owner.written(position);
        }
    }

    pub(crate) fn acknowledged(&mut self, now: Monotonic, received: &FollowerAcknowledgement) {
        if let MemberActivity::Serving(view, owner) = &mut self.activity
            && (received.view == *view || self.switches.is_off(Switch::AcknowledgementOfView))
        {
            owner.acknowledged(now, received);
        }
    }

    pub(crate) fn position_received(
        &mut self,
        now: Monotonic,
        message: &OwnerMessage,
        effects: &mut Effects,
    ) {
        let MemberActivity::Following(view, _) = self.activity else { return };
        if message.view != view {
            return;
        }
        self.promise.received(now, message);
        let (partition, stamp) = (self.partition(), message.stamp);
        effects.push(HostEffect::Answer { partition, view, stamp });
    }

    pub(crate) fn owner_promotes(&mut self, now: Monotonic, of: ViewNumber, steps: u64) {
        if let MemberActivity::Following(view, _) = self.activity
            && of == view
        {
            self.promise.promoting(now, steps);
        }
    }

    pub(crate) fn not_undone(&mut self, view: ViewNumber) {
        self.not_undone = Some(view);
    }

    /// A member has entries of this log that the region has not: the region is an older one of this
    /// host. Only a host that counts, in the view that is served, may say so.
    pub(crate) fn ahead(&mut self, host: HostId, view: ViewNumber, effects: &mut Effects) {
        let is_serving =
            matches!(&self.activity, MemberActivity::Serving(serving, _) if *serving == view);
        let counts = host != self.me && self.group.full().contains(&host);
        if !is_serving || !counts {
            return;
        }
        self.outdated = Some(self.group.origin());
        let partition = self.partition();
        // First, so that a process that starts after a kill does not begin without it.
        effects.push(HostEffect::GiveUpRegion { partition });
        // What is read here may be older than what was replicated.
        effects.push(HostEffect::SetLease { partition, until: Monotonic::BOOT });
    }
}
