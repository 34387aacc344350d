//! Options that every verb understands, and what follows from them for what is shown.

use clap::{Args, ValueEnum};

/// The store that is meant when none is named.
pub(crate) const STORE: &str = "sqlite:abide.db";

/// Options of every verb.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Where the facts are kept, like sqlite:path/to/abide.db or postgres://user@host/database
    // Its value may hold a password.
    #[arg(
        long,
        global = true,
        env = "ABIDE_STORE",
        hide_env_values = true,
        default_value = STORE,
        value_name = "URL"
    )]
    pub(crate) store: String,

    /// How answers are written: text is a table on a terminal and tab-separated otherwise
    #[arg(short, long, global = true, value_enum, default_value = "text", value_name = "FORMAT")]
    pub(crate) output: Format,

    /// How instants are written; relative on a terminal and iso otherwise, unless given
    #[arg(long, global = true, value_enum, value_name = "STYLE")]
    pub(crate) time: Option<TimeStyle>,

    /// Whether to use colour; NO_COLOR is heeded too
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "WHEN")]
    pub(crate) color: Colour,

    /// The tenant whose runs are meant; without it, all for reading and `default` for starting
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
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

/// `--json`, the short way to say `-o json`, for the verbs of one noun.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct AsJson {
    /// The same as -o json
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl AsJson {
    /// The options, with `--json` taken at its word.
    pub(crate) fn applied(self, globals: &Globals) -> Globals {
        let mut globals = globals.clone();
        if self.json && globals.output == Format::Text {
            globals.output = Format::Json;
        }
        globals
    }
}
