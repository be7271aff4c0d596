"""The information about the machine that the sessions of a worker receive."""

import threading

import pytest

from collector.host.peaks_file import path_of_peaks
from collector.model.peaks import MachinePeaks, peaks_to_bytes
from collector.worker.machine import ThisMachine
from tests.unit.collector.database.campaign_maker import STACK, MadePlan, plan_of
from tests.unit.collector.measuring.pretending import SimulatedSupervisor, cases
from tests.unit.collector.replay.replay_cases import PROVENANCE

pytestmark = pytest.mark.fast


def test_durations_are_checked_against_the_stored_peaks_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("OPMETER_PEAKS", str(tmp_path))
    sessions = SimulatedSupervisor(monkeypatch)
    peaks = MachinePeaks(STACK, 4e11, 1e12, 3e11, 4e10, "now")

    def measure(folder):
        given = (plan_of(MadePlan([])), 0, tmp_path / folder, threading.Event())
        instrument = ThisMachine().instrument(*given, *[lambda *_: None] * 2, ())
        instrument.measure(cases(1), PROVENANCE)

    measure("before")
    path_of_peaks(STACK).write_bytes(peaks_to_bytes(peaks))
    measure("after")
    assert [spec.peaks for spec in sessions.specs] == [None, peaks]
