//! Wire: letters between nodes over TCP. Whoever connects proves that it knows the secret of the cluster, and so does whoever
//! is connected to; then frames go one way, from the one who connected. A connection that breaks takes its letters with it:
//! they are said again.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use abide_kernel::shard::Answer;
use abide_kernel::{Refusal, Str};
use abide_store::Member;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use sha2::Sha256;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use crate::driver::Shared;
use crate::link::{Letter, Link};

/// Letters that wait for one node at most; more are dropped, and said again.
const QUEUE_MAX: usize = 10_000;
/// The longest frame: a command with the largest payload has room in it. What is longer is never sent.
const FRAME_MAX: usize = 64 * 1024 * 1024;
/// How long connecting and proving may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a node that cannot be reached is left alone.
const PAUSE: Duration = Duration::from_millis(200);
/// Tries in a row that fail before somebody is to look at it, and after how many more that is said again.
const FAILURES_MAX: u32 = 5;
const FAILURES_MORE: u32 = 500;
/// How much of a frame is written at a time.
const CHUNK: usize = 64 * 1024;
/// When a connection over which nothing comes is tried, how often, and how long what was sent may stay unacknowledged.
const QUIET: Duration = Duration::from_secs(10);
const PROBE: Duration = Duration::from_secs(5);
const PROBES: u32 = 3;
/// Connections that have not proved anything yet, at most: more are hung up on, and nodes try again.
const STRANGERS_MAX: usize = 64;
/// Bytes of what each side draws, and of the proof.
const DRAWN: usize = 32;

/// How long is waited for another node.
#[derive(Clone, Copy)]
struct Patience {
    /// Without a letter to it, before it is let go of. Commands of a terminal are nodes for a moment, each at an address of
    /// its own.
    idle: Duration,
    /// Until it takes in a piece of a letter.
    stalled: Duration,
}

const USUAL: Patience = Patience { idle: Duration::from_secs(60), stalled: Duration::from_secs(15) };

/// Letters by TCP.
pub struct Wire {
    secret: Arc<Vec<u8>>,
    handle: Handle,
    mailbox: Mailbox,
    peers: Mutex<HashMap<Str, mpsc::Sender<Vec<u8>>>>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Wire {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.lock().take() {
            accepting.abort();
        }
    }
}

/// Whoever takes in letters, once it is there.
#[derive(Clone, Default)]
pub struct Mailbox(Arc<Mutex<Weak<Shared>>>);

impl Mailbox {
    pub(crate) fn belongs_to(&self, shared: &Arc<Shared>) {
        *self.0.lock() = Arc::downgrade(shared);
    }

    fn receive(&self, from: &Member, to: &str, letter: Letter) {
        let shared = self.0.lock().upgrade();
        if let Some(shared) = shared {
            shared.receive(from, to, letter);
        }
    }
}

impl Wire {
    /// Listens at an address, and gives the link, the address it listens at, and the box into which letters go.
    ///
    /// # Errors
    /// When it cannot listen there.
    pub async fn listen(address: SocketAddr, secret: Vec<u8>) -> std::io::Result<(Arc<Self>, SocketAddr, Mailbox)> {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        let handle = Handle::current();
        let secret = Arc::new(secret);
        let mailbox = Mailbox::default();
        let accepting = handle.spawn(accept(listener, secret.clone(), mailbox.clone()));
        let accepting = Mutex::new(Some(accepting));
        let wire = Self { secret, handle, mailbox: mailbox.clone(), peers: Mutex::default(), accepting };
        let wire = Arc::new(wire);
        Ok((wire, bound, mailbox))
    }
}

impl Link for Wire {
    fn send(&self, from: &Member, to: &Member, letter: Letter) {
        let Some(frame) = self.frame(from, to, letter) else { return };
        let mut peers = self.peers.lock();
        peers.retain(|_, queue| !queue.is_closed());
        let queue = peers.entry(to.address.clone()).or_insert_with(|| {
            let (queue, letters) = mpsc::channel(QUEUE_MAX);
            self.handle.spawn(deliver(to.address.clone(), self.secret.clone(), letters, USUAL));
            queue
        });
        // What finds no room is said again.
        let _ = queue.try_send(frame);
    }
}

