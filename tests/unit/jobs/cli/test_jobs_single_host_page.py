"""The how-to page of the single-host flow: its commands work as they are written."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from collector.database.tree import read_kernel_file

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "how-to" / "turn-profiles-into-a-tree.md"


@pytest.mark.torch
@pytest.mark.slow
def test_every_command_of_the_page_works_as_written(tmp_path):
    command = tmp_path / "bin" / "opmeter"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m jobs.cli "$@"\n')
    command.chmod(0o755)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert blocks
    done = subprocess.run(
        ["bash", "-ec", "\n".join(blocks)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={
            "PATH": f"{command.parent}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "OPMETER_LOCKS": str(tmp_path / "locks"),
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for kernel in ("Muls", "Sin"):
        rows = read_kernel_file(tmp_path / "tree" / f"{kernel}.csv").rows
        texts = [row["Average Duration(us)"] for row in rows]
        assert any(texts), "a busy machine withholds means with many outliers"
        assert all(float(text) > 0 for text in texts if text)
    attention, *_ = read_kernel_file(tmp_path / "tree" / "FusedInferAttentionScore.csv").rows
    assert attention["Runtime avg_seq_len"] == "606.500000"
    (row,) = read_kernel_file(tmp_path / "measured" / "Add.csv").rows
    assert row["Average Duration(us)"] == "3.000000"
