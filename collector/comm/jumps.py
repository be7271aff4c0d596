"""Where time jumps between neighbouring sizes: a library that changes its protocol there.

No alpha + beta x bytes grows faster than its bytes, and none falls. So a pair of neighbours that
does so beyond noise has a jump between them, which is bisected until neighbours lie close enough.
Both ends are measured again first: what is gone then was no property of a size.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

NOISE = 0.2  # of a median, where its rounds do not say more
_MOST_SIZES = 64  # measured again or in between, in one series


@dataclass(frozen=True, slots=True)
class Timed:
    """What a size took: the median of rounds, and how far a round lies from it, relative."""

    duration_us: float
    spread: float = 0.0


Times = Mapping[int, Timed]  # by bytes


class JumpKind(StrEnum):
    """`LOCATED`: between sizes as close as was asked for. `WIDE`: there, and not that close.
    `NOT_REPRODUCIBLE`: gone when both ends were measured again."""

    LOCATED = "located"
    WIDE = "wide"
    NOT_REPRODUCIBLE = "not reproducible"


@dataclass(frozen=True, slots=True)
class Jump:
    """`ratio` is the larger size's time by the smaller one's; of one that is gone, what it was."""

    lower_bytes: int
    upper_bytes: int
    ratio: float
    kind: JumpKind

    def __str__(self) -> str:
        return f"{self.kind}, x {self.ratio:.2f} from {self.lower_bytes} bytes"


def next_size(
    first: Times, again: Times, factor: float, whole_bytes: int, asked: Collection[int] = ()
) -> int | None:
    """The size to measure next, a multiple of `whole_bytes`; None where all jumps are known.

    `first` are the planned sizes, `again` those that were measured for a jump, whose times count
    more. Of a jump the ends come first, then the middle by ratio: with a `factor` of 1.1 neighbours
    that lie a factor of 2 apart need three sizes between them. None of `asked` is asked for again:
    one that gave no time would not give one for ever.
    """
    if max(len(again), len(asked)) >= _MOST_SIZES:
        return None
    for lower, upper in _jumping({**first, **again}):
        if missing := [size for size in (lower, upper) if size not in again]:
            wanted: int | None = missing[0]
        else:
            wanted = _middle(lower, upper, whole_bytes) if upper > lower * factor else None
        if wanted is not None and wanted not in asked:
            return wanted
    return None


def jumps_of(first: Times, again: Times, factor: float, whole_bytes: int) -> list[Jump]:
    """What became of the jumps, by their sizes."""
    current = {**first, **again}
    found = []
    for lower, upper in _jumping(current):
        is_close = upper <= lower * factor or _middle(lower, upper, whole_bytes) is None
        is_sure = lower in again and upper in again
        kind = JumpKind.LOCATED if is_close and is_sure else JumpKind.WIDE
        found.append(Jump(lower, upper, _ratio(current, lower, upper), kind))
    for lower, upper in _jumping(first):
        if lower in again and upper in again and not _within(found, lower, upper):
            ratio = _ratio(first, lower, upper)
            found.append(Jump(lower, upper, ratio, JumpKind.NOT_REPRODUCIBLE))
    return sorted(found, key=lambda jump: jump.lower_bytes)


def _jumping(times: Times) -> Iterator[tuple[int, int]]:
    """Neighbouring sizes between which time falls, or grows more than the bytes do."""
    for lower, upper in pairwise(sorted(times)):
        noise = max(NOISE, times[lower].spread, times[upper].spread)
        ratio = _ratio(times, lower, upper)
        if ratio > upper / lower * (1 + noise) or ratio < 1 - noise:
            yield lower, upper


def _ratio(times: Times, lower: int, upper: int) -> float:
    return times[upper].duration_us / times[lower].duration_us


def _middle(lower: int, upper: int, whole_bytes: int) -> int | None:
    """Between both by ratio; None where no whole message lies between."""
    middle = round((lower * upper) ** 0.5 / whole_bytes) * whole_bytes
    return middle if lower < middle < upper else None


def _within(found: list[Jump], lower: int, upper: int) -> bool:
    return any(lower <= jump.lower_bytes and jump.upper_bytes <= upper for jump in found)
