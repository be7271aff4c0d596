"""A library that cannot be imported next to another one is found before a session, by everything
that checks a machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from collector.host.stack import local_stack
from collector.model import keys
from collector.store.file import FileStore
from collector.worker.assignment import Assignment
from collector.worker.exit_codes import ExitCode
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    add_record,
    write_campaign,
)
from tests.unit.collector.naming import names

_ROOT = Path(__file__).parents[4]
_FAULT = "pyarrow requires NumPy 2.0 or newer, found 1.26.4"


@pytest.fixture
def in_an_image(tmp_path):
    """Run a module of the product where pyarrow cannot be imported."""
    (tmp_path / "image" / "pyarrow").mkdir(parents=True)
    (tmp_path / "image" / "pyarrow" / "__init__.py").write_text(f"raise ImportError({_FAULT!r})\n")

    def started(module, *words):
        path = os.pathsep.join(map(str, (tmp_path / "image", _ROOT)))
        return subprocess.run(
            [sys.executable, "-P", "-m", module, *map(str, words)],
            env={**os.environ, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    return started


@pytest.mark.usefixtures("real_starts")
def test_library_that_cannot_be_imported_fails_doctor_probe_and_worker(in_an_image, tmp_path):
    store = FileStore(tmp_path / "store")
    shard = MadeShard("s1", [add_record(64)], is_committed=False)
    plan = write_campaign(store, MadePlan([shard], stack=local_stack("cpu")))

    done = in_an_image("jobs.cli", "doctor", "--root", store.url, "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1 and [c["name"] for c in checks.values() if not c["ok"]] == [
        "imports"
    ]
    assert names(checks["imports"]["found"], "pyarrow", _FAULT)
    assert names(checks["imports"]["fix"], "pyarrow")

    probe = in_an_image("jobs.cli", "stack", "--backend", "cpu", "--root", store.url)
    line = probe.stderr.splitlines()[-1]
    assert probe.returncode == 1 and names(line, _FAULT, "fix:") and not probe.stdout

    assignment = Assignment("made", plan.number, plan.plan_hash, "s1", "a1")
    words = [*assignment.as_arguments(), "--root", store.url, "--scratch", tmp_path]
    worker = in_an_image("collector.worker", *words)
    line = worker.stderr.splitlines()[-1]
    assert worker.returncode == ExitCode.IMAGE and names(line, _FAULT, "fix:", "nothing")
    left = [info.key for info in store.list(keys.attempts("made", "s1"))]
    assert left == [keys.attempt_log("made", "s1", "a1")]  # no session began

    command = in_an_image("jobs.cli", "run", "quickstart", "--root", store.url)
    assert command.returncode == 1 and names(command.stderr, _FAULT, "opmeter doctor")
    assert "Traceback" not in command.stderr
