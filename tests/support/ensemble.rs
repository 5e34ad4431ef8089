//! An ensemble of three real servers. A test can silence the links between them. Use it for what one server cannot
//! show: a follower that lags, a leader that is cut off, an election, a rolling restart.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::port::Port;
use super::rounds::{Ends, shared};
use super::server::Server;
use super::txn_log::{self, Txn};

const SIZE: usize = 3;
const LEADER_LISTENS_WITHIN: Duration = Duration::from_secs(3);
const ELECTION_LIMIT: Duration = Duration::from_secs(120);

/// Locks and returns the ensemble that all tests of this process share. A test must end with all three servers running.
/// The servers die with the process.
pub async fn shared_ensemble() -> tokio::sync::MutexGuard<'static, Ensemble> {
    static SHARED: OnceLock<tokio::sync::Mutex<Ensemble>> = OnceLock::new();
    let start = || shared(&SHARED, || tokio::sync::Mutex::new(Ensemble::start()));
    let ensemble = tokio::task::spawn_blocking(start).await.expect("the ensemble starts").lock().await;
    // A failed test may have left links silent.
    ensemble.heal_links();
    ensemble
}

/// Three servers, numbered from 0.
#[derive(Debug)]
pub struct Ensemble {
    servers: Vec<Server>,
    /// `links[a][b]` carries the traffic between follower `a` and leader `b`, in both directions.
    links: Vec<Vec<Link>>,
    /// The quorum port and the election port of each server. They stay reserved while the ensemble exists.
    _ports: Vec<(Port, Port)>,
}

impl Ensemble {
    /// Starts three servers. A follower notices a silent leader only after 5 s (a sync limit of 10 ticks of 500 ms), so
    /// a short session can expire first. ZooKeeper's default settings allow such sessions too.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts an ensemble as [`Ensemble::start`] does, with further options for Java.
    pub fn start_with(java_opts: &[&str]) -> Self {
        Self::start_patient(10, java_opts)
    }

    /// Starts an ensemble as [`Ensemble::start_with`] does. A leader and a follower that hear nothing from each other
    /// part after `sync_limit` ticks of 500 ms.
    pub fn start_patient(sync_limit: u32, java_opts: &[&str]) -> Self {
        let sync_limit = format!("syncLimit={sync_limit}");
        let ports: Vec<_> = (0..SIZE).map(|_| (Port::reserve(), Port::reserve())).collect();
        let link = |(quorum, _): &(Port, Port)| Link::start(quorum.address());
        let links: Vec<Vec<_>> = (0..SIZE).map(|_| ports.iter().map(link).collect()).collect();
        let member = |me: usize| {
            let mut lines = vec!["tickTime=500".to_owned(), "initLimit=20".to_owned(), sync_limit.clone()];
            for (other, (quorum, election)) in ports.iter().enumerate() {
                // A server listens on its own port, and reaches the others through its links.
                let quorum = if other == me { quorum } else { &links[me][other].port };
                lines.push(format!("server.{}=127.0.0.1:{quorum}:{election}", other + 1));
            }
            let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
            Server::start_member(me + 1, &lines, java_opts)
        };
        // No server serves before two servers have started, so all of them are started at the same time.
        let member = &member;
        let servers = thread::scope(|scope| {
            let starting: Vec<_> = (0..SIZE).map(|me| scope.spawn(move || member(me))).collect();
            starting.into_iter().map(|server| server.join().expect("a member starts")).collect()
        });
        Self { servers, links, _ports: ports }
    }

    pub fn server(&self, number: usize) -> &Server {
        &self.servers[number]
    }

    /// Returns the addresses of all servers as a connect string.
    pub fn addresses(&self) -> String {
        self.servers.iter().map(Server::address).collect::<Vec<_>>().join(",")
    }

    /// Returns all transactions that the ensemble has carried out.
    pub fn transactions(&self) -> Vec<Txn> {
        txn_log::of_ensemble(&self.servers.iter().map(Server::data).collect::<Vec<_>>())
    }

