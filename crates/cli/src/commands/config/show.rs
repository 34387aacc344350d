//! `abide config show`: every setting, and who said so. Secrets are not shown.

use clap::Args;
use serde_json::{Value, json};

use crate::failure::{Exit, Outcome};
use crate::options::Globals;
use crate::screen::{Cell, Screen, Tone};
use crate::settings::{Settings, Shown, serve};

/// Show every setting, and who said so.
#[derive(Debug, Args)]
#[command(after_help = "\
Options go before the environment (ABIDE_STORE, ABIDE_URL, ABIDE_TOKEN or ABIDE_TOKEN_FILE, ABIDE_CA_FILE,
ABIDE_NAMESPACE, ABIDE_OUTPUT, ABIDE_TIME, ABIDE_COLOR), that before the profile, that before abide dev in this
folder, and that before DATABASE_URL and the defaults. A profile that --profile names counts as an option. Profiles
are in abide/config.toml of the user's configuration ($XDG_CONFIG_HOME, or ~/.config) and in abide.toml of this
folder, or in the one file that ABIDE_CONFIG names. The file of the folder may be somebody else's: its token_file must
be in that folder, and the token of the environment is not sent to a server that only it names, unless that is this
machine:

  [profile.default]
  url = \"http://127.0.0.1:7411\"
  token_file = \"~/.abide-token\"
  namespace = \"shop\"

What abide serve goes by is in the table [serve], by the names of its options: max_body =
\"16MiB\" is --max-body. Of the folder's file only what opens no door is heard: limits, drain,
log, and a listen on this machine.

Examples:
  abide config show
  abide --profile shop config show --json")]
pub(crate) struct Show {}

impl Show {
    pub(super) fn perform(self, globals: &Globals, settings: &Settings) -> Outcome {
        let screen = Screen::new(globals);
        let of_server = serve::shown(&settings.serve)?;
        let settings: Vec<&Shown> = settings.shown.iter().chain(&of_server).collect();
        if !screen.is_text() {
            let written = |shown: &&Shown| json!({"key": shown.key, "value": shown.value, "from": shown.from});
            let settings: Vec<Value> = settings.iter().map(written).collect();
            screen.documents("settings", &settings)?;
            return Ok(Exit::Ok);
        }
        let row = |shown: &&Shown| {
            vec![
                Cell::toned(shown.key, Tone::Strong),
                Cell::new(shown.value.as_deref().unwrap_or("-")),
                Cell::toned(&shown.from, Tone::Faint),
            ]
        };
        screen.table(&["KEY", "VALUE", "FROM"], settings.iter().map(row).collect())?;
        Ok(Exit::Ok)
    }
}
