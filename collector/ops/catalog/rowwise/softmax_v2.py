"""Softmax along the last dimension: probabilities of tokens or experts."""

from typing import Any

from collector.ops.catalog.rowwise._softmax import LAST, softmax


def _run(function: Any, x: Any) -> Any:
    return function(x, LAST)


def _reference(torch: Any, x: Any) -> Any:
    return torch.softmax(x, LAST)


# the maximum, a difference, the exponential, the sum, a quotient
OP = softmax("SoftmaxV2", "torch.softmax", _reference, run=_run, cost=5)
