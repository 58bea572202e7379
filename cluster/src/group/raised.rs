//! A membership that is older than regions are: it was created anew because its directories were
//! lost, or restored from an older copy. What was decided since is not known, so no rule finds an
//! owner: neither reports, because it is not known whose copies counted, nor a return, because
//! another host may have owned the partition. An operator does, with `AcceptLoss` or `ForceNew`.

use super::{Applied, CommandRefusal as No, GroupPhase, GroupState};
use crate::id::{Revision, ViewNumber};
use crate::limits::{RAISED_REVISION_MAX, RAISED_VIEW_MAX, RAISED_VIEW_STEP};
use std::collections::{BTreeMap, BTreeSet};

impl GroupState {
    /// The view and the revision are above all that regions have acted on, so their hosts wait no
    /// longer, and give no lease to an owner of what was before.
    pub(super) fn raise_view(
        &mut self,
        view: ViewNumber,
        revision: Revision,
    ) -> Result<Applied, No> {
        if view < self.view || view.0 > RAISED_VIEW_MAX - RAISED_VIEW_STEP {
            return Err(No::OtherView);
        }
        if revision.0 > RAISED_REVISION_MAX {
            return Err(No::OtherRevision);
        }
        self.view = ViewNumber(view.0 + RAISED_VIEW_STEP);
        self.revision = self.revision.max(revision).next();
        // No report counts.
        self.full = BTreeSet::from([self.owner]);
        self.leaving.clear();
        self.preferred = None;
        // No region has this origin: no host has been in a view that is so much later.
        self.origin = self.view;
        self.phase = GroupPhase::Sealing { reports: BTreeMap::new() };
        Ok(Applied::ViewRaised(view))
    }
}
