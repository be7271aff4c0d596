"""Shared rules of a serving engine's operators: routing, rotary positions, caches."""

from typing import Any

from collector.model.case import Case
from collector.ops.dtypes import inputs_are, outputs_are
from collector.ops.slots import Shape, agrees
from collector.ops.spec import Constraint

HALF_DTYPES = ("FLOAT16", "DT_BF16")
FLOATS = (*HALF_DTYPES, "FLOAT")


def nothing_empty() -> Constraint:
    """Return the rule that no tensor is empty: NPU kernels refuse tensors without elements."""
    return Constraint(
        "expected no dimension of 0",
        lambda case: all(slot.shape is None or slot.numel > 0 for slot in case.inputs or ()),
    )


def absent_inputs(positions: frozenset[int], what: str) -> Constraint:
    """Return the rule that the inputs at these positions are empty cells."""
    return Constraint(
        f"{what}: not replayed; expected no shape in these slots",
        lambda case: all(
            slot.shape is None for i, slot in enumerate(case.inputs or ()) if i in positions
        ),
    )


def dtypes(inputs: dict[int, str], outputs: dict[int, str]) -> tuple[Constraint, ...]:
    """Return the rules that each of these slots has this dtype."""
    return (
        *(inputs_are((spelling,), (i,)) for i, spelling in inputs.items()),
        *(outputs_are((spelling,), (i,)) for i, spelling in outputs.items()),
    )


def outputs_agree(case: Case, *shapes: Shape) -> bool:
    """Return whether the outputs have these shapes, in order, as far as the row names them."""
    return all(agrees(case, position, shape) for position, shape in enumerate(shapes))


# Arguments of a function that differ between releases: one declaration serves all of them.


def accepts(api: Any, name: str) -> bool:
    """Return whether an operator of torch takes an argument of this name, according to its schemas.

    Without a schema the result is True: the operator raises where it does not take the argument."""
    overloads = getattr(api, "overloads", None)
    if overloads is None:
        return True
    schemas = (getattr(api, overload)._schema for overload in overloads())
    return any(argument.name == name for schema in schemas for argument in schema.arguments)
