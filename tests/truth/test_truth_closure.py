"""A run on this CPU, taken apart and rebuilt: every kernel is known, apart and behind the launches
before it, and no time is lost."""

import pytest

pytest.importorskip("torch", reason="torch is wanted: pip install '.[cpu]'")

from collector.report.comparison import PARTS
from tests.truth.closure import closed

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def test_a_run_is_rebuilt_of_kernels_that_are_all_known(tmp_path):
    found = closed(tmp_path, requests=2, steps=5, repeats=4)
    assert found["unknown_cases"] == [] and found["unknown_us"] == 0
    assert found["without_context"] == [] and found["neighbours_us"] != 0
    assert found["isolated_us"] > 0 and found["host_us"] >= 0
    parts = sum(found[f"{name}_us"] for name in PARTS)
    assert parts == pytest.approx(found["measured_us"], abs=1.0)
