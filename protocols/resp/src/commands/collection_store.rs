//! Writes large sets and hashes in slices between which other clients are served. The elements are
//! collected and encoded outside of any transaction; one transaction at the end checks that the
//! records that were read are unchanged, and writes the result.

use super::collection_read::{
    CollectionKey, CollectionRead, DIRECT_MAX, ElementSink, ReadProgress, Selection, SetOperation,
    members,
};
use crate::command_context::{CommandContext, CommandTxn, change_alone};
use crate::dump_payload::{DumpError, read_elements};
use crate::records::{
    ChangeError, KeyedRecords, RecordRef, ResolvedKey, RetainedMetadata, put_set,
};
use crate::reply::ReplyWriter;
use crate::reply::error_reply::{CommandResult, ErrorReply};
use crate::server::RespServer;
use crate::sliced_task::{SlicedTask, TaskProgress};
use nearstate_model::Error;
use nearstate_model::limits::KEY_BYTES_MAX;
use nearstate_node::executor::is_due;
use nearstate_store::{CollectionBuilder, Form, Kind};

/// Elements of a payload in a slice.
const SLICE_ELEMENTS: usize = 256;

/// Encodings between two checks of the clock.
const ENCODINGS_PER_PART: usize = 4;

/// A command that stores a copy of a record or the result of an operation on sets.
#[derive(Clone, Debug)]
pub(super) struct StoreCommand {
    /// The keys that are read, as clients name them.
    pub(super) sources: Vec<Vec<u8>>,
    pub(super) target: Vec<u8>,
    pub(super) action: StoreAction,
}

/// What is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreAction {
    /// The result of an operation on sets. The reply is the number of its members.
    Operation(SetOperation),
    /// The record of the only source.
    Copy { is_replacing: bool },
    /// The record of the only source, which is deleted. With `is_free` the target must not exist.
    Rename { is_free: bool },
}

impl StoreAction {
    fn write_reply(self, stored: usize, reply: &mut ReplyWriter<'_>) {
        match self {
            Self::Operation(_) | Self::Copy { .. } | Self::Rename { is_free: true } => {
                reply.count(stored);
            }
            Self::Rename { is_free: false } => reply.ok(),
        }
    }
}

/// Checks that the namespace of a target accepts a record of a form.
fn check_target(
    ResolvedKey { namespace, key }: ResolvedKey<'_>,
    form: Form,
) -> Result<(), ChangeError> {
    let may_be = match (namespace.kind(), form) {
        (Kind::Mixed, _) | (Kind::Value, Form::Value) | (Kind::Blocks, Form::Blocks) => true,
        (Kind::Value | Kind::Blocks | Kind::Counters, _) => false,
    };
    if !may_be {
        return Err(ErrorReply::WRONG_TYPE.into());
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyTooLarge { bytes: key.len() }.into());
    }
    Ok(())
}

impl StoreCommand {
    /// Runs the command and writes its reply, in slices if its result can be large.
    pub(super) fn begin(
        self,
        ctx: &mut CommandContext<'_>,
        reply: &mut ReplyWriter<'_>,
    ) -> CommandResult {
        if let Some(form) = self.long_form(ctx)? {
            let task = StoreTask::new(ctx.records, self, form)?;
            return ctx.begin(task, reply);
        }
        let ctx = &*ctx;
        let stored = ctx.change(|change| self.run(change, None, &|| ctx.check_deadline()))?;
        self.action.write_reply(stored.unwrap_or_default(), reply);
        Ok(())
    }

    /// The form of the sources, if they are so large that the command runs in slices.
    fn long_form(&self, ctx: &CommandContext<'_>) -> Result<Option<Form>, ErrorReply> {
        if ctx.txn.is_some() {
            return Ok(None);
        }
        let (mut all, mut form) = (0, None);
        for key in &self.sources {
            let Some(resolved) = ctx.records.resolve(key)? else { continue };
            let found = ctx.session().get(resolved.namespace, resolved.key)?.map(RecordRef);
            let Some(found) = found else { continue };
            form = Some(found.record_type());
            all += match (self.action, found.record_type()) {
                (StoreAction::Operation(_), Form::Value | Form::Blocks) => return Ok(None),
                (_, Form::Value) => 0,
                (_, Form::Set | Form::Blocks) => found.elements()?,
            };
        }
        Ok(form.filter(|_| all > DIRECT_MAX))
    }

