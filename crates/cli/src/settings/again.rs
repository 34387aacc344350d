//! Options to repeat: a line that is printed to be copied asks whom this one asked.

use std::path::PathBuf;

use crate::options::Flags;

/// The options that say whom to ask, as a shell takes them. A password is not repeated.
pub(super) fn asks(flags: &Flags) -> String {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let given = [
        ("--store", flags.store.as_deref().and_then(without_password)),
        ("--url", flags.url.clone()),
        ("--token-file", path(&flags.token_file)),
        ("--ca-file", path(&flags.ca_file)),
        ("--profile", flags.profile.clone()),
        ("-n", flags.namespace.clone()),
    ];
    let given = given.into_iter().filter_map(|(name, value)| Some(format!("{name} {} ", quoted(&value?))));
    given.collect()
}

fn without_password(url: &str) -> Option<String> {
    if url.contains("password=") {
        return None;
    }
    let login = |rest: &str| rest.rsplit_once('@').map(|(login, host)| (login.to_owned(), host.to_owned()));
    match url.split_once("://").and_then(|(scheme, rest)| Some((scheme, login(rest)?))) {
        Some((scheme, (login, host))) => {
            Some(format!("{scheme}://{}@{host}", login.split(':').next().unwrap_or_default()))
        }
        None => Some(url.to_owned()),
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |sign: char| sign.is_ascii_alphanumeric() || "_-+=:,./@%".contains(sign);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Format;

    #[test]
    fn what_says_whom_to_ask_is_repeated_for_a_shell() {
        let flags = Flags {
            url: Some("http://h:1".into()),
            namespace: Some("ada's".into()),
            output: Some(Format::Json),
            ..Flags::default()
        };
        assert_eq!(asks(&flags), r"--url http://h:1 -n 'ada'\''s' ");
        let store = |store: &str| asks(&Flags { store: Some(store.into()), ..Flags::default() });
        assert_eq!(store("postgres://ada:hush@h/d"), "--store postgres://ada@h/d ");
        assert_eq!(store("postgres://h/d?password=hush"), "");
        assert_eq!(store("sqlite:abide.db"), "--store sqlite:abide.db ");
    }
}
