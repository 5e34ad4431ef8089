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
use crate::queue::quoted::quoted;
use crate::sync::Mutex;
use crate::telemetry::debug::debug;

/// The authorities that this client trusts on an encrypted connection, and its own certificate, for
/// [`ZooKeeperBuilder::tls`](crate::ZooKeeperBuilder::tls).
///
/// A server's certificate must be signed by a trusted authority, and carry the server's name or address as the connect
/// string has it. This check cannot be switched off.
///
/// rustls encrypts the connection, with the process's default `CryptoProvider`. If no default is installed when the
/// first `Tls` is made, `aws-lc-rs` becomes the default.
///
/// # Clone
/// Clones share their certificates. If certificates are renewed on one clone, the later connections of all clients with
/// any of the clones use the new certificates.
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
    probe_certs: Arc<Mutex<ProbeCertificates>>,
}

/// A certificate, the chain to its authority, and its key.
type OwnIdentity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The certificates for the TLS handshakes of this library's probes. A probe repeats the handshake, because the client
/// crate does not report why its own handshake failed.
struct ProbeCertificates {
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
    /// [`Error::InvalidInput`] when the PEM text or a revocation list in it is broken, or when the text holds no
    /// certificate that can be trusted. An unusable certificate next to usable ones is skipped.
    pub fn from_ca_pem(pem: &str) -> Result<Tls, Error> {
        let (ca, verifier) = parse_ca(pem)?;
        let certs = zk::TlsCerts::builder().with_ca(ca).build();
        let certs = zk::TlsDynamicCerts::new(certs.map_err(|error| Error::invalid(error.to_string()))?);
        Ok(Tls { certs, probe_certs: Arc::new(Mutex::new(ProbeCertificates { verifier, identity: None })) })
    }

    /// Presents a certificate to servers that request one. `certificate` holds the client's own certificate first, then
    /// the chain to an authority. `key` is the private key of the client's own certificate.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] when the texts hold no certificate or no key, when the certificate or the key is
    /// malformed or cannot be used, or when the two do not belong together. For common forms that cannot be used, such
    /// as an encrypted key, the error names the form, and the command that converts it.
    pub fn identity_pem(self, certificate: &str, key: &str) -> Result<Tls, Error> {
        self.renew_identity_pem(certificate, key)?;
        Ok(self)
    }

    /// Replaces the client's certificate for later connections. Open connections stay, with their sessions and locks.
    ///
    /// # Errors
    /// The errors of [`identity_pem`](Tls::identity_pem). After an error, the old certificate stays.
    pub fn renew_identity_pem(&self, certificate: &str, key: &str) -> Result<(), Error> {
        let (identity, own) = parse_identity(certificate, key)?;
        self.probe_certs.lock().identity = Some(own);
        self.certs.update_identity(Some(identity));
        Ok(())
    }

    /// Replaces the trusted authorities for later connections.
    ///
    /// # Errors
    /// The errors of [`from_ca_pem`](Tls::from_ca_pem). After an error, the old authorities stay.
    pub fn renew_ca_pem(&self, pem: &str) -> Result<(), Error> {
        let (ca, verifier) = parse_ca(pem)?;
        self.probe_certs.lock().verifier = verifier;
        self.certs.update_ca(ca);
        Ok(())
    }

    pub(super) fn has_identity(&self) -> bool {
        self.probe_certs.lock().identity.is_some()
    }

    /// Returns the TLS configuration for the probes' handshakes. The certificates are the same as those of the client
    /// crate.
    pub(super) fn rustls_config(&self) -> Result<ClientConfig, rustls::Error> {
        let builder =
            ClientConfig::builder_with_provider(ensure_crypto_provider()).with_safe_default_protocol_versions()?;
        let own = self.probe_certs.lock();
        let builder = builder.with_webpki_verifier(Arc::clone(&own.verifier));
        match &own.identity {
            Some((chain, key)) => builder.with_client_auth_cert(chain.clone(), key.clone_key()),
            None => Ok(builder.with_no_client_auth()),
        }
    }

