"""Tensors of one shape joined along a new dimension: the first whose size is their number."""

from collector.case import Case
from collector.ops.catalog.movement._joined import joined
from collector.ops.slots import input_shape, output_shape
from collector.ops.spec import Constraint


def _dim(case: Case) -> int | None:
    """The first dimension of the output that the inputs lack; None where they do not fit."""
    count, whole = len(case.inputs or ()), output_shape(case)
    parts = {input_shape(case, i) for i in range(count)}
    if whole is None or len(parts) != 1:
        return None
    (part,) = parts
    dims = range(len(part) + 1)
    return next((dim for dim in dims if whole == (*part[:dim], count, *part[dim:])), None)


OP = joined(
    "Pack",
    "torch.stack",
    lambda torch, parts, dim, out: torch.stack(parts, dim, out=out),
    _dim,
    Constraint(
        "inputs of one shape are wanted, and an output with one dimension more: their number",
        lambda case: _dim(case) is not None,
    ),
)
