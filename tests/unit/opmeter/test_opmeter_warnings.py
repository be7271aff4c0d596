"""Warnings of durations follow them into the answers that are made of them."""

from dataclasses import replace

import pytest

from opmeter.answers import Channel
from tests.unit.opmeter.made import product, version_of

pytestmark = pytest.mark.fast

SIZES = (16, 32, 64, 128, 256, 512)
ROWS = [product(m, 512, 512, float(m)) for m in SIZES]


@pytest.mark.parametrize("extrapolate", [False, True])
def test_interpolated_duration_has_the_warnings_of_its_rows(extrapolate: bool) -> None:
    m = 1024 if extrapolate else 100
    shapes = [(m, 512), (512, 512)]
    clean = version_of(ROWS).query("MatMulV2", shapes, "bf16", extrapolate=extrapolate)
    assert clean.channel == (Channel.EXTRAPOLATED if extrapolate else Channel.INTERPOLATED)
    rows = [replace(row, warnings="disturbed;outliers") for row in ROWS]
    warned = version_of(rows).query("MatMulV2", shapes, "bf16", extrapolate=extrapolate)
    assert warned[:5] == clean[:5]
    assert warned.warnings == ("disturbed", "outliers", *clean.warnings)
    one = [replace(row, warnings="trend" if row.inputs[0] == (16, 512) else "") for row in ROWS]
    far = version_of(one).query("MatMulV2", [(400, 512), (512, 512)], "bf16")
    assert "trend" not in far.warnings  # of a case that the answer does not use
