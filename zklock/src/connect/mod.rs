//! Connects to the ensemble that the options, the environment variables or the defaults name.

pub(crate) mod credentials;
mod settings;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use zk_rwlock::coordinator::{Coordinator, Failure, Reply, Session, why_no_session};
use zk_rwlock::error::SessionEnd;
use zk_rwlock::security::{Sasl, Tls};
use zk_rwlock::{Error, Loss, Memory, RwLock, ZooKeeper, ZooKeeperBuilder};

use crate::arguments::{ConnectionArguments, parse_duration};
use crate::connect::credentials::{CredentialSettings, read_credentials, source_of_credentials};
use crate::connect::settings::{GivenValue, Setting};
use crate::exit::Exit;
use crate::output::{duration_in_two_units, escape_controls};
use crate::status_line::StatusLine;

/// The connect string if neither `--zk` nor `ZK_HOSTS` gives one.
const DEFAULT_HOSTS: &str = "127.0.0.1:2181";

/// A tick time without a unit must be less than this number of seconds. No server should have a longer tick time, so a
/// larger number was probably meant as milliseconds.
const LONGEST_TICK: f64 = 100.0;

const SECOND: Duration = Duration::from_secs(1);

/// Checks that `path` can be the path of a lock, or is `/`. Then connects, and waits for a session.
pub(crate) async fn connect_for_path(path: &str, connection: &ConnectionArguments) -> Result<ZooKeeper, Exit> {
    Ok(connect_returning_options(path, connection).await?.0)
}

/// Connects as [`connect_for_path`] does. Also returns the options, with which the caller can open more connections.
pub(crate) async fn connect_returning_options(
    path: &str,
    connection: &ConnectionArguments,
) -> Result<(ZooKeeper, ZooKeeperBuilder), Exit> {
    // The root `/` is no path of a lock, but it is accepted here, because `ls --tree /` lists the locks below it.
    if path != "/" {
        RwLock::new(&Memory::new(), path)?;
    }
    let options = client_options(connection.connect_timeout.unwrap_or(connection.session_timeout), connection)?;
    Ok((connect_visibly(&options, connection).await?, options))
}

pub(crate) async fn connect_silently(
    options: &ZooKeeperBuilder,
    connection: &ConnectionArguments,
) -> Result<ZooKeeper, Exit> {
    options.clone().connect(connect_string(connection)?).await.map_err(|error| exit_for_error(error, connection))
}

/// Connects. Meanwhile shows why there is no session yet, if a status line is possible.
pub(crate) async fn connect_visibly(
    options: &ZooKeeperBuilder,
    connection: &ConnectionArguments,
) -> Result<ZooKeeper, Exit> {
    let hosts = connect_string(connection)?;
    tokio::select! {
        biased;
        connected = connect_silently(options, connection) => connected,
        never = show_connecting(&hosts, options) => match never {},
    }
}

/// Shows on a status line for how long zklock has been connecting. Also shows why no server has given a session yet,
/// once that is known. Goes on for as long as this future is polled. Shows nothing in the first second, and nothing at
/// all if no status line is possible.
async fn show_connecting(servers: &str, options: &ZooKeeperBuilder) -> Infallible {
    let mut line = StatusLine::default();
    let started = Instant::now();
    let mut why = None;
    loop {
        tokio::time::sleep(SECOND).await;
        if !StatusLine::can_be_drawn() {
            continue;
        }
        let draw = |line: &mut StatusLine, why: Option<&str>| {
            let waited = duration_in_two_units(started.elapsed());
            line.draw([match why {
                Some(why) => format!("connecting for {waited}: {}", escape_controls(why)),
                None => format!("connecting for {waited} to {}", escape_controls(servers)),
            }]);
        };
        // `why_no_session` may take a second, so the status line is drawn before and after it.
        draw(&mut line, why.as_deref());
        why = why_no_session(servers, options, SECOND).await.ok();
        draw(&mut line, why.as_deref());
    }
}

/// Returns the connect string: the value of `--zk`, or without this option that of `ZK_HOSTS`. If there is no value, or
/// it is empty, returns the default.
pub(crate) fn connect_string(connection: &ConnectionArguments) -> Result<String, Exit> {
    let hosts = settings::HOSTS.given_value(connection.zk.as_ref());
    hosts.as_ref().map_or(Ok(DEFAULT_HOSTS), GivenValue::as_text).map(str::to_owned)
}

