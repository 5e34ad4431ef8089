//! Follows the queues of locks and semaphores by ZooKeeper's watches, and also reads them at an interval. Prints a
//! queue whenever it has changed: as a table, or with `--json` as a line.
//!
//! A watch is set (`arm`) before the queue is read, so that it reports each later change. If the queue changes several
//! times before it is read, one table or line stands for several changes. The line says how many changes it stands for,
//! as far as zklock can tell.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::{self, FutureExt, select_all};
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedSender};
use zk_rwlock::coordinator::{Coordinator, Failure, Reply, Session, Watch, WatchEvent};
use zk_rwlock::queue::{Member, MemberState, NodeName};
use zk_rwlock::{ConnectionState, Dialect, Queue, Survey, ZooKeeper};

use crate::arguments::{ConnectionArguments, WatchArguments};
use crate::exit::Exit;
use crate::output;
use crate::place::LockOrSemaphore;
use crate::show::live::{SILENCE, none_if_transient};
use crate::show::{free_lock_warnings, print_warnings, table};

/// The interval at which zklock checks whether it is connected, and the shortest pause between two searches for locks.
const TICK: Duration = Duration::from_millis(100);

const SECOND: Duration = Duration::from_secs(1);

/// A lock that is followed: its path, and the naming scheme of its nodes.
type LockToFollow = (String, Dialect);

/// Prints the queues of the paths, and then each queue that changes. Ends when standard output has no reader any more,
/// or with an error that is not expected to pass.
pub(crate) async fn print_changes(
    zk: &ZooKeeper,
    order: &WatchArguments,
    connection: &ConnectionArguments,
) -> Result<u8, Exit> {
    let reports = &ConnectionReporter { zk, order, was_connected: Cell::new(true), last_report: Cell::new(None) };
    let begin = |lock: LockToFollow| async move { (follow_queue(reports, &lock).await, lock) }.boxed_local();
    let mut followed = FuturesUnordered::new();
    let mut known: BTreeSet<LockToFollow> = BTreeSet::new();
    let mut reporting = pin!(reports.report_until_no_reader());
    let (sender, mut found) = mpsc::unbounded_channel();
    let mut search = pin!(search_locks(zk, order, sender));
    if !order.tree {
        known.extend(order.paths.iter().map(|path| (path.clone(), connection.dialect)));
        followed.extend(known.iter().cloned().map(begin));
    }
    loop {
        tokio::select! {
            Some((ended, lock)) = followed.next() => match ended {
                // With `--tree`, zklock goes on with the other locks if one lock cannot be followed. This lock stays in
                // `known`, so that its message is printed only once.
                Err(exit) if order.tree => output::print_message(exit.message()),
                Err(exit) => return Err(exit),
                Ok(()) => _ = known.remove(&lock),
            },
            Some(lock) = found.recv(), if order.tree => {
                if known.insert(LockToFollow::clone(&lock)) {
                    followed.push(begin(lock));
                }
            }
            ended = &mut search, if order.tree => ended?,
            ended = &mut reporting => return ended.map(|()| 0),
        }
    }
}

/// Looks for locks at and below the paths again and again, and sends all that it finds each time.
async fn search_locks(
    zk: &ZooKeeper,
    order: &WatchArguments,
    found: UnboundedSender<LockToFollow>,
) -> Result<(), Exit> {
    let mut is_first = true;
    loop {
        for prefix in &order.paths {
            let Some(survey) = none_if_transient(Survey::below(zk, prefix).await)? else { continue };
            if is_first {
                print_warnings(&free_lock_warnings(zk, std::slice::from_ref(prefix), true, &survey.queues).await);
            }
            for queue in survey.queues {
                // This cannot fail, because the receiver lives as long as this future.
                let _ = found.send((queue.path, queue.dialect));
            }
        }
        is_first = false;
        tokio::time::sleep(order.interval.max(TICK)).await;
    }
}

/// Notices when the connection breaks and when it is back. With `--json`, prints a line for each path in both cases.
struct ConnectionReporter<'z> {
    zk: &'z ZooKeeper,
    order: &'z WatchArguments,
    was_connected: Cell<bool>,
    /// When the connection was last reported as broken or as back.
    last_report: Cell<Option<Instant>>,
}

