"""A session on a fake NPU whose clock is throttled, and a campaign on one that another process uses
while the first session begins."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collector.codec.canonical import sha256_hex
from collector.database.commits import find_head
from collector.database.query import best_rows
from collector.database.snapshot import load_state
from collector.model import keys
from collector.model.plan import Limits, MeasureSettings
from collector.model.record import write_table
from collector.model.row import value_of
from collector.replay.results import collect_session
from collector.replay.spec import SessionCase, SessionSpec
from collector.replay.supervisor import run_session
from collector.store import open_store
from tests.npu.fakecann.build import environment, npu_host
from tests.npu.fakecann.faults import Fault, write_faults
from tests.unit.collector.naming import names
from tests.unit.collector.replay.replay_cases import PROVENANCE, case_record

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

_ROOT = Path(__file__).parents[2]
_CASES = 20
_CAMPAIGN = """\
campaign: shared
sources: [{{cases: {table}}}]
target: here
backend: npu
devices: 1
measure: {{repeats: 3}}
shards: {{target_s: 240, session_s: 0.032}}
limits: {{case_s: 30, memory_gb: 8}}
quality: {{repeat_share: 0}}
"""


def run(fake, folder, *faults):
    """Return the output of the campaign, and its store."""
    records = [case_record("Add", f"{n},64;{n},64", f"{n},64") for n in range(1, _CASES + 1)]
    store, table = open_store(str(folder / "data")), write_table(records)
    store.put(keys.source("shared", sha256_hex(table)), table)
    text = _CAMPAIGN.format(table=sha256_hex(table))
    (folder / "campaign.yaml").write_text(text)
    env = npu_host(fake, folder, faults=write_faults(folder / "faults.json", *faults)) | {
        "TMPDIR": str(folder),
    }
    env["PYTHONPATH"] = os.pathsep.join((str(_ROOT), env["PYTHONPATH"]))
    command = ["run", "campaign.yaml", "--root", str(folder / "data")]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jobs.cli", *command],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout, store


def test_case_measured_next_to_another_process_is_repeated_or_marked(fake, tmp_path):
    message, store = run(fake, tmp_path, Fault("neighbour", times=1))
    state = load_state(store, find_head(store))
    tried = {}
    for row in sorted(state.measurements.to_pylist(), key=lambda row: row["session"]):
        reported = value_of("disturbance", row["disturbance"])
        assert reported.watched == 3 and reported.clean == (0 if reported.others else 3)
        assert reported.power_w == 130.4 and reported.clock_share == 1.0
        assert reported.launch_gap_share is not None
        tried.setdefault(row["case"], []).append(reported.others)
    once = [others for others in tried.values() if len(others) == 1]
    again = [others for others in tried.values() if len(others) > 1]
    # Of the six cases of the first session, those that fill a quarter of the shard's forecast.
    assert again in ([[1, 0]] * 4, [[1, 0]] * 5)
    left = once.count([1])
    assert left + len(again) == 6 and once.count([0]) == _CASES - 6
    (version,) = state.versions
    shown = best_rows(state, version).to_pylist()
    warned = [row for row in shown if "another process" in row["warnings"]]
    assert len(warned) == left
    (line,) = (line for line in message.splitlines() if line.startswith("disturbed "))
    assert names(line, f"{5 * left} %")


def test_session_with_a_throttled_clock_has_disturbed_measurements(fake, tmp_path, monkeypatch):
    order = write_faults(tmp_path / "faults.json", Fault("throttle", count=1200))
    env = environment(fake, faults=order)
    env["PYTHONPATH"] = os.pathsep.join((str(_ROOT), env["PYTHONPATH"]))
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    records = [case_record("Abs", f"{n},64", f"{n},64") for n in (1, 2)]
    spec = SessionSpec(
        backend="npu",
        device=0,
        cases=tuple(SessionCase(record, 0.01, 60.0) for record in records),
        measure=MeasureSettings(repeat_count=5),
        limits=Limits(),
    )
    folder = tmp_path / "session"
    folder.mkdir()
    result = collect_session(spec, folder, run_session(spec, folder), PROVENANCE)
    (first, second) = result.measurements
    assert first.is_disturbed and second.is_disturbed
    assert names(" ".join(first.warnings), 5, "clock", "67 %")
    assert (first.opened.clock_mhz, first.opened.temperature_c) == (1200.0, 46.0)
