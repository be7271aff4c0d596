"""The estimates of a whole table from a quarter of it, which takes half a minute: run by its name,
as CI does."""

import pytest

from tests.truth import sampling

pytestmark = pytest.mark.slow


def test_unmeasured_rows_have_the_stated_error(truth):
    path = truth / "gemm" / "h200_sxm-trtllm-1.3.0rc20.parquet"
    found = sampling.judge(*sampling.table_of(path, "fp8"), share=0.25, tolerance=0.05)
    assert found["is_met"], found
