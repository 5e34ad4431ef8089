//! The connect string: its valid forms, its servers and its path.

use std::net::Ipv6Addr;

use crate::error::error::Error;
use crate::queue::quoted::quoted;
use crate::validation::{self, KEPT_BY_ZOOKEEPER};

pub(super) const CLEAR: &str = "tcp://";
pub(super) const ENCRYPTED: &str = "tcp+tls://";

/// The port of a server without a port in the connect string.
const PORT: u16 = 2181;

/// The most bytes of the root, which is the path at the end of the connect string. The limit is low because a request
/// may contain the root several times, and servers accept requests of at most a megabyte by default.
const LONGEST_ROOT: usize = 65_536;

/// A valid connect string: `zk1:2181,zk2:2181/apps`.
#[derive(Clone, Debug)]
pub(super) struct ConnectString {
    pub(super) each: Vec<Server>,
    text: String,
    /// The offset in bytes at which the root begins in the text. The root is the path at the end.
    root: usize,
}

/// One server of a connect string, such as `tcp+tls://zk1:2281`.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) text: String,
    /// The scheme, if one stands before this server: [`CLEAR`] or [`ENCRYPTED`].
    pub(super) scheme: Option<&'static str>,
    /// The host name or address, without the brackets around an IPv6 address.
    pub(super) host: String,
    pub(super) port: u16,
}

impl ConnectString {
    /// Parses a connect string. This parser is stricter than the parser of the client crate, which accepts `::::` as a
    /// host, and would try to look up that host until its timeout.
    pub(super) fn parse(text: &str) -> Result<ConnectString, Error> {
        let last = text.rfind(',').map_or(0, |comma| comma + 1);
        let address = last + scheme_of(&text[last..]).map_or(0, str::len);
        let root = text[address..].find('/').map_or(text.len(), |slash| address + slash);
        let refused =
            |what: &str, problem: &str| Error::invalid(format!("servers {}: {} {problem}", quoted(text), quoted(what)));
        if let Some(scheme) = text.split(',').find_map(unknown_scheme) {
            let problem = "is no scheme of a connect string: write only host and port, or before them tcp://, or for \
                           TLS tcp+tls://";
            return Err(refused(scheme, problem));
        }
        let server = |text: &str| Server::parse(text).map_err(|problem| refused(text, problem));
        let each = text[..root].split(',').map(server).collect::<Result<_, _>>()?;
        let servers = ConnectString { each, text: text.to_owned(), root };
        match servers.root() {
            "" => Ok(servers),
            root if validation::is_zookeepers_own(root) => {
                Err(refused(root, &format!("cannot be the path of all locks: {KEPT_BY_ZOOKEEPER}")))
            }
            root if root.len() > LONGEST_ROOT => Err(refused(root, "is longer than 65536 bytes")),
            root => validation::path_problem(root).map_or(Ok(servers.clone()), |problem| Err(refused(root, problem))),
        }
    }

    /// Returns the servers without the root.
    pub(super) fn without_root(&self) -> &str {
        &self.text[..self.root]
    }

    /// Returns the root: the path below which all nodes lie. Empty if the connect string has no path.
    pub(super) fn root(&self) -> &str {
        &self.text[self.root..]
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }
}

/// Returns one connect string for each server in the connect string `servers`, with the same root.
///
/// # Errors
/// [`Error::InvalidInput`] if `servers` is not a connect string.
pub fn split_connect_string(servers: &str) -> Result<Vec<String>, Error> {
    let servers = ConnectString::parse(servers)?;
    Ok(servers.each.iter().map(|server| format!("{}{}", server.text, servers.root())).collect())
}

