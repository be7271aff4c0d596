"""Single elements, looked up by number along one dimension: the last in which alone the index
differs from the input, or the last of all."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.indexing._lookup import INTEGERS
from collector.ops.dtypes import inputs_are, one_dtype
from collector.ops.parts.moving import no_flops, picked_bytes
from collector.ops.parts.positions import distinct_along
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Call, Constraint, OpSpec, TensorMaker

_RUN = 32


def _axis(case: Case) -> int | None:
    x, index = input_shape(case, 0), input_shape(case, 1)
    if len(x) != len(index):
        return None
    fits = (x[:i] + x[i + 1 :] == index[:i] + index[i + 1 :] for i in range(len(x)))
    axes = [axis for axis, fit in enumerate(fits) if fit and x[axis]]
    return axes[-1] if axes else None


def _build(case: Case, make: TensorMaker) -> Call:
    x, index = (case.inputs or ())[:2]
    axis = _axis(case) or 0
    size = input_shape(case, 0)[axis]
    return Call(
        (
            make.normal(x.shape or (), x.dtype),
            axis,
            distinct_along(make, index.shape or (), axis, size, index.dtype),
        )
    )


def _reference(torch: Any, x: Any, axis: int, index: Any) -> Any:
    return torch.gather(x, axis, index)


def _has_runs(case: Case) -> bool:
    """Else CANN transposes first, and the kernel sees another shape."""
    x, axis = input_shape(case, 0), _axis(case) or 0
    return axis == len(x) - 1 or elements(x[axis + 1 :]) > _RUN


OP = OpSpec(
    kernel="GatherElementsV2",
    call="torch.gather",
    assumes="all over the dimension, each element once where there are enough",
    slots=("x", "index"),
    reference=_reference,
    build=_build,
    flops=no_flops,
    traffic=picked_bytes,
    moves_data=True,
    constraints=(
        Constraint(
            "an index is wanted that differs from the input in one dimension at most, and an "
            "output like it",
            lambda case: _axis(case) is not None and agrees(case, 0, input_shape(case, 1)),
        ),
        Constraint(
            f"behind a dimension that is not the last, more than {_RUN} elements are wanted",
            _has_runs,
        ),
        inputs_are(INTEGERS, (1,)),
        inputs_are(("INT32", "FLOAT", "FLOAT16", "DT_BF16"), (0,)),  # others: GatherElements
        one_dtype((0,)),
    ),
)
