"""Durations of a surface's points, learned from the measured ones, with the expected errors
(docs/explanation/how-a-measurement-is-made.md).

The measured points are split into folds; each fold is left out by one set of trees, so every
measured point has a prediction that has not seen it. Other trees learn the errors of these
predictions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Boosted regression trees over binned values: each tree learns the residuals of those before it,
# from a part of the points and of the columns. Trees preserve the edges of tiles and waves.

Floats = npt.NDArray[np.float64]
Bins = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.intp]

_BINS = 64
_POINTS_DRAWN, _COLUMNS_DRAWN = 0.7, 0.6
_LEAST_AT_END = 5  # points, if all leaves of a tree were equal


@dataclass(frozen=True, slots=True)
class Growth:
    """Parameters of tree growth: number, maximum depth, share of the residual per tree (`rate`).

    A leaf is shrunk towards zero as if by `shrink` more points, and has at least `least` points."""

    trees: int
    depth: int
    rate: float
    shrink: float
    least: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree with its nodes in breadth-first order.

    A point goes right where its bin in the node's column is above the node's. `leaves` has the
    values, one for each leaf."""

    columns: Indices
    edges: Indices
    leaves: Floats

    def of(self, bins: Bins) -> Floats:
        """Return the value of each row of bins (points, columns)."""
        points, width = bins.shape
        flat, start = bins.ravel(), np.arange(points) * width
        node = np.zeros(points, np.intp)
        for _ in range(int(np.log2(len(self.leaves)))):
            right = flat.take(start + self.columns.take(node)) > self.edges.take(node)
            node = 2 * node + 1 + right
        return self.leaves.take(node - len(self.columns))


def binned(values: Floats) -> Bins:
    """Return each column's values (points, columns) as bins with about equal numbers of points.

    If a column has few values, a bin has one value."""
    return np.stack([_bins_of(column) for column in values.T], axis=1)


def _bins_of(column: Floats) -> Bins:
    distinct = np.unique(column)
    if len(distinct) <= _BINS:
        edges = (distinct[1:] + distinct[:-1]) / 2
    else:
        edges = np.unique(np.quantile(column, np.linspace(0, 1, _BINS + 1)[1:-1]))
    return np.searchsorted(edges, column).astype(np.uint8)


def fit_trees(
    bins: Bins, targets: Floats, growth: Growth, generator: np.random.Generator
) -> list[Tree]:
    """Return the trees whose values add up to the targets, as far as the bins determine them."""
    residuals, trees = targets.copy(), []
    points, width = bins.shape
    for _ in range(growth.trees):
        rows = np.flatnonzero(generator.random(points) < _POINTS_DRAWN)
        columns = np.sort(generator.permutation(width)[: max(1, int(width * _COLUMNS_DRAWN))])
        tree = _tree(bins[np.ix_(rows, columns)].astype(np.intp), columns, residuals[rows], growth)
        residuals -= tree.of(bins)
        trees.append(tree)
    return trees


def predict_trees(trees: Sequence[Tree], bins: Bins) -> Floats:
    """Return the sum of the trees' values for each point."""
    total = np.zeros(len(bins))
    for tree in trees:
        total += tree.of(bins)
    return total


def _tree(bins: Indices, columns: Indices, residuals: Floats, growth: Growth) -> Tree:
    """Return one tree, grown level by level; `columns` are the names of the columns of `bins`."""
    points = np.arange(len(residuals))
    place = np.zeros(len(residuals), np.intp)  # of each point, among the nodes of its level
    chosen: list[Indices] = []
    edges: list[Indices] = []
    # With few points, leaves with almost no points would only cost time.
    depth = max(1, min(growth.depth, int(np.log2(len(residuals) / _LEAST_AT_END))))
    for level in range(depth):
        column, edge = _splits(bins, place, residuals, 1 << level, growth)
        chosen.append(columns[column])
        edges.append(edge)
        place = 2 * place + (bins[points, column[place]] > edge[place])
    ends = 1 << depth
    total = np.bincount(place, residuals, ends)
    leaves = growth.rate * total / (np.bincount(place, minlength=ends) + growth.shrink)
    return Tree(np.concatenate(chosen), np.concatenate(edges), leaves)


def _splits(
    bins: Indices, place: Indices, residuals: Floats, nodes: int, growth: Growth
) -> tuple[Indices, Indices]:
    """Return the column and the edge with the least squared residual in each node.

    Where no split improves it, return an edge with all points on one side."""
    width, most = bins.shape[1], int(bins.max()) + 1  # nothing is split after the last bin
    cell = ((place[:, None] * width + np.arange(width)) * most + bins).ravel()
    shape = (nodes, width, most)
    size = int(np.prod(shape))
    sums, counts = (
        np.bincount(cell, weights, size).reshape(shape).astype(float, copy=False).cumsum(2)
        for weights in (np.repeat(residuals, width), None)
    )
    gain = _gain(sums, counts, growth)
    gain = gain.reshape(nodes, -1)
    best = gain.argmax(1)
    is_split = gain[np.arange(nodes), best] > 0
    return best // most, np.where(is_split, best % most, _BINS)


def _gain(sums: Floats, counts: Floats, growth: Growth) -> Floats:
    """Return the reduction of squared residuals for a split after each bin of each column.

    It overwrites its arguments, since most of the time of all trees is spent here."""
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


