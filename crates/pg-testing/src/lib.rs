//! A real PostgreSQL server for as long as a test needs it: made from nothing, reached by a socket in its own folder,
//! gone without a trace. It uses the server that the machine has installed and never one that runs already.
//!
//! ```no_run
//! let server = abide_pg_testing::Server::start();
//! println!("{}", server.url());
//! ```

mod watch;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use watch::Watch;

/// How long a server may take to come up or to go down.
const PATIENCE: Duration = Duration::from_secs(60);
/// The user and the database that every new server has.
const NAME: &str = "postgres";

/// The port a server has unless it listens on another.
const PORT: u16 = 5_432;

/// Settings with which a server is quick, because what it holds need not outlive the machine's power. It outlives the
/// server itself, also when that is killed.
pub const FAST: &[(&str, &str)] = &[("fsync", "off"), ("full_page_writes", "off")];

/// A server of its own. Dropped, or with the process that started it, it is stopped and removed.
#[derive(Debug)]
pub struct Server {
    folder: PathBuf,
    port: u16,
    /// Whether it is reached by TCP as well.
    listens: bool,
    child: Option<Child>,
    user: Option<User>,
    /// Removes everything when this process is gone. It ends by itself when this is dropped.
    _watch: Watch,
}

#[derive(Clone, Copy, Debug)]
struct User {
    uid: u32,
    gid: u32,
}

