//! Changes of sets and hashes by element. A small collection is rewritten; of a large one, which is
//! divided into parts, the parts with the changed elements (`docs/decisions/018-collections.md`).

use std::ops::ControlFlow;

use nearstate_memory::Cell;
use nearstate_model::invariant::guaranteed;
use nearstate_model::limits::{FIELD_NAME_BYTES_MAX, VALUE_BYTES_MAX};
use nearstate_model::{Error, Result, invariant};

use crate::record::builder::CollectionBuilder;
use crate::record::collection::Collection;
use crate::record::edit::{BAD_COUNT, CollectionEdit, ElementCounts};
use crate::record::fields::{self, is_block_name};
use crate::record::members;
use crate::record::meta::split;
use crate::record::view::View;
use crate::record::{Form, Kind};
use crate::session::buffers::{BlockWrite, BufferSpan, ElementsWrite, Metadata, Write};
use crate::session::{Namespace, check_key};
use crate::txn::element_draft::{shape_of, stored_parts};
use crate::txn::element_names::{ElementChange, ElementPair, NameIndex, blocks_of, last_of_each};
use crate::txn::whole_hash::whole_bytes;
use crate::txn::write_set::WriteSet;
use crate::txn::{Txn, encode_meta};

/// A collection that replaces a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewCollection<'a> {
    pub(crate) form: Form,
    /// Its elements.
    pub(crate) pairs: &'a [ElementPair<'a>],
    /// Its encoded metadata.
    pub(crate) meta: &'a [u8],
    /// The changes that lead to it, if it replaces a collection of this form.
    pub(crate) changed: Option<&'a [ElementChange<'a>]>,
}

