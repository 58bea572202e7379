//! Tests of `nearstate-memory` through its public interface.

mod processes;
