"""What flows back through the logarithm of a softmax, from its result."""

from typing import Any

from collector.ops.catalog.rowwise._softmax import LAST, softmax


def _run(backward: Any, grad: Any, result: Any) -> Any:
    return backward(grad, result, LAST, result.dtype)


def _reference(torch: Any, grad: Any, result: Any) -> Any:
    return _run(torch.ops.aten._log_softmax_backward_data, grad, result)


# the sum, the exponential, a product, a difference
OP = softmax(
    "LogSoftmaxGrad",
    "torch.ops.aten._log_softmax_backward_data",
    _reference,
    slots=("grad", "result"),
    run=_run,
    cost=4,
)
