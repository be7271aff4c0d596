"""Sums of each element and those before it, along a dimension. A profile does not tell which, but
aclnn writes dimension 0 as INT64 and others as INT32: for those, the last one."""

from math import prod
from typing import Any

from collector.case import Case
from collector.ops.dtypes import inputs_are, not_bool, one_dtype, spelling
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_AXIS = 1
# From where on aclnnCumsum of CANN 8.5 launches a CumsumCube on Atlas A2 and A3.
_CUBE_ROWS, _CUBE_LENGTH = 12800, 512


def _build(case: Case, make: TensorMaker) -> Call:
    x, axis = (case.inputs or ())[:2]
    return Call((make.normal(x.shape or (), x.dtype), 0 if spelling(axis) == "INT64" else -1))


def _run(cumsum: Any, x: Any, dim: int) -> Any:
    """Integers too: torch would add them up as INT64, after a Cast."""
    return cumsum(x, dim, dtype=x.dtype)


def _reference(torch: Any, x: Any, dim: int) -> Any:
    return _run(torch.cumsum, x, dim)


def _fits(case: Case) -> bool:
    x = input_shape(case, 0)
    return len(x) > 0 and agrees(case, 0, x)


def _stays_on_vectors(case: Case) -> bool:
    """Sums of many long rows are left to the matrix unit, by a kernel called CumsumCube."""
    x, (slot, axis) = input_shape(case, 0), (case.inputs or ())[:2]
    is_last = len(x) == 1 or spelling(axis) == "INT32"
    is_floating = spelling(slot) in ("FLOAT", "FLOAT16", "DT_BF16")
    is_big = prod(x[:-1]) >= _CUBE_ROWS and x[-1] >= _CUBE_LENGTH
    return not (is_floating and is_last and is_big)


OP = OpSpec(
    kernel="Cumsum",
    call="torch.cumsum",
    slots=("x", "axis"),
    reference=_reference,
    build=_build,
    flops=lambda case: elements(input_shape(case, 0)),
    constraints=(
        Constraint("the output wants the input's shape, of a dimension or more", _fits),
        Constraint("axis wants one number", lambda c: input_shape(c, _AXIS) in ((), (1,))),
        inputs_are(("INT32", "INT64"), (_AXIS,)),
        one_dtype((0,)),
        not_bool((0,)),
        Constraint(
            f"fewer than {_CUBE_ROWS} rows of {_CUBE_LENGTH} floating-point numbers are wanted",
            _stays_on_vectors,
        ),
    ),
    npu=NpuCall(run=_run),
)
