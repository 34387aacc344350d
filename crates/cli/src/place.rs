//! The store that a verb is about: read beside whoever holds it, or owned for a moment to change one thing.

use std::path::PathBuf;
use std::time::Duration;

use abide_kernel::shard::{Answer, Command};
use abide_kernel::{Refusal, RunId, Slot};
use abide_runtime::{Config, Engine, Snapshot};
use abide_store::sqlite::{Holder, SqliteReader, SqliteStore, open_read_only};
use abide_store::{Durability, StoreUrl};

use crate::failure::{Exit, Failure};
use crate::options::Globals;

/// How often a command whose outcome is unknown is sent again, each time with the same request.
const RETRIES_MAX: u32 = 20;
/// How many runs are named when a prefix fits several.
const CANDIDATES_SHOWN: usize = 8;

/// A store by its path.
pub(crate) struct Place {
    pub(crate) path: PathBuf,
    durability: Durability,
    namespace: Option<String>,
}

impl Place {
    pub(crate) fn of(globals: &Globals) -> Result<Self, Failure> {
        match globals.store.parse()? {
            StoreUrl::Sqlite { path, durability } => {
                Ok(Self { path, durability, namespace: globals.namespace.clone() })
            }
            StoreUrl::Postgres(url) => {
                let what = format!("{url}: this release looks at stores in files only");
                Err(Failure::usage("bad_store", what).hint("give a file: --store sqlite:abide.db"))
            }
            StoreUrl::Memory => {
                let what = "a store in memory ends with its process; there is nothing to look at from here";
                Err(Failure::usage("bad_store", what).hint("give a file: --store sqlite:abide.db"))
            }
        }
    }

    /// Who holds the store now.
    pub(crate) fn holder(&self) -> Option<Holder> {
        SqliteStore::holder(&self.path)
    }

    fn check_exists(&self) -> Result<(), Failure> {
        if self.path.exists() {
            return Ok(());
        }
        let what = format!("there is no store at {}", self.path.display());
        let hint = "give its path with --store sqlite:PATH or in ABIDE_STORE, or start an engine on it";
        Err(Failure::new(Exit::NotFound, "no_store", what).hint(hint))
    }

    pub(crate) fn reader(&self) -> Result<SqliteReader, Failure> {
        self.check_exists()?;
        Ok(open_read_only(&self.path)?)
    }

    /// The store as it is, also beside a running engine.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, Failure> {
        Ok(Snapshot::read(Box::new(self.reader()?))?)
    }

    /// The run that is meant by an id or by the beginning of one.
    pub(crate) fn find(&self, snapshot: &mut Snapshot, text: &str) -> Result<RunId, Failure> {
        let bare = text.strip_prefix("run_").unwrap_or(text).to_ascii_lowercase();
        if bare.is_empty() || bare.len() > 32 || !bare.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let shown: String = text.chars().take(80).collect();
            let what = format!("expected a run id like run_0193… or the beginning of one, found {shown:?}");
            return Err(Failure::usage("bad_id", what).hint("abide run list shows the ids"));
        }
        let found = snapshot.find(&bare, CANDIDATES_SHOWN + 1)?;
        let missing = || {
            let what = format!("there is no run {text} in {}", self.path.display());
            Failure::new(Exit::NotFound, "not_found", what).hint("abide run list shows the runs of this store")
        };
        match found.as_slice() {
            [] => Err(missing()),
            [run] if self.is_theirs(snapshot, *run) => Ok(*run),
            [_] => Err(missing()),
            several => {
                let mut hint = String::from("give more of it; these begin so:");
                for run in several.iter().take(CANDIDATES_SHOWN) {
                    hint.push_str(&format!("\n  {run}"));
                }
                if several.len() > CANDIDATES_SHOWN {
                    hint.push_str("\n  … and more");
                }
                let what = format!("{text} is the beginning of several run ids");
                Err(Failure::usage("ambiguous_id", what).hint(hint))
            }
        }
    }

    /// Whether the run is of the tenant asked for. One that cannot be read is shown as what it is.
    fn is_theirs(&self, snapshot: &mut Snapshot, run: RunId) -> bool {
        let Some(namespace) = &self.namespace else {
            return true;
        };
        match snapshot.show(run) {
            Ok(Some(stored)) => *stored.run.started.spec.namespace == **namespace,
            Ok(None) | Err(_) => true,
        }
    }

    /// The run that is meant, for a verb that changes it. Nothing is opened to write for a run that is not there.
    pub(crate) fn find_to_change(&self, text: &str) -> Result<RunId, Failure> {
        let mut snapshot = self.snapshot()?;
        self.find(&mut snapshot, text)
    }

    /// Owns a store that exists for as long as `change` takes.
    pub(crate) fn change<T>(&self, change: impl AsyncFnOnce(&Owner) -> Result<T, Failure>) -> Result<T, Failure> {
        self.check_exists()?;
        self.change_or_make(change)
    }

    /// Owns the store, or a new one, for as long as `change` takes. The engine has no workers and executes nothing.
    pub(crate) fn change_or_make<T>(
        &self,
        change: impl AsyncFnOnce(&Owner) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let name = format!("abide-cli-{}", std::process::id());
        let store = SqliteStore::open(&self.path, self.durability, 1, &name).map_err(|fault| {
            let held = self.holder().is_some();
            let mut failure = Failure::from(fault);
            if held {
                failure.code = "store_in_use";
                failure.hint = Some("reading verbs work beside it: abide run list, show, history, explain".into());
            }
            failure
        })?;
        runtime.block_on(async {
            let mut config = Config::default();
            config.node = name;
            config.pools = Vec::new();
            let owner = Owner { engine: Engine::open(Box::new(store), config)? };
            let changed = change(&owner).await;
            owner.engine.stop(Duration::from_secs(5)).await;
            changed
        })
    }
}

/// The owner of a store, for a moment.
pub(crate) struct Owner {
    pub(crate) engine: Engine,
}

impl Owner {
    /// Sends a command until its outcome is known. Sending it again is safe: it carries the same request.
    pub(crate) async fn ask(&self, slot: Slot, command: Command) -> Result<Answer, Failure> {
        let mut tries = 0;
        loop {
            match self.engine.ask(slot, command.clone()).await? {
                Answer::Refused(Refusal::Unknown) if tries < RETRIES_MAX => tries += 1,
                Answer::Refused(refusal) => return Err(refusal.into()),
                answer => return Ok(answer),
            }
        }
    }

    /// Sends a command about a run.
    pub(crate) async fn tell(&self, run: RunId, command: Command) -> Result<Answer, Failure> {
        self.ask(run.slot(), command).await
    }
}
