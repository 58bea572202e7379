//! The operations of the data repository and of timers.

mod timers;
mod search;
mod blocks;
mod subscriptions;
mod records;
mod schemas;

use crate::operation_context::OperationContext;
use crate::reply::Reply;
use crate::table::NudsfOperation;

/// Executes the operation of a request.
pub(crate) async fn execute(context: &OperationContext<'_>) -> Reply {
    let done = match context.path.spec.operation {
        NudsfOperation::SearchRecord => search::search(context).await,
        NudsfOperation::BulkDeleteRecords => search::delete(context).await,
        NudsfOperation::GetRecord => records::get(context),
        NudsfOperation::CreateOrModifyRecord => records::put(context).await,
        NudsfOperation::PatchRecord => records::patch(context).await,
        NudsfOperation::DeleteRecord => records::delete(context).await,
        NudsfOperation::GetMeta => records::get_meta(context),
        NudsfOperation::UpdateMeta => records::patch_meta(context).await,
        NudsfOperation::GetBlockList => blocks::list(context),
        NudsfOperation::GetBlock => blocks::get(context),
        NudsfOperation::CreateOrModifyBlock => blocks::put(context).await,
        NudsfOperation::DeleteBlock => blocks::delete(context).await,
        NudsfOperation::GetNotificationSubscriptions => subscriptions::list(context).await,
        NudsfOperation::GetNotificationSubscription => subscriptions::get(context),
        NudsfOperation::CreateAndUpdateNotificationSubscription => {
            subscriptions::put(context).await
        }
        NudsfOperation::UpdateNotificationSubscription => subscriptions::patch(context).await,
        NudsfOperation::DeleteNotificationSubscription => subscriptions::delete(context).await,
        NudsfOperation::GetMetaSchema => schemas::get(context),
        NudsfOperation::CreateOrModifyMetaSchema => schemas::put(context).await,
        NudsfOperation::DeleteMetaSchema => schemas::delete(context).await,
        NudsfOperation::SearchTimer => timers::search(context).await,
        NudsfOperation::DeleteTimers => timers::delete_matching(context).await,
        NudsfOperation::CreateOrModifyTimer => timers::put(context).await,
        NudsfOperation::UpdateTimer => timers::patch(context).await,
        NudsfOperation::DeleteTimer => timers::delete(context).await,
        NudsfOperation::GetTimer => timers::get(context),
    };
    done.unwrap_or_else(|refusal| refusal)
}
