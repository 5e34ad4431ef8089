//! Finds circles of processes that wait for each other across locks.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use serde_json::{Value, json};
use zk_rwlock::Queue;
use zk_rwlock::queue::{Member, MemberState};

/// A process, identified as in the members of queues.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Process {
    host: String,
    pid: u32,
}

/// A process that waits for a lock, and the process that holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    who: Process,
    path: String,
    holder: Process,
}

/// Returns the shortest circle through each process that is in a circle. Each circle is returned once.
///
/// A circle is not always a deadlock: the task that waits in a process may be another than the task that holds, so the
/// holding task may go on and release the lock. Waits within one process are left out, because tasks of one process
/// often wait for each other.
pub(crate) fn cycles(queues: &[Queue]) -> Vec<Vec<Edge>> {
    // Semaphores with several permits are left out: a waiter needs only one of the holders to leave, so the waiter
    // closes no circle.
    let queues = queues.iter().filter(|queue| queue.permits.is_none_or(|all| all == 1));
    let locks: Vec<Lock<'_>> = queues.map(Lock::of).collect();
    let mut waits: BTreeMap<&Process, Vec<&Lock<'_>>> = BTreeMap::new();
    for lock in &locks {
        lock.waiters.iter().for_each(|who| waits.entry(who).or_default().push(lock));
    }
    let holders: BTreeSet<&Process> = locks.iter().flat_map(|lock| &lock.holders).collect();
    // No search starts at a process that holds nothing: no process waits for such a process, so it is in no circle.
    let starts = waits.keys().filter(|who| holders.contains(*who));
    // The search from each member finds the circle. Only the circle that was found from its smallest member is
    // returned.
    let is_first = |cycle: &Vec<Edge>, start: &Process| cycle.iter().all(|wait| wait.who >= *start);
    starts.filter_map(|start| shortest(&waits, start).filter(|cycle| is_first(cycle, start))).collect()
}

pub(crate) fn json_of(cycles: &[Vec<Edge>]) -> Value {
    let process = |process: &Process| json!({ "host": process.host, "pid": process.pid });
    let wait = |wait: &Edge| json!({ "waits": process(&wait.who), "path": wait.path, "holds": process(&wait.holder) });
    cycles.iter().map(|cycle| Value::from(cycle.iter().map(wait).collect::<Vec<_>>())).collect()
}

/// A lock, or a semaphore with one permit, with its waiting and holding processes. Every waiter waits until all holders
/// have left, also holders that are not the waiter's predecessor.
struct Lock<'a> {
    path: &'a str,
    waiters: BTreeSet<Process>,
    holders: BTreeSet<Process>,
}

impl Lock<'_> {
    fn of(queue: &Queue) -> Lock<'_> {
        let waiting = queue.members.iter().filter(|member| matches!(member.state, MemberState::Waits { .. }));
        Lock {
            path: &queue.path,
            waiters: waiting.filter_map(process).collect(),
            holders: queue.holders().filter_map(process).collect(),
        }
    }
}

fn process(member: &Member) -> Option<Process> {
    member.pid.map(|pid| Process { host: member.host.clone(), pid })
}

/// Finds the shortest circle through `start` by a breadth-first search. It visits the holders of each lock once,
/// however many processes wait for the lock.
fn shortest(waits: &BTreeMap<&Process, Vec<&Lock<'_>>>, start: &Process) -> Option<Vec<Edge>> {
    let edge = |who: &Process, lock: &Lock<'_>, holder: &Process| Edge {
        who: who.clone(),
        path: lock.path.to_owned(),
        holder: holder.clone(),
    };
    let (mut seen, mut next) = (BTreeSet::new(), VecDeque::from([start]));
    let mut reached: BTreeMap<&Process, (&Process, &Lock<'_>)> = BTreeMap::new();
    while let Some(who) = next.pop_front() {
        for lock in waits.get(who).into_iter().flatten() {
            if who != start && lock.holders.contains(start) {
                let mut cycle = vec![edge(who, lock, start)];
                while let Some((before, lock)) = reached.get(&cycle[cycle.len() - 1].who) {
                    cycle.push(edge(before, lock, &cycle[cycle.len() - 1].who));
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

impl fmt::Display for Edge {
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
}