impl Server {
    /// Returns the host and the port as the operating system looks them up, with brackets around an IPv6 address.
    pub(super) fn host_and_port(&self) -> String {
        let Server { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Parses one server of a connect string. If it is not valid, returns the reason.
    fn parse(text: &str) -> Result<Server, &'static str> {
        let scheme = scheme_of(text);
        let address = &text[scheme.map_or(0, str::len)..];
        if address.is_empty() {
            return Err("names no server");
        }
        if address.contains(|c: char| c == ';' || c.is_whitespace()) {
            return Err("is not one host and port; commas separate servers, without spaces");
        }
        if address.contains('/') {
            return Err("has a slash in it; only tcp:// goes before a server, and a path only after the last one");
        }
        let (host, is_host, port) = match address.strip_prefix('[').map(|rest| rest.rsplit_once(']')) {
            Some(None) => return Err("has no closing bracket"),
            Some(Some((host, port))) => (host, is_ipv6(host), port),
            None => {
                let (host, port) = address.split_at(address.find(':').unwrap_or(address.len()));
                if port.matches(':').count() > 1 {
                    return Err("has too many colons; an IPv6 address goes into brackets, as in [::1]:2181");
                }
                (host, is_host_name(host), port)
            }
        };
        if !is_host {
            return Err("has no host name or address before the port");
        }
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => Some(PORT),
            Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => port.parse().ok().filter(|port| *port > 0),
            _ => None,
        };
        let port = port.ok_or("has no port from 1 to 65535 after the host")?;
        Ok(Server { text: text.to_owned(), scheme, host: host.to_owned(), port })
    }
}

fn scheme_of(server: &str) -> Option<&'static str> {
    [CLEAR, ENCRYPTED].into_iter().find(|scheme| server.starts_with(scheme))
}

/// Returns the beginning of a server's text that looks like a scheme, such as `http://`, unless the scheme is [`CLEAR`]
/// or [`ENCRYPTED`].
fn unknown_scheme(server: &str) -> Option<&str> {
    let (scheme, _) = server.split_once("://").filter(|_| scheme_of(server).is_none())?;
    let is_scheme = !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    is_scheme.then(|| &server[..scheme.len() + "://".len()])
}

fn is_host_name(host: &str) -> bool {
    !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || "-._".contains(c))
}

