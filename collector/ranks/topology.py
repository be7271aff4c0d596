"""The arrangement of ranks in a machine, and the distance between a group's ranks.

A grid is written from the outermost extent to the innermost: `48 8 2` is 48 servers of 8 packages
of 2 dies (Atlas A3 super-pod), `128 8` is 128 servers of 8 devices (A2). Ranks count through the
innermost first. The tier of a group is the outermost dimension in which its ranks differ: 0 for
ranks of several servers, 2 for the dies of one package of `48 8 2`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from collector.codec.errors import BadInput


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of ranks. `extents`: each at least 1, outermost first."""

    extents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.extents or min(self.extents) < 1:
            raise BadInput(f"grid: expected positive extents such as 48 8 2, got {str(self)!r}")

    def __str__(self) -> str:
        return " ".join(map(str, self.extents))

    @property
    def size(self) -> int:
        """Return the number of ranks of the grid."""
        return prod(self.extents)

    @property
    def innermost_tier(self) -> int:
        return len(self.extents) - 1

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return a rank's coordinates, outermost first. Raises BadInput for a rank outside."""
        if not 0 <= rank < self.size:
            raise BadInput(f"rank: expected 0 to {self.size - 1} in the grid {self}, got {rank}")
        found = []
        for extent in reversed(self.extents):
            rank, at = divmod(rank, extent)
            found.append(at)
        return tuple(reversed(found))

    def tier(self, ranks: Sequence[int]) -> int:
        """Return the outermost dimension in which ranks differ; the innermost for a single rank.

        The lowest and the highest rank determine it: if they agree in the outer dimensions, all
        ranks between them do."""
        ends = (self.coordinates(min(ranks)), self.coordinates(max(ranks)))
        differing = (at for at, (low, high) in enumerate(zip(*ends, strict=True)) if low != high)
        return next(differing, self.innermost_tier)

    def groups(self, size: int, tier: int, world: int) -> tuple[tuple[int, ...], ...]:
        """Return disjoint groups of `size` ranks, of exactly that tier: as many as a world of ranks
        0 to `world` - 1 has. The first group contains rank 0.

        Ranks are neighbours if neighbours are of that tier; otherwise a group has one rank of each
        next part of the grid, as data parallel groups do: two ranks of tier 1 in `48 8 2` are 0 and
        2."""
        self._check_group(size, tier)
        return _groups(self, size, tier, world)

    def has_group(self, size: int, tier: int, world: int) -> bool:
        """Return whether `groups` would find any. Only the group of rank 0 is checked. No group has
        a tier that the grid does not have."""
        try:
            self._check_group(size, tier)
        except BadInput:
            return False
        last = (size - 1) * _stride(self, size, tier)
        return last < min(world, self.size) and self.tier((0, last)) == tier

    def natural_tier(self, size: int) -> int:
        """Return the tier of the first `size` ranks."""
        if not 1 <= size <= self.size:
            raise BadInput(f"group size: expected 1 to {self.size} in the grid {self}, got {size}")
        return self.tier((0, size - 1))

    def _check_group(self, size: int, tier: int) -> None:
        if not 0 <= tier <= self.innermost_tier:
            raise BadInput(
                f"tier: expected 0 to {self.innermost_tier} in the grid {self}, got {tier}"
            )
        inner, outer = prod(self.extents[tier + 1 :]), prod(self.extents[tier:])
        most = outer if size > inner else outer // inner
        if not 1 <= size <= most or (size == 1 and tier != self.innermost_tier):
            raise BadInput(f"grid {self}: no group of {size} ranks has tier {tier}")


# The grids that msmodeling assumes of its devices, by the beginning of their names.
_OF_DEVICES = {
    "ATLAS_800_A3_": Grid((48, 8, 2)),
    "ATLAS_800_A2_": Grid((128, 8)),
}


def grid_of_device(device: str) -> Grid | None:
    """Return the grid of the ranks of a device; None if it is not known. Cards of PCIe have no
    second tier: theirs is one server of eight."""
    if device.startswith("ATLAS_800_A2_") and "PCIE" in device:
        return Grid((8,))
    return next((g for start, g in _OF_DEVICES.items() if device.startswith(start)), None)


@lru_cache(maxsize=1024)  # every size and round of an operation uses the same groups
def _groups(grid: Grid, size: int, tier: int, world: int) -> tuple[tuple[int, ...], ...]:
    outer, stride = prod(grid.extents[tier:]), _stride(grid, size, tier)
    found = (
        tuple(range(first + at, first + at + size * stride, stride))
        for start in range(0, min(world, grid.size), outer)
        for first in range(start, start + outer - size * stride + 1, size * stride)
        for at in range(stride)
    )
    return tuple(ranks for ranks in found if ranks[-1] < world and grid.tier(ranks) == tier)


def _stride(grid: Grid, size: int, tier: int) -> int:
    """Return the distance between the ranks of a group: 1, or the size of a part of the grid."""
    inner = prod(grid.extents[tier + 1 :])
    return 1 if size > inner or size == 1 else inner
