"""The skeleton of a file of operators, from rows of kernels that nothing declares."""

import json
import re
from collections.abc import Iterable, Sequence

from collector.model.case import NO_TENSOR, Case, Shape, Slot, logical_shape
from collector.model.record import CaseRecord
from collector.ops.refusals import not_launched_reason
from collector.ops.registry import find_operator
from collector.ops.signature import CLASSES
from collector.ranks.gangs import is_of_gangs

_HEAD = '''"""Operators of {source}: complete each call, then `opmeter ops --check` this file."""

from opmeter.operators import Operator


def not_written(*arguments):
    raise NotImplementedError("the call of this kernel")
'''
_OPERATOR = """

# {rows} in {source}, such as {example}
{name} = Operator(
    {kernel},
    {signature},
    not_written,  # a function of the arguments of the signature
    # reference=lambda {arguments}: ...,
)
"""
_NOT_NAMES = re.compile(r"\W+")
_NOT_PLAIN = re.compile(r"[^\w .,;:+*-]")  # what might end a comment or a text of the file


def draft(records: Iterable[CaseRecord], source: str) -> tuple[str, int]:
    """Return the text of a file with the kernels of the records that no operator declares, most
    time first, and their number.

    A signature has the number of tensors, their ranks and dtypes, and one name for the sizes that
    are equal in every row. It is a guess from these rows: rows of other ranks need variants."""
    source = _NOT_PLAIN.sub("_", source)
    cases: dict[str, list[CaseRecord]] = {}
    for one in records:
        if _is_undeclared(one.case):
            cases.setdefault(one.case.kernel_type, []).append(one)
    longest = sorted(cases, key=lambda kernel: (-_time_us(cases[kernel]), kernel))
    parts, names = [_HEAD.format(source=source)] if longest else [], set[str]()
    for number, kernel in enumerate(longest, start=1):
        rows = [one.case for one in cases[kernel]]
        name = _NOT_NAMES.sub("_", kernel).upper()
        name = name if name.isidentifier() and name not in names else f"OPERATOR_{number}"
        names.add(name)
        parts.append(
            _OPERATOR.format(
                rows=f"{len(rows)} row{'s' if len(rows) > 1 else ''}",
                source=source,
                example=_NOT_PLAIN.sub("_", rows[0].describe()),
                name=name,
                kernel=json.dumps(kernel),
                signature=json.dumps(inferred_signature(rows)),
                arguments=", ".join(f"x{at}" for at, _ in enumerate(rows[0].inputs or (), 1)),
            )
        )
    return "".join(parts), len(longest)


def _is_undeclared(case: Case) -> bool:
    known = (
        find_operator(case.kernel_type) is not None
        or is_of_gangs(case)
        or not_launched_reason(case)
    )
    return not known and case.inputs is not None


def _time_us(records: Sequence[CaseRecord]) -> float:
    return sum(one.profile.total_us for one in records if one.profile is not None)


def inferred_signature(cases: Sequence[Case]) -> str:
    """Return a signature that accepts the cases, with the sides that have most tensors in them."""
    names = _Names()
    sides = (
        ", ".join(
            names.tensor(f"{letter}{at + 1}", [_slot(case, side, at) for case in cases])
            for at in range(max(len(getattr(case, side) or ()) for case in cases))
        )
        for side, letter in (("inputs", "x"), ("outputs", "y"))
    )
    return " -> ".join(sides)


def _slot(case: Case, side: str, at: int) -> Slot | None:
    slots = getattr(case, side) or ()
    return slots[at] if at < len(slots) and slots[at].dtype != NO_TENSOR.dtype else None


class _Names:
    """Names of sizes and of dtypes: one for those that are equal in every case."""

    def __init__(self) -> None:
        self._known: dict[tuple[int | None, ...], str] = {}
        self._letters: dict[tuple[str, ...], str] = {}

    def tensor(self, name: str, slots: Sequence[Slot | None]) -> str:
        dtypes = tuple("" if slot is None else slot.dtype for slot in slots)
        if not any(dtypes):
            return f"-{name}"
        shapes = [
            None if slot is None or slot.shape is None else logical_shape(slot) for slot in slots
        ]
        optional = "?" if None in slots else ""
        given = [shape for shape in shapes if shape is not None]
        text = f"{name} {self._dtype(dtypes)}"
        if not given:
            return f"{text}[#]{optional}"
        if len({len(shape) for shape in given}) != 1 or len(given) < len(slots) - slots.count(None):
            return f"{text}[*]{optional}"
        sizes = [self._size(shapes, at) for at in range(len(given[0]))]
        return f"{text}[{', '.join(sizes)}]{optional}"

    def _size(self, shapes: Sequence[Shape | None], at: int) -> str:
        column = tuple(None if shape is None else shape[at] for shape in shapes)
        if {1} == set(filter(None, column)):
            return "1"
        return self._known.setdefault(column, f"n{len(self._known) + 1}")

    def _dtype(self, dtypes: tuple[str, ...]) -> str:
        found = tuple(filter(None, dict.fromkeys(dtypes)))
        if len(found) == 1:
            return found[0]
        if dtypes in self._letters:
            return self._letters[dtypes]
        letter = self._letters.setdefault(dtypes, f"T{len(self._letters)}")
        classes = (name for name, spellings in CLASSES.items() if set(found) <= set(spellings))
        return f"{letter}:{next(classes, '|'.join(found))}"