    /// Runs the command in a transaction. Returns what is stored: the number of members, or 1, or 0
    /// if a condition does not hold. All checks come first: between MULTI and EXEC nothing is
    /// undone.
    ///
    /// `built` is the result, if it was built from the records of these versions; `None` is
    /// returned if they have changed. `check` may end an operation on sets.
    pub(super) fn run(
        &self,
        change: &CommandTxn<'_, '_>,
        built: Option<(&CollectionRead, &CollectionBuilder)>,
        check: &dyn Fn() -> CommandResult,
    ) -> Result<Option<usize>, ChangeError> {
        let found = self.sources.iter().map(|key| change.read(key));
        let found = found.collect::<Result<Vec<_>, ChangeError>>()?;
        if built.is_some_and(|(read, _)| !read.is_current(&found)) {
            return Ok(None);
        }
        let built = built.map(|(_, built)| built);
        let stored = match self.action {
            StoreAction::Operation(operation) => {
                let result = match built {
                    Some(_) => Vec::new(),
                    None => result_of(operation, &found, check)?,
                };
                self.store(change, &result, built)?
            }
            StoreAction::Copy { is_replacing } => {
                let Some(Some(found)) = found.first() else { return Ok(Some(0)) };
                self.copy(change, found, built, !is_replacing)?
            }
            StoreAction::Rename { is_free } => {
                let (Some(source), Some(Some(found))) = (self.sources.first(), found.first())
                else {
                    return Err(ErrorReply::NO_KEY.into());
                };
                if *source == self.target {
                    return Ok(Some(0));
                }
                let stored = self.copy(change, found, built, is_free)?;
                if stored > 0 {
                    change.delete(source)?;
                }
                stored
            }
        };
        Ok(Some(stored))
    }

    /// Writes the result of an operation on sets.
    fn store(
        &self,
        change: &CommandTxn<'_, '_>,
        result: &[&[u8]],
        built: Option<&CollectionBuilder>,
    ) -> Result<usize, ChangeError> {
        let count = built.map_or(result.len(), CollectionBuilder::len);
        if count == 0 {
            change.delete(&self.target)?;
            return Ok(0);
        }
        let bytes = result.iter().map(|member| member.len()).max().unwrap_or_default();
        let target = change.resolved(&self.target, bytes)?;
        check_target(target, Form::Set)?;
        let kept = RetainedMetadata::default();
        match built {
            Some(built) => {
                change.txn.put_built(target.namespace, target.key, built, kept.metadata(&[]))?;
            }
            None => put_set(change.txn, target, result, &kept)?,
        }
        Ok(count)
    }

    /// Writes value, expiration time and tags of a record to the target. 0 if it must not exist and
    /// does.
    fn copy(
        &self,
        change: &CommandTxn<'_, '_>,
        found: &RecordRef<'_>,
        built: Option<&CollectionBuilder>,
        is_free: bool,
    ) -> Result<usize, ChangeError> {
        let target = change.resolved(&self.target, 0)?;
        if is_free && change.read_at(target)?.is_some() {
            return Ok(0);
        }
        check_target(target, found.record_type())?;
        let kept = RetainedMetadata::of(found);
        match built {
            Some(built) => {
                let tags = kept.tags();
                let metadata = kept.metadata(&tags);
                change.txn.put_built(target.namespace, target.key, built, metadata)?;
            }
            None => found.put_copy(change.txn, target, &kept)?,
        }
        Ok(1)
    }
}

/// The members of the result of an operation on sets.
fn result_of<'f>(
    operation: SetOperation,
    found: &'f [Option<RecordRef<'_>>],
    check: &dyn Fn() -> CommandResult,
) -> Result<Vec<&'f [u8]>, ErrorReply> {
    let sets = found.iter().map(|found| members(found.as_ref()));
    let sets = sets.collect::<Result<Vec<_>, ErrorReply>>()?;
    let mut result = Vec::new();
    operation.each(&sets, check, |member| {
        result.push(member);
        true
    })?;
    Ok(result)
}

/// Elements for a collection that is built.
#[derive(Debug)]
struct BuilderSink {
    form: Form,
    built: Option<CollectionBuilder>,
    /// A source is of another form now.
    is_other_form: bool,
}

impl ElementSink for BuilderSink {
    fn begin(
        &mut self,
        records: &KeyedRecords,
        found: &[Option<RecordRef<'_>>],
    ) -> Result<(), ErrorReply> {
        let mut all = found.iter().flatten();
        self.is_other_form = all.any(|record| record.record_type() != self.form);
        if self.is_other_form {
            return Err(ErrorReply::WRONG_TYPE);
        }
        self.built = Some(records.session().collection_builder(self.form)?);
        Ok(())
    }

    fn push(&mut self, name: &[u8], value: &[u8]) -> Result<bool, ErrorReply> {
        if let Some(built) = &mut self.built {
            built.push(name, value)?;
        }
        Ok(true)
    }

    fn bytes(&self) -> usize {
        self.built.as_ref().map_or(0, CollectionBuilder::memory_bytes)
    }
}

/// Encodes a part of a collection. True after the last one.
fn encode_some(built: &mut CollectionBuilder) -> Result<bool, ErrorReply> {
    loop {
        for _ in 0..ENCODINGS_PER_PART {
            if built.encode_some()? {
                return Ok(true);
            }
        }
        if is_due() {
            return Ok(false);
        }
    }
}

/// The rest of a command that stores a large collection.
#[derive(Debug)]
pub(super) struct StoreTask {
    command: StoreCommand,
    read: CollectionRead,
    sink: BuilderSink,
    is_read: bool,
}

impl StoreTask {
    /// `form` is that of all sources.
    pub(super) fn new(
        records: &KeyedRecords,
        command: StoreCommand,
        form: Form,
    ) -> Result<Self, ErrorReply> {
        let keys = command.sources.iter().map(|key| CollectionKey::of(records, key));
        let keys = keys.collect::<Result<Vec<_>, ErrorReply>>()?;
        let selection = match (command.action, form) {
            (StoreAction::Operation(operation), _) => Selection::Members(operation),
            (_, Form::Set) => Selection::Members(SetOperation::Union),
            (_, Form::Blocks | Form::Value) => Selection::Fields,
        };
        let sink = BuilderSink { form, built: None, is_other_form: false };
        Ok(Self { command, read: CollectionRead::new(selection, keys), sink, is_read: false })
    }

