//! The three ways to wait for a lock that this example compares.
//!
//! The first two ways are written for this comparison, as efficiently as possible: independent requests are sent
//! together, no contender sleeps or polls, and a contender that needs no more events removes its watch.

use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{RwLock, WriteGuard, ZooKeeper};
use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::common::Result;

const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The lock is one ephemeral node. All contenders try to create it. If the node exists, they wait for its deletion.
    OneNode,
    /// A queue of sequential nodes. Every contender watches the directory, so any change wakes all of them, and they
    /// list the directory again.
    Children,
    /// The lock of this crate.
    Ours,
}

impl Way {
    pub(crate) const ALL: [Way; 3] = [Way::OneNode, Way::Children, Way::Ours];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::OneNode => "one-node",
            Way::Children => "children",
            Way::Ours => "ours",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Way::OneNode => "one node that all retry for",
            Way::Children => "a watch on the directory",
            Way::Ours => "a watch on the one before (ours)",
        }
    }
}

/// The place and size of a queue.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) servers: String,
    pub(crate) directory: String,
    pub(crate) n: usize,
    pub(crate) sessions: usize,
}

/// A queue: one contender holds the lock, and the others wait for it in tasks of their own.
pub(crate) struct Line {
    way: Way,
    holder: Option<Holder>,
    granted: mpsc::UnboundedReceiver<(Instant, Holder)>,
    waiting: Waiting,
    contenders: JoinSet<Result<()>>,
    clients: Vec<ZooKeeper>,
}

/// A held lock, with the data that its release needs.
enum Holder {
    Node(Client, String),
    Guard(WriteGuard),
}

impl Line {
    /// Releases the lock. Returns the time at which the next contender was granted the lock, as this contender reports
    /// it.
    pub(crate) async fn release_and_wait_for_the_next(&mut self) -> Result<Instant> {
        self.waiting.nobody();
        match self.holder.take().ok_or("nobody holds the lock")? {
            Holder::Node(client, node) => client.delete(&node, None).await?,
            Holder::Guard(guard) => guard.release().await?,
        }
        tokio::select! {
            Some((at, holder)) = self.granted.recv() => {
                self.holder = Some(holder);
                Ok(at)
            }
            failed = failure(&mut self.contenders) => failed,
        }
    }

    /// Waits until this many contenders have found that they must wait, and have set their watches.
    pub(crate) async fn all_wait(&mut self, contenders: usize) -> Result<()> {
        if self.way == Way::Ours {
            // With the lock of this crate, a release sends no event to the other contenders, so they still wait.
            return Ok(());
        }
        tokio::select! {
            () = self.waiting.reach(contenders) => Ok(()),
            failed = failure(&mut self.contenders) => failed,
        }
    }

    /// Ends all sessions, and so removes the rest of the queue.
    pub(crate) async fn disperse(mut self) {
        self.contenders.shutdown().await;
        drop(self.holder);
        for client in &self.clients {
            client.close().await;
        }
    }
}

/// Waits until a contender fails, and returns the error. Ignores the contenders that end without an error, because they
/// were granted the lock.
async fn failure<T>(contenders: &mut JoinSet<Result<()>>) -> Result<T> {
    while let Some(ended) = contenders.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error),
            Err(error) => return Err(error.into()),
        }
    }
    std::future::pending().await
}

/// The number of contenders of the first two ways that have set their watch since the last release.
#[derive(Clone, Debug)]
struct Waiting(watch::Sender<usize>);

impl Waiting {
    fn nobody(&self) {
        self.0.send_replace(0);
    }

    fn one_more(&self) {
        self.0.send_modify(|waiting| *waiting += 1);
    }

    async fn reach(&self, contenders: usize) {
        let _ = self.0.subscribe().wait_for(|waiting| *waiting >= contenders).await;
    }
}

