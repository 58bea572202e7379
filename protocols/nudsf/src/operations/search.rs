//! Operations on the records of a storage: search with counts and contents, deletion by a filter.

use hyper::StatusCode;
use nearstate_node::executor::yield_if_due;
use nearstate_store::search::{Op, Search};
use nearstate_store::{Namespace, View};
use serde_json::{Map, Value};

use crate::filter::{TagCounter, counter_of_form, parse_counts, parse_text};
use crate::limits::{
    DELETED_MAX, RECORDS_RETURNED_MAX, REFERENCES_MAX, SCAN_STEPS, SEARCH_BYTES_MAX,
};
use crate::multipart::MultipartWriter;
use crate::operation_context::OperationContext;
use crate::problem::Problem;
use crate::record::{StoredRecord, write_block};
use crate::reply::Reply;
use crate::reply_body::SearchMemory;
use crate::repository::OperationRefusal;
use crate::request_path::encode_segment;

/// Bytes of the values of all counts of a search. A tag with more different values is refused.
const COUNTED_BYTES_MAX: usize = 64 << 20;

/// Bytes of a response beside references, records and results of counts.
const DESCRIPTOR_BYTES: usize = 256;

/// What a search returns beside references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retrieve {
    Meta,
    MetaAndBlocks,
}

/// The parameters of a search.
struct SearchQuery {
    filter: Option<Search>,
    limit: Option<usize>,
    counts_all: bool,
    retrieve: Option<Retrieve>,
    /// `max-payload-size` in bytes.
    payload_max: usize,
    counters: Vec<TagCounter>,
}

fn search_query(context: &OperationContext<'_>) -> Result<SearchQuery, Problem> {
    let query = &context.path.query;
    let filter = query.get("filter").map(|text| parse_text(text, "filter")).transpose()?;
    let limit = query.number("limit-range")?;
    let limit = limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let retrieve = match query.get("retrieve-records") {
        None => None,
        Some("ONLY_META") => Some(Retrieve::Meta),
        Some("META_AND_BLOCKS") => Some(Retrieve::MetaAndBlocks),
        Some(_) => {
            return Err(Problem::query("retrieve-records", "must be ONLY_META or META_AND_BLOCKS"));
        }
    };
    let kilo = query.number("max-payload-size")?;
    let payload_max = kilo.and_then(|kilo| usize::try_from(kilo.saturating_mul(1024)).ok());
    // The contract gives the parameter a `schema`: generated clients send its attributes.
    let counters = match (query.get("tag-count-filter"), query.get("countType")) {
        (Some(text), _) => Some(parse_counts(text)?),
        (None, Some(kind)) => Some(vec![counter_of_form(kind, query.get("tag"))?]),
        (None, None) => None,
    };
    Ok(SearchQuery {
        filter,
        limit,
        counts_all: query.flag("count-indicator")?,
        retrieve,
        payload_max: payload_max.unwrap_or(usize::MAX),
        counters: counters.unwrap_or_default(),
    })
}

/// True if an index gives the candidates of a search, so that not every record is read.
fn is_indexed(
    context: &OperationContext<'_>,
    namespace: Namespace,
    search: &Search,
) -> Result<bool, Problem> {
    Ok(match search {
        Search::Records(_) => true,
        Search::And(units) => {
            for unit in units {
                if is_indexed(context, namespace, unit)? {
                    return Ok(true);
                }
            }
            false
        }
        Search::Or(units) => {
            for unit in units {
                if !is_indexed(context, namespace, unit)? {
                    return Ok(false);
                }
            }
            true
        }
        Search::Not(_) | Search::Compare { op: Op::Neq, .. } => false,
        Search::Compare { op, tag, .. } => {
            let tags = context.repository.session.tags(namespace)?;
            let known = tags.iter().find(|known| known.name == *tag);
            known.is_some_and(|known| *op == Op::Eq || known.is_ordered)
        }
    })
}