impl ConnectionReporter<'_> {
    /// With `--json`, prints a line for each path if the connection broke or came back since the last call.
    fn report_change(&self) -> Result<(), Exit> {
        let state = self.zk.state();
        let is_connected = state == ConnectionState::Connected;
        if is_connected == self.was_connected.replace(is_connected) {
            return Ok(());
        }
        let why = match state {
            ConnectionState::Connecting { why, .. } => why,
            _ => None,
        };
        self.print(is_connected, why)
    }

    /// With `--json`, prints the two lines of a short disconnection: that the connection was lost, and that it is back.
    /// Call this function when the event of a watch shows that the connection was lost ([`WatchEvent::LookAgain`]).
    /// Prints nothing if the last report was a loss, or within a second of the last report, because several watches may
    /// report the same loss.
    fn report_short_break(&self) -> Result<(), Exit> {
        if self.was_connected.get() && self.last_report.get().is_none_or(|at| at.elapsed() > SECOND) {
            self.print(false, None)?;
            self.print(true, None)?;
        }
        Ok(())
    }

    fn print(&self, is_connected: bool, why: Option<String>) -> Result<(), Exit> {
        self.last_report.set(Some(Instant::now()));
        let event = if is_connected { "connected" } else { "disconnected" };
        for path in self.order.paths.iter().filter(|_| self.order.json) {
            print_json(&json!({ "at": rfc3339(SystemTime::now()), "event": event, "path": path, "why": why }))?;
        }
        Ok(())
    }

    /// Calls [`ConnectionReporter::report_change`] again and again, until standard output has no reader any more.
    async fn report_until_no_reader(&self) -> Result<(), Exit> {
        while output::has_reader() {
            self.report_change()?;
            tokio::time::sleep(TICK).await;
        }
        Ok(())
    }
}

/// Prints one queue, and prints it again after each change that is found. With `--tree`, returns when the lock's
/// directory is gone and the queue is empty.
async fn follow_queue(reports: &ConnectionReporter<'_>, (path, dialect): &LockToFollow) -> Result<(), Exit> {
    let (zk, order) = (reports.zk, reports.order);
    let place = LockOrSemaphore::at(zk, path, *dialect)?;
    let mut watches = Watches::new(path, *dialect);
    let (mut last, mut fired, mut told): (Option<QueueLook>, _, _) = (None, None, None);
    loop {
        let looked = {
            let mut look = pin!(async {
                watches.arm(zk).await;
                place.queue().await
            });
            match tokio::time::timeout(SILENCE, &mut look).await {
                Ok(looked) => looked,
                Err(_) => {
                    output::print_message(&format!("{path}: no answer for {}", humantime::format_duration(SILENCE)));
                    look.await
                }
            }
        };
        reports.report_change()?;
        if matches!(fired, Some((WatchEvent::LookAgain, _))) {
            reports.report_short_break()?;
        }
        if let Some(queue) = none_if_transient(looked)? {
            let at = told.take().unwrap_or_else(SystemTime::now);
            let mut seen = QueueLook::new(last.as_ref(), queue, watches.shown.clone());
            if let Some(before) = &last {
                let change = QueueChange::between(before, &mut seen, fired == Some((WatchEvent::Changed, true)));
                if change.unseen > 0 || printed_part(&before.queue) != printed_part(&seen.queue) {
                    seen.print(at, &change, order.json)?;
                }
            } else {
                if !order.tree {
                    print_warnings(&free_lock_warnings(zk, &[], false, std::slice::from_ref(&seen.queue)).await);
                }
                seen.print(at, &QueueChange::default(), order.json)?;
            }
            if order.tree && seen.shown.is_none() && seen.queue.members.is_empty() {
                return Ok(());
            }
            last = Some(seen);
        }
        fired = tokio::time::timeout(order.interval, watches.next_event()).await.ok();
        told = fired.map(|_| SystemTime::now()).or(told);
    }
}

/// What one look at a queue showed. A look sets (arms) the watches, and then reads the queue.
struct QueueLook {
    queue: Queue,
    /// The names that the directory showed when its watch was armed, before the queue was read. `None` if the watch
    /// could not be armed, usually because there was no directory.
    shown: Option<BTreeSet<String>>,
    /// The highest sequence number of the contenders in the queue. If the queue is empty, this is -1 if there is no
    /// directory, and otherwise the number of the previous look. `None` if the number of the previous look is not known
    /// either. [`QueueChange::between`] may raise this number.
    newest: Option<i64>,
}

impl QueueLook {
    fn new(before: Option<&QueueLook>, queue: Queue, shown: Option<BTreeSet<String>>) -> QueueLook {
        let newest = queue.members.iter().filter_map(|member| member_sequence(member, &queue)).max();
        // If there is no directory, the next contender gets the sequence number 0. In an empty directory, the numbers
        // continue after those of the previous look.
        let empty = if shown.is_none() { Some(-1) } else { before.and_then(|before| before.newest) };
        QueueLook { queue, shown, newest: newest.or(empty) }
    }

