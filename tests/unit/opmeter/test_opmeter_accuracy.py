"""The accuracy of interpolation, on tables whose errors are known."""

import numpy as np
import pytest

from collector.database.index import Index
from opmeter.accuracy import MOST_HELD
from opmeter.version import Version
from tests.unit.opmeter.made import PATH, Row, products_index, version_of

SHAPES = np.array(
    [
        (2**power, n, k)
        for n in range(512, 8192, 512)
        for k in (1024, 2048, 4096, 8192)
        for power in range(12)
    ]
)


def version(scatter: float, reach: float = 0.0) -> Version:
    """Products whose time is a power of each size, times an error of each row: between rows, a
    power law is predicted exactly."""
    noise = np.exp(np.random.default_rng(1).normal(0.0, scatter, len(SHAPES)))
    mean_us = 1e-4 * SHAPES[:, 0] ** 0.5 * SHAPES[:, 1] ** 0.8 * SHAPES[:, 2] ** 0.7 * noise
    data = products_index(SHAPES, mean_us.tolist(), reach=reach)
    return Version(PATH, Index(memoryview(data), key="made"))


def test_power_law_is_predicted_without_an_error() -> None:
    (found,) = version(0.0).accuracy()
    assert (found.kernel, found.rows, found.held) == ("MatMulV2", len(SHAPES), MOST_HELD)
    assert found.p90_error < 1e-6 and found.predicted == found.held
    assert found.coverage > 0.9


def test_known_errors_of_rows_are_estimated_and_covered() -> None:
    """A row left out has its own error; the rows around it average theirs."""
    (found,) = version(0.05).accuracy()
    alone = 0.05 * 0.674  # the median of a normal deviation
    assert alone < found.median_error < 1.6 * alone
    assert 2 * found.median_error < found.p90_error < 3.5 * found.median_error
    assert 0.91 <= found.coverage <= 0.99
    assert found.half_width > found.p90_error
    assert version(0.05).accuracy() == [found]  # the same rows each time


@pytest.mark.fast
def test_too_few_rows_have_no_accuracy() -> None:
    rows = [Row("Add", [(2**n, 64)], [(2**n, 64)], 2.0**n) for n in range(8)]
    assert version_of(rows).accuracy() == []
    more = [Row("Add", [(n, 64)], [(n, 64)], float(n)) for n in range(10, 40)]
    (found,) = version_of(more).accuracy()
    assert (found.held, found.predicted) == (30, 28) and found.median_error < 0.01
    assert (
        found.coverage == 1.0
    )  # too few to calibrate: the intervals span those of the rows around
