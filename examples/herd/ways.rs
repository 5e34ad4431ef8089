//! The three ways to wait for a lock.
//!
//! The first two are written for this comparison, as well as they can be: requests that do not need
//! each other's answers are sent together, no contender sleeps or polls, and one that needs no more events says so.

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
    /// The lock is one ephemeral node: all try to create it, and a contender that finds it there waits for its
    /// deletion.
    OneNode,
    /// A queue of sequential nodes, and everyone watches the directory: any change wakes all, who list it again.
    Children,
    /// This crate's.
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

/// Where a queue is, and of how many contenders on how many sessions.
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

/// The lock as it is held, which says how to release it.
enum Holder {
    Node(Client, String),
    Guard(WriteGuard),
}

impl Line {
    /// Returns when the next contender was granted the lock, by its own clock.
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

    /// Waits until so many contenders have seen that they have to wait, and have armed their watches.
    pub(crate) async fn all_wait(&mut self, contenders: usize) -> Result<()> {
        if self.way == Way::Ours {
            // A contender that was not granted the lock had no event, and waits as before.
            return Ok(());
        }
        tokio::select! {
            () = self.waiting.reach(contenders) => Ok(()),
            failed = failure(&mut self.contenders) => failed,
        }
    }

    /// Ends all sessions, and with them what is left of the queue.
    pub(crate) async fn disperse(mut self) {
        self.contenders.shutdown().await;
        drop(self.holder);
        for client in &self.clients {
            client.close().await;
        }
    }
}

/// The error of the first contender that fails; those that were granted the lock have ended well.
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

/// How many contenders of a naive way have armed their watch since the last release.
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

/// Has `n` contenders wait behind a holder on a session of its own.
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
        // What each does once it has a node was sent behind the node; all that remains is to let it arrive.
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
    // All are in the queue before the first one lists it: how it came about is not what is compared.
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

/// One node that all retry for.
async fn create_when_gone(client: &Client, node: &str, waiting: &Waiting) -> Result<Instant> {
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    loop {
        // Sent together, so that a loser waits again after one round trip.
        let created = client.create(node, b"", &ephemeral);
        let watched = client.get_and_watch_data(node);
        let created = created.await.map(|_| Instant::now());
        let watched = watched.await;
        match created {
            // It needs no event of its own deletion: dropping the watcher removes the watch.
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

/// A shared lock with a watch on the directory's children.
async fn list_until_first(client: &Client, directory: &str, node: &str, waiting: &Waiting) -> Result<Instant> {
    let mine = node.rsplit('/').next().unwrap_or(node);
    loop {
        let (children, watcher) = client.list_and_watch_children(directory).await?;
        // Names differ in nothing but their number, which has ten digits. The watcher of the first one is dropped, and
        // with it the watch: a holder needs no events of those that come and go.
        if children.iter().all(|child| child.as_str() >= mine) {
            return Ok(Instant::now());
        }
        waiting.one_more();
        watcher.changed().await;
    }
}
