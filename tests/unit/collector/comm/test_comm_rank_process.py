"""The process of a rank: its error for a missing program, and how it ends."""

import os
import subprocess
import sys

import pytest

from tests.unit.collector.naming import names

PROGRAM = """
import atexit, sys
atexit.register(print, "taken down")
print("ran with", *sys.argv[1:])
"""


@pytest.fixture
def started(tmp_path, real_starts):
    """Run a program with a torch that reports whether one of its devices was opened."""
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("from torch import cuda")
    (torch / "distributed.py").touch()
    (torch / "cuda.py").write_text(
        "import os\ndef is_initialized(): return bool(os.environ.get('OPENED'))"
    )
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "npu_program.py").write_text(f"import torch_npu\n{PROGRAM}")
    (tmp_path / "torch_npu.py").touch()

    def run(program, **variables):
        path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
        return subprocess.run(
            [sys.executable, "-P", "-m", "collector.comm.rank_process", program, "these", "words"],
            env={**os.environ, "PYTHONPATH": path, **variables},
            capture_output=True,
            text=True,
        )

    return run


def test_program_without_a_driver_exits_with_its_own_output(started):
    done = started("program")
    assert (done.returncode, done.stdout) == (0, "ran with these words\n")


@pytest.mark.parametrize(("program", "opened"), [("npu_program", ""), ("program", "1")])
def test_exit_handlers_of_a_driver_are_run(started, program, opened):
    assert started(program, OPENED=opened).stdout == "ran with these words\ntaken down\n"


def test_missing_program_is_named_before_torch_is_imported(started):
    done = started("no_such_program")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and names(done.stderr, "no_such_program")
