//! How random tests are set up: always the same cases, unless the environment asks for others.

use proptest::test_runner::{Config, RngSeed};

/// `cases` cases from `seed`; `RANDOM_CASES`, `RANDOM_SEED` and `RANDOM_SHRINKS` say otherwise.
pub fn config(cases: u32, seed: u64) -> Config {
    Config {
        cases: wanted("RANDOM_CASES").unwrap_or(cases),
        rng_seed: RngSeed::Fixed(wanted("RANDOM_SEED").unwrap_or(seed)),
        failure_persistence: None,
        max_shrink_iters: wanted("RANDOM_SHRINKS").unwrap_or(3_000),
        ..Config::default()
    }
}

fn wanted<N: std::str::FromStr>(name: &str) -> Option<N> {
    std::env::var(name).ok()?.parse().ok()
}
