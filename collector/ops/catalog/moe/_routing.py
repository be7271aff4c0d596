"""Shared code of the mixture-of-experts operators: expert choices, and sorting by expert.

A profile names neither experts nor loads: choices are random, and distinct for each token.
"""

from collections.abc import Sequence
from typing import Any

from collector.model.case import Case
from collector.ops.slots import output_shape
from collector.ops.spec import TensorMaker

_USUAL = 256  # experts, where a row does not record the number


def expert_count(choices: int) -> int:
    """Return the number of experts to choose from, where a row does not record it."""
    return max(_USUAL, choices)


def chosen_by_output(case: Case) -> int:
    """Return the number of experts that a token chooses, from the first output; 0 without one."""
    shape = output_shape(case, 0)
    return shape[-1] if shape else 0


def output_size(case: Case, position: int) -> int:
    """Return the size of a one-dimensional output; 0 where there is none."""
    shape = output_shape(case, position)
    return shape[0] if shape and len(shape) == 1 else 0


def make_choices(make: TensorMaker, tokens: int, choices: int, experts: int, dtype: str) -> Any:
    """Return random experts (tokens, choices), distinct for each token, as a router does."""
    scores = make.uniform((tokens, experts), "FLOAT", 0.0, 1.0)
    return scores.topk(choices, -1).indices.to(make.dtype(dtype))


def by_expert(choices: Any) -> tuple[Any, Any]:
    """Return the order of the choices by expert, and the position of each choice in that order.

    The order is stable: choices of one expert keep their order."""
    order = choices.flatten().argsort(stable=True)
    return order, order.argsort()


def counts_of(torch: Any, choices: Any, experts: int) -> Any:
    """Return the number of choices of each expert.

    It does not use bincount, which would read the maximum back from the device."""
    ones = torch.ones_like(choices.flatten(), dtype=torch.int64)
    counts = torch.zeros(experts, dtype=torch.int64, device=choices.device)
    return counts.index_add_(0, choices.flatten(), ones)


def unwritten(make: TensorMaker, shape: Sequence[int]) -> Any:
    """Return a placeholder for a FLOAT output that a kernel leaves unwritten.

    The function returns such an output, but its values are undefined and must not be read."""
    return make.full((1,), "FLOAT", 0.0).expand(tuple(shape))