impl Txn<'_> {
    /// Adds members to a set, which is created if there is none; its tags and its expiry stay as
    /// they are. Returns the number of new members; duplicates count once.
    ///
    /// Cost: for each member, a copy of a part of the set. At a million members of ten bytes that
    /// is some 35 KB.
    ///
    /// # Errors
    /// `WrongKind`: the record is no set, or the namespace has none; `KeyTooLarge`,
    /// `ValueTooLarge`, `Conflict`, `TransactionTooLarge`, `Damaged`.
    pub fn add_members(
        &self,
        namespace: Namespace,
        key: &[u8],
        members: &[&[u8]],
    ) -> Result<usize> {
        let changes: Vec<ElementChange<'_>> =
            members.iter().map(|member| (*member, Some(&b""[..]))).collect();
        Ok(self.change_elements(namespace, key, Form::Set, &changes)?.added)
    }

    /// Removes members from a set. A set without members is deleted. Returns how many existed.
    ///
    /// # Errors
    /// As [`Txn::add_members`].
    pub fn remove_members(
        &self,
        namespace: Namespace,
        key: &[u8],
        members: &[&[u8]],
    ) -> Result<usize> {
        let changes: Vec<ElementChange<'_>> =
            members.iter().map(|member| (*member, None)).collect();
        Ok(self.change_elements(namespace, key, Form::Set, &changes)?.removed)
    }

    /// Sets fields of a hash, which is created if there is none; its tags and its expiry stay as
    /// they are. Returns the number of new fields. Of fields with one name, the last one counts.
    ///
    /// In a namespace of kind mixed, a name has any bytes, at most [`FIELD_NAME_BYTES_MAX`]. In one
    /// of kind blocks, fields are blocks, with their limits.
    ///
    /// # Errors
    /// As [`Txn::add_members`]; `BadName`, `TooManyBlocks`.
    ///
    /// [`FIELD_NAME_BYTES_MAX`]: nearstate_model::limits::FIELD_NAME_BYTES_MAX
    pub fn set_fields(
        &self,
        namespace: Namespace,
        key: &[u8],
        fields: &[(&[u8], &[u8])],
    ) -> Result<usize> {
        let changes: Vec<ElementChange<'_>> =
            fields.iter().map(|(name, value)| (*name, Some(*value))).collect();
        Ok(self.change_elements(namespace, key, Form::Blocks, &changes)?.added)
    }

    /// Removes fields from a hash. A hash without fields is deleted. Returns how many existed.
    ///
    /// # Errors
    /// As [`Txn::add_members`].
    pub fn remove_fields(
        &self,
        namespace: Namespace,
        key: &[u8],
        names: &[&[u8]],
    ) -> Result<usize> {
        let changes: Vec<ElementChange<'_>> = names.iter().map(|name| (*name, None)).collect();
        Ok(self.change_elements(namespace, key, Form::Blocks, &changes)?.removed)
    }

    /// Puts a hash with these fields. Replaces a record of any form.
    ///
    /// # Errors
    /// As [`Txn::set_fields`]; `BadArgument`: no fields, and as [`Txn::put_with_metadata`].
    pub fn put_fields(
        &self,
        namespace: Namespace,
        key: &[u8],
        fields: &[(&[u8], &[u8])],
        metadata: Metadata<'_>,
    ) -> Result<()> {
        check_elements(namespace, key, Form::Blocks, fields.iter().map(|(n, v)| (*n, Some(*v))))?;
        if fields.is_empty() {
            return Err(Error::BadArgument { detail: "a hash has at least one field".to_owned() });
        }
        if let Some(bytes) = whole_bytes(fields) {
            let mut set = self.set.borrow_mut();
            let hash = set.session.hash(key);
            let index = set.entry(namespace.index, hash, key)?;
            return set.put_whole(index, (fields, bytes), metadata);
        }
        let meta = encode_meta(metadata)?;
        let form = Form::Blocks;
        let new = NewCollection { form, pairs: fields, meta: &meta, changed: None };
        self.put_collection(namespace, key, &new)
    }

    /// Puts a collection.
    pub(crate) fn put_collection(
        &self,
        namespace: Namespace,
        key: &[u8],
        new: &NewCollection<'_>,
    ) -> Result<()> {
        let NewCollection { form, pairs, meta, changed } = *new;
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let index = set.entry(namespace.index, hash, key)?;
        if form == Form::Set {
            let members: Vec<&[u8]> = pairs.iter().map(|(member, _)| *member).collect();
            if members::is_flat(&members) {
                let value = members::encode(&members)?;
                set.put(index, &value, meta)?;
                set.set_form(index, Form::Set);
                return Ok(());
            }
        } else if namespace.kind != Kind::Mixed || fields::is_flat(pairs.iter().copied()) {
            let blocks = last_of_each(pairs)?;
            crate::txn::patch::check_patch(
                namespace,
                key,
                &blocks,
                crate::txn::write::Condition::Always,
            )?;
            return set.put_blocks(index, &blocks, meta);
        }
        invariant!(namespace.kind == Kind::Mixed, "a namespace without collections gets one");
        let bytes = pairs.iter().map(|(name, value)| name.len() + value.len()).sum();
        set.buffers.count_collection(bytes)?;
        let edit = CollectionEdit::anew(shape_of(form), set.session.member.seed(), pairs)?;
        let announced = changed.map(|changed| set.announced(index, changed)).transpose()?;
        let write = ElementsWrite { edit, is_anew: true, changes: Vec::new(), announced };
        set.put_elements(index, form, write, meta)
    }

    /// Puts a collection that was built in steps, all of whose elements are encoded. Replaces a
    /// record of any form.
    ///
    /// Cost: a copy of its bytes at the commit.
    ///
    /// # Errors
    /// As [`Txn::set_fields`]; `BadArgument`: it has no elements, or not all are encoded.
    pub fn put_built(
        &self,
        namespace: Namespace,
        key: &[u8],
        built: &CollectionBuilder,
        metadata: Metadata<'_>,
    ) -> Result<()> {
        let form = built.form();
        check_elements(namespace, key, form, std::iter::empty())?;
        let (parts, elements) = match built.parts() {
            Some((parts, elements)) if elements > 0 => (parts, elements),
            None | Some(_) => {
                let detail = "a collection that is put has elements, and all are encoded: push \
                              them, and call `encode_some` until it is true";
                return Err(Error::BadArgument { detail: detail.to_owned() });
            }
        };
        let meta = encode_meta(metadata)?;
        let is_small = built.len() <= fields::FLAT_FIELDS_MAX.max(members::FLAT_MEMBERS_MAX);
        if is_small || namespace.kind != Kind::Mixed {
            let pairs = built.pairs();
            check_elements(namespace, key, form, pairs.iter().map(|(n, v)| (*n, Some(*v))))?;
            let new = NewCollection { form, pairs: &pairs, meta: &meta, changed: None };
            return self.put_collection(namespace, key, &new);
        }
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let index = set.entry(namespace.index, hash, key)?;
        set.buffers.count_collection(built.bytes())?;
        let seed = set.session.member.seed();
        if seed != built.seed() {
            let detail = "the collection was built for another region".to_owned();
            return Err(Error::BadArgument { detail });
        }
        let edit = CollectionEdit::of_parts(built.shape(), seed, elements, parts.to_vec());
        let write = ElementsWrite { edit, is_anew: true, changes: Vec::new(), announced: None };
        set.put_elements(index, form, write, &meta)
    }

    /// The value of a field of a hash, as [`Txn::get`] and [`View::field`] return it, and `None` if
    /// there is no record. Of a large hash that the transaction has written this takes no memory,
    /// while each view after a change is kept until the transaction ends.
    ///
    /// # Errors
    /// As [`Txn::get`]; `WrongKind`: the record is no hash.
    ///
    /// [`View::field`]: crate::View::field
    pub fn field(&self, namespace: Namespace, key: &[u8], name: &[u8]) -> Result<Option<Vec<u8>>> {
        {
            let set = self.set.borrow();
            let hash = set.session.hash(key);
            if let Some(index) = set.find_entry(namespace.index, hash, key)
                && let ControlFlow::Break(found) = set.written_field(index, name)?
            {
                return Ok(found);
            }
        }
        let Some(view) = self.get(namespace, key)? else { return Ok(None) };
        match view.form() {
            Form::Blocks => Ok(view.field(name).map(<[u8]>::to_vec)),
            Form::Value | Form::Set => Err(other_form(view.form(), Form::Blocks)),
        }
    }

    /// Changes elements of a collection of this form.
    pub(crate) fn change_elements(
        &self,
        namespace: Namespace,
        key: &[u8],
        form: Form,
        changes: &[ElementChange<'_>],
    ) -> Result<ChangedElements> {
        check_elements(namespace, key, form, changes.iter().copied())?;
        let (hash, index) = {
            let set = self.set.borrow();
            let hash = set.session.hash(key);
            (hash, set.find_entry(namespace.index, hash, key))
        };
        let own = index.map(|index| (index, self.set.borrow().form_of_elements(index)));
        if let Some((index, Some(own_form))) = own {
            if own_form != form {
                return Err(other_form(own_form, form));
            }
            return self.set.borrow_mut().apply(index, changes);
        }
        let found = self.get(namespace, key)?;
        let has_divided = match &found {
            Some(view) if view.form() != form => return Err(other_form(view.form(), form)),
            Some(view) => view.is_divided(),
            None => false,
        };
        if !has_divided {
            return self.rewrite(namespace, key, (form, changes), found.as_ref());
        }
        drop(found);
        let mut set = self.set.borrow_mut();
        let (index, stored) = set.read(namespace.index, hash, key)?;
        set.begin_elements(index, form, stored)?;
        let done = set.apply(index, changes);
        if !matches!(&done, Ok(done) if done.has_changed) {
            // Nothing is written then.
            set.forget_elements(index);
        }
        done
    }

    /// Replaces the metadata of a divided collection.
    pub(crate) fn set_metadata_of_parts(
        &self,
        namespace: Namespace,
        key: &[u8],
        form: Form,
        metadata: Metadata<'_>,
    ) -> Result<()> {
        let mut set = self.set.borrow_mut();
        let hash = set.session.hash(key);
        let meta = encode_meta(metadata)?;
        set.buffers.check_room(meta.len())?;
        let index = set.find_entry(namespace.index, hash, key);
        let index = if let Some(index) = index.filter(|index| set.is_written(*index)) {
            index
        } else {
            let (index, stored) = set.read(namespace.index, hash, key)?;
            set.begin_elements(index, form, stored)?;
            index
        };
        set.buffers.changes += 1;
        set.set_meta(index, &meta)
    }

    /// Changes elements of a flat collection, or creates one.
    fn rewrite(
        &self,
        namespace: Namespace,
        key: &[u8],
        (form, changes): (Form, &[ElementChange<'_>]),
        found: Option<&View<'_>>,
    ) -> Result<ChangedElements> {
        let mut done = ChangedElements::default();
        let (old, meta): (Vec<ElementPair<'_>>, Vec<u8>) = match found {
            None => (Vec::new(), Vec::new()),
            Some(view) if form == Form::Set => {
                (view.members().map(|member| (member, &[][..])).collect(), view.meta_bytes()?)
            }
            Some(view) => (view.fields().collect(), view.meta_bytes()?),
        };
        // What cannot be read must not be lost by a write.
        let counted = found.map_or(0, |view| match form {
            Form::Set => view.members().len(),
            Form::Blocks | Form::Value => view.fields().len(),
        });
        let is_empty = old.is_empty() && found.is_some() && namespace.kind == Kind::Mixed;
        if counted != old.len() || is_empty {
            return Err(BAD_COUNT.into());
        }
        // In their order; a removed one is `None`.
        let mut pairs: Vec<(&[u8], Option<&[u8]>)> =
            old.iter().map(|(name, value)| (*name, Some(*value))).collect();
        let mut known = NameIndex::of(&old, changes.len());
        // Without the removals of what does not exist.
        let mut effective = Vec::with_capacity(changes.len());
        for (name, value) in changes {
            let at = known.get_or_add(name, &pairs);
            let exists = pairs.get(at).is_some_and(|(_, pair)| pair.is_some());
            if exists || value.is_some() {
                effective.push((*name, *value));
            }
            let Some((_, pair)) = pairs.get_mut(at) else {
                if value.is_some() {
                    done.added += 1;
                }
                pairs.push((name, *value));
                continue;
            };
            match (*pair, value) {
                (Some(_), Some(_)) => done.has_changed |= form == Form::Blocks,
                (None, Some(_)) => done.added += 1,
                (Some(_), None) => done.removed += 1,
                (None, None) => {}
            }
            *pair = *value;
        }
        done.has_changed |= done.added + done.removed > 0;
        if !done.has_changed {
            return Ok(done);
        }
        let pairs: Vec<(&[u8], &[u8])> =
            pairs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        if pairs.is_empty() {
            self.delete(namespace, key)?;
            return Ok(done);
        }
        let is_flat = namespace.kind != Kind::Mixed
            || fields::is_flat(pairs.iter().copied())
            || found.is_some() && fields::is_flat_only(pairs.iter().copied());
        if form == Form::Blocks && is_flat {
            // A patch copies less than a rewrite.
            let blocks = blocks_of(effective.iter().copied())?;
            self.patch(namespace, key, &blocks)?;
        } else {
            let new = NewCollection { form, pairs: &pairs, meta: &meta, changed: Some(&effective) };
            self.put_collection(namespace, key, &new)?;
        }
        Ok(done)
    }
}

/// What a change of elements has done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChangedElements {
    pub(crate) added: usize,
    pub(crate) removed: usize,
    pub(crate) has_changed: bool,
}

impl WriteSet<'_> {
    /// The form of a divided collection that the transaction changes.
    fn form_of_elements(&self, index: usize) -> Option<Form> {
        let entry = self.entry_at(index);
        matches!(entry.write, Write::Elements(_)).then_some(entry.form)
    }

    /// The value of a field of a hash that the transaction has written; `Continue` if the stored
    /// record has to be read.
    fn written_field(&self, index: usize, name: &[u8]) -> Result<ControlFlow<Option<Vec<u8>>>> {
        let entry = self.entry_at(index);
        match entry.write {
            Write::Elements(elements) if entry.form == Form::Blocks => {
                let elements = self.buffers.composed.elements(elements);
                let seen = entry.seen.filter(|_| !elements.is_anew);
                let stored = seen.map(|seen| self.session.stored(seen)).transpose()?.flatten();
                let stored = stored_parts(stored.map(|(cell, _)| cell))?;
                let found = elements.edit.collection(stored).find(name);
                Ok(ControlFlow::Break(found.map(|element| element.value.to_vec())))
            }
            Write::Patch { changes, .. } => {
                let is_named = |(known, _): &&BlockWrite| self.buffers.bytes(*known) == name;
                let changes = self.buffers.composed.patch(changes);
                let Some((_, bytes)) = changes.iter().rev().find(is_named) else {
                    return Ok(ControlFlow::Continue(()));
                };
                let value = bytes.map(|bytes| self.buffers.bytes(bytes).to_vec());
                Ok(ControlFlow::Break(value))
            }
            Write::None
            | Write::Put { .. }
            | Write::Elements(_)
            | Write::Delete
            | Write::Object { .. } => Ok(ControlFlow::Continue(())),
        }
    }

    /// The names of these changes, and of those that the transaction has made to the flat hash.
    fn announced(
        &mut self,
        index: usize,
        changed: &[ElementChange<'_>],
    ) -> Result<Vec<BufferSpan>> {
        let mut names = Vec::new();
        let entry = self.entry_at(index);
        match entry.write {
            Write::Patch { changes, .. } => {
                names.extend(self.buffers.composed.patch(changes).iter().map(|(name, _)| *name));
            }
            Write::Put { value } if entry.form == Form::Blocks => {
                names.extend(self.buffers.blocks_of_table(value).into_iter().map(|(name, _)| name));
            }
            Write::None
            | Write::Put { .. }
            | Write::Elements(_)
            | Write::Delete
            | Write::Object { .. } => {}
        }
        for (name, _) in changed {
            names.push(self.buffers.keep(name)?);
        }
        Ok(names)
    }

    fn put_elements(
        &mut self,
        index: usize,
        form: Form,
        write: ElementsWrite,
        meta: &[u8],
    ) -> Result<()> {
        // First: a refusal must leave an earlier write of the record as it is.
        let meta = self.buffers.keep(meta)?;
        self.buffers.changes += 1;
        let write = self.buffers.composed.add_elements(write);
        let entry = self.entry_mut(index);
        entry.write = write;
        entry.form = form;
        entry.meta = Some(meta);
        Ok(())
    }

    /// Begins changes of a stored collection, which was read. Its metadata stays.
    pub(crate) fn begin_elements(
        &mut self,
        index: usize,
        form: Form,
        stored: crate::txn::write_set::Stored<'_>,
    ) -> Result<()> {
        let Some((cell, bytes)) = stored else { invariant!("a collection was read") };
        let value = split(cell, bytes)?.0;
        let collection = Collection::stored(shape_of(form), cell, value)?;
        if !collection.has_its_count() {
            return Err(BAD_COUNT.into());
        }
        let edit = CollectionEdit::of(&collection);
        invariant!(!self.is_written(index), "a stored collection is not written yet");
        let (changes, announced) = (Vec::new(), None);
        let write = ElementsWrite { edit, is_anew: false, changes, announced };
        let write = self.buffers.composed.add_elements(write);
        let entry = self.entry_mut(index);
        entry.write = write;
        entry.form = form;
        Ok(())
    }

    fn forget_elements(&mut self, index: usize) {
        if let Write::Elements(write) = std::mem::take(&mut self.entry_mut(index).write) {
            self.buffers.composed.drop_elements(write);
        }
    }

    /// Applies changes to the divided collection of an entry.
    fn apply(&mut self, index: usize, changes: &[ElementChange<'_>]) -> Result<ChangedElements> {
        let session = self.session;
        // Counted first: an error may leave a part of the changes.
        self.buffers.changes += 1;
        let seen = self.entry_at(index).seen;
        let stored = seen.map(|seen| session.stored(seen)).transpose()?.flatten();
        let Write::Elements(write) = self.entry_at(index).write else {
            invariant!("entry {index} is a divided collection")
        };
        let mut elements = self.buffers.composed.take_elements(write);
        let cell = stored.map(|(cell, _)| cell).filter(|_| !elements.is_anew);
        let done = self.apply_all(&mut elements, cell, changes);
        let (is_empty, has_parts) = (elements.edit.elements == 0, elements.edit.parts > 0);
        self.buffers.composed.give_elements(write, elements);
        if is_empty && has_parts {
            return Err(BAD_COUNT.into());
        }
        if is_empty {
            self.delete(index);
        }
        done
    }

    fn apply_all(
        &mut self,
        elements: &mut ElementsWrite,
        cell: Option<Cell<'_>>,
        changes: &[ElementChange<'_>],
    ) -> Result<ChangedElements> {
        let stored = stored_parts(cell)?;
        // First: an element that is changed and not announced would be wrong.
        let bytes = changes.iter().map(|(name, value)| name.len() + value.map_or(0, <[u8]>::len));
        self.buffers.check_room(bytes.sum())?;
        let mut effective = Vec::with_capacity(changes.len());
        let counts = elements.edit.change(stored, changes, &mut effective);
        effective.sort_unstable();
        for index in &effective {
            let (name, value) = *guaranteed(changes.get(*index), "a change has an index");
            if !elements.is_anew {
                let value = value.map(|value| self.buffers.keep(value)).transpose()?;
                elements.changes.push((self.buffers.keep(name)?, value));
            } else if let Some(announced) = &mut elements.announced {
                announced.push(self.buffers.keep(name)?);
            }
        }
        self.buffers.count_kept(elements.edit.take_kept_bytes())?;
        let ElementCounts { added, removed } = counts?;
        Ok(ChangedElements { added, removed, has_changed: !effective.is_empty() })
    }
}

#[cold]
fn other_form(found: Form, wanted: Form) -> Error {
    Error::WrongKind {
        detail: format!("the record is {}, not {}: delete it first", found.name(), wanted.name()),
    }
}

/// Checks what does not depend on the record.
fn check_elements<'a>(
    namespace: Namespace,
    key: &[u8],
    form: Form,
    elements: impl Iterator<Item = ElementChange<'a>>,
) -> Result<()> {
    check_key(key)?;
    if !namespace.kind.has(form) {
        return Err(Error::WrongKind {
            detail: format!("the records of this namespace are not {}", form.name()),
        });
    }
    for (name, value) in elements {
        let bytes = name.len();
        // A name that no block can have names no field of a flat hash either.
        let is_removal_of_none = value.is_none() && !is_block_name(name);
        let is_bad_block = namespace.kind != Kind::Mixed
            && form == Form::Blocks
            && !is_block_name(name)
            && !is_removal_of_none;
        if is_bad_block || form == Form::Blocks && bytes > FIELD_NAME_BYTES_MAX {
            return Err(Error::BadName { bytes });
        }
        let bytes = bytes + value.map_or(0, <[u8]>::len);
        if bytes > VALUE_BYTES_MAX {
            return Err(Error::ValueTooLarge { bytes });
        }
    }
    Ok(())
}
