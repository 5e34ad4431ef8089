//! A random test of the lease against a model of ZooKeeper's sessions. The model has a client, followers that remember
//! from which sessions they have heard, and a leader that pings the followers. Time is virtual. Stalled links, pauses
//! of the client, cuts and a new leader occur at random.
//!
//! The client's side is the real [`Lease`]. `LEASE_HISTORIES` is the number of histories (`make soak` sets it high),
//! and `LEASE_SEED` the seed of the first.
//!
//! The model is stricter than ZooKeeper, whose leader rounds the end of a session up to its next tick.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zk_rwlock::coordinator::{Lease, SessionStore};

/// A time in microseconds.
type Time = u64;

const MS: Time = 1_000;

/// For one rule of when a lease ends: the number of histories in which the lease outlived its session, and the longest
/// time by which it did.
#[derive(Debug, Default)]
struct Score {
    broken: u64,
    worst: Time,
}

impl Score {
    fn compare(&mut self, lease_end: Time, session_end: Time) {
        if let Some(beyond @ 1..) = lease_end.checked_sub(session_end) {
            self.broken += 1;
            self.worst = self.worst.max(beyond);
        }
    }
}

#[derive(Debug, Default)]
struct Scores {
    ours: Score,
    /// A wrong rule: the lease ends two thirds of the session timeout after the newest acknowledged operation was sent.
    sending: Score,
    /// A wrong rule: the lease is as long as ours, but begins when the newest acknowledged operation was sent.
    hasty: Score,
    /// The number of histories in which the lease was still valid when the final fault began.
    kept: u64,
}

/// A request of the client.
#[derive(Clone, Copy, Debug)]
struct Request {
    sent: Time,
    asks_quorum: bool,
    is_handshake: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The client wakes up, and sends a heartbeat if the next one is due.
    Heartbeat,
    /// The client sends the check that follows a heartbeat. The reply to the check shows whether the heartbeat extends
    /// the lease.
    Check,
    ReachesFollower(usize, Request),
    /// A follower's message reaches the leader: an operation of the client, or a handshake to confirm.
    ReachesLeader(usize, Request),
    Committed(usize, Request),
    ReachesClient(usize, Request),
    LeaderPings,
    Ping(usize),
    /// The reply of this follower to a ping: whether it has heard from the session since the last ping.
    Pong(usize, bool),
    Cut,
    /// The leader and the client's follower are cut off from the other servers, and have not noticed.
    Deposed,
    Breaks,
    Heals,
}

struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: Time) -> Time {
        self.next() % limit.max(1)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}

struct World {
    random: Seeded,
    /// The speed of the client's clock, in thousandths of the leader's.
    rate: u64,
    timeout: Time,
    tick: Time,
    now: Time,
    clock: Arc<AtomicU64>,
    store: SessionStore,
    events: BinaryHeap<Reverse<(Time, u64)>>,
    /// All events so far. `events` refers to them by index.
    what: Vec<Event>,
    /// For each directed link, the time at which its last message arrives. No later message arrives before it.
    arrives: [Time; 8],
    /// For each follower, whether it has heard from the session since its last reply to a ping.
    noted: [bool; 2],
    /// The index of the follower to which the client is connected.
    follower: usize,
    connected: bool,
    cut: Option<usize>,
    /// Whether the other servers have elected a new leader. From then on, the old leader and its follower have no
    /// effect on the session.
    is_deposed: bool,
    /// The time until which the client's process stands still.
    client_sleeps_until: Time,
    /// The time until which the client's link stands still.
    link_stalls_until: Time,
    /// The time at which the leader will end the session.
    session_end: Time,
    newest_acknowledged: Option<Time>,
}

/// Indices of links in `arrives`. Each kind of link has two, one for each follower, and the constant is the first of
/// the two. The kinds are, in order: client to follower, follower to client, leader to follower, follower to leader.
const TO_FOLLOWER: usize = 0;
const TO_CLIENT: usize = 2;
const DOWN: usize = 4;
const UP: usize = 6;

