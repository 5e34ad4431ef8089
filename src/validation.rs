//! Checks of a caller's input, which refuse a wrong call before anything is sent.

use std::str::FromStr;

use crate::error::error::Error;
use crate::queue::dialect::{self, Dialect};
use crate::queue::quoted::quoted;

/// The size in bytes of the largest request that servers accept by default (`jute.maxbuffer`).
pub(crate) const REQUEST_LIMIT: usize = 0xf_ffff;

/// The maximum length of a path in bytes, a limit of this library.
const LONGEST: usize = 1024;

/// Refuses a path that ZooKeeper does not accept, or that is longer than [`LONGEST`].
pub(crate) fn check_path(path: &str) -> Result<(), Error> {
    let problem = if path.len() > LONGEST { Some("is longer than 1024 bytes") } else { path_problem(path) };
    problem.map_or(Ok(()), |problem| Err(Error::invalid(format!("path {} {problem}", quoted(path)))))
}

/// Refuses a path that cannot be a lock directory: a path that [`check_path`] refuses, `/`, `/zookeeper`, or a path
/// below `/zookeeper`.
pub(crate) fn check_lock_directory(path: &str) -> Result<(), Error> {
    check_path(path)?;
    let problem = match path {
        "/" => "a lock needs a path of its own below the root",
        _ if is_zookeepers_own(path) => &format!(
            "{KEPT_BY_ZOOKEEPER}, and no lock path begins with that name, whatever path ends the connect string"
        ),
        _ => return Ok(()),
    };
    Err(Error::invalid(format!("path {} cannot be a lock directory: {problem}", quoted(path))))
}

/// The part of an error that says why no lock can be at a path for which [`is_zookeepers_own`] is true.
pub(crate) const KEPT_BY_ZOOKEEPER: &str = "ZooKeeper keeps its own nodes in /zookeeper at the root of the servers";

/// Returns whether the path is `/zookeeper`, where ZooKeeper keeps its own nodes, or lies below it.
pub(crate) fn is_zookeepers_own(path: &str) -> bool {
    path == "/zookeeper" || is_inside(path, "/zookeeper")
}

/// Returns whether `path` lies below `directory`, which must not be `/`. Returns `false` for `directory` itself.
pub(crate) fn is_inside(path: &str, directory: &str) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns what is wrong with a path apart from its length; `None` if nothing is wrong.
pub(crate) fn path_problem(path: &str) -> Option<&'static str> {
    let Some(relative) = path.strip_prefix('/') else {
        return Some("must start with '/'");
    };
    if relative.is_empty() {
        return None;
    }
    if relative.ends_with('/') {
        return Some("must not end with '/'");
    }
    // All characters beyond U+FFFF are refused, too: in Java, each of these characters is a pair of surrogates, and
    // servers refuse surrogates.
    if path.chars().any(|c| c.is_control() || ('\u{e000}'..='\u{f8ff}').contains(&c) || c >= '\u{fff0}') {
        return Some("contains a character that ZooKeeper does not allow");
    }
    relative.split('/').find_map(|part| match part {
        "" => Some("has an empty component"),
        "." | ".." => Some("has a relative component"),
        _ => None,
    })
}

/// Nodes have names that contain the host name. Refuses a host name that this library could not read back from the name
/// of a node.
pub(crate) fn check_host(host: &str) -> Result<(), Error> {
    dialect::host_problem(host)
        .map_or(Ok(()), |problem| Err(Error::invalid(format!("host {} {problem}", quoted(host)))))
}

/// Reads the text that `Display` prints: `native`, `curator`, `curator-mutex` or `kazoo`.
impl FromStr for Dialect {
    type Err = Error;

    fn from_str(text: &str) -> Result<Dialect, Error> {
        let found = Dialect::ALL.into_iter().find(|dialect| dialect.to_string() == text);
        found.ok_or_else(|| {
            let known = Dialect::ALL.map(|dialect| dialect.to_string()).join(", ");
            Error::invalid(format!("dialect {} is none of {known}", quoted(text)))
        })
    }
}

pub(crate) fn check_label(label: Option<&str>) -> Result<(), Error> {
    label.map_or(Ok(()), |label| check_text("label", label))
}

