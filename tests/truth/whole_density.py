"""What a quarter of a whole table tells of the rest, which takes half a minute: run by its name, as
CI does."""

import pytest

from tests.truth import density

pytestmark = pytest.mark.slow


def test_rows_never_asked_are_known_as_well_as_stated(truth):
    path = truth / "gemm" / "h200_sxm-trtllm-1.3.0rc20.parquet"
    found = density.judge(*density.table_of(path, "fp8"), share=0.25, tolerance=0.05)
    assert found["is_met"], found
