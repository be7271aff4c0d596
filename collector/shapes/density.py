"""How close measured sizes stand along an axis, others being equal, and what a standard wants
between them. Read from data; pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from collector.errors import BadInput

STANDARDS = ("density-v1",)


@dataclass(frozen=True, slots=True)
class Step:
    """From a size below `to` the next is at most `gap` more, or else `ratio` times as much."""

    to: int
    gap: int
    ratio: float

    def furthest(self, size: int) -> int:
        return size + self.gap if self.gap else int(size * self.ratio)


@dataclass(frozen=True, slots=True)
class Density:
    """`required` are sizes that the grid itself must have."""

    steps: tuple[Step, ...]
    required: tuple[int, ...] = ()

    def furthest(self, size: int) -> int | None:
        """The largest size that may follow; None behind the end of the axis."""
        step = next((one for one in self.steps if size < one.to), None)
        return step.furthest(size) if step is not None else None

    def missing(self, sizes: Iterable[int], known: Sequence[int]) -> tuple[int, ...]:
        """What is wanted between these sizes so that none is too far from the next: sizes that are
        `known` to the grid, where there is one, or else the furthest that may follow."""
        found: list[int] = []
        ordered = sorted(set(sizes))
        for last, following in zip(ordered, ordered[1:], strict=False):
            size = last
            while (most := self.furthest(size)) is not None and most < following:
                # A ratio that leads nowhere would never arrive.
                size = max(
                    (one for one in known if size < one <= most), default=max(most, size + 1)
                )
                found.append(size)
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Standard:
    """The density of axes by the name of their values, and by pattern and axis where a pattern
    names its own; how many rows a tree may come to have for each that it had."""

    axes: Mapping[str, Density]
    own: Mapping[tuple[str, str], str]
    most_growth: int

    def of(self, pattern: str, axis: str, values: str) -> Density | None:
        """That of a pattern's axis, whose values have a name, or none; None where none is told."""
        return self.axes.get(self.own.get((pattern, axis), values))


@cache
def find_standard(name: str) -> Standard:
    """The standard of a name. BadInput for an unknown name."""
    if name not in STANDARDS:
        raise BadInput(f"unknown standard {name!r}: expected {', '.join(STANDARDS)}")
    file = files("collector") / "data" / f"{name.replace('-', '_')}.yaml"
    told = yaml.safe_load(file.read_text(encoding="utf-8"))
    own = {
        (pattern, axis): values
        for pattern, of in told["patterns"].items()
        for axis, values in of.items()
    }
    axes = {axis: _density(said) for axis, said in told["axes"].items()}
    return Standard(axes, own, int(told["most_growth"]))


def _density(said: Any) -> Density:
    steps = (Step(int(s["to"]), int(s.get("gap", 0)), s.get("ratio", 0.0)) for s in said["steps"])
    return Density(tuple(steps), tuple(map(int, said.get("required", ()))))
