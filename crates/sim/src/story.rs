//! The story of a seed, for people: what happened when. It is told while it happens, so that it also tells of a world that
//! does not come to its end. Every life makes it, because two lives of a seed must have the same one.

/// Whoever listens.
pub type Listener = fn(&str);

/// What is told.
pub(crate) struct Story {
    listener: Option<Listener>,
    beginning_ms: i64,
    /// Of everything that clients and workers were told.
    hash: u64,
}

impl Story {
    pub(crate) fn new(listener: Option<Listener>, beginning_ms: i64) -> Self {
        Self { listener, beginning_ms, hash: 0 }
    }

    /// Something happens.
    pub(crate) fn tell(&mut self, now_ms: i64, line: impl FnOnce() -> String) {
        if let Some(listener) = self.listener {
            let seconds = (now_ms - self.beginning_ms) as f64 / 1_000.0;
            listener(&format!("{seconds:>12.3}  {}", line()));
        }
    }

    /// Somebody is told something: it must be the same in every life.
    pub(crate) fn answer(&mut self, now_ms: i64, line: impl FnOnce() -> String) {
        let line = line();
        self.hash = abide_kernel::mix(self.hash ^ abide_kernel::stable_hash(line.as_bytes()));
        self.tell(now_ms, || line);
    }

    /// Of everything that somebody was told.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }
}
