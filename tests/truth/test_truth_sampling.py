"""The estimates of a real table from a quarter of it, as judged by their script: here of an eighth
of the rows, of all of them in `whole_sampling.py`, which is run by its name."""

import numpy as np
import pytest

from tests.truth import sampling

pytestmark = pytest.mark.slow


def test_unmeasured_rows_have_the_stated_error(truth):
    path = truth / "gemm" / "h200_sxm-trtllm-1.3.0rc20.parquet"
    found = sampling.judge(*sampling.table_of(path, "fp8", every=2), share=0.25, tolerance=0.05)
    assert found["is_met"], found


def test_noise_of_a_table_is_estimated_from_equal_shapes(truth):
    """Of the same shapes on the same kind of device."""
    quiet, noisy = (
        sampling.twins_p95(*sampling.table_of(truth / "gemm" / f"h100_sxm-{name}.parquet", "fp8"))
        for name in ("trtllm-1.3.0rc20", "sglang-0.5.14")
    )
    assert quiet == pytest.approx(0.024, abs=0.002) and noisy == pytest.approx(0.164, abs=0.005)


def test_server_answers_within_its_budget_and_only_before_the_evaluation():
    server = sampling.Server(np.array([1.0, 2, 3, 4]), budget=2)
    assert server.request(np.array([2])).tolist() == [3000]
    with pytest.raises(PermissionError):
        server.request(np.array([0, 1]))
    assert server.request(np.array([2, 0])).tolist() == [3000, 1000]
    rest, error = server.errors(np.log([1e3, 2e3, 3e3, 8e3]))
    assert rest.tolist() == [1, 3] and error == pytest.approx([0, np.log(2)])
    with pytest.raises(PermissionError):
        server.request(np.array([2]))
