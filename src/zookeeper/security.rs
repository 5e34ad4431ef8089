//! Authentication of this client, and the permissions on its nodes.

use std::fmt;

use zookeeper_client as zk;

use crate::error::error::Error;
use crate::queue::quoted::quoted;

/// The permissions on a node, for each kind of client.
///
/// # Which clients can steal a lock
/// `delete` and `create` are permissions of the *parent*. So a client that may delete its own node in a lock directory
/// may also delete the nodes of other clients there, and steal the lock. Allow only clients that you trust to use the
/// directory of a lock.
///
/// - An ACL is set when a node is made, and this library never changes it afterwards. A directory that exists already
///   keeps its ACL. The server deletes a lock directory that has been empty for a while, and the next client creates it
///   again. So protect the nodes above the lock directory, too. Otherwise a client that you do not trust may be the
///   first to create the lock directory again, with an ACL of its own.
/// - A client that uses the lock needs [`READ`](Permissions::READ), [`CREATE`](Permissions::CREATE) and
///   [`DELETE`](Permissions::DELETE) on the directory, and [`READ`](Permissions::READ) on the nodes in it. Without
///   `DELETE`, the client can acquire the lock but not release it: its nodes stay until its session ends.
/// - A client that has only [`READ`](Permissions::READ) can see the queue, and cannot steal the lock.
///
/// ```
/// use zk_rwlock::security::{Acl, Permissions};
/// let acl = Acl::creator().allow("world", "anyone", Permissions::READ);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    pub(crate) entries: Vec<zk::Acl>,
}

impl Acl {
    /// Returns an ACL without permissions. Add permissions by [`allow`](Acl::allow).
    pub fn nobody() -> Acl {
        Acl { entries: Vec::new() }
    }

    /// Returns an ACL with all permissions for everybody. Every client that reaches the ensemble can then steal the
    /// lock.
    pub fn anyone() -> Acl {
        Acl::nobody().allow("world", "anyone", Permissions::ALL)
    }

    /// Returns an ACL with all permissions for clients that are authenticated like this one: as the same user of digest
    /// or SASL, or, if the servers request client certificates, with the same name in the certificate.
    pub fn creator() -> Acl {
        Acl::nobody().allow("auth", "", Permissions::ALL)
    }

    /// Adds `permissions` for `id` of `scheme`, as in `("digest", "user:hash")`, `("sasl", "user")`, `("x509",
    /// "CN=web-1")` or `("ip", "10.0.0.0/8")`.
    pub fn allow(mut self, scheme: &str, id: &str, permissions: Permissions) -> Acl {
        self.entries.push(zk::Acl::new(permissions.0, zk::AuthId::new(scheme, id)));
        self
    }

    /// Returns the bytes that the ACL takes in a request.
    pub(super) fn request_size(&self) -> usize {
        let text = |text: &str| 4 + text.len();
        let entries = self.entries.iter().map(|entry| 4 + text(entry.scheme()) + text(entry.id()));
        4 + entries.sum::<usize>()
    }
}

/// This client's own ACL, and the users as which the servers know this client.
#[derive(Clone, Debug)]
pub(super) struct AclPolicy {
    pub(super) acl: Acl,
    /// The scheme of each user, and the user's name if it is known.
    pub(super) users: Vec<(&'static str, Option<String>)>,
    /// Whether this client refuses directories whose ACL gives wider rights than its own ACL.
    pub(super) refuses: bool,
}

impl AclPolicy {
    /// Describes the rights that these entries of a node's ACL give beyond this client's own ACL. Returns one text for
    /// each entry with such rights.
    pub(super) fn rights_beyond_own(&self, shown: &[zk::Acl]) -> Vec<String> {
        const RIGHTS: [(zk::Permission, &str); 5] = [
            (zk::Permission::READ, "READ"),
            (zk::Permission::WRITE, "WRITE"),
            (zk::Permission::CREATE, "CREATE"),
            (zk::Permission::DELETE, "DELETE"),
            (zk::Permission::ADMIN, "ADMIN"),
        ];
        let wider = shown.iter().filter_map(|entry| {
            let rights =
                RIGHTS.iter().filter(|(right, _)| entry.permission().has(*right) && !self.gives(*right, entry));
            let rights: Vec<&str> = rights.map(|(_, name)| *name).collect();
            let whom = format!("{}:{}", entry.scheme(), entry.id().split(':').next().unwrap_or_default());
            (!rights.is_empty()).then(|| format!("{whom} may {}", rights.join(", ")))
        });
        wider.collect()
    }

