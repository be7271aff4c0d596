"""`collectives` of a campaign's sources: which operations over which ranks, by sizes and groups; or
those that a profile's step has sent."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from collector.collective import OPERATIONS, dtype_named
from collector.collective_case import MODES, MOST_RANKS, checked_environment
from collector.errors import BadInput
from collector.topology import Grid
from jobs.campaign.document import Entry

AUTO = "auto"  # what comes nearest to production, by operation and size
_KEYS = (
    *("operations", "bytes", "max_bytes", "dtype", "groups", "ranks", "grid", "tiers"),
    *("mode", "environment"),
)
_A3, _DTYPE = Grid((48, 8, 2)), "bfloat16"
_SIZE = re.compile(r"[a-z]+|[1-9][0-9]{0,12}")


@dataclass(frozen=True, slots=True)
class CollectivesSource:
    """All combinations of operations, sizes and groups. `ranks` are started at once; a tier of
    several groups among them is measured with one alone, and with all at once."""

    operations: tuple[str, ...]
    sizes: tuple[str, ...]  # bytes, or the names of grids of sizes
    max_bytes: int | None
    dtype: str
    groups: tuple[int, ...]
    ranks: int
    grid: Grid
    tiers: tuple[int, ...]  # none: of the nearest ranks
    mode: str
    environment: str


@dataclass(frozen=True, slots=True)
class StepCollectives:
    """What a profile does not tell of what its ranks exchange: how they lie, the dtype where its
    trace tells none, how many have the experts of its mixtures; and how to measure it."""

    grid: Grid
    dtype: str
    mode: str
    environment: str
    ep_size: int | None = None


def read_step_collectives(entry: Entry) -> StepCollectives:
    """The same of a profile. Raises BadInput, with the line, for what cannot be meant."""
    found = entry.fields(("grid", "dtype", "mode", "environment", "ep_size"))
    return StepCollectives(
        grid=_grid(found["grid"]) if "grid" in found else _A3,
        dtype=_dtype(found["dtype"]) if "dtype" in found else _DTYPE,
        mode=_mode(found),
        environment=_environment(found["environment"]) if "environment" in found else "",
        ep_size=found["ep_size"].integer(2) if "ep_size" in found else None,
    )


def read_collectives(entry: Entry) -> CollectivesSource:
    """The source of a mapping. Raises BadInput, with the line, for what cannot be meant."""
    found = entry.fields(_KEYS, required=("groups",))
    groups = tuple(item.integer(2) for item in found["groups"].items())
    ranks = found["ranks"].integer(2) if "ranks" in found else max(groups)
    grid = _grid(found["grid"]) if "grid" in found else _A3
    if ranks > grid.size:
        raise entry.refusal(f"expected at most {grid.size} ranks for the grid {grid}, got {ranks}")
    if ranks < max(groups):
        raise found["ranks"].refusal(f"expected groups of at most {ranks} ranks, got {max(groups)}")
    return CollectivesSource(
        operations=_operations(found.get("operations")),
        sizes=_sizes(found["bytes"]) if "bytes" in found else ("full",),
        max_bytes=found["max_bytes"].integer(1) if "max_bytes" in found else None,
        dtype=_dtype(found["dtype"]) if "dtype" in found else _DTYPE,
        groups=groups,
        ranks=ranks,
        grid=grid,
        tiers=tuple(item.integer(0) for item in found["tiers"].items()) if "tiers" in found else (),
        mode=_mode(found),
        environment=_environment(found["environment"]) if "environment" in found else "",
    )


def _mode(found: Mapping[str, Entry]) -> str:
    return found["mode"].choice((AUTO, *MODES)) if "mode" in found else AUTO


def _operations(entry: Entry | None) -> tuple[str, ...]:
    if entry is None or (not entry.is_list and entry.text() == "all"):
        return tuple(OPERATIONS)
    entry.distinct_texts()
    return tuple(item.choice(tuple(OPERATIONS)) for item in entry.items())


def _sizes(entry: Entry) -> tuple[str, ...]:
    items = entry.items() if entry.is_list else [entry]
    for item in items:
        if not _SIZE.fullmatch(item.text()):
            raise item.refusal("expected a number of bytes or the name of a size grid")
    return tuple(item.text() for item in items)


def _dtype(entry: Entry) -> str:
    try:
        return dtype_named(entry.text())
    except BadInput as error:
        raise entry.refusal(str(error)) from error


def _grid(entry: Entry) -> Grid:
    grid = Grid(tuple(item.integer(1) for item in entry.items()))
    if grid.size > MOST_RANKS:
        raise entry.refusal(f"expected at most {MOST_RANKS} ranks, got {grid.size}")
    return grid


def _environment(entry: Entry) -> str:
    settings = sorted(f"{name}={value.text()}" for name, value in entry.mapping().items())
    try:
        return checked_environment(" ".join(settings))
    except BadInput as error:
        raise entry.refusal(str(error)) from error
