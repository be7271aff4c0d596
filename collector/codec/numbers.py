"""Integers and decimal numbers in texts of users and tools, read strictly.

Python's own readers also accept `1_000`, `+4`, `04`, digits of other alphabets, `nan` and `inf`:
such a text is damaged or means something else. Blanks and tabs around a number are accepted.
"""

import re
from math import floor, isfinite, log10

_NUMBER = re.compile(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,30}")
_BLANKS = " \t"
_PLACES = 2  # after the point, of a number from 1 on; a smaller one has as many digits that count
_FIGURES = 3


def integer_of(text: str) -> int:
    """Return the integer of a text. Raises ValueError for any other text."""
    stripped = text.strip(_BLANKS)
    if not _INTEGER.fullmatch(stripped):
        raise ValueError(f"expected an integer, got {text[:40]!r}")
    return int(stripped)


def parse_number(text: str) -> float:
    """Return the finite number of a text. Raises ValueError for any other text."""
    stripped = text.strip(_BLANKS)
    if not _NUMBER.fullmatch(stripped) or not isfinite(value := float(stripped)):
        raise ValueError(f"expected a number, got {text[:40]!r}")
    return value


def percentage_of(text: str) -> float:
    """Return the share of a text such as `1%` or `0.01`. Raises ValueError for any other text."""
    digits = text.strip(_BLANKS).removesuffix("%")
    return parse_number(digits) / (1 if digits == text.strip(_BLANKS) else 100)


def decimal_text(value: float) -> str:
    """Return a measured number with two decimals, and below 1 with three significant digits: two
    decimals of a small one would be 0.00. It has no exponent, which some readers of CSV refuse."""
    size = abs(value)
    places = _FIGURES - 1 - floor(log10(size)) if 0 < size < 1 else _PLACES
    return f"{value:.{places}f}"


def microseconds(ns: int) -> str:
    """Return nanoseconds as microseconds with three decimals, exactly: a float has too few digits
    for the start of a launch."""
    sign, whole = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{whole // 1000}.{whole % 1000:03d}"
