//! What a server is sent, and how it is believed: a folder's file gets at no secret of the user, and has nobody
//! believed in place of a server that the user names.

use std::path::PathBuf;

use super::url::{is_loopback, shown_url};
use super::{Environment, Layer, Said, Shown, file};
use crate::failure::Failure;
use crate::options::{Asked, Secret, Withheld};

/// What is for a server.
#[derive(Default)]
pub(super) struct Trust {
    token: Option<(Said, Secret)>,
    /// Whose certificates are believed beside those that the machine believes.
    authority: Option<Said>,
    /// Who has a token that is for another server.
    passed_over: Option<String>,
}

impl Trust {
    /// What the layers say, for the server that one of them names.
    pub(super) fn of(layers: &[Layer], target: usize, profile: usize) -> Result<Self, Failure> {
        let passed_over = layers[profile].get("token_file").filter(|_| target != profile);
        Ok(Self {
            token: token(layers, target, profile)?,
            authority: authority(layers, target, profile),
            passed_over: passed_over.map(|said| said.from.clone()),
        })
    }

    /// The same, for a server that a folder's file names.
    pub(super) fn withheld(mut self, url: &Said, env: Environment<'_>) -> Self {
        self.token = self.token.map(|token| withheld(token, url, env));
        self
    }

    pub(super) fn asked(&self, url: &Said) -> Asked {
        Asked {
            url: url.value.clone(),
            from: url.from.clone(),
            token: self.token.as_ref().map(|(_, secret)| secret.clone()),
            token_from: self.token.as_ref().map(|(said, _)| said.from.clone()),
            passed_over: self.passed_over.clone(),
            ca_file: self.authority.as_ref().map(|said| PathBuf::from(&said.value)),
        }
    }

    /// As it may be shown: without secrets.
    pub(super) fn shown(&self) -> [Shown; 2] {
        let from = |said: Option<&Said>| said.map(|said| said.from.clone()).unwrap_or_default();
        let token = self.token.as_ref().map(|(_, secret)| match secret {
            Secret::Text(_) => "set".to_owned(),
            Secret::File(path) => format!("in {}", path.display()),
            Secret::Withheld(_) => "withheld".to_owned(),
        });
        let authority = self.authority.as_ref();
        [
            Shown { key: "token", value: token, from: from(self.token.as_ref().map(|(said, _)| said)) },
            Shown { key: "ca_file", value: authority.map(|said| said.value.clone()), from: from(authority) },
        ]
    }
}

/// The token for a server. That of a profile is for the profile's own server: nobody else is sent it.
fn token(layers: &[Layer], target: usize, profile: usize) -> Result<Option<(Said, Secret)>, Failure> {
    for (index, layer) in layers.iter().enumerate() {
        if index == profile && target != profile {
            continue;
        }
        match (layer.get("token"), layer.get("token_file")) {
            (Some(token), Some(file)) => {
                let what = format!("{} and {} both give a token: which is meant?", token.from, file.from);
                return Err(Failure::usage("two_tokens", what).hint("give one of the two"));
            }
            (Some(token), None) => return Ok(Some((token.clone(), Secret::Text(token.value.clone())))),
            (None, Some(file)) => return Ok(Some((file.clone(), Secret::File(PathBuf::from(&file.value))))),
            (None, None) => {}
        }
    }
    Ok(None)
}

/// Whose certificates are believed of a server. That of a profile counts for the profile's own server: else the file
/// of a folder could have somebody else believed in place of a server that the user names.
fn authority(layers: &[Layer], target: usize, profile: usize) -> Option<Said> {
    let heard = layers.iter().enumerate().filter(|(index, _)| *index != profile || target == profile);
    heard.into_iter().find_map(|(_, layer)| layer.get("ca_file")).cloned()
}

