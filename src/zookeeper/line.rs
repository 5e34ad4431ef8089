//! A connection of our own to a server, in clear text or encrypted; does not know what is said on it.

use std::io::{self, ErrorKind};

use tokio::net::TcpStream;

use crate::zookeeper::options::ZooKeeperBuilder;

/// An open connection.
#[derive(Debug)]
pub(super) enum Line {
    Clear(TcpStream),
    #[cfg(feature = "tls")]
    Encrypted(Box<self::encrypted::Encrypted>),
}

impl Line {
    /// Shakes hands with the server, if the options say that connections are encrypted.
    #[cfg(feature = "tls")]
    pub(super) async fn shake_hands(self, host: &str, options: &ZooKeeperBuilder) -> io::Result<Line> {
        match (self, options.trusted()) {
            (Line::Clear(stream), Some(tls)) => {
                let encrypted = self::encrypted::Encrypted::shake_hands(stream, host, tls).await?;
                Ok(Line::Encrypted(Box::new(encrypted)))
            }
            (line, _) => Ok(line),
        }
    }

    #[cfg(not(feature = "tls"))]
    pub(super) async fn shake_hands(self, _host: &str, _options: &ZooKeeperBuilder) -> io::Result<Line> {
        Ok(self)
    }

    pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Line::Clear(stream) => send(stream, bytes).await,
            #[cfg(feature = "tls")]
            Line::Encrypted(line) => line.send(bytes).await,
        }
    }

    /// Appends what comes next. Zero bytes are the end.
    ///
    /// Dropping the future loses nothing.
    pub(super) async fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Line::Clear(stream) => receive(stream, into).await,
            #[cfg(feature = "tls")]
            Line::Encrypted(line) => line.receive(into).await,
        }
    }
}

async fn send(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            sent => bytes = &bytes[sent?..],
        }
    }
    Ok(())
}

async fn receive(stream: &TcpStream, into: &mut Vec<u8>) -> io::Result<usize> {
    let mut piece = [0; 1024];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            received => {
                let received = received?;
                into.extend_from_slice(&piece[..received]);
                return Ok(received);
            }
        }
    }
}

#[cfg(feature = "tls")]
mod encrypted {
    use std::io::{self, ErrorKind, Read, Write};
    use std::sync::Arc;

    use rustls::ClientConnection;
    use rustls::pki_types::ServerName;
    use tokio::net::TcpStream;

    use crate::zookeeper::tls::Tls;

    /// A connection by rustls, which does no I/O of its own.
    #[derive(Debug)]
    pub(in crate::zookeeper) struct Encrypted {
        stream: TcpStream,
        tls: ClientConnection,
    }

    impl Encrypted {
        pub(super) async fn shake_hands(stream: TcpStream, host: &str, tls: &Tls) -> io::Result<Encrypted> {
            let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
            let config = tls.config().map_err(io::Error::other)?;
            let tls = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
            let mut line = Encrypted { stream, tls };
            while line.tls.is_handshaking() {
                line.flush().await?;
                if line.tls.is_handshaking() && line.hear().await? == 0 {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            }
            line.flush().await?;
            Ok(line)
        }

        pub(super) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.tls.writer().write_all(bytes)?;
            self.flush().await
        }

        pub(super) async fn receive(&mut self, into: &mut Vec<u8>) -> io::Result<usize> {
            let mut piece = [0; 1024];
            loop {
                match self.tls.reader().read(&mut piece) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    // A peer that closes without saying so has ended, too.
                    Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                    Err(error) => return Err(error),
                    Ok(read) => {
                        into.extend_from_slice(&piece[..read]);
                        return Ok(read);
                    }
                }
                self.flush().await?;
                self.hear().await?;
            }
        }

        /// Takes what the peer has sent. Zero bytes are the end.
        async fn hear(&mut self) -> io::Result<usize> {
            loop {
                self.stream.readable().await?;
                match self.tls.read_tls(&mut UntilNow(&self.stream)) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                    Ok(read) => {
                        if let Err(error) = self.tls.process_new_packets() {
                            // Tells the peer why, as far as the socket takes it.
                            let _ = self.tls.write_tls(&mut UntilNow(&self.stream));
                            return Err(io::Error::other(error));
                        }
                        return Ok(read);
                    }
                }
            }
        }

        async fn flush(&mut self) -> io::Result<()> {
            while self.tls.wants_write() {
                self.stream.writable().await?;
                match self.tls.write_tls(&mut UntilNow(&self.stream)) {
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                    Ok(_) => {}
                }
            }
            Ok(())
        }
    }

    /// A socket that does now what it can, and does not wait.
    struct UntilNow<'a>(&'a TcpStream);

    impl Read for UntilNow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.try_read(into)
        }
    }

    impl Write for UntilNow<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.try_write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
