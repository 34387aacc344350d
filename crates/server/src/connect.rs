//! Connections: so many at once, each of which must say what it wants in time, and all of which end when the server does.

use std::io::Write;
use std::pin::pin;
use std::sync::Arc;

use abide_protocol::Problem;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::asked::{Asked, Counted, Open};
use crate::limits::{ACCEPT_PAUSE, HEADERS_BYTES_MAX, Limits, PARTING, PING, PONG};
use crate::spoken::Spoken;

/// How connections are made into requests.
#[derive(Clone)]
pub(crate) struct Doors {
    app: Router,
    builder: Builder<TokioExecutor>,
    tls: Option<TlsAcceptor>,
    limits: Limits,
    stopping: watch::Receiver<bool>,
    open: Open,
}

impl Doors {
    pub(crate) fn new(app: Router, tls: Option<TlsAcceptor>, limits: Limits, stopping: watch::Receiver<bool>) -> Self {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.head_max);
        builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING).keep_alive_timeout(PONG);
        // More than is taken, so that whoever sends too much is told so by a problem.
        builder.http2().max_header_list_size(4 * HEADERS_BYTES_MAX as u32);
        Self { app, builder, tls, limits, stopping, open: Open::default() }
    }

    /// What is being answered.
    pub(crate) fn open(&self) -> Open {
        self.open.clone()
    }

    /// Answers whoever connects, until it is told to stop; then answers what was asked, and ends.
    pub(crate) async fn serve(mut self, listener: TcpListener) {
        let most = u32::try_from(self.limits.connections_max.min(Semaphore::MAX_PERMITS)).unwrap_or(u32::MAX);
        let places = Arc::new(Semaphore::new(most as usize));
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                // The one who says so is gone only with the server.
                _ = self.stopping.wait_for(|stops| *stops) => break,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely: those who are here may leave some.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                // Inside of TLS nothing can be said yet.
                if self.tls.is_none() {
                    turn_away(stream, most);
                }
                continue;
            };
            // An event must not wait for the next one.
            let _ = stream.set_nodelay(true);
            let doors = self.clone();
            tokio::spawn(async move {
                doors.welcome(stream).await;
                drop(place);
            });
        }
        drop(listener);
        // Nobody closes it: all places are free when all connections have ended.
        let _ = places.acquire_many(most).await;
    }

    async fn welcome(self, stream: TcpStream) {
        match self.tls.clone() {
            None => self.answer(stream).await,
            Some(tls) => {
                if let Some(stream) = self.shake_hands(&tls, stream).await {
                    self.answer(stream).await;
                }
            }
        }
    }

    /// Agrees on how to speak; with nobody who does not in time, or speaks something else.
    async fn shake_hands(&self, tls: &TlsAcceptor, stream: TcpStream) -> Option<TlsStream<TcpStream>> {
        let mut stopping = self.stopping.clone();
        let shaken = tokio::select! {
            shaken = tokio::time::timeout(self.limits.handshake_max, tls.accept(stream)) => shaken,
            _ = stopping.wait_for(|stops| *stops) => return None,
        };
        match shaken {
            Ok(Ok(stream)) => Some(stream),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a connection did not come to speak TLS");
                None
            }
            Err(_) => {
                tracing::debug!("a connection took too long to speak TLS");
                None
            }
        }
    }

    /// Answers for as long as something is asked. Whoever says nothing, or never comes to the end of what it says, is
    /// not waited for: the limits of HTTP/1 do not see a connection before its first line, nor those of HTTP/2 one at
    /// all.
    async fn answer<S>(mut self, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let asked = Asked::of(&self.open);
        let service = TowerToHyperService::new(Counted::new(self.app, asked.clone()));
        let mut connection =
            pin!(self.builder.serve_connection_with_upgrades(TokioIo::new(Spoken::new(stream)), service));
        // A connection that breaks is the client's.
        tokio::select! {
            _ = connection.as_mut() => return,
            () = asked.nothing_for(self.limits.head_max) => {}
            _ = self.stopping.wait_for(|stops| *stops) => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ = connection => {}
            () = asked.nothing_for(PARTING) => {}
        }
    }
}

/// Says that there is no room, as far as that fits into a connection that nobody reads.
fn turn_away(stream: TcpStream, most: u32) {
    let problem = Problem::new("too_many_connections", format!("there are {most} connections already"));
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: {}\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n",
        Problem::MEDIA_TYPE,
        body.len()
    );
    // A socket that was just made has room for it.
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write((head + &body).as_bytes());
    }
}