impl Server {
    /// A server with the settings it comes with.
    ///
    /// # Panics
    /// When there is no PostgreSQL on this machine, or it does not start.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with settings of its own, such as [`FAST`].
    ///
    /// # Panics
    /// When there is no PostgreSQL on this machine, or it does not start.
    #[must_use]
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        let user = (own_uid() == 0).then(unprivileged);
        let folder = new_folder();
        own(&folder, user);
        let data = folder.join("data");
        let mut initdb = command("initdb", user);
        initdb.args(["--username", NAME, "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync", "-D"]);
        let made = initdb.arg(&data).output().expect("initdb starts");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let mut text =
            format!("listen_addresses = ''\nunix_socket_directories = '{}'\nmax_connections = 200\n", folder.display());
        for (name, value) in settings {
            text.push_str(&format!("{name} = '{value}'\n"));
        }
        let file = data.join("postgresql.auto.conf");
        fs::write(&file, text).expect("the settings are written");
        own(&file, user);
        let watch = Watch::begin(&folder);
        let mut server = Self { folder, port: PORT, listens: false, child: None, user, _watch: watch };
        server.go();
        server
    }

    /// Where the server is: by its socket, as its owner, in the database it comes with.
    #[must_use]
    pub fn url(&self) -> String {
        let mut host = String::new();
        for byte in self.folder.to_str().expect("the folder has a plain name").bytes() {
            match byte {
                b'/' => host.push_str("%2F"),
                other => host.push(char::from(other)),
            }
        }
        format!("postgres://{NAME}@{host}:{}/{NAME}", self.port)
    }

    /// The same by TCP on this machine, which begins with this call: the server is restarted. For TLS, which sockets do
    /// not have.
    ///
    /// # Panics
    /// When the server does not come up again.
    pub fn listen(&mut self) -> String {
        let port = free_port();
        (self.port, self.listens) = (port, true);
        self.restart();
        format!("postgres://{NAME}@localhost:{port}/{NAME}")
    }

    /// Its folder: certificates and the like may be put here. The data are in `data`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Gives a file to the user that the server runs as.
    pub fn give(&self, file: &Path) {
        own(file, self.user);
    }

    /// Runs statements with `psql` and answers with what it printed, unaligned.
    ///
    /// # Panics
    /// When a statement fails.
    pub fn psql(&self, sql: &str) -> String {
        let done = Command::new(bin("psql"))
            .args([
                "-X",
                "-q",
                "-At",
                "-v",
                "ON_ERROR_STOP=1",
                "-U",
                NAME,
                "-d",
                NAME,
                "-p",
                &self.port.to_string(),
                "-c",
                sql,
                "-h",
            ])
            .arg(&self.folder)
            .output()
            .expect("psql starts");
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim_end().to_owned()
    }

    /// A session with `psql` that stays open.
    ///
    /// # Panics
    /// When `psql` does not start.
    #[must_use]
    pub fn session(&self) -> Session {
        let mut psql = Command::new(bin("psql"));
        psql.args(["-X", "-q", "-At", "-U", NAME, "-d", NAME, "-p", &self.port.to_string(), "-h"]).arg(&self.folder);
        Session(psql.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("psql starts"))
    }

    /// Stops in good order; connections are ended.
    ///
    /// # Panics
    /// When the server does not go down.
    pub fn stop(&mut self) {
        self.end(|child| send("-INT", &[child.id().to_string()]));
    }

    /// Kills every process of the server at once, as if each had crashed.
    ///
    /// # Panics
    /// When the server does not go down.
    pub fn kill(&mut self) {
        self.end(|child| {
            let first = child.id();
            // Each of them is the leader of a group of its own, and would go on for a moment, and write.
            let rest = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).unwrap_or_default();
            let rest = rest.split_whitespace().map(str::to_owned);
            let all: Vec<String> = [first.to_string()].into_iter().chain(rest).collect();
            send("-KILL", &all);
        });
    }

    /// Stops if it runs, and starts anew on the same data.
    ///
    /// # Panics
    /// When the server does not come up again.
    pub fn restart(&mut self) {
        self.stop();
        self.go();
    }

    fn go(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.log()).expect("the log can be written");
        let mut postgres = command("postgres", self.user);
        postgres.arg("-D").arg(self.folder.join("data"));
        if self.listens {
            postgres.args(["-c", "listen_addresses=localhost", "-c", &format!("port={}", self.port)]);
        }
        // Its own group: what kills the test's group must leave it to the watch, which also removes the folder.
        postgres.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(postgres.spawn().expect("the server starts"));
        let since = Instant::now();
        while !self.is_ready() {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            assert!(ended.is_none() && since.elapsed() < PATIENCE, "the server does not come up:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The postmaster writes this word when it accepts connections.
    fn is_ready(&self) -> bool {
        let file = fs::read_to_string(self.folder.join("data/postmaster.pid")).unwrap_or_default();
        let own = self.child.as_ref().map(|child| child.id().to_string());
        file.lines().next().map(str::to_owned) == own && file.lines().nth(7).is_some_and(|word| word.trim() == "ready")
    }

    fn end(&mut self, by: impl FnOnce(&Child)) {
        let Some(mut child) = self.child.take() else { return };
        by(&child);
        let since = Instant::now();
        while child.try_wait().expect("the server can be waited for").is_none() {
            assert!(since.elapsed() < PATIENCE, "the server does not go down:\n{}", self.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// What the server said, for whoever wants to know why.
    #[must_use]
    pub fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // At once, without a checkpoint: what it holds is removed.
        if let Some(mut child) = self.child.take() {
            send("-QUIT", &[child.id().to_string()]);
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn send(signal: &str, to: &[String]) {
    let _ = Command::new("kill").arg(signal).args(to).stderr(Stdio::null()).status();
}

/// A session that stays open until it is dropped; then it ends without a commit.
#[derive(Debug)]
pub struct Session(Child);

impl Session {
    /// Sends statements, and does not wait for their answers.
    ///
    /// # Panics
    /// When the session is over.
    pub fn send(&mut self, sql: &str) {
        let input = self.0.stdin.as_mut().expect("the session has an input");
        writeln!(input, "{sql}").and_then(|()| input.flush()).expect("the session is there");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether this machine has a PostgreSQL server.
#[must_use]
pub fn is_installed() -> bool {
    bin_folder().is_some()
}

/// The folder of a server's programs: Debian keeps them apart from the path, by version.
fn bin_folder() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    versions.sort();
    folders.extend(versions.into_iter().rev());
    folders.into_iter().find(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file())
}

fn bin(program: &str) -> PathBuf {
    let folder = bin_folder().expect("a PostgreSQL server is installed; on Debian: apt-get install postgresql");
    let found = folder.join(program);
    // Clients may be kept apart from the server.
    if found.is_file() { found } else { PathBuf::from(program) }
}

/// A program of the server, as a user that may run it.
fn command(program: &str, user: Option<User>) -> Command {
    let mut command = Command::new(bin(program));
    // The folder of the test may not be one that the server's user can see.
    command.current_dir("/");
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    command
}

fn own_uid() -> u32 {
    number_of(&["-u"])
}

/// The server refuses to run as root: it runs as the user that its package made.
fn unprivileged() -> User {
    User { uid: number_of(&["-u", NAME]), gid: number_of(&["-g", NAME]) }
}

fn number_of(arguments: &[&str]) -> u32 {
    let said = Command::new("id").args(arguments).output().expect("id starts");
    let text = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    text.parse().unwrap_or_else(|_| panic!("id {arguments:?} answers with a number, found {text:?}"))
}

fn own(path: &Path, user: Option<User>) {
    if let Some(user) = user {
        chown(path, Some(user.uid), Some(user.gid)).expect("root may give files away");
    }
}

/// A folder of its own, with a short name: a socket's path has at most 107 bytes.
fn new_folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("abide-pg-{}-{count}", std::process::id()));
        match fs::create_dir(&folder) {
            Ok(()) => return folder,
            // Left by a process of the same number.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => panic!("{} can be made: {error}", folder.display()),
        }
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    listener.local_addr().expect("it has an address").port()
}
