"""Rules that the operators of a serving engine share: routing, rotary positions, caches."""

from typing import Any

from collector.model.case import Case
from collector.ops.dtypes import inputs_are, outputs_are
from collector.ops.slots import Shape, agrees
from collector.ops.spec import Constraint

HALVES = ("FLOAT16", "DT_BF16")
FLOATS = (*HALVES, "FLOAT")


def nothing_empty() -> Constraint:
    """Kernels of NPUs refuse tensors without elements."""
    return Constraint(
        "a dimension of 0 is not replayed",
        lambda case: all(slot.shape is None or slot.numel > 0 for slot in case.inputs or ()),
    )


def left_out(positions: frozenset[int], what: str) -> Constraint:
    """The inputs at these positions are empty cells."""
    return Constraint(
        f"{what}: not replayed, these slots want no shape",
        lambda case: all(
            slot.shape is None for i, slot in enumerate(case.inputs or ()) if i in positions
        ),
    )


def dtypes(inputs: dict[int, str], outputs: dict[int, str]) -> tuple[Constraint, ...]:
    """The one dtype that each of these slots has."""
    return (
        *(inputs_are((spelling,), (i,)) for i, spelling in inputs.items()),
        *(outputs_are((spelling,), (i,)) for i, spelling in outputs.items()),
    )


def outputs_agree(case: Case, *shapes: Shape) -> bool:
    """Whether the outputs have these shapes, in order, as far as the row names them."""
    return all(agrees(case, position, shape) for position, shape in enumerate(shapes))


# What the function of a release takes: one declaration serves releases that differ in it.


def accepts(api: Any, name: str) -> bool:
    """Whether an operator of torch takes an argument of this name, by its schemas. One that tells
    no schema is taken to: it raises where it does not."""
    overloads = getattr(api, "overloads", None)
    if overloads is None:
        return True
    schemas = (getattr(api, overload)._schema for overload in overloads())
    return any(argument.name == name for schema in schemas for argument in schema.arguments)
