//! The options of a connection, and their checks.

use std::time::Duration;

use zookeeper_client as zk;

use crate::error::error::Error;
use crate::queue::quoted::quoted;
use crate::session::lease::Lease;
use crate::session::thread::since_boot_unless_forked;
use crate::zookeeper::connection::{attempt_time_limit, silence_limit};
#[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
use crate::zookeeper::security::Sasl;
use crate::zookeeper::security::{Acl, AclPolicy, Credentials};
use crate::zookeeper::servers::{CLEAR, ConnectString, ENCRYPTED};
#[cfg(feature = "tls")]
use crate::zookeeper::tls::Tls;

/// The default session timeout: longer than a usual garbage collection or leader election, and short enough that the
/// lock of a dead holder is soon free.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The shortest session timeout. With 222 ms or less no lease could be renewed ([`Lease::is_renewable`]). The lease is
/// three quarters of the timeout. The [settling time](Lease::with_tick_time), a quarter of the timeout plus 100 ms, and
/// the shortest heartbeat period, a twentieth of the timeout, would together be longer.
///
/// `connect` fails if the servers grant less than this. So it also fails if a server refuses a session: the server then
/// answers with a timeout of zero, which the client crate takes for 8 ms.
pub(super) const SHORTEST_TIMEOUT: Duration = Duration::from_millis(250);

/// The longest session timeout. A longer one is probably a mistake in the unit of time. After a crash, the lock would
/// stay taken for more than an hour. Servers grant at most 20 times their `tickTime`, unless `maxSessionTimeout` is
/// set.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(3_600);

/// The shortest read timeout. A shorter one would leave a server too little time to answer.
const SHORTEST_SILENCE: Duration = Duration::from_millis(50);

const SHORTEST_TICK: Duration = Duration::from_millis(1);

/// The least stop margin is the session timeout divided by this number. So the margin suffices for two clocks that
/// differ by up to one part in 100 when they measure the session timeout.
const CLOCK_DRIFT: u32 = 100;

/// Options of a connection. Made by [`ZooKeeper::builder`](crate::ZooKeeper::builder).
#[derive(Clone, Debug)]
#[must_use = "nothing is connected before `connect`"]
pub struct ZooKeeperBuilder {
    pub(super) session_timeout: Duration,
    connect_timeout: Option<Duration>,
    tick_time: Option<Duration>,
    stop_margin: Option<Duration>,
    read_timeout: Option<Duration>,
    digest: Option<Credentials>,
    sasl: Option<Credentials>,
    #[cfg(feature = "tls")]
    pub(super) tls: Option<Tls>,
    acl: Option<Acl>,
    refuses_wider_acl: bool,
    pub(super) makes_root_at_once: bool,
}

impl ZooKeeperBuilder {
    pub(super) fn new() -> ZooKeeperBuilder {
        ZooKeeperBuilder {
            session_timeout: SESSION_TIMEOUT,
            connect_timeout: None,
            tick_time: None,
            stop_margin: None,
            read_timeout: None,
            digest: None,
            sasl: None,
            #[cfg(feature = "tls")]
            tls: None,
            acl: None,
            refuses_wider_acl: false,
            makes_root_at_once: true,
        }
    }

    /// Sets how long the ensemble keeps a session that it does not hear from: 250 ms to an hour. Default: 10 s.
    /// [`ZooKeeper::session_timeout`](crate::ZooKeeper::session_timeout) returns what the servers have granted.
    ///
    /// After a holder crashes, its lock is free after this long. A holder that is cut off reports the loss [before
    /// that](Self::stop_margin).
    ///
    /// The servers grant from 2 to 20 times their `tickTime`, unless they are configured otherwise. That is 4 to 40 s
    /// with a tick of 2 s, and 6 to 60 s with the default tick of 3 s. If the servers grant less than requested, but at
    /// least 250 ms, the client logs a warning, and goes on as if it had requested the granted timeout. Configure the
    /// same bounds on all servers. If a server grants less on a reconnect than another server granted at first, the
    /// session ends, and its locks are lost.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        // The handshake carries the timeout in whole milliseconds, so the rest is dropped here.
        self.session_timeout = Duration::from_millis(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
        self
    }

