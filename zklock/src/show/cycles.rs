//! Finds circles of processes that wait for each other across locks.
//!
//! A `zklock` that runs within the command of another `zklock` is a process of its own. But the outer `zklock` releases
//! its lock only when the inner one has ended. So if a process holds no lock, its wait counts as a wait of the nearest
//! `zklock` above it that holds a lock. The ancestors of a process are known only if the process is on this machine.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::fs;

use serde_json::{Value, json};
use zk_rwlock::Queue;
use zk_rwlock::queue::{Member, MemberState};

use crate::run::child::ProcessStat;

/// A process. Its host and process id identify it, as they do in the members of queues.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    host: String,
    pid: u32,
}

/// A process that waits for the lock at `path`, and a process that holds this lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessWait {
    who: Process,
    path: String,
    holder: Process,
}

/// Returns the shortest circle that this process closes by its wait for the lock at `path`. Returns `None` if `queues`
/// shows no such circle. This process runs under the lock of an outer `zklock`, and its wait counts as a wait of that
/// `zklock`. The wait counts even if this process has just left the queue. `under` is the path and the token of the
/// outer lock, if they are known.
pub(crate) fn circle_closed_by_wait(
    queues: &[Queue],
    path: &str,
    under: Option<(String, i64)>,
) -> Option<Vec<ProcessWait>> {
    let mut locks = LockProcesses::all(queues);
    let is_holder = |it: &Process| locks.iter().any(|lock| lock.holders.contains(it));
    let under = under.and_then(|(path, token)| {
        let queue = queues.iter().find(|queue| queue.path == path)?;
        queue.holders().find(|holder| holder.token == Some(token)).and_then(process_of_member)
    });
    let us = Process { host: own_host(), pid: std::process::id() };
    let us = under.or_else(|| zklocks_above(&us).find(is_holder))?;
    let wanted = locks.iter_mut().find(|lock| lock.path == path)?;
    if wanted.holders.contains(&us) {
        return Some(vec![ProcessWait { who: us.clone(), path: path.to_owned(), holder: us }]);
    }
    wanted.waiters.insert(us.clone());
    shortest_circle(&awaited_locks(&locks), &us)
}

/// Returns circles of processes that wait for each other: for each process in a circle, the shortest circle that it is
/// in. No circle is returned twice.
///
/// A circle is not always a deadlock, because one task of a process may wait while another task of the process holds a
/// lock. The holding task may go on and release the lock. Waits within one process are left out, because tasks of one
/// process often wait for each other.
pub(crate) fn cycles(queues: &[Queue]) -> Vec<Vec<ProcessWait>> {
    let locks = LockProcesses::all(queues);
    let waits = awaited_locks(&locks);
    let holders: BTreeSet<&Process> = locks.iter().flat_map(|lock| &lock.holders).collect();
    let mut cycles = Vec::new();
    // No search starts at a process that holds nothing. Nobody waits for such a process, so it is in no circle.
    for start in waits.keys().filter(|who| holders.contains(*who)) {
        let Some(mut cycle) = shortest_circle(&waits, start) else { continue };
        // The searches from several members may find the same circle, so each circle begins at its smallest member.
        let smallest = (0..cycle.len()).min_by_key(|&at| &cycle[at].who).unwrap_or_default();
        cycle.rotate_left(smallest);
        if !cycles.contains(&cycle) {
            cycles.push(cycle);
        }
    }
    cycles
}

pub(crate) fn cycles_json(cycles: &[Vec<ProcessWait>]) -> Value {
    let process = |process: &Process| json!({ "host": process.host, "pid": process.pid });
    let wait =
        |wait: &ProcessWait| json!({ "waits": process(&wait.who), "path": wait.path, "holds": process(&wait.holder) });
    cycles.iter().map(|cycle| Value::from(cycle.iter().map(wait).collect::<Vec<_>>())).collect()
}

