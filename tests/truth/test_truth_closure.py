"""A run on this CPU, divided and explained: every kernel is known, alone and after the launches
before it, and no time is lost."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")

from collector.report.comparison import PARTS
from tests.truth.closure import closed

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_run_is_explained_by_kernels_that_are_all_known(tmp_path):
    found = closed(tmp_path, requests=2, steps=5, repeats=4)
    assert found["unknown_cases"] == [] and found["unknown_us"] == 0
    assert found["without_context"] == [] and found["neighbours_us"] != 0
    assert found["isolated_us"] > 0 and found["host_us"] >= 0
    parts = sum(found[f"{name}_us"] for name in PARTS)
    assert parts == pytest.approx(found["measured_us"], abs=1.0)
