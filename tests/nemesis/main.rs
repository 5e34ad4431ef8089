//! `make nemesis`: one holder, one waiting writer and one fault, for this library, Curator and kazoo in turn, on the
//! same three servers.
//!
//! The test measures how long the holder's own API still says "held" after another contender was granted the lock. It
//! is not part of `cargo test`, because it needs the programs that `tests/interop/setup.sh` installs. `NEMESIS_ROUNDS`
//! (20) is the number of rounds of each library under each fault. All rounds of one fault run at the same time, because
//! they mostly sleep. Each round has its own path, process and connection.

mod peer;
mod results;

use std::thread;
use std::time::{Duration, Instant};

use peer::{TIMEOUT, Waiters, clock};
use results::{ANSWERS_LOST, BLACK_HOLE, BREAK, CUT, CUT_ALONE, FAULTS, LIBRARIES, PAUSE, REQUESTS_LOST, Round};
use support::ensemble::Ensemble;
use support::peer::Peer;
use support::process::signal;
use support::scene::*;
use support::wire::Proxy;
use tokio::runtime::{Handle, Runtime};
use zk_rwlock::ZooKeeper;

/// The number of ticks (500 ms) after which servers close a silent connection between them: 10 s, as in ZooKeeper's
/// sample configuration.
const SYNC_LIMIT: u32 = 20;

/// The number of rounds of a library that run during one cut between servers. Such a cut affects all rounds on the
/// servers.
const ROUNDS_IN_A_CUT: usize = 5;

/// The largest number of starts of a round. A round is started again if the holder's API reported trouble before the
/// fault.
const TRIES: usize = 5;

/// The duration of a cut between servers. It is longer than the 10 s of [`SYNC_LIMIT`].
const CUT_LASTS: Duration = Duration::from_secs(16);

/// The duration of all other faults: three session timeouts.
const LONG: Duration = Duration::from_secs(12);

/// The time for which a round is observed after its fault: one session timeout.
const AFTERWARDS: Duration = Duration::from_secs(4);

fn rounds() -> usize {
    std::env::var("NEMESIS_ROUNDS").map_or(20, |rounds| rounds.parse().expect("NEMESIS_ROUNDS is a number"))
}

/// The servers and clients that all rounds share.
struct Field {
    ensemble: Ensemble,
    leader: usize,
    /// The index of the follower to which every holder is connected.
    follower: usize,
    /// Proxies in front of the other servers. While the proxies are cut, a holder can reach only its follower.
    doors: Vec<Proxy>,
    operator: ZooKeeper,
    runtime: Handle,
}

impl Field {
    fn set(runtime: &Runtime) -> Field {
        let ensemble = Ensemble::start_patient(SYNC_LIMIT, &[]);
        let (leader, follower) = (ensemble.leader(), ensemble.followers()[0]);
        let others = (0..3).filter(|number| *number != follower);
        let doors = others.map(|number| Proxy::start(ensemble.server(number).address())).collect();
        let operator = runtime.block_on(connect(&ensemble.server(leader).address()));
        Field { ensemble, leader, follower, doors, operator, runtime: runtime.handle().clone() }
    }

    /// Calls `each` for the contenders of every round, all at the same time.
    fn all<'c, T: Send>(contenders: Vec<Contenders<'c>>, each: impl Fn(Contenders<'c>) -> T + Sync) -> Vec<T> {
        let each = &each;
        thread::scope(|scope| {
            let all: Vec<_> = contenders.into_iter().map(|it| scope.spawn(move || each(it))).collect();
            all.into_iter().map(|round| round.join().expect("no round fails")).collect()
        })
    }

    fn fault_of_a_holder(&self, fault: &'static str, contenders: Vec<Contenders<'_>>) -> Vec<Round> {
        Field::all(contenders, |contenders| {
            let link = Proxy::start(self.ensemble.server(self.follower).address());
            let held = self.held(fault, contenders, &link.address());
            // The rounds spread the beginning of the fault over the time between two heartbeats.
            thread::sleep(TIMEOUT.mul_f64(held.contenders.round as f64 * 0.618 % 0.5));
            self.suffer(held, &link)
        })
    }

