//! Floor 5: clients that others wrote, and commands by chance, against the node.
//!
//! The tests beside this file start the built `nearstate`, and let it be used by `ricsdl`,
//! redis-py, go-redis, `redis-cli` and `redis-benchmark`; and they say the same commands to the
//! node and to Debian's Redis and compare every byte of the replies.
//!
//! Modules stand in the order of floors: each uses only those below it.

#![forbid(unsafe_code)]

pub mod differential;
pub mod sequence;
pub mod leeway;
pub mod forms;
pub mod dice;
pub mod link;
pub mod wire;
pub mod python;
pub mod programs;
