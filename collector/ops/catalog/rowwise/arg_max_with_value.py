"""The greatest element of each row, and where it is."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.rowwise._indices import narrowed
from collector.ops.dtypes import not_bool, one_dtype, outputs_are
from collector.ops.slots import agrees, elements, input_shape, output_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_INDICES, _VALUES = range(2)


def _folded(case: Case) -> tuple[int, bool] | None:
    """The dimension that is searched, and whether it stays as 1: of several that would do, the
    last; None where none does."""
    x, out = input_shape(case, 0), output_shape(case, _VALUES)
    for dim in reversed(range(len(x))):
        for stays in (False, True):
            if out == (*x[:dim], *((1,) if stays else ()), *x[dim + 1 :]):
                return dim, stays
    return None


def _build(case: Case, make: TensorMaker) -> Call:
    (x, *_), indices = case.inputs or (), (case.outputs or ())[_INDICES]
    dim, stays = _folded(case) or (-1, False)
    return Call((make.normal(x.shape or (), x.dtype), dim, stays, make.dtype(indices.dtype)))


def _reference(torch: Any, x: Any, dim: int, stays: bool, dtype: Any) -> Any:
    values, indices = torch.max(x, dim, stays)
    return indices.to(dtype), values


def _run(search: Any, x: Any, dim: int, stays: bool, dtype: Any) -> Any:
    """One kernel, and a Cast that aclnn adds to give INT64."""
    values, indices = search(x, dim, stays)
    return narrowed(indices, dtype), values


def _fits(case: Case) -> bool:
    return _folded(case) is not None and agrees(case, _INDICES, output_shape(case, _VALUES))


OP = OpSpec(
    kernel="ArgMaxWithValue",
    call="torch.max",
    assumes="numbers at random; of equal dimensions the last is searched",
    slots=("x",),
    reference=_reference,
    build=_build,
    flops=lambda case: elements(input_shape(case, 0)),
    constraints=(
        Constraint("indices and values are wanted, one for each row of the input", _fits),
        Constraint("an empty input has no greatest", lambda c: elements(input_shape(c, 0)) > 0),
        outputs_are(("INT32", "INT64"), (_INDICES,)),
        one_dtype((0,), (_VALUES,)),
        not_bool((0,)),
    ),
    npu=NpuCall(run=_run),
)
