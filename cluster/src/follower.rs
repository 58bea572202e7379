//! The part of a member that follows: its promise to the owner, and when it suspects the owner.

use crate::config::Lease;
use crate::id::Monotonic;
use crate::input::OwnerMessage;
use crate::limits::{FIRST_MESSAGE_LEASES, PROMOTION_LEASES};
use crate::switches::{Switch, Switches};

/// A member's promise, and what it has heard of the owner.
///
/// An owner is *heard* when a message shows that it works: it has a lease, or it has received an
/// answer of this member within one lease. An owner whose messages arrive while it hears neither
/// this member nor enough others has lost the way back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Promise {
    lease: Lease,
    switches: Switches,
    /// Reports are not proposed before.
    until: Monotonic,
    /// When the present view began to be served, as far as this process knows.
    began: Monotonic,
    /// Until when steps of the owner's promotion count.
    promotion_until: Monotonic,
    /// The steps of the owner's promotion that it has told last.
    steps: u64,
    /// When the owner of the present view was heard last.
    heard_at: Option<Monotonic>,
    /// The last step of this process, to find its own pauses.
    stepped_at: Monotonic,
    /// This process has paused, and has taken no message of the owner since.
    has_paused: bool,
}

impl Promise {
    /// A process that starts does not know what it has promised before.
    pub(crate) fn at_start(lease: Lease, switches: Switches, now: Monotonic) -> Self {
        let is_off = switches.is_off(Switch::PromiseAtStart) || switches.is_off(Switch::Promise);
        let until = if is_off { Monotonic::BOOT } else { now.plus(lease.promise_ns()) };
        let (promotion_until, steps) = (now.plus(PROMOTION_LEASES * lease.promise_ns()), 0);
        Self {
            lease,
            switches,
            until,
            began: now,
            promotion_until,
            steps,
            heard_at: None,
            stepped_at: now,
            has_paused: false,
        }
    }

    /// A view begins to be served.
    pub(crate) fn begin(&mut self, now: Monotonic) {
        self.began = now;
        self.promotion_until = now.plus(PROMOTION_LEASES * self.lease.promise_ns());
        self.steps = 0;
        self.heard_at = None;
        self.has_paused = false;
    }

    /// The copy begins to count. An owner that has no lease is heard when it answers this member,
    /// which may be just about to: it has as long for that as for a first message.
    pub(crate) fn listen(&mut self, now: Monotonic) {
        if self.heard_at.is_none() {
            self.began = now;
        }
    }

    /// The owner of the present view is not yet done with its promotion. It has as long again for
    /// its first message if it has made a step since it has said so last. A node that has started
    /// again counts from 0.
    pub(crate) fn promoting(&mut self, now: Monotonic, steps: u64) {
        self.has_paused = false;
        if steps != self.steps && now < self.promotion_until {
            self.began = now;
        }
        self.steps = steps;
    }

    /// May the member report now?
    pub(crate) fn has_ended(&self, now: Monotonic) -> bool {
        now >= self.until
    }

    /// A position message of the present view. The member may answer it afterwards.
    pub(crate) fn received(&mut self, now: Monotonic, message: &OwnerMessage) {
        self.has_paused = false;
        if !self.switches.is_off(Switch::Promise) {
            self.until = self.until.max(now.plus(self.lease.promise_ns()));
        }
        let hears_us = message.stamp <= message.answered.plus(self.lease.promise_ns());
        if message.is_leased || hears_us || self.switches.is_off(Switch::SuspectDeafOwner) {
            self.heard_at = Some(now);
        }
    }

    /// Notices a pause of this process: messages that came meanwhile are not processed yet. A
    /// further pause excuses the owner no more before one of them is: a process that pauses again
    /// and again has had its time to take them, and a lost owner sends none.
    pub(crate) fn stepped(&mut self, now: Monotonic) {
        let pauses = now > self.stepped_at.plus(self.lease.promise_ns() / 2);
        self.stepped_at = now;
        if pauses && !self.has_paused {
            self.has_paused = true;
            self.began = now;
            self.heard_at = self.heard_at.map(|_| now);
        }
    }

    /// Has the owner of the present view been heard within a lease?
    pub(crate) fn hears_owner(&self, now: Monotonic) -> bool {
        self.heard_at.is_some_and(|at| now <= at.plus(self.lease.promise_ns()))
    }

    /// Has the owner been silent for too long?
    pub(crate) fn is_owner_silent(&self, now: Monotonic) -> bool {
        let limit = self.lease.promise_ns();
        match self.heard_at {
            Some(heard_at) => now > heard_at.plus(limit),
            None => now > self.began.plus(FIRST_MESSAGE_LEASES * limit),
        }
    }
}
