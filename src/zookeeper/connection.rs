//! Decides which address of the servers a client tries next, when, and for how long. [`Attempts`] is a value without
//! I/O, clock or mutex. Its methods get the time, the outcomes of attempts, and looked-up addresses.
//!
//! One attempt is under way at a time. A *round* ends when a connection is ready, or when each address was tried once.
//! The first of these rules that applies decides:
//! 1. After a *theft* of the session, the client goes back at once to the address of the connection that broke. A theft
//!    has these steps. An attempt at server A gets no answer, and the client abandons the attempt. The client resumes
//!    the session at server B. A reads the handshake of the abandoned attempt late, and takes over the session. B then
//!    answers a write by closing the connection (`SessionMoved`, ZOOKEEPER-710).
//! 2. If writes to a server were not answered, its address is avoided for ten session timeouts. A server that was
//!    paused may find these writes in its sockets, and carries them out if the session is on that server again.
//! 3. If a server disagrees with its leader about a node, the client leaves the server, and avoids its address for ten
//!    minutes. The client leaves an address at most once in this time, or the only address three times.
//! 4. Each address is tried once before any is tried twice.
//! 5. Addresses that did not answer last time come last.
//!
//! Rules 2 and 3 avoid an address only while there is another address at which no attempt has failed since the
//! connection was lost.
//!
//! A reconnect begins with a round without a pause. Each later attempt begins at least a fortieth of the session
//! timeout after the one before, unless rule 1 applies or the client has paused between two rounds.

use std::cmp::Ordering;
use std::net::SocketAddr;
use std::time::Duration;

/// A moment on the session's clock.
type Moment = Duration;

/// From this session timeout on, the limit of an attempt is shorter than two fifths of the session timeout.
const LONG_TIMEOUT: Duration = Duration::from_secs(3);

/// The shortest limit of an attempt if the session timeout is at least [`LONG_TIMEOUT`]. A shorter limit would mistake
/// an ordinary pause of a server for a broken connection.
const QUICKEST: Duration = Duration::from_millis(350);

/// For how many session timeouts a server with unanswered writes is avoided, and for how many an abandoned attempt may
/// still lead to a theft.
const KEEPS_WRITES_FOR: u32 = 10;

/// For how long a server that disagrees with its leader is avoided.
const DISAGREES_FOR: Duration = Duration::from_secs(600);

/// How often a client that knows only one address may leave its server within [`DISAGREES_FOR`]. The next connection to
/// this address may reach another server.
const LEAVES_OF_ONE: u32 = 3;

/// The divisor of the session timeout that gives the least time between the starts of two attempts after the first
/// round.
const MOST_ATTEMPTS: u32 = 40;

/// Returns how long the first attempt to connect to an address may take, unless a shorter read timeout is set.
pub fn attempt_limit(session_timeout: Duration) -> Duration {
    if session_timeout < LONG_TIMEOUT { session_timeout * 2 / 5 } else { (session_timeout / 12).max(QUICKEST) }
}

/// Returns how long a connection may be silent. `rides_out` is the longest break of the connection that must cost no
/// lock.
///
/// The client crate tests an idle connection after half of this limit. So a connection survives a server's pause of
/// half of this limit. The crate may notice up to an eighth of the limit too late that the limit has passed. So the
/// limit is at most 8/9 of `rides_out`, and at most a third of the session timeout. But it is never below the limit of
/// an attempt to connect, and equals that limit if the session timeout is below [`LONG_TIMEOUT`].
pub(crate) fn silence_limit(session_timeout: Duration, rides_out: Duration) -> Duration {
    let attempt = attempt_limit(session_timeout);
    let longest = if session_timeout < LONG_TIMEOUT { attempt } else { session_timeout / 3 };
    longest.min(rides_out * 8 / 9).max(attempt)
}

/// The divisor of the session timeout that gives one upper bound of a random pause.
const LONGEST: u32 = 2;

/// The divisor of the time since the last answer that gives the other upper bound of a random pause.
const PART: u32 = 4;

/// Returns a random pause of a client that replaces a lost session ("full jitter"): up to a quarter of `away`, the time
/// since the last answer, and at most half a session timeout.
///
/// A failed network switch or an outage of the ensemble cuts off many clients together, and they lose their sessions
/// together. Later all reach the ensemble at the same moment, and each requests a session, places in queues, and
/// watches. 100,000 such clients would keep the ensemble busy for many seconds, while all other clients wait for their
/// answers. So each client pauses for a random time before it reconnects. The longer the client was cut off, the longer
/// the pause may be. The average pause is an eighth of `away`, or a quarter of a session timeout if that is shorter. A
/// client whose session survives a break does not pause.
///
/// The first pause begins when the client knows that its session is over. Each later pause begins after a failed round
/// of attempts.
pub fn reconnect_jitter(away: Duration, session_timeout: Duration, random: u64) -> Duration {
    let longest = (away / PART).min(session_timeout / LONGEST);
    longest.mul_f64((random % GRAINS) as f64 / GRAINS as f64)
}

