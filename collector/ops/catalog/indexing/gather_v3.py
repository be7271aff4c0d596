"""Parts of a tensor, looked up by number along the first dimension that the output tells.

`index_select` launches it on A2 and A3; an embedding launches GatherV2.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import INTEGERS
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops, picked_bytes
from collector.ops.slots import input_shape, output_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker


def _axis(case: Case) -> int | None:
    table, indices, out = input_shape(case, 0), input_shape(case, 1), output_shape(case)
    if len(indices) != 1:
        return None
    fits = (size and out == table[:i] + indices + table[i + 1 :] for i, size in enumerate(table))
    return next((axis for axis, fit in enumerate(fits) if fit), None)


def _build(case: Case, make: TensorMaker) -> Call:
    table, indices, *_ = case.inputs or ()
    axis = _axis(case) or 0
    size = input_shape(case, 0)[axis]
    return Call(
        (
            make.normal(table.shape or (), table.dtype),
            axis,
            make.integers(indices.shape or (), indices.dtype, 0, size),
        )
    )


def _reference(torch: Any, table: Any, axis: int, indices: Any) -> Any:
    return torch.index_select(table, axis, indices)


OP = OpSpec(
    kernel="GatherV3",
    call="torch.index_select",
    assumes="rows all over the table, each as likely",
    slots=("table", "indices", "axis"),
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=picked_bytes,
    moves_data=True,
    constraints=(
        Constraint(
            "a list of indices is wanted, and an output with a part of the table for each",
            lambda case: _axis(case) is not None,
        ),
        inputs_are(INTEGERS, (1,)),
        one_dtype((0,)),
    ),
)
