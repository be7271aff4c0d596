"""Softmax and log-softmax along the last dimension, and their gradients."""

from collections.abc import Callable
from typing import Any

from collector.model.case import Case
from collector.ops.dtypes import floating, one_dtype
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Constraint, NpuCall, OpSpec

# A row does not name the dimension; models use the last one.
LAST = -1


def softmax(
    kernel: str,
    call: str,
    reference: Callable[..., Any],
    *,
    slots: tuple[str, ...] = ("x",),
    run: Callable[..., Any],
    cost: int,
) -> OpSpec:
    """Return an operator with one shape and dtype for all tensors; `cost` is per element."""
    inputs = tuple(range(len(slots)))
    return OpSpec(
        kernel=kernel,
        call=call,
        slots=slots,
        reference=reference,
        flops=lambda case: cost * elements(input_shape(case, 0)),
        constraints=(
            Constraint(
                "expected one shape for the output and every input, of at least one dimension",
                _are_alike,
            ),
            one_dtype(inputs),
            floating((0,)),
        ),
        npu=NpuCall(run=run),
    )


def _are_alike(case: Case) -> bool:
    x = input_shape(case, 0)
    others = (input_shape(case, i) for i in range(len(case.inputs or ())))
    return len(x) > 0 and all(shape == x for shape in others) and agrees(case, 0, x)


# Softmax along the last dimension: probabilities of tokens or experts.


def _softmax_v2_run(function: Any, x: Any) -> Any:
    return function(x, LAST)


def _softmax_v2_reference(torch: Any, x: Any) -> Any:
    return torch.softmax(x, LAST)


# the maximum, a difference, the exponential, the sum, a quotient
SOFTMAX_V2 = softmax(
    "SoftmaxV2", "torch.softmax", _softmax_v2_reference, run=_softmax_v2_run, cost=5
)


# Gradient of a softmax, from its result.


def _softmax_grad_run(backward: Any, softmax: Any, grad_softmax: Any) -> Any:
    return backward(grad_softmax, softmax, LAST, softmax.dtype)


def _softmax_grad_reference(torch: Any, softmax: Any, grad_softmax: Any) -> Any:
    return _softmax_grad_run(torch.ops.aten._softmax_backward_data, softmax, grad_softmax)


# a product and its sum, a difference, another product
SOFTMAX_GRAD = softmax(
    "SoftmaxGrad",
    "torch.ops.aten._softmax_backward_data",
    _softmax_grad_reference,
    slots=("softmax", "grad_softmax"),
    run=_softmax_grad_run,
    cost=4,
)


# Logarithm of the softmax along the last dimension: log-probabilities of tokens.


def _log_softmax_v2_run(function: Any, x: Any) -> Any:
    return function(x, LAST)


def _log_softmax_v2_reference(torch: Any, x: Any) -> Any:
    return torch.log_softmax(x, LAST)


# the maximum, a difference, the exponential, the sum, another difference
LOG_SOFTMAX_V2 = softmax(
    "LogSoftmaxV2", "torch.log_softmax", _log_softmax_v2_reference, run=_log_softmax_v2_run, cost=5
)


# Gradient of a log-softmax, from its result.


def _log_softmax_grad_run(backward: Any, grad: Any, result: Any) -> Any:
    return backward(grad, result, LAST, result.dtype)


def _log_softmax_grad_reference(torch: Any, grad: Any, result: Any) -> Any:
    return _log_softmax_grad_run(torch.ops.aten._log_softmax_backward_data, grad, result)


# the sum, the exponential, a product, a difference
LOG_SOFTMAX_GRAD = softmax(
    "LogSoftmaxGrad",
    "torch.ops.aten._log_softmax_backward_data",
    _log_softmax_grad_reference,
    slots=("grad", "result"),
    run=_log_softmax_grad_run,
    cost=4,
)
