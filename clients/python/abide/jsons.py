"""JSON in and out: what is recorded is what a replay will see, so values are taken through JSON at once."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from .errors import StepError, Unencodable, terminal
from .hashing import I64_MIN, U64

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


def encode(what: str, value: Any) -> bytes:
    """Compact JSON as it is sent.

    Raises:
        Unencodable: it has no JSON form.
    """
    try:
        data = dumps(value).encode()
        _check(value)
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        raise Unencodable(f"{what} has no JSON form: expected text, found half of a surrogate pair in it: {half}") from error
    except (TypeError, ValueError, RecursionError) as error:
        raise Unencodable(f"{what} has no JSON form: {error}") from error
    return data


def _check(value: Any) -> None:
    """What JSON or the engine would change without a word is refused. It has a JSON form, and so an end."""
    left = [value]
    while left:
        found = left.pop()
        if isinstance(found, str):
            continue
        if isinstance(found, dict):
            for key in found:
                if not isinstance(key, str):
                    raise TypeError(f"expected keys that are text, found {type(key).__name__} {key!r}")
            left.extend(found.values())
        elif isinstance(found, (list, tuple)):
            left.extend(found)
        elif isinstance(found, int):
            if not I64_MIN <= found <= U64:
                raise ValueError(f"expected a whole number of 64 bits, found one of {found.bit_length()}; make text of it")
        elif dataclasses.is_dataclass(found):
            left.extend(getattr(found, field.name) for field in dataclasses.fields(found))


def plain(what: str, value: Any) -> Any:
    """A value as it comes back from JSON.

    Raises:
        StepError: it has no JSON form, or is too large.
    """
    if value is None or value is True or value is False:
        return value
    data = encode(what, value)
    if len(data) > PAYLOAD_BYTES_MAX:
        raise terminal("too_large", f"{what} is too large: at most {PAYLOAD_BYTES_MAX} bytes, found {len(data)}")
    return json.loads(data)


def written(error: StepError) -> dict[str, Any]:
    """An error as it is written, also where its details have no JSON form."""
    info = error.info()
    try:
        return dict(plain("the error's details", info))
    except StepError as unencodable:
        return {**info, "details": {unencodable.code: unencodable.message}}
