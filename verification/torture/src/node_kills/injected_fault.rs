//! Faults that are injected into the run itself. The run must detect each of them.

/// A fault of the run itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InjectedFault {
    /// No fault.
    #[default]
    None,
    /// A client counts each request as acknowledged when it is sent, as if the node replied before
    /// its commit.
    ReplyBeforeCommit,
    /// A client sends the requests of a transaction without MULTI and EXEC, as if the node
    /// committed them one by one.
    SplitTransaction,
}
