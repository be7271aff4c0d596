"""`opmeter stack`: the output of a probe's pod, and its input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.host import stack
from collector.model.stack import Stack
from jobs.cli.machine import stack_command
from tests.unit.jobs.printed import raises_naming

pytestmark = pytest.mark.fast

DIE = "ATLAS_800_A3_752T_128G_DIE"


@pytest.fixture
def requested(monkeypatch):
    """Responses of a machine whose chips have several names; it answers with the name that it is
    given."""
    found = []

    def local_stack(backend, expected):
        found.append((backend, expected))
        if expected is None:
            raise BadInput("it can have several names")
        return Stack(device=expected, torch="2.9.0")

    monkeypatch.setattr(stack, "local_stack", local_stack)
    return found


def test_device_option_selects_the_name_of_the_stack(requested, capsys):
    stack_command(backend="npu", device=DIE)
    assert json.loads(capsys.readouterr().out)["device"] == DIE
    with pytest.raises(BadInput, match="several names"):
        stack_command(backend="npu")
    assert requested == [("npu", DIE), ("npu", None)]


def test_device_option_is_refused_if_the_machine_has_one_name(requested):
    with raises_naming(BadInput, "--device", "cpu"):
        stack_command(backend="cpu", device="CPU_x_2t")
    assert not requested


def run(limit_s, takes_s):
    """A process whose driver responds slowly."""
    code = (
        "import time; from collector.host import stack; from collector.model.stack import Stack\n"
        "from jobs.cli.machine import stack_command\n"
        f"stack.local_stack = lambda *arguments: time.sleep({takes_s}) or Stack('D', '2.9.0')\n"
        f"stack_command(backend='cpu', limit={limit_s})"
    )
    folder = Path(__file__).parents[4]
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.mark.thorough
def test_hanging_driver_is_ended_after_the_limit():
    done = run(limit_s=0.1, takes_s=50)
    assert done.returncode == 1 and not done.stdout
    assert "0.1 s" in done.stderr


@pytest.mark.thorough
def test_stack_is_printed_within_the_limit():
    done = run(limit_s=50, takes_s=0.0)
    assert done.returncode == 0 and json.loads(done.stdout)["device"] == "D"
