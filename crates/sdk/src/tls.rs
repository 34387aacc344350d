//! TLS of clients: with ring, and with the authorities of the machine beside those that the program names.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::RootCertStore;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls_platform_verifier::Verifier;

/// How a client speaks TLS with the server at a URL. The authorities of the machine are read only where they are needed:
/// a machine may have none.
pub(crate) fn config(url: &str, trusted: &[Vec<u8>]) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let own = authorities(trusted)?;
    if !url.starts_with("https://") {
        return Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth());
    }
    let verifier = Verifier::new_with_extra_roots(own.iter().cloned(), provider);
    match verifier {
        Ok(verifier) => {
            Ok(builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
        }
        Err(error) => Err(format!("nobody's certificate can be believed: {error}")),
    }
}

/// The certificates of authorities, in PEM.
fn authorities(trusted: &[Vec<u8>]) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut all = Vec::new();
    for pem in trusted {
        let before = all.len();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            all.push(certificate.map_err(|error| format!("a certificate to trust is not PEM: {error}"))?);
        }
        if all.len() == before {
            return Err("a certificate to trust: expected PEM with -----BEGIN CERTIFICATE-----".into());
        }
    }
    Ok(all)
}