    /// Runs the command in one piece.
    fn run_whole(
        &self,
        records: &KeyedRecords,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        let stored = change_alone(records, |change| self.command.run(change, None, &|| Ok(())))?;
        self.command.action.write_reply(stored.unwrap_or_default(), reply);
        Ok(TaskProgress::Done)
    }
}

impl SlicedTask for StoreTask {
    fn step(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        if self.read.is_whole() {
            return self.run_whole(records, reply);
        }
        if !self.is_read {
            match self.read.step(records, &mut self.sink) {
                Err(_) if self.sink.is_other_form => return self.run_whole(records, reply),
                progress => self.is_read = progress? == ReadProgress::Done,
            }
            return Ok(TaskProgress::More);
        }
        let Some(built) = &mut self.sink.built else { return self.run_whole(records, reply) };
        if !encode_some(built)? {
            return Ok(TaskProgress::More);
        }
        let (command, read) = (&self.command, &self.read);
        let built = Some((read, &*built));
        let stored = change_alone(records, |change| command.run(change, built, &|| Ok(())))?;
        if let Some(stored) = stored {
            command.action.write_reply(stored, reply);
            return Ok(TaskProgress::Done);
        }
        self.read.restart();
        self.is_read = false;
        Ok(TaskProgress::More)
    }

    fn memory_bytes(&self) -> usize {
        let built = self.sink.bytes();
        let keys = self.command.sources.iter().map(Vec::len).sum::<usize>();
        built + self.read.memory_bytes() + keys + self.command.target.len()
    }
}

/// The rest of `RESTORE` of a large collection.
#[derive(Debug)]
pub(super) struct RestoreTask {
    pub(super) key: Vec<u8>,
    pub(super) payload: Vec<u8>,
    pub(super) form: Form,
    /// Where the next element begins, and how many are left.
    pub(super) at: usize,
    pub(super) left: usize,
    pub(super) kept: RetainedMetadata,
    pub(super) is_replacing: bool,
    pub(super) built: CollectionBuilder,
    /// The number of elements in the payload.
    pub(super) elements: usize,
}

impl RestoreTask {
    /// Checks what the whole payload must fulfil.
    fn check(&self) -> Result<(), ErrorReply> {
        let is_whole = self.at + size_of::<u64>() == self.payload.len();
        let is_unique = self.form != Form::Blocks || self.built.len() == self.elements;
        if is_whole && is_unique { Ok(()) } else { Err(DumpError::Format.into()) }
    }
}

impl SlicedTask for RestoreTask {
    fn step(
        &mut self,
        records: &KeyedRecords,
        _: &RespServer,
        reply: &mut ReplyWriter<'_>,
    ) -> Result<TaskProgress, ErrorReply> {
        if self.left > 0 {
            let (count, built) = (self.left.min(SLICE_ELEMENTS), &mut self.built);
            let push = |name: &[u8], value: &[u8]| built.push(name, value).map_err(Into::into);
            self.at = read_elements::<ErrorReply>(&self.payload, self.form, self.at, count, push)?;
            self.left -= count;
            return Ok(TaskProgress::More);
        }
        if !encode_some(&mut self.built)? {
            return Ok(TaskProgress::More);
        }
        self.check()?;
        change_alone(records, |change| {
            if !self.is_replacing && change.read(&self.key)?.is_some() {
                return Err(ErrorReply::BUSY_KEY.into());
            }
            let target = change.resolved(&self.key, 0)?;
            check_target(target, self.form)?;
            let tags = self.kept.tags();
            let metadata = self.kept.metadata(&tags);
            Ok(change.txn.put_built(target.namespace, target.key, &self.built, metadata)?)
        })?;
        reply.ok();
        Ok(TaskProgress::Done)
    }

    fn memory_bytes(&self) -> usize {
        self.key.len() + self.payload.len() + self.built.memory_bytes()
    }
}
