"""The sizes of a product by those of its tensors."""

import numpy as np
import pytest

from collector.ops.sizes import product_sizes

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("first", "output", "expected"),
    [
        ((8, 64), (8, 32), (1, 8, 32, 64)),
        ((64, 8), (8, 32), (1, 8, 32, 64)),  # transposed in memory
        ((4, 8, 64), (4, 8, 32), (4, 8, 32, 64)),
        ((1, 8, 64), (4, 8, 32), (4, 8, 32, 64)),  # shared by the batch
        ((32, 64), (4, 8, 32), (4, 8, 32, 64)),  # rows of a batch
        ((0, 64), (0, 32), (1, 0, 32, 0)),
    ],
)
def test_product_has_its_sizes_by_numbers_and_by_arrays(first, output, expected):
    assert product_sizes(first, output) == expected
    arrays = (
        [np.array([size, 2 * size]) if at == 0 else np.array([size, size]) for at, size in side]
        for side in ([*enumerate(first)], [*enumerate(output)])
    )
    batch, m, n, k = product_sizes(*arrays)
    assert [int(np.broadcast_to(one, (2,))[0]) for one in (batch, m, n, k)] == [*expected]
