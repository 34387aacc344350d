//! What blocks is done on threads of its own, so much of it at once: whoever asks for much of it must not keep those threads
//! from others, who only want to be known.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::answer::{Refused, internal};
use crate::call::in_time;
use crate::limits::BLOCKING_MAX;

/// Where routes do what blocks.
pub(crate) struct Blocking(Arc<Semaphore>);

impl Default for Blocking {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BLOCKING_MAX)))
    }
}

impl Blocking {
    /// Does it as soon as there is room. It goes on to its end, and keeps its room, also when its asker has gone.
    pub(crate) async fn perform<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refused> {
        let room = in_time(self.0.clone().acquire_owned()).await?.map_err(|error| internal(&error))?;
        let working = tokio::task::spawn_blocking(move || {
            let done = work();
            drop(room);
            done
        });
        working.await.map_err(|error| internal(&error))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use parking_lot::Mutex;

    use super::*;

    /// AB-10
    #[tokio::test]
    async fn so_much_blocks_at_once_and_no_more() {
        let blocking = Arc::new(Blocking::default());
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let (began, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let begin = |_| {
            let (blocking, held, began) = (blocking.clone(), held.clone(), began.clone());
            tokio::spawn(async move {
                let work = move || {
                    began.send(()).unwrap();
                    held.lock().recv().unwrap();
                };
                blocking.perform(work).await.is_ok()
            })
        };
        let all: Vec<_> = (0..=BLOCKING_MAX).map(begin).collect();
        for _ in 0..BLOCKING_MAX {
            begun.recv().await.unwrap();
        }
        assert!(begun.try_recv().is_err() && blocking.0.available_permits() == 0);
        (0..=BLOCKING_MAX).for_each(|_| release.send(()).unwrap());
        for one in all {
            assert!(one.await.unwrap());
        }
    }
}
