"""What of a shape decides a kernel's duration: its work, and how it fits tiles and cores."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

_EDGES = (8, 16, 32, 64, 128, 192, 256)
_TILES = ((64, 64), (64, 128), (128, 128), (128, 256), (256, 128))
_PAIRED = 6  # axes: all of what most kernels have, and 15 pairs at most
_MOST_WAVES = 64  # beyond so many, a last one that is not full costs next to nothing
_BEST = 0.98  # the rate that counts as best, so that a few wrong numbers do not set it
_LEAST = 0.01  # of the durations: what a launch takes with next to no work


@dataclass(frozen=True, slots=True)
class Points:
    """Shapes of one kernel type and dtype, an entry a point: `axes` (points, axes) are the whole
    lengths that tell them apart, those of the output first, whose tiles `cores` share; operations
    and traffic of a launch, in any unit."""

    axes: Floats
    operations: Floats
    traffic: Floats
    cores: int

    def __len__(self) -> int:
        return len(self.axes)


def features(points: Points) -> Floats:
    """A column a feature: logarithms of lengths, of products and ratios of those that vary most,
    and of the work; the waste against edges of tiles; tiles, the waves that bring them to the
    cores, and their waste."""
    axes, logs = points.axes, np.log2(points.axes)
    widest = _widest(logs)
    pairs = [(a, b) for a in widest for b in widest if b < a]
    columns = [
        *logs.T,
        *(logs[:, a] + logs[:, b] for a, b in pairs),
        *(logs[:, a] - logs[:, b] for a, b in pairs),
        np.log2(points.operations),
        np.log2(points.traffic),
        np.log2(points.operations / points.traffic),
        *(np.ceil(axis / edge) * edge / axis for axis in axes.T for edge in _EDGES),
        *(np.gcd(axis.astype(np.int64), 64).astype(float) for axis in axes.T),
    ]
    for edges in _TILES:
        tiles = np.prod(np.ceil(axes[:, :2] / edges[: axes.shape[1]]), axis=1)
        waves = np.ceil(tiles / points.cores)
        columns += [np.log2(tiles), np.minimum(waves, _MOST_WAVES), waves * points.cores / tiles]
    told = np.stack(columns, axis=1)
    return told[:, np.ptp(told, axis=0) > 0]


def _widest(logs: Floats) -> Indices:
    """The axes whose lengths make pairs, in their order: those that vary by the greatest factor, of
    like ones the first. Pairs of all would be 190 of 20 axes, and each costs as much as an axis."""
    order = np.argsort(-np.ptp(logs, axis=0), kind="stable")
    return np.sort(order[:_PAIRED])


def roofline(points: Points, asked: Indices, duration_us: Floats) -> Floats:
    """The logarithm of each point's duration if all ran at the best rates of those asked, whose
    durations these are, behind the time of their least launch."""
    operations, traffic = (
        work / np.quantile(work[asked] / duration_us, _BEST)
        for work in (points.operations, points.traffic)
    )
    launch_us = np.quantile(duration_us, _LEAST)
    found: Floats = np.log(np.maximum(operations, traffic) + launch_us)
    return found
