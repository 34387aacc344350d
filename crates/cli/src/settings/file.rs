//! Configuration files: profiles in TOML, each whole in one file. A key that is not known is an error, because it is most
//! likely a mistake. A folder may be somebody else's: what its file says gets at no secret of the user.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use toml::{Table, Value};

use super::{Environment, KEYS, Said, nearest, serve};
use crate::failure::{Exit, Failure};

/// The file of a project, in the folder where the command is given.
const PROJECT: &str = "abide.toml";
/// The profile that is meant when none is named.
const DEFAULT: &str = "default";

/// Whose word a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// Of whoever gives the command: their own file, or one that they named.
    User,
    /// Of whoever made the folder.
    Folder,
}

/// A file that was looked at.
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) shown: String,
    /// Why it was looked for.
    pub(super) from: &'static str,
    pub(super) whose: Whose,
    /// What is in the way of reading it. It is passed over: nobody named it.
    pub(super) unreadable: Option<String>,
    profiles: BTreeMap<String, BTreeMap<&'static str, String>>,
    /// What it says of a server.
    pub(super) serve: BTreeMap<&'static str, String>,
}

/// A profile of a file.
pub(super) struct Profile {
    pub(super) name: String,
    pub(super) file: String,
    pub(super) whose: Whose,
    pub(super) values: BTreeMap<&'static str, String>,
}

/// The files there are, the one that goes first first.
pub(super) fn read_all(env: Environment<'_>, folder: &Path) -> Result<Vec<File>, Failure> {
    if let Some(path) = env("ABIDE_CONFIG") {
        let path = PathBuf::from(path);
        let missing = || {
            let what = format!("ABIDE_CONFIG names {}, and there is no such file", path.display());
            Failure::new(Exit::Usage, "bad_config", what)
        };
        let file = read(&path, "ABIDE_CONFIG", Whose::User)?.ok_or_else(missing)?;
        return match &file.unreadable {
            Some(why) => Err(bad(format!("ABIDE_CONFIG names {}, which cannot be read: {why}", file.shown))),
            None => Ok(vec![file]),
        };
    }
    let mut files = Vec::new();
    files.extend(read(&folder.join(PROJECT), "this folder", Whose::Folder)?);
    if let Some(user) = of_user(env) {
        files.extend(read(&user, "the user", Whose::User)?);
    }
    Ok(files)
}

/// Where the user's own file is.
pub(super) fn of_user(env: Environment<'_>) -> Option<PathBuf> {
    let home = |under: &str| env("HOME").map(|home| Path::new(&home).join(under));
    let folder = env("XDG_CONFIG_HOME").map(PathBuf::from).or_else(|| home(".config"));
    folder.map(|folder| folder.join("abide/config.toml"))
}

