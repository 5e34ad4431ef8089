//! A link between clients and a server that takes its time, each way; knows nothing of what passes.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::Result;

/// Starts a link to the server, for as long as this process lives. Returns where clients connect.
pub(crate) fn start(server: String, delay: Duration) -> Result<String> {
    let listener = std::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::spawn(move || {
        runtime.block_on(async {
            let Ok(listener) = TcpListener::from_std(listener) else { return };
            while let Ok((client, _)) = listener.accept().await {
                let server = server.clone();
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(server).await else { return };
                    let _ = (client.set_nodelay(true), server.set_nodelay(true));
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::join!(carry(from_client, to_server, delay), carry(from_server, to_client, delay));
                });
            }
        });
    });
    Ok(address.to_string())
}

/// Whatever comes goes on so much later, however much is on its way.
async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, delay: Duration) {
    let (sent, mut arriving) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let take = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let _ = sent.send((Instant::now() + delay, buffer[..length].to_vec()));
        }
    };
    let give = async move {
        while let Some((at, bytes)) = arriving.recv().await {
            sleep_until(at).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(take, give);
}