impl Wire {
    /// A letter as it is written. Whoever waits for one that is too long is told so in its place, because said again it
    /// would be as long.
    fn frame(&self, from: &Member, to: &Member, letter: Letter) -> Option<Vec<u8>> {
        let frame = encode(from, to, &letter)?;
        if frame.len() <= FRAME_MAX {
            return Some(frame);
        }
        let Some(answer) = too_large(&letter, frame.len()) else {
            tracing::warn!(to = %to.node, bytes = frame.len(), "a letter to another node is too long, and is not sent");
            return None;
        };
        if matches!(letter, Letter::Answer { .. }) {
            return encode(from, to, &answer);
        }
        let (mailbox, asked, asker) = (self.mailbox.clone(), to.clone(), from.process.clone());
        // Later: whoever sends may hold what receiving takes.
        self.handle.spawn(async move { mailbox.receive(&asked, &asker, answer) });
        None
    }
}

/// What whoever asked is told when a question or its answer is too long for a letter.
fn too_large(letter: &Letter, found: usize) -> Option<Letter> {
    let (id, what) = match letter {
        Letter::Answer { id, .. } => (*id, "the answer of another node"),
        Letter::Ask { id, .. } => (*id, "a command to another node"),
        _ => return None,
    };
    let refusal = Refusal::TooLarge { what: what.into(), limit: FRAME_MAX as u64, found: found as u64 };
    Some(Letter::Answer { id, answer: Box::new(Answer::Refused(refusal)) })
}

fn encode(from: &Member, to: &Member, letter: &Letter) -> Option<Vec<u8>> {
    serde_json::to_vec(&(from, &to.process, letter)).ok()
}

/// Brings letters to one node, until there have been none for a while.
async fn deliver(address: Str, secret: Arc<Vec<u8>>, mut letters: mpsc::Receiver<Vec<u8>>, patience: Patience) {
    let mut failures = 0;
    while let Ok(Some(first)) = tokio::time::timeout(patience.idle, letters.recv()).await {
        let connected = tokio::time::timeout(PATIENCE, connect(&address, &secret)).await;
        let error = match connected {
            Ok(Ok(stream)) => {
                failures = 0;
                write_all(stream, first, &mut letters, patience).await;
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(late) => late.to_string(),
        };
        failures += 1;
        if failures == FAILURES_MAX || failures % FAILURES_MORE == 0 {
            tracing::warn!(%address, error, failures, "another node cannot be reached; what it is told arrives late, by the store");
        } else {
            tracing::debug!(%address, error, "another node cannot be reached");
        }
        tokio::time::sleep(PAUSE).await;
        // What waited is out of date by now.
        while letters.try_recv().is_ok() {}
    }
}

/// Writes letters to a connection until it breaks, the other hangs up, or there are none for a while.
async fn write_all(mut stream: TcpStream, first: Vec<u8>, letters: &mut mpsc::Receiver<Vec<u8>>, patience: Patience) {
    let (mut reading, mut writing) = stream.split();
    let (mut frame, mut said) = (Some(first), [0; 1]);
    while let Some(bytes) = frame {
        if write(&mut writing, &bytes, patience.stalled).await.is_err() {
            return;
        }
        frame = tokio::select! {
            next = letters.recv() => next,
            // The other says nothing more: it can only have hung up.
            _ = reading.read(&mut said) => None,
            () = tokio::time::sleep(patience.idle) => None,
        };
    }
}

/// Writes a frame. One that is long may take long, as long as there is a way on.
async fn write(stream: &mut (impl AsyncWrite + Unpin), frame: &[u8], stalled: Duration) -> std::io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(std::io::Error::other)?;
    let mut bytes = Vec::with_capacity(frame.len() + 4);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(frame);
    for chunk in bytes.chunks(CHUNK) {
        tokio::time::timeout(stalled, stream.write_all(chunk)).await??;
    }
    Ok(())
}

/// Has the system notice when the other machine is gone without a word.
fn watch(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(QUIET).with_interval(PROBE).with_retries(PROBES))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(QUIET + PROBE * PROBES))?;
    Ok(())
}