    fn cut_from_leader(&self, fault: &'static str, contenders: Vec<Contenders<'_>>) -> Vec<Round> {
        self.doors.iter().for_each(Proxy::cut);
        let doors = self.doors.iter().map(Proxy::address).collect::<Vec<_>>().join(",");
        let mut servers = self.ensemble.server(self.follower).address();
        if fault == CUT {
            servers += &format!(",{doors}");
        }
        let held = Field::all(contenders, |contenders| self.held(fault, contenders, &servers));
        self.doors.iter().for_each(Proxy::reset);
        self.doors.iter().for_each(Proxy::heal);
        assert_eq!(
            self.doors.iter().map(Proxy::connections).sum::<u64>(),
            0,
            "a holder is connected to another server"
        );
        let begun = clock();
        self.ensemble.cut_from_leader(self.follower);
        thread::sleep(CUT_LASTS);
        self.ensemble.heal_links();
        thread::sleep(AFTERWARDS);
        let rounds = held.into_iter().map(|held| self.ended(held, begun, None)).collect();
        let deadline = Instant::now() + SOON;
        while !self.ensemble.is_whole() {
            assert!(Instant::now() < deadline, "the follower does not come back");
            thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(self.ensemble.leader(), self.leader, "another leader: the waiters were cut off as well");
        rounds
    }

    /// Starts the contenders of a round. Returns when the holder holds and the other contender waits.
    fn held<'c>(&self, fault: &'static str, contenders: Contenders<'c>, servers: &str) -> Held<'c> {
        let Contenders { library, round, void, .. } = contenders;
        let path = format!("/nemesis-{}-{library}-{round}-{void}", fault.replace([' ', ','], "-"));
        contenders.holder.send(&format!("hold {servers} {path}"));
        let node = contenders.holder.says("held");
        contenders.waiters.wait(&self.ensemble.server(self.leader).address(), &path);
        let both = || async { children(&self.operator, &path).await.len() == 2 };
        self.runtime.block_on(eventually("the other contender queues up", both));
        assert_eq!(contenders.waiters.granted(&path), None, "two hold {path} without a fault");
        Held { fault, path, node, contenders }
    }

    fn suffer(&self, held: Held<'_>, link: &Proxy) -> Round {
        let begun = clock();
        let mut resumed = None;
        match held.fault {
            BLACK_HOLE => link.black_hole(),
            ANSWERS_LOST => link.black_hole_to_client(),
            REQUESTS_LOST => link.black_hole_to_server(),
            BREAK => {
                link.black_hole();
                thread::sleep(TIMEOUT.mul_f64(0.4));
                link.heal();
            }
            PAUSE => {
                signal(held.contenders.holder.child.id(), "STOP");
                thread::sleep(TIMEOUT * 2);
                resumed = Some(clock());
                signal(held.contenders.holder.child.id(), "CONT");
            }
            _ => self.runtime.block_on(async {
                session(&self.operator).await.delete(&held.node).await.expect("the operator may delete");
            }),
        }
        thread::sleep(LONG.saturating_sub(Duration::from_nanos(clock() - begun)));
        link.heal();
        thread::sleep(AFTERWARDS);
        self.ended(held, begun, resumed)
    }

    /// Waits until the other contender has the lock, ends the round, and returns its times. The fault began at `begun`.
    fn ended(&self, held: Held<'_>, begun: u64, resumed: Option<u64>) -> Round {
        let Held { fault, path, contenders: Contenders { library, round, void, holder, waiters }, .. } = held;
        let (end, granted) = (clock(), waiters.granted(&path));
        holder.send("end");
        let said = holder.says("ended");
        let words: Vec<&str> = said.split(' ').collect();
        let [signal, lost, held_until, denied_from, went_on, answer] = words[..] else {
            panic!("unexpected line {said:?}")
        };
        let since = |time: u64| (time as f64 - begun as f64) / 1e6;
        let time = |word: &str| Some(word.parse::<u64>().expect("a time")).filter(|time| *time > 0);
        let went_on = time(went_on).filter(|_| resumed.is_some());
        assert!(went_on >= resumed, "{library}: no question was asked after the pause");
        let deadline = Instant::now() + SOON;
        while waiters.granted(&path).is_none() {
            assert!(Instant::now() < deadline, "{path} is never granted to the other contender");
            thread::sleep(Duration::from_millis(20));
        }
        Round {
            fault: fault.to_owned(),
            library: library.to_owned(),
            round,
            void,
            granted: granted.map(since),
            resumed: resumed.map(since),
            first_answer: went_on.map(|_| answer.to_owned()),
            held_until: since(time(held_until).expect("the holder holds at first")),
            denied_from: time(denied_from).map(since),
            signal: time(signal).map(since),
            lost: time(lost).map(since),
            end: since(end),
        }
    }
}

/// The processes of the two contenders of a round.
struct Contenders<'c> {
    library: &'static str,
    round: usize,
    /// The number of starts of this round so far in which the holder's API reported trouble before the fault.
    void: usize,
    holder: &'c mut Peer,
    waiters: &'c Waiters,
}

