//! What holds for a verb, and who said so: options go before the environment, that before files, and those before defaults.
//! A profile that is named on the command line counts as an option.

mod again;
mod file;
pub(crate) mod serve;
mod trust;
mod url;
mod variables;

use std::collections::BTreeMap;
use std::path::Path;

use abide_kernel::{Payload, StartSpec};
use clap::ValueEnum;

use crate::failure::Failure;
use crate::nearby::{self, Nearby};
use crate::options::{Colour, Flags, Format, Globals, STORE, TimeStyle};
use again::asks;
use file::{File, Profile, Whose};
use trust::Trust;
use url::{check_url, shown_url};
use variables::store_in;

pub(crate) use variables::strange;

/// What is decided here.
pub(crate) const KEYS: [&str; 8] = ["store", "url", "namespace", "token_file", "ca_file", "output", "time", "color"];

/// What holds, and for each value who said so.
pub(crate) struct Settings {
    pub(crate) globals: Globals,
    pub(crate) shown: Vec<Shown>,
    /// What files say of a server.
    pub(crate) serve: serve::Told,
    /// What whoever gives the command should know of it.
    pub(crate) remarks: Vec<String>,
}

/// A value as it may be shown: without secrets.
pub(crate) struct Shown {
    pub(crate) key: &'static str,
    pub(crate) value: Option<String>,
    pub(crate) from: String,
}

/// A value, and who said it.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) value: String,
    pub(crate) from: String,
}

