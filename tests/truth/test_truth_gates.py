"""What the gates stop of real tables, as their script judges them."""

import numpy as np
import pandas as pd
import pytest

from collector.model.measurement import Outcome
from collector.quality.gates import LEAST_FLAT_SHARE as LEAST_SHARE
from collector.quality.gates import WorkCurve, find_hidden_work, gate_of_outcome
from tests.truth import gates

pytestmark = pytest.mark.slow

_HOST_BOUND = {
    ("h100_sxm-vllm-0.24.0", "fp8_block"),
    ("h200_sxm-vllm-0.24.0", "fp8_block"),
}


@pytest.fixture(scope="module")
def slices(truth):
    """The verdict on each slice of the tables, by file and dtype."""
    paths = sorted((truth / "gemm").glob("*.parquet"))
    found = [one for path in paths for one in gates.judge(path)]
    return {(one["file"], one["dtype"]): one for one in found}


def test_host_bound_slices_are_stopped_and_no_other(slices):
    stopped = {name: one for name, one in slices.items() if one["is_stopped"]}
    assert stopped.keys() == _HOST_BOUND, slices
    gates_of = {gate_of_outcome(Outcome.IMPLAUSIBLE, one["reason"]) for one in stopped.values()}
    assert gates_of == {"host time"}


def test_the_bar_lies_far_from_both_kinds(slices):
    host = [one["shown_share"] for name, one in slices.items() if name in _HOST_BOUND]
    others = [one["shown_share"] for name, one in slices.items() if name not in _HOST_BOUND]
    assert max(host) * 1.5 < LEAST_SHARE < min(others) / 3, slices


def test_host_time_planted_in_any_clean_kernel_is_found(truth):
    for path in sorted((truth / "gemm").glob("*.parquet")):
        table = pd.read_parquet(path)
        for dtype, rows in table.groupby("gemm_dtype"):
            if (path.stem, dtype) in _HOST_BOUND:
                continue
            curve = gates.curve_of(rows)
            longer = np.maximum(curve.duration_us, 50)
            found = find_hidden_work(WorkCurve(curve.operations, curve.traffic, longer))
            assert found is not None and found.fault, (path.stem, dtype)
            later = find_hidden_work(
                WorkCurve(curve.operations, curve.traffic, curve.duration_us + 50)
            )
            assert later is not None and not later.fault, (path.stem, dtype)
