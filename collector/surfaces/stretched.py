"""Coordinates in which equal distances mean equally different durations.

Along an axis, and along each feature of tiles, the space between two neighbouring values is
stretched by how much the durations differ there: much where a kernel changes or another tile
begins, little between sizes that share their tiles. The expected squared difference of two points
is the sum of their distances along all coordinates, and of twice the variance of a measurement. The
stretches are fitted by maximum likelihood to pairs of near points.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

_MOST_LEVELS = 96  # of a coordinate; between them it is linear
_MOST_PAIRS = 2000  # along each axis
_FROM, _AMONG, _NEAR = 300, 4000, 6  # points with neighbours, points that these are among, each
_SWEEPS = 20
_PRIOR = 4.0  # pairs that a stretch in proportion to the logarithm of the size counts as
_OUTLIER = 9.0  # squared differences beyond this multiple of the expected one count as this
_LEAST = 1e-12
_EDGE = 64.0  # elements: rows of a tile
_TILES = ((128.0, 128.0), (128.0, 256.0), (64.0, 64.0))


def tile_features(logs: Floats, tiled: Sequence[int]) -> Floats:
    """Return what the tiles of an output determine besides its sizes, given as logarithms (points,
    axes): the waste at the edge of the last tile of rows, and the number of tiles of several sizes.
    `tiled` are the axes of the output."""
    if not tiled:
        return np.empty((len(logs), 0))
    lengths = [np.rint(np.exp(logs[:, axis])) for axis in tiled]
    rows = np.maximum(lengths[0], 1.0)
    found = [np.log(np.ceil(rows / _EDGE) * _EDGE / rows)]
    for edges in _TILES:
        tiles = np.ones(len(logs))
        for length, edge in zip(lengths, edges, strict=False):
            tiles *= np.ceil(np.maximum(length, 1.0) / edge)
        found.append(np.log(tiles))
    return np.stack(found, axis=1)


class Stretched:
    """The stretched coordinates of a surface. `noise` is the variance of a measurement."""

    def __init__(self, columns: Floats, axes: int, residuals: Floats) -> None:
        """Fit the stretches to residuals at points; `columns` (points, coordinates) are logarithms
        of the sizes along the axes, and then features."""
        generator = np.random.default_rng(0)
        self._levels = [_levels(column) for column in columns.T]
        pairs = _near_pairs(columns[:, :axes], generator)
        squares = (residuals[pairs[:, 0]] - residuals[pairs[:, 1]]) ** 2
        self._at, self.noise = self._fitted(columns, pairs, squares, float(np.var(residuals)))

    def of(self, columns: Floats) -> Floats:
        """Return the coordinates of points (points, coordinates)."""
        found = [
            np.interp(column, levels, at)
            for column, levels, at in zip(columns.T, self._levels, self._at, strict=True)
        ]
        return np.stack(found, axis=1)

    def coordinate(self, number: int) -> tuple[Floats, Floats]:
        """Return the values of a coordinate with known places, and these."""
        return self._levels[number], self._at[number]

    def _fitted(
        self, columns: Floats, pairs: Indices, squares: Floats, variance: float
    ) -> tuple[list[Floats], float]:
        gaps = [np.diff(levels) for levels in self._levels]
        shares = [gap / max(gap.sum(), _LEAST) for gap in gaps]
        variance = max(variance, _LEAST)
        steps = [share * variance / 2 for share in shares]
        noise = variance / 100 if len(squares) > 4 * _NEAR else _LEAST
        places = [
            np.rint(np.interp(column, levels, np.arange(len(levels)))).astype(np.intp)
            for column, levels in zip(columns.T, self._levels, strict=True)
        ]
        low = [np.minimum(place[pairs[:, 0]], place[pairs[:, 1]]) for place in places]
        high = [np.maximum(place[pairs[:, 0]], place[pairs[:, 1]]) for place in places]
        is_noise_known = noise > _LEAST
        for _ in range(_SWEEPS):
            at = [_cumulative(step) for step in steps]
            expected = 2 * noise + sum(
                own[b] - own[a] for own, a, b in zip(at, low, high, strict=True)
            )
            expected = np.maximum(expected, _LEAST)
            ratio = np.minimum(squares / expected, _OUTLIER) / expected
            weight = 1 / expected
            for number, step in enumerate(steps):
                if not len(step):
                    continue
                own = _spread(ratio, low[number], high[number], len(step))
                all_of = _spread(weight, low[number], high[number], len(step))
                prior = shares[number] * step.sum()
                own += _PRIOR * prior / step**2
                all_of += _PRIOR / step
                steps[number] = np.maximum(step * np.sqrt(own / all_of), _LEAST)
            if is_noise_known:
                noise = max(noise * float(np.sqrt(ratio.sum() / weight.sum())), _LEAST)
        return [_cumulative(step) for step in steps], noise


def _levels(column: Floats) -> Floats:
    distinct = np.unique(column)
    if len(distinct) > _MOST_LEVELS:
        distinct = np.unique(np.quantile(column, np.linspace(0, 1, _MOST_LEVELS)))
    return distinct


def _cumulative(steps: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(steps)])


def _spread(values: Floats, low: Indices, high: Indices, steps: int) -> Floats:
    """Return for each step the sum of the values of the pairs that are on both sides of it."""
    begun = np.bincount(low, values, steps + 1)
    ended = np.bincount(high, values, steps + 1)
    found: Floats = np.maximum(np.cumsum(begun - ended)[:-1], 0.0)
    return found


def _near_pairs(columns: Floats, generator: np.random.Generator) -> Indices:
    """Return pairs of points that are neighbours on a line along one axis, and of points that are
    near each other."""
    count, axes = columns.shape
    ranks = [np.unique(column, return_inverse=True)[1] for column in columns.T]
    found = []
    for axis in range(axes):
        rest = [rank for other, rank in enumerate(ranks) if other != axis]
        order = np.lexsort((ranks[axis], *rest))
        is_line = np.ones(count - 1, np.bool_)
        for rank in rest:
            is_line &= rank[order[1:]] == rank[order[:-1]]
        pairs = np.stack([order[:-1][is_line], order[1:][is_line]], axis=1)
        if len(pairs) > _MOST_PAIRS:
            pairs = pairs[generator.permutation(len(pairs))[:_MOST_PAIRS]]
        found.append(pairs)
    drawn = generator.permutation(count)[:_AMONG]
    scaled = columns[drawn] / np.maximum(columns.std(axis=0), _LEAST)
    own = scaled[:_FROM]
    distance = np.zeros((len(own), len(scaled)))
    for a, b in zip(own.T, scaled.T, strict=True):
        distance += np.abs(a[:, None] - b)
    distance[np.arange(len(own)), np.arange(len(own))] = np.inf
    near = min(_NEAR, count - 1)
    nearest = np.argpartition(distance, near - 1, axis=1)[:, :near]
    found.append(np.stack([np.repeat(drawn[: len(own)], near), drawn[nearest.ravel()]], axis=1))
    return np.concatenate(found)