/// Connects, proves that it knows the secret, and has it proved.
async fn connect(address: &str, secret: &[u8]) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    watch(&stream)?;
    let (mut theirs, mut proof) = ([0; DRAWN], [0; DRAWN]);
    stream.read_exact(&mut theirs).await?;
    let ours: [u8; DRAWN] = draw();
    stream.write_all(&[&prove(secret, b"from", &theirs)[..], &ours].concat()).await?;
    stream.read_exact(&mut proof).await?;
    check(secret, b"to", &ours, &proof)?;
    Ok(stream)
}

/// Takes in connections. Those that are there end with this.
async fn accept(listener: TcpListener, secret: Arc<Vec<u8>>, mailbox: Mailbox) {
    let mut connections = JoinSet::new();
    let strangers = Arc::new(Semaphore::new(STRANGERS_MAX));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Ok(stranger) = strangers.clone().try_acquire_owned() {
                    connections.spawn(take_in(stream, stranger, secret.clone(), mailbox.clone()));
                }
            }
            // There may be no room for one more just now.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn take_in(mut stream: TcpStream, stranger: OwnedSemaphorePermit, secret: Arc<Vec<u8>>, mailbox: Mailbox) {
    let known = tokio::time::timeout(PATIENCE, admit(&mut stream, &secret)).await;
    drop(stranger);
    if !matches!(known, Ok(Ok(()))) {
        tracing::warn!("somebody connected who does not know the secret of the cluster");
        return;
    }
    let mut stream = BufReader::new(stream);
    while let Ok(Some(frame)) = read(&mut stream).await {
        match serde_json::from_slice::<(Member, Str, Letter)>(&frame) {
            Ok((from, to, letter)) => mailbox.receive(&from, &to, letter),
            Err(error) => tracing::warn!(%error, "a letter of another node cannot be read; is it of another version?"),
        }
    }
}

/// The next frame, unless it is longer than any that is sent.
async fn read(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Option<Vec<u8>>> {
    let length = stream.read_u32().await? as usize;
    if length > FRAME_MAX {
        return Ok(None);
    }
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame).await?;
    Ok(Some(frame))
}

/// Has the secret proved, and proves it.
async fn admit(stream: &mut TcpStream, secret: &[u8]) -> std::io::Result<()> {
    watch(stream)?;
    let ours: [u8; DRAWN] = draw();
    stream.write_all(&ours).await?;
    let (mut proof, mut theirs) = ([0; DRAWN], [0; DRAWN]);
    stream.read_exact(&mut proof).await?;
    stream.read_exact(&mut theirs).await?;
    check(secret, b"from", &ours, &proof)?;
    stream.write_all(&prove(secret, b"to", &theirs)).await
}

fn keyed(secret: &[u8], side: &[u8], drawn: &[u8]) -> Hmac<Sha256> {
    let mut keyed = Hmac::<Sha256>::new_from_slice(secret).expect("a key may have any length");
    keyed.update(side);
    keyed.update(drawn);
    keyed
}

fn prove(secret: &[u8], side: &[u8], drawn: &[u8]) -> [u8; DRAWN] {
    keyed(secret, side, drawn).finalize().into_bytes().into()
}

fn check(secret: &[u8], side: &[u8], drawn: &[u8], proof: &[u8]) -> std::io::Result<()> {
    let wrong =
        |_| std::io::Error::new(std::io::ErrorKind::PermissionDenied, "the secret of the cluster is another one");
    keyed(secret, side, drawn).verify_slice(proof).map_err(wrong)
}

