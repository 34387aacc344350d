//! Views: what takes long to read is read beside the engine, on threads that may block, so many at once and no more. What
//! requests, commits and renewals need has a reader of its own (`Shared::reader`), and never waits for a listing.

use std::sync::Arc;

use abide_store::{Fault, Opener, Reader};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::admission::Unanswered;
use crate::driver::Shared;

/// Lists and journals that are read at once. Each takes a connection where the store is a database.
const VIEWS_MAX: usize = 4;

/// Readers of the store for those who inspect it, opened when they are first needed.
pub(crate) struct Views {
    open: Opener,
    free: Mutex<Vec<Box<dyn Reader>>>,
    places: Arc<Semaphore>,
    /// Counting reads much of the store: one does it at a time.
    counting: Mutex<()>,
}

impl Views {
    pub(crate) fn new(open: Opener) -> Self {
        let places = Arc::new(Semaphore::new(VIEWS_MAX));
        Self { open, free: Mutex::default(), places, counting: Mutex::new(()) }
    }

    /// Waits until one more may read. Whoever waits for too long can give up.
    async fn place(&self) -> Result<OwnedSemaphorePermit, Unanswered> {
        self.places.clone().acquire_owned().await.map_err(|_| Unanswered::Gone)
    }

    /// Counts what the store has. It blocks, and so do those who count meanwhile.
    pub(crate) fn count<T>(&self, count: impl FnOnce(&mut dyn Reader) -> Result<T, Fault>) -> Result<T, Fault> {
        let _alone = self.counting.lock();
        self.read(count)
    }

    /// Reads by a view that nobody else reads by. One whose reading panics does not come back.
    fn read<T>(&self, read: impl FnOnce(&mut dyn Reader) -> Result<T, Fault>) -> Result<T, Fault> {
        let free = self.free.lock().pop();
        let mut reader = free.map_or_else(&*self.open, Ok)?;
        let answer = read(reader.as_mut());
        self.free.lock().push(reader);
        answer
    }
}

impl Shared {
    /// Reads the store without keeping a thread that others are served by. A reading that its asker has given up goes on
    /// to its end, and keeps its place until then.
    pub(crate) async fn look<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&mut dyn Reader) -> Result<T, Fault> + Send + 'static,
    ) -> Result<Result<T, Fault>, Unanswered> {
        if self.by_hand {
            // There are no threads, and what a turn does must not depend on any.
            return Ok(self.views.read(read));
        }
        let (views, place) = (self.views.clone(), self.views.place().await?);
        let reading = self.handle.spawn_blocking(move || {
            let answer = views.read(read);
            drop(place);
            answer
        });
        match reading.await {
            Ok(answer) => Ok(answer),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Unanswered::Gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use abide_store::memory::MemoryStore;
    use abide_store::{Filter, Page, StoredToken};

    use super::*;
    use crate::{Config, Engine};

    fn engine() -> Engine {
        Engine::open(Box::new(MemoryStore::new(1)), Config::default()).unwrap()
    }

    /// AB-10: whoever lists slowly keeps neither a thread that serves others, nor tokens, nor what is kept; and one more
    /// than may read at once waits without blocking anybody.
    #[tokio::test(flavor = "current_thread")]
    async fn slow_readings_hold_up_nobody_else() {
        let engine = engine();
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let (began, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let mut slow = Vec::new();
        for _ in 0..=VIEWS_MAX {
            let (shared, held, began) = (engine.shared.clone(), held.clone(), began.clone());
            slow.push(tokio::spawn(async move {
                let reading = shared.look(move |_| {
                    began.send(()).unwrap();
                    held.lock().recv().unwrap();
                    Ok(())
                });
                reading.await.unwrap().unwrap();
            }));
        }
        for _ in 0..VIEWS_MAX {
            begun.recv().await.unwrap();
        }
        assert_eq!(engine.shared.views.places.available_permits(), 0);
        assert!(begun.try_recv().is_err(), "one more waits");
        // The one thread of this runtime is free, and so is what every request needs.
        let token = StoredToken { id: "a".into(), body: "{}".into() };
        engine.write_token(&token).unwrap();
        assert_eq!(engine.tokens().unwrap(), [token]);
        engine.depths().unwrap();
        // Whoever waits for a turn can give up at any time.
        tokio::select! {
            biased;
            _ = engine.shared.look(|_| Ok(())) => panic!("all places are taken"),
            () = std::future::ready(()) => {}
        }
        (0..=VIEWS_MAX).for_each(|_| release.send(()).unwrap());
        for slow in slow {
            slow.await.unwrap();
        }
        let (filter, page) = (Filter::default(), Page { most: 1, before: None });
        assert!(engine.list(&filter, &page).await.unwrap().is_empty());
        assert!(engine.shared.views.free.lock().len() <= VIEWS_MAX + 1);
    }
}
