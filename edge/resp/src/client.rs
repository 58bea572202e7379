//! What a command is given of the client that asked.

use crate::catalogue::Catalogue;
use crate::parse::Args;
use crate::refusal::Refusal;
use crate::reply::Reply;
use std::marker::PhantomData;

/// Carries a command out and writes its one answer. After a refusal nothing that it has written
/// stands: the caller rewinds the reply and writes the refusal.
pub type Run = for<'a> fn(&mut Client<'_>, Args<'a>, &mut Reply<'_>) -> Result<(), Refusal>;

/// A row of the table.
pub type Command = crate::command::Command<Run>;

/// The client's side of a request.
#[derive(Debug)]
pub struct Client<'c> {
    /// All commands.
    pub catalogue: &'static Catalogue<Run>,
    /// What it lends comes with the commands that touch records.
    pub(crate) lent: PhantomData<&'c ()>,
}
