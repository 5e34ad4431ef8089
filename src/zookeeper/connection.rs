//! Decides which address of the servers a client tries next, when, and for how long. [`Attempts`] is a value without
//! I/O, clock or mutex. Its methods get the time, the outcomes of attempts, and looked-up addresses.
//!
//! One attempt is under way at a time. A *round* ends when a connection is ready, or when each address was tried once.
//! These rules decide which address comes next. An earlier rule has priority over a later one:
//! 1. After a *theft* of the session, the client goes back at once to the address of the connection that broke. A theft
//!    has these steps. An attempt at server A gets no answer, and the client abandons the attempt. The client resumes
//!    the session at server B. A reads the handshake of the abandoned attempt late, and takes over the session. B then
//!    answers a write by closing the connection (`SessionMoved`, ZOOKEEPER-710).
//! 2. If writes to a server were not answered, its address is avoided for ten session timeouts. A server that was
//!    paused may still find these writes in its sockets. It carries them out if the session is connected to that server
//!    again.
//! 3. If a server disagrees with its leader about a node, the client leaves the server, and avoids its address for ten
//!    minutes. In these ten minutes, the client leaves an address at most once. If the client knows only one address,
//!    it leaves that one at most three times.
//! 4. Each address is tried once before any is tried twice.
//! 5. Addresses that did not answer last time come last.
//!
//! Rules 2 and 3 apply only while there is another address at which no attempt has failed since the connection was
//! lost.
//!
//! The first round of a reconnect has no pauses. Each later attempt begins at least a fortieth of the session timeout
//! after the attempt before. Two kinds of attempts need not wait: an attempt by rule 1, and the attempts of a round
//! before which the client has paused.

use std::cmp::Ordering;
use std::net::SocketAddr;
use std::time::Duration;

/// A moment on the session's clock.
type Moment = Duration;

/// If the session timeout is at least this long, the time limit of an attempt is shorter than two fifths of the session
/// timeout.
const LONG_TIMEOUT: Duration = Duration::from_secs(3);

/// The shortest time limit of an attempt to connect, if the session timeout is at least [`LONG_TIMEOUT`]. A shorter
/// limit would mistake an ordinary pause of a server for a broken connection.
const QUICKEST: Duration = Duration::from_millis(350);

/// For this many session timeouts, a server with unanswered writes is avoided, and an abandoned attempt to connect may
/// still steal the session.
const KEEPS_WRITES_FOR: u32 = 10;

/// For how long a server that disagrees with its leader is avoided.
const DISAGREES_FOR: Duration = Duration::from_secs(600);

/// How often a client that knows only one address may leave its server within [`DISAGREES_FOR`]. To leave helps even
/// then, because several servers may share the address, and the next connection may reach another server.
const LEAVES_OF_ONE: u32 = 3;

/// After the first round, two attempts begin at least the session timeout divided by this number apart.
const MOST_ATTEMPTS: u32 = 40;

/// Returns how long the first attempt to connect to an address may take, unless a shorter read timeout is set.
pub fn attempt_time_limit(session_timeout: Duration) -> Duration {
    if session_timeout < LONG_TIMEOUT { session_timeout * 2 / 5 } else { (session_timeout / 12).max(QUICKEST) }
}

/// Returns how long a connection may be silent. `rides_out` is the longest break of the connection that must cost no
/// lock.
///
/// The client crate tests an idle connection after half of this limit. So a connection survives if a server pauses for
/// half of this limit. The crate may notice that the limit has passed by up to an eighth of the limit too late. So the
/// limit is at most 8/9 of `rides_out`. It is also at most a third of the session timeout, but never below the time
/// limit of an attempt to connect. If the session timeout is below [`LONG_TIMEOUT`], the two limits are equal.
pub(crate) fn silence_limit(session_timeout: Duration, rides_out: Duration) -> Duration {
    let attempt = attempt_time_limit(session_timeout);
    let longest = if session_timeout < LONG_TIMEOUT { attempt } else { session_timeout / 3 };
    longest.min(rides_out * 8 / 9).max(attempt)
}

/// A random pause is at most the session timeout divided by this number.
const LONGEST: u32 = 2;

/// A random pause is also at most the time since the last answer, divided by this number.
const PART: u32 = 4;