    /// Sets the time limit for opening a session. Default: the session timeout. A client that has lost its session
    /// pauses before it opens a new one, for at most half of this limit.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// Sets the `tickTime` of the servers' configuration. Default: 3 s, which is the servers' own default, or half the
    /// session timeout if that is shorter.
    ///
    /// The leader hears of a session only each half tick. The smaller the tick is compared with the session timeout,
    /// the longer are the breaks of the connection that cost no lock. The value must not be less than the servers' own
    /// tick, because otherwise a holder that is cut off may learn of the loss too late. The library cannot find out the
    /// tick: servers do not report it, and the least timeout that they grant does not show it, because
    /// `minSessionTimeout` may be set to anything.
    ///
    /// [How long a break may last](crate::operating#breaks-of-the-connection) without the loss of a lock depends on the
    /// tick and the session timeout. When a session begins, the log shows this time, at the level `info`.
    pub fn tick_time(mut self, tick: Duration) -> Self {
        self.tick_time = Some(tick);
        self
    }

    /// Sets the time between the moment at which a holder that is cut off reports the loss, and the moment at which the
    /// ensemble may give the lock to another contender. In this time the holder can stop its work. The margin also
    /// makes up for clocks that run at different speeds. Default: a sixth of the session timeout, or 300 ms if that is
    /// longer, but at most a quarter of the session timeout. A margin must be at least a hundredth of the session
    /// timeout, and leave enough time to renew the lease.
    ///
    /// If the servers grant a shorter timeout, the margin is shortened in proportion. With a longer margin than the
    /// default, heartbeats are sent more often, up to 20 in a session timeout. So a margin that is a second longer
    /// shortens the longest break that costs no lock by less than a second.
    pub fn stop_margin(mut self, margin: Duration) -> Self {
        self.stop_margin = Some(margin);
        self
    }

    /// Sets how long a connection may be silent before a new one replaces it: from 50 ms to half the session timeout.
    /// Default: a third of the session timeout, or two fifths of a session timeout below 3 s. The default is somewhat
    /// shorter if even [breaks of that length](Self::tick_time) could cost the lock.
    ///
    /// If a server pauses for up to half of this time, to collect garbage or to flush its log, the connection stays.
    /// After a longer pause, the connection may be given up, and a transaction under way may fail with
    /// [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown). So set twice the longest pause of your servers. The
    /// longer the limit, the later the connection to a dead server is given up. If the limit is close to the longest
    /// break that costs no lock, or above it, a dead server may cost the lock.
    ///
    /// The first attempt to connect to an address may take a twelfth of the session timeout, or 350 ms if that is
    /// longer. With a session timeout below 3 s, the attempt may take two fifths of the session timeout. It never takes
    /// longer than the read timeout. If the address did not answer in time, the next attempt there may take twice as
    /// long.
    pub fn read_timeout(mut self, limit: Duration) -> Self {
        self.read_timeout = Some(limit);
        self
    }

    /// By default, `connect` creates the path at the end of the connect string, if the path is missing. With this
    /// option, the first acquisition creates it instead. Call this in a program that may not create the path.
    pub fn make_root_on_demand(mut self) -> Self {
        self.makes_root_at_once = false;
        self
    }

    /// Authenticates with ZooKeeper's `digest` scheme. Unless an [`acl`](Self::acl) is given, only the same user may
    /// then use the nodes that this client makes. No server refuses a wrong password: the client then counts as another
    /// user. Cannot be combined with `sasl`.
    ///
    /// The password is sent in clear text, on each reconnect again. So encrypt the connection, with
    #[cfg_attr(feature = "tls", doc = "[`tls`](Self::tls).")]
    #[cfg_attr(not(feature = "tls"), doc = "the feature `tls`.")]
    pub fn digest(mut self, user: &str, password: &str) -> Self {
        self.digest = Some(Credentials::Digest { user: user.to_owned(), password: password.to_owned() });
        self
    }

    /// Authenticates with SASL. Unless an [`acl`](Self::acl) is given, only the same user may then use the nodes that
    /// this client makes. Cannot be combined with `digest`.
    ///
    /// Wrong credentials end [`connect`](Self::connect) with [`Error::Closed`]. If a server refuses the credentials
    /// later, on a reconnect, all guards of the session are lost immediately, and its waiting acquisitions fail.
    #[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))))]
    pub fn sasl(mut self, sasl: Sasl) -> Self {
        self.sasl = Some(sasl.0);
        self
    }