    /// Returns the number of the current leader. Waits for an election if there is none.
    pub fn leader(&self) -> usize {
        let deadline = Instant::now() + ELECTION_LIMIT;
        loop {
            // Asks every server, because some may be dead or frozen.
            if let Some(leader) = (0..SIZE).find(|number| self.leads(*number)) {
                return leader;
            }
            assert!(Instant::now() < deadline, "the ensemble elected no leader");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the numbers of the current followers.
    pub fn followers(&self) -> Vec<usize> {
        let leader = self.leader();
        (0..SIZE).filter(|number| *number != leader).collect()
    }

    /// Silences the link between a follower and the leader, in both directions. Their connection stays open, and
    /// clients still reach both servers.
    pub fn cut_from_leader(&self, follower: usize) {
        self.link_to_leader(follower).silence(true);
    }

    /// Silences the link from the leader to a follower, so that the follower lags. The leader still hears the follower.
    /// The two close their connection after 5 s (the sync limit).
    pub fn hold_from_leader(&self, follower: usize) {
        self.link_to_leader(follower).silent.from_leader.store(true, Ordering::SeqCst);
    }

    /// Silences all links of the leader and restarts its followers, which elect another leader. The old leader does not
    /// learn of the election, and goes on as a leader without followers until the sync limit. Returns the number of the
    /// old leader.
    pub fn leave_leader_alone(&self) -> usize {
        let (leader, followers) = (self.leader(), self.followers());
        for follower in &followers {
            for link in [&self.links[*follower][leader], &self.links[leader][*follower]] {
                link.silence(true);
            }
        }
        thread::scope(|scope| {
            for follower in &followers {
                scope.spawn(|| self.servers[*follower].restart());
            }
        });
        leader
    }

    /// Returns whether this server reports that it is the leader.
    pub fn leads(&self, number: usize) -> bool {
        self.servers[number].status().is_some_and(|status| status.contains("Mode: leader"))
    }

    /// Ends all silences of links. Data that was held back is delivered, unless its connection was closed meanwhile.
    pub fn heal_links(&self) {
        self.links.iter().flatten().for_each(|link| link.silence(false));
    }

    /// Kills each server in turn (SIGKILL) and restarts it. Calls `settled` after each restart, once all servers serve
    /// again.
    pub fn roll(&self, mut settled: impl FnMut()) {
        for server in &self.servers {
            server.restart();
            let deadline = Instant::now() + ELECTION_LIMIT;
            while self.leads_or_follows() < SIZE {
                assert!(Instant::now() < deadline, "the ensemble does not become whole again");
                thread::sleep(Duration::from_millis(20));
            }
            settled();
        }
    }

    /// Returns whether all three servers serve, as leader or as follower.
    pub fn is_whole(&self) -> bool {
        self.leads_or_follows() == SIZE
    }

    fn leads_or_follows(&self) -> usize {
        let serves = |server: &&Server| server.status().is_some_and(|status| status.contains("Mode:"));
        self.servers.iter().filter(serves).count()
    }

    fn link_to_leader(&self, follower: usize) -> &Link {
        &self.links[follower][self.leader()]
    }
}

impl Ends for tokio::sync::Mutex<Ensemble> {
    fn end(&self) {
        // If a test still has the lock, the servers end with the process instead.
        if let Ok(ensemble) = self.try_lock() {
            ensemble.servers.iter().for_each(Ends::end);
        }
    }
}

/// The directions in which a link is silent.
#[derive(Debug, Default)]
struct Silent {
    to_leader: AtomicBool,
    from_leader: AtomicBool,
}

/// A TCP forwarder to one port. While the link is silent, it holds back data and FINs. They are lost if the connection
/// is closed meanwhile.
#[derive(Debug)]
struct Link {
    port: Port,
    silent: Arc<Silent>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Link {
    fn start(target: SocketAddr) -> Self {
        let port = Port::reserve();
        let listener = port.listen();
        let (silent, open) = (Arc::<Silent>::default(), Arc::new(Mutex::new(Vec::new())));
        let link = Self { port, silent: Arc::clone(&silent), open: Arc::clone(&open) };
        // The thread ends with the process, because nothing can interrupt a thread that accepts connections.
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let (silent, open) = (Arc::clone(&silent), Arc::clone(&open));
                thread::spawn(move || carry(near, target, &silent, &open));
            }
        });
        link
    }

    /// Silences both directions, or ends the silence.
    fn silence(&self, silent: bool) {
        self.silent.to_leader.store(silent, Ordering::SeqCst);
        self.silent.from_leader.store(silent, Ordering::SeqCst);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.silence(false);
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn carry(near: TcpStream, target: SocketAddr, silent: &Arc<Silent>, open: &Mutex<Vec<TcpStream>>) {
    // Retries, because a new leader begins to listen a moment after its followers connect. If the link accepted and
    // then closed the follower's connection, the follower would take its leader for dead and start an election.
    let deadline = Instant::now() + LEADER_LISTENS_WITHIN;
    let far = loop {
        match TcpStream::connect(target) {
            Ok(far) => break far,
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
            Err(_) => return,
        }
    };
    for (from, to, is_to_leader) in [(&near, &far, true), (&far, &near, false)] {
        let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { return };
        let silent = Arc::clone(silent);
        thread::spawn(move || forward(from, to, if is_to_leader { &silent.to_leader } else { &silent.from_leader }));
    }
    open.lock().unwrap_or_else(PoisonError::into_inner).extend([near, far]);
}

fn forward(mut from: TcpStream, mut to: TcpStream, silent: &AtomicBool) {
    let wait = || {
        while silent.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
    };
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        wait();
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    wait();
    let _ = to.shutdown(Shutdown::Both);
}