impl World {
    fn new(seed: u64, timeout: Time, tick: Time, rate: u64) -> World {
        let clock = Arc::new(AtomicU64::new(0));
        let hands = Arc::clone(&clock);
        let read = move || Duration::from_micros(hands.load(Ordering::SeqCst) + 1);
        let lease = Lease::with_clock(Duration::from_micros(timeout), Box::new(read));
        let lease = lease.with_tick_time(Duration::from_micros(tick));
        let store = SessionStore::new(lease);
        store.record_begin(Duration::from_micros(1));
        World {
            random: Seeded(seed),
            rate,
            timeout,
            tick,
            now: 0,
            clock,
            store,
            events: BinaryHeap::new(),
            what: Vec::new(),
            arrives: [0; 8],
            noted: [false; 2],
            follower: 0,
            connected: true,
            cut: None,
            is_deposed: false,
            client_sleeps_until: 0,
            link_stalls_until: 0,
            session_end: timeout,
            newest_acknowledged: None,
        }
    }

    fn at(&mut self, time: Time, event: Event) {
        self.events.push(Reverse((time, self.what.len() as u64)));
        self.what.push(event);
    }

    /// Sends a message over a link. Messages on one link arrive in the order of sending.
    fn send(&mut self, link: usize, event: Event) {
        let between_servers = link >= DOWN;
        // A ping of the leader may be late, but by less than the margin of the lease. A client's message may be late by
        // any time.
        let mut delay = 100 + self.random.below(5 * MS);
        if between_servers && self.random.one_in(10) {
            delay += self.random.below((self.tick / 8).max(100 * MS) / 2 - 5 * MS);
        }
        let mut arrival = (self.now + delay).max(self.arrives[link] + 1);
        if !between_servers {
            arrival = arrival.max(self.link_stalls_until + self.random.below(MS));
        }
        self.arrives[link] = arrival;
        self.at(arrival, event);
    }

    /// Returns whether the link between this follower and the leader is cut.
    fn is_cut(&self, follower: usize) -> bool {
        self.cut == Some(follower)
    }

    fn ask(&mut self, asks_quorum: bool) {
        let request = Request { sent: self.now, asks_quorum, is_handshake: false };
        self.send(TO_FOLLOWER + self.follower, Event::ReachesFollower(self.follower, request));
    }

    /// Returns how long after a heartbeat the client sends its check, as a time on the leader's clock.
    fn settling(&self) -> Time {
        self.leaders(self.tick / 2 + (self.tick / 8).max(100 * MS) + 20 * MS)
    }

    /// Converts a time of the leader's clock into the client's.
    fn clients(&self, time: Time) -> Time {
        time * self.rate / 1_000
    }

    /// Converts a duration of the client's clock into the leader's.
    fn leaders(&self, time: Time) -> Time {
        time * 1_000 / self.rate
    }

    /// Runs until the leader has ended the session. Then compares the end of the lease under each rule with the end of
    /// the session.
    fn play(&mut self, scores: &mut Scores) {
        let calm = self.timeout * 2 + self.random.below(self.timeout);
        self.at(0, Event::LeaderPings);
        let first = self.random.below(self.timeout / 5);
        self.at(first, Event::Heartbeat);
        // The client stands still for a part of the session timeout, and a fault follows soon. In other histories all
        // rules give much the same result.
        let stands_still = self.random.below(self.timeout);
        let wakes = calm + stands_still;
        let mut stall = None;
        match self.random.below(4) {
            0 => {}
            1 => {
                self.at(calm, Event::Breaks);
                self.at(wakes, Event::Heals);
            }
            _ => stall = Some(calm),
        }
        let is_link = self.random.one_in(2);
        let after = if self.random.one_in(2) { self.tick } else { self.timeout };
        let cut = wakes + self.random.below(after);
        if self.random.one_in(2) {
            self.at(cut, Event::Cut);
        } else {
            // In some histories the client's connection breaks, and the client reconnects to the same follower.
            let breaks = cut + self.random.below(self.timeout);
            let heals = breaks + self.random.below(self.timeout / 4);
            self.at(cut, Event::Deposed);
            self.at(breaks, Event::Breaks);
            self.at(heals, Event::Heals);
        }
        let end = cut + 4 * self.timeout;
        let mut lost = None;
        while let Some(Reverse((time, number))) = self.events.pop() {
            if stall.take_if(|from| time >= *from).is_some() {
                let stalls = if is_link { &mut self.link_stalls_until } else { &mut self.client_sleeps_until };
                *stalls = wakes;
            }
            self.now = time;
            self.clock.store(self.clients(time), Ordering::SeqCst);
            if self.store.lease().remaining().is_none() {
                lost.get_or_insert(time);
            }
            if self.now >= self.session_end || self.now > end {
                break;
            }
            self.step(self.what[number as usize]);
        }
        if lost.is_none_or(|lost| lost > cut) {
            scores.kept += 1;
        }
        let ours = self.store.lease().remaining().map_or(0, |left| self.now + self.leaders(left.as_micros() as Time));
        scores.ours.compare(ours, self.session_end);
        if let Some(newest) = self.newest_acknowledged {
            scores.sending.compare(newest + self.timeout * 2 / 3, self.session_end);
            let margin = (self.timeout / 6).max(300 * MS);
            scores.hasty.compare(newest + self.timeout - margin, self.session_end);
        }
    }

