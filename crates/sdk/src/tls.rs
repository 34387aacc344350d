//! TLS of clients: with ring, and with the authorities of the machine beside those that the program names.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
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
            let believing = Arc::new(Believing { verifier, own });
            Ok(builder.dangerous().with_custom_certificate_verifier(believing).with_no_client_auth())
        }
        Err(error) => Err(format!("nobody's certificate can be believed: {error}")),
    }
}

/// Believes what authorities vouch for, and a certificate that was named itself. One that somebody signed for
/// themselves most often says that it is an authority, and rustls believes no server that shows such a one.
#[derive(Debug)]
struct Believing {
    verifier: Verifier,
    own: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Believing {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // Its time was looked at before that, and its name was not.
            Err(error) if is_of_authority(&error) && self.own.iter().any(|own| own == end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// Whether the one thing against a server's certificate is that it says it is an authority. rustls has no word of its
/// own for it.
fn is_of_authority(error: &Error) -> bool {
    let Error::InvalidCertificate(CertificateError::Other(other)) = error else { return false };
    format!("{other:?}").contains("CaUsedAsEndEntity")
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
