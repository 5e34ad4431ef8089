//! Random faults during a swarm: connections of clients break, servers crash or freeze, and links between servers fall
//! silent.

use std::sync::Arc;
use std::time::{Duration, Instant};

use support::ensemble::Ensemble;
use support::scene::Seeded;
use support::server::Server;
use support::txn_log::Txn;
use support::wire::{Op, Proxy};
use tokio::time::sleep_until;

pub(super) fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

/// Returns the seed in the environment variable `name`, or a seed from the clock.
pub(super) fn seed(name: &str) -> u64 {
    let fresh = || std::time::UNIX_EPOCH.elapsed().expect("the clock is right").as_nanos() as u64 % 1_000_000_000;
    setting(name).unwrap_or_else(fresh)
}

/// The servers of a swarm: one server, or an ensemble of three.
#[derive(Debug)]
pub(super) enum Site {
    One(Server),
    Three(Ensemble),
}

impl Site {
    /// Starts one server or three.
    pub(super) async fn start(servers: u64) -> Arc<Site> {
        let start = move || match servers {
            1 => Site::One(Server::start()),
            3 => Site::Three(Ensemble::start()),
            other => panic!("{other} servers: only 1 or 3 are possible"),
        };
        Arc::new(tokio::task::spawn_blocking(start).await.expect("the servers start"))
    }

    fn servers(&self) -> Vec<&Server> {
        match self {
            Site::One(server) => vec![server],
            Site::Three(ensemble) => (0..3).map(|number| ensemble.server(number)).collect(),
        }
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        self.servers().into_iter().map(Server::address).collect()
    }

    /// Returns the number of watches on the servers.
    pub(super) fn watches(&self) -> u64 {
        self.servers().into_iter().map(Server::watches).sum()
    }

    /// Returns all transactions that the servers have carried out.
    pub(super) fn transactions(&self) -> Vec<Txn> {
        match self {
            Site::One(server) => server.transactions(),
            Site::Three(ensemble) => ensemble.transactions(),
        }
    }

    /// Causes a fault of the servers that lasts for `lasts`. A fault of the links between servers lasts three times as
    /// long. `kind` and `which` select the fault and the server. Returns the name of the fault.
    fn fail(&self, kind: u64, which: usize, lasts: Duration) -> &'static str {
        let servers = self.servers();
        let server = servers[which % servers.len()];
        let ensemble = match self {
            Site::Three(ensemble) if kind > 1 => ensemble,
            _ if kind == 0 => {
                server.restart();
                return "fault: server killed and restarted";
            }
            _ => {
                server.pause();
                std::thread::sleep(lasts);
                server.resume();
                return "fault: server frozen";
            }
        };
        let followers = ensemble.followers();
        let (name, some) = match kind {
            2 => ("fault: follower cut off from the leader", &followers[..1]),
            3 => ("fault: leader cut off from its followers", &followers[..]),
            _ => ("fault: follower behind the leader", &followers[..1]),
        };
        for follower in some {
            match kind {
                2 | 3 => ensemble.cut_from_leader(*follower),
                _ => ensemble.hold_from_leader(*follower),
            }
        }
        // Three times longer than other faults, because servers close a silent connection only after 5 s.
        std::thread::sleep(3 * lasts);
        ensemble.heal_links();
        name
    }
}

/// Breaks connections of clients at random until `end`. Each client has a proxy for each server.
pub(super) async fn fail_links(clients: &[&[Proxy]], saw: &(impl Fn(&str) + Sync), mut dice: Seeded, end: Instant) {
    // The kinds of requests of which a request or a reply is lost. A kind whose loss leaves the outcome unknown is
    // listed more than once, so that it is chosen more often.
    const OPS: [Op; 8] =
        [Op::Create2, Op::Create2, Op::Create2, Op::Multi, Op::Multi, Op::Delete, Op::GetChildren2, Op::GetData];
    while Instant::now() < end {
        let proxies = clients[dice.below(clients.len() as u64) as usize];
        let op = OPS[dice.below(OPS.len() as u64) as usize];
        // The shortest faults end nothing. Longer ones end a lease, and the longest a session.
        let lasts = Duration::from_millis([100, 500, 2_000, 6_000][dice.below(4) as usize]);
        let lasts = lasts.mul_f64(0.2 + dice.below(100) as f64 / 100.0);
        let kind = dice.below(12);
        let mut held = Vec::new();
        let name = match kind {
            0 => "black hole",
            1 => "requests late",
            2 => "answers late",
            3 => "cut",
            4 => "reset",
            5 => "disconnected",
            6..=8 => "reply dropped",
            9 => "request dropped",
            10 => "reply held",
            _ => "request held",
        };
        for proxy in proxies {
            match kind {
                0 => proxy.black_hole(),
                1 => proxy.black_hole_to_server(),
                2 => proxy.black_hole_to_client(),
                3 => proxy.cut(),
                4 => proxy.rst(),
                5 => proxy.disconnect(),
                6..=8 => drop(proxy.drop_reply(op, 1)),
                9 => drop(proxy.drop_request(op, 1)),
                10 => held.push(proxy.hold_reply(op)),
                _ => held.push(proxy.hold_request(op)),
            }
        }
        saw(&format!("fault: {name}"));
        if kind <= 3 || kind >= 10 {
            pause(lasts, end).await;
        }
        drop(held);
        if kind <= 3 {
            proxies.iter().for_each(Proxy::heal);
        }
        pause(Duration::from_millis(dice.below(300)), end).await;
    }
}

pub(super) async fn fail_servers(site: Arc<Site>, saw: impl Fn(&str), mut dice: Seeded, end: Instant) {
    let kinds = if matches!(*site, Site::Three(_)) { 5 } else { 2 };
    while Instant::now() < end {
        pause(Duration::from_millis(3_000 + dice.below(6_000)), end).await;
        if Instant::now() >= end {
            return;
        }
        let (kind, which) = (dice.below(kinds), dice.below(3) as usize);
        let lasts = Duration::from_millis(100 + dice.below(2_500));
        let there = Arc::clone(&site);
        saw(tokio::task::spawn_blocking(move || there.fail(kind, which, lasts)).await.expect("servers can be handled"));
    }
}

/// Sleeps for the time `lasts`, but not beyond `end`.
pub(super) async fn pause(lasts: Duration, end: Instant) {
    sleep_until((Instant::now() + lasts).min(end).into()).await;
}
