"""Softmax and log-softmax along the last dimension, and their gradients."""

from collections.abc import Callable
from typing import Any

from collector.model.case import Case
from collector.ops.dtypes import floating, one_dtype
from collector.ops.parts.tensors import per_element
from collector.ops.slots import agrees, input_shape
from collector.ops.spec import Constraint, NpuCall, OpSpec

# A row does not name the dimension; models use the last one.
_LAST = -1


def softmax(
    kernel: str, call: str, *, slots: tuple[str, ...] = ("x",), run: Callable[..., Any], cost: int
) -> OpSpec:
    """Return an operator with one shape and dtype for all tensors; `cost` is per element."""
    inputs = tuple(range(len(slots)))
    return OpSpec(
        kernel=kernel,
        call=call,
        slots=slots,
        flops=per_element(cost),
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


# Softmax along the last dimension: probabilities of tokens or experts. Per element: the maximum, a
# difference, the exponential, the sum, a quotient.
SOFTMAX_V2 = softmax("SoftmaxV2", "torch.softmax", run=lambda api, x: api(x, _LAST), cost=5)

# Gradient of a softmax, from its result. Per element: a product and its sum, a difference, another
# product.
SOFTMAX_GRAD = softmax(
    "SoftmaxGrad",
    "torch.ops.aten._softmax_backward_data",
    slots=("softmax", "grad_softmax"),
    run=lambda backward, softmax, grad: backward(grad, softmax, _LAST, softmax.dtype),
    cost=4,
)

# Logarithm of the softmax along the last dimension: log-probabilities of tokens. Per element: the
# maximum, a difference, the exponential, the sum, another difference.
LOG_SOFTMAX_V2 = softmax(
    "LogSoftmaxV2", "torch.log_softmax", run=lambda api, x: api(x, _LAST), cost=5
)

# Gradient of a log-softmax, from its result. Per element: the sum, the exponential, a product, a
# difference.
LOG_SOFTMAX_GRAD = softmax(
    "LogSoftmaxGrad",
    "torch.ops.aten._log_softmax_backward_data",
    slots=("grad", "result"),
    run=lambda backward, grad, result: backward(grad, result, _LAST, result.dtype),
    cost=4,
)
