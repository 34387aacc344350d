//! Options that every verb understands, as they are given and as they hold once files and environment are heard.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The store that is meant when none is named.
pub(crate) const STORE: &str = "sqlite:abide.db";

/// Options of every verb, as they are given on the command line.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Flags {
    /// Where the facts are kept, like sqlite:path/to/abide.db or postgres://user@host/database; else ABIDE_STORE, the
    /// profile, abide dev in this folder, DATABASE_URL, or sqlite:abide.db
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) store: Option<String>,

    /// A server to ask in place of a store, like http://127.0.0.1:7411; else ABIDE_URL or the profile
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) url: Option<String>,

    /// A file with the token for the server; else ABIDE_TOKEN, ABIDE_TOKEN_FILE or the profile. There is no option for the
    /// token itself: others can see the options of a process
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// A file with the authority that signed the certificate of an https:// server, in PEM, or with the certificate
    /// itself if nobody else signed it; else ABIDE_CA_FILE or the profile. The authorities of the machine are
    /// believed anyway
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,

    /// The profile of abide.toml or of the user's config.toml; else ABIDE_PROFILE, or default
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,

    /// How answers are written; else ABIDE_OUTPUT, the profile, or text: a table on a terminal and tab-separated otherwise
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT")]
    pub(crate) output: Option<Format>,

    /// The same as -o json
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// How instants are written; else ABIDE_TIME, the profile, or relative on a terminal and iso otherwise
    #[arg(long, global = true, value_enum, value_name = "STYLE")]
    pub(crate) time: Option<TimeStyle>,

    /// Whether to use colour; else ABIDE_COLOR, the profile, or auto. NO_COLOR is heeded too
    #[arg(long, global = true, value_enum, value_name = "WHEN")]
    pub(crate) color: Option<Colour>,

    /// The tenant whose runs are meant; else ABIDE_NAMESPACE, the profile, or: of a store all for reading and `default` for
    /// starting, of a server `default`
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
}

/// What holds for a verb.
#[derive(Clone, Debug)]
pub(crate) struct Globals {
    /// The store, where no server is asked.
    pub(crate) store: String,
    /// Whether somebody named the store for us; else it is what is there, or would be made.
    pub(crate) store_named: bool,
    /// The server that is asked in place of a store.
    pub(crate) server: Option<Asked>,
    pub(crate) output: Format,
    pub(crate) time: Option<TimeStyle>,
    pub(crate) color: Colour,
    pub(crate) namespace: Option<String>,
    /// The options that say whom to ask, as they were given: lines to copy need them again.
    pub(crate) asks: String,
}

/// A server that is asked.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) url: String,
    /// Who named it.
    pub(crate) from: String,
    pub(crate) token: Option<Secret>,
    /// Who gave the token.
    pub(crate) token_from: Option<String>,
    /// Who has a token that is for another server, where none is sent.
    pub(crate) passed_over: Option<String>,
    /// A file of authorities that are believed beside those of the machine.
    pub(crate) ca_file: Option<PathBuf>,
}

/// Where a token is.
#[derive(Clone)]
pub(crate) enum Secret {
    /// Here.
    Text(String),
    /// In a file, which is read when it is needed.
    File(PathBuf),
    /// Not for this server: whoever would ask it with the token is refused.
    Withheld(Withheld),
}

/// Why a token is sent to nobody, and what to do.
#[derive(Clone, Debug)]
pub(crate) struct Withheld {
    pub(crate) what: String,
    pub(crate) hint: String,
}

/// A secret is shown to nobody, not even to whoever looks for a mistake of ours.
impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(…)"),
            Self::File(path) => write!(f, "File({})", path.display()),
            Self::Withheld(why) => write!(f, "{why:?}"),
        }
    }
}

/// How answers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people, and for cut and awk.
    Text,
    /// One JSON document.
    Json,
    /// One JSON document per line.
    Jsonl,
}

/// How instants are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeStyle {
    /// Seen from now, like `3m ago`.
    Relative,
    /// Like `2026-11-15T21:08:02.125Z`.
    Iso,
}

/// Whether to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Colour {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}
