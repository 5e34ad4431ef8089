//! Probes servers for the reason why there is no session, on connections of this library.
//!
//! The client crate reports the reason of a failed attempt to connect only in its log. So a probe tests each server
//! step by step: is its name known, does its port accept connections, does the TLS handshake succeed, and what does the
//! server answer to the four-letter word `srvr`? For `srvr`, a server opens no session. Even if the word is disabled,
//! the server answers that it is.

use std::io::{self, ErrorKind};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::error::error::Error;
use crate::session::retry::run_until;
use crate::session::thread::sleep;
use crate::telemetry::log::emit;
use crate::zookeeper::connections::ConnectConfig;
use crate::zookeeper::lookup::{TcpStream, connect_to_one_of, look_up_addresses};
use crate::zookeeper::options::ZooKeeperBuilder;
use crate::zookeeper::servers::{ConnectString, Server};

/// The time limit of a probe during an outage. In any probe, this is also the time after which an unanswered look-up of
/// a name is repeated.
pub(super) const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// The least time for which a probe waits whether the server closes the new connection. A server that has reached its
/// limit of connections closes every new one. Also: an answer counts as complete if no byte has followed for this time.
const AT_ONCE: Duration = Duration::from_millis(50);

/// How long a probe waits for an answer to `srvr` before it sends an end of line. A peer that reads lines, such as an
/// HTTP server, does not answer before the end of a line.
const END_OF_LINE: Duration = Duration::from_millis(250);

/// The number of bytes of an answer to `srvr` that are enough to identify the peer. The rest is not read.
const ENOUGH: usize = 4096;

/// The number of bytes of an answer after which [`send_four_letter_word`] does not read the rest.
const MOST: usize = 64 << 20;

/// The most characters of a peer's answer that a message shows.
const SHOWN_CHARS: usize = 60;

/// The reason why there is no session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NoSessionReason {
    pub(super) words: String,
    /// Whether `words` gives a reason for each server. If `false`, `words` says of at least one server only that the
    /// server is up and has not given a session.
    pub(super) is_known: bool,
}

/// Probes all servers at the same time for the reason why they give no session. Takes at most `limit`.
pub(super) async fn probe_for_reason(config: &ConnectConfig, limit: Duration) -> NoSessionReason {
    // A limit above an hour counts as an hour, so that the sum does not overflow.
    let deadline = Instant::now() + limit.min(Duration::from_secs(3600));
    let servers = &config.servers.each;
    let probes = servers.iter().map(|server| probe_server(server, &config.options, deadline));
    let (mut all, mut is_known) = (Vec::new(), true);
    for (server, answer) in servers.iter().zip(join_all(probes).await) {
        let (words, is_reason) = answer.map_or_else(|words| (words, true), |answer| describe_answer(&answer));
        all.push(format!("{}: {words}", server.host_and_port()));
        is_known &= is_reason;
    }
    let words = all.join("; ");
    emit!(DEBUG, reason = words, "there is no session");
    NoSessionReason { words, is_known }
}

/// Returns why the servers of this connect string give no session: a reason for each server, with its address. Takes at
/// most `limit`.
///
/// # Errors
/// [`Error::InvalidInput`] if `servers` is not a connect string.
pub async fn why_no_session(servers: &str, options: &ZooKeeperBuilder, limit: Duration) -> Result<String, Error> {
    let config = ConnectConfig { servers: ConnectString::parse(servers)?, options: options.clone() };
    Ok(probe_for_reason(&config, limit).await.words)
}

