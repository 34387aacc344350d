//! Wire: letters between nodes over TCP. Whoever connects proves that it knows the secret of the cluster, and so does whoever
//! is connected to; then frames go one way, from the one who connected. A connection that breaks takes its letters with it:
//! they are said again.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use abide_kernel::Str;
use abide_store::Member;
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};

use crate::driver::Shared;
use crate::link::{Letter, Link};

/// Letters that wait for one node at most; more are dropped, and said again.
const QUEUE_MAX: usize = 10_000;
/// The longest frame: a command with the largest payload has room in it.
const FRAME_MAX: u32 = 64 * 1024 * 1024;
/// How long connecting and proving may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a node that cannot be reached is left alone.
const PAUSE: Duration = Duration::from_millis(200);
/// Connections that have not proved anything yet, at most: more are hung up on, and nodes try again.
const STRANGERS_MAX: usize = 64;
/// Bytes of what each side draws, and of the proof.
const DRAWN: usize = 32;

/// Letters by TCP.
pub struct Wire {
    secret: Arc<Vec<u8>>,
    handle: Handle,
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
        let wire = Arc::new(Self { secret, handle, peers: Mutex::default(), accepting });
        Ok((wire, bound, mailbox))
    }
}

impl Link for Wire {
    fn send(&self, from: &Member, to: &Member, letter: Letter) {
        let Ok(frame) = serde_json::to_vec(&(from, &to.process, &letter)) else { return };
        let mut peers = self.peers.lock();
        peers.retain(|_, queue| !queue.is_closed());
        let queue = peers.entry(to.address.clone()).or_insert_with(|| {
            let (queue, letters) = mpsc::channel(QUEUE_MAX);
            self.handle.spawn(deliver(to.address.clone(), self.secret.clone(), letters));
            queue
        });
        // What finds no room is said again.
        let _ = queue.try_send(frame);
    }
}

/// Brings letters to one node, for as long as there is somebody to write them.
async fn deliver(address: Str, secret: Arc<Vec<u8>>, mut letters: mpsc::Receiver<Vec<u8>>) {
    while let Some(first) = letters.recv().await {
        let connected = tokio::time::timeout(PATIENCE, connect(&address, &secret)).await;
        let Ok(Ok(mut stream)) = connected else {
            tracing::debug!(%address, "another node cannot be reached");
            tokio::time::sleep(PAUSE).await;
            // What waited is out of date by now.
            while letters.try_recv().is_ok() {}
            continue;
        };
        let mut frame = Some(first);
        while let Some(bytes) = frame {
            if write(&mut stream, &bytes).await.is_err() {
                break;
            }
            frame = letters.recv().await;
        }
    }
}

async fn write(stream: &mut TcpStream, frame: &[u8]) -> std::io::Result<()> {
    let length = u32::try_from(frame.len()).map_err(std::io::Error::other)?;
    let mut bytes = Vec::with_capacity(frame.len() + 4);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(frame);
    stream.write_all(&bytes).await
}

/// Connects, proves that it knows the secret, and has it proved.
async fn connect(address: &str, secret: &[u8]) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
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
    while let Ok(length) = stream.read_u32().await {
        if length > FRAME_MAX {
            return;
        }
        let mut frame = vec![0; length as usize];
        if stream.read_exact(&mut frame).await.is_err() {
            return;
        }
        match serde_json::from_slice::<(Member, Str, Letter)>(&frame) {
            Ok((from, to, letter)) => mailbox.receive(&from, &to, letter),
            Err(error) => tracing::warn!(%error, "a letter of another node cannot be read; is it of another version?"),
        }
    }
}

/// Has the secret proved, and proves it.
async fn admit(stream: &mut TcpStream, secret: &[u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
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
    use super::*;

    /// Whoever is greeted is waited for; whoever is not was hung up on.
    async fn knock(address: SocketAddr) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.read_exact(&mut [0; DRAWN]).await.ok().map(|_| stream)
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
}