/// Calls `visit` with each matching record until it returns false. Yields to other requests: with
/// and without an index it reads at most [`SCAN_STEPS`] records between two checks of the time. A
/// record that matches during the whole search is visited once; one that is changed by a request in
/// between may be visited or not. The keys that the search keeps count as `memory`.
pub(super) async fn for_each_match(
    context: &OperationContext<'_>,
    namespace: Namespace,
    (filter, memory): (Option<&Search>, &SearchMemory<'_>),
    mut visit: impl FnMut(&View<'_>, &[(&str, &[u8])]) -> Result<bool, Problem>,
) -> Result<(), Problem> {
    let session = &context.repository.session;
    if let Some(search) = filter
        && is_indexed(context, namespace, search)?
    {
        let mut slices = session.search_slices(namespace, search)?;
        while slices.next(SCAN_STEPS, &mut visit)? {
            memory.set_seen(slices.memory_bytes());
            yield_if_due().await;
        }
        // The keys are no longer kept.
        memory.set_seen(0);
        return Ok(());
    }
    let mut matching = |view: &View<'_>| -> Result<bool, Problem> {
        let tags: Vec<(&str, &[u8])> = view.tags().collect();
        if filter.is_some_and(|filter| !filter.matches(view.key(), &tags)) {
            return Ok(true);
        }
        visit(view, &tags)
    };
    let mut scan = session.scan(namespace)?;
    let mut steps = 0_u32;
    while scan.step()? {
        if let Some(view) = scan.view()?
            && !matching(&view)?
        {
            return Ok(());
        }
        steps += 1;
        if steps.is_multiple_of(SCAN_STEPS) {
            yield_if_due().await;
        }
    }
    Ok(())
}

/// The records that a search has found.
#[derive(Default)]
struct Found {
    count: u64,
    references: Vec<Value>,
    /// Of the references as JSON text.
    reference_bytes: usize,
    /// The next reference would exceed `max-payload-size`.
    is_full: bool,
    writer: MultipartWriter,
    records: usize,
}

impl Found {
    fn buffered_bytes(&self) -> usize {
        let references = self.references.len() * size_of::<Value>() + self.reference_bytes;
        references + self.writer.len()
    }
}

/// `SearchRecord`.
pub(super) async fn search(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let SearchQuery { filter, limit, counts_all, retrieve, payload_max, mut counters } =
        search_query(context)?;
    let references_max = limit.unwrap_or(REFERENCES_MAX).min(REFERENCES_MAX);
    let visits_all = counts_all || !counters.is_empty() || limit.is_none_or(|limit| limit == 0);
    let (mut found, memory) = (Found::default(), context.search_memory());
    let records_uri = format!("{}/records/", context.uri());
    for_each_match(context, context.storage.records, (filter.as_ref(), &memory), |view, tags| {
        let Some(record) = StoredRecord::of(view) else { return Ok(true) };
        let Ok(id) = str::from_utf8(view.key()) else { return Ok(true) };
        found.count += 1;
        for counter in &mut counters {
            counter.add(view.key(), tags);
        }
        let counted = counters.iter().map(TagCounter::buffered_bytes).sum::<usize>();
        memory.set_kept(found.buffered_bytes() + counted);
        if counted > COUNTED_BYTES_MAX {
            let reason = "a tag has too many different values: filter the records";
            return Err(Problem::query("tag-count-filter", reason));
        }
        if !found.is_full && found.references.len() < references_max {
            let uri = format!("{records_uri}{}", encode_segment(id));
            let with_reference = found.reference_bytes + uri.len() + "\"\",".len();
            found.is_full = DESCRIPTOR_BYTES + with_reference + found.writer.len() > payload_max;
            if found.is_full {
                // If not one reference fits, the count tells that there are records.
                return Ok(visits_all || found.references.is_empty());
            }
            found.references.push(Value::from(uri));
            found.reference_bytes = with_reference;
            let bytes_max = payload_max.saturating_sub(DESCRIPTOR_BYTES + with_reference);
            let bytes_max = bytes_max.min(SEARCH_BYTES_MAX);
            if let Some(retrieve) = retrieve
                && found.records < RECORDS_RETURNED_MAX
                && found.writer.len() < bytes_max
            {
                found.records +=
                    usize::from(add_record(&mut found.writer, (id, &record), retrieve, bytes_max));
            }
        }
        Ok(visits_all || found.references.len() < references_max)
    })
    .await?;
    if found.count == 0 {
        return Ok(Reply::empty(StatusCode::NO_CONTENT));
    }
    let is_counted = visits_all || found.is_full && found.references.is_empty();
    let count = if is_counted { found.count } else { found.references.len() as u64 };
    let mut descriptor = Map::new();
    descriptor.insert("count".to_owned(), Value::from(count));
    if !found.references.is_empty() {
        descriptor.insert("references".to_owned(), Value::Array(found.references));
    }
    let features = context.path.query.get("supported-features");
    if let Some(features) = features.and_then(|client| context.negotiated_features(client)) {
        descriptor.insert("supportedFeatures".to_owned(), Value::from(features));
    }
    if !counters.is_empty() {
        let counts: Map<String, Value> = counters.iter().map(TagCounter::result).collect();
        descriptor.insert("tagCountResult".to_owned(), Value::Object(counts));
    }
    let descriptor = Value::Object(descriptor);
    if retrieve.is_none() {
        return Ok(Reply::json(StatusCode::OK, &descriptor));
    }
    let mut writer = MultipartWriter::with_capacity(found.writer.len() + 1024);
    writer.part("descriptor", "application/json", None, descriptor.to_string().as_bytes());
    writer.append(&found.writer);
    let (boundary, body) = writer.finish(context.now_ms);
    Ok(Reply::with_body(StatusCode::OK, &format!("multipart/mixed; boundary={boundary}"), body))
}

/// Adds the parts of a record: its meta with the record's id, its blocks with `recordId/blockId`.
/// False if it would exceed the limit: it is only a reference then.
fn add_record(
    writer: &mut MultipartWriter,
    (id, record): (&str, &StoredRecord<'_>),
    retrieve: Retrieve,
    bytes_max: usize,
) -> bool {
    let meta = record.meta_text();
    let blocks = match retrieve {
        Retrieve::Meta => Vec::new(),
        Retrieve::MetaAndBlocks => record.blocks(),
    };
    let part_bytes = |bytes: usize| bytes + id.len() * 3 + 1024;
    let bytes: usize = blocks.iter().map(|block| part_bytes(block.bytes.len())).sum();
    if writer.len() + bytes + part_bytes(meta.len()) > bytes_max {
        return false;
    }
    let id = encode_segment(id);
    writer.part(&id, "application/json", None, meta.as_bytes());
    for block in &blocks {
        write_block(writer, &format!("{id}/{}", encode_segment(block.id)), block);
    }
    true
}

/// Fails if the response with these ids must not be sent, before any of them is deleted.
///
/// # Errors
/// As [`OperationContext::check_body`].
pub(super) fn check_deletion(
    context: &OperationContext<'_>,
    keys: &[Vec<u8>],
) -> Result<(), Problem> {
    const ID_BYTES: usize = "\"\",".len();
    if keys.is_empty() {
        return Ok(());
    }
    let bytes = keys.iter().map(|key| key.len() + ID_BYTES).sum();
    context.check_body("application/json", bytes)
}

/// `BulkDeleteRecords`. Each record is deleted in a transaction of its own, if it still matches.
pub(super) async fn delete(context: &OperationContext<'_>) -> Result<Reply, Reply> {
    let Some(text) = context.path.query.get("filter") else {
        let cause = "MANDATORY_QUERY_PARAM_MISSING";
        return Err(Problem::parameter(cause, "query filter", "is required").into());
    };
    let filter = parse_text(text, "filter").map_err(Problem::of_required_query)?;
    let (mut keys, mut bytes, memory) = (Vec::new(), 0, context.search_memory());
    for_each_match(context, context.storage.records, (Some(&filter), &memory), |view, _| {
        if StoredRecord::of(view).is_some() && str::from_utf8(view.key()).is_ok() {
            bytes += view.key().len() + size_of::<Vec<u8>>();
            memory.set_kept(bytes);
            keys.push(view.key().to_vec());
        }
        Ok(keys.len() < DELETED_MAX)
    })
    .await?;
    check_deletion(context, &keys)?;
    let (mut deleted, mut failed, mut failure) = (Vec::new(), Vec::new(), None);
    for key in keys {
        let id = Value::from(String::from_utf8_lossy(&key).into_owned());
        let done = context.transact(&key, |txn| {
            let Some(view) = txn.get(context.storage.records, &key)? else { return Ok(false) };
            let tags: Vec<(&str, &[u8])> = view.tags().collect();
            if !filter.matches(&key, &tags) || StoredRecord::of(&view).is_none() {
                return Ok(false);
            }
            txn.delete(context.storage.records, &key).map_err(OperationRefusal::from)
        });
        match done.await {
            Ok((true, _)) => deleted.push(id),
            Ok((false, _)) => {}
            Err(reply) => {
                failed.push(id);
                failure = Some(reply);
            }
        }
        yield_if_due().await;
    }
    if deleted.is_empty() {
        // The list of deleted records must not be empty.
        return Ok(failure.unwrap_or_else(|| Reply::empty(StatusCode::NO_CONTENT)));
    }
    let mut body = Map::new();
    body.insert("recordIdList".to_owned(), Value::Array(deleted));
    if !failed.is_empty() {
        body.insert("failedRecordIdList".to_owned(), Value::Array(failed));
    }
    Ok(Reply::json(StatusCode::OK, &Value::Object(body)))
}