# The properties of a shape that determine a kernel's duration: its work, and its fit to tiles and
# cores.

_EDGES = (8, 16, 32, 64, 128, 192, 256)
_TILES = ((64, 64), (64, 128), (128, 128), (128, 256), (256, 128))
_PAIRED = 6  # axes: all of them for most kernels, and 15 pairs at most
_MOST_WAVES = 64  # with more waves, an incomplete last one costs almost nothing
_BEST = 0.98  # the quantile of rates that counts as best, so that a few wrong numbers do not set it
_LEAST = 0.01  # the quantile of durations: the time of a launch with almost no work


@dataclass(frozen=True, slots=True)
class Points:
    """Shapes of one kernel type and dtype, one entry per point.

    `axes` (points, axes) are the integer lengths that distinguish the points, those of the output
    first; `cores` share the tiles of the output. `operations` and `traffic` are those of a launch,
    in any unit."""

    axes: Floats
    operations: Floats
    traffic: Floats
    cores: int

    def __len__(self) -> int:
        return len(self.axes)


def features(points: Points) -> Floats:
    """Return one column per feature.

    The features are logarithms of lengths, of products and ratios of the lengths that vary most,
    and of the work; the waste at edges of tiles; the number of tiles, the number of waves on the
    cores, and the waste of the waves."""
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
    predictions = np.stack(columns, axis=1)
    return predictions[:, np.ptp(predictions, axis=0) > 0]


def _widest(logs: Floats) -> Indices:
    """Return the axes whose lengths make pairs, in their order.

    These are the axes that vary by the greatest factor; of equal ones, the first. Pairs of all axes
    would be 190 for 20 axes, and each costs as much as an axis."""
    order = np.argsort(-np.ptp(logs, axis=0), kind="stable")
    return np.sort(order[:_PAIRED])


def roofline(points: Points, requested: Indices, duration_us: Floats) -> Floats:
    """Return the logarithm of each point's duration in a roofline model.

    All points run at the best rates of the requested points, whose durations are `duration_us`,
    plus the time of their shortest launches."""
    operations, traffic = (
        work / np.quantile(work[requested] / duration_us, _BEST)
        for work in (points.operations, points.traffic)
    )
    launch_us = np.quantile(duration_us, _LEAST)
    found: Floats = np.log(np.maximum(operations, traffic) + launch_us)
    return found


_FOLDS = 5
_DURATIONS = Growth(trees=200, depth=6, rate=0.1, shrink=2, least=2)
# Error sizes are noisy, so these trees learn only patterns that many points share.
_ERRORS = Growth(trees=100, depth=4, rate=0.08, shrink=10, least=20)
_LEAST_ERROR = 0.01  # errors below one percent count as equal
LEAST_POINTS = 100  # fewer points are not enough to train trees


@dataclass(frozen=True, slots=True)
class Estimate:
    """The logarithm of the duration of each point in us, and the expected size of its error.

    The error has the same unit, up to a factor that held-out points determine."""

    log_us: Floats
    error: Floats


def estimate(
    points: Points, requested: Indices, duration_us: Floats, generator: np.random.Generator
) -> Estimate:
    """Return the estimates of all points, from at least a hundred points with known durations.

    `requested` are these points, `duration_us` their durations. The same arguments, including the
    state of `generator`, give the same numbers."""
    if len(requested) < LEAST_POINTS:
        raise ValueError(
            f"expected at least {LEAST_POINTS} points for a surface, got {len(requested)}"
        )
    base = roofline(points, requested, duration_us)
    bins = binned(np.column_stack([features(points), base]))
    residuals = np.log(duration_us) - base[requested]
    base, residuals = base + residuals.mean(), residuals - residuals.mean()
    predictions, unseen = _folds(bins, requested, residuals, generator)
    log_us: Floats = base + predictions.mean(axis=0)
    return Estimate(
        log_us,
        _errors(bins, predictions.std(axis=0), requested, np.abs(residuals - unseen), generator),
    )


def _folds(
    bins: Bins, requested: Indices, residuals: Floats, generator: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return the predictions of each fold (folds, points), and the out-of-fold predictions.

    The latter are those for the requested points, from trees that have not seen them."""
    fold = generator.permutation(np.arange(len(requested)) % _FOLDS)
    predictions, unseen = np.empty((_FOLDS, len(bins))), np.empty(len(requested))
    for number in range(_FOLDS):
        seen = fold != number
        trees = fit_trees(bins[requested[seen]], residuals[seen], _DURATIONS, generator)
        predictions[number] = predict_trees(trees, bins)
        unseen[~seen] = predictions[number, requested[~seen]]
    return predictions, unseen


def _errors(
    bins: Bins,
    disagreement: Floats,
    requested: Indices,
    size: Floats,
    generator: np.random.Generator,
) -> Floats:
    """Return the expected error size of each point, from the sizes at the requested points."""
    wide = np.column_stack([bins, binned(disagreement[:, None])])
    log_size = np.log(size + _LEAST_ERROR)
    trees = fit_trees(wide[requested], log_size - log_size.mean(), _ERRORS, generator)
    found: Floats = np.exp(log_size.mean() + predict_trees(trees, wide))
    return found