    /// Returns whether this client's own ACL also gives `right` to the user of `entry`.
    fn gives(&self, right: zk::Permission, entry: &zk::Acl) -> bool {
        let about = |mine: &zk::Acl| match mine.scheme() {
            "world" => true,
            "auth" => self.is_own_user(entry),
            scheme => (scheme, mine.id()) == (entry.scheme(), entry.id()),
        };
        self.acl.entries.iter().any(|mine| mine.permission().has(right) && about(mine))
    }

    /// Returns whether the entry is about one of this client's users. In an entry of the scheme `digest`, a hash
    /// follows the name. If the name of one of the users is not known, every entry of that user's scheme counts as
    /// being about the user.
    fn is_own_user(&self, entry: &zk::Acl) -> bool {
        let is_name = |name: &String| entry.id().split(':').next() == Some(name);
        self.users.iter().any(|(scheme, name)| *scheme == entry.scheme() && name.as_ref().is_none_or(is_name))
    }
}

/// The operations that an [`Acl`] allows. Combine them with `|`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions(zk::Permission);

impl Permissions {
    /// The permission to read the node and list its children.
    pub const READ: Permissions = Permissions(zk::Permission::READ);
    /// The permission to set the node's data.
    pub const WRITE: Permissions = Permissions(zk::Permission::WRITE);
    /// The permission to create children of the node.
    pub const CREATE: Permissions = Permissions(zk::Permission::CREATE);
    /// The permission to delete children of the node.
    pub const DELETE: Permissions = Permissions(zk::Permission::DELETE);
    /// The permission to change the node's ACL.
    pub const ADMIN: Permissions = Permissions(zk::Permission::ADMIN);
    /// All five permissions.
    pub const ALL: Permissions = Permissions(zk::Permission::ALL);
}

impl std::ops::BitOr for Permissions {
    type Output = Permissions;

    fn bitor(self, other: Permissions) -> Permissions {
        Permissions(self.0 | other.0)
    }
}

/// Authentication with SASL, for [`ZooKeeperBuilder::sasl`](crate::ZooKeeperBuilder::sasl).
#[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
#[cfg_attr(docsrs, doc(cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))))]
#[derive(Clone, Debug)]
#[must_use]
pub struct Sasl(pub(super) Credentials);

#[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
impl Sasl {
    /// Returns the credentials of a user in the servers' JAAS file, for SASL's DIGEST-MD5.
    ///
    /// The password itself is never sent, but MD5 protects it badly from eavesdroppers, and the rest of the connection
    /// is not protected. Use TLS as well.
    ///
    /// [`connect`](crate::ZooKeeperBuilder::connect) refuses a name or a password with characters beyond ASCII that are
    /// all in ISO 8859-1, such as `päß`, because servers hash such a text differently from this client. Names and
    /// passwords in other scripts, such as Cyrillic, are accepted.
    #[cfg(feature = "sasl-digest-md5")]
    #[cfg_attr(docsrs, doc(cfg(feature = "sasl-digest-md5")))]
    pub fn digest_md5(user: &str, password: &str) -> Sasl {
        Sasl(Credentials::DigestMd5 { user: user.to_owned(), password: password.to_owned() })
    }

