//! Every bound of the server; those that a client must know are in the protocol.

use std::time::Duration;

use abide_protocol::limits::WAIT_MS_MAX;

/// What a server takes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The largest body of a request, in bytes.
    pub body_bytes_max: usize,
    /// The longest that a request may wait for something to happen; the protocol knows no longer waits than a minute.
    pub wait_max: Duration,
    /// The most connections at once; each stream of events holds one.
    pub connections_max: usize,
    /// The most requests of one token in a second.
    pub requests_per_second_max: u32,
    /// The longest that a connection may take to agree on TLS.
    pub handshake_max: Duration,
    /// The longest that whoever connects, or asks again, may take to say what they want.
    pub head_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes_max: 8 * 1024 * 1024,
            wait_max: Duration::from_millis(WAIT_MS_MAX),
            connections_max: 20_000,
            requests_per_second_max: 10_000,
            handshake_max: Duration::from_secs(10),
            head_max: Duration::from_secs(30),
        }
    }
}

/// What is read and thrown away of a body that is too large, so that its sender gets to read the answer.
pub(crate) const DRAINED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The most memory that is set aside for a body before it comes.
pub(crate) const BODY_RESERVED_MAX: usize = 64 * 1024;
/// How long the body of a request may take to arrive.
pub(crate) const BODY_ARRIVES: Duration = Duration::from_secs(30);
/// How long the node that serves a run may take to answer: longer than a dead one is believed to live.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// How long a token is taken at its word before the store is asked again: so long one that was revoked at another node
/// may still work at this one.
pub(crate) const TOKEN_TRUSTED: Duration = Duration::from_secs(5);
/// Tokens that are remembered, known or not; past it those that nobody knows are forgotten, then all.
pub(crate) const TOKENS_MAX: usize = 10_000;
/// What routes do at once that blocks; Tokio has several hundred threads for such things, and tokens need some of them.
pub(crate) const BLOCKING_MAX: usize = 64;
/// Tokens that are looked up in the store at once: whoever makes some up must not keep all threads that may block.
pub(crate) const TOKEN_LOOKUPS_MAX: usize = 8;
/// Runs whose namespace and queue are remembered; past it all are forgotten, and looked for again.
pub(crate) const PLACES_MAX: usize = 50_000;
/// How far ahead the clock of a client may be that made an idempotency key.
pub(crate) const KEY_AHEAD_MS_MAX: u64 = 10 * 60 * 1_000;
/// After how long without an event a stream says that it is alive, so that nobody on the way takes it for dead.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// What is read of a journal for a page: a row more makes the page end.
pub(crate) const PAGE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// What is read of a journal for a stream before it is sent; a row that is larger is sent alone.
pub(crate) const CHUNK_BYTES_MAX: usize = 256 * 1024;
/// Rows that are sent together.
pub(crate) const CHUNK_ROWS_MAX: usize = 1_000;
/// Queues that metrics show by name.
pub(crate) const QUEUES_SHOWN_MAX: usize = 200;
/// Events of a namespace that are sent together.
pub(crate) const CHUNK_EVENTS_MAX: usize = 256;
/// Changes that wait to be kept in the audit, and that are kept together.
pub(crate) const AUDIT_WAITING_MAX: usize = 1_024;
/// See [`AUDIT_WAITING_MAX`].
pub(crate) const AUDIT_TOGETHER_MAX: usize = 256;
/// How long changes that nobody waits for are gathered before they are kept.
pub(crate) const AUDIT_LINGER: Duration = Duration::from_millis(100);
/// How long a connection that asks nothing may take to end when it is told to.
pub(crate) const PARTING: Duration = Duration::from_secs(1);
/// How often whoever speaks HTTP/2 is asked whether they are there, and how long they may take to say so.
pub(crate) const PING: Duration = Duration::from_secs(20);
/// See [`PING`].
pub(crate) const PONG: Duration = Duration::from_secs(20);
/// How long nobody is accepted after that has failed.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The shortest and the longest password, in bytes.
pub(crate) const PASSWORD_BYTES_MIN: usize = 10;
/// See [`PASSWORD_BYTES_MIN`].
pub(crate) const PASSWORD_BYTES_MAX: usize = 1_024;
/// How long a session lasts.
pub(crate) const SESSION: Duration = Duration::from_secs(12 * 60 * 60);
/// Sessions of one user at once; one more ends the oldest.
pub(crate) const SESSIONS_MAX: usize = 10;
/// How often a name may be tried with wrong passwords.
pub(crate) const LOGIN_TRIES: f64 = 5.0;
/// After how long it may be tried once more.
pub(crate) const LOGIN_TRY_AGAIN: Duration = Duration::from_secs(10);
/// Names that are remembered to have been tried; past it, those that were tried least are forgotten.
pub(crate) const LOGIN_NAMES_MAX: usize = 10_000;
/// Passwords that are looked at together: each takes 19 MiB for a moment.
pub(crate) const LOGINS_TOGETHER: usize = 2;
/// Logins that wait until their passwords are looked at; one more is told to come again.
pub(crate) const LOGINS_WAITING_MAX: usize = 64;
/// The longest path with its query, in bytes.
pub(crate) const URI_BYTES_MAX: usize = 32 * 1024;
/// The largest headers of a request together, in bytes.
pub(crate) const HEADERS_BYTES_MAX: usize = 64 * 1024;
/// The largest body of a request of nobody who is known: a login has a name and a password.
pub(crate) const LOGIN_BYTES_MAX: usize = 8 * 1024;
