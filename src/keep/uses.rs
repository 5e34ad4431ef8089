//! The uses of one kept node, as a state machine without I/O: which uses run, which wait, and when the node is given up.
//!
//! ```text
//!                 closed before the grant: keeps the first write, or the reads at the front, and refuses the others
//!           +------------------+
//!           |                  v
//! new --> Entering        Entering, closed -- the last use leaves --> the acquisition is dropped
//!           |                  |
//!           | granted          | granted
//!           v                  v
//!         Open -- closed --> Closed -- the last use leaves --> given up
//! ```
//!
//! Uses run in the order in which they joined, by the rules of the lock: reads run together, a write runs alone. The
//! node is closed when another contender asks for the node, when this process gives the node up, when the acquisition
//! of the node fails, or when the last use leaves before the grant. No use joins a closed node. After the grant,
//! closing the node refuses its waiting uses. A refused write then enters the queue with a node of its own. Refused
//! reads can share a new kept node.

use std::collections::BTreeMap;

use crate::queue::mode::Mode;

/// The uses of one kept node: the acquisitions by this process that share the node. `W` is the type of the wakers of
/// waiting uses.
#[derive(Clone, Debug)]
pub(crate) struct Uses<W> {
    pub(super) mode: Mode,
    is_granted: bool,
    pub(super) is_closed: bool,
    next: u64,
    running: Vec<RunningUse>,
    pub(super) waiting: BTreeMap<u64, QueuedUse<W>>,
}

#[derive(Clone, Debug)]
struct RunningUse {
    number: u64,
    mode: Mode,
    /// The number of guards that share the use.
    shares: u32,
}

#[derive(Clone, Debug)]
pub(super) struct QueuedUse<W> {
    mode: Mode,
    waker: Option<W>,
}

/// Whether a use of a kept node (one acquisition by this process) runs, waits or is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UseState<R, W> {
    Runs(R),
    Waits(W),
    /// No kept node can serve the use. For example, the node does not cover the mode of the use, is closed to further
    /// uses or is lost, or there is no node.
    Refused,
}

impl<W: Clone> Uses<W> {
    /// Returns the state of a node of this mode that is not granted yet and has no uses.
    pub(crate) fn new(mode: Mode) -> Uses<W> {
        Uses { mode, is_granted: false, is_closed: false, next: 0, running: Vec::new(), waiting: BTreeMap::new() }
    }

    /// Adds a use (an acquisition by this process) of this mode, unless the use is refused. Returns the id of the use,
    /// and whether the use runs or waits.
    pub(crate) fn join(&mut self, mode: Mode) -> UseState<u64, u64> {
        if self.is_closed || (mode == Mode::Write && self.mode == Mode::Read) {
            return UseState::Refused;
        }
        if let Some(number) = self.join_now(mode) {
            return UseState::Runs(number);
        }
        let number = self.next;
        self.next += 1;
        self.waiting.insert(number, QueuedUse { mode, waker: None });
        UseState::Waits(number)
    }

    /// Adds a running use (an acquisition by this process) of this mode, and returns its id. If the use is refused or
    /// would have to wait, adds nothing and returns `None`.
    pub(crate) fn join_now(&mut self, mode: Mode) -> Option<u64> {
        let covers = !self.is_closed && (mode == Mode::Read || self.mode == Mode::Write);
        let may_run_beside = self.is_granted && self.waiting.is_empty() && may_run_beside(&self.running, mode);
        (covers && may_run_beside).then(|| self.add_running(mode))
    }

    fn add_running(&mut self, mode: Mode) -> u64 {
        let number = self.next;
        self.next += 1;
        self.running.push(RunningUse { number, mode, shares: 1 });
        number
    }

    /// Returns the state of the use with this id. A use that neither runs nor waits counts as refused. For a waiting
    /// use, stores `waker`. The later call that makes the use run or refuses it returns this waker, and the caller must
    /// call it.
    pub(crate) fn poll_state(&mut self, number: u64, waker: &W) -> UseState<(), ()> {
        if self.running_index(number).is_some() {
            return UseState::Runs(());
        }
        match self.waiting.get_mut(&number) {
            Some(waiting) => {
                waiting.waker = Some(waker.clone());
                UseState::Waits(())
            }
            None => UseState::Refused,
        }
    }

    /// Records the grant of the node. Returns the wakers of the waiting uses that now run.
    pub(crate) fn record_grant(&mut self) -> Vec<W> {
        self.is_granted = true;
        self.admit_waiting()
    }

