"""Values in descending order along the last dimension, and where they were."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.rowwise._indices import narrowed
from collector.ops.dtypes import one_dtype, outputs_are
from collector.ops.parts.moving import no_flops
from collector.ops.slots import agrees, input_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    (x,), indices = case.inputs or (), output_slot(case, 1)
    return Call(
        (make.normal(x.shape or (), x.dtype), make.dtype(indices.dtype if indices else "INT64"))
    )


def _reference(torch: Any, x: Any, index_dtype: Any) -> Any:
    values, indices = torch.sort(x, dim=-1, descending=True)
    return values, indices.to(index_dtype)


def _run(sort: Any, x: Any, index_dtype: Any) -> Any:
    """One Sort; where the row's indices are INT32, and a Cast that aclnn adds."""
    values, indices = sort(x, dim=-1, descending=True)
    return values, narrowed(indices, index_dtype)


OP = OpSpec(
    kernel="Sort",
    call="torch.sort",
    assumes="numbers at random, in no order",
    slots=("x",),
    reference=_reference,
    build=_build,
    flops=no_flops,
    constraints=(
        one_dtype((0,)),
        outputs_are(("INT32", "INT64"), (1,)),
        Constraint(
            "both outputs want the input's shape",
            lambda case: all(agrees(case, i, input_shape(case, 0)) for i in (0, 1)),
        ),
    ),
    npu=NpuCall(run=_run),
)