/// What one place says.
#[derive(Clone, Debug, Default)]
struct Layer(BTreeMap<&'static str, Said>);

impl Layer {
    fn say(&mut self, key: &'static str, value: Option<String>, from: impl Into<String>) {
        if let Some(value) = value {
            self.0.insert(key, Said { value, from: from.into() });
        }
    }

    fn get(&self, key: &str) -> Option<&Said> {
        self.0.get(key)
    }
}

/// A variable of the environment; one that is empty is as good as none.
pub(crate) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

impl Settings {
    /// Hears everybody, in a folder.
    pub(crate) fn resolve(flags: &Flags, env: Environment<'_>, folder: &Path) -> Result<Self, Failure> {
        let named = flags.profile.clone().map(|name| Said { value: name, from: "--profile".into() });
        let by_flag = named.is_some();
        let named = named.or_else(|| variable(env, "ABIDE_PROFILE"));
        let files = file::read_all(env, folder)?;
        let profile = file::choose(&files, named.as_ref(), env)?;
        let told = profile.as_ref().map(of_profile).unwrap_or_default();
        let mut layers = vec![of_flags(flags)];
        let at = if by_flag { 1 } else { 2 };
        layers.push(of_environment(env));
        layers.insert(at, told);
        // From here on it is what is there, and nobody named it for us.
        let named = layers.len();
        layers.push(of_nearby(folder));
        layers.push(of_others(env));
        layers.push(of_kept(folder));
        let (target, layer) = target(&layers)?;
        let mut trust = if layer == named { Trust::default() } else { Trust::of(&layers, layer, at)? };
        if let (Some(profile), Some(Target::Server(url))) = (&profile, &target)
            && layer == at
            && profile.whose == Whose::Folder
        {
            trust = trust.withheld(url, env);
        }
        let first = |key: &str| layers.iter().find_map(|layer| layer.get(key)).cloned();
        first("namespace").as_ref().map(check_namespace).transpose()?;
        let globals = Globals {
            store: match &target {
                Some(Target::Store(said)) => said.value.clone(),
                Some(Target::Server(_)) if layer == named => layers[named].0["beside"].value.clone(),
                _ => STORE.into(),
            },
            store_named: layer < named && matches!(target, Some(Target::Store(_))),
            server: match &target {
                Some(Target::Server(said)) => {
                    check_url(said)?;
                    Some(trust.asked(said))
                }
                _ => None,
            },
            output: word(first("output").as_ref(), "output")?.unwrap_or(Format::Text),
            time: word(first("time").as_ref(), "time")?,
            color: word(first("color").as_ref(), "color")?.unwrap_or(Colour::Auto),
            namespace: first("namespace").map(|said| said.value),
            asks: asks(flags),
        };
        let mut shown = vec![show_target(target.as_ref())];
        if globals.server.is_some() {
            shown.extend(trust.shown());
        }
        let usual = [("namespace", None), ("output", Some("text")), ("time", None), ("color", Some("auto"))];
        for (key, default) in usual {
            let (value, from) = match first(key) {
                Some(said) => (Some(said.value), said.from),
                None => (default.map(str::to_owned), "default".into()),
            };
            shown.push(Shown { key, value, from });
        }
        let (name, from) = profile.map_or((None, String::new()), |profile| (Some(profile.name), profile.file));
        shown.push(Shown { key: "profile", value: name, from });
        shown.extend(files.iter().map(show_file));
        let serve = serve::of_files(&files, env)?;
        serve::check(&serve)?;
        Ok(Self { globals, shown, serve, remarks: files.iter().filter_map(passed_over).collect() })
    }
}

fn show_file(file: &File) -> Shown {
    let from = match &file.unreadable {
        Some(why) => format!("{}, unreadable: {why}", file.from),
        None => file.from.into(),
    };
    Shown { key: "file", value: Some(file.shown.clone()), from }
}

fn passed_over(file: &File) -> Option<String> {
    file.unreadable.as_ref().map(|why| format!("{} is passed over, it cannot be read: {why}", file.shown))
}

/// Who is asked.
enum Target {
    Store(Said),
    Server(Said),
}

/// Whom the first layer names that names anybody, and which layer that is.
fn target(layers: &[Layer]) -> Result<(Option<Target>, usize), Failure> {
    for (index, layer) in layers.iter().enumerate() {
        let store = match (layer.get("store"), layer.get("store_file")) {
            (Some(store), Some(file)) => {
                let what = format!("{} and {} both name a store: which is meant?", store.from, file.from);
                return Err(Failure::usage("two_places", what).hint("give one of the two"));
            }
            (Some(store), None) => Some(store.clone()),
            (None, Some(file)) if layer.get("url").is_some() => Some(file.clone()),
            (None, Some(file)) => store_in(file)?,
            (None, None) => None,
        };
        match (store, layer.get("url")) {
            (Some(store), Some(url)) => {
                let what = format!("{} names a store and {} a server: which is meant?", store.from, url.from);
                return Err(Failure::usage("two_places", what).hint("give one of the two"));
            }
            (Some(store), None) => return Ok((Some(Target::Store(store)), index)),
            (None, Some(url)) => return Ok((Some(Target::Server(url.clone())), index)),
            (None, None) => {}
        }
    }
    Ok((None, layers.len()))
}

/// A namespace is a name, and a part of paths: there, `.` and `..` would mean another one.
fn check_namespace(said: &Said) -> Result<(), Failure> {
    let mut spec = StartSpec::new("any", Payload::null());
    spec.namespace = said.value.as_str().into();
    if let Err(refusal) = spec.validate() {
        let text = refusal.to_string();
        let found = text.strip_prefix("namespace: ").unwrap_or(&text);
        return Err(Failure::usage(refusal.code(), format!("{}: {found}", said.from)));
    }
    if [".", ".."].contains(&&*said.value) {
        let what = format!("{}: expected the name of a namespace, found {:?}", said.from, said.value);
        return Err(Failure::usage("invalid", what).hint("paths give . and .. a meaning of their own"));
    }
    Ok(())
}

fn show_target(target: Option<&Target>) -> Shown {
    match target {
        None => Shown { key: "store", value: Some(STORE.into()), from: "default".into() },
        Some(Target::Store(said)) => Shown { key: "store", value: Some(shown_url(said)), from: said.from.clone() },
        Some(Target::Server(said)) => Shown { key: "url", value: Some(shown_url(said)), from: said.from.clone() },
    }
}

/// A word of a closed list.
fn word<T: ValueEnum>(said: Option<&Said>, key: &str) -> Result<Option<T>, Failure> {
    let Some(said) = said else { return Ok(None) };
    T::from_str(&said.value, false).map(Some).map_err(|_| {
        let all = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let all: Vec<String> = all.map(|word| word.get_name().to_owned()).collect();
        let what = format!("{}: {key} is one of {}, found {:?}", said.from, all.join(", "), said.value);
        let failure = Failure::usage("bad_setting", what);
        match nearest(&said.value, all.iter().map(String::as_str)) {
            Some(near) => failure.hint(format!("did you mean {near}?")),
            None => failure,
        }
    })
}

/// The word that was most likely meant.
pub(crate) fn nearest<'a>(found: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = words.map(|word| (strsim::jaro_winkler(found, word), word)).filter(|(near, _)| *near > 0.7);
    near.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, word)| word)
}

