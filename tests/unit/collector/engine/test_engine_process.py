"""The process of an engine, with one that refuses a model, ends without a result, or waits."""

import json
import os
import signal
import subprocess
import sys

import pytest

from collector.engine.engine_process import SITE
from tests.waiting import wait_for

ENGINE = """
import os, signal, time

class LLM:
    def __init__(self, model, max_num_seqs):
        print("begin", model, flush=True)
        if model == "refused":
            raise ValueError("no such\\n  model")
        if model == "asserts":
            assert not model
        if model == "aborts":
            os.abort()
        signal.pause()
"""


@pytest.fixture
def started(tmp_path):
    """Return a function that starts the program with the engine of this module, for a model."""
    (tmp_path / "vllm.py").write_text(ENGINE)
    metadata = tmp_path / "vllm-0.18.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.18.0\n")
    (tmp_path / "opmeter_hooks.py").write_text("TOKENS = set()\n")
    env = os.environ | {"PYTHONPATH": str(tmp_path)}

    def start(model):
        options = {"model": model, "max_num_seqs": 4}
        request = {"engine": options, "passes": [], "sampling": {}, "timed": None, "flags": []}
        request |= {"has_chosen_blocks": False, "has_all_graphs": False}
        (tmp_path / "request.json").write_text(json.dumps(request))
        program = [sys.executable, str(SITE / "opmeter_engine.py"), str(tmp_path)]
        with (tmp_path / "engine.txt").open("wb") as output:
            return subprocess.Popen(program, env=env, stdout=output, stderr=output)

    return start


def test_refusal_names_the_package_in_one_line(started, tmp_path):
    assert started("refused").wait(60) == 0
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["error"].startswith("vllm 0.18.0 refuses")
    assert "ValueError: no such model" in found["error"]


def test_refusal_without_words_has_the_line_of_the_code(started, tmp_path):
    """The packages of the engine are in folders with their names."""
    folder = tmp_path / "vllm"
    folder.mkdir()
    (tmp_path / "vllm.py").rename(folder / "__init__.py")
    assert started("asserts").wait(60) == 0
    found = json.loads((tmp_path / "result.json").read_text())
    assert "AssertionError: assert not model" in found["error"]


def test_engine_that_ends_leaves_its_stack_and_no_result(started, tmp_path):
    assert started("aborts").wait(60) == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in (tmp_path / "engine.txt").read_text()
    assert not (tmp_path / "result.json").exists()


def test_engine_that_takes_too_long_leaves_its_stack(started, tmp_path):
    process, output = started("waits"), tmp_path / "engine.txt"
    wait_for(lambda: output.exists() and "begin waits" in output.read_text())
    process.send_signal(signal.SIGABRT)
    assert process.wait(60) == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in output.read_text()
    assert "in __init__" in output.read_text()