    /// Returns Kerberos credentials: the ticket in this process's credential cache, for the servers' principal
    /// `service/host`. `service` is usually `zookeeper`. Without `host`, each server's name in the connect string is
    /// used.
    ///
    /// This library does not renew the ticket. Without a valid ticket the next connection is refused. If a service
    /// ticket is not in the cache yet, the library's thread waits for the key distribution centre. The same thread
    /// sends the heartbeats. So locks may be lost while the centre does not answer.
    ///
    /// Compile with `RUSTFLAGS="--cfg zk_rwlock_gssapi"`. That needs the headers of a GSSAPI library, and libclang.
    #[cfg(zk_rwlock_gssapi)]
    #[cfg_attr(docsrs, doc(cfg(zk_rwlock_gssapi)))]
    pub fn gssapi(service: &str, host: Option<&str>) -> Sasl {
        Sasl(Credentials::Gssapi { service: service.to_owned(), host: host.map(str::to_owned) })
    }
}

#[derive(Clone)]
pub(super) enum Credentials {
    /// ZooKeeper's `digest` scheme.
    Digest { user: String, password: String },
    #[cfg(feature = "sasl-digest-md5")]
    DigestMd5 { user: String, password: String },
    #[cfg(zk_rwlock_gssapi)]
    Gssapi { service: String, host: Option<String> },
}

impl Credentials {
    pub(super) fn check(&self) -> Result<(), Error> {
        let (whose, problem) = match self {
            Credentials::Digest { user, password } => {
                // The server takes the text after the first colon for the password.
                let is_misread = user.is_empty() || user.contains(':');
                let problem = is_misread.then(|| "it must not be empty, nor contain a colon".to_owned());
                (format!("digest user {}", quoted(user)), problem.or_else(|| invisible_char_problem(user, password)))
            }
            #[cfg(feature = "sasl-digest-md5")]
            Credentials::DigestMd5 { user, password } => {
                // The client crate sends the user's name between quotation marks, and escapes no character in it.
                let is_misread = user.is_empty() || user.contains(['"', '\\']);
                let problem = "it must not be empty, nor contain quotation marks or backslashes";
                let problem = is_misread.then(|| problem.to_owned()).or_else(|| invisible_char_problem(user, password));
                (format!("SASL user {}", quoted(user)), problem.or_else(|| hash_charset_problem(user, password)))
            }
            #[cfg(zk_rwlock_gssapi)]
            Credentials::Gssapi { service, host } => {
                let mut parts = [Some(service), host.as_ref()].into_iter().flatten();
                let is_wrong = parts.any(|part| part.is_empty() || part.contains('\0'));
                let problem = is_wrong.then(|| "neither may be empty, nor contain a null character".to_owned());
                (format!("SASL principal {service:?} on host {host:?}"), problem)
            }
        };
        problem.map_or(Ok(()), |problem| Err(Error::invalid(format!("{whose}: {problem}"))))
    }

    /// Returns the scheme of the entries for this user in an ACL, and the user's name in these entries if the name is
    /// known.
    pub(super) fn acl_user(&self) -> (&'static str, Option<String>) {
        match self {
            Credentials::Digest { user, .. } => ("digest", Some(user.clone())),
            #[cfg(feature = "sasl-digest-md5")]
            Credentials::DigestMd5 { user, .. } => ("sasl", Some(user.clone())),
            #[cfg(zk_rwlock_gssapi)]
            Credentials::Gssapi { .. } => ("sasl", None),
        }
    }

    /// Describes the user, without a secret.
    pub(super) fn describe_user(&self) -> String {
        match self {
            // The description does not say that the password is right, because no server refuses a wrong password. With
            // a wrong password, the client counts as another user.
            Credentials::Digest { user, .. } => format!("digest user {} with the password given", quoted(user)),
            #[cfg(feature = "sasl-digest-md5")]
            Credentials::DigestMd5 { user, .. } => format!("SASL user {}", quoted(user)),
            #[cfg(zk_rwlock_gssapi)]
            Credentials::Gssapi { .. } => "the user of its Kerberos ticket".to_owned(),
        }
    }

