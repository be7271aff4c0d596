"""The density of measured sizes along an axis, all other sizes being equal.

A standard, read from data, requires sizes between the measured ones. The code is pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import yaml

from collector.codec.errors import BadInput
from collector.model.case import Case, Slot
from collector.model.record import CaseRecord
from collector.model.vocabulary import dtype_of
from collector.ops.expression import in_blocks
from collector.workloads import grid
from collector.workloads.patterns import PRODUCTS, Dims, GridPattern, SlotTemplates

STANDARDS = ("density-v1",)


@dataclass(frozen=True, slots=True)
class DensityLimit:
    """A limit: below `to`, the next size is at most `gap` more, or else `ratio` times as much."""

    to: int
    gap: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Density:
    """The limits of an axis.

    With `ends`, every line of cases has the first and the last size and the `required` ones.
    Without, sizes are required only between those that a line has, and `required` are sizes that
    the grid itself must have."""

    steps: tuple[DensityLimit, ...]
    required: tuple[int, ...] = ()
    ends: tuple[int, int] | None = None

    def largest_next(self, size: int) -> int | None:
        """Return the largest size that may follow; None beyond the end of the axis."""
        step = next((one for one in self.steps if size < one.to), None)
        if step is None:
            return None
        return size + step.gap if step.gap else int(size * step.ratio)

    def missing(self, sizes: Iterable[int], known: Sequence[int]) -> tuple[int, ...]:
        """Return the sizes to add so that no size is too far from the next.

        Added sizes are those `known` to the grid where there is one in reach, else the furthest
        that may follow."""
        there = set(sizes)
        demanded = {*self.ends, *self.required} if self.ends else set()
        found = [*(demanded - there)]
        ordered = sorted(there | demanded)
        for last, following in zip(ordered, ordered[1:], strict=False):
            size = last
            while (most := self.largest_next(size)) is not None and most < following:
                # A ratio that does not increase the size would loop forever.
                size = max(
                    (one for one in known if size < one <= most), default=max(most, size + 1)
                )
                found.append(size)
        return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Standard:
    """The density of each axis, by the name of its values.

    A pattern may name its own density for an axis. With `kernels`, the standard is that of these
    kernel types alone, with the density of their axes by name. `most_growth` limits the rows that a
    tree may have for each row that it had."""

    axes: Mapping[str, Density]
    own: Mapping[tuple[str, str], str] = field(default_factory=dict)
    most_growth: int = 8
    kernels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def of(self, pattern: str, axis: str, values: str, kernel: str = "") -> Density | None:
        """Return the density of a pattern's axis and its named values; None if none is set."""
        if self.kernels:
            return self.axes.get(self.kernels.get(kernel, {}).get(axis, ""))
        return self.axes.get(self.own.get((pattern, axis), values))


@cache
def find_standard(name: str) -> Standard:
    """Return the standard of a name. Raises BadInput for an unknown name."""
    if name not in STANDARDS:
        raise BadInput(f"unknown standard {name!r}: expected {', '.join(STANDARDS)}")
    file = files("collector") / "data" / f"{name.replace('-', '_')}.yaml"
    document = yaml.safe_load(file.read_text(encoding="utf-8"))
    own = {
        (pattern, axis): values
        for pattern, of in document["patterns"].items()
        for axis, values in of.items()
    }
    axes = {}
    for axis, entry in document["axes"].items():
        steps = (
            DensityLimit(int(one["to"]), int(one.get("max_gap", 0)), one.get("max_ratio", 0.0))
            for one in entry["segments"]
        )
        axes[axis] = Density(tuple(steps), tuple(map(int, entry.get("required_values", ()))))
    return Standard(axes, own, int(document["most_growth"]))


# Rows of a tree as points of a pattern, and the points that a density standard requires between
# them: along each axis, with all other sizes from a row.

Point = tuple[int, ...]


def cases_between(
    pattern: GridPattern,
    cases: Iterable[Case],
    standard: Standard,
    sizes: Sequence[int],
    resolve: grid.ResolveCase,
) -> Iterator[CaseRecord | grid.Refusal]:
    """Yield the case of each point that the standard requires, or why there is none.

    The points are between those of the cases, or in the ranges of the standard. `sizes` are the
    weight sizes that the grid knows. Columns keep the values of the row; rows with uneven groups
    are ignored."""
    return (case for case, _ in required_cases(pattern, cases, standard, sizes, resolve))