    fn step(&mut self, event: Event) {
        let is_clients = matches!(event, Event::Heartbeat | Event::Check | Event::ReachesClient(..));
        if is_clients && self.now < self.client_sleeps_until {
            return self.at(self.client_sleeps_until + 1, event);
        }
        match event {
            Event::Heartbeat => {
                if self.connected {
                    self.ask(false);
                    self.at(self.now + self.settling(), Event::Check);
                }
                let jitter = self.random.below(10 * MS);
                self.at(self.now + self.timeout / 5 + jitter, Event::Heartbeat);
            }
            Event::Check => {
                if self.connected {
                    self.ask(true);
                }
            }
            Event::ReachesFollower(follower, request) => {
                self.noted[follower] |= !request.is_handshake;
                if request.asks_quorum || request.is_handshake {
                    if !self.is_cut(follower) {
                        self.send(UP + follower, Event::ReachesLeader(follower, request));
                    }
                } else {
                    self.send(TO_CLIENT + follower, Event::ReachesClient(follower, request));
                }
            }
            Event::ReachesLeader(follower, _) | Event::Committed(follower, _) | Event::Ping(follower)
                if self.is_cut(follower) => {}
            Event::ReachesLeader(_, request) if self.is_deposed && !request.is_handshake => {}
            Event::ReachesLeader(follower, request) => {
                if request.is_handshake && !self.is_deposed {
                    self.session_end = self.session_end.max(self.now + self.timeout);
                }
                // The other follower has acknowledged the proposal, so a majority has it.
                self.send(DOWN + follower, Event::Committed(follower, request));
            }
            Event::Committed(follower, request) => {
                self.send(TO_CLIENT + follower, Event::ReachesClient(follower, request));
            }
            Event::ReachesClient(follower, request) => self.hear(follower, request),
            Event::LeaderPings => {
                for follower in 0..2 {
                    if !self.is_cut(follower) {
                        self.send(DOWN + follower, Event::Ping(follower));
                    }
                }
                self.at(self.now + self.tick / 2, Event::LeaderPings);
            }
            Event::Ping(follower) => {
                let noted = std::mem::take(&mut self.noted[follower]);
                self.send(UP + follower, Event::Pong(follower, noted));
            }
            Event::Pong(follower, noted) => {
                if noted && !self.is_cut(follower) && !self.is_deposed {
                    self.session_end = self.session_end.max(self.now + self.timeout);
                }
            }
            Event::Cut => self.cut = Some(self.follower),
            // A new leader gives every session its whole timeout again.
            Event::Deposed => (self.is_deposed, self.session_end) = (true, self.now + self.timeout),
            Event::Breaks => {
                self.connected = false;
                self.store.set_connected(false);
            }
            // The client reconnects to the other follower, which has not heard from the session yet.
            Event::Heals => {
                if !self.is_deposed {
                    self.follower = 1 - self.follower;
                }
                let handshake = Request { sent: self.now, asks_quorum: false, is_handshake: true };
                self.send(TO_FOLLOWER + self.follower, Event::ReachesFollower(self.follower, handshake));
            }
        }
    }

