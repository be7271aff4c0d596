"""Parts of a tensor replaced where rows of coordinates tell, in place: tokens written to a cache.

No part is named twice where there are enough: a cache has one slot for each token. The call that
ends with `_` works in place; the one without copies the tensor first.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import INTEGERS
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops, placed_bytes
from collector.ops.parts.positions import distinct_coordinates
from collector.ops.slots import Shape, agrees, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    """torch takes a tensor of coordinates for each dimension."""
    x, indices, updates = case.inputs or ()
    *rows, count = input_shape(case, 1)
    sizes = input_shape(case, 0)[:count]
    return Call(
        (
            make.normal(x.shape or (), x.dtype),
            tuple(distinct_coordinates(make, tuple(rows), sizes, indices.dtype)),
            make.normal(updates.shape or (), updates.dtype),
        )
    )


def _build_npu(case: Case, make: TensorMaker) -> Call:
    x, columns, updates = _build(case, make).args
    return Call((x, make.torch.stack(columns, -1), updates))


def _reference(torch: Any, x: Any, columns: Any, updates: Any) -> Any:
    return x.index_put_(columns, updates)


def _named(case: Case) -> Shape | None:
    """The shape of what the indices name; None where they do not fit."""
    x, (*rows, count) = input_shape(case, 0), input_shape(case, 1) or (0,)
    if not rows or not 0 < count <= len(x) or not all(x[:count]):
        return None
    return (*rows, *x[count:])


OP = OpSpec(
    kernel="ScatterNdUpdate",
    call="torch_npu.npu_scatter_nd_update_",
    assumes="all over the tensor, each place once where there are enough",
    slots=("x", "indices", "updates"),
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=lambda case: placed_bytes(case, 2),
    moves_data=True,
    constraints=(
        Constraint(
            "rows of coordinates are wanted, an update for each, and an output like the input",
            lambda case: (
                _named(case) == input_shape(case, 2) and agrees(case, 0, input_shape(case, 0))
            ),
        ),
        inputs_are(INTEGERS, (1,)),
        inputs_are(
            ("FLOAT", "FLOAT16", "DT_BF16", "INT8", "INT16", "INT32", "INT64", "BOOL"), (0,)
        ),
        one_dtype((0, 2)),
    ),
    npu=NpuCall(build=_build_npu),
    twins=("ScatterNdUpdateAiCore",),
)