    /// Returns whether the contenders of the queue are those that its directory showed when the watch was armed.
    fn matches_directory(&self) -> bool {
        let is_contender = |name: &&String| NodeName::parse_as(name, self.queue.dialect).is_some();
        let members = self.queue.members.iter().map(|member| &member.node);
        self.shown.iter().flatten().filter(is_contender).collect::<BTreeSet<_>>() == members.collect()
    }

    fn print(&self, at: SystemTime, change: &QueueChange, is_json: bool) -> Result<(), Exit> {
        if !is_json {
            output::print_result(&format!(
                "{}\n",
                table::queue_table(&self.queue, output::terminal_columns(&io::stdout()), false)
            ))?;
            return Ok(());
        }
        let mut line = table::queue_json(&self.queue);
        if let Value::Object(line) = &mut line {
            line.shift_insert(0, "at".to_owned(), json!(rfc3339(at)));
            line.shift_insert(1, "event".to_owned(), json!("queue"));
            line.insert("came".to_owned(), change.came.iter().map(short_member_json).collect());
            line.insert("went".to_owned(), change.went.iter().map(short_member_json).collect());
            line.insert("granted".to_owned(), change.granted.iter().map(short_member_json).collect());
            line.insert("unseen".to_owned(), json!(change.unseen));
            line.insert("changes".to_owned(), json!(change.came.len() + change.went.len() + 2 * change.unseen));
        }
        print_json(&line)
    }
}

fn member_sequence(member: &Member, queue: &Queue) -> Option<i64> {
    NodeName::parse_as(&member.node, queue.dialect).map(|contender| contender.sequence())
}

/// What changed between two looks at a queue.
#[derive(Default)]
struct QueueChange {
    came: Vec<Member>,
    went: Vec<Member>,
    /// The members that hold, and did not hold before.
    granted: Vec<Member>,
    /// The number of contenders that entered and left the queue between the looks, as far as the sequence numbers and
    /// the watch show it.
    unseen: usize,
}

impl QueueChange {
    /// Compares two looks. `has_fired` says whether the watch on the directory has reported a change. If only the watch
    /// shows that a contender came and left, raises `now.newest` by one, because that contender got the next number.
    fn between(before: &QueueLook, now: &mut QueueLook, has_fired: bool) -> QueueChange {
        let holds = |member: &Member| member.state == MemberState::Holds;
        let earlier: HashMap<_, _> = before.queue.members.iter().map(|it| (&it.node, holds(it))).collect();
        let later: HashSet<_> = now.queue.members.iter().map(|it| &it.node).collect();
        let all = |members: &[Member], is: &dyn Fn(&Member) -> bool| -> Vec<Member> {
            members.iter().filter(|member| is(member)).cloned().collect()
        };
        let came = all(&now.queue.members, &|member| !earlier.contains_key(&member.node));
        let went = all(&before.queue.members, &|member| !later.contains(&member.node));
        let granted = all(&now.queue.members, &|member| holds(member) && earlier.get(&member.node) != Some(&true));
        // Each sequence number after the newest number of the earlier look, up to the newest number of this look, was
        // given to a contender that entered the queue. Some of these contenders may have left since.
        let given = before.newest.zip(now.newest).map_or(0, |(before, now)| usize::try_from(now - before).unwrap_or(0));
        let mut unseen =
            given.saturating_sub(came.iter().filter(|member| member_sequence(member, &now.queue).is_some()).count());
        // The watch has reported a change of the directory, although the directory shows the same nodes in both looks.
        // So a contender has come and left between them.
        if has_fired && came.is_empty() && went.is_empty() && before.shown == now.shown && before.matches_directory() {
            unseen = 1;
            now.newest = before.newest.map(|newest| newest + 1);
        }
        QueueChange { came, went, granted, unseen }
    }
}

/// Returns a member with few of its fields, for the lists `came`, `went` and `granted` of a line.
fn short_member_json(member: &Member) -> Value {
    json!({
        "node": member.node,
        "host": member.host,
        "pid": member.pid,
        "label": member.label,
        "token": member.token,
    })
}

fn rfc3339(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}

fn print_json(line: &Value) -> Result<(), Exit> {
    output::print_result(&format!("{}\n", output::escape_controls_in_json(&line.to_string()))).map(drop)
}

