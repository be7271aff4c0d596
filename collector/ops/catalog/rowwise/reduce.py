"""Reductions of some dimensions to one number for each of the others, and softmaxes over one."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

from collector.model.case import Case, Shape
from collector.model.lookup import Lookup, make_lookups
from collector.model.vocabulary import DYNAMIC
from collector.ops import rules
from collector.ops.launching import As, LaunchedBy, arguments_at, calls
from collector.ops.parts import like
from collector.ops.slots import broadcast, input_shape, output_shape
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
    kernel: str,
    call: str,
    dtype: str,
    *more: Constraint,
    run: Callable[..., Any] = call_plainly,
    lookups: tuple[Lookup, ...] = (),
    launched_by: LaunchedBy,
) -> OpSpec:
    """Return an operator; `run` takes (x, dimensions, whether they stay as 1)."""
    return OpSpec(
        kernel=kernel,
        call=call,
        signature=f"x T:{dtype}[*s], axes integer[]|[count] -> y T where s > 0, count > 0",
        build=_reduce_build,
        operations="s",
        constraints=(
            rules.reads(
                "expected an output that the input reduces to over as many dimensions as there "
                "are axes",
                reduced_dims,
            ),
            *more,
        ),
        npu=NpuCall(run=run),
        lookups=lookups,
        launched_by=launched_by,
        shown={"axes": As.COUNT},
    )


def _over_dims(name: str) -> LaunchedBy:
    return {name: arguments_at(outputs=-1)}


def boolean_reduction(kernel: str, call: str, lookups: tuple[Lookup, ...]) -> OpSpec:
    """Return a reduction of truth values: along one dimension, or over all to a scalar.

    torch reduces several dimensions one after another, with a kernel for each."""
    rule = Constraint("expected one axis, or all of them and a scalar", _is_one_or_all)
    by = _over_dims(f"aclnn{call.removeprefix('torch.').title()}")
    return reduction(
        kernel, call, "BOOL", rule, run=fold_one_or_all, lookups=lookups, launched_by=by
    )


def fold_one_or_all(fold: Callable[..., Any], x: Any, dims: tuple[int, ...], stays: bool) -> Any:
    """Run the function along one dimension, or over the whole tensor."""
    return fold(x, dims[0], stays) if len(dims) == 1 else fold(x)


def reduced_dims(case: Case) -> tuple[tuple[int, ...], bool] | None:
    """Return the dimensions that the kernel reduces, and whether they stay as 1.

    A row names only their number: the last dimensions that fit; None where none fit."""
    x, out = input_shape(case, 0), output_shape(case)
    (count,) = input_shape(case, 1) or (1,)
    for dims in sorted(combinations(range(len(x)), count), reverse=True):
        for stays in (False, True):
            if out == _without(x, dims, stays):
                return dims, stays
    return None


def _is_one_or_all(case: Case) -> bool:
    dims, stays = rules.accepted(reduced_dims(case))
    return len(dims) == 1 or (len(dims) == len(input_shape(case, 0)) and not stays)


def _without(x: Shape, dims: tuple[int, ...], stays: bool) -> Shape:
    return tuple(1 if i in dims else size for i, size in enumerate(x) if stays or i not in dims)


def _reduce_build(case: Case, make: TensorMaker) -> Call:
    return Call(like.normal((case.inputs or ())[0], make), *rules.accepted(reduced_dims(case)))


REDUCE_ALL = boolean_reduction(
    "ReduceAll", "torch.all", lookups=make_lookups("aten.all.dim", tc_input_count=1)
)
REDUCE_ANY = boolean_reduction(
    "ReduceAny", "torch.any", lookups=make_lookups("aten.any.dim", tc_input_count=1)
)
REDUCE_MAX = reduction(
    "ReduceMax",
    "torch.amax",
    "number",
    lookups=make_lookups("aten.amax.default", tc_input_count=1),
    launched_by={**_over_dims("aclnnAmax"), "aclnnMax": arguments_at(axes=0, outputs=1)},
)
REDUCE_MEAN = reduction(
    "ReduceMean",
    "torch.mean",
    "floating",
    lookups=make_lookups("aten.mean.dim", tc_input_count=1),
    launched_by=_over_dims("aclnnMean"),
)
REDUCE_MIN = reduction(
    "ReduceMin",
    "torch.amin",
    "number",
    lookups=make_lookups("aten.amin.default", tc_input_count=1),
    launched_by=_over_dims("aclnnAmin"),
)


def _reduce_sum_run(add_up: Any, x: Any, dims: tuple[int, ...], stays: bool) -> Any:
    """Run in the dtype of x, for integers too: torch would sum them as INT64, after a Cast."""
    return add_up(x, dims, stays, dtype=x.dtype)


# Sum over some dimensions, in the input's dtype.
REDUCE_SUM = reduction(
    "ReduceSum",
    "torch.sum",
    "number",
    run=_reduce_sum_run,
    lookups=make_lookups("aten.sum.dim_IntList", tc_input_count=1),
    launched_by=_over_dims("aclnnReduceSum"),
)


def _folded(case: Case) -> tuple[tuple[int, ...], bool] | None:
    """Return the dimensions that are summed, the last that fit, and whether they stay as 1."""
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
    return Call(like.normal((case.inputs or ())[0], make), *rules.accepted(_folded(case)))


# Sum over dimensions that are built into the kernel. Only graphs launch it: where all sizes are
# constant, CANN replaces a ReduceSum with it (its pass ConstToAttrReduceSumFusion).
REDUCE_SUM_D = OpSpec(
    kernel="ReduceSumD",
    call="torch.sum",
    assumes="of equal dimensions the last ones are summed",
    signature="x T:float[*s] -> y T where s > 0",
    build=_reduce_sum_d_build,
    operations="s",
    constraints=(
        rules.reads("expected an output that the input reduces to over some dimensions", _folded),
        Constraint(
            "expected OP State static, or none as in 2023: graphs of other sizes launch ReduceSum",
            lambda case: case.op_state != DYNAMIC,
        ),
    ),
    npu=NpuCall(graph=GraphCall(takes=lambda case: True, is_static=True)),
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
    signature="x T:floating[*s] -> y T[#]",
    operations="2 * s",  # a square and a sum
    launched_by=calls("aclnnLinalgVectorNorm"),
)


# A row does not name the dimension; models use the last one.
_LAST = -1


def softmax(
    kernel: str,
    call: str,
    *,
    slots: tuple[str, ...] = ("x",),
    run: Callable[..., Any],
    cost: int,
    **fields: Any,
) -> OpSpec:
    """Return an operator with one shape and dtype for all tensors; `cost` is per element."""
    inputs = ", ".join(f"{name} T:floating[*rows, n]" for name in slots)
    return OpSpec(
        kernel=kernel,
        call=call,
        signature=f"{inputs} -> y T[*rows, n]",
        operations=f"{cost} * rows * n",
        npu=NpuCall(run=run),
        **fields,
    )


# Softmax along the last dimension: probabilities of tokens or experts. Per element: the maximum, a
# difference, the exponential, the sum, a quotient.
SOFTMAX_V2 = softmax(
    "SoftmaxV2",
    "torch.softmax",
    run=lambda api, x: api(x, _LAST),
    cost=5,
    lookups=make_lookups("aten._softmax.default"),
    launched_by=calls("aclnnSoftmax"),
)

# Gradient of a softmax, from its result. Per element: a product and its sum, a difference, another
# product.
SOFTMAX_GRAD = softmax(
    "SoftmaxGrad",
    "torch.ops.aten._softmax_backward_data",
    slots=("softmax", "grad_softmax"),
    run=lambda backward, softmax, grad: backward(grad, softmax, _LAST, softmax.dtype),
    cost=4,
    launched_by=calls("aclnnSoftmaxBackward"),
)

# Logarithm of the softmax along the last dimension: log-probabilities of tokens. Per element: the
# maximum, a difference, the exponential, the sum, another difference.
LOG_SOFTMAX_V2 = softmax(
    "LogSoftmaxV2",
    "torch.log_softmax",
    run=lambda api, x: api(x, _LAST),
    cost=5,
    lookups=make_lookups("aten._log_softmax.default"),
    launched_by=calls("aclnnLogSoftmax"),
)

# Gradient of a log-softmax, from its result. Per element: the sum, the exponential, a product, a
# difference.
LOG_SOFTMAX_GRAD = softmax(
    "LogSoftmaxGrad",
    "torch.ops.aten._log_softmax_backward_data",
    slots=("grad", "result"),
    run=lambda backward, grad, result: backward(grad, result, _LAST, result.dtype),
    cost=4,
    launched_by=calls("aclnnLogSoftmaxBackward"),
)


# Softmax of attention scores, scaled and masked in the same kernel, and its gradient. A row does
# not record the factor: 1 here.
_SCALE, _TRIANGULAR = 1, False
_MASKED = -10000.0


def _scaled_masked(torch: Any, x: Any, mask: Any) -> Any:
    return torch.softmax(x.float().masked_fill_(mask, _MASKED), _LAST).to(x.dtype)


def _scaled_masked_grad(torch: Any, dy: Any, y: Any, mask: Any) -> Any:
    grad = torch.ops.aten._softmax_backward_data(dy.float(), y.float(), _LAST, torch.float32)
    return grad.masked_fill_(mask, 0).to(dy.dtype)


def _mask_fits(case: Case) -> bool:
    x, mask = input_shape(case, 0), input_shape(case, len(case.inputs or ()) - 1)
    return broadcast(x, mask) == x


def _scaled_masked_softmax(kernel: str, call: str, inputs: str, **fields: Any) -> OpSpec:
    return OpSpec(
        kernel=kernel,
        call=call,
        signature=f"{inputs}, mask BOOL -> out T[*s] where s_rank == 4",
        constraints=(Constraint("expected a mask that broadcasts to x", _mask_fits),),
        npu=NpuCall(run=lambda api, *tensors: api(*tensors, _SCALE, _TRIANGULAR)),
        **fields,
    )


SCALED_MASKED_SOFTMAX = _scaled_masked_softmax(
    "ScaledMaskedSoftmax",
    "torch_npu.npu_scaled_masked_softmax",
    "x T:float[*s]",
    reference=_scaled_masked,
    operations="7 * s",
)
SCALED_MASKED_SOFTMAX_GRAD = _scaled_masked_softmax(
    "ScaledMaskedSoftmaxGrad",
    "torch.ops.npu.npu_scaled_masked_softmax_backward",
    "y_grad T:float[*s], y T[*s]",
    reference=_scaled_masked_grad,
    operations="6 * s",
)