/// The number of equal steps between no pause and the longest pause. The random number picks one of them.
const GRAINS: u64 = 1 << 20;

/// One address of a server. If `address` is `None`, the client crate gets the server's name, and looks it up itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectTarget {
    /// The position of the server in the connect string.
    pub server: usize,
    /// The looked-up address, or `None` for the name.
    pub address: Option<SocketAddr>,
}

/// What the client does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectStep {
    /// Try this address, for at most this long.
    Attempt(ConnectTarget, Duration),
    /// Wait for this long, or until a look-up ends. Without a known address, the pause has no end.
    Pause(Duration),
}

/// Why an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptFailure {
    /// No answer came in time.
    Silent,
    /// The server has refused or closed the connection, or gave no session.
    Refused,
    /// The connection ended after the handshake, before it was ready.
    Unready,
}

/// The addresses of the servers, and what is known about each.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    session_timeout: Duration,
    limit: Duration,
    known: Vec<KnownAddress>,
    /// The number of the present round.
    round: u64,
    /// The number of attempts since a connection was ready, or since the client paused between two rounds. An attempt
    /// after a theft of the session is not counted.
    begun: usize,
    /// When the last attempt began. `None` before the first attempt, and after a pause between two rounds.
    last: Option<Moment>,
    /// The address to which the client goes back, because the session may have been stolen from the connection there.
    stolen: Option<ConnectTarget>,
    /// Until when a server may still read the handshake of an abandoned attempt, and so steal the session.
    may_steal_until: Moment,
    /// Until when the time limits of attempts to connect do not grow. The session's lease may be valid until then. A long
    /// attempt at a silent server would use up that time.
    is_quick_until: Moment,
}

#[derive(Clone, Debug, Default)]
struct KnownAddress {
    target: ConnectTarget,
    limit: Duration,
    is_silent: bool,
    has_failed: bool,
    /// Whether the address was looked up since the connection was lost. Stays `true` if `address` is `None`.
    is_fresh: bool,
    /// The round in which the address was tried last; 0 before the first attempt.
    tried: u64,
    keeps_writes_until: Moment,
    disagrees_until: Moment,
    /// How often the client has left the server because it disagrees with its leader. Counts from zero again after
    /// `disagrees_until`.
    left: u32,
    /// A random number. Among addresses that are equal otherwise, the lowest is tried first, so the order differs from
    /// client to client.
    place: u64,
}

impl Attempts {
    /// Returns the state of a client that has tried no address. `limit` is the limit of the first attempt at each
    /// address.
    pub fn new(session_timeout: Duration, limit: Duration) -> Attempts {
        Attempts { session_timeout, limit, round: 1, ..Attempts::default() }
    }

    /// Records the addresses that a look-up of this server has found. The server's other addresses are forgotten.
    /// `random` decides the place of a new address in the order of attempts.
    pub fn record_addresses(
        &mut self,
        server: usize,
        addresses: &[Option<SocketAddr>],
        mut random: impl FnMut() -> u64,
    ) {
        self.known.retain(|it| it.target.server != server || addresses.contains(&it.target.address));
        for address in addresses {
            let target = ConnectTarget { server, address: *address };
            match self.known.iter_mut().find(|it| it.target == target) {
                Some(known) => known.is_fresh = true,
                None => {
                    let (limit, place) = (self.limit, random());
                    self.known.push(KnownAddress { target, limit, is_fresh: true, place, ..KnownAddress::default() });
                }
            }
        }
    }

    /// Returns what comes next at this moment. If an attempt comes next, the caller reports its failure by
    /// [`Attempts::record_failure`], or a connection that is ready by [`Attempts::record_ready`].
    pub fn next_step(&mut self, now: Moment) -> ConnectStep {
        let stolen = self.stolen.take().and_then(|target| self.find_address(target));
        if let Some(known) = stolen {
            let next = ConnectStep::Attempt(known.target, known.limit);
            self.last = Some(now);
            return next;
        }
        let Some(first) = (0..self.known.len()).min_by(|a, b| self.compare_priority(*a, *b, now)) else {
            return ConnectStep::Pause(Duration::MAX);
        };
        let is_again = self.known[first].tried == self.round;
        // An attempt may also have to wait if as many attempts have begun as addresses are known. Otherwise a name that
        // resolves to new addresses at each look-up would cause attempts without a pause.
        let is_paced = is_again || self.begun >= self.known.len();
        let due = self.last.filter(|_| is_paced).map(|last| last + self.session_timeout / MOST_ATTEMPTS);
        if let Some(pause) = due.and_then(|due| due.checked_sub(now)).filter(|pause| !pause.is_zero()) {
            return ConnectStep::Pause(pause);
        }
        self.round += u64::from(is_again);
        self.begun += 1;
        let known = &mut self.known[first];
        (known.tried, self.last) = (self.round, Some(now));
        ConnectStep::Attempt(known.target, known.limit)
    }

