//! The table `[serve]` of configuration files: what `abide serve` goes by where neither an option nor a variable says
//! otherwise. A folder may be somebody else's: its file opens no door.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, Command};
use toml::{Table, Value};

use super::file::{File, Whose, bad, beside, of_user, unknown};
use super::{Environment, Said, Shown};
use crate::commands::serve::Serve;
use crate::failure::Failure;

/// What can be said, by the names of the options.
pub(super) const KEYS: [&str; 18] = [
    "audit_keep",
    "behind_tls",
    "drain",
    "first_token_file",
    "listen",
    "log",
    "log_level",
    "max_body",
    "max_connections",
    "max_rate",
    "max_wait",
    "node",
    "node_advertise",
    "node_listen",
    "otlp",
    "otlp_service",
    "tls_cert",
    "tls_key",
];

/// What a file of a folder may say: nothing by which others get in, or get to know something. It may say where on this
/// machine to listen.
const HARMLESS: [&str; 8] =
    ["drain", "log", "log_level", "max_body", "max_connections", "max_rate", "max_wait", "otlp_service"];

/// What is a path, from where the file is.
const PATHS: [&str; 3] = ["first_token_file", "tls_cert", "tls_key"];

/// What files say of a server, and which.
pub(crate) type Told = BTreeMap<&'static str, Said>;

/// The values of a table.
pub(super) fn values(shown: &str, table: &Table) -> Result<BTreeMap<&'static str, String>, Failure> {
    let mut values = BTreeMap::new();
    for (key, value) in table {
        let Some(known) = KEYS.into_iter().find(|known| known == key) else {
            return Err(unknown(shown, &format!("serve.{key}"), &KEYS));
        };
        let text = match value {
            Value::String(text) => text.clone(),
            Value::Integer(number) => number.to_string(),
            Value::Boolean(yes) => yes.to_string(),
            Value::Float(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => {
                let found = value.type_str();
                return Err(bad(format!("{shown}: serve.{key}: expected text or a number, found {found}")));
            }
        };
        values.insert(known, text);
    }
    Ok(values)
}

/// What the files say together: the first that says something of a key decides it.
pub(super) fn of_files(files: &[File], env: Environment<'_>) -> Result<Told, Failure> {
    let mut told = Told::new();
    for file in files {
        for (key, text) in &file.serve {
            if file.whose == Whose::Folder {
                harmless(file, key, text, env)?;
            }
            let value = if PATHS.contains(key) { beside(&file.path, text, env) } else { text.clone() };
            let from = format!("serve of {}", file.shown);
            told.entry(key).or_insert(Said { value, from });
        }
    }
    Ok(told)
}

fn harmless(file: &File, key: &str, text: &str, env: Environment<'_>) -> Result<(), Failure> {
    let loopback = || text.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback());
    if HARMLESS.contains(&key) || (key == "listen" && loopback()) {
        return Ok(());
    }
    let own = of_user(env).map_or("your own config.toml".into(), |path| path.display().to_string());
    let what = match key {
        "listen" => format!("{}: serve.listen: expected an address of the loopback, found {text:?}", file.shown),
        _ => format!("{}: serve.{key}: the file of a folder does not decide this", file.shown),
    };
    Err(bad(what)
        .hint(format!("the folder may be somebody else's: put it into {own}, or name the file by ABIDE_CONFIG")))
}

/// The options of a server, with what files say in place of the defaults: so that variables and options go before it.
pub(crate) fn with_told(command: Command, told: &Told) -> Command {
    told.iter().fold(command, |command, (key, said)| {
        // It lives as long as the command line, which is the process.
        let value: &'static str = String::leak(said.value.clone());
        command.mut_arg(key, |arg| arg.default_value(value))
    })
}

/// Whether what files say can be meant. Looked at as if it were given on the command line, which knows best.
pub(super) fn check(told: &Told) -> Result<(), Failure> {
    for (key, said) in told {
        let option = format!("--{}={}", key.replace('_', "-"), said.value);
        let alone = Serve::augment_args(Command::new("serve")).try_get_matches_from(["serve", &option]);
        // What belongs together is looked at when all of it is known.
        if let Err(error) = alone
            && error.kind() != ErrorKind::MissingRequiredArgument
        {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            return Err(Failure::usage("bad_setting", format!("{}: {first}", said.from)));
        }
    }
    Ok(())
}

/// What holds for a server, and who said so.
pub(crate) fn shown(told: &Told) -> Result<Vec<Shown>, Failure> {
    let command = with_told(Serve::augment_args(Command::new("serve")), told);
    let variables: BTreeMap<String, String> = command
        .get_arguments()
        .filter_map(|arg| Some((arg.get_id().to_string(), arg.get_env()?.to_string_lossy().into_owned())))
        .collect();
    let matches = command.try_get_matches_from(["serve"]).map_err(|error| {
        let text = error.to_string();
        Failure::usage("bad_setting", text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned())
    })?;
    let row = |key: &&'static str| {
        let raw = matches.get_raw(key).and_then(|mut values| values.next().map(OsString::from));
        let value = raw.map(|raw| raw.to_string_lossy().into_owned());
        let from = match matches.value_source(key) {
            Some(ValueSource::EnvVariable) => variables.get(*key).cloned().unwrap_or_default(),
            _ => told.get(*key).map_or("default".into(), |said| said.from.clone()),
        };
        // The URL of a collector may have a password in it.
        let value = if *key == "otlp" { value.map(|_| "set".to_owned()) } else { value };
        Shown { key: named(key), value, from }
    };
    Ok(KEYS.iter().map(row).collect())
}

/// How a key is shown beside those of profiles.
fn named(key: &str) -> &'static str {
    String::leak(format!("serve.{key}"))
}
