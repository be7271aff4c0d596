"""What the operators of mixtures of experts share: which experts a token goes to, and sorting by
them. A profile names neither experts nor loads: choices are random, and distinct for a token."""

from collections.abc import Sequence
from typing import Any

from collector.model.case import Case
from collector.ops.dtypes import spelling
from collector.ops.slots import output_shape, output_slot
from collector.ops.spec import Constraint, TensorMaker

_USUAL = 256  # experts, where a row does not tell how many


def experts_of(choices: int) -> int:
    """How many experts to choose from, where a row does not tell."""
    return max(_USUAL, choices)


def chosen_by_output(case: Case) -> int:
    """How many experts a token chooses, as the first output tells; 0 where there is none."""
    shape = output_shape(case, 0)
    return shape[-1] if shape else 0


def output_size(case: Case, position: int) -> int:
    """The size of an output of one dimension; 0 where there is none."""
    shape = output_shape(case, position)
    return shape[0] if shape and len(shape) == 1 else 0


def _is_moved_or_quantised(case: Case) -> bool:
    tokens, moved = (case.inputs or ())[0], output_slot(case, 0)
    is_moved = moved is None or moved.known_dtype == tokens.known_dtype
    return is_moved or spelling(moved) == "INT8"


MOVED_OR_QUANTISED = Constraint(
    "the first output wants the dtype of x, or INT8", _is_moved_or_quantised
)


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
