"""What the points of a surface take, learnt from those measured, and how far each may be off.

Boosted trees over features of the shape correct a roofline. Each of several folds of the measured
points is left out by one set of trees, so that every measured point has a prediction that has not
seen it; what these are off by, other trees learn again: how noisy a region is, and how far the sets
disagree there, tells how unsure the model is of a point nobody measured.

Neighbours tell nothing more: interpolating what the trees leave between the nearest points makes
real tables worse, since what is left is noise and edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Boosted regression trees over values sorted into bins: each tree learns what those before it
# left, of a part of the points and of the columns.
#
# A kernel's duration steps where a tile, a wave or another kernel begins. Trees keep such edges,
# and nothing has to be known of where they are.

Floats = npt.NDArray[np.float64]
Bins = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.intp]

_BINS = 64
_POINTS_DRAWN, _COLUMNS_DRAWN = 0.7, 0.6
_LEAST_AT_END = 5  # points, were all ends of a tree alike


@dataclass(frozen=True, slots=True)
class Growth:
    """How trees grow: how many, how deep at most, and how much of what is left each takes (`rate`).
    A leaf is drawn towards nothing as by `shrink` points more, and has at least `least` of them."""

    trees: int
    depth: int
    rate: float
    shrink: float
    least: int


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes in the order of a heap: a point goes right where its bin in the node's column is above
    the node's. `leaves` has the values, one for each end."""

    columns: Indices
    edges: Indices
    leaves: Floats

    def of(self, bins: Bins) -> Floats:
        """The value of each row of bins (points, columns)."""
        points, width = bins.shape
        flat, start = bins.ravel(), np.arange(points) * width
        node = np.zeros(points, np.intp)
        for _ in range(int(np.log2(len(self.leaves)))):
            right = flat.take(start + self.columns.take(node)) > self.edges.take(node)
            node = 2 * node + 1 + right
        return self.leaves.take(node - len(self.columns))


def binned(values: Floats) -> Bins:
    """Each column's values (points, columns) as bins of about as many points each, or of one value
    where these are few."""
    return np.stack([_bins_of(column) for column in values.T], axis=1)


def _bins_of(column: Floats) -> Bins:
    distinct = np.unique(column)
    if len(distinct) <= _BINS:
        edges = (distinct[1:] + distinct[:-1]) / 2
    else:
        edges = np.unique(np.quantile(column, np.linspace(0, 1, _BINS + 1)[1:-1]))
    return np.searchsorted(edges, column).astype(np.uint8)


def grown(bins: Bins, wanted: Floats, growth: Growth, chance: np.random.Generator) -> list[Tree]:
    """The trees whose values add up to those wanted of each point, as far as its bins tell."""
    left, trees = wanted.copy(), []
    points, width = bins.shape
    for _ in range(growth.trees):
        rows = np.flatnonzero(chance.random(points) < _POINTS_DRAWN)
        columns = np.sort(chance.permutation(width)[: max(1, int(width * _COLUMNS_DRAWN))])
        tree = _tree(bins[np.ix_(rows, columns)].astype(np.intp), columns, left[rows], growth)
        left -= tree.of(bins)
        trees.append(tree)
    return trees


def summed(trees: Sequence[Tree], bins: Bins) -> Floats:
    """What the trees say of each point together."""
    total = np.zeros(len(bins))
    for tree in trees:
        total += tree.of(bins)
    return total


def _tree(bins: Indices, columns: Indices, left: Floats, growth: Growth) -> Tree:
    """One tree, level after level; `columns` are the names of the columns of `bins`."""
    points = np.arange(len(left))
    place = np.zeros(len(left), np.intp)  # of each point, among the nodes of its level
    chosen: list[Indices] = []
    edges: list[Indices] = []
    # Where points are few, ends with next to none of them would only take time.
    depth = max(1, min(growth.depth, int(np.log2(len(left) / _LEAST_AT_END))))
    for level in range(depth):
        column, edge = _splits(bins, place, left, 1 << level, growth)
        chosen.append(columns[column])
        edges.append(edge)
        place = 2 * place + (bins[points, column[place]] > edge[place])
    ends = 1 << depth
    total = np.bincount(place, left, ends)
    leaves = growth.rate * total / (np.bincount(place, minlength=ends) + growth.shrink)
    return Tree(np.concatenate(chosen), np.concatenate(edges), leaves)


