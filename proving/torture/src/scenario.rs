//! Short, fixed pieces of work.
use std::path::Path;
/// x
pub fn play(_f: &Path, _n: &str) -> Result<(), String> { Err("later".into()) }
/// x
pub fn put_one(_f: &Path, _n: u16) -> Result<(), String> { Err("later".into()) }