    /// Records that the client has paused between two rounds. The attempts of the next round then need no pauses.
    pub fn record_pause(&mut self) {
        self.begun = 0;
        self.last = None;
    }

    /// Returns whether each known address was tried in the present round. `true` if no address is known.
    pub fn is_round_over(&self) -> bool {
        self.known.iter().all(|it| it.tried == self.round)
    }

    /// Compares the known addresses with the indexes `a` and `b`. The address that counts as less is tried first.
    fn compare_priority(&self, a: usize, b: usize, now: Moment) -> Ordering {
        let key = |index: usize| {
            let it = &self.known[index];
            let others = || self.known.iter().enumerate().any(|(other, it)| other != index && !it.has_failed);
            let (keeps_writes, disagrees) = (it.keeps_writes_until > now, it.disagrees_until > now);
            let is_avoided = (keeps_writes || disagrees) && others();
            (
                is_avoided && keeps_writes,
                is_avoided && disagrees,
                it.tried == self.round,
                it.is_silent,
                it.tried,
                it.place,
            )
        };
        key(a).cmp(&key(b))
    }

    fn find_address(&mut self, target: ConnectTarget) -> Option<&mut KnownAddress> {
        self.known.iter_mut().find(|it| it.target == target)
    }

    /// Returns whether a look-up has found this address since the connection was lost. Only then is the server at this
    /// address believed when it says that the session is over. A known target without an address is always fresh.
    pub fn is_address_fresh(&self, target: ConnectTarget) -> bool {
        self.known.iter().any(|it| it.target == target && it.is_fresh)
    }

    /// Records that an attempt has failed.
    ///
    /// If the attempt got no answer, its server may still steal the session (see the module). The limit of the next
    /// attempt at its address is then twice as long, up to a session timeout. The limit does not grow in the first
    /// session timeout after a loss, when a lease may depend on quick attempts. If the connection ended before it was
    /// ready, and the session may have been stolen, the next attempt is at this address.
    pub fn record_failure(&mut self, target: ConnectTarget, why: AttemptFailure, now: Moment) {
        match why {
            AttemptFailure::Silent => self.may_steal_until = now + self.session_timeout * KEEPS_WRITES_FOR,
            AttemptFailure::Unready if now < std::mem::take(&mut self.may_steal_until) => self.stolen = Some(target),
            AttemptFailure::Unready | AttemptFailure::Refused => {}
        }
        let (longest, is_quick) = (self.session_timeout.max(self.limit), now < self.is_quick_until);
        if let Some(known) = self.find_address(target) {
            (known.has_failed, known.is_silent) = (true, why == AttemptFailure::Silent);
            if known.is_silent && !is_quick {
                known.limit = (known.limit * 2).min(longest);
            }
        }
    }

    /// Records that a connection to this address is ready, and begins a new round.
    pub fn record_ready(&mut self, target: ConnectTarget) {
        let limit = self.limit;
        if let Some(known) = self.find_address(target) {
            (known.limit, known.is_silent, known.has_failed) = (limit, false, false);
        }
        (self.round, self.begun) = (self.round + 1, 0);
    }

    /// Records that the connection to this address was lost. `keeps_writes` says whether writes were sent on the
    /// connection and not answered. `broke` is `false` if the client itself has given up the connection.
    pub fn record_loss(&mut self, target: ConnectTarget, now: Moment, keeps_writes: bool, broke: bool) {
        let is_stolen = keeps_writes && broke && now < std::mem::take(&mut self.may_steal_until);
        for known in &mut self.known {
            // A target without an address stays fresh, because the client crate looks its name up at each attempt.
            (known.has_failed, known.is_fresh) = (false, known.target.address.is_none());
        }
        // A lease is shorter than a session timeout. So at `is_quick_until` the lease has ended, unless an answer has
        // renewed it.
        self.is_quick_until = now + self.session_timeout;
        let until = now + self.session_timeout * KEEPS_WRITES_FOR;
        if let Some(known) = self.find_address(target).filter(|_| keeps_writes && !is_stolen) {
            known.keeps_writes_until = until;
        }
        self.stolen = is_stolen.then_some(target);
    }

    /// Decides whether to leave the server at this address, which disagrees with its leader. If so, and if the address
    /// is known, records that the client has left the server.
    pub fn record_leave_if_allowed(&mut self, target: ConnectTarget, now: Moment) -> bool {
        // Several servers may share the only address.
        let most = if self.known.len() == 1 { LEAVES_OF_ONE } else { 1 };
        let Some(known) = self.find_address(target) else { return true };
        if known.disagrees_until <= now {
            known.left = 0;
        }
        if known.left >= most {
            return false;
        }
        known.left += 1;
        known.disagrees_until = now + DISAGREES_FOR;
        true
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
