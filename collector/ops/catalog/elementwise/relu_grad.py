"""What flows back through a ReLU: the gradient where the element is positive, else 0."""

from typing import Any

from collector.ops.catalog.elementwise._elementwise import gradient

_THRESHOLD = 0


def _reference(torch: Any, gradients: Any, features: Any) -> Any:
    return torch.ops.aten.threshold_backward(gradients, features, _THRESHOLD)


def _run(threshold_backward: Any, gradients: Any, features: Any) -> Any:
    return threshold_backward(gradients, features, _THRESHOLD)


OP = gradient(
    "ReluGrad",
    "torch.ops.aten.threshold_backward",
    _reference,
    ("gradients", "features"),
    cost=1,
    run=_run,
)
