//! Bytes that no correct program writes, fed to every parser of foreign bytes.

mod block_table;
mod divided_collection;
mod glob;
mod header;
mod nudsf;
mod resp;
mod wire;
mod fixture;
