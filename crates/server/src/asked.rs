//! What is asked, on a connection and of all of them: so many requests are being answered, or it is quiet.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Response;
use http_body_util::BodyExt;
use tokio::sync::watch;
use tower_service::Service;

/// How many requests are being answered, of all connections.
#[derive(Clone, Debug, Default)]
pub struct Open(Arc<AtomicUsize>);

impl Open {
    /// How many there are now. Streams and long waits count as long as they last.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many requests of one connection are being answered.
#[derive(Clone, Default)]
pub(crate) struct Asked {
    here: Arc<watch::Sender<usize>>,
    all: Open,
}

/// A request that is being answered.
struct Answering(Asked);

impl Asked {
    /// Of one more connection.
    pub(crate) fn of(all: &Open) -> Self {
        Self { here: Arc::default(), all: all.clone() }
    }

    fn begin(&self) -> Answering {
        self.here.send_modify(|now| *now += 1);
        self.all.0.fetch_add(1, Ordering::Relaxed);
        Answering(self.clone())
    }

    /// Waits until nothing was asked, and nothing answered, for so long.
    pub(crate) async fn nothing_for(&self, limit: Duration) {
        let mut asked = self.here.subscribe();
        loop {
            // This holds the other end, so that neither wait can fail.
            let _ = asked.wait_for(|now| *now == 0).await;
            if tokio::time::timeout(limit, asked.changed()).await.is_err() {
                return;
            }
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.here.send_modify(|now| *now -= 1);
        self.0.all.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The routes, for one connection: each request counts until the last piece of its answer is sent.
#[derive(Clone)]
pub(crate) struct Counted {
    app: Router,
    asked: Asked,
}

impl Counted {
    pub(crate) fn new(app: Router, asked: Asked) -> Self {
        Self { app, asked }
    }
}

impl<R> Service<R> for Counted
where
    Router: Service<R, Response = Response<Body>>,
    <Router as Service<R>>::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = <Router as Service<R>>::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.app.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let (counted, answer) = (self.asked.begin(), self.app.call(request));
        Box::pin(async move {
            let held = |body: Body| {
                Body::new(body.map_frame(move |frame| {
                    let _held = &counted;
                    frame
                }))
            };
            Ok(answer.await?.map(held))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A connection is quiet when nothing is asked for the whole time; whatever lasts is no quiet.
    #[tokio::test(start_paused = true)]
    async fn quiet_is_counted_from_the_last_answer() {
        let (asked, began) = (Asked::default(), tokio::time::Instant::now());
        let busy = async {
            tokio::time::sleep(LIMIT / 2).await;
            drop(asked.begin());
            tokio::time::sleep(LIMIT / 2).await;
            let long = asked.begin();
            tokio::time::sleep(LIMIT * 10).await;
            drop(long);
        };
        tokio::join!(asked.nothing_for(LIMIT), busy);
        assert_eq!(began.elapsed(), LIMIT * 12);
    }
}