/// A lock, or a semaphore with one permit, with its waiting and holding processes. Every waiter waits until all holders
/// have left, also holders that are not the waiter's predecessor.
struct LockProcesses<'a> {
    path: &'a str,
    waiters: BTreeSet<Process>,
    holders: BTreeSet<Process>,
}

/// Returns, for each process that waits, the locks that it waits for.
fn awaited_locks<'a>(locks: &'a [LockProcesses<'a>]) -> BTreeMap<&'a Process, Vec<&'a LockProcesses<'a>>> {
    let mut waits: BTreeMap<&Process, Vec<&LockProcesses<'_>>> = BTreeMap::new();
    for lock in locks {
        lock.waiters.iter().for_each(|who| waits.entry(who).or_default().push(lock));
    }
    waits
}

impl LockProcesses<'_> {
    /// Returns the locks. Semaphores with several permits are left out, and circles through them are not found. There,
    /// one holder that leaves is enough for a waiter, so a circle blocks the waiter only if every holder waits for it.
    /// If a waiter holds no lock, but a `zklock` above it does, that `zklock` counts as the waiter.
    fn all(queues: &[Queue]) -> Vec<LockProcesses<'_>> {
        let queues = queues.iter().filter(|queue| queue.permits.is_none_or(|all| all == 1));
        let mut locks: Vec<LockProcesses<'_>> = queues.map(LockProcesses::of).collect();
        let holders: BTreeSet<Process> = locks.iter().flat_map(|lock| &lock.holders).cloned().collect();
        let is_holder = |it: &Process| holders.contains(it);
        for lock in &mut locks {
            let waiters = std::mem::take(&mut lock.waiters).into_iter();
            lock.waiters = waiters.map(|who| nearest_holding_process(&who, is_holder).unwrap_or(who)).collect();
        }
        locks
    }

    fn of(queue: &Queue) -> LockProcesses<'_> {
        let waiting = queue.members.iter().filter(|member| matches!(member.state, MemberState::Waits { .. }));
        LockProcesses {
            path: &queue.path,
            waiters: waiting.filter_map(process_of_member).collect(),
            holders: queue.holders().filter_map(process_of_member).collect(),
        }
    }
}

fn process_of_member(member: &Member) -> Option<Process> {
    member.pid.map(|pid| Process { host: member.host.clone(), pid })
}

/// The maximal number of ancestors of a process that zklock looks at.
const GENERATIONS: usize = 64;

/// Returns the nearest process that holds a lock: `who` itself, or a `zklock` among its ancestors on this machine.
fn nearest_holding_process(who: &Process, is_holder: impl Fn(&Process) -> bool) -> Option<Process> {
    if is_holder(who) { Some(who.clone()) } else { zklocks_above(who).find(is_holder) }
}

/// Returns those ancestors of this process that are a `zklock`. Only a `zklock` surely keeps its lock until the command
/// that it runs has ended. Another program may release its lock while a process that it has started still runs.
fn zklocks_above(who: &Process) -> impl Iterator<Item = Process> {
    let is_zklock = |pid| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim_end() == "zklock");
    ancestors(who).filter(move |it| is_zklock(it.pid))
}

/// Returns the nearest ancestors of this process, from its parent on, if the process is on this machine. Leaves out
/// process 1. Each container has a process 1, and containers may share the name of a host. So a holder with this id may
/// be in another container.
fn ancestors(who: &Process) -> impl Iterator<Item = Process> {
    let parent = |pid: u32| u32::try_from(ProcessStat::of(pid)?.parent).ok().filter(|pid| *pid > 1);
    let first = if who.host == own_host() { parent(who.pid) } else { None };
    std::iter::successors(first, move |pid| parent(*pid)).take(GENERATIONS).map(|pid| Process { pid, ..who.clone() })
}