    /// Returns whether the login needs the server's name.
    pub(super) fn needs_server_name(&self) -> bool {
        #[cfg(zk_rwlock_gssapi)]
        return matches!(self, Credentials::Gssapi { host: None, .. });
        #[cfg(not(zk_rwlock_gssapi))]
        return false;
    }

    pub(super) fn add_to_connector(&self, connector: zk::Connector) -> zk::Connector {
        match self {
            Credentials::Digest { user, password } => {
                connector.with_auth("digest", format!("{user}:{password}").as_bytes())
            }
            #[cfg(feature = "sasl-digest-md5")]
            Credentials::DigestMd5 { user, password } => {
                connector.with_sasl(zk::SaslOptions::digest_md5(user.clone(), password.clone()))
            }
            #[cfg(zk_rwlock_gssapi)]
            Credentials::Gssapi { service, host } => {
                let options = zk::SaslOptions::gssapi().with_username(service.clone());
                connector.with_sasl(match host {
                    Some(host) => options.with_hostname(host.clone()),
                    None => options,
                })
            }
        }
    }
}

/// Returns a message if the name or the password has a control character or a byte order mark. Such a character usually
/// comes from a file, and people do not see it. With the character, servers would take the text for another name or
/// password.
fn invisible_char_problem(user: &str, password: &str) -> Option<String> {
    let is_unseen = |c: char| c.is_control() || c == '\u{feff}';
    let whose = [("name", user), ("password", password)].into_iter().find(|(_, text)| text.contains(is_unseen));
    whose.map(|(whose, _)| {
        format!(
            "its {whose} has a control character or a byte order mark, as at the end or the beginning of a file: leave \
             it out"
        )
    })
}

/// Returns a message if a server would refuse the name or the password although it is right. A server hashes a text in
/// ISO 8859-1 if all characters of the text are in ISO 8859-1 (RFC 2831, section 2.1.2.1). The client crate hashes
/// every text in UTF-8. So the two hashes of such a text differ, unless the text is ASCII.
#[cfg(feature = "sasl-digest-md5")]
fn hash_charset_problem(user: &str, password: &str) -> Option<String> {
    let differs = |text: &str| !text.is_ascii() && text.chars().all(|c| c <= '\u{ff}');
    let whose = [("name", user), ("password", password)].into_iter().find(|(_, text)| differs(text));
    whose.map(|(whose, _)| {
        format!(
            "its {whose} is not ASCII, but ISO 8859-1, in which the servers would hash it (RFC 2831). This client hashes \
             in UTF-8, so they would refuse the right {whose}. Give the user one of ASCII characters in the servers' JAAS \
             file"
        )
    })
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe_user())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wider_rights_are_those_that_the_own_acl_lacks() {
        let users = vec![("digest", Some("ours".to_owned()))];
        let wider = |own: Acl, shown: Acl| {
            AclPolicy { acl: own, users: users.clone(), refuses: false }.rights_beyond_own(&shown.entries).join("; ")
        };
        let entry = |scheme: &str, id: &str| Acl::nobody().allow(scheme, id, Permissions::ALL);
        assert_eq!(wider(Acl::anyone(), entry("digest", "theirs:hash")), "");
        assert_eq!(wider(Acl::creator(), entry("digest", "ours:hash")), "");
        assert_eq!(wider(Acl::creator(), entry("sasl", "ours")), "sasl:ours may READ, WRITE, CREATE, DELETE, ADMIN");
        let reads = Permissions::READ;
        let shown = Acl::anyone().allow("digest", "theirs:hash", reads);
        assert_eq!(
            wider(Acl::creator().allow("world", "anyone", reads), shown),
            "world:anyone may WRITE, CREATE, DELETE, ADMIN"
        );
        assert_eq!(wider(entry("ip", "10.0.0.0/8"), entry("ip", "10.0.0.0/8")), "");
    }
}
