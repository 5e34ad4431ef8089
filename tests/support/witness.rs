//! A thread that asks one write guard again and again whether it is held. Use it to find the last moment at which the
//! guard said "held".

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use zk_rwlock::WriteGuard;

use crate::safe;

/// A thread that asks a guard every 200 microseconds whether it is held. A blocked runtime does not delay the
/// questions.
#[derive(Debug)]
pub struct Witness {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Instant>,
}

impl Witness {
    pub fn of(guard: &Arc<WriteGuard>) -> Witness {
        let stop = Arc::new(AtomicBool::new(false));
        let (guard, stopped) = (Arc::clone(guard), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut last_held = Instant::now();
            let mut was_lost = false;
            while !stopped.load(Ordering::Relaxed) {
                // The time is read before the question. If the guard says "held", it was held at that time.
                let asked = Instant::now();
                let held = guard.is_held();
                safe!(!(held && was_lost), "a lost guard became valid again");
                if held {
                    last_held = asked;
                } else {
                    was_lost = true;
                }
                thread::sleep(Duration::from_micros(200));
            }
            last_held
        });
        Witness { stop, thread }
    }

    pub fn last_held(self) -> Instant {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|contradiction| resume_unwind(contradiction))
    }
}
