//! Processes that wait for each other across locks, in a circle; knows no I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use serde_json::{Value, json};
use zk_rwlock::{Member, MemberState, Queue};

/// A process, as the members of queues name it.
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

/// The shortest circle through each process that is in one, each circle once.
///
/// It is not certain that the processes are stuck: the task that waits may be another than the task that holds. Waits
/// within one process are left out, because the tasks of one process wait for each other all day.
pub(crate) fn cycles(queues: &[Queue]) -> Vec<Vec<Edge>> {
    let waits = waits(queues);
    let mut found = Vec::new();
    for start in waits.keys() {
        // The circle is reported by its first member.
        let cycle = shortest(&waits, start).filter(|cycle| cycle.iter().all(|wait| wait.who >= *start));
        found.extend(cycle);
    }
    found
}

pub(crate) fn json_of(cycles: &[Vec<Edge>]) -> Value {
    let process = |process: &Process| json!({ "host": process.host, "pid": process.pid });
    let wait = |wait: &Edge| json!({ "waits": process(&wait.who), "path": wait.path, "holds": process(&wait.holder) });
    cycles.iter().map(|cycle| Value::from(cycle.iter().map(wait).collect::<Vec<_>>())).collect()
}

/// A waiter waits until all holders have left, whether they are right before it or further ahead.
fn waits(queues: &[Queue]) -> BTreeMap<Process, Vec<Edge>> {
    let mut all: BTreeMap<Process, Vec<Edge>> = BTreeMap::new();
    // Of several holders of permits, one that leaves may be enough.
    for queue in queues.iter().filter(|queue| queue.permits.is_none_or(|all| all == 1)) {
        let waiting = queue.members.iter().filter(|member| matches!(member.state, MemberState::Waits { .. }));
        for who in waiting.filter_map(process) {
            for holder in queue.holders().filter_map(process).filter(|holder| *holder != who) {
                let wait = Edge { who: who.clone(), path: queue.path.clone(), holder };
                let waits = all.entry(who.clone()).or_default();
                if !waits.contains(&wait) {
                    waits.push(wait);
                }
            }
        }
    }
    all
}

fn process(member: &Member) -> Option<Process> {
    member.pid.map(|pid| Process { host: member.host.clone(), pid })
}

fn shortest(waits: &BTreeMap<Process, Vec<Edge>>, start: &Process) -> Option<Vec<Edge>> {
    let (mut seen, mut ways) = (BTreeSet::new(), VecDeque::from([Vec::<Edge>::new()]));
    while let Some(way) = ways.pop_front() {
        let at = way.last().map_or(start, |wait| &wait.holder);
        for wait in waits.get(at).into_iter().flatten() {
            let mut further = way.clone();
            further.push(wait.clone());
            if wait.holder == *start {
                return Some(further);
            }
            if seen.insert(wait.holder.clone()) {
                ways.push_back(further);
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

    /// Polls it once.
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
