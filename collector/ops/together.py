"""Evaluation of a declaration for many cases of one form, which differ only in their lengths.

The functions of a declaration are called once for all cases. Each length in the shapes is an array
with one value per case. Arrays add, multiply and compare like numbers. If a comparison holds for
some of the cases only, the two groups are evaluated separately. If another operation needs a number
(hash, format, range), the cases are evaluated one by one. So the results always equal those of each
case alone.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from collector.codec.errors import OpmeterError
from collector.model.case import Case, Slot
from collector.ops.refusals import DECLARATION_ERRORS

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]
Evaluate = Callable[[Case], tuple[float, float]]

FEW = 16  # below this number of cases, one by one is fast enough
_MOST = 2**53  # the limit up to which floats represent all integers


# Both are signals to `_fill`, not errors. They do not derive from the project's base error, so that
# a declaration that catches errors of its reading does not catch them.
class _Diverging(Exception):
    """A comparison that holds only for the cases in `these`."""

    def __init__(self, these: Truths):
        self.these = these


class _OneByOne(Exception):
    """An operation that arrays of lengths do not support."""


def _compared(compare: Callable[[Any, Any], Any]) -> Callable[["Lengths", object], bool]:
    return lambda lengths, other: _is_true(compare(lengths.of, _number(other)))


class Lengths:
    """One length of each of many cases, or a value computed from it."""

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

    __eq__ = _compared(operator.eq)
    __ne__ = _compared(operator.ne)
    __lt__, __le__ = _compared(operator.lt), _compared(operator.le)
    __gt__, __ge__ = _compared(operator.gt), _compared(operator.ge)

    # Other operations of a number, which this class does not define, raise TypeError.
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


def evaluate_together(evaluate: Evaluate, form: Case, lengths: Whole) -> Floats:
    """Return the two numbers that a declaration gives for each case of a form.

    The rows of `lengths` have the lengths of the cases, slot by slot. NaN if the declaration
    refuses a case or fails."""
    found = np.full((len(lengths), 2), np.nan)
    _fill(found, evaluate, form, lengths, np.arange(len(lengths)))
    return found


def evaluate_alone(evaluate: Evaluate, case: Case) -> tuple[float, float]:
    """Return the two numbers for one case."""
    try:
        return evaluate(case)
    except (OpmeterError, *DECLARATION_ERRORS):
        return np.nan, np.nan


def _fill(found: Floats, evaluate: Evaluate, form: Case, lengths: Whole, places: Whole) -> None:
    if len(places) < FEW:
        for index in places.tolist():
            case = _with_lengths(form, lengths[index].tolist())
            found[index] = evaluate_alone(evaluate, case)
        return
    try:
        results = evaluate(_with_lengths(form, [_length(column) for column in lengths[places].T]))
    except _Diverging as apart:
        for part in (places[apart.these], places[~apart.these]):
            _fill(found, evaluate, form, lengths, part)
    except (_OneByOne, OpmeterError, *DECLARATION_ERRORS):
        for part in np.array_split(places, len(places) // FEW + 1):
            _fill(found, evaluate, form, lengths, part)
    else:
        for column, result in enumerate(results):
            found[places, column] = result.of if isinstance(result, Lengths) else result


def _length(column: Whole) -> Any:
    first = int(column[0])
    return first if bool((column == first).all()) else Lengths(column)


def lengths_of(case: Case) -> list[int]:
    """Return all lengths of a case, slot by slot."""
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    return [length for slot in slots for length in slot.shape or ()]


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
        raise _Diverging(holds)
    return False


def _number(other: object) -> Any:
    if isinstance(other, Lengths):
        return other.of
    if isinstance(other, int):
        return int(other)
    raise _OneByOne


def _divisor(other: object) -> object:
    """Return the divisor; division by zero must be an error of each case alone."""
    if not np.all(_number(other)):
        raise _OneByOne
    return other


def _most(number: object) -> int:
    values = _number(number)
    return abs(values) if isinstance(values, int) else int(np.abs(values).max())