/// Returns the options for connections that give up if no server is reached within `limit`. Reads the files that the
/// settings name. Must be called only once, because such a file may be a pipe, which can be read only once.
pub(crate) fn client_options(limit: Duration, connection: &ConnectionArguments) -> Result<ZooKeeperBuilder, Exit> {
    // The chroot of the connect string is not created before it is needed, because a subcommand that only reads must
    // create nothing.
    let mut builder = builder_with_stop_margin(connection.session_timeout).connect_timeout(limit).make_root_on_demand();
    if let Some(tick) = settings::TICK_TIME.given_value(connection.tick_time.as_ref()) {
        builder = builder.tick_time(parse_tick_time(tick.as_text()?).map_err(|problem| tick.usage_error(problem))?);
    }
    if let Some((user, password)) = read_credentials(digest_settings(connection))? {
        builder = builder.digest(&user, &password);
    }
    if let Some((user, password)) = read_credentials(sasl_settings(connection))? {
        builder = builder.sasl(Sasl::digest_md5(&user, &password));
    }
    if let Some(tls) = tls_options(connection)? {
        builder = builder.tls(tls);
    }
    Ok(builder)
}

/// Parses the servers' tickTime. A number without a unit means seconds here, but milliseconds in the servers'
/// configuration, so a number of [`LONGEST_TICK`] or more is refused.
fn parse_tick_time(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(number) if number >= LONGEST_TICK => Err(format!(
            "{text} s is too long for a tick; if the number is from the servers' configuration, write {text}ms"
        )),
        _ => parse_duration(text),
    }
}

/// Sets the stop margin to a quarter of the session timeout. If the connection is lost and does not come back, the lock
/// counts as lost this long before the session can expire. The command uses this time to stop. With a larger margin,
/// the library would have to send heartbeats too often to keep a promise of `docs/zklock.md`: with `--tick-time`, the
/// lock survives a disconnection of 0.4 of a session timeout of 4 s or more. A session timeout of zero gets no margin,
/// because the library refuses this timeout anyway.
fn builder_with_stop_margin(session_timeout: Duration) -> ZooKeeperBuilder {
    let builder = ZooKeeper::builder().session_timeout(session_timeout);
    if session_timeout.is_zero() { builder } else { builder.stop_margin(session_timeout / 4) }
}

/// Returns the two settings for the digest scheme: the text of user and password, and the name of a file with this
/// text.
fn digest_settings(connection: &ConnectionArguments) -> CredentialSettings {
    let file = settings::AUTH_FILE.given_value(connection.auth_file.as_ref());
    (settings::AUTH.given_value(connection.auth.as_ref()), file)
}

/// Returns the two settings for SASL: the text of user and password, and the name of a file with this text.
fn sasl_settings(connection: &ConnectionArguments) -> CredentialSettings {
    let file = settings::SASL_FILE.given_value(connection.sasl_file.as_ref());
    (settings::SASL.given_value(connection.sasl.as_ref()), file)
}

/// Returns the name of the option or variable that gave the setting that `problem` is about. For credentials, the name
/// of the file follows if they come from a file. `problem` is the library's text about an invalid input. Returns `None`
/// if the first words of `problem` are not known here, or if nothing gave the setting.
fn setting_at_fault(problem: &str, connection: &ConnectionArguments) -> Option<String> {
    let name = |given: Option<GivenValue>| given.map(|given| given.setting_name().to_owned());
    match problem {
        _ if problem.starts_with("servers ") || problem.starts_with("servers:") => {
            name(settings::HOSTS.given_value(connection.zk.as_ref()))
        }
        _ if problem.starts_with("a tick time ") => {
            name(settings::TICK_TIME.given_value(connection.tick_time.as_ref()))
        }
        _ if problem.starts_with("SASL user ") => source_of_credentials(&sasl_settings(connection)),
        _ if ["digest user ", "digest together with SASL"].iter().any(|begin| problem.starts_with(begin)) => {
            source_of_credentials(&digest_settings(connection))
        }
        _ => None,
    }
}

/// Turns an error into the exit of zklock. If the error is traced to an option or variable, the message names it.
pub(crate) fn exit_for_error(error: Error, connection: &ConnectionArguments) -> Exit {
    let exit = Exit::from(error.clone());
    let set = source_of_credentials(&sasl_settings(connection))
        .or_else(|| source_of_credentials(&digest_settings(connection)));
    let words = match (error, set) {
        (Error::InvalidInput(problem), _) => match setting_at_fault(&problem, connection) {
            Some(name) => format!("{name}: {problem}"),
            None => return exit,
        },
        (Error::InvalidAcl { .. }, Some(set)) => {
            format!("{set} is set, but these servers have not authenticated its user: they may not be set up for it")
        }
        (Error::Closed(SessionEnd::AuthFailed), Some(set)) => format!("the servers refuse the credentials in {set}"),
        (Error::Closed(SessionEnd::AuthFailed), None) => {
            "the servers refuse a client without credentials: set ZK_SASL or ZK_AUTH".to_owned()
        }
        (Error::Lost(why) | Error::Evicted(why), Some(set)) if why == Loss::SessionOver(SessionEnd::AuthFailed) => {
            format!("{}: check the credentials in {set}", exit.message())
        }
        (Error::Unreachable(_), _) if settings::HOSTS.given_value(connection.zk.as_ref()).is_none() => {
            format!("{}; this is the default address, because neither --zk nor ZK_HOSTS is set", exit.message())
        }
        _ => return exit,
    };
    Exit::new(exit.code(), words)
}

