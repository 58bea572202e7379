//! Layer 4: the 3GPP data repository (Nudsf, TS 29.598) over HTTP/2 and HTTP/1.1. A storage is a
//! namespace, and a record is a record of the store: what one interface writes, the others read.
//! `docs/decisions/023-nudsf.md` has the mapping, `docs/nudsf.md` the operations.

#![forbid(unsafe_code)]

#[doc(hidden)]
pub mod fuzzing;
mod nrf;
mod registration;
mod key_source;
mod protocol;
mod connection;
mod http2;
mod duplex;
mod service;
mod load;
mod sbi;
mod request_body;
mod operations;
mod operation_context;
mod reply_body;
mod notifier;
mod document;
mod repository;
mod record;
mod attributes;
mod reply;
mod patch;
mod filter;
mod timer;
mod meta;
mod tags;
mod plain_json;
mod conditions;
mod multipart;
mod namespace_names;
mod settings;
mod request_path;
mod features;
mod table;
mod token;
mod json_web_key;
mod grant;
mod fetch_state;
mod control_plane_client;
mod problem;
mod times;
pub mod limits;

pub use features::FeatureSet;
pub use key_source::{KEYS_AGE_MAX, KeySource, KeySourceSettings, OnFetch};
pub use namespace_names::{NOTIFIER_PATTERN, leave_out_notifier};
pub use nrf::{NrfClient, NrfEvent, NrfSettings};
pub use protocol::NudsfProtocol;
pub use registration::{NrfProfile, instance_of_part};
pub use settings::{
    NotificationKind, NotificationResult, NotifierEvent, NotifierLog, NotifySettings, NudsfMetrics,
    NudsfSettings, OnNotifierEvent, StorageSpec,
};
pub use table::{OPERATIONS, OperationSpec};
pub use token::TokenKeys;
