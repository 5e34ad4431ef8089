//! The clock of an embedded ensemble, which a test can set.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A clock that goes as this machine's does, and may show another time.
#[derive(Default)]
pub(super) struct Clock {
    ahead: Duration,
    behind: Duration,
}

impl Clock {
    /// The present time, in whole milliseconds, as ZooKeeper counts. Never before 1970.
    pub(super) fn now(&self) -> SystemTime {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let set = since_1970.saturating_add(self.ahead).saturating_sub(self.behind);
        UNIX_EPOCH + Duration::from_millis(u64::try_from(set.as_millis()).unwrap_or(u64::MAX).min(LATEST))
    }

    pub(super) fn set_forward(&mut self, by: Duration) {
        self.ahead = self.ahead.saturating_add(by);
    }

    pub(super) fn set_back(&mut self, by: Duration) {
        self.behind = self.behind.saturating_add(by);
    }
}

/// The latest time that ZooKeeper could show, in milliseconds.
const LATEST: u64 = i64::MAX.unsigned_abs();
