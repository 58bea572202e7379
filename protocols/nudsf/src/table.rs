//! The table of operations: method, resource, `OAuth2` scope, and the tests that prove each. The
//! router, the metrics and `docs/nudsf.md` use this one table.

use hyper::Method;

/// A resource of the data repository or of timers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Records,
    Record,
    Meta,
    Blocks,
    Block,
    Subscriptions,
    Subscription,
    Schema,
    Timers,
    Timer,
}

/// An operation. Its number is its row in [`OPERATIONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NudsfOperation {
    SearchRecord,
    BulkDeleteRecords,
    GetRecord,
    CreateOrModifyRecord,
    PatchRecord,
    DeleteRecord,
    GetMeta,
    UpdateMeta,
    GetBlockList,
    GetBlock,
    CreateOrModifyBlock,
    DeleteBlock,
    GetNotificationSubscriptions,
    GetNotificationSubscription,
    CreateAndUpdateNotificationSubscription,
    UpdateNotificationSubscription,
    DeleteNotificationSubscription,
    GetMetaSchema,
    CreateOrModifyMetaSchema,
    DeleteMetaSchema,
    SearchTimer,
    DeleteTimers,
    CreateOrModifyTimer,
    UpdateTimer,
    DeleteTimer,
    GetTimer,
}

/// A row of the table.
#[derive(Clone, Debug)]
pub struct OperationSpec {
    pub(crate) operation: NudsfOperation,
    /// The `operationId` of the `OpenAPI` file.
    pub id: &'static str,
    /// The method.
    pub method: Method,
    pub(crate) resource: Resource,
    /// The path below `{apiRoot}/nudsf-dr/v1/{realmId}/{storageId}`; of timers, below
    /// `{apiRoot}/nudsf-timer/v1/{realmId}/{storageId}`.
    pub path: &'static str,
    /// The `OAuth2` scope that allows this operation alone.
    pub scope: &'static str,
    /// The prefix of the names of the tests that prove it.
    pub tests: &'static str,
}

impl Resource {
    const fn path(self) -> &'static str {
        match self {
            Self::Records => "/records",
            Self::Record => "/records/{recordId}",
            Self::Meta => "/records/{recordId}/meta",
            Self::Blocks => "/records/{recordId}/blocks",
            Self::Block => "/records/{recordId}/blocks/{blockId}",
            Self::Subscriptions => "/subs-to-notify",
            Self::Subscription => "/subs-to-notify/{subscriptionId}",
            Self::Schema => "/meta-schemas/{schemaId}",
            Self::Timers => "/timers",
            Self::Timer => "/timers/{timerId}",
        }
    }
}

macro_rules! operations {
    ($($name:ident $method:ident $resource:ident $scope:literal $tests:literal,)+) => {
        /// All operations.
        pub const OPERATIONS: &[OperationSpec] = &[$(OperationSpec {
            operation: NudsfOperation::$name,
            id: stringify!($name),
            method: Method::$method,
            resource: Resource::$resource,
            path: Resource::$resource.path(),
            scope: $scope,
            tests: $tests,
        }),+];
    };
}

operations! {
    SearchRecord GET Records "nudsf-dr:record:read" "dr01",
    BulkDeleteRecords DELETE Records "nudsf-dr:record:modify" "dr02",
    GetRecord GET Record "nudsf-dr:record:read" "dr03",
    CreateOrModifyRecord PUT Record "nudsf-dr:record:create" "dr04",
    PatchRecord PATCH Record "nudsf-dr:record:modify" "dr05",
    DeleteRecord DELETE Record "nudsf-dr:record:modify" "dr06",
    GetMeta GET Meta "nudsf-dr:record-meta:read" "dr07",
    UpdateMeta PATCH Meta "nudsf-dr:record-meta:modify" "dr08",
    GetBlockList GET Blocks "nudsf-dr:block:read" "dr09",
    GetBlock GET Block "nudsf-dr:block:read" "dr10",
    CreateOrModifyBlock PUT Block "nudsf-dr:block:create" "dr11",
    DeleteBlock DELETE Block "nudsf-dr:block:modify" "dr12",
    GetNotificationSubscriptions GET Subscriptions "nudsf-dr:subscription:read" "dr13",
    GetNotificationSubscription GET Subscription "nudsf-dr:subscription:read" "dr14",
    CreateAndUpdateNotificationSubscription PUT Subscription "nudsf-dr:subscription:create" "dr15",
    UpdateNotificationSubscription PATCH Subscription "nudsf-dr:subscription:modify" "dr16",
    DeleteNotificationSubscription DELETE Subscription "nudsf-dr:subscription:modify" "dr17",
    GetMetaSchema GET Schema "nudsf-dr:meta-schema:read" "dr18",
    CreateOrModifyMetaSchema PUT Schema "nudsf-dr:meta-schema:create" "dr19",
    DeleteMetaSchema DELETE Schema "nudsf-dr:meta-schema:modify" "dr20",
    SearchTimer GET Timers "nudsf-timer:timer:read" "tm01",
    DeleteTimers DELETE Timers "nudsf-timer:timer:modify" "tm02",
    CreateOrModifyTimer PUT Timer "nudsf-timer:timer:create" "tm03",
    UpdateTimer PATCH Timer "nudsf-timer:timer:modify" "tm04",
    DeleteTimer DELETE Timer "nudsf-timer:timer:modify" "tm05",
    GetTimer GET Timer "nudsf-timer:timer:read" "tm06",
}

/// The number of operations.
pub(crate) const OPERATION_COUNT: usize = OPERATIONS.len();

/// The operation of a method and a resource.
pub(crate) fn find(method: &Method, resource: Resource) -> Option<&'static OperationSpec> {
    OPERATIONS.iter().find(|spec| spec.resource == resource && spec.method == *method)
}

/// The methods of a resource, for `Allow`.
pub(crate) fn methods(resource: Resource) -> String {
    let specs = OPERATIONS.iter().filter(|spec| spec.resource == resource);
    specs.map(|spec| spec.method.as_str()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_operation_is_its_row() {
        assert_eq!(OPERATION_COUNT, 26);
        for (row, spec) in OPERATIONS.iter().enumerate() {
            assert_eq!(spec.operation as usize, row, "{}", spec.id);
            let found = find(&spec.method, spec.resource).unwrap();
            assert_eq!(found.id, spec.id);
        }
        assert_eq!(methods(Resource::Meta), "GET, PATCH");
    }
}
