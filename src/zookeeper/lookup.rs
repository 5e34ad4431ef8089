//! Lookups of host names. Concurrent callers of one name share one lookup in the whole process.
//!
//! A lookup cannot be stopped: it occupies a thread until the name service answers, which can take half a minute.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use tokio::net::{TcpSocket, TcpStream};

use crate::sync::{Mutex, watch};

type Found = Result<Vec<SocketAddr>, String>;

/// The lookups under way, by `host:port`.
static UNDER_WAY: Mutex<BTreeMap<String, watch::Receiver<Option<Found>>>> = Mutex::new(BTreeMap::new());

/// Returns the addresses of a `host:port`, or an error message.
pub(super) async fn addresses(of: &str) -> Found {
    shared(of, |of| Ok(of.to_socket_addrs().map_err(|error| error.to_string())?.collect())).await
}

async fn shared(of: &str, look_up: fn(&str) -> Found) -> Found {
    if let Ok(address) = of.parse() {
        return Ok(vec![address]);
    }
    let mut answer = {
        let mut under_way = UNDER_WAY.lock();
        // If the runtime of a lookup has ended, the sender of its answer is gone, and no answer will come. So a new
        // lookup starts.
        if let Some(answer) = under_way.get(of).filter(|answer| answer.has_changed().is_ok()) {
            answer.clone()
        } else {
            let (sender, answer) = watch::channel(None);
            under_way.insert(of.to_owned(), answer.clone());
            let of = of.to_owned();
            drop(tokio::task::spawn_blocking(move || {
                let found = look_up(&of);
                UNDER_WAY.lock().remove(&of);
                sender.send_replace(Some(found));
            }));
            answer
        }
    };
    let found = answer.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
    found.unwrap_or_else(|| Err("the lookup was given up".to_owned()))
}

/// Connects to the first of these addresses that accepts the connection.
pub(super) async fn connect(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut failed = io::Error::other("the host has no address");
    for address in addresses {
        let connected = async {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            // Keep-alive marks the socket as a probe's: see `attempts.rs`.
            socket.set_keepalive(true)?;
            socket.connect(*address).await
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
        let not = |_: &str| Err("the name was looked up".to_owned());
        for address in ["127.0.0.1:2181", "[::1]:2181"] {
            assert_eq!(shared(address, not).await, Ok(vec![address.parse().unwrap()]));
        }
        assert!(shared("zk1:2181", not).await.is_err());
    }

    #[tokio::test]
    async fn concurrent_callers_share_one_lookup() {
        static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
        static HANGING: Mutex<Option<mpsc::Receiver<()>>> = Mutex::new(None);
        let (end, hangs) = mpsc::channel();
        *HANGING.lock() = Some(hangs);
        let look_up: fn(&str) -> Found = |_| {
            LOOKUPS.fetch_add(1, Ordering::SeqCst);
            let hangs = HANGING.lock().take();
            let _ended = hangs.map(|hangs| hangs.recv());
            Ok(vec!["127.0.0.1:1".parse().unwrap()])
        };
        for _ in 0..20 {
            let given_up = tokio::time::timeout(Duration::from_millis(2), shared("hangs:1", look_up)).await;
            assert!(given_up.is_err());
        }
        let both = tokio::spawn(async move { tokio::join!(shared("hangs:1", look_up), shared("hangs:1", look_up)) });
        // Lets both callers join the lookup before it ends.
        tokio::task::yield_now().await;
        drop(end);
        let (one, other) = both.await.unwrap();
        assert_eq!((one.unwrap().len(), other.unwrap().len()), (1, 1));
        assert_eq!(LOOKUPS.load(Ordering::SeqCst), 1);
        assert!(shared("hangs:1", look_up).await.is_ok());
        assert_eq!(LOOKUPS.load(Ordering::SeqCst), 2, "an answer is not cached");
    }
}
