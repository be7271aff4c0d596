"""What the operators of mixtures of experts share: which experts a token goes to, and sorting by
them. A profile names neither experts nor loads: choices are random, and distinct for a token."""

from collections.abc import Sequence
from typing import Any

from collector.ops.spec import TensorMaker

_USUAL = 256  # experts, where a row does not tell how many


def experts_of(choices: int) -> int:
    """How many experts to choose from, where a row does not tell."""
    return max(_USUAL, choices)


def make_choices(make: TensorMaker, tokens: int, choices: int, experts: int, dtype: str) -> Any:
    """(tokens, choices): random experts, none twice for a token, as a router gives them."""
    scores = make.uniform((tokens, experts), "FLOAT", 0.0, 1.0)
    return scores.topk(choices, -1).indices.to(make.dtype(dtype))


def by_expert(choices: Any) -> tuple[Any, Any]:
    """Where each place of the order by expert comes from, and where each choice goes; choices of
    one expert keep their order."""
    order = choices.flatten().argsort(stable=True)
    return order, order.argsort()


def counts_of(torch: Any, choices: Any, experts: int) -> Any:
    """How many choices each expert has. No bincount: it would ask the device for its maximum."""
    ones = torch.ones_like(choices.flatten(), dtype=torch.int64)
    counts = torch.zeros(experts, dtype=torch.int64, device=choices.device)
    return counts.index_add_(0, choices.flatten(), ones)


def unwritten(make: TensorMaker, shape: Sequence[int]) -> Any:
    """What stands for an output of FLOAT that a kernel leaves as its memory was: a function gives
    it, but nobody may look at its numbers."""
    return make.full((1,), "FLOAT", 0.0).expand(tuple(shape))
