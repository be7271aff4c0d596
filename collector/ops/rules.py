"""Rules that declarations share: about dtypes, shapes, and inputs that are not replayed.

A row is refused if its output has another dtype than the output of the reference: the measurement
would be of another operation. An output of N/A is accepted.
"""

from collections.abc import Callable, Container
from enum import StrEnum
from typing import TypeVar

from collector.codec.errors import CaseRejected
from collector.model.case import Case
from collector.model.vocabulary import Dtype
from collector.ops.slots import agrees, elements, given, input_shape, output_slot
from collector.ops.spec import Constraint

T = TypeVar("T")

HALF_DTYPES = ("FLOAT16", "DT_BF16")
FLOATS = (*HALF_DTYPES, "FLOAT")
INTEGERS = ("INT32", "INT64")

LIKE_INPUT = Constraint(
    "expected an output with the input's shape", lambda case: agrees(case, 0, input_shape(case, 0))
)
NOT_EMPTY = Constraint(
    "expected an input with elements: an empty input has no result",
    lambda case: elements(input_shape(case, 0)) > 0,
)
# NPU kernels refuse tensors without elements.
NOTHING_EMPTY = Constraint(
    "expected no dimension of 0",
    lambda case: all(slot.shape is None or slot.numel > 0 for slot in case.inputs or ()),
)


def accepted(found: T | StrEnum | None) -> T:
    """Return the sizes that were read of a case. Only of cases that the rules accept, from which
    there are sizes, tensors are made and costs are computed; raises CaseRejected for others."""
    if found is None or isinstance(found, StrEnum):
        raise CaseRejected("a rule refuses the case")
    return found


def reads(text: str, read: Callable[[Case], object]) -> Constraint:
    """Require a case from which its operator reads sizes."""
    return Constraint(text, lambda case: read(case) is not None)


def unless(exempt: Callable[[Case], bool], *constraints: Constraint) -> tuple[Constraint, ...]:
    """Return the constraints for the cases that are not exempt from them."""
    return tuple(
        Constraint(rule.text, lambda case, rule=rule: exempt(case) or rule.holds(case))  # type: ignore[misc]
        for rule in constraints
    )


def absent(text: str, *positions: int) -> Constraint:
    """Require empty cells at these positions of the inputs."""
    return Constraint(text, lambda case: all(given(case, i) is None for i in positions))


def absent_inputs(positions: frozenset[int], what: str) -> Constraint:
    """Require empty cells at these positions, and name what is not replayed."""
    return absent(f"{what}: not replayed; expected no shape in these slots", *positions)


def only_inputs(text: str, positions: Container[int]) -> Constraint:
    """Require empty cells at all other positions of the inputs."""
    return Constraint(
        text,
        lambda case: all(
            slot.shape is None or i in positions for i, slot in enumerate(case.inputs or ())
        ),
    )


def one_number(name: str, *positions: int) -> Constraint:
    """Require one number in each of these inputs."""
    return Constraint(
        f"expected one number for {name}",
        lambda case: all(input_shape(case, i) in ((), (1,)) for i in positions),
    )


def one_dtype(inputs: tuple[int, ...], outputs: tuple[int, ...] = (0,)) -> Constraint:
    """Require one dtype for the slots at these positions."""
    return Constraint(
        f"expected one dtype for {_names(inputs, outputs)}",
        lambda case: len(_dtypes(case, inputs, outputs)) <= 1,
    )


def floating(inputs: tuple[int, ...]) -> Constraint:
    """Require floating-point numbers in the inputs at these positions."""
    return Constraint(
        f"expected floating-point numbers for {_names(inputs, ())}",
        lambda case: all(dtype.is_floating for dtype in _dtypes(case, inputs, ())),
    )


def not_bool(inputs: tuple[int, ...], outputs: tuple[int, ...] = ()) -> Constraint:
    """Refuse BOOL, for which torch does not define this arithmetic."""
    return Constraint(
        f"BOOL is not replayed for {_names(inputs, outputs)}",
        lambda case: all(dtype.spelling != "BOOL" for dtype in _dtypes(case, inputs, outputs)),
    )


def outputs_are(spellings: tuple[str, ...], outputs: tuple[int, ...]) -> Constraint:
    """Require one of these dtypes for the outputs at these positions."""
    return Constraint(
        f"expected {' or '.join(spellings)} for {_names((), outputs)}",
        lambda case: all(dtype.spelling in spellings for dtype in _dtypes(case, (), outputs)),
    )


def inputs_are(spellings: tuple[str, ...], inputs: tuple[int, ...]) -> Constraint:
    """Require one of these dtypes for the inputs at these positions."""
    return Constraint(
        f"expected {' or '.join(spellings)} for {_names(inputs, ())}",
        lambda case: all(dtype.spelling in spellings for dtype in _dtypes(case, inputs, ())),
    )


def dtypes(inputs: dict[int, str], outputs: dict[int, str]) -> tuple[Constraint, ...]:
    """Return the rules that each of these slots has this dtype."""
    return (
        *(inputs_are((spelling,), (i,)) for i, spelling in inputs.items()),
        *(outputs_are((spelling,), (i,)) for i, spelling in outputs.items()),
    )


def _dtypes(case: Case, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> set[Dtype]:
    """Return the dtypes of the slots that the row has at these positions."""
    slots = [slot for i, slot in enumerate(case.inputs or ()) if i in inputs]
    named = [output_slot(case, i) for i in outputs]
    known = (slot.known_dtype for slot in (*slots, *named) if slot)
    return {dtype for dtype in known if dtype}


def _names(inputs: tuple[int, ...], outputs: tuple[int, ...]) -> str:
    """Return `inputs 1, 2 and output 1`: positions counted from 1."""
    sides = []
    for side, positions in (("input", inputs), ("output", outputs)):
        if positions:
            numbers = ", ".join(str(i + 1) for i in positions)
            sides.append(f"{side}{'s' if len(positions) > 1 else ''} {numbers}")
    return " and ".join(sides)