fn draw() -> [u8; DRAWN] {
    let mut drawn = [0; DRAWN];
    for part in drawn.chunks_mut(8) {
        part.copy_from_slice(&crate::Entropy::System.next().to_be_bytes()[8..]);
    }
    drawn
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicI64;

    use abide_kernel::shard::Command;
    use abide_kernel::{ShardEpoch, ShardId, Slot, Timestamp};
    use abide_store::memory::MemoryStore;

    use super::*;
    use crate::Config;

    /// Whoever is greeted is waited for; whoever is not was hung up on.
    async fn knock(address: SocketAddr) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.read_exact(&mut [0; DRAWN]).await.ok().map(|_| stream)
    }

    const SECRET: &[u8] = b"secret";
    /// Nothing here takes that long.
    const LONG: Duration = Duration::from_secs(20);

    fn member(address: &str) -> Member {
        Member { process: address.into(), node: address.into(), address: address.into(), draining: false }
    }

    /// Another node, as far as its socket.
    async fn other() -> (TcpListener, Member) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port is free");
        let address = listener.local_addr().expect("it listens").to_string();
        (listener, member(&address))
    }

    async fn admitted(listener: &TcpListener) -> TcpStream {
        let (mut stream, _) =
            tokio::time::timeout(LONG, listener.accept()).await.expect("somebody comes").expect("they do");
        admit(&mut stream, SECRET).await.expect("they know the secret");
        stream
    }

    async fn letter(stream: &mut TcpStream) -> Letter {
        let frame = tokio::time::timeout(LONG, read(stream)).await.expect("it comes").expect("it is whole");
        let frame = frame.expect("it is not too long");
        serde_json::from_slice::<(Member, Str, Letter)>(&frame).expect("it is a letter").2
    }

    async fn wire() -> (Arc<Wire>, Member) {
        let listening = Wire::listen(([127, 0, 0, 1], 0).into(), SECRET.to_vec()).await;
        let (wire, address, _) = listening.expect("a port is free");
        (wire, member(&address.to_string()))
    }

    /// SE-38: each command of a terminal is a node for a moment. Nothing is kept of one that has hung up.
    #[tokio::test]
    async fn a_node_that_hangs_up_is_let_go_of() {
        let ((wire, here), (listener, there)) = (wire().await, other().await);
        wire.send(&here, &there, Letter::Joined);
        let mut stream = admitted(&listener).await;
        assert!(matches!(letter(&mut stream).await, Letter::Joined));
        stream.shutdown().await.expect("it is connected");
        let end = tokio::time::timeout(LONG, stream.read(&mut [0; 1])).await;
        assert_eq!(end.expect("the other side hangs up as well").expect("in good order"), 0);
        // Later letters go by a connection of their own.
        wire.send(&here, &there, Letter::Joined);
        assert!(matches!(letter(&mut admitted(&listener).await).await, Letter::Joined));
    }

    /// SE-38: nor of one to whom there is nothing to say.
    #[tokio::test]
    async fn a_node_without_letters_is_let_go_of() {
        let (listener, there) = other().await;
        let (queue, letters) = mpsc::channel(1);
        let patience = Patience { idle: Duration::from_millis(10), ..USUAL };
        let delivering = tokio::spawn(deliver(there.address.clone(), Arc::new(SECRET.to_vec()), letters, patience));
        queue.send(b"{}".to_vec()).await.expect("there is room");
        let mut stream = admitted(&listener).await;
        assert!(read(&mut stream).await.expect("it is whole").is_some());
        assert!(read(&mut stream).await.is_err(), "nothing more comes");
        tokio::time::timeout(LONG, delivering).await.expect("it ends").expect("in good order");
        assert!(queue.is_closed());
    }

    /// SE-38: a node that takes nothing in is tried anew, and its connection is watched by the system.
    #[tokio::test]
    async fn a_node_that_takes_nothing_in_is_tried_anew() {
        let (listener, there) = other().await;
        let (queue, letters) = mpsc::channel(64);
        let patience = Patience { stalled: Duration::from_millis(50), ..USUAL };
        let delivering = tokio::spawn(deliver(there.address.clone(), Arc::new(SECRET.to_vec()), letters, patience));
        for _ in 0..64 {
            queue.try_send(vec![0; 1024 * 1024]).expect("there is room");
        }
        let first = admitted(&listener).await;
        assert!(SockRef::from(&first).keepalive().expect("the system says"));
        let _second = admitted(&listener).await;
        delivering.abort();
    }

    /// What is too long for a letter is said to whoever asked, on either side; said again it would be as long.
    #[tokio::test]
    async fn what_is_too_long_for_a_letter_is_refused() {
        let ((wire, here), (listener, there)) = (wire().await, other().await);
        let long = Answer::Refused(Refusal::Closed { reason: "x".repeat(FRAME_MAX) });
        wire.send(&here, &there, Letter::Answer { id: 7, answer: Box::new(long) });
        match letter(&mut admitted(&listener).await).await {
            Letter::Answer { id: 7, answer } => {
                assert!(matches!(*answer, Answer::Refused(Refusal::TooLarge { .. })), "{answer:?}");
            }
            other => panic!("{other:?}"),
        }
        let command = Box::new(Command::Unflushed);
        let (slot, epoch, at) = (Slot(0), ShardEpoch(1), Timestamp(0));
        let asked = too_large(&Letter::Ask { id: 8, settled: 8, slot, epoch, at, command }, FRAME_MAX + 1);
        assert!(matches!(asked, Some(Letter::Answer { id: 8, .. })), "{asked:?}");
        let rows = vec![(ShardId(0), "x".repeat(FRAME_MAX))];
        assert!(wire.frame(&here, &there, Letter::Damaged(rows)).is_none());
    }

    #[tokio::test]
    async fn only_so_many_strangers_are_waited_for_at_once() {
        let listening = Wire::listen(([127, 0, 0, 1], 0).into(), b"secret".to_vec()).await;
        let (_wire, address, _mailbox) = listening.expect("a port is free");
        let mut strangers = Vec::new();
        for _ in 0..STRANGERS_MAX {
            strangers.push(knock(address).await.expect("there is room"));
        }
        assert!(knock(address).await.is_none(), "one more than there is room for");

        // One of them goes: somebody who knows the secret gets in, and those who got in need no room.
        strangers.pop();
        let mut nodes = Vec::new();
        while nodes.len() < 3 {
            nodes.extend(connect(&address.to_string(), b"secret").await.ok());
        }
    }

    /// SE-38: nobody is heard without the secret; and frames that no node wrote, or that are longer than any, harm only whoever
    /// sends them.
    #[tokio::test]
    async fn what_nobody_wrote_is_not_taken_in() {
        let listening = Wire::listen(([127, 0, 0, 1], 0).into(), SECRET.to_vec()).await;
        let (_wire, address, mailbox) = listening.expect("a port is free");
        let store = MemoryStore::shared(1, Arc::new(AtomicI64::new(0)));
        let shared = Shared::open(Box::new(store), Config::default(), Handle::current(), true).expect("it opens");
        mailbox.belongs_to(&shared);
        // Whoever joined makes a node look at once what its share is.
        let rests = || shared.core.lock().ring.iter_mut().for_each(|ring| ring.next_renewal = NEVER);
        let was_told = || shared.core.lock().ring.as_ref().is_some_and(|ring| ring.next_renewal < NEVER);
        let from = member("127.0.0.1:1");
        let whole = serde_json::to_vec(&(&from, &shared.process, Letter::Joined)).expect("it is written");
        rests();

        let mut stranger = TcpStream::connect(address).await.expect("it listens");
        stranger.write_all(&[7; 2 * DRAWN]).await.expect("it is connected");
        let _ = write(&mut stranger, &whole, LONG).await;
        assert_eq!(rest(&mut stranger).await, DRAWN, "it is told what to prove, and nothing is proved to it");
        assert!(!was_told());

        let mut node = connect(&address.to_string(), SECRET).await.expect("it knows the secret");
        for at in 0..whole.len() {
            write(&mut node, &whole[..at], LONG).await.expect("it is connected");
        }
        write(&mut node, &whole, LONG).await.expect("it is connected");
        tokio::time::timeout(LONG, until(was_told)).await.expect("it is heard after all that");

        rests();
        let mut wordy = connect(&address.to_string(), SECRET).await.expect("it knows the secret");
        wordy.write_u32(u32::MAX).await.expect("it is connected");
        assert_eq!(rest(&mut wordy).await, 0, "it is hung up on");
        assert!(!was_told());
        write(&mut node, &whole, LONG).await.expect("others are still connected");
        tokio::time::timeout(LONG, until(was_told)).await.expect("others are heard");
    }

    const NEVER: Timestamp = Timestamp(i64::MAX);

    async fn until(reached: impl Fn() -> bool) {
        while !reached() {
            tokio::task::yield_now().await;
        }
    }

    /// How much is said until the other side hangs up.
    async fn rest(stream: &mut TcpStream) -> usize {
        let mut heard = Vec::new();
        // Cut off is as good as hung up.
        let _ = tokio::time::timeout(LONG, stream.read_to_end(&mut heard)).await.expect("the other side hangs up");
        heard.len()
    }
}
