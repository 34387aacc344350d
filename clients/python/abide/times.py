"""Instants and durations: milliseconds inside, RFC 3339 in UTC on the network."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any, Union

Duration = Union[int, float, timedelta]
"""Seconds, or a timedelta."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MS_MAX = 253_402_300_799_999


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


def duration_ms(duration: Duration) -> int:
    """A duration in whole milliseconds; a negative one is none."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    return max(0, int(seconds * 1_000 + 1e-6))


def to_datetime(ms: int) -> datetime:
    """Milliseconds since 1970 as a datetime in UTC."""
    return _EPOCH + timedelta(milliseconds=min(ms, _MS_MAX))


def from_datetime(at: datetime) -> int:
    """A datetime, UTC if it does not say otherwise, as milliseconds since 1970."""
    aware = at if at.tzinfo is not None else at.replace(tzinfo=timezone.utc)
    return (aware - _EPOCH) // timedelta(milliseconds=1)


def write_instant(ms: int) -> str:
    """An instant as it is written: `2026-11-06T21:28:02.125Z`."""
    at = to_datetime(ms)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1_000:03d}Z".rjust(24, "0")


def read_instant(text: str) -> int:
    """An instant as it is read, in milliseconds since 1970."""
    body, zone = (text[:-1], "+00:00") if text[-1:] in "zZ" else (text[:-6], text[-6:])
    whole, _, fraction = body.partition(".")
    at = datetime.fromisoformat(whole + zone)
    return from_datetime(at) + int((fraction + "000")[:3])


def maybe_instant(text: Any) -> int | None:
    """An instant that may be absent."""
    return None if text is None else read_instant(text)
