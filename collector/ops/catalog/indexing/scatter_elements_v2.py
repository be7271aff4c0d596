"""Single elements replaced where an index tells, in place, along the last dimension.

CANN's kernel scatters along the last dimension alone: for another aclnn transposes first, and the
row shows what was transposed (aclnn_scatter.cpp of ops-nn). A profile does not tell whether
elements are added instead; here they are not.
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import INTEGERS
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops, placed_bytes
from collector.ops.parts.positions import distinct_along
from collector.ops.slots import agrees, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    x, index, updates = case.inputs or ()
    *_, size = input_shape(case, 0)
    shape = index.shape or ()
    last = len(shape) - 1
    return Call(
        (
            make.normal(x.shape or (), x.dtype),
            last,
            distinct_along(make, shape, last, size, index.dtype),
            make.normal(updates.shape or (), updates.dtype),
        )
    )


def _reference(torch: Any, x: Any, axis: int, index: Any, updates: Any) -> Any:
    return x.scatter_(axis, index, updates)


def _fits(case: Case) -> bool:
    """Between the first and the last dimension an index is as long as the tensor (else CANN's AI
    CPU does it), and in the first no longer."""
    x, index = input_shape(case, 0), input_shape(case, 1)
    if not x or len(index) != len(x) or not x[-1]:
        return False
    is_in_x = index[1:-1] == x[1:-1] and (len(x) == 1 or index[0] <= x[0])
    return is_in_x and input_shape(case, 2) == index and agrees(case, 0, x)


OP = OpSpec(
    kernel="ScatterElementsV2",
    call="torch.Tensor.scatter_",
    assumes="the last dimension; all over it, each element once where there are enough",
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
