"""Before a session of an NPU measures, it waits until its chip and a slot are free."""

import threading
from contextlib import contextmanager
from dataclasses import replace

import pytest

from collector.store.memory import MemoryStore
from collector.worker import sessions
from collector.worker.sessions import ReplayInstrument
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    write_campaign,
)

pytestmark = pytest.mark.fast


class Asked(Exception):
    """Ends a session before it begins."""


@pytest.fixture
def slots(monkeypatch):
    """What a session asks for before it measures."""
    seen = []

    @contextmanager
    def slot(limit, stop, *, chip):
        seen.append((limit, chip))
        yield

    def run_session(*_, **__):
        raise Asked

    monkeypatch.setattr(sessions, "measuring_slot", slot)
    monkeypatch.setattr(sessions, "run_session", run_session)
    monkeypatch.setattr(sessions, "chip_to_itself", lambda index, limit: f"chip{index // 2}")
    return seen


@pytest.mark.parametrize(
    ("backend", "limit", "asked"),
    [
        ("npu", "8", (8, "chip1")),
        ("npu", "", (None, "")),
        ("cpu", "1", (1, "")),
    ],
)
def test_where_a_site_limits_npus_a_die_asks_for_its_chip(
    slots, tmp_path, monkeypatch, backend, limit, asked
):
    monkeypatch.setenv("OPMETER_MEASURE_CONCURRENCY", limit)
    shard = MadeShard("s1", [add_record(1)], is_committed=False)
    plan = replace(write_campaign(MemoryStore(), MadePlan([shard])), backend=backend)
    instrument = ReplayInstrument(plan, 3, tmp_path, threading.Event(), lambda done, case: None)
    with pytest.raises(Asked):
        instrument.measure([], _Provenance())
    assert slots == [asked]


class _Provenance:
    session = 1
