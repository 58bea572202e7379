//! Single steps.
use crate::spawn::Starter;
use std::path::Path;
/// x
pub fn play(_f: &Path, _n: &str) -> Result<(), String> {
    Err("later".into())
}
/// x
#[derive(Debug)]
pub struct Row;
/// x
pub fn sweep(
    _: &Path,
    _: &Starter,
    _: u64,
    _: &mut dyn FnMut(&str, u64),
) -> Result<Vec<Row>, String> {
    Err("later".into())
}
/// x
pub fn json(_: &[Row]) -> serde_json::Value {
    serde_json::Value::Null
}
/// x
pub fn table(_: &[Row]) -> String {
    String::new()
}