fn of_flags(flags: &Flags) -> Layer {
    let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
    let mut layer = Layer::default();
    layer.say("store", flags.store.clone(), "--store");
    layer.say("url", flags.url.clone(), "--url");
    layer.say("token_file", flags.token_file.as_ref().map(|path| path.display().to_string()), "--token-file");
    layer.say("ca_file", flags.ca_file.as_ref().map(|path| path.display().to_string()), "--ca-file");
    layer.say("namespace", flags.namespace.clone(), "--namespace");
    layer.say("output", flags.json.then(|| "json".into()), "--json");
    layer.say("output", flags.output.and_then(|format| name(format.to_possible_value())), "--output");
    layer.say("time", flags.time.and_then(|style: TimeStyle| name(style.to_possible_value())), "--time");
    layer.say("color", flags.color.and_then(|colour| name(colour.to_possible_value())), "--color");
    layer
}

fn variable(env: Environment<'_>, name: &str) -> Option<Said> {
    env(name).map(|value| Said { value, from: name.to_owned() })
}

fn of_environment(env: Environment<'_>) -> Layer {
    let mut layer = Layer::default();
    let names = [
        ("store", "ABIDE_STORE"),
        ("store_file", "ABIDE_STORE_FILE"),
        ("url", "ABIDE_URL"),
        ("token", "ABIDE_TOKEN"),
        ("token_file", "ABIDE_TOKEN_FILE"),
        ("ca_file", "ABIDE_CA_FILE"),
        ("namespace", "ABIDE_NAMESPACE"),
        ("output", "ABIDE_OUTPUT"),
        ("time", "ABIDE_TIME"),
        ("color", "ABIDE_COLOR"),
    ];
    for (key, name) in names {
        layer.0.extend(variable(env, name).map(|said| (key, said)));
    }
    layer
}

fn of_profile(profile: &Profile) -> Layer {
    let mut layer = Layer::default();
    for (key, value) in &profile.values {
        layer.say(key, Some(value.clone()), format!("profile {} of {}", profile.name, profile.file));
    }
    layer
}

/// What is there for other programs as well: it is the last to be heard, and only if it names a store of ours.
fn of_others(env: Environment<'_>) -> Layer {
    let mut layer = Layer::default();
    layer.say("store", env("DATABASE_URL").filter(|url| variables::is_ours(url)), "DATABASE_URL");
    // Others who have both go by the value.
    let file = env(variables::OTHERS_FILE).filter(|_| layer.get("store").is_none());
    layer.say("store_file", file, variables::OTHERS_FILE);
    layer
}

/// The server that runs in the folder; it needs no token, and is sent none. Its store can be looked at beside it.
fn of_nearby(folder: &Path) -> Layer {
    let mut layer = Layer::default();
    if let Some(there) = Nearby::find(folder) {
        layer.say("url", Some(there.url), nearby::FROM);
        layer.say("beside", Some(format!("sqlite:{}", there.store.display())), nearby::FROM);
    }
    layer
}

/// The store that it kept, where there is none of the usual name.
fn of_kept(folder: &Path) -> Layer {
    let (kept, usual) = (nearby::kept(folder), folder.join("abide.db"));
    let mut layer = Layer::default();
    let url = (kept.exists() && !usual.exists()).then(|| format!("sqlite:{}", kept.display()));
    layer.say("store", url, nearby::KEPT);
    layer
}

#[cfg(test)]
mod tests {
    use abide_store::Durability;
    use abide_store::sqlite::SqliteStore;

