"""Single elements replaced where an index tells, in place, along the first or last dimension.

A profile does not tell which, nor whether they are added instead: the first where the index
differs from the tensor there alone, else the last; and they are not.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import INTEGERS
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops, placed_bytes
from collector.ops.parts.positions import distinct_along
from collector.ops.slots import agrees, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker


def _axis(case: Case) -> int | None:
    """None where no dimension fits: in the others no index is longer than the tensor, and but
    for the first and last they are equal (else CANN's AI CPU does it)."""
    x, index = input_shape(case, 0), input_shape(case, 1)
    if not x or len(index) != len(x) or index[1:-1] != x[1:-1]:
        return None
    last = len(x) - 1
    if index[1:] == x[1:] and index != x:
        return 0 if x[0] else None
    return last if x[last] and all(i <= n for i, n in zip(index[:last], x, strict=False)) else None


def _build(case: Case, make: TensorMaker) -> Call:
    x, index, updates = case.inputs or ()
    axis = _axis(case) or 0
    size = input_shape(case, 0)[axis]
    return Call(
        (
            make.normal(x.shape or (), x.dtype),
            axis,
            distinct_along(make, index.shape or (), axis, size, index.dtype),
            make.normal(updates.shape or (), updates.dtype),
        )
    )


def _reference(torch: Any, x: Any, axis: int, index: Any, updates: Any) -> Any:
    return x.scatter_(axis, index, updates)


def _fits(case: Case) -> bool:
    return (
        _axis(case) is not None
        and input_shape(case, 2) == input_shape(case, 1)
        and agrees(case, 0, input_shape(case, 0))
    )


OP = OpSpec(
    kernel="ScatterElementsV2",
    call="torch.Tensor.scatter_",
    slots=("x", "index", "updates"),
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=lambda case: placed_bytes(case, 2),
    moves_data=True,
    constraints=(
        Constraint(
            "an index is wanted that fits the input, updates like it, and an output like the input",
            _fits,
        ),
        inputs_are(INTEGERS, (1,)),
        inputs_are(("FLOAT", "FLOAT16", "DT_BF16", "INT32", "INT8", "UINT8"), (0,)),
        one_dtype((0, 2)),
    ),
)
