"""The slices of real tables that the gates stop, as judged by their script."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from collector.model.measurement import Outcome
from collector.quality.gates import (
    LEAST_FLAT_SHARE,
    LEAST_LONG_SHARE,
    LONG_BASE_US,
    find_hidden_work,
    gate_of_outcome,
)
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


def test_only_host_bound_slices_are_stopped(slices):
    stopped = {name: one for name, one in slices.items() if one["is_stopped"]}
    assert stopped.keys() == _HOST_BOUND, slices
    gates_of = {gate_of_outcome(Outcome.IMPLAUSIBLE, one["reason"]) for one in stopped.values()}
    assert gates_of == {"host time"}


def test_threshold_is_far_from_both_kinds(slices):
    host = [one for name, one in slices.items() if name in _HOST_BOUND]
    others = [one for name, one in slices.items() if name not in _HOST_BOUND]
    shares = [[one["shown_share"] for one in kind] for kind in (host, others)]
    assert max(shares[0]) * 1.5 < LEAST_FLAT_SHARE, slices
    assert max(shares[0]) * 2 < LEAST_LONG_SHARE < min(shares[1]) / 2, slices
    bases = [[one["base_us"] for one in kind] for kind in (host, others)]
    assert max(bases[1]) * 1.9 < LONG_BASE_US < min(bases[0]) / 1.9, slices


def test_planted_host_time_is_detected_in_any_clean_kernel(truth):
    for path in sorted((truth / "gemm").glob("*.parquet")):
        table = pd.read_parquet(path)
        for dtype, rows in table.groupby("gemm_dtype"):
            if (path.stem, dtype) in _HOST_BOUND:
                continue
            curve = gates.curve_of(rows)
            for hidden_us, added_us in ((50, 0), (40, 20)):
                longer = np.maximum(curve.duration_us, hidden_us) + added_us
                found = find_hidden_work(replace(curve, duration_us=longer))
                assert found is not None and found.fault, (path.stem, dtype, hidden_us)
            later = find_hidden_work(replace(curve, duration_us=curve.duration_us + 50))
            assert later is not None and not later.fault, (path.stem, dtype)
