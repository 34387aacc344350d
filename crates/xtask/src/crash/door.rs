//! A door to a node: the other nodes know this address, and what they say goes through it. Letters go one way, from
//! whoever connected, so that a closed door cuts off what is said to its node and nothing else. What comes meanwhile is
//! held and not lost, as on a network that recovers: it arrives late, out of its time. A broken door ends every connection
//! by which something comes, and that is lost.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// How often a closed door is tried.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Default)]
struct State {
    closed: AtomicBool,
    broken: AtomicBool,
    gone: AtomicBool,
    /// Pieces that were held because the door was closed, and those that were lost because it was broken.
    held: AtomicU64,
    lost: AtomicU64,
}

/// Dropped, it is gone, and its connections with it.
pub(crate) struct Door {
    address: SocketAddr,
    node: SocketAddr,
    state: Arc<State>,
}

impl State {
    /// Whether what has just come is lost.
    fn loses(&self) -> bool {
        let broken = self.broken.load(Ordering::Acquire);
        if broken {
            self.lost.fetch_add(1, Ordering::AcqRel);
        }
        broken
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.state.gone.store(true, Ordering::Release);
    }
}

impl Door {
    pub(crate) fn build() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("building a door to a node")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        // A port that was free a moment ago is free when the node comes.
        let node = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).context("finding a port")?;
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || serve(&listener, node, &shared));
        Ok(Self { address, node, state })
    }

    /// What the other nodes are told.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where the node itself listens.
    pub(crate) fn node(&self) -> SocketAddr {
        self.node
    }

    pub(crate) fn close(&self) {
        self.state.closed.store(true, Ordering::Release);
    }

    pub(crate) fn break_down(&self) {
        self.state.broken.store(true, Ordering::Release);
    }

    /// Opens it again. How many pieces were held, and how many connections or pieces were lost.
    pub(crate) fn open(&self) -> (u64, u64) {
        self.state.closed.store(false, Ordering::Release);
        self.state.broken.store(false, Ordering::Release);
        (self.state.held.swap(0, Ordering::AcqRel), self.state.lost.swap(0, Ordering::AcqRel))
    }
}

fn serve(listener: &TcpListener, node: SocketAddr, state: &Arc<State>) {
    while !state.gone.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((from, _)) => {
                if state.loses() {
                    continue;
                }
                let state = state.clone();
                thread::spawn(move || connect(&from, node, &state));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(LOOK),
            Err(_) => return,
        }
    }
}

/// Passes on what comes, in both directions, until either end is gone.
fn connect(from: &TcpStream, node: SocketAddr, state: &Arc<State>) {
    let Ok(to) = TcpStream::connect(node) else { return };
    let ready = from.set_nonblocking(false).and(from.set_nodelay(true)).and(to.set_nodelay(true));
    if ready.is_ok() {
        thread::scope(|scope| {
            scope.spawn(|| pass(from, &to, state));
            scope.spawn(|| pass(&to, from, state));
        });
    }
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, state: &State) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if state.loses() {
            break;
        }
        if state.closed.load(Ordering::Acquire) {
            state.held.fetch_add(1, Ordering::AcqRel);
        }
        while state.closed.load(Ordering::Acquire) && !state.gone.load(Ordering::Acquire) {
            thread::sleep(LOOK);
        }
        if state.gone.load(Ordering::Acquire) || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
