//! Whether a client is connected, as a readiness probe asks.

use std::fmt;
use std::time::{Duration, Instant};

/// Whether a client reaches its ensemble now. Given by [`ZooKeeper::state`](crate::ZooKeeper::state) and
/// [`Memory::state`](crate::Memory::state).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectionState {
    /// There is a session, and it is connected.
    Connected,
    /// The session has lost its connection, or is over, and the client tries to come back. Acquisitions wait.
    Connecting {
        /// When the connection was lost.
        since: Instant,
        /// Why the last attempt failed, in the words of the operating system or of a server, for people to read. `None`
        /// if nothing is known yet.
        why: Option<String>,
    },
    /// The client was closed. It never comes back.
    Closed,
}

impl ConnectionState {
    /// Whether it is [`Connected`](ConnectionState::Connected).
    pub fn is_connected(&self) -> bool {
        *self == ConnectionState::Connected
    }

    /// For how long it is not connected now.
    pub(crate) fn cut_off(self) -> Option<CutOff> {
        match self {
            ConnectionState::Connecting { since, why } => Some(CutOff { lasted: since.elapsed(), why }),
            _ => None,
        }
    }
}

/// That a client had lost its connection when the time for a call was over, in
/// [`Error::Timeout`](crate::Error::Timeout).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CutOff {
    /// How long ago the connection was lost.
    pub lasted: Duration,
    /// Why there is none, for people to read. `None` if that was not known yet.
    pub why: Option<String>,
}

/// For people: `cut off for 3s 200ms: zk1:2181: Connection refused (os error 111)`.
impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasted = Duration::from_millis(u64::try_from(self.lasted.as_millis()).unwrap_or(u64::MAX) / 100 * 100);
        write!(f, "cut off for {}", humantime::format_duration(lasted))?;
        self.why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
    }
}

/// For logs and for the answers of probes: `connecting for 7s: zk1:2181: Connection refused (os error 111)`.
impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectionState::Connected => f.write_str("connected"),
            ConnectionState::Connecting { since, why } => {
                let seconds = Duration::from_secs(since.elapsed().as_secs());
                write!(f, "connecting for {}", humantime::format_duration(seconds))?;
                why.as_ref().map_or(Ok(()), |why| write!(f, ": {why}"))
            }
            ConnectionState::Closed => f.write_str("closed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_a_client_was_cut_off_is_told_to_a_tenth_of_a_second() {
        let cut_off = |millis, why: Option<&str>| {
            CutOff { lasted: Duration::from_millis(millis), why: why.map(str::to_owned) }.to_string()
        };
        assert_eq!(cut_off(3_299, None), "cut off for 3s 200ms");
        assert_eq!(cut_off(99, None), "cut off for 0s");
        assert_eq!(cut_off(60_000, Some("zk1: refused")), "cut off for 1m: zk1: refused");
    }

    #[test]
    fn a_state_is_told_in_words_and_only_one_of_them_is_connected() {
        // A test may stand still for long: only a moment that is still to come is never long ago.
        let later = Instant::now() + Duration::from_secs(3600);
        let connecting = |why: Option<&str>| ConnectionState::Connecting { since: later, why: why.map(str::to_owned) };
        for (state, words) in [
            (ConnectionState::Connected, "connected"),
            (connecting(None), "connecting for 0s"),
            (connecting(Some("zk1: refused")), "connecting for 0s: zk1: refused"),
            (ConnectionState::Closed, "closed"),
        ] {
            assert_eq!(state.to_string(), words);
            assert_eq!(state.is_connected(), words == "connected");
            assert_eq!(state.cut_off().is_some(), words.starts_with("connecting"));
        }
    }
}
