"""What a declaration says of many cases at once, where they are of one form: the same but for their
lengths.

Its functions are called once for all, with a case in whose shapes each length is that of all cases.
They add, multiply and compare as they do with numbers. Where a comparison holds for some of the
cases only, these and the others are asked apart; where something else is wanted of a length (to be
hashed, spelled, counted to), one after the other. So the answer is always that of each case alone.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from collector.codec.errors import OpmeterError
from collector.model.case import Case, Slot
from collector.ops.refusals import UNFORESEEN

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]
Ask = Callable[[Case], tuple[float, float]]

FEW = 16  # cases that are soon asked one after the other
_MOST = 2**53  # as far as whole numbers are the same as floats


# Both are signals to `_fill`, no errors. Raised from within a declaration, they stand outside the
# tree of errors, so that one that answers those of its reading lets these through.
class _Apart(Exception):
    """Some cases go another way than the others: those."""

    def __init__(self, these: Truths):
        self.these = these


class _OneByOne(Exception):
    """No length of many cases has what is asked of it."""


class Lengths:
    """One length of each of many cases, or what was computed of it."""

    __slots__ = ("of",)

    def __init__(self, of: Whole):
        self.of = of

    def __add__(self, other: object) -> "Lengths":
        return self._bounded(np.add, other, _most(self) + _most(other))

    def __sub__(self, other: object) -> "Lengths":
        return self._bounded(np.subtract, other, _most(self) + _most(other))

    def __rsub__(self, other: object) -> "Lengths":
        return -self + other

    def __mul__(self, other: object) -> "Lengths":
        return self._bounded(np.multiply, other, _most(self) * _most(other))

    def __floordiv__(self, other: object) -> "Lengths":
        return self._bounded(np.floor_divide, _divisor(other), _most(self))

    def __rfloordiv__(self, other: object) -> "Lengths":
        return Lengths(np.floor_divide(_number(other), _number(_divisor(self))))

    def __mod__(self, other: object) -> "Lengths":
        return self._bounded(np.mod, _divisor(other), _most(self))

    def __neg__(self) -> "Lengths":
        return Lengths(-self.of)

    __radd__, __rmul__ = __add__, __mul__

    def __bool__(self) -> bool:
        return _is_true(self.of != 0)

    def __eq__(self, other: object) -> bool:
        return _is_true(self.of == _number(other))

    def __ne__(self, other: object) -> bool:
        return _is_true(self.of != _number(other))

    def __lt__(self, other: object) -> bool:
        return _is_true(self.of < _number(other))

    def __le__(self, other: object) -> bool:
        return _is_true(self.of <= _number(other))

    def __gt__(self, other: object) -> bool:
        return _is_true(self.of > _number(other))

    def __ge__(self, other: object) -> bool:
        return _is_true(self.of >= _number(other))

    # All else that a number has and this has not is a TypeError by itself.
    def __repr__(self) -> NoReturn:
        raise _OneByOne

    def __format__(self, spec: str) -> NoReturn:
        raise _OneByOne

    def __hash__(self) -> NoReturn:
        raise _OneByOne

    def _bounded(self, compute: Callable[..., Whole], other: object, most: int) -> "Lengths":
        if most >= _MOST:
            raise _OneByOne
        return Lengths(compute(self.of, _number(other)))


def asked_together(ask: Ask, form: Case, lengths: Whole) -> Floats:
    """The two numbers that a declaration answers to each case of a form whose lengths, slot by
    slot, are the rows of `lengths`. NaN where it refuses one, or fails at it."""
    found = np.full((len(lengths), 2), np.nan)
    _fill(found, ask, form, lengths, np.arange(len(lengths)))
    return found


def asked_alone(ask: Ask, case: Case) -> tuple[float, float]:
    """The same of one case."""
    try:
        return ask(case)
    except (OpmeterError, *UNFORESEEN):
        return np.nan, np.nan


def _fill(found: Floats, ask: Ask, form: Case, lengths: Whole, places: Whole) -> None:
    if len(places) < FEW:
        for place in places.tolist():
            case = _with_lengths(form, lengths[place].tolist())
            found[place] = asked_alone(ask, case)
        return
    try:
        told = ask(_with_lengths(form, [_length(column) for column in lengths[places].T]))
    except _Apart as apart:
        for part in (places[apart.these], places[~apart.these]):
            _fill(found, ask, form, lengths, part)
    except (_OneByOne, OpmeterError, *UNFORESEEN):
        for part in np.array_split(places, len(places) // FEW + 1):
            _fill(found, ask, form, lengths, part)
    else:
        for column, answer in enumerate(told):
            found[places, column] = answer.of if isinstance(answer, Lengths) else answer


def _length(column: Whole) -> Any:
    """A number where all cases have the same."""
    first = int(column[0])
    return first if bool((column == first).all()) else Lengths(column)


def lengths_of(case: Case) -> list[int]:
    """All lengths of a case, slot by slot."""
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    return [length for slot in slots for length in slot.shape or ()]


def without_lengths(case: Case) -> Case:
    """What a case shares with those that are the same but for their lengths."""
    return _with_lengths(case, [0] * len(lengths_of(case)))


def _with_lengths(form: Case, lengths: Sequence[Any]) -> Case:
    left = iter(lengths)
    inputs, outputs = (_slots_with(slots, left) for slots in (form.inputs, form.outputs))
    return replace(form, inputs=inputs, outputs=outputs)


def _slots_with(slots: tuple[Slot, ...] | None, left: Iterator[Any]) -> tuple[Slot, ...] | None:
    if slots is None:
        return None
    return tuple(
        slot if slot.shape is None else replace(slot, shape=tuple(islice(left, len(slot.shape))))
        for slot in slots
    )


def _is_true(holds: Any) -> bool:
    if holds.all():
        return True
    if holds.any():
        raise _Apart(holds)
    return False


def _number(other: object) -> Any:
    if isinstance(other, Lengths):
        return other.of
    if isinstance(other, int):
        return int(other)
    raise _OneByOne


def _divisor(other: object) -> object:
    """What one may divide by; an error for zero is each case's own."""
    if not np.all(_number(other)):
        raise _OneByOne
    return other


def _most(number: object) -> int:
    """The largest absolute value."""
    values = _number(number)
    return abs(values) if isinstance(values, int) else int(np.abs(values).max())