/// A round before its fault: the holder holds the lock.
struct Held<'c> {
    fault: &'static str,
    path: String,
    node: String,
    contenders: Contenders<'c>,
}

/// The processes of a library: one for each holder, and one for all waiters.
struct Company {
    library: &'static str,
    holders: Vec<Peer>,
    waiters: Waiters,
}

impl Company {
    /// Starts the processes, and lets each acquire once before the rounds, because a Java virtual machine loads many
    /// classes at its first acquisition.
    fn enlist(library: &'static str, rounds: usize, server: &str) -> Company {
        let mut peers: Vec<Peer> = (0..=rounds).map(|_| peer::start(library)).collect();
        for (number, peer) in peers.iter_mut().enumerate() {
            peer.says("ready");
            peer.send(&format!("hold {server} /nemesis-first-{library}-{number}"));
        }
        for peer in &mut peers {
            peer.says("held");
            peer.send("end");
            peer.says("ended");
        }
        let waiters = Waiters::of(peers.pop().expect("one process more than holders"));
        Company { library, holders: peers, waiters }
    }

    fn contenders(&mut self, void: usize, wanted: impl Fn(&'static str, usize) -> bool) -> Vec<Contenders<'_>> {
        let Company { library, holders, waiters } = self;
        let all = holders.iter_mut().enumerate().filter(|(round, _)| wanted(library, *round));
        all.map(|(round, holder)| Contenders { library, round, void, holder, waiters }).collect()
    }
}

/// Runs all rounds of one fault. Starts a round again if it is [void](Round::is_void).
fn suffer(field: &Field, companies: &mut [Company], fault: &'static str, rounds: usize) -> Vec<Round> {
    let mut shown: Vec<Round> = Vec::new();
    let is_cut = [CUT, CUT_ALONE].contains(&fault);
    let at_once = if is_cut { ROUNDS_IN_A_CUT } else { rounds };
    for first in (0..rounds).step_by(at_once) {
        let together = first..rounds.min(first + at_once);
        for void in 0.. {
            assert!(void < TRIES, "{fault}: this machine is too busy");
            let is_shown = |library: &str, round| shown.iter().any(|it| it.library == library && it.round == round);
            let wanted = |library: &'static str, round| together.contains(&round) && !is_shown(library, round);
            let contenders: Vec<_> = companies.iter_mut().flat_map(|it| it.contenders(void, wanted)).collect();
            if contenders.is_empty() {
                break;
            }
            let done = if is_cut {
                field.cut_from_leader(fault, contenders)
            } else {
                field.fault_of_a_holder(fault, contenders)
            };
            shown.extend(done.into_iter().filter(|round| !round.is_void()));
        }
    }
    shown.sort_by_key(|it| (LIBRARIES.iter().position(|library| it.library == *library), it.round));
    println!("{fault}: {} rounds, {} were void", shown.len(), shown.iter().map(|round| round.void).sum::<usize>());
    shown
}

#[test]
fn our_lock_keeps_its_promises_under_every_fault() {
    let (runtime, rounds) = (Runtime::new().unwrap(), rounds());
    let field = Field::set(&runtime);
    let server = field.ensemble.server(field.leader).address();
    let mut companies = LIBRARIES.map(|library| Company::enlist(library, rounds, &server));
    let shown: Vec<Round> =
        FAULTS.into_iter().flat_map(|fault| suffer(&field, &mut companies, fault, rounds)).collect();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/nemesis.jsonl.part");
    let lines: String = shown.iter().map(|round| serde_json::to_string(round).expect("plain data") + "\n").collect();
    std::fs::write(file, &lines).expect("writable");
    let shown = results::read(&lines);
    println!("\n{}\n{file}", results::table(&shown));
    results::judge(&shown, rounds);
}
