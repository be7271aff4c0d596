"""Queries for held-out rows of real tables: as accurate as docs/evaluation/queries.md states, with
intervals that reach their coverage, between measured rows and beyond them."""

import numpy as np
import pytest

from tests.truth import held_out, sampling

pytestmark = pytest.mark.slow


def test_held_out_rows_are_interpolated_within_their_intervals(truth):
    path = truth / "gemm" / "h200_sxm-trtllm-1.3.0rc20.parquet"
    covered = []
    for dtype, split, most_p50, most_p90 in (
        ("fp8", "rows", 0.015, 0.05),
        ("fp8", "weights", 0.015, 0.05),
        ("fp8", "levels", 0.02, 0.07),
        ("fp8", "sparse", 0.03, 0.1),
        ("bfloat16", "rows", 0.025, 0.08),
    ):
        points, latency_ms = sampling.table_of(path, dtype)
        shapes = points.sizes.astype(np.int64)
        found = held_out.judge(shapes, latency_ms * 1e3, held_out.SPLITS[split](shapes))
        assert found["p50_error"] <= most_p50 and found["p90_error"] <= most_p90, found
        assert found["missed"] <= 0.05, found
        covered.append(found["covered"])
    assert 0.93 <= np.mean(covered) <= 0.97, covered


def test_rows_beyond_the_others_are_extrapolated_within_their_intervals(truth):
    for name, dtype in (("h200_sxm-trtllm-1.3.0rc20", "fp8"), ("h100_sxm-sglang-0.5.14", "fp8")):
        points, latency_ms = sampling.table_of(truth / "gemm" / f"{name}.parquet", dtype)
        shapes, mean_us = points.sizes.astype(np.int64), latency_ms * 1e3
        for cut, (held, judged) in held_out.cuts(shapes).items():
            kept = ~held | judged
            found = held_out.judge(shapes[kept], mean_us[kept], judged[kept], extrapolate=True)
            assert found["p50_error"] <= 0.45 and found["p90_error"] <= 1.2, (cut, found)
            assert found["covered"] >= 0.97, (cut, found)
