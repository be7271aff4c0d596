"""What flows back through a softmax, from its result."""

from typing import Any

from collector.ops.catalog.rowwise._softmax import LAST, softmax


def _run(backward: Any, softmax: Any, grad_softmax: Any) -> Any:
    return backward(grad_softmax, softmax, LAST, softmax.dtype)


def _reference(torch: Any, softmax: Any, grad_softmax: Any) -> Any:
    return _run(torch.ops.aten._softmax_backward_data, softmax, grad_softmax)


# a product and its sum, a difference, another product
OP = softmax(
    "SoftmaxGrad",
    "torch.ops.aten._softmax_backward_data",
    _reference,
    slots=("softmax", "grad_softmax"),
    run=_run,
    cost=4,
)
