//! In which order the client crate comes to the servers: each has its turn before one is tried twice.
//!
//! The crate shuffles its list of names whenever it has connected, for the next time. A server that answers nothing takes an attempt's
//! whole time, so a list that begins with it several times may cost a lock. The crate draws from `fastrand`, whose numbers depend
//! on where the thread's generator stands. So before the crate is polled, the generator is put where the next shuffle will be a good
//! one. That the crate has shuffled, the generator shows afterwards. If it shows something else, the crate goes on by chance.

use std::collections::BTreeSet;

use fastrand::Rng;

use crate::sync::random;
use crate::zookeeper::lookup::hangs;

/// How many shuffles are tried, at most. Of seven servers a good one is found in this many, almost always.
const TRIES: u32 = 1_000;

/// The turns of one client.
pub(super) struct Turns {
    /// The servers of the names, in the crate's present order. Empty if that is not known.
    order: Vec<usize>,
    addresses: Vec<String>,
    /// Where the generator is put.
    seed: Option<u64>,
}

impl Turns {
    /// The crate is given the servers at these addresses, in this order, each perhaps several times.
    pub(super) fn of(names: Vec<usize>, addresses: Vec<String>) -> Turns {
        Turns { order: if addresses.len() > 1 { names } else { Vec::new() }, addresses, seed: None }
    }

    /// After a pause: other names may hang now.
    pub(super) fn draws_anew(&mut self) {
        self.seed = None;
    }

    /// Polls the crate.
    pub(super) fn polled<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        if self.order.is_empty() {
            return poll();
        }
        let hang = || self.addresses.iter().map(|address| hangs(address)).collect::<Vec<_>>();
        let seed = self.seed.unwrap_or_else(|| self.drawn(&hang()));
        fastrand::seed(seed);
        let output = poll();
        let now = fastrand::get_seed();
        self.seed = (now == seed).then_some(seed);
        if now != seed {
            self.has_drawn(seed, now);
        }
        output
    }

    /// A number by which the next shuffle lets each server have its turn, and a name that hangs comes late.
    fn drawn(&self, hangs: &[bool]) -> u64 {
        let is_heard = |server: &&usize| !hangs[**server];
        let (names, servers) = (self.order.iter().filter(is_heard).count(), hangs.iter().filter(|it| !**it).count());
        let heard_first = |seed: u64| {
            let order = self.shuffled(seed).0;
            let first: BTreeSet<_> = order.iter().take(servers).collect();
            let is_good = first.len() == servers;
            if is_good { order.iter().take_while(is_heard).count() } else { 0 }
        };
        let mut best = (0, random());
        for _ in 0..TRIES {
            if best.0 == names {
                break;
            }
            let seed = random();
            best = best.max((heard_first(seed), seed));
        }
        best.1
    }

    /// The order after a shuffle, and where the generator is then.
    fn shuffled(&self, seed: u64) -> (Vec<usize>, u64) {
        let (mut generator, mut order) = (Rng::with_seed(seed), self.order.clone());
        generator.shuffle(&mut order);
        (order, generator.get_seed())
    }

    /// The crate has shuffled, or has drawn the length of a pause.
    fn has_drawn(&mut self, seed: u64, now: u64) {
        let (order, after_shuffle) = self.shuffled(seed);
        let mut generator = Rng::with_seed(seed);
        generator.u32(..);
        if now == after_shuffle {
            self.order = order;
        } else if now != generator.get_seed() {
            self.order.clear();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn of(names: Vec<usize>) -> Turns {
        let servers = names.iter().max().map_or(0, |last| last + 1);
        Turns::of(names, (0..servers).map(|server| format!("zk{server}:1")).collect())
    }

    #[test]
    fn each_server_has_its_turn_after_every_shuffle_of_the_crates() {
        for servers in 2..=5 {
            let mut names: Vec<usize> = (0..24).map(|name| name % servers).collect();
            let mut turns = of(names.clone());
            for round in 0..100 {
                turns.polled(|| {});
                // As the crate draws the length of a pause, in another poll.
                turns.polled(|| (round % 3 == 0).then(|| fastrand::u32(0..100)));
                turns.polled(|| fastrand::shuffle(&mut names));
                assert_eq!(turns.order, names);
                let mut first = names[..servers].to_vec();
                first.sort_unstable();
                assert_eq!(first, Vec::from_iter(0..servers), "{names:?}");
            }
        }
    }

    #[test]
    fn a_name_that_hangs_comes_after_a_turn_of_all_others_and_late() {
        let turns = of((0..24).map(|name| name % 3).collect());
        for _ in 0..20 {
            let order = turns.shuffled(turns.drawn(&[false, true, false])).0;
            assert_ne!(order[0], order[1], "{order:?}");
            assert!(order.iter().take_while(|server| **server != 1).count() >= 4, "{order:?}");
        }
        let order = turns.shuffled(turns.drawn(&[true; 3])).0;
        assert_eq!(order.len(), 24);
    }

    #[test]
    fn where_the_order_is_not_known_the_crate_goes_on_by_chance() {
        let mut turns = of(vec![0, 1, 0, 1]);
        // Neither a shuffle of four names nor the length of a pause.
        turns.polled(|| [(); 2].map(|()| fastrand::u64(..)));
        assert!(turns.order.is_empty());
        let mut drawn = [(); 2].map(|()| turns.polled(|| fastrand::u64(..)));
        drawn.sort_unstable();
        assert_ne!(drawn[0], drawn[1]);
        assert!(of(vec![0, 0, 0]).order.is_empty(), "one server has all turns");
    }
}