    pub(crate) fn zk_tls_options(&self) -> zk::TlsOptions {
        zk::TlsOptions::new().with_certs(self.certs.clone())
    }
}

debug!(Tls as "Tls", |_it|);

/// Refuses a host name that no certificate can carry, because the client crate would panic over that name.
pub(crate) fn check_verifiable_host(host: &str) -> Result<(), Error> {
    match ServerName::try_from(host) {
        Ok(_) => Ok(()),
        Err(_) => {
            Err(Error::invalid(format!("servers: {} is no host name or address that TLS can verify", quoted(host))))
        }
    }
}

/// The forms of a PEM text that this library cannot use. Each has a text by which the form is recognized, and the
/// advice for the user.
const UNUSABLE: [(&str, &str); 8] = [
    ("-----BEGIN ENCRYPTED PRIVATE KEY-----", ENCRYPTED_KEY),
    ("Proc-Type: 4,ENCRYPTED", ENCRYPTED_KEY),
    (
        "-----BEGIN OPENSSH PRIVATE KEY-----",
        "it is a key in the form of OpenSSH: `ssh-keygen -p -m PKCS8 -f COPY` converts a copy of it",
    ),
    ("-----BEGIN DSA PRIVATE KEY-----", USABLE_KEYS),
    (
        "-----BEGIN TRUSTED CERTIFICATE-----",
        "it is a certificate in the form of OpenSSL: `openssl x509 -in FILE -out NEW` converts it",
    ),
    ("-----BEGIN CERTIFICATE REQUEST-----", REQUEST),
    ("-----BEGIN NEW CERTIFICATE REQUEST-----", REQUEST),
    ("-----BEGIN PKCS7-----", "it is a PKCS#7 text: `openssl pkcs7 -print_certs -in FILE -out NEW` converts it"),
];

const ENCRYPTED_KEY: &str = "it is encrypted, and this library takes no passphrase: `openssl pkey -in KEY -out NEW` \
     decrypts it; let only this program's user read the new file";

const REQUEST: &str = "it is a request for a certificate, which an authority has to sign: `openssl x509 -req -in FILE -CA \
     CA.pem -CAkey CA.key -CAcreateserial -extfile EXTENSIONS -out NEW`";

const USABLE_KEYS: &str = "it is none of the keys that TLS takes here: RSA from 2048 bits on, ECDSA on P-256 or P-384, \
     and Ed25519. `openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out NEW` makes one, for which an authority has to \
     sign a new certificate";

/// Returns what to do about a refused certificate or key, if the error has one of three common causes.
pub(super) fn tls_error_advice(error: &rustls::Error) -> Option<&'static str> {
    // The types of these errors belong to another crate, so the errors are recognized by their text.
    let text = error.to_string();
    let is = |name: &str| text.contains(name);
    if is("CaUsedAsEndEntity") {
        return Some(
            "it is the certificate of an authority (CA:TRUE), as `openssl req -x509` makes by default: make the server's \
             with `openssl req -x509 -newkey rsa:2048 -nodes -keyout KEY -out NEW -subj /CN=HOST -addext \
             subjectAltName=DNS:HOST -addext basicConstraints=critical,CA:FALSE`",
        );
    }
    if is("UnsupportedCertVersion") {
        return Some(
            "it is a certificate of X.509 version 1, as `openssl x509 -req` makes without extensions: sign it again with \
             `openssl x509 -req -in REQUEST -CA CA.pem -CAkey CA.key -CAcreateserial -extfile EXTENSIONS -out NEW`, where \
             EXTENSIONS has the line basicConstraints=CA:FALSE and, for a server, subjectAltName=DNS:HOST",
        );
    }
    is("failed to parse private key").then_some(USABLE_KEYS)
}

