"""Groups of counters: one pass each, and one combined measurement."""

from dataclasses import replace

import pytest

from collector.measuring.instrument import counter_groups, with_counters
from collector.model.measurement import Measurement, Outcome, Timing
from tests.unit.collector.naming import names
from tests.unit.collector.replay.replay_cases import PROVENANCE

pytestmark = pytest.mark.fast


def _measured(counters, outcome=Outcome.OK, asked=""):
    timing = Timing(*[1.0] * 8) if outcome is Outcome.OK else None
    return Measurement(
        "c", "Add", outcome, "lost", PROVENANCE, timing=timing, counters=counters, asked=asked
    )


def test_further_counter_groups_add_counters_only():
    first = _measured((("aiv_time(us)", 1.0),))
    more = _measured((("aiv_time(us)", 2.0), ("aiv_ub_read_bw(GB/s)", 3.0)))
    (joined,) = with_counters([first], [more], "Memory")
    counters = (("aiv_time(us)", 1.0), ("aiv_ub_read_bw(GB/s)", 3.0))
    assert joined == replace(first, counters=counters)
    for others in ([], [_measured((), Outcome.PROFILER_LOST)], [replace(more, asked="x")]):
        (joined,) = with_counters([first], others, "Memory")
        assert joined.counters == first.counters
        assert names(joined.warnings[0], "Memory")


def test_only_npus_have_counter_groups_and_the_duration_group_is_first():
    assert counter_groups("cpu", ("Memory", "PipeUtilization")) == ["PipeUtilization"]
    assert counter_groups("npu", ("Memory", "PipeUtilization", "L2Cache")) == [
        *("PipeUtilization", "Memory", "L2Cache"),
    ]
    assert counter_groups("npu", ("Memory",)) == ["Memory"]
