"""Inputs exactly at the bound of a rule of planning, and the sums of a forecast."""

from dataclasses import replace
from pathlib import Path

import pytest

from collector.model.plan import MeasureSettings
from collector.ranks.experts import ExpertCall
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import campaign_from_text
from jobs.planning.forecast import FLUSH_BYTES, predict_routed
from jobs.planning.second_sessions import repeated_shards
from jobs.planning.shard_cutting import Packing
from jobs.planning.workload import workload_of
from tests.unit.jobs.planning.test_jobs_forecast import PEAKS
from tests.unit.jobs.planning.test_jobs_repeats import priced

pytestmark = pytest.mark.fast


def test_flush_buffer_is_larger_than_any_cache():
    assert FLUSH_BYTES == 268_435_456


def test_ranks_allocate_the_inputs_and_the_reference_of_their_call():
    call = ExpertCall(64, 128, 64, 32, 4, ep_size=16)
    slow = predict_routed(call, PEAKS, MeasureSettings(), None).total_s
    faster = replace(PEAKS, fill_bytes_per_s=2 * PEAKS.fill_bytes_per_s)
    saved_s = slow - predict_routed(call, faster, MeasureSettings(), None).total_s
    made_bytes = 2 * call.rank_bytes(64 * 4)
    assert saved_s == pytest.approx(made_bytes / PEAKS.fill_bytes_per_s / 2)


@pytest.mark.parametrize(
    ("devices", "shards", "balanced"),
    [(0.99, 0.9, True), (0.989, 0.9, False), (0.99, 0.899, False)],
)
def test_packing_is_balanced_from_its_bounds_on(devices: float, shards: float, balanced: bool):
    assert Packing((), devices, shards).is_balanced is balanced


def test_repeats_of_one_device_are_distributed_like_those_of_any():
    cases = [
        replace(case, cost_s=1.0 + number % 7)
        for number, case in enumerate(priced(*[3e-5] * 40, cost_s=1.0))
    ]
    more = {"total_s": 6000.0, "start_s": 1.0, "token": 1}
    dealt = repeated_shards(cases, 0.5, **more)
    lanes = {case.candidate.record.case_id: 0 for case in cases}
    assert len(dealt) > 1
    assert repeated_shards(cases, 0.5, lanes=lanes, **more) == dealt


def test_workload_of_sources_has_each_case_once_with_its_launches():
    text = "campaign: a\nsources: [{bundled: quickstart}]\nbackend: cpu\n"
    campaign = campaign_from_text(text, path="c.yaml", base=Path("/campaigns"))
    found = workload_of(campaign, MemoryStore(), PEAKS)
    ids = [one.record.case_id for one in found.cases]
    assert len(set(ids)) == len(ids) > 100
    assert all(one.launches > 0 for one in found.cases)
    assert sum(one.time_us for one in found.cases) > 0
