//! One suite, every back-end: what the operations promise holds on a region and on a Redis, over
//! TCP and over a Unix socket. The tests start their own `redis-server` and stop it by its process
//! id.

use crate::promises;

/// Each promise as a test of its own on each back-end.
macro_rules! on_every_back_end {
    ($($promise:ident)*) => {
        on_every_back_end!(@ region: $($promise)*);
        on_every_back_end!(@ redis_tcp: $($promise)*);
        on_every_back_end!(@ redis_unix: $($promise)*);
    };
    (@ $back_end:ident: $($promise:ident)*) => {
        mod $back_end {
            $(#[test]
            fn $promise() {
                let place = crate::fixture::Place::$back_end();
                crate::promises::$promise(&mut *place.open());
            })*

            #[test]
            fn conditional_writes_of_two_instances_lose_nothing() {
                let place = crate::fixture::Place::$back_end();
                crate::promises::conditional_writes_of_two_instances_lose_nothing(&|| place.open());
            }
        }
    };
}

promises::with_every_promise!(on_every_back_end);
