"""Amounts as Kubernetes writes them."""

import pytest

from jobs.objects.object_values import quantity

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("8", 8), ("500m", 0.5), ("1.5", 1.5), ("1k", 1000), ("1e3", 1000)),
        *(("1Ki", 1024), ("40Gi", 40 * 2**30), ("2M", 2e6), ("1Ti", 2**40), ("1E", 1e18)),
    ],
)
def test_quantity_is_parsed(text, value):
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["", "?", "Gi", "4GB", "4 Gi", "4K", "4mi", "4ii", "nan?"])
def test_invalid_quantity_is_zero(text):
    assert quantity(text) == 0
