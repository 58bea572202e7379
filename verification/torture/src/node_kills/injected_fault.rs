//! Faults that are planted in the run itself: its judge must find each of them.

/// A fault of the run itself, which its judge must find.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InjectedFault {
    /// None.
    #[default]
    None,
    /// A client takes each request for acknowledged as soon as it is sent, as if the node answered
    /// before it commits.
    AnswerBeforeCommit,
    /// A client sends the requests of a transaction without MULTI and EXEC, as if the node
    /// committed them one by one.
    SplitTransaction,
}
