"""Logarithm of the softmax along the last dimension: log-probabilities of tokens."""

from typing import Any

from collector.ops.catalog.rowwise._softmax import LAST, softmax


def _run(function: Any, x: Any) -> Any:
    return function(x, LAST)


def _reference(torch: Any, x: Any) -> Any:
    return torch.log_softmax(x, LAST)


# the maximum, a difference, the exponential, the sum, another difference
OP = softmax("LogSoftmaxV2", "torch.log_softmax", _reference, run=_run, cost=5)
