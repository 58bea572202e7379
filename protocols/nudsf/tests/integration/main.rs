//! Integration tests of the data repository: a node, sockets, and the store beside it. Tests are
//! named after the operation that they prove (`dr01` to `dr20`, `tm01` to `tm06`, as in the table
//! of operations) or the requirement (`req`).

mod contract;
mod fixture;
mod http2;
mod receiver;
mod http;
mod security;
mod scripted_server;
mod registration;
mod token_keys;
mod overload;
mod requirements;
mod records;
mod previous;
mod meta;
mod blocks;
mod search;
mod subscriptions;
mod schemas;
mod interfaces;
mod timers;
mod notifications;
mod notifier;
mod replicated;
mod kill;
mod hostile;
mod stalled;
mod openapi;
