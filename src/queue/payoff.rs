//! Whether it pays to keep a node between uses: decided by what became of the nodes kept before; knows no I/O.

/// How many acquisitions in a row keep nothing, at most, before it is tried again.
const SKIPS_MAX: u32 = 64;

/// What became of the nodes of one lock that this process kept.
///
/// A kept node that is asked for before it was used again has cost its watch, and the contender that asked a round trip
/// more. After such a node the next acquisitions keep nothing: one, then three, then seven, and so on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Payoff {
    /// How many acquisitions keep nothing from now on.
    skips: u32,
    /// How many it was the last time.
    last: u32,
}

impl Payoff {
    /// Whether the next acquisition may keep its node.
    pub(crate) fn keeps(&mut self) -> bool {
        let keeps = self.skips == 0;
        self.skips = self.skips.saturating_sub(1);
        keeps
    }

    /// A kept node was asked for after so many uses.
    pub(crate) fn asked_after(&mut self, uses: u64) {
        self.last = if uses > 1 { 0 } else { (self.last * 2 + 1).min(SKIPS_MAX) };
        self.skips = self.last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_were_never_used_again_are_kept_less_and_less_often() {
        let mut payoff = Payoff::default();
        let mut skipped = Vec::new();
        for _ in 0..8 {
            skipped.push((0..).take_while(|_| !payoff.keeps()).count());
            payoff.asked_after(1);
        }
        assert_eq!(skipped, [0, 1, 3, 7, 15, 31, 63, 64]);
    }

    #[test]
    fn one_reuse_is_enough_to_keep_again() {
        let mut payoff = Payoff::default();
        payoff.asked_after(1);
        payoff.asked_after(1);
        payoff.asked_after(2);
        assert_eq!(payoff, Payoff::default());
    }
}