/// A token of the environment is for a server that the user named. Of a folder's file only this machine is believed:
/// the file may be a stranger's, and its server too.
fn withheld((said, secret): (Said, Secret), url: &Said, env: Environment<'_>) -> (Said, Secret) {
    if !["ABIDE_TOKEN", "ABIDE_TOKEN_FILE"].contains(&&*said.from) || is_loopback(&url.value) {
        return (said, secret);
    }
    let own = file::of_user(env).map_or("your own config.toml".into(), |path| path.display().to_string());
    let why = Withheld {
        what: format!("{} is not sent to {}, which only {} names", said.from, shown_url(url), url.from),
        hint: format!("if that is your server, name it with --url or ABIDE_URL, or put the profile into {own}"),
    };
    (said, Secret::Withheld(why))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tests::{folder, resolved, resolved_in};
    use super::*;
    use crate::options::Flags;

    /// A folder that somebody else made names a server of theirs; what the user has for other servers stays here.
    #[test]
    fn the_file_of_a_folder_gets_at_no_secret_of_the_user() {
        let (folder, home) = (tempfile::TempDir::new().unwrap(), tempfile::TempDir::new().unwrap());
        let home = home.path().display().to_string();
        let with = |profile: &str, flags: &Flags, env: &[(&str, &str)]| {
            std::fs::write(folder.path().join("abide.toml"), format!("[profile.default]\n{profile}")).unwrap();
            resolved_in(folder.path(), flags, &[&[("HOME", home.as_str())], env].concat())
        };
        let token = |profile: &str, flags: &Flags, env: &[(&str, &str)]| {
            with(profile, flags, env).unwrap().globals.server.unwrap().token
        };
        let none = Flags::default();
        let secrets = [[("ABIDE_TOKEN", "abide_secret")], [("ABIDE_TOKEN_FILE", "secret")]];
        for env in &secrets {
            let evil = ["http://evil:1", "https://127.0.0.1.evil", "http://127.0.0.1:1.evil", "http://localhost.evil"];
            for url in evil {
                let sent = token(&format!("url = \"{url}\""), &none, env);
                assert!(
                    matches!(&sent, Some(Secret::Withheld(why)) if why.hint.contains("ABIDE_URL")),
                    "{url}: {sent:?}"
                );
            }
            for url in ["http://127.0.0.1:1", "http://localhost:7411/", "https://[::1]:1", "http://[::1]"] {
                let sent = token(&format!("url = \"{url}\""), &none, env);
                assert!(matches!(sent, Some(Secret::Text(_) | Secret::File(_))), "{url}");
            }
            // Whoever names the server means it.
            let flags = Flags { url: Some("http://evil:1".into()), ..Flags::default() };
            assert!(!matches!(token("url = \"http://evil:1\"", &flags, env), None | Some(Secret::Withheld(_))));
        }
        let flags = Flags { token_file: Some("mine".into()), ..Flags::default() };
        assert!(matches!(token("url = \"http://evil:1\"", &flags, &[]), Some(Secret::File(_))));

        std::os::unix::fs::symlink(&home, folder.path().join("led")).unwrap();
        std::fs::write(Path::new(&home).join("secret"), "abide_secret").unwrap();
        std::fs::write(folder.path().join("token"), "abide_theirs").unwrap();
        let absolute = format!("{home}/secret");
        for file in ["~/secret", "../secret", "a/../../secret", "led/secret", absolute.as_str()] {
            let settings = with(&format!("url = \"http://evil:1\"\ntoken_file = \"{file}\""), &none, &[]);
            let failure = settings.err().unwrap_or_else(|| panic!("{file} is taken"));
            let hint = failure.hint.unwrap_or_default();
            assert!(failure.code == "bad_config" && hint.contains("config.toml"), "{file}: {} {hint}", failure.what);
        }
        for file in ["token", "./token", "later/token"] {
            let sent = token(&format!("url = \"http://h:1\"\ntoken_file = \"{file}\""), &none, &[]);
            assert!(matches!(sent, Some(Secret::File(path)) if path.is_absolute()), "{file}");
        }
    }

    /// A folder's file must not have an authority of theirs believed for a server of the user's.
    #[test]
    fn the_authority_of_a_profile_counts_for_its_own_server_only() {
        let (_folder, path) = folder("[profile.default]\nurl = \"https://h:1\"\nca_file = \"ca.pem\"\n");
        let authority = |flags: &Flags, more: &[(&str, &str)]| {
            let env = [&[("ABIDE_CONFIG", path.as_str())], more].concat();
            resolved(flags, &env).unwrap().globals.server.unwrap().ca_file
        };
        assert!(authority(&Flags::default(), &[]).is_some_and(|path| path.is_absolute() && path.ends_with("ca.pem")));
        let other = [("ABIDE_URL", "https://other:1")];
        assert_eq!(authority(&Flags::default(), &other), None);
        let flags = Flags { ca_file: Some("mine.pem".into()), ..Flags::default() };
        assert_eq!(authority(&flags, &other), Some("mine.pem".into()));
        let env = [other[0], ("ABIDE_CA_FILE", "env.pem")];
        assert_eq!(authority(&Flags::default(), &env), Some("env.pem".into()));
    }
}
