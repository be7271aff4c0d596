"""Operators that reduce some dimensions of a tensor to one number for each of the others."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

from collector.model.case import Case
from collector.ops.dtypes import floating, inputs_are, not_bool, one_dtype
from collector.ops.parts import like
from collector.ops.parts.tensors import NOT_EMPTY, per_element
from collector.ops.slots import Shape, agrees, input_shape, output_shape
from collector.ops.spec import (
    Call,
    Constraint,
    GraphCall,
    NpuCall,
    OpSpec,
    TensorMaker,
    call_plainly,
)


def reduction(
    kernel: str, call: str, *rules: Constraint, run: Callable[..., Any] = call_plainly
) -> OpSpec:
    """Return an operator; `run` takes (x, dimensions, whether they stay as 1)."""
    return OpSpec(
        kernel=kernel,
        call=call,
        slots=("x", "axes"),
        build=_reduce_build,
        flops=per_element(1),
        constraints=(
            Constraint(
                "expected an output that the input reduces to over as many dimensions as there "
                "are axes",
                lambda case: reduced_dims(case) is not None,
            ),
            NOT_EMPTY,
            inputs_are(("INT32", "INT64"), (1,)),
            one_dtype((0,)),
            *rules,
        ),
        npu=NpuCall(run=run),
    )


def boolean_reduction(kernel: str, call: str) -> OpSpec:
    """Return a reduction of truth values: along one dimension, or over all to a scalar.

    torch reduces several dimensions one after another, with a kernel for each."""
    rule = Constraint("expected one axis, or all of them and a scalar", _is_one_or_all)
    return reduction(kernel, call, inputs_are(("BOOL",), (0,)), rule, run=fold_one_or_all)


def fold_one_or_all(fold: Callable[..., Any], x: Any, dims: tuple[int, ...], stays: bool) -> Any:
    """Run the function along one dimension, or over the whole tensor."""
    return fold(x, dims[0], stays) if len(dims) == 1 else fold(x)


def reduced_dims(case: Case) -> tuple[tuple[int, ...], bool] | None:
    """Return the dimensions that the kernel reduces, and whether they stay as 1.

    A row names only their number. If several choices fit, the last dimensions; None where none fit.
    """
    x, out = input_shape(case, 0), output_shape(case)
    count = _count(input_shape(case, 1))
    for dims in sorted(combinations(range(len(x)), count), reverse=True):
        for stays in (False, True):
            if out == _without(x, dims, stays):
                return dims, stays
    return None


def _count(axes: Shape) -> int:
    """Return the number of axes in a tensor of axes; 99, more than possible, if it is no list."""
    return 1 if axes == () else axes[0] if len(axes) == 1 and axes[0] > 0 else 99


def _is_one_or_all(case: Case) -> bool:
    dims, stays = reduced_dims(case) or ((), False)
    return len(dims) == 1 or (len(dims) == len(input_shape(case, 0)) and not stays)


def _without(x: Shape, dims: tuple[int, ...], stays: bool) -> Shape:
    sizes = ((1 if i in dims else size) for i, size in enumerate(x) if stays or i not in dims)
    return tuple(sizes)


def _reduce_build(case: Case, make: TensorMaker) -> Call:
    slot = (case.inputs or ())[0]
    return Call(like.normal(slot, make), *(reduced_dims(case) or ()))


# Whether all elements along some dimensions are true.
REDUCE_ALL = boolean_reduction("ReduceAll", "torch.all")

# Whether any element along some dimensions is true.
REDUCE_ANY = boolean_reduction("ReduceAny", "torch.any")

# The maximum over some dimensions.
REDUCE_MAX = reduction("ReduceMax", "torch.amax", not_bool((0,)))

# Mean over some dimensions.
REDUCE_MEAN = reduction("ReduceMean", "torch.mean", floating((0,)))

# The minimum over some dimensions.
REDUCE_MIN = reduction("ReduceMin", "torch.amin", not_bool((0,)))


# Sum over some dimensions, in the input's dtype.


def _reduce_sum_run(add_up: Any, x: Any, dims: tuple[int, ...], stays: bool) -> Any:
    """Run in the dtype of x, for integers too: torch would sum them as INT64, after a Cast."""
    return add_up(x, dims, stays, dtype=x.dtype)


REDUCE_SUM = reduction("ReduceSum", "torch.sum", not_bool((0,)), run=_reduce_sum_run)


# Sum over dimensions that are built into the kernel. Only graphs launch it: where all sizes are
# constant, CANN replaces a ReduceSum with it (its pass ConstToAttrReduceSumFusion).


def _folded(case: Case) -> tuple[tuple[int, ...], bool] | None:
    """Return the dimensions that are summed, and whether they stay as 1.

    If several choices fit, for example dimensions of equal size, the last ones; None where none
    fit."""
    x, out = input_shape(case, 0), output_shape(case)
    if out is None or len(out) > len(x):
        return None
    if len(out) == len(x):
        dims = tuple(i for i, size in enumerate(x) if size != out[i])
        return (dims, True) if dims and all(out[i] == 1 for i in dims) else None
    choices = combinations(range(len(x)), len(x) - len(out))
    dims = max((dims for dims in choices if _without(x, dims, False) == out), default=())
    return (dims, False) if dims else None


def _reduce_sum_d_build(case: Case, make: TensorMaker) -> Call:
    (x, *_), reduced_dims = case.inputs or (), _folded(case) or ((), False)
    return Call(like.normal(x, make), *reduced_dims)


REDUCE_SUM_D = OpSpec(
    kernel="ReduceSumD",
    call="torch.sum",
    assumes="of equal dimensions the last ones are summed",
    slots=("x",),
    build=_reduce_sum_d_build,
    flops=per_element(1),
    constraints=(
        inputs_are(("FLOAT", "FLOAT16", "DT_BF16"), (0,)),
        one_dtype((0,)),
        Constraint(
            "expected an output that the input reduces to over some dimensions",
            lambda case: _folded(case) is not None,
        ),
        NOT_EMPTY,
        Constraint(
            "expected OP State static: graphs of other sizes launch ReduceSum",
            lambda case: case.op_state == "static",
        ),
    ),
    npu=NpuCall(graph=GraphCall(takes=lambda case: True)),
)

# Norm of a whole tensor: gradient clipping uses it. A profile does not record p: 2 here.
#
# For this one call CANN launches LpNormV2 on A2 and A3. On older chips (910A, 310P) it launches
# LpNormReduceV2, which adds up powers, and then an LpNormUpdateV2 of the one sum (its open sources,
# ops-math).
LP_NORM_V2 = OpSpec(
    kernel="LpNormV2",
    twins=("LpNormReduceV2",),
    call="torch.linalg.vector_norm",
    slots=("x",),
    flops=per_element(2),  # a square and a sum
    constraints=(
        floating((0,)),
        one_dtype((0,)),
        Constraint(
            "expected the norm over all dimensions, a scalar",
            lambda case: agrees(case, 0, ()) or agrees(case, 0, (1,)),
        ),
    ),
)
