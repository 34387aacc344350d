//! Rates: one token may ask so often, so that nobody keeps the others from being answered.

use std::collections::HashMap;
use std::time::Instant;

use abide_protocol::Problem;
use parking_lot::Mutex;

use crate::answer::Refused;
use crate::limits::TOKENS_MAX;

/// How often each token asked lately.
pub(crate) struct Rates {
    per_second: u32,
    spent: Mutex<HashMap<String, Spent>>,
}

/// What a token has spent of a second's requests, and when that was.
struct Spent {
    requests: f64,
    at: Instant,
}

impl Spent {
    /// What is still spent now: a second gives back a second's requests.
    fn now(&self, now: Instant, per_second: f64) -> f64 {
        (self.requests - now.saturating_duration_since(self.at).as_secs_f64() * per_second).max(0.0)
    }
}

impl Rates {
    pub(crate) fn new(per_second: u32) -> Self {
        Self { per_second: per_second.max(1), spent: Mutex::default() }
    }

    /// One more request of a token.
    pub(crate) fn ask(&self, token: &str, now: Instant) -> Result<(), Refused> {
        let most = f64::from(self.per_second);
        let mut all = self.spent.lock();
        if all.len() >= TOKENS_MAX && !all.contains_key(token) {
            all.retain(|_, spent| spent.now(now, most) > 0.0);
        }
        let spent = all.entry(token.to_owned()).or_insert(Spent { requests: 0.0, at: now });
        let before = spent.now(now, most);
        if before + 1.0 > most {
            let detail = format!("this token asks more than {} times in a second", self.per_second);
            let problem = Problem::new("rate_limited", detail);
            return Err(problem.but(format!("at most {} requests in a second", self.per_second), "more").into());
        }
        *spent = Spent { requests: before + 1.0, at: now };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_token_asks_as_often_as_it_may_and_no_other_pays_for_it() {
        let (rates, begin) = (Rates::new(4), Instant::now());
        let asked = |token: &str, ms| rates.ask(token, begin + Duration::from_millis(ms)).is_ok();
        assert_eq!([0, 0, 0, 0, 0].map(|at| asked("a", at)), [true, true, true, true, false]);
        assert!(asked("b", 0));
        assert_eq!([249, 250, 250, 500].map(|at| asked("a", at)), [false, true, false, true]);
        assert_eq!([9_000; 5].map(|at| asked("a", at)), [true, true, true, true, false], "a rest saves up a second's");
    }
}
