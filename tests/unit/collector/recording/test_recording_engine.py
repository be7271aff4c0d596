"""The process that imports an engine once and forks one for each cut of a model, with an engine
that ends without a result."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from collector.recording.engine import SITE
from tests.lacking import lacking
from tests.waiting import wait_for

ENGINE = """
import os, signal, time

class LLM:
    def __init__(self, model):
        print("begin", model, flush=True)
        if model == "refused":
            raise ValueError("no such\\n  model")
        if model == "aborts":
            os.abort()
        signal.pause()
"""


@pytest.fixture
def started(tmp_path):
    """Return a function that starts the program with the engine of this module, for models."""
    if shutil.which("gcc") is None:
        lacking("gcc not found; apt-get install gcc")
    (tmp_path / "vllm.py").write_text(ENGINE)
    source, library = tmp_path / "begin.c", tmp_path / "libascendcl.so"
    source.write_text("void opmeter_fake_cann_begin(void) {}\n")
    subprocess.run(["gcc", "-shared", "-o", library, source], check=True)
    env = os.environ | {"PYTHONPATH": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}

    def start(*models):
        folders = [tmp_path / model for model in models]
        for folder in folders:
            folder.mkdir()
            request = {"engine": {"model": folder.name}, "passes": [], "sampling": {}}
            (folder / "request.json").write_text(json.dumps(request))
        program = [sys.executable, SITE / "opmeter_engine.py", *folders]
        return subprocess.Popen(list(map(str, program)), env=env), folders

    return start


def test_a_model_that_is_refused_is_the_last(started):
    process, (refused, other) = started("refused", "aborts")
    assert process.wait(60) == 0
    found = json.loads((refused / "result.json").read_text())
    assert found["error"].endswith("ValueError: no such model")
    assert (refused / "engine.txt").read_text().startswith("begin refused")
    assert not (other / "engine.txt").exists()


def test_an_engine_that_ends_without_a_result_is_the_last(started):
    process, (aborted, other) = started("aborts", "refused")
    assert process.wait(60) == 128 + signal.SIGABRT
    assert "Fatal Python error: Aborted" in (aborted / "engine.txt").read_text()
    assert not (aborted / "result.json").exists()
    assert not (other / "engine.txt").exists()


def test_an_engine_that_takes_too_long_leaves_its_stack(started):
    process, (waits,) = started("waits")
    output = waits / "engine.txt"
    wait_for(lambda: output.exists() and "begin waits" in output.read_text())
    process.send_signal(signal.SIGABRT)
    assert process.wait(60) == 128 + signal.SIGABRT
    assert "Fatal Python error: Aborted" in output.read_text()
    assert "in __init__" in output.read_text()
