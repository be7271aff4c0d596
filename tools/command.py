"""Runs `opmeter` of this tree, as a user does in a folder."""

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]


def run_opmeter(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in a folder. Its output is kept; what it says to people goes on to ours."""
    return subprocess.run(
        [sys.executable, "-m", "jobs.cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
