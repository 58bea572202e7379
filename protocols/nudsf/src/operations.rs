//! The operations of the data repository and of timers.

mod timers;
mod search;
mod blocks;
mod subscriptions;
mod records;
mod schemas;

use crate::call::Call;
use crate::reply::Reply;
use crate::table::NudsfOperation;

/// Executes the operation of a request.
pub(crate) async fn execute(call: &Call<'_>) -> Reply {
    let done = match call.target.spec.operation {
        NudsfOperation::SearchRecord => search::search(call).await,
        NudsfOperation::BulkDeleteRecords => search::delete(call).await,
        NudsfOperation::GetRecord => records::get(call),
        NudsfOperation::CreateOrModifyRecord => records::put(call).await,
        NudsfOperation::PatchRecord => records::patch(call).await,
        NudsfOperation::DeleteRecord => records::delete(call).await,
        NudsfOperation::GetMeta => records::get_meta(call),
        NudsfOperation::UpdateMeta => records::patch_meta(call).await,
        NudsfOperation::GetBlockList => blocks::list(call),
        NudsfOperation::GetBlock => blocks::get(call),
        NudsfOperation::CreateOrModifyBlock => blocks::put(call).await,
        NudsfOperation::DeleteBlock => blocks::delete(call).await,
        NudsfOperation::GetNotificationSubscriptions => subscriptions::list(call).await,
        NudsfOperation::GetNotificationSubscription => subscriptions::get(call),
        NudsfOperation::CreateAndUpdateNotificationSubscription => subscriptions::put(call).await,
        NudsfOperation::UpdateNotificationSubscription => subscriptions::patch(call).await,
        NudsfOperation::DeleteNotificationSubscription => subscriptions::delete(call).await,
        NudsfOperation::GetMetaSchema => schemas::get(call),
        NudsfOperation::CreateOrModifyMetaSchema => schemas::put(call).await,
        NudsfOperation::DeleteMetaSchema => schemas::delete(call).await,
        NudsfOperation::SearchTimer => timers::search(call).await,
        NudsfOperation::DeleteTimers => timers::delete_matching(call).await,
        NudsfOperation::CreateOrModifyTimer => timers::put(call).await,
        NudsfOperation::UpdateTimer => timers::patch(call).await,
        NudsfOperation::DeleteTimer => timers::delete(call).await,
        NudsfOperation::GetTimer => timers::get(call),
    };
    done.unwrap_or_else(|refusal| refusal)
}
