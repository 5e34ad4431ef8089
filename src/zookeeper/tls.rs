//! TLS: the authorities that this client trusts, and its certificate.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore};
use zookeeper_client as zk;

use crate::error::error::Error;
use crate::sync::Mutex;

/// The authorities that this client trusts on an encrypted connection, and its own certificate, for
/// [`ZooKeeperBuilder::tls`](crate::ZooKeeperBuilder::tls).
///
/// A server's certificate must be signed by a trusted authority, and carry the server's name or address as the connect
/// string has it. This check cannot be switched off.
///
/// Encryption is by rustls, with the process's default `CryptoProvider`, or with `aws-lc-rs` if none was installed
/// when the first `Tls` is made.
///
/// # Clone
/// Clones share their certificates. A renewal applies to all clones, and to all later connections of clients that use
/// them.
///
/// # Examples
///
/// ```no_run
/// # use zk_rwlock::security::Tls;
/// # use zk_rwlock::ZooKeeper;
/// # async fn main_of_yours() -> Result<(), Box<dyn std::error::Error>> {
/// let read = std::fs::read_to_string;
/// let tls = Tls::from_ca_pem(&read("ca.pem")?)?.identity_pem(&read("web-1.pem")?, &read("web-1.key")?)?;
/// let zk = ZooKeeper::builder().tls(tls.clone()).connect("zk1:2281,zk2:2281,zk3:2281").await?;
///
/// // Whenever the files were renewed:
/// tls.renew_identity_pem(&read("web-1.pem")?, &read("web-1.key")?)?;
/// # Ok(()) }
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
#[derive(Clone)]
#[must_use]
pub struct Tls {
    certs: zk::TlsDynamicCerts,
    own: Arc<Mutex<Own>>,
}

/// A certificate, the chain to its authority, and its key.
type OwnIdentity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The certificates for the TLS handshakes of this library's probes. A probe repeats the handshake, because the client
/// crate does not report why its own handshake failed.
struct Own {
    verifier: Arc<WebPkiServerVerifier>,
    identity: Option<OwnIdentity>,
}

impl Tls {
    /// Trusts the authorities whose certificates are in `pem`. `pem` may hold several certificates, and revocation
    /// lists.
    ///
    /// To trust the machine's authorities, give the contents of its bundle, such as
    /// `/etc/ssl/certs/ca-certificates.crt`.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] when `pem` holds no certificate, or a broken one.
    pub fn from_ca_pem(pem: &str) -> Result<Tls, Error> {
        let (ca, verifier) = ca(pem)?;
        let certs = zk::TlsCerts::builder().with_ca(ca).build();
        let certs = zk::TlsDynamicCerts::new(certs.map_err(|error| Error::invalid(error.to_string()))?);
        Ok(Tls { certs, own: Arc::new(Mutex::new(Own { verifier, identity: None })) })
    }

    /// Presents this certificate to servers that request one. `certificate` holds the client's own certificate first,
    /// then the chain to an authority; `key` is the private key of the first.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] when the texts hold no certificate or no key, when one is malformed, or when the two do
    /// not belong together.
    pub fn identity_pem(self, certificate: &str, key: &str) -> Result<Tls, Error> {
        self.renew_identity_pem(certificate, key)?;
        Ok(self)
    }

    /// Replaces the client's certificate for later connections. Open connections stay, with their sessions and locks.
    ///
    /// # Errors
    /// As for [`identity_pem`](Tls::identity_pem). The old certificate then stays.
    pub fn renew_identity_pem(&self, certificate: &str, key: &str) -> Result<(), Error> {
        let (identity, own) = identity(certificate, key)?;
        self.own.lock().identity = Some(own);
        self.certs.update_identity(Some(identity));
        Ok(())
    }

    /// Replaces the trusted authorities for later connections.
    ///
    /// # Errors
    /// As for [`from_ca_pem`](Tls::from_ca_pem). The old authorities then stay.
    pub fn renew_ca_pem(&self, pem: &str) -> Result<(), Error> {
        let (ca, verifier) = ca(pem)?;
        self.own.lock().verifier = verifier;
        self.certs.update_ca(ca);
        Ok(())
    }

    pub(super) fn has_identity(&self) -> bool {
        self.own.lock().identity.is_some()
    }

    /// Returns the TLS configuration of the probes' handshakes, which is the same as the client crate's.
    pub(super) fn config(&self) -> Result<ClientConfig, rustls::Error> {
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        let own = self.own.lock();
        let builder = builder.with_webpki_verifier(Arc::clone(&own.verifier));
        match &own.identity {
            Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.clone_key()),
            None => Ok(builder.with_no_client_auth()),
        }
    }

    pub(crate) fn options(&self) -> zk::TlsOptions {
        zk::TlsOptions::new().with_certs(self.certs.clone())
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

/// Refuses a host name that no certificate can carry, because the client crate would panic over that name.
pub(crate) fn check_host(host: &str) -> Result<(), Error> {
    match ServerName::try_from(host) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::invalid(format!("servers: {host:?} is no host name or address that TLS can verify"))),
    }
}

/// Parses and checks certificates in the way in which the client crate will use them. The crate finds an error in
/// certificates only when it connects, and on a renewal it only logs the error.
fn ca(pem: &str) -> Result<(zk::TlsCa, Arc<WebPkiServerVerifier>), Error> {
    let broken = |problem: &dyn fmt::Display| Error::invalid(format!("TLS authorities: {problem}"));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        // The error is ignored, because a bundle may contain unusable certificates, which the client crate skips, too.
        let _useless = roots.add(certificate.map_err(|error| broken(&error))?);
    }
    if roots.is_empty() {
        return Err(broken(&"no certificate in the PEM text that can be trusted"));
    }
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem.as_bytes()).collect();
    let lists = lists.map_err(|error| broken(&error))?;
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider())
        .with_crls(lists)
        .build()
        .map_err(|error| broken(&error))?;
    Ok((zk::TlsCa::from_pem(pem).map_err(|error| broken(&error))?, verifier))
}

fn identity(certificate: &str, key: &str) -> Result<(zk::TlsIdentity, OwnIdentity), Error> {
    let broken = |problem: &dyn fmt::Display| Error::invalid(format!("TLS identity: {problem}"));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let chain = chain.map_err(|error| broken(&format!("the certificate: {error}")))?;
    if chain.is_empty() {
        return Err(broken(&"no certificate in the PEM text"));
    }
    let private = PrivateKeyDer::from_pem_slice(key.as_bytes());
    let private = private.map_err(|error| broken(&format!("the private key: {error}")))?;
    CertifiedKey::from_der(chain.clone(), private.clone_key(), &provider()).map_err(|error| broken(&error))?;
    let identity = zk::TlsIdentity::from_pem(certificate, key).map_err(|error| broken(&error))?;
    Ok((identity, (chain, private)))
}

/// Returns the `CryptoProvider` that the client crate will use, and installs one if there is none. Without one, the
/// crate would panic if the program has two providers compiled in.
fn provider() -> Arc<CryptoProvider> {
    if let Some(provider) = CryptoProvider::get_default() {
        return Arc::clone(provider);
    }
    let _chosen_meanwhile = aws_lc_rs::default_provider().install_default();
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()))
}
