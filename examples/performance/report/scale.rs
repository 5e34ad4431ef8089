//! Computes how many contenders fit on an ensemble, from the library's limits and the measurements. Also computes the
//! figures in the sentences of the pages.

use super::figures::{figure, number, whole};
use super::results::{Outcome, Results};

/// A copy of `OWN_BYTES_MAX` of `src/zookeeper/session.rs`, in bytes: the limit for the paths of one session's nodes.
const OWN_BYTES_MAX: f64 = (0xf_ffff / 2) as f64;

/// The default of ZooKeeper's `jute.maxbuffer`, in bytes. No reply with a listing can be longer.
const LISTING_BYTES_MAX: f64 = 1_048_575.0;

/// The length of the random id in a node's name, in bytes.
pub(crate) const ID_BYTES: usize = 8;

/// The number of writes for an acquisition and its release: a create and a delete, or a create and a transaction.
const WRITES_A_PAIR: f64 = 2.0;

/// The share of the capacity to plan with. The rest is for elections, slow disks and other users.
const PLANNED_SHARE: f64 = 0.5;

/// Returns the writes per second that the ensemble committed for 64 contenders without a lock, which only create and
/// delete nodes.
fn committed(results: &Results) -> Outcome<f64> {
    let pairs = figure("ensemble").and_then(|figure| figure.median(results, "contend-64", "raw"));
    Ok(pairs.ok_or("raw has no contend-64 on the ensemble")? * WRITES_A_PAIR)
}

fn planned(results: &Results) -> Outcome<f64> {
    Ok((committed(results)? * PLANNED_SHARE / 100.0).round() * 100.0)
}

/// Returns the bytes that one waiter reserves for the path of its own node, `DIRECTORY/HOST~ID` with mode and number.
pub(crate) fn own_bytes(directory: usize, host: usize) -> usize {
    directory + host + "~".len() + ID_BYTES + "/READ-lock-0000000000".len()
}

/// Returns the bytes of one name in a listing, including its length field.
fn listed_bytes(host: usize) -> f64 {
    (4 + host + "~".len() + ID_BYTES + "-WRITE-0000000000".len()) as f64
}

/// Returns a figure for a sentence: `FIGURE CASE PEER`, the ratio `FIGURE CASE PEER / PEER`, or a fact about the run.
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
            whole((OWN_BYTES_MAX / own_bytes(directory.parse()?, host.parse()?) as f64).floor())
        }
        ["listed", host] => whole((LISTING_BYTES_MAX / listed_bytes(host.parse()?)).floor()),
        [what, case, peer, "/", other] => number(median(what, case, peer)? / median(what, case, other)?),
        [what, case, peer] => known(what)?.written(median(what, case, peer)?),
        _ => return Err(format!("no value is called {name:?}").into()),
    })
}
