//! Integration tests of the RESP crate: clients without sockets ([`fixture`]), nodes with sockets,
//! and the clients of the local transport.

mod fixture;
mod authentication;
mod clients;
mod collections;
mod command_reference;
mod command_table;
mod dump;
mod expiry_upkeep;
mod full_region;
mod golden;
mod keyspace;
mod large_selections;
mod keyspace_notifications;
mod limits;
mod local_transport;
mod local_transport_sdl;
mod memory_upkeep;
mod models;
mod pipelines;
mod postponed;
mod pubsub;
mod rejected_requests;
mod removed_namespaces;
mod replicated_replies;
mod scripts;
mod sdl;
mod sentinel;
mod server;
mod slow_subscribers;
mod strings;
mod tags;
mod tracking;
mod transactions;