/// Returns the text without a byte order mark at its beginning, which would hide the first line of a PEM text.
fn without_byte_order_mark(pem: &str) -> &str {
    pem.trim_start_matches('\u{feff}')
}

/// Returns what is wrong with a PEM text that could not be read. If the text has a form in [`UNUSABLE`], returns the
/// advice for that form. Otherwise returns `problem`, with a hint if the text is no PEM text.
fn why_unreadable(pem: &str, problem: &dyn fmt::Display) -> String {
    match UNUSABLE.iter().find(|(sign, _)| pem.contains(sign)) {
        Some((_, cure)) => (*cure).to_owned(),
        None if !pem.contains("-----BEGIN ") => {
            format!("{problem}: a PEM text has a line that starts with -----BEGIN, and this text has none")
        }
        None => problem.to_string(),
    }
}

/// Parses authorities and revocation lists in the way in which the client crate will use them, and checks them. The
/// crate finds an error in them only when it connects, and on a renewal it only logs the error.
fn parse_ca(pem: &str) -> Result<(zk::TlsCa, Arc<WebPkiServerVerifier>), Error> {
    let pem = without_byte_order_mark(pem);
    let broken =
        |problem: &dyn fmt::Display| Error::invalid(format!("TLS authorities: {}", why_unreadable(pem, problem)));
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        // The result of `add` is ignored, because a bundle may contain unusable certificates. The client crate skips
        // them, too.
        let _useless = roots.add(certificate.map_err(|error| broken(&error))?);
    }
    if roots.is_empty() {
        return Err(broken(&"no certificate in the PEM text that can be trusted"));
    }
    let lists: Result<Vec<_>, _> = CertificateRevocationListDer::pem_slice_iter(pem.as_bytes()).collect();
    let lists = lists.map_err(|error| broken(&error))?;
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), ensure_crypto_provider())
        .with_crls(lists)
        .build()
        .map_err(|error| broken(&error))?;
    Ok((zk::TlsCa::from_pem(pem).map_err(|error| broken(&error))?, verifier))
}

fn parse_identity(certificate: &str, key: &str) -> Result<(zk::TlsIdentity, OwnIdentity), Error> {
    let (certificate, key) = (without_byte_order_mark(certificate), without_byte_order_mark(key));
    let broken = |problem: &dyn fmt::Display| Error::invalid(format!("TLS identity: {problem}"));
    let of_chain =
        |problem: &dyn fmt::Display| broken(&format!("the certificate: {}", why_unreadable(certificate, problem)));
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate.as_bytes()).collect();
    let chain = chain.map_err(|error| of_chain(&error))?;
    if chain.is_empty() {
        return Err(of_chain(&"no certificate in the PEM text"));
    }
    let private = PrivateKeyDer::from_pem_slice(key.as_bytes());
    let private = private.map_err(|error| broken(&format!("the private key: {}", why_unreadable(key, &error))))?;
    let fit = CertifiedKey::from_der(chain.clone(), private.clone_key(), &ensure_crypto_provider());
    fit.map_err(|error| match (tls_error_advice(&error), &error) {
        (None, _) => broken(&error),
        (Some(cure), rustls::Error::InvalidCertificate(_)) => broken(&format!("the certificate: {cure}")),
        (Some(cure), _) => broken(&format!("the private key: {cure}")),
    })?;
    let identity = zk::TlsIdentity::from_pem(certificate, key).map_err(|error| broken(&error))?;
    Ok((identity, (chain, private)))
}

/// Returns the `CryptoProvider` that the client crate will use: the process's default one. If there is none, installs
/// `aws-lc-rs` first. Without a default, the crate would panic if the program has two providers compiled in.
fn ensure_crypto_provider() -> Arc<CryptoProvider> {
    if let Some(provider) = CryptoProvider::get_default() {
        return Arc::clone(provider);
    }
    let _chosen_meanwhile = aws_lc_rs::default_provider().install_default();
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(aws_lc_rs::default_provider()))
}
