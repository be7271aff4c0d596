"""A campaign on two fake NPUs, one of which runs at half its clock for a session: its measurements
are not shown until the other one has repeated them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from collector.database.commits import find_head
from collector.database.query import case_results
from collector.database.snapshot import load_state
from collector.database.verify import find_problems
from collector.replay.msprof import SummaryRow, write_summary
from collector.store import open_store
from jobs.planning.stored_plans import read_plans
from tests.npu.fakecann.build import npu_host
from tests.npu.fakecann.faults import Fault, struck, write_faults
from tests.unit.collector.replay.replay_cases import add_record

pytestmark = [pytest.mark.torch, pytest.mark.npu, pytest.mark.slow]

_ROOT = Path(__file__).parents[2]
_CASES, _OF_SHARD = 12, 2
_LAUNCH_NS = 13 * 10**9  # by the profile: so that sessions last a minute, by forecast
_CAMPAIGN = """\
campaign: slowed
sources: [{profile: profile, stack: target}]
target: here
backend: npu
devices: 2
measure: {repeats: 3}
quality: {repeat_share: 0}
shards: {target_s: 80, session_s: 240}
"""


def test_session_at_half_the_clock_is_detected_and_repeated_on_the_other_device(fake, tmp_path):
    (tmp_path / "profile").mkdir()
    rows = [add_record(64 * rows) for rows in range(1, _CASES + 1)]
    summary = (
        SummaryRow("x", row.kernel_type, row.cells, 10**12 * at, _LAUNCH_NS)
        for at, row in enumerate(rows, 1)
    )
    write_summary(summary, tmp_path / "profile" / "op_summary_1.csv")
    (tmp_path / "campaign.yaml").write_text(_CAMPAIGN)
    faults = write_faults(tmp_path / "faults.json", Fault("scale", share=2.0, times=1))
    env = npu_host(fake, tmp_path, devices=2, faults=faults) | {
        "TMPDIR": str(tmp_path),
    }
    env["PYTHONPATH"] = os.pathsep.join((str(_ROOT), env["PYTHONPATH"]))
    command = ["run", "campaign.yaml", "--root", str(tmp_path / "data")]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jobs.cli", *command],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "plan 2" in done.stdout + done.stderr
    store = open_store(str(tmp_path / "data"))
    _, second = read_plans(store, "slowed")
    assert len(struck(faults)) == 1 and second.forecast.doubtful == _OF_SHARD
    state = load_state(store, find_head(store))
    (version,) = state.versions
    known = case_results(state, version)
    assert all(known[row.case_id].is_good and not known[row.case_id].is_suspect for row in rows)
    measured = state.measurements.select(["shard", "node", "device_serial"]).to_pylist()
    (suspected,) = {shard.not_on for shard in second.shards}
    again = {shard.shard_id for shard in second.shards}
    places = {f"{m['node']}/{m['device_serial']}" for m in measured if m["shard"] in again}
    assert len(measured) == _CASES + _OF_SHARD and suspected not in places and len(places) == 1
    assert not find_problems(store)
