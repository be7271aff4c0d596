"""One forward pass of a model as cases: each kernel with its shapes, its layer and its count."""

from dataclasses import dataclass

from collector.model.record import CaseRecord
from collector.ops.parts.tensors import cumulative_ends, equal_parts

PAGE = 128  # tokens of a page of the cache, as in vLLM-Ascend


@dataclass(frozen=True, slots=True)
class StepKernel:
    """A case, its layer in the model, and its launches per pass."""

    layer: str
    record: CaseRecord
    times: int


@dataclass(frozen=True, slots=True)
class StepCollective:
    """A collective message of the pass, over ranks of tp or ep; the nearest ranks set its tier."""

    layer: str
    operation: str
    message_bytes: int
    group_size: int
    times: int


@dataclass(frozen=True, slots=True)
class Step:
    kernels: tuple[StepKernel, ...]
    collectives: tuple[StepCollective, ...]


def uneven_ends(routed: int, experts: int, percent: int) -> tuple[int, ...]:
    """Return the end of each expert's rows; all experts together have `routed` rows.

    The last ones have the most, `percent` more than an even share, and the first ones `percent`
    less."""
    if not percent:
        return cumulative_ends(equal_parts(routed, experts))
    shares = [100 * (experts - 1 or 1) + percent * (2 * at - experts + 1) for at in range(experts)]
    ends = cumulative_ends(shares)
    return tuple(routed * end // ends[-1] for end in ends)
