//! The certificate of a server: where it is, and what is said when it cannot be used.

use std::path::PathBuf;

use abide_server::{Tls, TlsError};
use clap::Args;
use clap::builder::BoolishValueParser;

use crate::failure::Failure;
use crate::screen::Screen;

/// By which certificate a server is known.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "TLS")]
pub(crate) struct Certificate {
    /// Speak TLS with this certificate, in PEM, with those behind it that lead to its authority
    #[arg(long, env = "ABIDE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate, in PEM, without a password
    #[arg(long, env = "ABIDE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Somebody before it, like an ingress, speaks TLS with browsers: they send cookies in no other way
    #[arg(long, env = "ABIDE_BEHIND_TLS", value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = BoolishValueParser::new(), hide_default_value = true, hide_possible_values = true)]
    behind_tls: bool,
}

impl Certificate {
    /// Whether somebody before it speaks TLS.
    pub(crate) fn is_before(&self) -> bool {
        self.behind_tls
    }

    pub(crate) fn read(&self) -> Result<Option<Tls>, Failure> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) => Ok(Some(Tls::read(certificate, key)?)),
            (None, None) => Ok(None),
            // Of what files say nobody else sees that one of the two is missing.
            (Some(_), None) => Err(Failure::usage("tls_no_key", "there is a certificate and no key".to_owned())
                .hint("give the private key with --tls-key, ABIDE_TLS_KEY or tls_key")),
            (None, Some(_)) => {
                Err(Failure::usage("tls_no_certificate", "there is a key and no certificate".to_owned())
                    .hint("give the certificate with --tls-cert, ABIDE_TLS_CERT or tls_cert"))
            }
        }
    }
}

/// Reads the files again. What cannot be used changes nothing, and is said.
pub(crate) fn read_again(tls: Option<&Tls>, screen: &Screen) {
    let Some(tls) = tls else { return screen.notice("SIGHUP: there is no certificate to read again") };
    match tls.read_again() {
        Ok(true) => screen.notice("SIGHUP: new connections are shown another certificate"),
        Ok(false) => screen.notice("SIGHUP: the certificate is the same as before"),
        Err(error) => {
            let why = Failure::from(error);
            screen.notice(&format!("SIGHUP: the certificate of before stays: {} ({})", why.what, why.code));
        }
    }
}

impl From<TlsError> for Failure {
    fn from(error: TlsError) -> Self {
        let (code, hint) = match &error {
            TlsError::Unreadable { .. } => ("tls_unreadable", "check the path, and whether this user may read it"),
            TlsError::Malformed { .. } => ("tls_malformed", "the file must be PEM, and whole"),
            TlsError::NoCertificate { .. } => ("tls_no_certificate", "give the certificate with --tls-cert"),
            TlsError::NoKey { .. } => ("tls_no_key", "give the private key with --tls-key"),
            TlsError::EncryptedKey { .. } => (
                "tls_encrypted_key",
                "openssl pkey -in KEY -out PLAIN takes the password off; let only this user read it",
            ),
            TlsError::OtherKey { .. } => ("tls_other_key", "give the key with which the certificate was asked for"),
            _ => ("tls_unusable", "have another certificate made"),
        };
        let why = std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
        Self::usage(code, format!("{error}{why}")).hint(hint)
    }
}