    fn hear(&mut self, follower: usize, request: Request) {
        if follower != self.follower || (!self.connected && !request.is_handshake) {
            return;
        }
        let sent = Duration::from_micros(self.clients(request.sent) + 1);
        if request.is_handshake {
            self.connected = true;
            self.store.set_connected(true);
            self.store.record_resume(sent);
            self.ask(true);
            self.ask(false);
            self.at(self.now + self.settling(), Event::Check);
        } else if request.asks_quorum {
            self.store.record_quorum_answer(sent);
            self.newest_acknowledged = self.newest_acknowledged.max(Some(request.sent));
        } else {
            self.store.record_answer(sent);
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|number| number.parse().expect("a number"))
}

fn histories() -> u64 {
    number("LEASE_HISTORIES").unwrap_or(5_000)
}

#[test]
fn no_lease_outlives_its_session_at_the_leader() {
    let first = number("LEASE_SEED").unwrap_or_else(|| RandomState::new().hash_one(histories()) >> 1);
    println!(
        "LEASE_SEED={first} LEASE_HISTORIES={} cargo test -p zk-rwlock-tests --test models lease_model::",
        histories()
    );
    for (timeout, tick) in [(4_000 * MS, 500 * MS), (4_000 * MS, 2_000 * MS), (10_000 * MS, 2_000 * MS)] {
        let mut scores = Scores::default();
        for seed in (first..).take(usize::try_from(histories()).expect("a number of histories")) {
            World::new(seed, timeout, tick, 1_000).play(&mut scores);
            assert_eq!(
                scores.ours.broken,
                0,
                "LEASE_SEED={seed}, by {:.3} T",
                scores.ours.worst as f64 / timeout as f64
            );
        }
        let percent = |count: u64| count as f64 * 100.0 / histories() as f64;
        let share = |worst: Time| worst as f64 / timeout as f64;
        println!(
            "T = {} s, tick = {} ms: {} histories, the lease kept in {:.0} of 100; it outlives the session in {}; by the \
             sending and 2/3 T in {:.1} of 100, by up to {:.2} T; without waiting for a ping in {:.1}, by up to {:.2} T",
            timeout / MS / 1_000,
            tick / MS,
            histories(),
            percent(scores.kept),
            scores.ours.broken,
            percent(scores.sending.broken),
            share(scores.sending.worst),
            percent(scores.hasty.broken),
            share(scores.hasty.worst),
        );
        // With few histories these cases may not occur: a wrong rule fails in 3 of 100 histories, and the lease stays
        // valid in 55.
        if histories() >= 1_000 {
            assert!(scores.sending.broken > 0 && scores.hasty.broken > 0);
            assert!(percent(scores.kept) > 30.0, "too few leases were valid until the end");
        }
    }
}

/// The margin is a sixth of the session timeout here, so the client's clock may run at five sixths of the leader's
/// speed. With a faster clock the lease ends earlier, and the client checks earlier whether a heartbeat extends the
/// lease.
#[test]
fn a_clock_may_be_slow_by_the_margin_but_no_more() {
    let first = number("LEASE_SEED").unwrap_or_else(|| RandomState::new().hash_one(histories()) >> 1);
    println!("LEASE_SEED={first} LEASE_HISTORIES={}", histories());
    for (timeout, tick) in [(4_000 * MS, 500 * MS), (10_000 * MS, 2_000 * MS)] {
        let outlived = |rates: [u64; 2]| {
            let mut scores = Scores::default();
            for seed in (first..).take(usize::try_from(histories()).expect("a number of histories")) {
                let rate = rates[0] + Seeded(seed ^ 7).below(rates[1] - rates[0] + 1);
                World::new(seed, timeout, tick, rate).play(&mut scores);
            }
            scores.ours.broken
        };
        assert_eq!(outlived([834, 1_100]), 0);
        let beyond = outlived([750, 800]);
        println!(
            "T = {} s: slower by a fifth to a quarter, the lease outlives {beyond} sessions",
            timeout / MS / 1_000
        );
        assert!(beyond > 0, "the model does not show what a slow clock does");
    }
}
