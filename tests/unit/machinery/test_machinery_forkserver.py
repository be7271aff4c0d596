"""A process that is started by a fork is the one that was requested."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.torch

PROGRAM = """
import json, os, sys, time
print(json.dumps({
    "arguments": sys.argv[1:], "folder": os.getcwd(), "value": os.environ.get("VALUE"),
    "forked": "scipy.stats" in sys.modules, "parent": os.getppid(),
    "session": os.getsid(0), "read": sys.stdin.readline(),
}), flush=True)
if "wait" in sys.argv:
    time.sleep(600)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def start(tmp_path: Path):
    (tmp_path / "requested.py").write_text(PROGRAM)
    started = []

    def run(*arguments: str) -> "subprocess.Popen[str]":
        module = ("-P", "-m", "collector.comm.rank_process")
        started.append(
            subprocess.Popen(
                [sys.executable, *module, "requested", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=tmp_path,
                env={**os.environ, "VALUE": "given", "PYTHONPATH": str(tmp_path)},
                start_new_session=True,
                text=True,
            )
        )
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_process_has_the_requested_environment_and_exit_code(start, tmp_path: Path):
    process = start("3")
    output, _ = process.communicate("a line\n", timeout=60)
    assert process.returncode == 3
    assert json.loads(output) == {
        "arguments": ["3"],
        "folder": str(tmp_path),
        "value": "given",
        "forked": True,
        "parent": os.getpid(),
        "session": process.pid,
        "read": "a line\n",
    }


def test_a_process_is_found_by_its_command_and_ends_by_a_signal(start):
    process = start("0", "wait")
    process.stdin.write("\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["arguments"] == ["0", "wait"]
    words = psutil.Process(process.pid).cmdline()
    assert words[1:7] == ["-P", "-m", "collector.comm.rank_process", "requested", "0", "wait"]
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(60) == -signal.SIGTERM
