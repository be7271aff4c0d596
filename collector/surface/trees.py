"""Boosted regression trees over values sorted into bins: each tree learns what those before it
left, of a part of the points and of the columns.

A kernel's duration steps where a tile, a wave or another kernel begins. Trees keep such edges, and
nothing has to be known of where they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
