//! nearstate: see ARCHITECTURE.md.
fn main() {}