    use super::*;
    use crate::options::Secret;

    pub(super) fn resolved(flags: &Flags, env: &[(&str, &str)]) -> Result<Settings, Failure> {
        resolved_in(Path::new("nowhere"), flags, env)
    }

    pub(super) fn resolved_in(folder: &Path, flags: &Flags, env: &[(&str, &str)]) -> Result<Settings, Failure> {
        let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Settings::resolve(flags, &env, folder)
    }

    pub(super) fn folder(text: &str) -> (tempfile::TempDir, String) {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("abide.toml");
        std::fs::write(&path, text).unwrap();
        let path = path.display().to_string();
        (folder, path)
    }

    #[test]
    fn options_go_before_the_environment_and_that_before_files() {
        let (_folder, path) =
            folder("[profile.default]\nstore = \"sqlite:file.db\"\nnamespace = \"file\"\ncolor = \"never\"\n");
        let none = Flags::default();
        assert_eq!(resolved(&none, &[("ABIDE_CONFIG", &path)]).unwrap().globals.store, "sqlite:file.db");
        let env = [("ABIDE_CONFIG", &*path), ("ABIDE_URL", "http://h:1"), ("ABIDE_NAMESPACE", "env")];
        let settings = resolved(&none, &env).unwrap().globals;
        assert_eq!(settings.server.unwrap().url, "http://h:1");
        assert_eq!((settings.namespace.as_deref(), settings.color), (Some("env"), Colour::Never));
        let flags = Flags { store: Some("sqlite:flag.db".into()), ..Flags::default() };
        let settings = resolved(&flags, &env).unwrap().globals;
        assert!(settings.server.is_none() && settings.store == "sqlite:flag.db");
        // One that is named on the command line is an option.
        let flags = Flags { profile: Some("default".into()), ..Flags::default() };
        assert_eq!(resolved(&flags, &env).unwrap().globals.store, "sqlite:file.db");
    }

    #[test]
    fn what_belongs_to_other_programs_is_heard_last() {
        let others = |url| resolved(&Flags::default(), &[("DATABASE_URL", url)]).unwrap().globals.store;
        assert_eq!(others("postgres://h/d"), "postgres://h/d");
        assert_eq!(others("mysql://h/d"), STORE);
        let (_folder, path) = folder("[profile.default]\nurl = \"http://h:1\"\n");
        let env = [("ABIDE_CONFIG", &*path), ("DATABASE_URL", "postgres://h/d")];
        assert!(resolved(&Flags::default(), &env).unwrap().globals.server.is_some());
    }

    /// A file in a folder that somebody else wrote must not get at the token of another server.
    #[test]
    fn the_token_of_a_profile_goes_to_its_own_server_only() {
        let (_folder, path) = folder("[profile.default]\nurl = \"http://h:1\"\ntoken_file = \"secret\"\n");
        let token = |flags: &Flags, env: &[(&str, &str)]| resolved(flags, env).unwrap().globals.server.unwrap().token;
        let env = [("ABIDE_CONFIG", &*path)];
        assert!(matches!(token(&Flags::default(), &env), Some(Secret::File(path)) if path.is_absolute()));
        let flags = Flags { url: Some("http://evil:1".into()), ..Flags::default() };
        assert!(token(&flags, &env).is_none());
    }

    /// Who names a profile means one; a folder's file has nothing to say about the user's.
    #[test]
    fn a_profile_that_is_named_is_of_one_file() {
        let (folder, home) = (tempfile::TempDir::new().unwrap(), tempfile::TempDir::new().unwrap());
        let config = home.path().join("abide/config.toml");
        std::fs::create_dir_all(config.parent().unwrap()).unwrap();
        std::fs::write(&config, "[profile.shop]\nurl = \"http://shop:1\"\ntoken_file = \"shop.token\"\n").unwrap();
        std::fs::write(folder.path().join("abide.toml"), "[profile.shop]\nurl = \"http://evil:1\"\n").unwrap();
        let config_home = home.path().display().to_string();
        let env = [("XDG_CONFIG_HOME", config_home.as_str()), ("ABIDE_PROFILE", "shop")];
        let failure = resolved_in(folder.path(), &Flags::default(), &env).err().expect("either may be meant");
        assert!(
            failure.code == "two_profiles" && failure.what.contains(&*config.to_string_lossy()),
            "{}",
            failure.what
        );
    }

