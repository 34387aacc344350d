//! Where a run stands in a distributed trace. Nothing is drawn: every node finds the same ids for a run and its attempts,
//! so that those who never met export one trace.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{ClaimId, RunId, Started, mix, stable_hash};

/// A place in a trace, as W3C's `traceparent` says it: `00-<trace>-<span>-<flags>`, in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace: u128,
    span: u64,
    sampled: bool,
}

/// What tells the spans below a run from hashes of other things.
const BELOW: u64 = 0x9e37_79b9_7f4a_7c15;

/// A text that is no `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotATraceContext;

impl fmt::Display for NotATraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected a traceparent like 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    }
}

impl core::error::Error for NotATraceContext {}

impl TraceContext {
    /// A place in a trace; `None` for ids of zero, which stand for none.
    #[must_use]
    pub fn new(trace: u128, span: u64, sampled: bool) -> Option<Self> {
        (trace != 0 && span != 0).then_some(Self { trace, span, sampled })
    }

    /// The span of a run's start: in the trace that it was started in, or in one of its own.
    #[must_use]
    pub fn of_run(run: RunId, started: &Started) -> Self {
        let (trace, sampled) = started.spec.trace.map_or((run.0, true), |given| (given.trace, given.sampled));
        Self { trace: trace.max(1), span: stable_hash(&run.0.to_be_bytes()).max(1), sampled }
    }

    /// The span of an attempt, below that of its run's start.
    #[must_use]
    pub fn of_attempt(claim: ClaimId, started: &Started) -> Self {
        Self::of_run(claim.run, started).below(u64::from(claim.number) + 1)
    }

    /// The span of a run's end, below that of its start.
    #[must_use]
    pub fn of_end(run: RunId, started: &Started) -> Self {
        Self::of_run(run, started).below(0)
    }

    fn below(self, number: u64) -> Self {
        Self { span: mix(self.span ^ mix(number ^ BELOW)).max(1), ..self }
    }

    /// The trace: the same for everything in it.
    #[must_use]
    pub fn trace(self) -> u128 {
        self.trace
    }

    /// The span.
    #[must_use]
    pub fn span(self) -> u64 {
        self.span
    }

    /// Whether whoever began the trace wants it to be kept.
    #[must_use]
    pub fn is_sampled(self) -> bool {
        self.sampled
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

impl FromStr for TraceContext {
    type Err = NotATraceContext;

    /// Reads a `traceparent`. Later versions of the format may say more behind what is read here.
    fn from_str(text: &str) -> Result<Self, NotATraceContext> {
        let mut parts = text.split('-');
        let mut digits = |count: usize| {
            let part = parts.next().filter(|part| part.len() == count).ok_or(NotATraceContext)?;
            let plain = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            if plain { u128::from_str_radix(part, 16).map_err(|_| NotATraceContext) } else { Err(NotATraceContext) }
        };
        let (version, trace, span, flags) = (digits(2)?, digits(32)?, digits(16)?, digits(2)?);
        let whole = version != 0 || parts.next().is_none();
        Self::new(trace, span as u64, flags & 1 == 1).filter(|_| version != 0xff && whole).ok_or(NotATraceContext)
    }
}

impl Serialize for TraceContext {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TraceContext {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = alloc::string::String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;
    use crate::{Payload, RequestId, StartSpec, Timestamp};

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn started(trace: Option<TraceContext>) -> Started {
        let spec = StartSpec { trace, ..StartSpec::new("flow", Payload::null()) };
        let request = RequestId::new(Timestamp(0), 0);
        Started { spec, request, parent: None, input_hash: None, reserves: None, reservation: None }
    }

    /// AB-20
    #[test]
    fn a_traceparent_is_read_and_written() {
        assert_eq!(GIVEN.parse::<TraceContext>().unwrap().to_string(), GIVEN);
        assert!(!GIVEN.replace("-01", "-00").parse::<TraceContext>().unwrap().is_sampled());
        // A later version may say more; this one may not.
        assert!(GIVEN.replace("00-4", "01-4").parse::<TraceContext>().is_ok());
        let later = alloc::format!("{}-more", GIVEN.replace("00-4", "01-4"));
        assert!(later.parse::<TraceContext>().is_ok());
        let zero_trace = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let zero_span = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01";
        let more = alloc::format!("{GIVEN}-more");
        let loud = GIVEN.to_uppercase();
        for wrong in
            ["", "00", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", zero_trace, zero_span, &more, &loud]
        {
            assert_eq!(wrong.parse::<TraceContext>(), Err(NotATraceContext), "{wrong}");
        }
    }

    /// AB-20: whoever knows the run finds the same spans, and no two are the same.
    #[test]
    fn spans_follow_from_the_run_and_the_claim() {
        let (run, given) = (RunId(7 << 80), GIVEN.parse::<TraceContext>().unwrap());
        let claim = |number| ClaimId { run, number };
        let (alone, asked) = (started(None), started(Some(given)));
        assert_eq!(TraceContext::of_run(run, &alone).trace(), run.0);
        assert_eq!(TraceContext::of_attempt(claim(1), &asked).trace(), given.trace());
        let spans = [
            TraceContext::of_run(run, &asked).span(),
            TraceContext::of_end(run, &asked).span(),
            TraceContext::of_attempt(claim(1), &asked).span(),
            TraceContext::of_attempt(claim(2), &asked).span(),
            given.span(),
        ];
        assert!((1..spans.len()).all(|one| !spans[..one].contains(&spans[one])), "{spans:?}");
        assert_eq!(TraceContext::of_attempt(claim(2), &alone).span(), spans[3], "the trace says nothing of the span");
    }

    /// AB-20: spans are the same in every release, or a trace would break at an upgrade.
    #[test]
    fn spans_stay_as_they_are() {
        let (run, given) = (RunId(7 << 80), GIVEN.parse::<TraceContext>().unwrap());
        assert!(given.is_sampled());
        let asked = started(Some(given));
        let spans = [
            TraceContext::of_run(run, &asked),
            TraceContext::of_attempt(ClaimId { run, number: 1 }, &asked),
            TraceContext::of_end(run, &asked),
        ];
        assert_eq!(
            spans.map(|context| context.span()),
            [0xd502_11e7_698f_22a0, 0xe72d_9221_93ab_2162, 0x230a_5790_5617_2ce0]
        );
        assert!(NotATraceContext.to_string().contains(GIVEN));
    }
}