/// Returns the part of a queue whose change is printed. The ages of members are not in this part, because they change
/// all the time.
fn printed_part(queue: &Queue) -> (Vec<(String, bool)>, Option<SystemTime>, Option<u32>) {
    let members = queue.members.iter().map(|member| (member.node.clone(), member.state == MemberState::Holds));
    (members.collect(), queue.done.as_ref().map(|done| done.at), queue.permits)
}

/// The changes that one watch reports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WatchTarget {
    /// A child of this node is created or deleted, or this node is deleted.
    Children(String),
    /// This node is written or deleted.
    Node(String),
}

/// The watches that report the changes of one queue.
struct Watches {
    path: String,
    wanted: Vec<WatchTarget>,
    armed: BTreeMap<WatchTarget, Watch>,
    /// The names that the directory showed when its watch was last armed. `None` if the watch could not be armed,
    /// usually because there was no directory.
    shown: Option<BTreeSet<String>>,
}

impl Watches {
    fn new(path: &str, dialect: Dialect) -> Watches {
        let mut wanted = vec![WatchTarget::Children(path.to_owned())];
        if dialect == Dialect::Native {
            wanted.extend(["queue", "permits"].map(|part| WatchTarget::Children(format!("{path}/{part}"))));
            wanted.extend([path.to_owned(), format!("{path}.done")].map(WatchTarget::Node));
        }
        Watches { path: path.to_owned(), wanted, armed: BTreeMap::new(), shown: None }
    }

    /// Tries to set each wanted watch that is not set. If the directory of the queue does not exist, watches a node
    /// above it.
    async fn arm(&mut self, zk: &ZooKeeper) {
        let Ok(session_slot) = zk.session_slot(0).await else { return };
        let session = session_slot.session();
        self.arm_missing(session, self.wanted.clone()).await;
        // The missing node may be created between two requests. So the watch on the directory is tried again, at most
        // once for each node of the path.
        for _ in 0..self.path.matches('/').count() {
            if self.armed.contains_key(&self.wanted[0]) {
                break;
            }
            self.shown = None;
            if !self.watch_nearest_ancestor(session).await {
                break;
            }
            self.arm_missing(session, vec![self.wanted[0].clone()]).await;
        }
    }

    async fn arm_missing(&mut self, session: &Arc<dyn Session>, mut missing: Vec<WatchTarget>) {
        missing.retain(|target| !self.armed.contains_key(target));
        let sent: Vec<Reply<(Vec<String>, Watch)>> = missing.iter().map(|target| send_watch(session, target)).collect();
        for (target, answer) in missing.into_iter().zip(future::join_all(sent).await) {
            let Ok((names, watch)) = answer else { continue };
            if target == self.wanted[0] {
                self.shown = Some(names.into_iter().collect());
            }
            self.armed.insert(target, watch);
        }
    }

    /// Watches the nearest existing node above the directory, to learn when the next node on the path is created.
    /// Returns `true` if that next node exists already. The watch would not report it, so the caller has to try again.
    async fn watch_nearest_ancestor(&mut self, session: &Arc<dyn Session>) -> bool {
        let mut way = &self.path[..];
        while let Some((parent, next)) = way.rsplit_once('/') {
            way = parent;
            let target = WatchTarget::Children(if parent.is_empty() { "/".to_owned() } else { parent.to_owned() });
            if self.armed.contains_key(&target) {
                return false;
            }
            match send_watch(session, &target).await {
                Ok((names, _)) if names.iter().any(|name| name == next) => return true,
                Ok((_, watch)) => return self.armed.insert(target, watch).is_some(),
                Err(Failure::NoNode) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Waits until a watch fires, or forever if no watch is set. Returns the event of the watch, and whether it is the
    /// watch on the directory of the queue. In that case [`WatchEvent::Changed`] means that a node in the directory, or
    /// the directory itself, was created or deleted.
    async fn next_event(&mut self) -> (WatchEvent, bool) {
        if self.armed.is_empty() {
            return future::pending().await;
        }
        let (event, at, _) = select_all(self.armed.values_mut()).await;
        let target = self.armed.keys().nth(at).cloned();
        let is_of_directory = target.as_ref() == Some(&self.wanted[0]);
        target.map(|target| self.armed.remove(&target));
        if event == WatchEvent::Over {
            self.armed.clear();
        }
        (event, is_of_directory)
    }
}

fn send_watch(session: &Arc<dyn Session>, target: &WatchTarget) -> Reply<(Vec<String>, Watch)> {
    match target {
        WatchTarget::Children(path) => session.watch_children(path),
        WatchTarget::Node(path) => {
            let watch = session.watch(path);
            Box::pin(async move { Ok((Vec::new(), watch.await?)) })
        }
    }
}
