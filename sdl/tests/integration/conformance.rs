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
        }
    };
}

/// As above, for promises about several instances of one back-end.
macro_rules! shared_on_every_back_end {
    ($($promise:ident)*) => {
        shared_on_every_back_end!(@ region_shared, region: $($promise)*);
        shared_on_every_back_end!(@ redis_tcp_shared, redis_tcp: $($promise)*);
        shared_on_every_back_end!(@ redis_unix_shared, redis_unix: $($promise)*);
    };
    (@ $module:ident, $back_end:ident: $($promise:ident)*) => {
        mod $module {
            $(#[test]
            fn $promise() {
                let place = crate::fixture::Place::$back_end();
                crate::promises::$promise(&|| place.open());
            })*
        }
    };
}

promises::with_every_promise!(on_every_back_end);
promises::with_every_shared_promise!(shared_on_every_back_end);