/// Makes `n` contenders wait behind a holder. The holder has a session of its own.
pub(crate) async fn queue_up(way: Way, scene: &Scene) -> Result<Line> {
    let Scene { servers, directory, n, sessions } = scene;
    let directory = format!("{directory}/{}-{n}", way.name());
    let (grant, granted) = mpsc::unbounded_channel();
    let mut line = Line {
        way,
        holder: None,
        granted,
        waiting: Waiting(watch::Sender::new(0)),
        contenders: JoinSet::new(),
        clients: Vec::new(),
    };
    if way == Way::Ours {
        for _ in 0..=*sessions {
            line.clients.push(ZooKeeper::builder().session_timeout(SESSION_TIMEOUT).connect(servers).await?);
        }
        let gate = &line.clients[*sessions];
        line.holder = Some(Holder::Guard(RwLock::new(gate, &directory)?.write().await?));
        for contender in 0..*n {
            let lock = RwLock::new(&line.clients[contender % sessions], &directory)?;
            let grant = grant.clone();
            line.contenders.spawn(async move {
                let guard = lock.write().await?;
                let _ = grant.send((Instant::now(), Holder::Guard(guard)));
                Ok(())
            });
        }
        let session_slot = gate.session_slot(0).await?;
        while session_slot.session().children(&directory).await?.len() <= *n {
            sleep(Duration::from_millis(20)).await;
        }
        // All nodes exist. Each contender has already sent the requests that follow its create, so there is nothing else to
        // wait for.
        return Ok(line);
    }

    let mut clients = Vec::new();
    for _ in 0..=*sessions {
        clients.push(Client::connector().with_session_timeout(SESSION_TIMEOUT).connect(servers).await?);
    }
    let gate = clients[*sessions].clone();
    gate.mkdir(&directory, &CreateMode::Container.with_acls(Acls::anyone_all())).await?;
    let node = match way {
        Way::Children => enter(&gate, &directory).await?,
        _ => format!("{directory}/lock"),
    };
    if way == Way::OneNode {
        gate.create(&node, b"", &CreateMode::Ephemeral.with_acls(Acls::anyone_all())).await?;
    }
    line.holder = Some(Holder::Node(gate, node.clone()));
    // All contenders are in the queue before the first one lists it, because the comparison does not cover queueing up.
    let mut nodes = vec![node; *n];
    if way == Way::Children {
        let mut entering = JoinSet::new();
        for (contender, node) in nodes.iter_mut().enumerate() {
            let (client, directory) = (clients[contender % sessions].clone(), directory.clone());
            entering.spawn(async move { Ok::<_, Error>((contender, enter(&client, &directory).await?)) });
            node.clear();
        }
        while let Some(entered) = entering.join_next().await {
            let (contender, node) = entered??;
            nodes[contender] = node;
        }
    }
    for (contender, node) in nodes.into_iter().enumerate() {
        let (client, waiting, grant) = (clients[contender % sessions].clone(), line.waiting.clone(), grant.clone());
        let directory = directory.clone();
        line.contenders.spawn(async move {
            let at = match way {
                Way::OneNode => create_when_gone(&client, &node, &waiting).await?,
                _ => list_until_first(&client, &directory, &node, &waiting).await?,
            };
            let _ = grant.send((at, Holder::Node(client, node)));
            Ok(())
        });
    }
    line.all_wait(*n).await?;
    Ok(line)
}

/// Acquires the lock by creating one node, and tries again at each deletion.
async fn create_when_gone(client: &Client, node: &str, waiting: &Waiting) -> Result<Instant> {
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    loop {
        // Both requests are sent together, so that a contender that fails to create the node waits again after one round trip.
        let created = client.create(node, b"", &ephemeral);
        let watched = client.get_and_watch_data(node);
        let created = created.await.map(|_| Instant::now());
        let watched = watched.await;
        match created {
            // The holder needs no event about the deletion of its own node. Dropping the watcher removes the watch.
            Ok(at) => return Ok(at),
            Err(Error::NodeExists) => {}
            Err(error) => return Err(error.into()),
        }
        match watched {
            Ok((_, _, watcher)) => {
                waiting.one_more();
                watcher.changed().await;
            }
            Err(Error::NoNode) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

async fn enter(client: &Client, directory: &str) -> std::result::Result<String, Error> {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let prefix = format!("{directory}/write-");
    let (_, sequence) = client.create(&prefix, b"", &options).await?;
    Ok(format!("{prefix}{sequence}"))
}

/// Acquires the lock by listing the directory, and lists it again at each change of its children.
async fn list_until_first(client: &Client, directory: &str, node: &str, waiting: &Waiting) -> Result<Instant> {
    let mine = node.rsplit('/').next().unwrap_or(node);
    loop {
        let (children, watcher) = client.list_and_watch_children(directory).await?;
        // The names differ only in their number of ten digits, so their order as text is the order of the queue. A
        // holder needs no events, so the return drops the watcher, which removes the watch.
        if children.iter().all(|child| child.as_str() >= mine) {
            return Ok(Instant::now());
        }
        waiting.one_more();
        watcher.changed().await;
    }
}
