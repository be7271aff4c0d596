"""Statistics of two profiles as those of one: `opmeter parse --pool`.

A mean and a spread are pooled by how many launches each is of, which is exact; a median is not, so
a pooled row has none. Counters are pooled where both rows have them: `parse --pool` writes only
those that every launch of a case has. What is pooled are cells of six decimals, so that each time
adds a rounding of half of the last one.

    8 launches of 10.0 us, 2 of 20.0 us:  10 of 12.0 us, spread 4.0 us
"""

from dataclasses import dataclass
from math import inf, nan, sqrt
from pathlib import Path

from collector.case import case_from_cells
from collector.database.columns import (
    PROFILING_AVERAGE,
    PROFILING_COUNT,
    PROFILING_MEDIAN,
    PROFILING_STD,
    number_text,
    profiling,
)
from collector.database.layout import PARSED_PROFILES
from collector.database.tree import Cells, joined
from collector.errors import BadInput

_COUNTER = profiling("")


@dataclass(frozen=True, slots=True)
class Moments:
    """How many numbers, their mean and their standard deviation (of all of them)."""

    count: int
    mean: float
    std: float


def together(one: Moments, other: Moments) -> Moments:
    """Those of both sets of numbers."""
    count = one.count + other.count
    share = other.count / count
    apart = other.mean - one.mean
    variance = (1 - share) * one.std**2 + share * other.std**2 + (1 - share) * share * apart**2
    return Moments(count, one.mean + share * apart, sqrt(variance))


def pooled(old: Cells, new: Cells, path: Path) -> Cells:
    """The row of a file with a new row's statistics added to its own. Raises BadInput where it has
    some and does not tell of how many launches."""
    row = dict(joined(old, new))
    if not old.get(PROFILING_AVERAGE) or not new.get(PROFILING_AVERAGE):
        return row
    if not old.get(PROFILING_COUNT):
        told = case_from_cells(path.stem, old).describe()
        raise BadInput(f"{told}: {UNCOUNTED}", path=path)
    mine, theirs = _moments(old, path), _moments(new, path)
    both = together(mine, theirs)
    row[PROFILING_COUNT] = str(both.count)
    row[PROFILING_AVERAGE] = number_text(both.mean)
    row[PROFILING_STD] = number_text(both.std)
    row[PROFILING_MEDIAN] = ""
    return row | _counters(old, new, mine.count, theirs.count, path)


UNCOUNTED = (
    "the tree has statistics of a profile that was parsed without --pool, so the number of "
    f"launches and the runs are unknown ({PROFILING_COUNT}, {PARSED_PROFILES}); parse all profiles "
    "with --pool into another tree"
)


def _moments(row: Cells, path: Path) -> Moments:
    count = row[PROFILING_COUNT]
    if not count.isdecimal() or not int(count):
        raise BadInput(f"{PROFILING_COUNT}: expected an integer, got {count[:40]!r}", path=path)
    mean, std = (_number(row, name, path) for name in (PROFILING_AVERAGE, PROFILING_STD))
    return Moments(int(count), mean, std)


def _counters(old: Cells, new: Cells, mine: int, theirs: int, path: Path) -> dict[str, str]:
    names = [
        name for name in (*old, *new) if name.startswith(_COUNTER) and name != PROFILING_AVERAGE
    ]
    return {name: _counter(old, new, name, theirs / (mine + theirs), path) for name in names}


def _counter(old: Cells, new: Cells, name: str, share: float, path: Path) -> str:
    """The mean of a counter, of which the new row has a share; empty where one of both has none."""
    if not old.get(name) or not new.get(name):
        return ""
    one, other = _number(old, name, path), _number(new, name, path)
    return number_text(one + share * (other - one))


def _number(row: Cells, name: str, path: Path) -> float:
    text = row.get(name, "")
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not -inf < value < inf:
        raise BadInput(f"{name}: expected a number, got {text[:40]!r}", path=path)
    return value
