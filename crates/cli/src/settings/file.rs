//! Configuration files: profiles in TOML, each whole in one file. A key that is not known is an error, because it is most
//! likely a mistake.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::{Environment, KEYS, Said, nearest};
use crate::failure::{Exit, Failure};

/// The file of a project, in the folder where the command is given.
const PROJECT: &str = "abide.toml";
/// The profile that is meant when none is named.
const DEFAULT: &str = "default";

/// A file that was read.
pub(super) struct File {
    pub(super) shown: String,
    /// Why it was looked for.
    pub(super) from: &'static str,
    profiles: BTreeMap<String, BTreeMap<&'static str, String>>,
}

/// A profile of a file.
pub(super) struct Profile {
    pub(super) name: String,
    pub(super) file: String,
    pub(super) values: BTreeMap<&'static str, String>,
}

/// The files there are, the one that goes first first.
pub(super) fn read_all(env: Environment<'_>) -> Result<Vec<File>, Failure> {
    if let Some(path) = env("ABIDE_CONFIG") {
        let path = PathBuf::from(path);
        let missing = || {
            let what = format!("ABIDE_CONFIG names {}, and there is no such file", path.display());
            Failure::new(Exit::Usage, "bad_config", what)
        };
        return Ok(vec![read(&path, "ABIDE_CONFIG", env)?.ok_or_else(missing)?]);
    }
    let home = |under: &str| env("HOME").map(|home| Path::new(&home).join(under));
    let folder = env("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| home(".config"));
    let user = folder.map(|folder| folder.join("abide/config.toml"));
    let mut files = Vec::new();
    files.extend(read(Path::new(PROJECT), "this folder", env)?);
    if let Some(user) = user {
        files.extend(read(&user, "the user", env)?);
    }
    Ok(files)
}

/// The profile that is meant: the first of that name. Without one of the name `default` there is none, unless one is named.
pub(super) fn choose(files: &[File], named: Option<&Said>) -> Result<Option<Profile>, Failure> {
    let name = named.map_or(DEFAULT, |said| &said.value);
    for file in files {
        if let Some(values) = file.profiles.get(name) {
            return Ok(Some(Profile { name: name.into(), file: file.shown.clone(), values: values.clone() }));
        }
    }
    let Some(said) = named else { return Ok(None) };
    let known: Vec<&str> = files.iter().flat_map(|file| file.profiles.keys()).map(String::as_str).collect();
    let what = format!("{}: there is no profile {name:?}", said.from);
    let hint = match (nearest(name, known.iter().copied()), known.is_empty()) {
        (Some(near), _) => format!("did you mean {near}?"),
        (None, false) => format!("there is {}", known.join(", ")),
        (None, true) => "abide config show says which files are read; a profile begins with [profile.NAME]".into(),
    };
    Err(Failure::new(Exit::Usage, "no_profile", what).hint(hint))
}

fn read(path: &Path, from: &'static str, env: Environment<'_>) -> Result<Option<File>, Failure> {
    let shown = path.display().to_string();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(bad(format!("{shown} cannot be read: {error}"))),
    };
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        bad(format!("{shown}, line {line}: {}", error.message()))
    })?;
    let mut profiles = BTreeMap::new();
    for (key, value) in &table {
        if key != "profile" {
            return Err(unknown(&shown, key, &["profile"]));
        }
        let Value::Table(named) = value else {
            return Err(bad(format!("{shown}: expected [profile.NAME], found profile = …")));
        };
        for (name, profile) in named {
            let Value::Table(profile) = profile else {
                return Err(bad(format!("{shown}: expected [profile.{name}], found profile.{name} = …")));
            };
            profiles.insert(name.clone(), values(&shown, path, name, profile, env)?);
        }
    }
    Ok(Some(File { shown, from, profiles }))
}

fn values(
    shown: &str,
    path: &Path,
    name: &str,
    profile: &Table,
    env: Environment<'_>,
) -> Result<BTreeMap<&'static str, String>, Failure> {
    let mut values = BTreeMap::new();
    for (key, value) in profile {
        let Some(known) = KEYS.into_iter().find(|known| known == key) else {
            if key == "token" {
                let failure = unknown(shown, &format!("profile.{name}.token"), &[]);
                return Err(failure.hint("a token is kept in a file of its own: token_file"));
            }
            return Err(unknown(shown, &format!("profile.{name}.{key}"), &KEYS));
        };
        let Value::String(text) = value else {
            let found = value.type_str();
            return Err(bad(format!("{shown}: profile.{name}.{key}: expected text in quotes, found {found}")));
        };
        let text = if known == "token_file" { beside(path, text, env) } else { text.clone() };
        values.insert(known, text);
    }
    Ok(values)
}

/// A path as it is meant in a file: from where the file is, or from the user's home.
fn beside(file: &Path, text: &str, env: Environment<'_>) -> String {
    let home = env("HOME").filter(|_| text.starts_with("~/"));
    let path = match home {
        Some(home) => Path::new(&home).join(&text[2..]),
        None => file.parent().unwrap_or(Path::new("")).join(text),
    };
    std::path::absolute(&path).unwrap_or(path).display().to_string()
}

fn bad(what: String) -> Failure {
    Failure::usage("bad_config", what)
}

fn unknown(shown: &str, key: &str, known: &[&str]) -> Failure {
    let failure = Failure::usage("unknown_key", format!("{shown}: there is no key {key}"));
    let last = key.rsplit('.').next().unwrap_or(key);
    match nearest(last, known.iter().copied()) {
        Some(near) => failure.hint(format!("did you mean {near}?")),
        None => failure.hint(format!("there is {}", known.join(", "))),
    }
}
