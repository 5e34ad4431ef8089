//! Tests, under loom, of the small types that threads share without a lock. Loom tries every order of the threads'
//! steps and every value that the memory model allows an atomic to return. Shuttle does not try such values.
//!
//! The files of these types are compiled here again, with loom's atomics in place of the standard library's.

/// The part of `src/sync/mod.rs` that these types use. Loom's locks are never poisoned.
mod sync {
    pub(crate) use loom::sync::{MutexGuard, atomic};

    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().expect("no panic")
        }
    }
}

#[path = "../src/telemetry"]
mod telemetry {
    pub(crate) mod debug;
}

#[path = "../src/session"]
#[allow(dead_code, unreachable_pub, reason = "only what is tried here is used")]
mod session {
    pub(crate) mod lease;
    pub(crate) mod request;

    #[test]
    fn a_hold_counts_as_lost_after_a_gap_in_its_lease() {
        use std::sync::Arc;
        use std::time::Duration;

        use crate::sync::atomic::{AtomicU64, Ordering};

        let timeout = Duration::from_secs(6);
        // The lease of a session that was created at 100 s and lasts until 105 s.
        let (asked, end) = (Duration::from_secs(100), Duration::from_secs(105));
        loom::model(move || {
            let hands = Arc::new(AtomicU64::new(asked.as_secs()));
            let clock = Arc::clone(&hands);
            let read = move || Duration::from_secs(clock.load(Ordering::SeqCst));
            let lease = Arc::new(lease::Lease::with_clock(timeout, Box::new(read)));
            lease.record_begin(asked);
            let epoch = lease.epoch().expect("a lease");
            assert!(lease.now_if_valid_in(epoch).is_some());

            let renewed = Arc::clone(&lease);
            let renewal = loom::thread::spawn(move || {
                hands.store(110, Ordering::SeqCst);
                renewed.record_begin(Duration::from_secs(110));
            });
            if let Some(moment) = lease.now_if_valid_in(epoch) {
                assert!(moment < end, "covered at {moment:?}");
            }
            renewal.join().expect("no panic");
            assert_eq!(lease.now_if_valid_in(epoch), None);
            assert!(lease.epoch().is_some_and(|later| lease.now_if_valid_in(later).is_some()));
        });
    }

    #[test]
    fn a_hold_counts_as_lost_after_its_sessions_end() {
        use std::sync::Arc;
        use std::time::Duration;

        use crate::sync::atomic::{AtomicBool, Ordering};

        loom::model(|| {
            let clock = || Duration::from_secs(100);
            let lease = Arc::new(lease::Lease::with_clock(Duration::from_secs(6), Box::new(clock)));
            lease.record_begin(Duration::from_secs(100));
            let epoch = lease.epoch().expect("a lease");

            let (ended, is_known) = (Arc::clone(&lease), Arc::new(AtomicBool::new(false)));
            let known = Arc::clone(&is_known);
            let end = loom::thread::spawn(move || {
                ended.record_end(request::SessionEnd::Closed);
                known.store(true, Ordering::Release);
            });
            if is_known.load(Ordering::Acquire) {
                assert_eq!(lease.now_if_valid_in(epoch), None);
            }
            end.join().expect("no panic");
        });
    }
}
