//! A connection of our own to a server, in clear text or encrypted.

use std::io::{self, ErrorKind};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::zookeeper::options::ZooKeeperBuilder;

/// An open connection.
pub(super) trait Line: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Line for T {}

/// Shakes hands with the server, if the options say that connections are encrypted.
#[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "every connection is in clear text"))]
pub(super) async fn shake_hands(
    stream: TcpStream,
    host: &str,
    options: &ZooKeeperBuilder,
) -> io::Result<Box<dyn Line>> {
    #[cfg(feature = "tls")]
    if let Some(tls) = options.trusted() {
        let name = rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let config = tls.config().map_err(io::Error::other)?;
        let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
        return Ok(Box::new(connector.connect(name, stream).await?));
    }
    Ok(Box::new(stream))
}

pub(super) async fn send(line: &mut dyn Line, bytes: &[u8]) -> io::Result<()> {
    line.write_all(bytes).await?;
    line.flush().await
}

/// Appends what comes next. Zero bytes are the end.
///
/// Dropping the future loses nothing.
pub(super) async fn receive(line: &mut dyn Line, into: &mut Vec<u8>) -> io::Result<usize> {
    into.reserve(1024);
    match line.read_buf(into).await {
        // A peer that closes without saying so has ended, too.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
        read => read,
    }
}
