"""What a probe tries, decided before any rank starts, and what became of it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from collector.codec.errors import BadInput
from collector.comm.rank_files import RESULTS
from collector.ranks.experts import ExpertCall, check, largest_buffsize_mb

# Which calls of a grid an operator accepts, found with few tries.
#
# Assumed: what is accepted is accepted with fewer tokens, fewer experts or fewer choices, too, all
# else equal. Then one answer settles many points, and along each axis a limit is found by
# bisection. First the limit of each axis is sought with the others at their least, then their
# common corner is tried: a region whose limits do not depend on each other is known by that, in no
# more than twice the binary logarithm of the grid's points. Where they do, a limit of tokens x
# choices is the first guess; whatever is open after that is bisected line by line.

Point = tuple[int, int, int]  # places in tokens, experts, choices
_GUESSES = 3  # of each number of choices
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
        """Tokens, experts and choices of a point."""
        tokens, experts, choices = point
        return self.tokens[tokens], self.experts[experts], self.choices[choices]


@dataclass(frozen=True, slots=True)
class Limit:
    """With so many experts and choices: the most tokens that were accepted, and the fewest that
    were refused; None where there are none on the grid, or where nobody knows yet."""

    experts: int
    choices: int
    accepted: int | None
    refused: int | None


class Region:
    """What is known of a grid's points. Points that are no call (more choices than experts) are
    neither tried nor told."""

    def __init__(self, grid: ProbeGrid, is_call: Callable[[Point], bool]) -> None:
        self._grid = grid
        self._state = np.full(grid.sizes, _OPEN, dtype=np.int8)
        for point in np.ndindex(*grid.sizes):
            if not is_call(_point(point)):
                self._state[point] = _NO_CALL

    def tell(self, point: Point, is_accepted: bool) -> None:
        """What became of a try, and with it of all that is smaller or larger."""
        at = np.ix_(
            *(
                range(place + 1) if is_accepted else range(place, size)
                for place, size in zip(point, self._grid.sizes, strict=True)
            )
        )
        told = self._state[at]
        told[told == _OPEN] = _ACCEPTED if is_accepted else _REFUSED
        self._state[at] = told

    def is_open(self, point: Point) -> bool:
        return bool(self._state[point] == _OPEN)

    def is_accepted(self, point: Point) -> bool:
        return bool(self._state[point] == _ACCEPTED)

    @property
    def open_points(self) -> int:
        """Of how many nobody knows."""
        return int((self._state == _OPEN).sum())

    def open_list(self) -> list[Point]:
        """Those points."""
        return [_point(at) for at in np.argwhere(self._state == _OPEN).tolist()]

    def tries(self) -> Iterator[Point]:
        """The points to try, one after the other; each has to be told before the next is taken."""
        yield from self._bisected(0, (0, 0, 0), is_lowest_first=True)
        for axis in (1, 2):
            yield from self._bisected(axis, (0, 0, 0))
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
        """Of each line along tokens."""
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
        """Where the limit of so many choices is if tokens x choices are what is limited, as they
        are by the operator's own buffer: its last point, with the most experts, or the one beyond
        it, with the fewest; None where both are known."""
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

    def _bisected(
        self, axis: int, start: Point, *, is_lowest_first: bool = False
    ) -> Iterator[Point]:
        """Tries along an axis until its line is known. The lowest of all comes first, since where
        it is refused nothing else is to be tried."""
        if is_lowest_first and self.is_open(start):
            yield start
        while (self._line(axis, start) == _OPEN).any():
            yield self._middle(axis, start)

    def _line(self, axis: int, start: Point) -> "np.ndarray[tuple[int], np.dtype[np.int8]]":
        at: list[int | slice] = list(start)
        at[axis] = slice(None)
        line: np.ndarray[tuple[int], np.dtype[np.int8]] = self._state[tuple(at)]
        return line

    def _middle(self, axis: int, start: Point) -> Point:
        """The middle of a line's open points."""
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
    tensors are there, and twice that for the call. `memory_bytes` is what a rank may use, None for
    what is free. `operator` is what an NPU runs, of vLLM-Ascend's extension. `prober` is the module
    of which each rank keeps a process."""

    backend: str
    world: int
    hidden: int
    intermediate: int
    is_int8: bool
    dtype: str
    grid: ProbeGrid
    patience_s: float
    memory_bytes: int | None = None
    seed: int = 0
    operator: str = OPERATOR
    prober: str = PROBER

    def call(self, point: Point) -> ExpertCall:
        """The call of a point of the grid."""
        tokens, experts, choices = self.grid.values(point)
        return ExpertCall(
            tokens,
            self.hidden,
            self.intermediate,
            experts,
            choices,
            self.world,
            self.is_int8,
            self.dtype,
        )

    def is_call(self, point: Point) -> bool:
        """Whether a point is a call at all, whoever may accept it."""
        try:
            check(self.call(point))
        except BadInput:
            return False
        return True

    def largest_buffsize_mb(self) -> int:
        """HCCL_BUFFSIZE with which no call of the grid is refused for it."""
        return largest_buffsize_mb(map(self.call, self.region().open_list()))

    def region(self) -> Region:
        """The region, of which nothing is known."""
        return Region(self.grid, self.is_call)

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "ProbePlan":
        """The plan that `to_json` wrote, by this version of the program."""
        read = json.loads(text)
        axes = {name: tuple(values) for name, values in read["grid"].items()}
        return cls(**{**read, "grid": ProbeGrid(**axes)})


@dataclass(frozen=True, slots=True)
class Try:
    """One point that was tried. `reason` says which rank refused it, and why; `restarted` are the
    ranks whose process was lost by it."""

    point: Point
    is_accepted: bool
    reason: str = ""
    restarted: tuple[int, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def read_tries(folder: Path) -> list[Try]:
    """What rank 0 wrote of all tries, as far as it came."""
    path = folder / RESULTS
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = []
    for line in whole:
        read = json.loads(line)
        tokens, experts, choices = read["point"]
        restarted = tuple(read["restarted"])
        point = (tokens, experts, choices)
        found.append(Try(point, read["is_accepted"], read["reason"], restarted))
    return found
