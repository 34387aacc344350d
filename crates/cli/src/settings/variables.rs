//! Variables of the environment: those that name a file with a value, for secrets that are mounted, and those that nobody
//! reads, most likely a slip of the pen.

use std::fs::File;
use std::io::Read;

use super::{Said, nearest};
use crate::failure::Failure;

/// It belongs to other programs as well.
pub(super) const OTHERS_FILE: &str = "DATABASE_URL_FILE";
/// The longest URL of a store.
const URL_BYTES_MAX: u64 = 16 * 1024;
/// What is read, here or by the options of a verb.
const KNOWN: [&str; 25] = [
    "STORE",
    "STORE_FILE",
    "URL",
    "TOKEN",
    "TOKEN_FILE",
    "CA_FILE",
    "NAMESPACE",
    "OUTPUT",
    "TIME",
    "COLOR",
    "PROFILE",
    "CONFIG",
    "LISTEN",
    "TLS_CERT",
    "TLS_KEY",
    "LOG",
    "LOG_FORMAT",
    "CLUSTER_SECRET",
    "MAX_BODY",
    "MAX_CONNECTIONS",
    "MAX_RATE",
    "MAX_WAIT",
    "AUDIT_KEEP",
    "BEHIND_TLS",
    "FIRST_TOKEN_FILE",
];
/// What containers and checks of this project set for themselves.
const OTHERS: [&str; 6] = ["HEALTH", "BIN", "SEEDS", "TEST_STORE", "MUTANT", "MUTANTS_REACHED"];

/// Whether a URL that was not meant for us in particular is of a store of ours.
pub(super) fn is_ours(url: &str) -> bool {
    ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme))
}

/// The store that a file names. One that is there for other programs as well may name something else.
pub(super) fn store_in(file: &Said) -> Result<Option<Said>, Failure> {
    let unreadable = |error: std::io::Error| {
        let what = format!("{} names {}, which cannot be read: {error}", file.from, file.value);
        Failure::usage("bad_store_file", what).hint("put the URL of the store into it, or name one with --store")
    };
    let mut text = String::new();
    let mut read = File::open(&file.value).map_err(unreadable)?.take(URL_BYTES_MAX + 1);
    read.read_to_string(&mut text).map_err(unreadable)?;
    let url = text.trim();
    if file.from == OTHERS_FILE && !is_ours(url) {
        return Ok(None);
    }
    if url.is_empty() || url.len() as u64 > URL_BYTES_MAX || url.chars().any(char::is_control) {
        let what = format!("{} names {}, which has not one line with the URL of a store", file.from, file.value);
        return Err(Failure::usage("bad_store_file", what).hint("like postgres://user:password@host/database"));
    }
    Ok(Some(Said { value: url.to_owned(), from: file.from.clone() }))
}

/// A remark for each variable that looks like one of ours and is none.
pub(crate) fn strange(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut remarks: Vec<String> = names.filter_map(|name| remark(&name)).collect();
    remarks.sort();
    remarks
}

fn remark(name: &str) -> Option<String> {
    let rest = name.strip_prefix("ABIDE_")?;
    // Kubernetes tells every pod where a service called abide is.
    let of_a_service = rest.contains("SERVICE_") || rest.starts_with("PORT") || rest.contains("_PORT");
    if KNOWN.contains(&rest) || OTHERS.contains(&rest) || of_a_service {
        return None;
    }
    let near = nearest(rest, KNOWN.into_iter()).map(|near| format!(": did you mean ABIDE_{near}?"));
    Some(format!("warning: nobody reads {name}{}", near.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::resolved;
    use super::*;
    use crate::options::{Flags, STORE};

    /// Secrets come as files where they are mounted; a URL with a password was silently passed over there.
    #[test]
    fn a_store_may_be_named_by_a_file() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.display().to_string()
        };
        let (url, other) = (path("url", "postgres://ada:hush@h/d\n"), path("other", "mysql://h/d\n"));
        let (empty, gone) = (path("empty", "\n"), folder.path().join("gone").display().to_string());
        let none = Flags::default();
        let store = |env: &[(&str, &str)]| resolved(&none, env).map(|settings| settings.globals.store);
        for name in ["ABIDE_STORE_FILE", OTHERS_FILE] {
            assert_eq!(store(&[(name, &url)]).ok().as_deref(), Some("postgres://ada:hush@h/d"), "{name}");
            let settings = resolved(&none, &[(name, &url)]).ok().unwrap();
            assert_eq!(settings.shown[0].value.as_deref(), Some("postgres://h/d"), "without its secret");
            assert_eq!(settings.shown[0].from, name);
            assert_eq!(store(&[(name, &gone)]).err().unwrap().code, "bad_store_file", "{name}");
        }
        assert_eq!(store(&[("ABIDE_STORE_FILE", &empty)]).err().unwrap().code, "bad_store_file");
        assert_eq!(store(&[(OTHERS_FILE, &other)]).ok().as_deref(), Some(STORE));
        assert_eq!(store(&[(OTHERS_FILE, &gone), ("DATABASE_URL", "postgres://h/e")]).ok().unwrap(), "postgres://h/e");
        let both = [("ABIDE_STORE_FILE", url.as_str()), ("ABIDE_STORE", "sqlite:a.db")];
        assert_eq!(store(&both).err().unwrap().code, "two_places");
        let two = [("ABIDE_STORE_FILE", url.as_str()), ("ABIDE_URL", "http://h:1")];
        assert_eq!(store(&two).err().unwrap().code, "two_places");
        // What nobody needs is not read.
        let named = Flags { store: Some("sqlite:b.db".into()), ..Flags::default() };
        assert_eq!(resolved(&named, &[("ABIDE_STORE_FILE", &gone)]).ok().unwrap().globals.store, "sqlite:b.db");
    }

    #[test]
    fn a_variable_that_nobody_reads_is_told() {
        let told = |name: &str| strange(std::iter::once(name.to_owned())).join("");
        assert_eq!(told("ABIDE_STROE"), "warning: nobody reads ABIDE_STROE: did you mean ABIDE_STORE?");
        assert!(told("ABIDE_TOKENFILE").ends_with("did you mean ABIDE_TOKEN_FILE?"));
        assert_eq!(told("ABIDE_XYZ"), "warning: nobody reads ABIDE_XYZ");
        let known = KNOWN.iter().chain(&OTHERS).map(|name| format!("ABIDE_{name}"));
        assert!(strange(known).is_empty());
        for others in ["ABIDE_SERVICE_HOST", "ABIDE_PORT_7411_TCP_ADDR", "ABIDE_NODE_SERVICE_PORT", "PATH", "ABIDE"] {
            assert_eq!(told(others), "", "{others}");
        }
    }
}
