"""The worker of a gang is killed while its ranks measure: none of them is left, the next worker
continues, and every case has one outcome."""

import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.contract.drills.runs import NAME, Runs

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_CAMPAIGN = f"""campaign: {NAME}
sources:
  - collectives: {{operations: [all_reduce], bytes: [1024, 65536], groups: [2], grid: [2]}}
backend: cpu
measure: {{budget_s: 0.6, repeats: [30, 3000]}}
"""
_PATIENCE_S = 120.0


def running(runs: Runs, module: str) -> list[psutil.Process]:
    """Return the processes of a module for this store, or below its folder."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        ours = any(str(runs.folder) in word for word in line)
        if module in line and ours:
            found.append(process)
    return found


def wait_for_ranks(runs: Runs) -> None:
    """Wait until both ranks run and one has reported its case."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        journals = list(runs.folder.rglob("rank-0.jsonl"))
        if any(re.search(r"\bround\b", journal.read_text()) for journal in journals):
            return
        time.sleep(0.05)
    raise AssertionError("no rank began to measure")


def test_killed_worker_of_a_gang_ends_its_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
    campaign = tmp_path / "campaign.yaml"
    campaign.write_text(_CAMPAIGN)
    runs = Runs(tmp_path, f"file://{tmp_path}/data", {"TMPDIR": str(tmp_path)}, campaign)
    process = runs.start()
    wait_for_ranks(runs)
    ranks = running(runs, "collector.comm.rank")
    assert len(ranks) == 3  # two, and torchrun, whose command names them
    (worker,) = running(runs, "collector.worker")
    os.kill(worker.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs(ranks, timeout=30)
    assert not alive
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output.decode()
    assert re.search(r"^coverage\D+2\D+2\b", output.decode(), flags=re.MULTILINE)
    finals = runs.finals()
    assert len(finals) == 2 and set(finals.values()) == {1}
    runs.command("db", "verify")  # which fails if anything is damaged
    assert runs.wait_until_alone() == []