/// Refuses a text that is longer than 256 bytes or has a control character. In the error, `name` says what the text is,
/// such as "label".
pub(crate) fn check_text(name: &str, text: &str) -> Result<(), Error> {
    if text.len() > 256 {
        return Err(Error::invalid(format!("{name} of {} bytes; at most 256 are kept", text.len())));
    }
    if text.chars().any(char::is_control) {
        return Err(Error::invalid(format!("{name} {} contains a control character", quoted(text))));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::queue::metadata::{self, Metadata};
    use crate::queue::mode::Mode;
    use crate::queue::node_name::NodeName;
    use crate::queue::tests::fuzz_text;

    #[test]
    fn an_input_of_any_length_is_refused_in_a_few_words() {
        for times in [150, 1_500, 1 << 20] {
            let long = "é/".repeat(times);
            let refusals = [
                check_path(&format!("/{long}")).err(),
                check_path(&long).err(),
                long.parse::<Dialect>().err(),
                check_host(&long).err(),
            ];
            for refused in refusals.map(|refused| refused.expect("refused").to_string()) {
                assert!(refused.chars().count() < 400 && refused.contains('…'), "{refused}");
            }
        }
        let long = check_path(&format!("/{}", "é/".repeat(1_500))).unwrap_err().to_string();
        assert!(long.ends_with("is longer than 1024 bytes"), "{long}");
    }

    #[test]
    fn a_label_of_256_bytes_is_the_longest() {
        let label = |bytes: usize| check_label(Some(&"x".repeat(bytes)));
        assert!(label(0).is_ok() && label(255).is_ok() && label(256).is_ok() && check_label(None).is_ok());
        assert_eq!(label(257).unwrap_err().to_string(), "invalid input: label of 257 bytes; at most 256 are kept");
    }

    #[test]
    fn a_path_that_zookeeper_refuses_has_its_reason() {
        for (path, reason) in [
            ("", "must start with '/'"),
            ("locks", "must start with '/'"),
            ("/locks/", "must not end with '/'"),
            ("/a//b", "has an empty component"),
            ("/a/./b", "has a relative component"),
            ("/a/..", "has a relative component"),
            ("/a\0b", "contains a character that ZooKeeper does not allow"),
            ("/a\u{9f}b", "contains a character that ZooKeeper does not allow"),
            ("/a\u{f8ff}b", "contains a character that ZooKeeper does not allow"),
            ("/a\u{fff0}b", "contains a character that ZooKeeper does not allow"),
            ("/a\u{1f512}b", "contains a character that ZooKeeper does not allow"),
        ] {
            assert_eq!(check_path(path).unwrap_err().to_string(), format!("invalid input: path {path:?} {reason}"));
        }
        let long = |bytes: usize| format!("/{}", "x".repeat(bytes - 1));
        assert!(check_path(&long(1025)).unwrap_err().to_string().ends_with("is longer than 1024 bytes"));
        check_path(&long(1024)).unwrap();
        check_path("/locks/config").unwrap();
        check_path("/locks/\u{d7ff}\u{f900}\u{ffef}").unwrap();
    }

    #[test]
    fn the_root_and_zookeeper_are_no_lock_directories() {
        let refused = |path: &str| check_lock_directory(path).unwrap_err().to_string();
        assert!(refused("/").ends_with("cannot be a lock directory: a lock needs a path of its own below the root"));
        for path in ["/zookeeper", "/zookeeper/quota"] {
            // If the connect string ends with a path, all paths of the client lie below that path, and `/zookeeper`
            // there is not ZooKeeper's own. The message must be true for such a client, too.
            let why = "cannot be a lock directory: ZooKeeper keeps its own nodes in /zookeeper at the root of the servers, and no \
                       lock path begins with that name, whatever path ends the connect string";
            assert_eq!(refused(path), format!("invalid input: path {path:?} {why}"));
        }
        check_lock_directory("/zookeepers").unwrap();
    }

    #[test]
    fn a_path_with_the_same_prefix_is_not_inside() {
        assert!(is_inside("/a/b/c", "/a/b"));
        assert!(!is_inside("/a/bc", "/a/b") && !is_inside("/a/b", "/a/b"));
    }

    #[test]
    fn the_machine_name_is_a_fit_host() {
        let (machine, name) = (dialect::machine_name(), dialect::raw_machine_name());
        check_host(&machine).unwrap();
        assert!(check_host(&name).is_err() || machine == name, "{machine:?} for {name:?}");
    }

    #[test]
    fn a_dialect_is_read_as_it_is_displayed() {
        for dialect in Dialect::ALL {
            assert_eq!(dialect.to_string().parse::<Dialect>().unwrap(), dialect);
        }
        let error = "zookeeper".parse::<Dialect>().unwrap_err().to_string();
        assert!(error.ends_with("is none of native, curator, curator-mutex, kazoo"), "{error}");
    }

    #[test]
    fn any_text_is_refused_or_reads_back() {
        let samples = [
            "/locks/config",
            "/a//b",
            "/a/./b",
            "/zookeeper/quota",
            "web-1",
            "migrate = v42",
            "a-WRITE-1~x",
            "/\u{e000}",
        ];
        fuzz_text(&samples, |text| {
            let reason = |refused: Result<(), Error>| refused.err().map(|error| error.to_string());
            let refusals =
                [reason(check_lock_directory(text)), reason(check_host(text)), reason(check_label(Some(text)))];
            for why in refusals.iter().flatten() {
                assert!(why.starts_with("invalid input: ") && !why.contains(char::is_control), "{why:?}");
            }
            let [path, host, label] = refusals.map(|refusal| refusal.is_none());
            if path {
                let parts: Vec<&str> = text[1..].split('/').collect();
                assert!(parts.iter().all(|part| !["", ".", ".."].contains(part)) && parts[0] != "zookeeper");
                let is_refused_by_servers =
                    |c: char| c.is_control() || ('\u{e000}'..='\u{f8ff}').contains(&c) || c >= '\u{fff0}';
                assert!(text.starts_with('/') && text.len() <= LONGEST && !text.contains(is_refused_by_servers));
            }
            if host {
                let owner = Dialect::Native.new_tag(text, true, || 7);
                let name = format!("{owner}-WRITE-0000000007");
                let contender = NodeName::parse(&name).expect("a name of ours");
                assert_eq!((contender.host(), contender.mode()), (text, Mode::Write));
            }
            if label {
                let note = Metadata { label: Some(text.to_owned()), ..Metadata::default() };
                assert_eq!(
                    metadata::parse_metadata(&note.encode(UNIX_EPOCH)).label.as_deref().unwrap_or_default(),
                    text
                );
            }
        });
    }
}
