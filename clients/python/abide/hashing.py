"""Hashes that are the same in every SDK: of names, of definitions, and of what effects are about.

They must equal the Rust SDK's bit for bit, because a run's ledger has them. `clients/vectors/hashes.json` pins them.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

U64 = (1 << 64) - 1
I64_MIN = -(1 << 63)

_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?")


def mix(value: int) -> int:
    """Spreads the bits of a 64-bit value over all positions."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & U64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & U64
    return value ^ (value >> 31)


def stable_hash(data: bytes) -> int:
    """A 64-bit hash that never changes between releases: eight bytes at a time, mixed."""
    value = 0x9E3779B97F4A7C15 ^ len(data)
    whole = len(data) // 8 * 8
    for start in range(0, whole, 8):
        value = mix(value ^ int.from_bytes(data[start : start + 8], "little"))
    return mix(value ^ int.from_bytes(data[whole:], "little"))


def canonical_hash(value: Any) -> int:
    """The hash of a JSON value: the same for documents that differ only in white space and the order of keys."""
    return stable_hash(canonical_text(value).encode())


def input_hash(value: Any) -> int:
    """The hash that the ledger keeps of an input; never 0, which stands for none."""
    return max(canonical_hash(value), 1)


def hex16(value: int) -> str:
    """A hash as it is written."""
    return f"{value:016x}"


def canonical_text(value: Any) -> str:
    """JSON with sorted keys, without white space, and with numbers as the engine writes them."""
    if isinstance(value, dict):
        parts = (f"{_text(_key(key))}:{canonical_text(value[key])}" for key in sorted(value, key=_key))
        return "{" + ",".join(parts) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(canonical_text(item) for item in value) + "]"
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        text = str(int(value))
        return text if I64_MIN <= value <= U64 else _number(float(value))
    if isinstance(value, float):
        return _number(value)
    raise TypeError(f"expected a value that JSON has, found {type(value).__name__}")


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool) or key is None:
        return json.dumps(key)
    return str(key)


def _number(value: float) -> str:
    """A number as ECMAScript writes it: the shortest digits that mean it, without a fraction where there is none."""
    if not math.isfinite(value):
        raise TypeError("expected a value that JSON has, found a number that is not finite")
    sign, digits, exponent = _digits(value)
    if digits == "0":
        return "0"
    point = exponent + 1
    if 1 <= point <= 21:
        whole, fraction = digits[:point].ljust(point, "0"), digits[point:]
        return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"
    if -5 <= point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{exponent:+d}"


def _digits(value: float) -> tuple[str, str, int]:
    """Sign, shortest digits and decimal exponent of the first of them."""
    found = _NUMBER.fullmatch(repr(value))
    assert found is not None, "repr of a finite float is a number"
    sign, whole, fraction, exponent = found[1], found[2], found[3] or "", int(found[4] or 0)
    digits = (whole + fraction).lstrip("0")
    if not digits:
        return sign, "0", 0
    first = len(whole) - (len(whole + fraction) - len(digits)) - 1
    return sign, digits.rstrip("0"), exponent + first
