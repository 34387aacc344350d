"""Retry policies: when something that failed is tried again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from .hashing import U64, mix
from .times import Duration, duration_ms

HOUR_MS = 3_600_000
_DELAY_MS_MAX = 100 * 365 * 24 * HOUR_MS


@dataclass(frozen=True)
class RetryPolicy:
    """When and how often something that failed is tried again."""

    delay_ms: int = 1_000
    backoff: Literal["constant", "linear", "exponential"] = "exponential"
    delay_ms_max: int = HOUR_MS
    jitter_percent: int = 0
    retries_max: int | None = None

    @staticmethod
    def exponential(delay: Duration, retries_max: int | None = None) -> RetryPolicy:
        """Doubling delays, at most an hour."""
        return RetryPolicy(delay_ms=duration_ms(delay), retries_max=retries_max)

    def delay(self, retries: int, seed: int) -> int | None:
        """The delay before the retry that follows `retries` earlier ones; None when there may be no more."""
        if self.retries_max is not None and retries >= self.retries_max:
            return None
        grown = {
            "constant": self.delay_ms,
            "linear": self.delay_ms * (retries + 1),
            "exponential": self.delay_ms << min(retries, 64),
        }[self.backoff]
        delay = min(grown, U64, self.delay_ms_max, _DELAY_MS_MAX)
        percent = min(self.jitter_percent, 100)
        drawn = delay // 100 * percent + delay % 100 * percent // 100
        return delay - drawn + (mix(seed & U64) % (drawn + 1) if drawn else 0)

    def message(self) -> dict[str, Any]:
        """As it is written in a report."""
        said: dict[str, Any] = {"backoff": self.backoff, "delay_ms": self.delay_ms, "delay_ms_max": self.delay_ms_max}
        said["jitter_percent"] = self.jitter_percent
        if self.retries_max is not None:
            said["retries_max"] = self.retries_max
        return said
