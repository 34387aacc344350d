//! What came of killing a workflow at every durable point.

use std::fmt;

use abide_kernel::Policy;

/// On which side of an append a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// Before it is durable: it is lost.
    Before,
    /// After it is durable, and before anything has followed from it.
    After,
}

/// A moment at which a workflow was killed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct CrashPoint {
    /// The durable point, counted from 1.
    pub number: usize,
    /// Before or after it.
    pub side: Side,
    /// What it writes, as far as the run that is watched is concerned.
    pub what: String,
}

impl fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Before => "before",
            Side::After => "after",
        };
        write!(f, "{side} point {} ({})", self.number, self.what)
    }
}

/// An effect that was executed more often than it is when nothing is killed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repeated {
    /// Its name in its scope, and which one of that name.
    pub effect: String,
    /// Its policy.
    pub policy: Policy,
    /// How often it was executed at the most, in one run.
    pub times: u32,
    /// The crashes after which it was executed again.
    pub at: Vec<CrashPoint>,
}

impl fmt::Display for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { effect, policy, times, at } = self;
        let crashes = if at.len() == 1 { "crash" } else { "crashes" };
        write!(f, "{effect} ran {times} times (policy {policy}) after {} {crashes}", at.len())?;
        at.first().map_or(Ok(()), |first| write!(f, ", the first killed {first}"))
    }
}

/// A run that stopped for a person, as the policy of one of its effects asks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Held {
    /// The crash.
    pub at: CrashPoint,
    /// What it waits for.
    pub why: String,
}

/// Something that must not happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// An effect was executed more than once that must not be: by its policy, or because the test says so.
    Twice(Repeated),
    /// A run did not end as it does when nothing is killed.
    EndedOtherwise {
        /// The crash.
        at: CrashPoint,
        /// How it ends when nothing is killed.
        expected: String,
        /// How it ended, or why it does not.
        found: String,
    },
    /// A run failed, and what it had done was not undone.
    NotUndone {
        /// The crash; `None` when nothing was killed.
        at: Option<CrashPoint>,
        /// What was to undo it and did not.
        undo: String,
    },
    /// The test's own check did not hold.
    Check {
        /// The crash; `None` when nothing was killed.
        at: Option<CrashPoint>,
        /// What it said.
        found: String,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = |at: &Option<CrashPoint>| match at {
            Some(at) => format!("killed {at}"),
            None => "undisturbed".to_owned(),
        };
        match self {
            Self::Twice(repeated) => write!(f, "{repeated}, and it must not"),
            Self::EndedOtherwise { at, expected, found } => {
                write!(f, "killed {at}: expected that it ends as {expected}, found {found}")
            }
            Self::NotUndone { at, undo } => {
                write!(f, "{}: the run did not end well, and {undo:?} did not run", when(at))
            }
            Self::Check { at, found } => write!(f, "{}: {found}", when(at)),
        }
    }
}

/// What came of killing a workflow at every durable point. Print it to read it.
#[derive(Clone, Debug)]
#[must_use = "a report that nobody looks at shows nothing; see assert_ok"]
#[non_exhaustive]
pub struct CrashReport {
    /// The workflow.
    pub workflow: String,
    /// How many durable points it has.
    pub points: usize,
    /// How many times it was killed.
    pub crashes: usize,
    /// How it ends when nothing is killed.
    pub undisturbed: String,
    /// Effects that were executed more often than when nothing is killed, whether they may be or not.
    pub repeated: Vec<Repeated>,
    /// Runs that stopped for a person, as a policy asks.
    pub held: Vec<Held>,
    /// What must not happen and did.
    pub violations: Vec<Violation>,
}

impl CrashReport {
    /// Fails the test when something happened that must not.
    ///
    /// # Panics
    /// Then, with the whole report.
    pub fn assert_ok(&self) {
        assert!(self.violations.is_empty(), "{self}");
    }

    /// Fails the test when any effect but a pure one ran twice, whatever its policy allows.
    ///
    /// # Panics
    /// Then, with the whole report.
    pub fn assert_nothing_twice(&self) {
        self.assert_ok();
        assert!(self.repeated.iter().all(|repeated| repeated.policy == Policy::Pure), "{self}");
    }
}

impl fmt::Display for CrashReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workflow, points, crashes, undisturbed, repeated, held, violations } = self;
        writeln!(
            f,
            "{workflow}: {points} durable points, killed {crashes} times; undisturbed it ends as {undisturbed}"
        )?;
        for violation in violations {
            writeln!(f, "  wrong: {violation}")?;
        }
        let named = |repeated: &&Repeated| !violations.contains(&Violation::Twice((*repeated).clone()));
        for repeated in repeated.iter().filter(named) {
            writeln!(f, "  allowed by its policy: {repeated}")?;
        }
        for held in held {
            writeln!(f, "  waits for a person, killed {}: {}", held.at, held.why)?;
        }
        if violations.is_empty() && repeated.is_empty() && held.is_empty() {
            writeln!(f, "  nothing ran twice")?;
        }
        Ok(())
    }
}