fn own_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Finds the shortest circle of two or more processes through `start`, by a breadth-first search. The search visits the
/// holders of each lock once, however many processes wait for the lock.
fn shortest_circle(waits: &BTreeMap<&Process, Vec<&LockProcesses<'_>>>, start: &Process) -> Option<Vec<ProcessWait>> {
    let wait = |who: &Process, lock: &LockProcesses<'_>, holder: &Process| ProcessWait {
        who: who.clone(),
        path: lock.path.to_owned(),
        holder: holder.clone(),
    };
    let (mut seen, mut next) = (BTreeSet::new(), VecDeque::from([start]));
    let mut reached: BTreeMap<&Process, (&Process, &LockProcesses<'_>)> = BTreeMap::new();
    while let Some(who) = next.pop_front() {
        for lock in waits.get(who).into_iter().flatten() {
            if who != start && lock.holders.contains(start) {
                let mut cycle = vec![wait(who, lock, start)];
                while let Some((before, lock)) = reached.get(&cycle[cycle.len() - 1].who) {
                    cycle.push(wait(before, lock, &cycle[cycle.len() - 1].who));
                }
                cycle.reverse();
                return Some(cycle);
            }
            if seen.insert(lock.path) {
                for holder in lock.holders.iter().filter(|holder| *holder != start) {
                    reached.entry(holder).or_insert_with(|| {
                        next.push_back(holder);
                        (who, *lock)
                    });
                }
            }
        }
    }
    None
}

impl fmt::Display for ProcessWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waits for {}, which {} holds", self.who, self.path, self.holder)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} pid {}", self.host, self.pid)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{IntoFuture, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use zk_rwlock::{Memory, RwLock, Semaphore};

    use super::*;

    /// Polls the future once and asserts that it is pending.
    async fn waits(future: std::pin::Pin<&mut impl Future>) {
        let mut future = future;
        assert!(poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await);
    }

    #[test]
    fn process_1_is_no_ancestor() {
        let us = Process { host: own_host(), pid: std::process::id() };
        assert!(ancestors(&us).all(|it| it.pid != 1));
    }

    #[tokio::test]
    async fn a_holder_of_one_of_several_permits_closes_no_circle() {
        for (permits, circles) in [(1, 1), (2, 0)] {
            let zk = Memory::new();
            let limit =
                |host| Semaphore::builder(&zk, "/limit").permits(permits).lock(|lock| lock.host(host)).build().unwrap();
            let lock = |host| RwLock::builder(&zk, "/lock").host(host).build().unwrap();
            let mut holders = Vec::new();
            for host in ["a", "c"].into_iter().take(permits as usize) {
                holders.push(limit(host).acquire().await.unwrap());
            }
            let _held = lock("b").write().await.unwrap();
            let (b, a) = (limit("b"), lock("a"));
            let (mut b_waits, mut a_waits) = (pin!(b.acquire().into_future()), pin!(a.write().into_future()));
            waits(b_waits.as_mut()).await;
            waits(a_waits.as_mut()).await;
            let queues = [b.queue().await.unwrap(), a.queue().await.unwrap()];
            assert_eq!(cycles(&queues).len(), circles, "{queues:#?}");
        }
    }

    #[tokio::test]
    async fn two_circles_through_one_process_are_both_shown() {
        let zk = Memory::new();
        let lock = |host: &str, path: &str| RwLock::builder(&zk, path).host(host).build().unwrap();
        let mut held = Vec::new();
        for (host, path) in [("a", "/a"), ("b", "/b"), ("c", "/c")] {
            held.push(lock(host, path).write().await.unwrap());
        }
        let mut waiting = Vec::new();
        for (host, path) in [("a", "/b"), ("a", "/c"), ("b", "/a"), ("c", "/a")] {
            let mut wait = Box::pin(lock(host, path).write().into_future());
            waits(wait.as_mut()).await;
            waiting.push(wait);
        }
        let mut queues = Vec::new();
        for path in ["/a", "/b", "/c"] {
            queues.push(lock("operator", path).queue().await.unwrap());
        }
        let hosts = |cycle: Vec<ProcessWait>| cycle.into_iter().map(|wait| wait.who.host).collect::<String>();
        assert_eq!(cycles(&queues).into_iter().map(hosts).collect::<Vec<_>>(), ["ab", "ac"], "{queues:#?}");
    }
}
