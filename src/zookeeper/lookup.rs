//! Addresses of names: each name is looked up once at a time in the whole process, and all who ask meanwhile share the answer.
//!
//! A look-up cannot be stopped: it has a thread until the name service answers, which can take half a minute.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use crate::sync::{Mutex, watch};
use crate::zookeeper::sockets::Spared;

type Found = Result<Vec<SocketAddr>, String>;

/// When a look-up began, and its answer.
type UnderWay = (Instant, watch::Receiver<Option<Found>>);

/// The look-ups under way, by the host and port that are looked up.
static UNDER_WAY: Mutex<BTreeMap<String, UnderWay>> = Mutex::new(BTreeMap::new());

/// A look-up that takes so long hangs, perhaps.
const LONG: Duration = Duration::from_millis(500);

/// How often a server is tried while the look-up of another's name hangs.
const PAUSE: Duration = Duration::from_millis(50);

/// The addresses of a host and port. Otherwise, in words, why there are none.
pub(super) async fn addresses(of: &str) -> Found {
    shared(of, look_up).await
}

fn look_up(of: &str) -> Found {
    Ok(of.to_socket_addrs().map_err(|error| error.to_string())?.collect())
}

/// Whether its look-up takes long.
pub(super) fn hangs(of: &str) -> bool {
    UNDER_WAY.lock().get(of).is_some_and(|(began, _)| began.elapsed() > LONG)
}

/// Waits until each of these names is looked up within this time, if only to learn that there is none, or one of the servers takes
/// a connection.
pub(super) async fn none_hangs_or_one_is_reached(of: &[String], within: Duration) {
    none_hangs_or_one_is_reached_by(look_up, of, within).await;
}

async fn none_hangs_or_one_is_reached_by(look_up: fn(&str) -> Found, of: &[String], within: Duration) {
    let in_time = async |of: &String| loop {
        let asked = Instant::now();
        let found = shared(of, look_up).await;
        if asked.elapsed() < within {
            return found;
        }
    };
    let reached = async |of: &String| {
        let Ok(addresses) = in_time(of).await else { return pending().await };
        while !matches!(timeout(within, connect(&addresses)).await, Ok(Ok(_))) {
            sleep(PAUSE).await;
        }
    };
    let mut reached: FuturesUnordered<_> = of.iter().map(reached).collect();
    tokio::select! {
        biased;
        _ = join_all(of.iter().map(in_time)) => {}
        _ = reached.next() => {}
    }
}

async fn shared(of: &str, look_up: fn(&str) -> Found) -> Found {
    if let Ok(address) = of.parse() {
        return Ok(vec![address]);
    }
    let mut answer = {
        let mut under_way = UNDER_WAY.lock();
        if let Some((_, answer)) = under_way.get(of) {
            answer.clone()
        } else {
            let (tell, answer) = watch::channel(None);
            under_way.insert(of.to_owned(), (Instant::now(), answer.clone()));
            let of = of.to_owned();
            drop(tokio::task::spawn_blocking(move || {
                let found = look_up(&of);
                UNDER_WAY.lock().remove(&of);
                tell.send_replace(Some(found));
            }));
            answer
        }
    };
    let found = answer.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
    found.unwrap_or_else(|| Err("the look-up was given up".to_owned()))
}

/// A connection to the first of these addresses that takes one.
pub(super) async fn connect(addresses: &[SocketAddr]) -> io::Result<(TcpStream, Spared)> {
    let mut failed = io::Error::other("the host has no address");
    for address in addresses {
        let connected = async {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            let spared = Spared::of(&socket);
            Ok((socket.connect(*address).await?, spared))
        };
        match connected.await {
            Ok(connected) => return Ok(connected),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn an_address_is_not_looked_up() {
        let not = |_: &str| Err("it was looked up".to_owned());
        for address in ["127.0.0.1:2181", "[::1]:2181"] {
            assert_eq!(shared(address, not).await, Ok(vec![address.parse().unwrap()]));
        }
        assert!(shared("zk1:2181", not).await.is_err());
    }

    #[tokio::test]
    async fn a_name_that_is_not_answered_in_time_is_awaited_until_another_server_is_reached() {
        const NONE: &str = "127.0.0.1:1";
        static LOOKED: AtomicUsize = AtomicUsize::new(0);
        let look_up: fn(&str) -> Found = |_| {
            LOOKED.fetch_add(1, Ordering::SeqCst);
            Err("not known".to_owned())
        };
        let looked = async |times| {
            while LOOKED.load(Ordering::SeqCst) < times {
                tokio::task::yield_now().await;
            }
        };
        let clear = async |of: &'static [&str], within| {
            let of: Vec<_> = of.iter().copied().map(str::to_owned).collect();
            none_hangs_or_one_is_reached_by(look_up, &of, within).await;
        };
        let (listener, hour) = (std::net::TcpListener::bind("127.0.0.1:0").unwrap(), Duration::from_secs(3_600));
        let address = listener.local_addr().unwrap().to_string();
        clear(&[NONE], hour).await;
        clear(&["in-time:1", NONE], hour).await;
        assert_eq!(LOOKED.load(Ordering::SeqCst), 1, "a name is looked up, and an address is not");
        tokio::select! {
            () = clear(&["late:1"], Duration::ZERO) => panic!("it was not answered in time"),
            () = looked(10) => {}
        }
        static NEVER: Mutex<Option<mpsc::Receiver<()>>> = Mutex::new(None);
        let (end, hangs) = mpsc::channel();
        *NEVER.lock() = Some(hangs);
        let hang: fn(&str) -> Found = |_| {
            let hangs = NEVER.lock().take();
            Err(format!("{:?}", hangs.map(|hangs| hangs.recv())))
        };
        let of = ["never:1".to_owned(), address];
        none_hangs_or_one_is_reached_by(hang, &of, hour).await;
        drop(end);
    }

    #[tokio::test]
    async fn however_many_ask_for_a_name_that_hangs_it_is_looked_up_once_at_a_time() {
        static LOOKED: AtomicUsize = AtomicUsize::new(0);
        static HANGS: Mutex<Option<mpsc::Receiver<()>>> = Mutex::new(None);
        let (end, hangs) = mpsc::channel();
        *HANGS.lock() = Some(hangs);
        let look_up: fn(&str) -> Found = |_| {
            LOOKED.fetch_add(1, Ordering::SeqCst);
            let hangs = HANGS.lock().take();
            let _ended = hangs.map(|hangs| hangs.recv());
            Ok(vec!["127.0.0.1:1".parse().unwrap()])
        };
        for _ in 0..20 {
            let given_up = tokio::time::timeout(Duration::from_millis(2), shared("hangs:1", look_up)).await;
            assert!(given_up.is_err());
        }
        let both = tokio::spawn(async move { tokio::join!(shared("hangs:1", look_up), shared("hangs:1", look_up)) });
        // Both ask before it ends.
        tokio::task::yield_now().await;
        drop(end);
        let (one, other) = both.await.unwrap();
        assert_eq!((one.unwrap().len(), other.unwrap().len()), (1, 1));
        assert_eq!(LOOKED.load(Ordering::SeqCst), 1);
        assert!(shared("hangs:1", look_up).await.is_ok());
        assert_eq!(LOOKED.load(Ordering::SeqCst), 2, "its answer is not kept");
    }
}
