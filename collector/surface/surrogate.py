"""What the points of a surface take, learnt from those measured, and how far each may be off.

Boosted trees over features of the shape correct a roofline. Each of several folds of the measured
points is left out by one set of trees, so that every measured point has a prediction that has not
seen it; what these are off by, other trees learn again: how noisy a region is, and how far the sets
disagree there, tells how unsure the model is of a point nobody measured.

Neighbours tell nothing more: interpolating what the trees leave between the nearest points makes
real tables worse, since what is left is noise and edges.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from collector.surface.shape_features import Points, features, roofline
from collector.surface.trees import Bins, Growth, binned, grown, summed

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

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
