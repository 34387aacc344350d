//! TLS: a certificate and its key, read from files, and read again while connections go on. What cannot be used is said
//! before anybody is answered, and a renewal that cannot be used leaves the old certificate in place.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// What a server speaks inside of TLS, the preferred one first.
const SPOKEN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// A certificate and its key, by which a server is known. Clones are the same one: what is read again holds for all.
#[derive(Clone)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    current: Arc<Current>,
}

/// The certificate that new connections are shown.
struct Current(RwLock<Arc<CertifiedKey>>);

/// Why a certificate and a key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{} cannot be read", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file is not PEM.
    #[error("{} is not PEM: {found}", path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// There is no certificate in the file for it.
    #[error("{} has no certificate: expected -----BEGIN CERTIFICATE-----", path.display())]
    NoCertificate {
        /// Where one was looked for.
        path: PathBuf,
    },
    /// There is no key in the file for it.
    #[error("{} has no private key: expected -----BEGIN PRIVATE KEY-----", path.display())]
    NoKey {
        /// Where one was looked for.
        path: PathBuf,
    },
    /// The key needs a password, and nobody is there to give it.
    #[error("the private key in {} is encrypted: expected one without a password", path.display())]
    EncryptedKey {
        /// Where it is.
        path: PathBuf,
    },
    /// The certificate or the key is of a kind that cannot be used.
    #[error("{} cannot be used: {found}", path.display())]
    Unusable {
        /// Where it is.
        path: PathBuf,
        /// Why not.
        found: String,
    },
    /// The certificate is of another key.
    #[error("the private key in {} does not belong to the certificate in {}", key.display(), certificate.display())]
    OtherKey {
        /// Where the certificate is.
        certificate: PathBuf,
        /// Where the key is.
        key: PathBuf,
    },
}

impl Tls {
    /// Reads a certificate, with those that lead to its authority behind it, and its key, both as PEM.
    ///
    /// # Errors
    /// When they cannot be read, or not be used together.
    pub fn read(certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Result<Self, TlsError> {
        let (certificate, key) = (certificate.into(), key.into());
        let current = Arc::new(Current(RwLock::new(load(&certificate, &key)?)));
        Ok(Self { certificate, key, current })
    }

    /// Reads the same files again: connections that are made from now on are shown what is there now, those that are there
    /// stay as they are. Says whether it is another certificate than before.
    ///
    /// # Errors
    /// When what is there now cannot be used; then nothing changes.
    pub fn read_again(&self) -> Result<bool, TlsError> {
        let new = load(&self.certificate, &self.key)?;
        let old = std::mem::replace(&mut *self.current.0.write(), new.clone());
        Ok(old.cert != new.cert)
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().expect("the provider has suites for both versions");
        let mut config = builder.with_no_client_auth().with_cert_resolver(self.current.clone());
        config.alpn_protocols = SPOKEN.map(<[u8]>::to_vec).to_vec();
        Arc::new(config)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }
}

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Current").finish_non_exhaustive()
    }
}

fn load(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = read_chain(certificate)?;
    let secret = read_key(key)?;
    let unusable = |path: &Path, found: String| TlsError::Unusable { path: path.into(), found };
    // A key's own error may quote it; that it is none says enough.
    let signing = ring::default_provider()
        .key_provider
        .load_private_key(secret)
        .map_err(|_| unusable(key, "expected a key of RSA, ECDSA (P-256, P-384) or Ed25519".into()))?;
    let certified = CertifiedKey::new(chain, signing);
    match certified.keys_match() {
        Ok(()) => Ok(Arc::new(certified)),
        Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::KeyMismatch)) => {
            Err(TlsError::OtherKey { certificate: certificate.into(), key: key.into() })
        }
        Err(error) => Err(unusable(certificate, error.to_string())),
    }
}

fn read_text(path: &Path) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|source| TlsError::Unreadable { path: path.into(), source })
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read_text(path)?;
    let chain: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&text).collect();
    let chain = chain.map_err(|error| TlsError::Malformed { path: path.into(), found: error.to_string() })?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate { path: path.into() });
    }
    Ok(chain)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let text = read_text(path)?;
    let has = |mark: &str| text.windows(mark.len()).any(|part| part == mark.as_bytes());
    // The second is how OpenSSL wrote it of old.
    if has("BEGIN ENCRYPTED PRIVATE KEY") || has("Proc-Type: 4,ENCRYPTED") {
        return Err(TlsError::EncryptedKey { path: path.into() });
    }
    match PrivateKeyDer::from_pem_slice(&text) {
        Ok(key) => Ok(key),
        Err(PemError::NoItemsFound) => Err(TlsError::NoKey { path: path.into() }),
        // What is wrong with a key is not quoted.
        Err(_) => Err(TlsError::Malformed { path: path.into(), found: "expected a whole private key".into() }),
    }
}
