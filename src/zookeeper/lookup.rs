//! Look-ups of host names. Callers in this process that need the same name at the same time share the look-ups of that
//! name.
//!
//! A look-up cannot be stopped, and occupies a thread until the name service answers, which can take half a minute. If
//! the network loses a query, the system repeats the query only after 5 s. So while the first look-up of a name is not
//! answered, a second and a third look-up of the same name are begun.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use async_io::Async;

use crate::session::lease::{Moment, since_boot};
use crate::session::retry::run_until;
use crate::session::thread::sleep;
use crate::sync::{Mutex, watch};

pub(super) type TcpStream = Async<std::net::TcpStream>;

type LookupResult = Result<Vec<SocketAddr>, String>;

/// The look-ups of one name that are under way.
#[derive(Default)]
struct LookupsUnderWay {
    count: u32,
    /// When the last look-up began, and the channel for the first answer to any of the look-ups.
    last: Option<(Moment, watch::Sender<Option<LookupResult>>)>,
}

/// The most look-ups of one name that are under way at a time.
const MOST: u32 = 3;

static UNDER_WAY: Mutex<BTreeMap<String, LookupsUnderWay>> = Mutex::new(BTreeMap::new());

/// Returns the addresses of a `host:port`, or an error message. An IP address is returned without a look-up. Until the
/// name service answers, another look-up of the name begins every `patience`, but at most [`MOST`] are under way.
pub(super) async fn look_up_addresses(of: &str, patience: Duration) -> LookupResult {
    // An IPv6 address with the name of its zone is looked up, but the system does not know it in brackets.
    let look_up =
        |of: &str| of.replace(['[', ']'], "").to_socket_addrs().map(Iterator::collect).map_err(|it| it.to_string());
    look_up_shared(of, patience, look_up).await
}

async fn look_up_shared(of: &str, patience: Duration, look_up: fn(&str) -> LookupResult) -> LookupResult {
    if let Ok(address) = of.parse() {
        return Ok(vec![address]);
    }
    loop {
        let mut answer = join_or_begin_lookup(of, patience, look_up);
        if let Some(found) = run_until(sleep(patience), answer.wait_for(Option::is_some)).await {
            let found = found.ok().and_then(|found| found.clone());
            return found.unwrap_or_else(|| Err("the look-up was given up".to_owned()));
        }
    }
}

/// Returns a channel for the first answer about this name. All callers get the same channel until the answer has come.
/// For a new channel, begins a look-up. For a channel that exists, begins another look-up if the last one began at
/// least `patience` ago, and fewer than [`MOST`] are under way.
fn join_or_begin_lookup(
    of: &str,
    patience: Duration,
    look_up: fn(&str) -> LookupResult,
) -> watch::Receiver<Option<LookupResult>> {
    let (mut all, now) = (UNDER_WAY.lock(), since_boot());
    let name = all.entry(of.to_owned()).or_default();
    // An earlier answer is not given to later callers, because answers are not cached.
    name.last = name.last.take().filter(|(_, answer)| answer.borrow().is_none());
    let is_recent = name.last.as_ref().is_some_and(|(began, _)| now.saturating_sub(*began) < patience);
    if let Some((_, answer)) = name.last.as_ref().filter(|_| is_recent || name.count >= MOST) {
        return answer.subscribe();
    }
    let answer = name.last.take().map_or_else(|| watch::Sender::new(None), |(_, answer)| answer);
    let received = answer.subscribe();
    name.count += 1;
    name.last = Some((now, answer.clone()));
    let of = of.to_owned();
    blocking::unblock(move || {
        let found = look_up(&of);
        answer.send_if_modified(|answered| {
            let is_first = answered.is_none();
            answered.get_or_insert(found);
            is_first
        });
        let mut all = UNDER_WAY.lock();
        if let Some(name) = all.get_mut(&of) {
            name.count -= 1;
            if name.count == 0 {
                all.remove(&of);
            }
        }
    })
    .detach();
    received
}

/// Connects to the first of these addresses that accepts the connection. If none does, returns the error of the last.
pub(super) async fn connect_to_one_of(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failed = io::Error::other("the host has no address");
    for address in addresses {
        match TcpStream::connect(*address).await {
            Ok(connected) => return Ok(connected),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::sync::atomic::{AtomicUsize, Ordering};

    const LONG: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn an_address_is_not_looked_up() {
        let not = |_: &str| Err("the name was looked up".to_owned());
        for address in ["127.0.0.1:2181", "[::1]:2181"] {
            assert_eq!(look_up_shared(address, LONG, not).await, Ok(vec![address.parse().unwrap()]));
        }
        assert!(look_up_shared("zk1:2181", LONG, not).await.is_err());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn an_ipv6_address_may_name_its_zone() {
        let found = look_up_addresses("[fe80::1%lo]:2181", LONG).await.expect("the zone exists");
        assert!(matches!(found[..], [SocketAddr::V6(address)] if address.scope_id() > 0), "{found:?}");
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_lookup() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        static HANGING: Mutex<Option<mpsc::Receiver<()>>> = Mutex::new(None);
        let (end, hangs) = mpsc::channel();
        *HANGING.lock() = Some(hangs);
        let look_up: fn(&str) -> LookupResult = |_| {
            LOOKUPS.fetch_add(1, Ordering::SeqCst);
            let hangs = HANGING.lock().take();
            let _ended = hangs.map(|hangs| hangs.recv());
            Ok(vec!["127.0.0.1:1".parse().unwrap()])
        };
        for _ in 0..20 {
            let given_up =
                tokio::time::timeout(Duration::from_millis(2), look_up_shared("hangs:1", LONG, look_up)).await;
            assert!(given_up.is_err());
        }
        let both = tokio::spawn(async move {
            tokio::join!(look_up_shared("hangs:1", LONG, look_up), look_up_shared("hangs:1", LONG, look_up))
        });
        // Lets both callers join the look-up that still hangs.
        tokio::task::yield_now().await;
        drop(end);
        let (one, other) = both.await.unwrap();
        assert_eq!((one.unwrap().len(), other.unwrap().len()), (1, 1));
        assert_eq!(LOOKUPS.load(Ordering::SeqCst), 1);
        assert!(look_up_shared("hangs:1", LONG, look_up).await.is_ok());
        assert_eq!(LOOKUPS.load(Ordering::SeqCst), 2, "an answer is not cached");
    }

    #[tokio::test]
    async fn at_most_three_look_ups_of_a_name_are_under_way() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        static ENDED: Mutex<bool> = Mutex::new(false);
        // Every look-up hangs until `ENDED` is set.
        let look_up: fn(&str) -> LookupResult = |_| {
            LOOKUPS.fetch_add(1, Ordering::SeqCst);
            while !*ENDED.lock() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(vec!["127.0.0.1:1".parse().unwrap()])
        };
        let patience = Duration::from_millis(5);
        let found = tokio::spawn(look_up_shared("lost:1", patience, look_up));
        while LOOKUPS.load(Ordering::SeqCst) < 3 {
            sleep(patience).await;
        }
        sleep(20 * patience).await;
        assert_eq!(LOOKUPS.load(Ordering::SeqCst), 3);
        *ENDED.lock() = true;
        assert_eq!(found.await.unwrap().unwrap().len(), 1);
    }
}
