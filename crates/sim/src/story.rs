//! The story of a seed, for people: what happened when.

/// What is told, if anybody listens.
pub(crate) struct Story {
    lines: Option<Vec<String>>,
    beginning_ms: i64,
}

impl Story {
    pub(crate) fn new(tells: bool, beginning_ms: i64) -> Self {
        Self { lines: tells.then(Vec::new), beginning_ms }
    }

    pub(crate) fn tell(&mut self, now_ms: i64, line: impl FnOnce() -> String) {
        let seconds = (now_ms - self.beginning_ms) as f64 / 1_000.0;
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{seconds:>12.3}  {}", line()));
        }
    }

    /// The lines so far.
    pub(crate) fn lines(&self) -> &[String] {
        self.lines.as_deref().unwrap_or_default()
    }
}