    /// Closes the node to further uses (acquisitions by this process), and refuses waiting uses. Returns the wakers of
    /// the refused uses.
    pub(crate) fn close(&mut self) -> Vec<W> {
        self.is_closed = true;
        // Before the grant, some waiting uses stay, so that the acquired node has a use: the reads ahead of the first
        // write or, if there are none, that write. After the grant, no waiting use stays.
        let reads = self.waiting.values().take_while(|it| it.mode == Mode::Read).count();
        let keep = if self.is_granted { 0 } else { reads.max(1) };
        let refused = self.waiting.keys().copied().nth(keep);
        let refused = refused.map(|first| self.waiting.split_off(&first)).unwrap_or_default();
        refused.into_values().filter_map(|it| it.waker).collect()
    }

    /// Closes the node, and refuses all waiting uses, because the acquisition of the node has failed. Returns their
    /// wakers.
    pub(crate) fn record_failure(&mut self) -> Vec<W> {
        self.is_closed = true;
        std::mem::take(&mut self.waiting).into_values().filter_map(|it| it.waker).collect()
    }

    /// Records that the WRITE node became a READ node. The running write with this id continues as a read, and waiting
    /// writes are refused. Returns the wakers of the waiting uses that were refused or now run.
    pub(crate) fn record_downgrade(&mut self, number: u64) -> Vec<W> {
        self.mode = Mode::Read;
        if let Some(place) = self.running_index(number) {
            self.running[place].mode = Mode::Read;
        }
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (writes, reads): (BTreeMap<_, _>, _) = all.partition(|(_, it)| it.mode == Mode::Write);
        self.waiting = reads;
        let mut woken: Vec<W> = writes.into_values().filter_map(|it| it.waker).collect();
        woken.extend(self.admit_waiting());
        woken
    }

    /// Adds a guard to the running use with this id. The use ends when its last guard leaves.
    pub(crate) fn add_guard(&mut self, number: u64) {
        if let Some(place) = self.running_index(number) {
            self.running[place].shares += 1;
        }
    }

    /// Removes a guard of the running use with this id, or removes the waiting use. Returns the wakers of the waiting
    /// uses that now run. If the last use leaves before the grant, closes the node.
    pub(crate) fn end_share(&mut self, number: u64) -> Vec<W> {
        match self.running_index(number) {
            Some(place) if self.running[place].shares > 1 => {
                self.running[place].shares -= 1;
                return Vec::new();
            }
            Some(place) => drop(self.running.swap_remove(place)),
            None => drop(self.waiting.remove(&number)),
        }
        if self.is_granted {
            return self.admit_waiting();
        }
        self.is_closed |= self.is_idle();
        Vec::new()
    }

    /// Returns whether the node is closed to further uses and has no use left. The node is then given up, or its
    /// acquisition is dropped.
    pub(crate) fn is_over(&self) -> bool {
        self.is_closed && self.is_idle()
    }

    /// Returns whether no use runs or waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Returns the number of running and waiting uses.
    pub(crate) fn len(&self) -> usize {
        self.running.len() + self.waiting.len()
    }

    /// Returns the id and the mode of the first waiting use.
    pub(crate) fn first_waiting(&self) -> Option<(u64, Mode)> {
        self.waiting.first_key_value().map(|(number, it)| (*number, it.mode))
    }

    /// Returns how many uses have joined the node so far.
    pub(crate) fn joined_so_far(&self) -> u64 {
        self.next
    }

    /// Returns the wakers of all waiting uses that were polled.
    pub(crate) fn wakers(&self) -> Vec<W> {
        self.waiting.values().filter_map(|it| it.waker.clone()).collect()
    }

    /// Makes waiting uses run, one after the other, up to the first that must not run together with the running uses.
    /// Returns the wakers of the uses that now run.
    fn admit_waiting(&mut self) -> Vec<W> {
        let mut woken = Vec::new();
        while let Some(first) = self.waiting.first_entry() {
            let mode = first.get().mode;
            if !may_run_beside(&self.running, mode) {
                break;
            }
            let (number, waiting) = first.remove_entry();
            self.running.push(RunningUse { number, mode, shares: 1 });
            woken.extend(waiting.waker);
        }
        woken
    }

    /// Returns the index in `running` of the use with this id. Searches from the end, because the use that began last
    /// often ends first.
    fn running_index(&self, number: u64) -> Option<usize> {
        self.running.iter().rposition(|it| it.number == number)
    }
}

/// Returns whether a use of this mode may run together with the running uses. A write runs alone, so it is enough to
/// check the first running use.
fn may_run_beside(running: &[RunningUse], mode: Mode) -> bool {
    running.first().is_none_or(|first| !first.mode.excludes(mode))
}

#[cfg(test)]
mod tests;
