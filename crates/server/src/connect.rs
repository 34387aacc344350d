//! Connections: so many at once, each of which must say what it wants in time, and all of which end when the server does.

use std::io::Write;
use std::sync::Arc;

use abide_protocol::Problem;
use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::limits::{ACCEPT_PAUSE, HEADERS_ARRIVE};

/// Answers whoever connects, until it is told to stop; then answers what was asked, and ends.
pub(crate) async fn serve(listener: TcpListener, app: Router, most: usize, mut stopping: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS)));
    let graceful = GracefulShutdown::new();
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADERS_ARRIVE);
    builder.http2().timer(TokioTimer::new());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The one who says so is gone only with the server.
            _ = stopping.wait_for(|stops| *stops) => break,
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
            turn_away(stream, most);
            continue;
        };
        // An event must not wait for the next one.
        let _ = stream.set_nodelay(true);
        let connection =
            builder.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(app.clone()));
        let watched = graceful.watch(connection.into_owned());
        tokio::spawn(async move {
            // A connection that breaks is the client's.
            let _ = watched.await;
            drop(place);
        });
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Says that there is no room, as far as that fits into a connection that nobody reads.
fn turn_away(stream: TcpStream, most: usize) {
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
