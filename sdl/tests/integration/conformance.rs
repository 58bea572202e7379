//! The conformance suite on every back-end: a region, and Redis over TCP and over a Unix socket.
//! The tests start their own `redis-server`.

use crate::promises;

/// One test for each promise and back-end.
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

/// The same for promises about several instances of one back-end.
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