def required_cases(
    pattern: GridPattern,
    cases: Iterable[Case],
    standard: Standard,
    sizes: Sequence[int],
    resolve: grid.ResolveCase,
) -> Iterator[tuple[CaseRecord | grid.Refusal, bool]]:
    """Yield the same cases, each with whether its size is one of the required values."""
    uneven = pattern.ends
    cases = [one for one in cases if uneven is None or one.attribute(uneven.column) is None]
    pattern = pattern.of_shapes
    names = (*pattern.axes, *pattern.model_axes)
    for template, points in _points(pattern, cases, names).items():
        required = _required_points(pattern, template.kernel_type, names, points, standard, sizes)
        for point, is_value in sorted(required.items()):
            numbers = dict(zip(names, point, strict=True))
            yield grid.case_at_point(pattern, template, numbers, resolve), is_value


def _points(
    pattern: GridPattern, cases: Iterable[Case], names: Sequence[str]
) -> Mapping[grid.Template, set[Point]]:
    found: dict[grid.Template, set[Point]] = {}
    for case in cases:
        if case.inputs is None:
            continue
        template, solved = grid.template_of(case), solve(pattern, case)
        if template is not None and solved is not None:
            found.setdefault(template, set()).add(tuple(solved[name] for name in names))
    return found


def _required_points(
    pattern: GridPattern,
    kernel: str,
    names: Sequence[str],
    points: set[Point],
    standard: Standard,
    sizes: Sequence[int],
) -> dict[Point, bool]:
    """Return the points to add, each with whether its size is one of the required values."""
    found: dict[Point, bool] = {}
    for at, name in enumerate(names):
        is_weight = pattern.source == PRODUCTS and name in pattern.model_axes
        values = "nk" if is_weight else pattern.value_names.get(name, "")
        density = standard.of(pattern.name, name, values, kernel)
        if density is None:
            continue
        lines: dict[Point, list[int]] = {}
        for point in points:
            lines.setdefault((*point[:at], *point[at + 1 :]), []).append(point[at])
        known = sizes if is_weight else pattern.axes[name]
        for others, line in lines.items():
            for size in density.missing(line, known):
                point = (*others[:at], size, *others[at:])
                if point not in points:
                    found[point] = found.get(point, False) or size in density.required
    return found


def solve(pattern: GridPattern, case: Case) -> Mapping[str, int] | None:
    """Return the numbers of the pattern for which one of its ways makes the shapes of a case.

    None where no way does, or where a number does not occur as a dimension of its own."""
    return next((found for way in pattern.ways if (found := _solved(pattern, way, case))), None)


def _solved(pattern: GridPattern, way: SlotTemplates, case: Case) -> Mapping[str, int] | None:
    sides = ((way.inputs, case.inputs or ()), (way.outputs, case.outputs or ()))
    pairs = [
        (way_side[at] if at < len(way_side) else None, slot)
        for way_side, slots in sides
        for at, slot in enumerate(slots)
        if slot.shape is not None
    ]
    names = {*pattern.axes, *pattern.model_axes}
    found: dict[str, int] = {}
    for dims, slot in pairs:
        if dims is None:
            return None
        if len(dims) == len(slot.shape or ()):
            pairs_of_dims = zip(dims, slot.shape or (), strict=True)
            found.update(
                (name, size) for one, size in pairs_of_dims if (name := one.text.strip()) in names
            )
    if found.keys() != names or not all(_is_made(dims, slot, found) for dims, slot in pairs):
        return None
    return found if all(rule.value(found) for rule in pattern.keep) else None


def _is_made(dims: Dims, slot: Slot, names: Mapping[str, int]) -> bool:
    shape = tuple(one.value(names) for one in dims or ())
    if shape == slot.shape:
        return True
    return (
        len(shape) > 1
        and dtype_of(slot.dtype) is not None
        and in_blocks(slot.dtype, shape).shape == slot.shape
    )
