"""The plan of a probe, fixed before any rank starts, and the outcomes of its tries."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from collector.codec.canonical import decode_object
from collector.codec.errors import BadInput
from collector.comm.rank_files import RESULTS, whole_lines
from collector.ranks.experts import ExpertCall, check_expert_call, largest_buffsize_mb

# Find with few tries which calls of a grid an operator accepts.
#
# Assumption: an accepted call is also accepted with fewer tokens, fewer experts or fewer choices,
# all else equal. Then one try decides many points, and a bisection finds the limit along each axis.
# First the limit of each axis is searched with the other axes at their least, then their common
# corner is tried: this decides a region whose limits do not depend on each other, in at most twice
# the binary logarithm of the grid's points. If the limits do depend on each other, the first guess
# is a limit of tokens x choices; points that are still open are bisected line by line.

Point = tuple[int, int, int]  # indices of tokens, experts, choices
_GUESSES = 3  # for each number of choices
_OPEN, _ACCEPTED, _REFUSED, _NO_CALL = range(4)


@dataclass(frozen=True, slots=True)
class ProbeGrid:
    """The values of each axis, ascending."""

    tokens: tuple[int, ...]
    experts: tuple[int, ...]
    choices: tuple[int, ...]

    def __post_init__(self) -> None:
        for name in ("tokens", "experts", "choices"):
            values = getattr(self, name)
            if not values or list(values) != sorted(set(values)) or values[0] < 1:
                raise BadInput(f"{name}: expected ascending integers from 1, got {values}")

    @property
    def sizes(self) -> Point:
        return len(self.tokens), len(self.experts), len(self.choices)

    def values(self, point: Point) -> tuple[int, int, int]:
        """Return tokens, experts and choices of a point."""
        tokens, experts, choices = point
        return self.tokens[tokens], self.experts[experts], self.choices[choices]


@dataclass(frozen=True, slots=True)
class Limit:
    """For a number of experts and choices: the most accepted tokens and the fewest refused tokens;
    None if there are none on the grid, or if not known yet."""

    experts: int
    choices: int
    accepted: int | None
    refused: int | None


class Region:
    """The states of a grid's points. Points that are no valid call (more choices than experts) are
    neither tried nor recorded."""

    def __init__(self, grid: ProbeGrid, is_call: Callable[[Point], bool]) -> None:
        self._grid = grid
        self._state = np.full(grid.sizes, _OPEN, dtype=np.int8)
        for point in np.ndindex(*grid.sizes):
            if not is_call(_point(point)):
                self._state[point] = _NO_CALL

    def record(self, point: Point, is_accepted: bool) -> None:
        """Record the outcome of a try, and with it those of all smaller or all larger points."""
        at = np.ix_(
            *(
                range(place + 1) if is_accepted else range(place, size)
                for place, size in zip(point, self._grid.sizes, strict=True)
            )
        )
        states = self._state[at]
        states[states == _OPEN] = _ACCEPTED if is_accepted else _REFUSED
        self._state[at] = states

    def is_open(self, point: Point) -> bool:
        return bool(self._state[point] == _OPEN)

    def is_accepted(self, point: Point) -> bool:
        return bool(self._state[point] == _ACCEPTED)

    @property
    def open_points(self) -> int:
        """Return the number of points with unknown outcome."""
        return int((self._state == _OPEN).sum())

    def tries(self) -> Iterator[Point]:
        """Yield the points to try; record each outcome with `record` before taking the next."""
        lowest = (0, 0, 0)  # if it is refused, all others are, too
        if self.is_open(lowest):
            yield lowest
        for axis in range(3):
            while (self._line(axis, lowest) == _OPEN).any():
                yield self._middle(axis, lowest)
        corner = _point([self._last_accepted(axis) for axis in range(3)])
        if self.is_open(corner):
            yield corner
        for choices in range(self._grid.sizes[2]):
            for _ in range(_GUESSES):
                if (likely := self._likely(choices)) is not None:
                    yield likely
        while self.open_points:
            by_line = (self._state == _OPEN).sum(axis=0)
            experts, choice = np.unravel_index(int(by_line.argmax()), by_line.shape)
            yield self._middle(0, (0, int(experts), int(choice)))

    def limits(self) -> list[Limit]:
        """Return the limit of each line along tokens."""
        found = []
        for at, experts in enumerate(self._grid.experts):
            for to, choices in enumerate(self._grid.choices):
                line = self._state[:, at, to]
                if (line == _NO_CALL).all():
                    continue
                accepted, refused = (np.flatnonzero(line == s) for s in (_ACCEPTED, _REFUSED))
                found.append(
                    Limit(
                        experts,
                        choices,
                        self._grid.tokens[accepted[-1]] if len(accepted) else None,
                        self._grid.tokens[refused[0]] if len(refused) else None,
                    )
                )
        return found

    def _likely(self, choices: int) -> Point | None:
        """Return a point near the limit for a number of choices if the limit is on tokens x
        choices, as it is for the operator's own buffer: the last point below it, with the most
        experts, or the first point beyond it, with the fewest; None if both are known."""
        rows = np.outer(self._grid.tokens, self._grid.choices)
        accepted = rows[(self._state == _ACCEPTED).any(axis=1)]
        if not len(accepted):
            return None
        beyond = int((rows[:, choices] <= accepted.max()).sum())
        for tokens, which in ((beyond - 1, -1), (beyond, 0)):
            if 0 <= tokens < self._grid.sizes[0]:
                open_experts = np.flatnonzero(self._state[tokens, :, choices] == _OPEN)
                if len(open_experts):
                    return tokens, int(open_experts[which]), choices
        return None

    def _line(self, axis: int, start: Point) -> "np.ndarray[tuple[int], np.dtype[np.int8]]":
        at: list[int | slice] = list(start)
        at[axis] = slice(None)
        line: np.ndarray[tuple[int], np.dtype[np.int8]] = self._state[tuple(at)]
        return line

    def _middle(self, axis: int, start: Point) -> Point:
        """Return the middle of a line's open points."""
        places = np.flatnonzero(self._line(axis, start) == _OPEN)
        at = list(start)
        at[axis] = int(places[len(places) // 2])
        return _point(at)

    def _last_accepted(self, axis: int) -> int:
        accepted = np.flatnonzero(self._line(axis, (0, 0, 0)) == _ACCEPTED)
        return int(accepted[-1]) if len(accepted) else 0


def _point(places: "tuple[int, ...] | list[int]") -> Point:
    tokens, experts, choices = places
    return tokens, experts, choices


PROBER = "collector.comm.moe.prober"
OPERATOR, OPERATOR_OF_DECODE = "dispatch_ffn_combine", "dispatch_gmm_combine_decode"


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """Calls of `world` ranks over a grid, all else equal. A try may take `patience_s` until its
    tensors are there, and twice that for the call. `memory_bytes` is the memory that a rank may
    use; None means the free memory. `operator` is the operator of vLLM-Ascend's extension that
    an NPU runs. `prober` is the module of the process that each rank keeps."""

    backend: str
    world: int
    hidden: int
    intermediate: int
    weight_bits: int
    dtype: str
    grid: ProbeGrid
    patience_s: float
    memory_bytes: int | None = None
    seed: int = 0
    operator: str = OPERATOR
    prober: str = PROBER

    def call(self, point: Point) -> ExpertCall:
        """Return the call of a point of the grid."""
        tokens, experts, choices = self.grid.values(point)
        sizes = (tokens, self.hidden, self.intermediate, experts, choices)
        return ExpertCall(*sizes, self.world, self.weight_bits, self.dtype)

    def is_call(self, point: Point) -> bool:
        """Return whether a point is a valid call, accepted by an operator or not."""
        try:
            check_expert_call(self.call(point))
        except BadInput:
            return False
        return True

    def largest_buffsize_mb(self) -> int:
        """Return an HCCL_BUFFSIZE, in MiB, that is large enough for every call of the grid."""
        points = map(_point, np.ndindex(*self.grid.sizes))
        return largest_buffsize_mb(self.call(point) for point in points if self.is_call(point))

    def region(self, tries: Iterable["Try"] = ()) -> Region:
        """Return the region as the tries determine it."""
        region = Region(self.grid, self.is_call)
        for one in tries:
            region.record(one.point, one.is_accepted)
        return region

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


@dataclass(frozen=True, slots=True)
class Try:
    """A point that was tried. `reason` records which rank refused it, and why; `restarted` lists
    the ranks whose process the try ended."""

    point: Point
    is_accepted: bool
    reason: str = ""
    restarted: tuple[int, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def read_tries(folder: Path) -> list[Try]:
    """Return the tries that rank 0 has written so far."""
    lines = whole_lines(folder / RESULTS)
    return [decode_object(Try, line, what="a try", key=RESULTS) for line in lines]
