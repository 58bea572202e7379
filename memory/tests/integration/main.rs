//! Tests of `nearstate-memory` through its public interface.

mod fixture;
mod liveness;
mod processes;
