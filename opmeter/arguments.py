"""Arguments of callers, checked by type: a wrong one is BadInput that names it."""

import os
from collections.abc import Mapping, Sequence, Set, Sized
from contextlib import suppress
from numbers import Real
from operator import index
from pathlib import Path
from reprlib import repr as brief
from typing import Any

import numpy as np

from collector.codec.errors import BadInput

MOST_SIZE = 2**63 - 1  # that an index has room for

_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping, Set)


def bad_argument(what: str, expected: str, given: object) -> BadInput:
    """Return the error about an argument, with the beginning of what was given."""
    return BadInput(f"{what}: expected {expected}, got {brief(given)}")


def text_of(what: str, given: object) -> str:
    """Return a text of printable characters. Raises BadInput for anything else."""
    if not isinstance(given, str):
        raise bad_argument(what, "a text", given)
    if not given.isprintable():
        raise bad_argument(what, "a text of printable characters", given)
    return str(given)


def texts_of(what: str, given: object) -> str | tuple[str, ...]:
    """Return a text, or a tuple of texts. Raises BadInput for anything else."""
    if isinstance(given, str):
        return text_of(what, given)
    return tuple([text_of(what, one) for one in list_of(what, "a text, or a list of texts", given)])


def list_of(what: str, expected: str, given: Any) -> Sequence[Any]:
    """Return a list, a tuple or an array as it is. Raises BadInput for anything else: an iterator
    would be empty when it is read a second time."""
    if type(given) not in (list, tuple):
        is_list = isinstance(given, Sized) and not isinstance(given, _NO_LISTS)
        is_table = hasattr(given, "columns")  # of pandas: its items are names
        if not is_list or is_table or not hasattr(given, "__getitem__"):
            raise bad_argument(what, expected, given)
    found: Sequence[Any] = given
    return found


def flag_of(what: str, given: object) -> bool:
    """Return True or False. Raises BadInput for anything else."""
    if not isinstance(given, bool | np.bool_):
        raise bad_argument(what, "True or False", given)
    return bool(given)


def size_of(given: Any) -> int:
    """Return the integer of any integer type but bool. Raises TypeError for anything else."""
    if isinstance(given, bool | np.bool_):
        raise TypeError("a bool is not a size")
    return index(given)


def number_argument(what: str, given: object) -> float:
    """Return a finite number. Raises BadInput for anything else, such as a text or a bool."""
    if isinstance(given, Real) and not isinstance(given, bool | np.bool_):
        with suppress(OverflowError):
            if np.isfinite(number := float(given)):
                return number
    raise bad_argument(what, "a finite number", given)


def path_of(what: str, given: object) -> Path:
    """Return a path. Raises BadInput for anything else, and for one that no file can have."""
    try:
        text = os.fspath(given)  # type: ignore[call-overload]
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise bad_argument(what, "a path", given)
    with suppress(UnicodeEncodeError):
        if b"\0" not in os.fsencode(text):
            return Path(text)
    raise bad_argument(what, "a path that a file can have", given)