    /// A server that runs in the folder is meant there unless somebody names another, and only as long as it runs. It is sent no
    /// token: the folder may be somebody else's.
    #[test]
    fn the_server_of_a_folder_is_meant_in_it() {
        let folder = tempfile::TempDir::new().unwrap();
        let none = Flags::default();
        let env = [("ABIDE_TOKEN", "abide_secret"), ("DATABASE_URL", "postgres://h/d")];
        let kept = nearby::kept(folder.path());
        std::fs::create_dir_all(kept.parent().unwrap()).unwrap();
        let store = SqliteStore::open(&kept, Durability::Relaxed, 1, "dev").unwrap();
        let url = "http://127.0.0.1:1";
        let note = Nearby::announce(folder.path(), url, Path::new(".abide/abide.db")).unwrap();
        let settings = resolved_in(folder.path(), &none, &env).unwrap();
        let asked = settings.globals.server.unwrap();
        assert!(asked.url == url && asked.from == nearby::FROM && asked.token.is_none(), "{asked:?}");
        assert!(settings.globals.store.ends_with("abide.db") && !settings.globals.store_named);
        let flags = Flags { store: Some("sqlite:abide.db".into()), ..Flags::default() };
        let settings = resolved_in(folder.path(), &flags, &env).unwrap().globals;
        assert!(settings.server.is_none() && settings.store == STORE && settings.store_named);
        // One that was killed leaves its note.
        drop(store);
        let settings = resolved_in(folder.path(), &none, &[]).unwrap().globals;
        assert!(settings.server.is_none() && settings.store == format!("sqlite:{}", kept.display()), "{settings:?}");
        drop(note);
        std::fs::write(folder.path().join("abide.db"), "").unwrap();
        assert_eq!(resolved_in(folder.path(), &none, &[]).unwrap().globals.store, STORE);
        // Nobody is led to another machine.
        let _store = SqliteStore::open(&kept, Durability::Relaxed, 1, "dev").unwrap();
        let _note = Nearby::announce(folder.path(), "http://192.0.2.1:80", Path::new(".abide/abide.db")).unwrap();
        assert!(resolved_in(folder.path(), &none, &[]).unwrap().globals.server.is_none());
    }

    #[test]
    fn nothing_that_is_shown_is_a_secret() {
        let env = [("ABIDE_URL", "http://h:1"), ("ABIDE_TOKEN", "abide_secret")];
        let settings = resolved(&Flags::default(), &env).unwrap();
        let all: Vec<String> = settings.shown.iter().filter_map(|shown| shown.value.clone()).collect();
        assert!(all.contains(&"set".into()) && !all.concat().contains("secret"), "{all:?}");
        assert!(!format!("{:?}", settings.globals).contains("secret"));
        let settings = resolved(&Flags::default(), &[("ABIDE_STORE", "postgres://ada:hush@h/d")]).unwrap();
        assert_eq!(settings.shown[0].value.as_deref(), Some("postgres://h/d"));
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let code =
            |env: &[(&str, &str)]| resolved(&Flags::default(), env).err().map(|failure| failure.code.to_string());
        assert_eq!(code(&[("ABIDE_URL", "http://h:1"), ("ABIDE_STORE", "sqlite:a")]).as_deref(), Some("two_places"));
        assert_eq!(code(&[("ABIDE_TOKEN", "a"), ("ABIDE_TOKEN_FILE", "b")]).as_deref(), Some("two_tokens"));
        for url in ["h:1", "http://", "http://u:p@h", "http://h/v1", "ftp://h"] {
            assert_eq!(code(&[("ABIDE_URL", url)]).as_deref(), Some("bad_url"), "{url}");
        }
        assert_eq!(code(&[("ABIDE_OUTPUT", "yaml")]).as_deref(), Some("bad_setting"));
    }
}