def _splits(
    bins: Indices, place: Indices, left: Floats, nodes: int, growth: Growth
) -> tuple[Indices, Indices]:
    """The column and the edge that leave the least square in each node; where none does, an edge
    that has all points on one side."""
    width, most = bins.shape[1], int(bins.max()) + 1  # behind the last one nothing is split
    cell = ((place[:, None] * width + np.arange(width)) * most + bins).ravel()
    shape = (nodes, width, most)
    size = int(np.prod(shape))
    sums, counts = (
        np.bincount(cell, weights, size).reshape(shape).astype(float, copy=False).cumsum(2)
        for weights in (np.repeat(left, width), None)
    )
    gain = _gain(sums, counts, growth)
    gain = gain.reshape(nodes, -1)
    best = gain.argmax(1)
    is_split = gain[np.arange(nodes), best] > 0
    return best // most, np.where(is_split, best % most, _BINS)


def _gain(sums: Floats, counts: Floats, growth: Growth) -> Floats:
    """By how much the square left shrinks if a node is split behind each bin of each column. In
    place, of what is given, too: this is where the time of all trees goes."""
    all_sums, all_counts = sums[:, :, -1:], counts[:, :, -1:]
    whole = all_sums**2 / (all_counts + growth.shrink)
    behind, rest = all_counts - counts, all_sums - sums
    few = np.minimum(counts, behind) < growth.least
    for square, of in ((sums, counts), (rest, behind)):
        np.multiply(square, square, out=square)
        of += growth.shrink
        square /= of
    sums += rest
    sums -= whole
    np.copyto(sums, -1, where=few)
    return sums


# What of a shape decides a kernel's duration: its work, and how it fits tiles and cores.

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


_FOLDS = 5
_DURATIONS = Growth(trees=200, depth=6, rate=0.1, shrink=2, least=2)
# Of so noisy a thing as the size of an error only what is common to many is believed.
_ERRORS = Growth(trees=100, depth=4, rate=0.08, shrink=10, least=20)
_LEAST_ERROR = 0.01  # below a percent errors are as good as equal
LEAST_POINTS = 100  # fewer tell nothing that trees could learn


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of every point of a surface the logarithm of its duration in us, and the size of the error to
    expect of it, in the same unit but for a factor that points held back tell."""

    log_us: Floats
    error: Floats


def estimate(
    points: Points, asked: Indices, duration_us: Floats, chance: np.random.Generator
) -> Estimate:
    """What all points take by those asked, at least a hundred, whose durations these are. The same
    arguments, chance in the same state among them, give the same numbers."""
    if len(asked) < LEAST_POINTS:
        raise ValueError(f"expected at least {LEAST_POINTS} points for a surface, got {len(asked)}")
    base = roofline(points, asked, duration_us)
    bins = binned(np.column_stack([features(points), base]))
    left = np.log(duration_us) - base[asked]
    base, left = base + left.mean(), left - left.mean()
    told, unseen = _folds(bins, asked, left, chance)
    log_us: Floats = base + told.mean(axis=0)
    return Estimate(log_us, _errors(bins, told.std(axis=0), asked, np.abs(left - unseen), chance))


def _folds(
    bins: Bins, asked: Indices, left: Floats, chance: np.random.Generator
) -> tuple[Floats, Floats]:
    """What each fold's trees say of all points (folds, points), and what those say of the points
    asked that have not seen them."""
    fold = chance.permutation(np.arange(len(asked)) % _FOLDS)
    told, unseen = np.empty((_FOLDS, len(bins))), np.empty(len(asked))
    for number in range(_FOLDS):
        seen = fold != number
        trees = grown(bins[asked[seen]], left[seen], _DURATIONS, chance)
        told[number] = summed(trees, bins)
        unseen[~seen] = told[number, asked[~seen]]
    return told, unseen


def _errors(
    bins: Bins, disagreement: Floats, asked: Indices, size: Floats, chance: np.random.Generator
) -> Floats:
    """The size of the error to expect of each point, from the sizes at those asked."""
    wide = np.column_stack([bins, binned(disagreement[:, None])])
    log_size = np.log(size + _LEAST_ERROR)
    trees = grown(wide[asked], log_size - log_size.mean(), _ERRORS, chance)
    found: Floats = np.exp(log_size.mean() + summed(trees, wide))
    return found