    /// Encrypts every connection, and verifies every server. Nothing is sent in clear text, even if a server requests
    /// it.
    ///
    /// The ports in the connect string must then be the servers' `secureClientPort`.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Sets the permissions on the nodes that this client makes, such as lock directories and the nodes in them.
    ///
    /// Default: [`Acl::anyone`], or [`Acl::creator`] after [`digest`](Self::digest) or `sasl`. A client certificate
    /// alone does not change the default, because machines that share a lock have different certificates.
    pub fn acl(mut self, acl: Acl) -> Self {
        self.acl = Some(acl);
        self
    }

    /// Refuses to enter a directory that gives more rights than the [`acl`](Self::acl) of this client would. Such a
    /// directory was made with another ACL, and clients that this client does not trust could take the lock. The error
    /// lists the rights. By default such a directory is used as it is, and `zklock check` reports it.
    ///
    /// With this option, each acquisition reads the ACL of its directory, in the round trip that creates its node. An
    /// acquisition of permits also reads the ACLs of the semaphore's node and of its permits, in two more round trips.
    /// A node that was made in a refused directory is removed immediately.
    pub fn refuse_wider_acl(mut self) -> Self {
        self.refuses_wider_acl = true;
        self
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        if self.session_timeout < SHORTEST_TIMEOUT || self.session_timeout > LONGEST_TIMEOUT {
            return Err(Error::invalid(format!(
                "a session timeout of {:?}: it must be from {SHORTEST_TIMEOUT:?} to an hour, for which the lock of a crashed holder \
                 stays taken",
                self.session_timeout
            )));
        }
        if self.connect_timeout == Some(Duration::ZERO) {
            return Err(Error::invalid("a connect timeout of zero"));
        }
        self.check_lease().map_err(Error::invalid)?;
        if let Some(limit) =
            self.read_timeout.filter(|limit| *limit < SHORTEST_SILENCE || *limit > self.session_timeout / 2)
        {
            let most = self.session_timeout / 2;
            return Err(Error::invalid(format!(
                "a read timeout of {limit:?}: it must be from {SHORTEST_SILENCE:?} to {most:?}"
            )));
        }
        if self.acl.as_ref().is_some_and(|acl| acl.entries.is_empty()) {
            return Err(Error::invalid("an ACL without permissions"));
        }
        self.credentials().try_for_each(Credentials::check)?;
        // A client with both logins would have two users. A server without SASL ignores the SASL login, so nodes that
        // are made on such a server would belong to the digest user only.
        if self.credentials().count() > 1 {
            return Err(Error::invalid("digest together with SASL: a client is one user"));
        }
        Ok(())
    }

    fn credentials(&self) -> impl Iterator<Item = &Credentials> {
        self.digest.iter().chain(&self.sasl)
    }

    /// Returns the options for a session whose timeout the servers have shortened to `timeout`.
    pub(super) fn with_granted_timeout(mut self, timeout: Duration) -> ZooKeeperBuilder {
        let part = timeout.div_duration_f64(self.session_timeout);
        self.stop_margin = self.stop_margin.map(|margin| margin.mul_f64(part).max(timeout / CLOCK_DRIFT));
        self.read_timeout = self.read_timeout.map(|limit| limit.min(timeout / 2));
        self.session_timeout = timeout;
        self
    }