/// Returns a random pause of a client that replaces a lost session ("full jitter"). The longest pause is a quarter of
/// `away`, the time since the last answer, or half a session timeout if that is shorter.
///
/// A failed network switch or an outage of the ensemble cuts off many clients together, and they lose their sessions
/// together. When the ensemble can be reached again, all these clients would request sessions, nodes in queues, and
/// watches at the same moment. 100,000 of them would keep the ensemble busy for many seconds, and all other clients
/// would wait that long for answers. So each client pauses for a random time before it reconnects. The longer the
/// client was cut off, the longer the pause may be. The average pause is an eighth of `away`, or a quarter of a session
/// timeout if that is shorter. A client whose session survives a break does not pause.
///
/// The first pause begins when the client knows that its session is over. Each later pause begins after a failed round
/// of attempts.
pub fn new_session_jitter(away: Duration, session_timeout: Duration, random: u64) -> Duration {
    let longest = (away / PART).min(session_timeout / LONGEST);
    longest.mul_f64((random % GRAINS) as f64 / GRAINS as f64)
}

/// The number of equal steps between no pause and the longest pause. The random number picks one of them.
const GRAINS: u64 = 1 << 20;

/// One address of a server. If `address` is `None`, the client crate is given the server's name, and looks the name up
/// itself.
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
    /// Wait for this long, or until a look-up of a name ends. If no address is known, only a look-up ends the pause.
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
    known: Vec<AddressHistory>,
    /// The number of the present round.
    round: u64,
    /// The number of attempts since a connection was ready, or since the client paused between two rounds. An attempt
    /// after a theft of the session is not counted.
    begun: usize,
    /// When the last attempt began. `None` before the first attempt, and after a pause between two rounds.
    last: Option<Moment>,
    /// The address to which the client goes back. The connection there has ended, perhaps because another server took the
    /// session over when it read the handshake of an abandoned attempt.
    stolen: Option<ConnectTarget>,
    /// Until when a server may still read the handshake of an abandoned attempt, and so steal the session.
    may_steal_until: Moment,
    /// Until when the time limits of attempts to connect do not grow. The session's lease may be valid until then, and
    /// one long attempt at a silent server could take all the time that the lease has left.
    is_quick_until: Moment,
}

#[derive(Clone, Debug, Default)]
struct AddressHistory {
    target: ConnectTarget,
    limit: Duration,
    is_silent: bool,
    has_failed: bool,
    /// Whether a look-up has found the address since the connection was lost. Always `true` if `address` is `None`.
    is_fresh: bool,
    /// The round in which the address was tried last; 0 before the first attempt.
    tried: u64,
    keeps_writes_until: Moment,
    disagrees_until: Moment,
    /// How often the client has left the server because it disagrees with its leader. Counts from zero again after
    /// `disagrees_until`.
    left: u32,
    /// A random number. Among addresses that are equal otherwise, the address with the lowest number is tried first. So
    /// the order differs from client to client.
    place: u64,
}

impl Attempts {
    /// Returns the state of a client that has tried no address. `limit` is the limit of the first attempt at each
    /// address.
    pub fn new(session_timeout: Duration, limit: Duration) -> Attempts {
        Attempts { session_timeout, limit, round: 1, ..Attempts::default() }
    }

    /// Records the addresses that a look-up of this server has found. Any other address of the server is forgotten.
    /// `random` gives each new address its random number `place`.
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
                    self.known.push(AddressHistory {
                        target,
                        limit,
                        is_fresh: true,
                        place,
                        ..AddressHistory::default()
                    });
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
        // The next attempt must also wait once as many attempts have begun as addresses are known. Otherwise a name
        // that resolves to new addresses at each look-up would cause attempts without any pause.
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

    /// Compares the known addresses with the indexes `a` and `b`. The lesser address is tried first.
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

    fn find_address(&mut self, target: ConnectTarget) -> Option<&mut AddressHistory> {
        self.known.iter_mut().find(|it| it.target == target)
    }

    /// Returns whether a look-up has found this address since the connection was lost. If not, the client does not
    /// believe the server at this address when it says that the session is over. A known target without an address is
    /// always fresh.
    pub fn is_address_fresh(&self, target: ConnectTarget) -> bool {
        self.known.iter().any(|it| it.target == target && it.is_fresh)
    }

    /// Records that an attempt has failed.
    ///
    /// If the attempt got no answer, its server may still steal the session (see the module). The next attempt at this
    /// address then has twice the time limit, up to a session timeout. But for one session timeout after the connection
    /// was lost, the time limits do not grow, because only quick attempts may save the lease. If a connection ended
    /// before it was ready, and the session may have been stolen from it, the next attempt is at the same address.
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
    /// connection and not answered. `broke` is `true` if the connection ended by itself, and `false` if the client has
    /// given it up.
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

    /// Returns whether the client may leave the server at this address, which disagrees with its leader. If it may, and
    /// if the address is known, also records that the client has left.
    pub fn record_leave_if_allowed(&mut self, target: ConnectTarget, now: Moment) -> bool {
        // The only address may be left more often, because several servers may share it.
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