/// Sends a four-letter word to the first server of this connect string, on a new connection, and returns the answer. Of
/// an answer longer than 64 MiB, returns about the first 64 MiB.
///
/// # Errors
/// A message if `server` is not a connect string, if the connection fails, or if the server has not answered and closed
/// the connection within `limit`.
pub async fn send_four_letter_word(
    server: &str,
    word: &str,
    options: &ZooKeeperBuilder,
    limit: Duration,
) -> Result<String, String> {
    let servers = ConnectString::parse(server).map_err(|error| error.to_string())?;
    let server = &servers.each[0];
    let answered = async {
        let found = look_up_addresses(&server.host_and_port(), PROBE_LIMIT).await.map_err(io::Error::other)?;
        let mut stream = shake_hands_if_tls(connect_to_one_of(&found).await?, &server.host, options).await?;
        send(&mut *stream, word.as_bytes()).await?;
        let mut answer = Vec::new();
        while answer.len() < MOST && receive(&mut *stream, &mut answer).await? > 0 {}
        Ok::<_, io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let answer = run_until(sleep(limit), answered).await.ok_or("does not answer")?;
    answer.map_err(|error| error.to_string())
}

/// Probes one server. Returns what the server has sent, usually the answer to `srvr`, or a message that says which step
/// failed.
async fn probe_server(server: &Server, options: &ZooKeeperBuilder, deadline: Instant) -> Result<Vec<u8>, String> {
    let found = within_deadline(deadline, look_up_addresses(&server.host_and_port(), PROBE_LIMIT)).await;
    let found = found.ok_or("the name service does not answer")?;
    let addresses = found.map_err(|error| format!("the host is not known: {error}"))?;
    let began = Instant::now();
    let stream = within_deadline(deadline, connect_to_one_of(&addresses)).await;
    let mut stream = match stream.ok_or("does not answer")? {
        Ok(stream) => stream,
        // The server has closed the connection before `connect` returned.
        Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
            return Err(FULL.to_owned());
        }
        Err(error) => return Err(error.to_string()),
    };

    // If the server has reached its limit of connections, it closes this one, and the close arrives within about a
    // round trip. The connect took one round trip, so the probe waits for at least twice the time of the connect.
    let at_once = deadline.min(Instant::now() + AT_ONCE.max(2 * began.elapsed()));
    let mut answer = Vec::with_capacity(ENOUGH);
    match within_deadline(at_once, receive(&mut stream, &mut answer)).await {
        Some(Ok(0) | Err(_)) => return Err(FULL.to_owned()),
        Some(Ok(_)) => return Ok(answer),
        None => {}
    }
    let opened = within_deadline(deadline, shake_hands_if_tls(stream, &server.host, options)).await;
    let opened = opened.ok_or("takes connections, and is silent in the TLS handshake")?;
    let mut stream =
        opened.map_err(|error| tls_problem(&error).unwrap_or_else(|| format!("{CLOSED_IN_TLS} ({error})")))?;
    let closed = || if options.is_encrypted() { CLOSED } else { CLOSED_IN_CLEAR }.to_owned();
    match within_deadline(deadline, ask_srvr(&mut *stream, &mut answer)).await {
        _ if !answer.is_empty() => Ok(answer),
        Some(read) => Err(read.err().and_then(|error| tls_problem(&error)).unwrap_or_else(closed)),
        None => Err("takes connections, and answers nothing".to_owned()),
    }
}

const FULL: &str = "closes every connection at once: so does a server that has as many connections from this host as its \
     maxClientCnxns allows (60 by default), and a proxy that has no server";
const CLOSED_IN_TLS: &str = "closes the connection in the TLS handshake: the port may be one for clear text";
const CLOSED: &str = "takes connections, and closes them without an answer";
const CLOSED_IN_CLEAR: &str = "takes connections, and closes them without an answer: the port may be one for TLS";

/// Sends `srvr`, and reads the answer until its end, until the peer pauses, or until [`ENOUGH`] bytes have come.
async fn ask_srvr(stream: &mut dyn ByteStream, answer: &mut Vec<u8>) -> io::Result<()> {
    send(stream, b"srvr").await?;
    if let Some(first) = run_until(sleep(END_OF_LINE), receive(stream, answer)).await {
        first?;
    } else {
        send(stream, b"\r\n\r\n").await?;
        receive(stream, answer).await?;
    }
    while !answer.is_empty() && answer.len() < ENOUGH {
        match run_until(sleep(AT_ONCE), receive(stream, answer)).await {
            Some(Ok(more)) if more > 0 => {}
            _ => break,
        }
    }
    Ok(())
}

/// Returns the result of `work`, or `None` at the deadline.
async fn within_deadline<T>(deadline: Instant, work: impl Future<Output = T>) -> Option<T> {
    run_until(sleep(deadline.saturating_duration_since(Instant::now())), work).await
}

/// Describes the peer by its answer to `srvr`. Also returns whether the description explains why there is no session.
fn describe_answer(answer: &[u8]) -> (String, bool) {
    let text = String::from_utf8_lossy(answer);
    let first = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    // Control characters in the answer must not reach a terminal.
    let shown = |text: &str| text.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS).collect::<String>();
    let mode = text.lines().find_map(|line| line.strip_prefix("Mode: ")).map(|mode| shown(mode.trim()));
    let shown = shown(first);
    match (answer, mode.as_deref()) {
        ([0x15 | 0x16, 3, ..], _) => ("its port is one for TLS, which this client does not speak".to_owned(), true),
        (_, Some("read-only")) => ("is read-only: it does not reach the majority of its ensemble".to_owned(), true),
        (_, Some(mode)) => (format!("is up, as {mode}, and has not given a session"), false),
        _ if first.contains("is not currently serving requests") => {
            (format!("{shown}: it may not reach the majority of its ensemble"), true)
        }
        _ if first.contains("not in the whitelist") => ("is up, and has not given a session".to_owned(), false),
        _ if first.starts_with("HTTP/") => (format!("speaks HTTP, and is no ZooKeeper: {shown:?}"), true),
        _ => (format!("is no ZooKeeper: it says {shown:?}"), true),
    }
}