    /// Fails with a message if the tick time or the stop margin is out of range, or if heartbeats could not renew the
    /// lease.
    pub(super) fn check_lease(&self) -> Result<(), String> {
        let timeout = self.session_timeout;
        match (self.tick_time, self.stop_margin) {
            (Some(tick), _) if tick < SHORTEST_TICK => {
                Err(format!("a tick time of {tick:?}: servers count ticks in milliseconds"))
            }
            (_, Some(margin)) if margin < timeout / CLOCK_DRIFT => Err(format!(
                "a stop margin of {margin:?} is too short for clocks that differ: it must be at least a hundredth of the \
                 session timeout of {timeout:?}"
            )),
            (Some(tick), _) if !Lease::new(timeout).with_tick_time(tick).is_renewable() => {
                Err(format!("a tick time of {tick:?} is too long for a session timeout of {timeout:?}"))
            }
            (_, Some(margin)) if !self.new_lease().is_renewable() => {
                Err(format!("a stop margin of {margin:?} leaves no time to renew a session timeout of {timeout:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Returns how long a connection may be silent: the read timeout, or else the default.
    pub(super) fn silence_limit(&self) -> Duration {
        let rides_out = self.new_lease().survivable_break(attempt_time_limit(self.session_timeout));
        self.read_timeout.unwrap_or_else(|| silence_limit(self.session_timeout, rides_out))
    }

    /// Returns how long the first attempt to connect to an address may take.
    pub(super) fn attempt_time_limit(&self) -> Duration {
        attempt_time_limit(self.session_timeout).min(self.silence_limit())
    }

    /// Returns the longest break of the connection that a session with this lease survives without the loss of a lock,
    /// whenever the break begins.
    pub(super) fn longest_survivable_break(&self, lease: &Lease) -> Duration {
        let (silence, rides_out) = (self.silence_limit(), lease.survivable_break(self.attempt_time_limit()));
        // The client gives up a silent connection after at most 9/8 of the silence limit. If `rides_out` is shorter
        // than that, the client may still wait on the dead connection when a break of that length ends. This wait takes
        // up to the silence limit, which is longer than an attempt to connect. So the result is then computed with the
        // silence limit in place of the attempt limit.
        if rides_out >= silence * 9 / 8 { rides_out } else { lease.survivable_break(silence) }
    }

    pub(super) fn new_lease(&self) -> Lease {
        let mut lease = Lease::with_clock(self.session_timeout, Box::new(since_boot_unless_forked));
        if let Some(tick) = self.tick_time {
            lease = lease.with_tick_time(tick);
        }
        match self.stop_margin {
            Some(margin) => lease.with_stop_margin(margin),
            None => lease,
        }
    }

    /// Refuses a connect string that contradicts the options about encryption: the client crate would follow a `tcp://`
    /// in the string even if TLS is set, and send a password in clear text. With TLS, also refuses a host name that TLS
    /// cannot verify.
    pub(super) fn check_encryption(&self, servers: &ConnectString) -> Result<(), Error> {
        for server in &servers.each {
            let problem = match (self.is_encrypted(), server.scheme) {
                (true, Some(CLEAR)) => "is clear text, but TLS is set",
                (false, Some(ENCRYPTED)) => "needs `tls` to be set",
                _ => "",
            };
            if !problem.is_empty() {
                return Err(Error::invalid(format!("servers: {} {problem}", quoted(&server.text))));
            }
            #[cfg(feature = "tls")]
            if self.tls.is_some() {
                crate::zookeeper::tls::check_verifiable_host(&server.host)?;
            }
        }
        Ok(())
    }

    pub(super) fn is_encrypted(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }

    fn has_certificate(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.as_ref().is_some_and(Tls::has_identity);
        #[cfg(not(feature = "tls"))]
        return false;
    }

    pub(super) fn acl_of_nodes(&self) -> Acl {
        let default = || if self.credentials().next().is_some() { Acl::creator() } else { Acl::anyone() };
        self.acl.clone().unwrap_or_else(default)
    }

    /// Returns this client's own ACL, and the users as which the servers know this client.
    pub(super) fn acl_policy(&self) -> AclPolicy {
        let certificate = self.has_certificate().then_some(("x509", None));
        let users = self.credentials().map(Credentials::acl_user).chain(certificate).collect();
        AclPolicy { acl: self.acl_of_nodes(), users, refuses: self.refuses_wider_acl }
    }

    /// Returns the time limit for opening a session.
    pub(super) fn opening_time_limit(&self) -> Duration {
        self.connect_timeout.unwrap_or(self.session_timeout)
    }

    /// Describes the user as which the servers know this client, without a secret. Empty if the client has neither
    /// credentials nor a certificate.
    pub(super) fn describe_user(&self) -> String {
        let certificate = self.has_certificate().then(|| "its certificate".to_owned());
        Vec::from_iter(self.credentials().map(Credentials::describe_user).chain(certificate)).join(" and ")
    }

    /// Returns whether the client crate must be given the names of the servers, and not their addresses. TLS verifies
    /// the name. Kerberos needs the name for the service's principal, unless the host is given.
    pub(super) fn must_connect_by_name(&self) -> bool {
        self.is_encrypted() || self.credentials().any(Credentials::needs_server_name)
    }

    /// Returns a connector for one attempt to connect, which may take as long as `attempt`. The crate uses the same
    /// limit for the attempt and for the later silence of the connection. So the connector gets the longer of `attempt`
    /// and [`silence_limit`](Self::silence_limit), but at most three fifths of the session timeout.
    pub(super) fn connector(&self, attempt: Duration) -> zk::Connector {
        let mut connector = zk::Client::connector().with_session_timeout(self.session_timeout).with_fail_eagerly();
        // If the limit were above three fifths, the crate would use its default instead, which is two fifths of the
        // session timeout.
        let silence = self.silence_limit().max(attempt).min(self.session_timeout * 3 / 5);
        connector = connector.with_connection_timeout(silence);
        connector = self.credentials().fold(connector, |connector, it| it.add_to_connector(connector));
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            connector = connector.with_tls(tls.zk_tls_options());
        }
        connector
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn invalid_options_are_refused_with_the_reason() {
        let new = ZooKeeperBuilder::new;
        let just_more = Duration::from_nanos(1);
        for (options, problem) in [
            (
                new().session_timeout(SHORTEST_TIMEOUT - Duration::from_millis(1)),
                "a session timeout of 249ms: it must be from 250ms",
            ),
            (
                new().session_timeout(LONGEST_TIMEOUT + Duration::from_millis(1)),
                "a session timeout of 3600.001s: it must be from 250ms to an hour",
            ),
            (new().session_timeout(27 * LONGEST_TIMEOUT), "a session timeout of 97200s"),
            (new().session_timeout(Duration::MAX), "a session timeout of "),
            (new().connect_timeout(Duration::ZERO), "a connect timeout of zero"),
            (new().read_timeout(49 * SECOND / 1000), "a read timeout of 49ms: it must be from 50ms to 5s"),
            (new().read_timeout(5 * SECOND + just_more), "a read timeout of 5.000000001s: it must be from 50ms to 5s"),
            (new().acl(Acl::nobody()), "an ACL without permissions"),
            (
                new().session_timeout(SECOND).stop_margin(600 * SECOND / 1000),
                "a stop margin of 600ms leaves no time to renew a session timeout of 1s",
            ),
            (
                new().session_timeout(SECOND).stop_margin(800 * SECOND / 1000).tick_time(SECOND / 10),
                "a stop margin of 800ms leaves no time to renew a session timeout of 1s",
            ),
            (new().digest("a:b", "c"), "digest user \"a:b\": it must not be empty, nor contain a colon"),
            (new().digest("a", "b\n"), "digest user \"a\": its password has a control character or a byte order mark"),
            (new().digest("\u{feff}a", "b"), "digest user \"\\u{feff}a\": its name has a control character or a byte"),
            #[cfg(feature = "sasl-digest-md5")]
            (new().sasl(Sasl::digest_md5("a", "b\r")), "SASL user \"a\": its password has a control character"),
            #[cfg(feature = "sasl-digest-md5")]
            (
                new().sasl(Sasl::digest_md5("a", "p\u{e4}\u{df}")),
                "SASL user \"a\": its password is not ASCII, but ISO 8859-1",
            ),
            #[cfg(feature = "sasl-digest-md5")]
            (
                new().sasl(Sasl::digest_md5("J\u{f6}", "b")),
                "SASL user \"J\u{f6}\": its name is not ASCII, but ISO 8859-1",
            ),
            #[cfg(feature = "sasl-digest-md5")]
            (new().digest("a", "b").sasl(Sasl::digest_md5("a", "b")), "digest together with SASL"),
        ] {
            let refused = options.check().expect_err(problem).to_string();
            assert!(refused.starts_with(&format!("invalid input: {problem}")), "{refused}");
        }
        for options in [
            new(),
            new().session_timeout(SHORTEST_TIMEOUT),
            new().session_timeout(LONGEST_TIMEOUT),
            new().connect_timeout(just_more),
            new().read_timeout(SHORTEST_SILENCE),
            new().read_timeout(5 * SECOND),
            new().session_timeout(SECOND).stop_margin(599 * SECOND / 1000),
            new().session_timeout(SECOND).stop_margin(799 * SECOND / 1000).tick_time(SECOND / 10),
            new().digest("a", "b:c").acl(Acl::creator()),
            new().digest("p\u{e4}", "\u{df} "),
            #[cfg(feature = "sasl-digest-md5")]
            new().sasl(Sasl::digest_md5("\u{43f}\u{e4}", "\u{43f}\u{440}")),
        ] {
            options.check().expect("valid options");
        }
    }

    #[test]
    fn a_read_timeout_limits_attempts_only_if_shorter() {
        let limits = |options: ZooKeeperBuilder| (options.silence_limit(), options.attempt_time_limit());
        let (limited, twelfth) = (|limit| limits(ZooKeeperBuilder::new().read_timeout(limit)), 10 * SECOND / 12);
        assert_eq!(limits(ZooKeeperBuilder::new().tick_time(2 * SECOND)), (10 * SECOND / 3, twelfth));
        assert_eq!(limited(2 * SECOND), (2 * SECOND, twelfth));
        assert_eq!(limited(5 * SECOND), (5 * SECOND, twelfth));
        assert_eq!(limited(SECOND / 2), (SECOND / 2, SECOND / 2));
    }

    #[test]
    fn a_granted_timeout_sets_the_limits_as_if_it_was_requested() {
        let limits = |options: ZooKeeperBuilder| {
            options.check_lease().expect("renewable");
            let rides_out = options.longest_survivable_break(&options.new_lease());
            (options.silence_limit(), options.attempt_time_limit(), rides_out)
        };
        let asked = |timeout: u32| ZooKeeperBuilder::new().session_timeout(timeout * SECOND);
        for (requested, granted) in [(60, 40), (100, 40), (3600, 4)] {
            assert_eq!(limits(asked(requested).with_granted_timeout(granted * SECOND)), limits(asked(granted)));
        }
        let narrow = |timeout: u32| asked(timeout).read_timeout(3 * SECOND).stop_margin(timeout * SECOND / 100);
        assert_eq!(limits(narrow(7).with_granted_timeout(6 * SECOND)), limits(narrow(6)));
        assert_eq!(limits(narrow(100).with_granted_timeout(4 * SECOND)).0, 2 * SECOND);
    }

    #[test]
    fn only_a_long_read_timeout_shortens_survivable_breaks() {
        let rides_out = |options: ZooKeeperBuilder| {
            let options = options.tick_time(2 * SECOND);
            options.longest_survivable_break(&options.new_lease()).as_millis() / 100
        };
        let limited = |limit| rides_out(ZooKeeperBuilder::new().read_timeout(limit));
        assert_eq!(rides_out(ZooKeeperBuilder::new()), 42);
        assert_eq!([SECOND / 2, 3 * SECOND, 5 * SECOND].map(limited), [45, 42, 0]);
    }

    #[test]
    fn the_description_of_a_user_has_no_password() {
        assert_eq!(ZooKeeperBuilder::new().describe_user(), "");
        let digest = ZooKeeperBuilder::new().digest("billing", "secret");
        assert_eq!(digest.describe_user(), "digest user \"billing\" with the password given");
        #[cfg(feature = "sasl-digest-md5")]
        assert!(
            digest.sasl(Sasl::digest_md5("ops", "secret")).describe_user().ends_with(" given and SASL user \"ops\"")
        );
    }

    #[test]
    fn an_authenticated_clients_default_acl_is_creator() {
        let acl = |options: ZooKeeperBuilder| format!("{:?}", options.acl_of_nodes());
        let (anyone, creator) = (format!("{:?}", Acl::anyone()), format!("{:?}", Acl::creator()));
        assert_eq!(acl(ZooKeeperBuilder::new()), anyone);
        assert_eq!(acl(ZooKeeperBuilder::new().digest("a", "b")), creator);
        assert_eq!(acl(ZooKeeperBuilder::new().digest("a", "b").acl(Acl::anyone())), anyone);
    }
}