/// Returns the lock at `path`, whose nodes are named as `--dialect` says.
pub(crate) fn lock_at(zk: &ZooKeeper, path: &str, connection: &ConnectionArguments) -> Result<RwLock, Error> {
    RwLock::builder(zk, path).dialect(connection.dialect).build()
}

/// Waits for a session, sends one request, and awaits the reply for one session timeout at most.
pub(crate) async fn send_request<T>(
    zk: &ZooKeeper,
    request: impl FnOnce(&dyn Session) -> Reply<T>,
) -> Result<T, Failure> {
    let session_slot = zk.session_slot(0).await?;
    let session = session_slot.session();
    within_session_timeout(session, request(&**session)).await
}

/// Awaits the reply for one session timeout at most, and then fails with [`Failure::Unreachable`].
pub(crate) async fn within_session_timeout<T>(session: &Arc<dyn Session>, reply: Reply<T>) -> Result<T, Failure> {
    let limit = session.timeout();
    tokio::time::timeout(limit, reply).await.unwrap_or_else(|_| {
        Err(Failure::Unreachable(format!("no answer within {}", humantime::format_duration(limit))))
    })
}

fn tls_options(connection: &ConnectionArguments) -> Result<Option<Tls>, Exit> {
    let ca = settings::TLS_CA.given_value(connection.tls_ca.as_ref());
    let certificate = settings::TLS_CERT.given_value(connection.tls_cert.as_ref());
    let key = settings::TLS_KEY.given_value(connection.tls_key.as_ref());
    let needs = |given: &GivenValue, other: Setting| {
        let Setting { option, variable } = other;
        given.usage_error(format!("it needs {option} (or {variable}), too"))
    };
    match (ca, certificate, key) {
        (None, None, None) => Ok(None),
        (_, Some(certificate), None) => Err(needs(&certificate, settings::TLS_KEY)),
        (_, None, Some(key)) => Err(needs(&key, settings::TLS_CERT)),
        (None, Some(certificate), Some(_)) => Err(needs(&certificate, settings::TLS_CA)),
        (Some(ca), certificate, key) => {
            let mut tls = Tls::from_ca_pem(&read_pem_file(&ca)?).map_err(|error| ca.file_error(problem_text(error)))?;
            if let Some((certificate, key)) = certificate.zip(key) {
                let pem = (read_pem_file(&certificate)?, read_pem_file(&key)?);
                let wrong =
                    |error| certificate.usage_error(format!("with {}: {}", key.setting_name(), problem_text(error)));
                tls = tls.identity_pem(&pem.0, &pem.1).map_err(wrong)?;
            }
            Ok(Some(tls))
        }
    }
}

/// Returns the text of the error. For an invalid input, leaves out the prefix that says so, because the caller puts the
/// name of the setting before the text.
fn problem_text(error: Error) -> String {
    match error {
        Error::InvalidInput(problem) => problem,
        error => error.to_string(),
    }
}

const NO_PEM: &str = "it is no PEM text: `openssl x509 -inform DER -in FILE -out NEW` converts a certificate, `openssl pkey \
     -inform DER -in FILE -out NEW` a key, and `openssl pkcs12 -in FILE -nodes -out NEW` a PKCS#12 file with both";

fn read_pem_file(given: &GivenValue) -> Result<String, Exit> {
    fs::read_to_string(given.as_file_path()).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => given.file_error(NO_PEM),
        _ => given.file_error(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_tick_of_100_or_more_is_refused() {
        assert_eq!(parse_tick_time("2"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_tick_time("2000ms"), Ok(Duration::from_secs(2)));
        for text in ["2000", "100", "3e3"] {
            assert!(parse_tick_time(text).is_err_and(|problem| problem.contains(&format!("{text}ms"))), "{text}");
        }
    }

    #[test]
    fn the_stop_margin_is_a_quarter_of_the_session_timeout() {
        let shown = |timeout| format!("{:?}", builder_with_stop_margin(timeout));
        assert!(shown(Duration::from_secs(6)).contains("stop_margin: Some(1.5s)"));
        assert!(shown(Duration::ZERO).contains("stop_margin: None"), "the library refuses a session timeout of zero");
    }
}