/// Returns whether this is an IPv6 address, with or without the name of a network interface (`fe80::1%eth0`).
fn is_ipv6(host: &str) -> bool {
    let (address, interface) = host.split_once('%').map_or((host, None), |(address, it)| (address, Some(it)));
    address.parse::<Ipv6Addr>().is_ok() && interface.is_none_or(is_host_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::fuzz_text;

    #[test]
    fn a_list_of_servers_may_have_schemes_ports_and_a_path() {
        for servers in [
            "zk1",
            "zk1:2181",
            "zk_1.example.com:2181,10.0.0.2:2181,zk3",
            "[::1]:2181,[fe80::1%eth0]",
            "tcp://zk1:2181,tcp+tls://[::1]:2281/apps/billing",
            "zk1:2181/",
            "zk1:2181/zookeepers",
            "zk1:2181/apps/zookeeper",
        ] {
            assert!(ConnectString::parse(servers).is_ok(), "{servers:?}: {:?}", ConnectString::parse(servers));
        }
        assert!(ConnectString::parse(&format!("zk1:2181/{}", "long".repeat(500))).is_ok());
    }

    #[test]
    fn an_invalid_list_is_refused_with_the_reason() {
        for (servers, reason) in [
            ("", "names no server"),
            ("zk1:2181,", "names no server"),
            ("tcp://", "names no server"),
            ("/apps", "names no server"),
            ("::::", "too many colons"),
            ("::1:2181", "too many colons"),
            ("zk1:2181:2181", "too many colons"),
            ("[::1:2181", "no closing bracket"),
            ("[zk1]:2181", "no host name"),
            ("[::1%]:2181", "no host name"),
            (":2181", "no host name"),
            ("zk1, zk2", "commas separate"),
            ("zk1;zk2", "commas separate"),
            ("zk1:2181;zk2:2181,zk3/apps", "commas separate"),
            ("tcp://zk1;tcp://zk2", "commas separate"),
            ("http://zk1:2181", "\"http://\" is no scheme"),
            ("zk1,zookeeper://zk2:2181/apps", "\"zookeeper://\" is no scheme"),
            ("TCP://zk1:2181,zk2", "before them tcp://, or for TLS tcp+tls://"),
            ("tcp://zk1:2181,tls://zk2", "\"tls://\" is no scheme"),
            ("zk1:2181/zookeeper", "\"/zookeeper\" cannot be the path of all locks: ZooKeeper keeps its own nodes"),
            ("zk1:2181/zookeeper/quota", "ZooKeeper keeps its own nodes"),
            ("user@zk1:2181", "no host name"),
            ("zk1:", "no port"),
            ("zk1:0", "no port"),
            ("zk1:65536", "no port"),
            ("zk1:+2181", "no port"),
            ("[::1]2181", "no port"),
            ("zk1:2181/apps,zk2:2181", "has a slash"),
            ("zk1:2181/apps/", "must not end with '/'"),
            ("zk1:2181//apps", "empty component"),
            ("zk1:2181/\u{1f512}", "character that ZooKeeper does not allow"),
        ] {
            let error = ConnectString::parse(servers).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("servers"), "{servers:?}: {error}");
        }
    }

    #[test]
    fn a_connect_string_is_split_into_hosts_and_root() {
        for (text, hosts, root) in [
            ("zk1", &["zk1"][..], ""),
            ("zk1:2181,10.0.0.2/", &["zk1", "10.0.0.2"], "/"),
            ("tcp://zk1:2181,tcp+tls://[::1]:2281/apps/billing", &["zk1", "::1"], "/apps/billing"),
            ("tcp+tls://[fe80::1%eth0]", &["fe80::1%eth0"], ""),
        ] {
            let servers = ConnectString::parse(text).unwrap();
            let found: Vec<_> = servers.each.iter().map(|server| server.host.as_str()).collect();
            assert_eq!((found.as_slice(), servers.root()), (hosts, root), "{text}");
            assert_eq!(format!("{}{}", servers.without_root(), servers.root()), text);
        }
    }

    #[test]
    fn an_overlong_root_is_refused_with_a_short_error() {
        assert!(ConnectString::parse(&format!("zk1/{}", "a".repeat(65_535))).is_ok());
        for bytes in [65_536, 2_000_000] {
            let error = ConnectString::parse(&format!("zk1/{}", "a".repeat(bytes))).unwrap_err().to_string();
            assert!(error.ends_with("is longer than 65536 bytes") && error.len() < 4096, "{}", error.len());
        }
    }

    #[test]
    fn a_server_has_a_scheme_a_host_and_a_port() {
        let text = "zk1,tcp://zk2:2182,tcp+tls://[::1]:2183,[fe80::1%eth0]/apps";
        let servers = ConnectString::parse(text).unwrap();
        let each = |of: fn(&Server) -> String| servers.each.iter().map(of).collect::<Vec<_>>();
        assert_eq!(servers.as_str(), text);
        assert_eq!(each(|it| it.text.clone()).join(",") + "/apps", text);
        assert_eq!(each(Server::host_and_port), ["zk1:2181", "zk2:2182", "[::1]:2183", "[fe80::1%eth0]:2181"]);
        assert_eq!(each(|it| it.host.clone()), ["zk1", "zk2", "::1", "fe80::1%eth0"]);
        assert_eq!(each(|it| it.scheme.unwrap_or_default().to_owned()), ["", CLEAR, ENCRYPTED, ""]);
        assert_eq!(each(|it| it.port.to_string()), ["2181", "2182", "2183", "2181"]);
    }

    #[test]
    fn a_fuzzed_list_is_refused_or_parsed_back() {
        let samples =
            ["zk1", "zk1:2181,10.0.0.2/", "tcp://zk1:2181,tcp+tls://[::1]:2281/apps/billing", "[fe80::1%eth0]"];
        fuzz_text(&samples, |text| match ConnectString::parse(text) {
            Ok(servers) => {
                assert_eq!(format!("{}{}", servers.without_root(), servers.root()), text);
                assert!(servers.root().is_empty() || validation::path_problem(servers.root()).is_none());
                for server in &servers.each {
                    let address = server.host_and_port();
                    let again = ConnectString::parse(&address).expect(&address);
                    assert_eq!(
                        (&again.each[0].host, again.each[0].host_and_port()),
                        (&server.host, server.host_and_port())
                    );
                }
            }
            Err(error) => assert!(error.to_string().starts_with("invalid input: servers "), "{error}"),
        });
    }
}
