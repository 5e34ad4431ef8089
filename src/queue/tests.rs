//! Fuzzing for the unit tests of all parsers: random inputs that resemble valid ones.

use std::collections::hash_map::RandomState;
use std::env;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// The number of changed samples for each call of [`fuzz`], unless `FUZZ_SECONDS` sets a duration.
const INPUTS: u64 = 3_000;

/// Pieces that random changes insert into an input, because parsers often mishandle them.
const PIECES: [&[u8]; 26] = [
    b"\n",
    b"\n\n",
    b"\r\n",
    b"=",
    b"-",
    b"~",
    b":",
    b"/",
    b",",
    b"[",
    b"]",
    b"%",
    b"+1",
    b"-1",
    b"0",
    b"0000000000",
    b"2147483648",
    b"99999999999999999999",
    b"\0",
    b"\xff",
    b"\xc3\xa9",
    b"-READ-",
    b"-WRITE-",
    b"__lock__",
    b"lock-",
    b"~keep",
];

/// Calls `check` with each sample, and then with randomly changed samples: [`INPUTS`] of them or, if the variable
/// `FUZZ_SECONDS` is set, as many as this time allows. If `check` panics on a changed sample, prints a `FUZZ_SEED`. A
/// run with that seed begins its changed samples with the one that failed.
pub(crate) fn fuzz<S: AsRef<[u8]>>(samples: &[S], mut check: impl FnMut(&[u8])) {
    let number = |name: &str| env::var(name).ok().map(|number| number.parse::<u64>().expect("a whole number"));
    let samples: Vec<&[u8]> = samples.iter().map(AsRef::as_ref).collect();
    let (first, limit) = (number("FUZZ_SEED"), number("FUZZ_SECONDS").map(Duration::from_secs));
    let begun = Instant::now();
    let seed = first.unwrap_or_else(|| RandomState::new().hash_one(begun));
    samples.iter().for_each(|sample| check(sample));
    for i in 0.. {
        if limit.map_or(i >= INPUTS, |limit| begun.elapsed() >= limit) {
            return;
        }
        let seed = seed.wrapping_add(i);
        let input = mutant(&samples, &mut Dice(seed));
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(&input))) {
            eprintln!("it fails for {:?}: FUZZ_SEED={seed}", String::from_utf8_lossy(&input));
            resume_unwind(panic);
        }
    }
}

/// Fuzzes with inputs that are text.
pub(crate) fn fuzz_text(samples: &[&str], mut check: impl FnMut(&str)) {
    fuzz(samples, |input| check(&String::from_utf8_lossy(input)));
}

/// A pseudo-random number generator (splitmix64).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a random number below `end`, or zero if `end` is zero.
    fn below(&mut self, end: usize) -> usize {
        (self.roll() % end.max(1) as u64) as usize
    }

    fn one_of<'a>(&mut self, all: &[&'a [u8]]) -> &'a [u8] {
        all[self.below(all.len())]
    }

    /// Returns a random range of `text`, at most 11 bytes long.
    fn piece(&mut self, text: &[u8]) -> std::ops::Range<usize> {
        let begin = self.below(text.len() + 1);
        begin..begin + self.below((text.len() - begin + 1).min(12))
    }
}

/// Returns a random sample after one to four random changes, some of which may leave it as it was.
fn mutant(samples: &[&[u8]], dice: &mut Dice) -> Vec<u8> {
    let mut text = dice.one_of(samples).to_vec();
    for _ in 0..=dice.below(4) {
        let piece = dice.piece(&text);
        let instead: Vec<u8> = match dice.below(6) {
            0 => Vec::new(),
            1 => dice.one_of(&PIECES).to_vec(),
            2 => {
                let other = dice.one_of(samples);
                let from = dice.piece(other);
                other[from].to_vec()
            }
            3 => text[piece.clone()].repeat(2),
            4 => vec![dice.roll().to_le_bytes()[0]],
            _ => text[piece.clone()].iter().map(|byte| byte ^ (1 << dice.below(8))).collect(),
        };
        text.splice(piece, instead);
    }
    text
}
