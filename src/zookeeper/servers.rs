//! What a list of servers may look like; knows nothing of what is behind their names.

use std::net::Ipv6Addr;

use crate::error::error::Error;
use crate::validation;

const SCHEMES: [&str; 2] = ["tcp://", "tcp+tls://"];

/// Refuses what is no connect string. The client crate would take `::::` for a host, and look for it until its time is
/// over.
pub(crate) fn check(servers: &str) -> Result<(), Error> {
    let (list, root) = split(servers);
    let told = |what: &str, problem: &str| Error::invalid(format!("servers {servers:?}: {what:?} {problem}"));
    for server in list.split(',') {
        if let Some(problem) = problem_with(without_scheme(server)) {
            return Err(told(server, problem));
        }
    }
    validation::malformed(root).map_or(Ok(()), |problem| Err(told(root, problem)))
}

/// The servers, and the path at the end, which is `/` if there is none.
fn split(servers: &str) -> (&str, &str) {
    let last = servers.rfind(',').map_or(0, |comma| comma + 1);
    let address = servers.len() - without_scheme(&servers[last..]).len();
    servers[address..].find('/').map_or((servers, "/"), |slash| servers.split_at(address + slash))
}

fn without_scheme(server: &str) -> &str {
    SCHEMES.iter().find_map(|scheme| server.strip_prefix(scheme)).unwrap_or(server)
}

fn problem_with(address: &str) -> Option<&'static str> {
    if address.is_empty() {
        return Some("names no server");
    }
    if address.contains('/') {
        return Some("has a slash in it; only tcp:// goes before a server, and a path only after the last one");
    }
    let (is_host, port) = match address.strip_prefix('[').map(|rest| rest.rsplit_once(']')) {
        Some(None) => return Some("has no closing bracket"),
        Some(Some((host, port))) => (is_ipv6(host), port),
        None => {
            let (host, port) = address.split_at(address.find(':').unwrap_or(address.len()));
            if port.matches(':').count() > 1 {
                return Some("has too many colons; an IPv6 address goes into brackets, as in [::1]:2181");
            }
            (is_name(host), port)
        }
    };
    if !is_host {
        return Some("has no host name or address before the port");
    }
    let is_port =
        |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0);
    match port.strip_prefix(':') {
        None if port.is_empty() => None,
        Some(port) if is_port(port) => None,
        _ => Some("has no port from 1 to 65535 after the host"),
    }
}

fn is_name(host: &str) -> bool {
    !host.is_empty() && host.chars().all(|c| c.is_alphanumeric() || "-._".contains(c))
}

/// An address, with the name of an interface where it needs one.
fn is_ipv6(host: &str) -> bool {
    let (address, interface) = host.split_once('%').map_or((host, None), |(address, it)| (address, Some(it)));
    address.parse::<Ipv6Addr>().is_ok() && interface.is_none_or(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_servers_may_have_schemes_ports_and_a_path() {
        for servers in [
            "zk1",
            "zk1:2181",
            "zk_1.example.com:2181,10.0.0.2:2181,zk3",
            "[::1]:2181,[fe80::1%eth0]",
            "tcp://zk1:2181,tcp+tls://[::1]:2281/apps/billing",
            "zk1:2181/",
        ] {
            assert!(check(servers).is_ok(), "{servers:?}: {:?}", check(servers));
        }
        assert!(check(&format!("zk1:2181/{}", "long".repeat(500))).is_ok());
    }

    #[test]
    fn what_is_no_list_of_servers_is_refused_with_the_reason() {
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
            ("zk1, zk2", "no host name"),
            ("http://zk1:2181,zk2", "has a slash"),
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
            let error = check(servers).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("servers"), "{servers:?}: {error}");
        }
    }
}
