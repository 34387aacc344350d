//! A connection that breaks where a test says: before a question reached the server, or after it was carried out and
//! before the answer came back.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;

use abide_pg_testing::Server;

/// Where the next connection that is used breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// The server never hears of the question.
    Question,
    /// The server has carried it out.
    Answer,
}

#[derive(Default)]
struct Plan {
    /// Nought, or one more than the cut.
    next: AtomicU8,
    cuts: AtomicU64,
}

impl Plan {
    fn take(&self, cut: Cut) -> bool {
        let taken = self.next.compare_exchange(cut as u8 + 1, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        self.cuts.fetch_add(u64::from(taken), Ordering::SeqCst);
        taken
    }
}

/// A door to the server by TCP.
pub struct Proxy {
    port: u16,
    plan: Arc<Plan>,
}

impl Proxy {
    pub fn start(server: &Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let plan = Arc::new(Plan::default());
        let (socket, shared) = (server.folder().join(".s.PGSQL.5432"), plan.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                serve(client.unwrap(), &socket, &shared);
            }
        });
        Self { port, plan }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    /// The connection that is used next breaks.
    pub fn cut(&self, cut: Cut) {
        self.plan.next.store(cut as u8 + 1, Ordering::SeqCst);
    }

    /// How many have broken.
    pub fn cuts(&self) -> u64 {
        self.plan.cuts.load(Ordering::SeqCst)
    }
}

fn serve(client: TcpStream, socket: &PathBuf, plan: &Arc<Plan>) {
    let server = UnixStream::connect(socket).unwrap();
    let _ = client.set_nodelay(true);
    let (client_end, server_end) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let (questions, answers) = (plan.clone(), plan.clone());
    let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::spawn(move || {
        copy(&mut from, &mut to, || questions.take(Cut::Question));
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    });
    let (mut from, mut to) = (server_end, client_end);
    thread::spawn(move || {
        copy(&mut from, &mut to, || answers.take(Cut::Answer));
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    });
}

/// Passes everything on until an end, or a cut.
fn copy(from: &mut impl Read, to: &mut impl Write, is_cut: impl Fn() -> bool) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if is_cut() || to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}
