//! nearstate: see ARCHITECTURE.md.
