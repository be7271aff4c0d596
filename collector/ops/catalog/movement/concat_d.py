"""Tensors joined along the one dimension in which the output is their sum; in graphs
`ConcatV2D`."""

from collector.case import Case
from collector.ops.catalog.movement._joined import joined
from collector.ops.slots import input_shape, output_shape
from collector.ops.spec import Constraint


def _dim(case: Case) -> int | None:
    """The first dimension along which the inputs make up the output; None where none does."""
    parts, whole = [input_shape(case, i) for i in range(len(case.inputs or ()))], output_shape(case)
    if whole is None or any(len(part) != len(whole) for part in parts):
        return None
    for dim, size in enumerate(whole):
        others = whole[:dim] + whole[dim + 1 :]
        if size == sum(part[dim] for part in parts) and all(
            part[:dim] + part[dim + 1 :] == others for part in parts
        ):
            return dim
    return None


OP = joined(
    "ConcatD",
    "torch.cat",
    lambda torch, parts, dim, out: torch.cat(parts, dim, out=out),
    _dim,
    Constraint(
        "inputs are wanted that make up the output along one dimension",
        lambda case: _dim(case) is not None,
    ),
    # `cat` of one tensor launches TensorMove, as profiles of CANN 8.3 show.
    Constraint("two inputs are wanted, or more", lambda case: len(case.inputs or ()) > 1),
    of_graphs="ConcatV2D",
)