/// The profile that is meant: the first of that name. Without one of the name `default` there is none, unless one is named.
/// Whoever names one that both files have may mean either, and one of them may be a stranger's.
pub(super) fn choose(files: &[File], named: Option<&Said>, env: Environment<'_>) -> Result<Option<Profile>, Failure> {
    let name = named.map_or(DEFAULT, |said| &said.value);
    let having: Vec<&File> = files.iter().filter(|file| file.profiles.contains_key(name)).collect();
    if let (Some(said), [one, other, ..]) = (named, having.as_slice()) {
        let what =
            format!("{}: {} and {} both have a profile {name:?}: which is meant?", said.from, one.shown, other.shown);
        return Err(Failure::usage("two_profiles", what).hint("rename one of the two"));
    }
    if let Some(file) = having.first() {
        return file.profile(name, env).map(Some);
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

impl File {
    /// A profile that it has, with paths as they are meant.
    fn profile(&self, name: &str, env: Environment<'_>) -> Result<Profile, Failure> {
        let mut values = self.profiles[name].clone();
        for (key, text) in &mut values {
            if *key == "token_file" && self.whose == Whose::Folder {
                *text = self.inside(name, text, env)?;
            } else if ["token_file", "ca_file"].contains(key) {
                *text = beside(&self.path, text, env);
            }
        }
        Ok(Profile { name: name.into(), file: self.shown.clone(), whose: self.whose, values })
    }

    /// A path that stays in the file's folder: whoever made the folder must not have another file sent to a server of
    /// theirs.
    fn inside(&self, name: &str, text: &str, env: Environment<'_>) -> Result<String, Failure> {
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let path = folder.join(text);
        let plain = |part| matches!(part, Component::Normal(_) | Component::CurDir);
        let stays = !text.starts_with('~') && Path::new(text).components().all(plain);
        // One that is not there is missed when it is needed.
        let real = path.canonicalize().unwrap_or_else(|_| std::path::absolute(&path).unwrap_or(path));
        let led_out = real.exists() && folder.canonicalize().is_ok_and(|folder| !real.starts_with(folder));
        if stays && !led_out {
            return Ok(real.display().to_string());
        }
        let what =
            format!("{}: profile.{name}.token_file: expected a file in the folder of {0}, found {text:?}", self.shown);
        let own = of_user(env).map_or("your own config.toml".into(), |path| path.display().to_string());
        Err(bad(what)
            .hint(format!("the folder may be somebody else's, who would be sent the file: put the profile into {own}")))
    }
}

fn read(path: &Path, from: &'static str, whose: Whose) -> Result<Option<File>, Failure> {
    let shown = path.display().to_string();
    let mut file = File {
        path: path.into(),
        shown,
        from,
        whose,
        unreadable: None,
        profiles: BTreeMap::new(),
        serve: BTreeMap::new(),
    };
    let shown = &file.shown;
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            file.unreadable = Some(error.to_string());
            return Ok(Some(file));
        }
        Err(error) => return Err(bad(format!("{shown} cannot be read: {error}"))),
    };
    let table: Table = text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        bad(format!("{shown}, line {line}: {}", error.message()))
    })?;
    for (key, value) in &table {
        if let ("serve", Value::Table(table)) = (key.as_str(), value) {
            file.serve = serve::values(shown, table)?;
            continue;
        }
        if key != "profile" {
            return Err(unknown(shown, key, &["profile", "serve"]));
        }
        let Value::Table(named) = value else {
            return Err(bad(format!("{shown}: expected [profile.NAME], found profile = …")));
        };
        for (name, profile) in named {
            let Value::Table(profile) = profile else {
                return Err(bad(format!("{shown}: expected [profile.{name}], found profile.{name} = …")));
            };
            file.profiles.insert(name.clone(), values(shown, name, profile)?);
        }
    }
    Ok(Some(file))
}

fn values(shown: &str, name: &str, profile: &Table) -> Result<BTreeMap<&'static str, String>, Failure> {
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
        values.insert(known, text.clone());
    }
    Ok(values)
}

/// A path as it is meant in a file: from where the file is, or from the user's home.
pub(super) fn beside(file: &Path, text: &str, env: Environment<'_>) -> String {
    let home = env("HOME").filter(|_| text.starts_with("~/"));
    let path = match home {
        Some(home) => Path::new(&home).join(&text[2..]),
        None => file.parent().unwrap_or(Path::new("")).join(text),
    };
    std::path::absolute(&path).unwrap_or(path).display().to_string()
}

pub(super) fn bad(what: String) -> Failure {
    Failure::usage("bad_config", what)
}

pub(super) fn unknown(shown: &str, key: &str, known: &[&str]) -> Failure {
    let failure = Failure::usage("unknown_key", format!("{shown}: there is no key {key}"));
    let last = key.rsplit('.').next().unwrap_or(key);
    match nearest(last, known.iter().copied()) {
        Some(near) => failure.hint(format!("did you mean {near}?")),
        None => failure.hint(format!("there is {}", known.join(", "))),
    }
}