/// Describes an error in TLS; `None` for other errors.
#[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "every connection is in clear text"))]
fn tls_problem(error: &io::Error) -> Option<String> {
    #[cfg(feature = "tls")]
    if let Some(cause) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
        let what = match cause {
            rustls::Error::InvalidCertificate(_) => "its certificate is not accepted: ",
            rustls::Error::AlertReceived(_) => "it does not accept this client: ",
            rustls::Error::InvalidMessage(_) => "the port may be one for clear text: ",
            _ => "",
        };
        let cure = crate::zookeeper::tls::tls_error_advice(cause).map(|cure| format!(": {cure}")).unwrap_or_default();
        return Some(format!("TLS: {what}{error}{cure}"));
    }
    None
}

/// An open connection, with or without TLS.
trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Makes the TLS handshake if the options have TLS. Otherwise returns the connection as it is.
#[cfg_attr(not(feature = "tls"), expect(unused_variables, reason = "every connection is in clear text"))]
async fn shake_hands_if_tls(
    stream: TcpStream,
    host: &str,
    options: &ZooKeeperBuilder,
) -> io::Result<Box<dyn ByteStream>> {
    #[cfg(feature = "tls")]
    if let Some(tls) = &options.tls {
        let name = rustls::pki_types::ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let config = tls.rustls_config().map_err(io::Error::other)?;
        let connector = futures_rustls::TlsConnector::from(std::sync::Arc::new(config));
        return Ok(Box::new(connector.connect(name, stream).await?));
    }
    Ok(Box::new(stream))
}

async fn send(stream: &mut dyn ByteStream, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Appends the next bytes to `into`, and returns their number; zero at the end of the stream.
///
/// Dropping the future loses no bytes.
async fn receive(stream: &mut dyn ByteStream, into: &mut Vec<u8>) -> io::Result<usize> {
    let mut next = [0; 1024];
    match stream.read(&mut next).await {
        // A peer may also end the stream by closing the connection without a TLS close.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
        Err(error) => Err(error),
        Ok(read) => {
            into.extend_from_slice(&next[..read]);
            Ok(read)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::fuzz;

    #[test]
    fn an_answer_shows_if_a_server_is_up_down_or_foreign() {
        let up = "Zookeeper version: 3.8.0, built on 2022\nLatency min/avg/max: 0/0/0\nMode: follower\nNode count: 5\n";
        for (answer, words, is_known) in [
            (up, "is up, as follower, and has not given a session", false),
            ("Zookeeper version: 3.8.0\nMode: read-only\n", "is read-only", true),
            (
                "This ZooKeeper instance is not currently serving requests\n",
                "This ZooKeeper instance is not currently serving requests: it may not reach the majority",
                true,
            ),
            ("srvr is not executed because it is not in the whitelist.\n", "is up, and has", false),
            ("HTTP/1.1 400 Bad Request\r\nServer: x\r\n", "speaks HTTP, and is no ZooKeeper: \"HTTP/1.1 400 Bad", true),
            ("<!DOCTYPE HTML>\n<html lang=\"en\">\n", "is no ZooKeeper: it says \"<!DOCTYPE HTML>\"", true),
            ("\u{15}\u{3}\u{3}\0\u{2}\u{2}(", "one for TLS", true),
            ("SSH-2.0-OpenSSH_9.6\r\n", "is no ZooKeeper: it says \"SSH-2.0-OpenSSH_9.6\"", true),
            ("\u{1b}[2J\n", "it says \"[2J\"", true),
            ("", "it says \"\"", true),
        ] {
            let (message, known) = describe_answer(answer.as_bytes());
            assert!(message.contains(words) && known == is_known, "{answer:?}: {message}");
        }
        let (long, _) = describe_answer("é".repeat(5_000).as_bytes());
        assert_eq!(long.chars().filter(|c| *c == 'é').count(), SHOWN_CHARS);
    }

    #[test]
    fn a_fuzzed_answer_is_reported_short_and_printable() {
        let samples = [
            "Zookeeper version: 3.8.0\nLatency min/avg/max: 0/0/0\nMode: follower\n",
            "This ZooKeeper instance is not currently serving requests\n",
            "HTTP/1.1 400 Bad Request\r\nServer: x\r\n",
            "\u{15}\u{3}\u{3}\0\u{2}\u{2}(",
        ];
        fuzz(&samples, |answer| {
            let (words, _) = describe_answer(answer);
            assert!(!words.chars().any(char::is_control), "{words:?}");
            assert!(words.chars().count() < 300, "{words:?}");
        });
    }
}
