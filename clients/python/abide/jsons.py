"""JSON in and out: what is recorded is what a replay will see, so values are taken through JSON at once."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from .errors import terminal

PAYLOAD_BYTES_MAX = 4 * 1024 * 1024


def _default(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def dumps(value: Any) -> str:
    """Compact JSON text. Dataclasses are objects."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_default)


def loads(text: str | bytes) -> Any:
    """The value of a JSON text."""
    return json.loads(text)


def plain(what: str, value: Any) -> Any:
    """A value as it comes back from JSON.

    Raises:
        StepError: it has no JSON form, or is too large.
    """
    if value is None or value is True or value is False:
        return value
    try:
        text = dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise terminal("unencodable", f"{what} has no JSON form: {error}") from error
    size = len(text.encode(errors="surrogatepass"))
    if size > PAYLOAD_BYTES_MAX:
        raise terminal("too_large", f"{what} is too large: at most {PAYLOAD_BYTES_MAX} bytes, found {size}")
    return json.loads(text)
