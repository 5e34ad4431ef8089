//! What fits on an ensemble: arithmetic on the library's limits and on what was measured. And the figures in sentences.

use super::figures::{figure, number, whole};
use super::results::{Outcome, Results};

/// `WATCHED_BYTES_MAX` of `src/zookeeper/session.rs`.
const WATCHED_BYTES_MAX: f64 = 96.0 * 1024.0;

/// What ZooKeeper's `jute.maxbuffer` is unless set.
const LISTING_BYTES_MAX: f64 = 1_048_575.0;

/// How long the random id is that follows a host.
pub(crate) const ID_BYTES: usize = 8;

const LONGEST_HOST: usize = 64;

/// A create and a delete, or a create and the transaction that hands the lock on.
const WRITES_A_PAIR: f64 = 2.0;

/// What is left to plan with, so that elections, slow disks and other users have room.
const PLANNED_SHARE: f64 = 0.5;

/// The writes a second that the ensemble committed when it was kept busy.
fn committed(results: &Results) -> Outcome<f64> {
    let pairs = figure("ensemble").and_then(|figure| figure.median(results, "contend-64", "raw"));
    Ok(pairs.ok_or("raw has no contend-64 on the ensemble")? * WRITES_A_PAIR)
}

fn planned(results: &Results) -> Outcome<f64> {
    Ok((committed(results)? * PLANNED_SHARE / 100.0).round() * 100.0)
}

/// The watched bytes that one waiter reserves: for its path, `DIRECTORY/HOST~ID`, a mark and a number, and for the longest that may be
/// before it, `DIRECTORY/HOST~ID~keep`, a mark and a number.
pub(crate) fn watched_bytes(directory: usize, host: usize) -> usize {
    let path = |host: usize| directory + host + "~".len() + ID_BYTES + "/READ-lock-0000000000".len();
    path(host) + path(LONGEST_HOST) + "~keep".len()
}

/// The bytes of one name in a listing, with its length before it.
fn listed_bytes(host: usize) -> f64 {
    (4 + host + "~".len() + ID_BYTES + "-WRITE-0000000000".len()) as f64
}

/// Figures inside sentences: `FIGURE CASE DRIVER`, for how many times another's it is also `/ DRIVER`, and some of the run.
pub(crate) fn value(results: &Results, name: &str) -> Outcome<String> {
    let first = results.compared.first().ok_or("nothing was compared")?;
    let of = |peer: &str| results.compared.iter().find(|line| line.text("peer") == peer);
    let known = |name: &str| figure(name).ok_or_else(|| format!("no figure is called {name:?}"));
    let median = |what: &str, case: &str, peer: &str| {
        known(what)?.median(results, case, peer).ok_or_else(|| format!("{peer} has no {what} of {case}"))
    };
    let words: Vec<&str> = name.split(' ').collect();
    Ok(match words[..] {
        ["run", "date"] => first.text("run").split('T').next().unwrap_or_default().to_owned(),
        ["run", what @ ("machine" | "server")] => first.text(what).to_owned(),
        ["run", "rounds"] => whole(results.compared.iter().filter_map(|line| line.number("round")).fold(0.0, f64::max)),
        ["version", peer] => of(peer).ok_or_else(|| format!("{peer} was not run"))?.text("version").to_owned(),
        ["spread", what] => whole(known(what)?.spread(results)?),
        ["committed"] => whole((committed(results)? / 100.0).round() * 100.0),
        ["planned"] => whole(planned(results)?),
        ["pairs"] => whole(planned(results)? / WRITES_A_PAIR),
        ["waiters", directory, host] => {
            whole((WATCHED_BYTES_MAX / watched_bytes(directory.parse()?, host.parse()?) as f64).floor())
        }
        ["listed", host] => whole((LISTING_BYTES_MAX / listed_bytes(host.parse()?)).floor()),
        [what, case, peer, "/", other] => number(median(what, case, peer)? / median(what, case, other)?),
        [what, case, peer] => known(what)?.written(median(what, case, peer)?),
        _ => return Err(format!("no value is called {name:?}").into()),
    })
}
