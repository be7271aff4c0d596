"""A campaign that measures a part of a curve, from the command line to the database."""

from pathlib import Path

import pytest

from tests.contract.drills.runs import Runs
from tests.unit.jobs.printed import numbers

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_CAMPAIGN = """campaign: curve
sources: [{tree: tree}]
target: here
backend: cpu
measure: {repeats: 3, cache: warm}
quality: {repeat_share: 0}
sampling: {tolerance: 90%}
"""
_HEADER = (
    "OP State,Accelerator Core,Input Shapes,Input Data Types,Input Formats,"
    "Output Shapes,Output Data Types,Output Formats"
)


def numbers_of(output: str, name: str) -> list[list[str]]:
    """Return the numbers of each line of that name."""
    return [numbers(line) for line in output.splitlines() if line.split()[:1] == [name]]


def test_curve_is_measured_in_rounds_until_the_rest_is_known(tmp_path: Path):
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
    rows = [
        f'dynamic,AI_VECTOR_CORE,"""{n},64;{n},64""",FLOAT;FLOAT,ND;ND,"""{n},64""",FLOAT,ND'
        for n in range(1, 801)
    ]
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "Add.csv").write_text("\n".join([_HEADER, *rows]) + "\n")
    campaign = tmp_path / "curve.yaml"
    campaign.write_text(_CAMPAIGN)
    runs = Runs(tmp_path, f"file://{tmp_path}/data", {"TMPDIR": str(tmp_path)}, campaign)
    output = runs.finish()
    lines = {name: numbers_of(output, name) for name in ("cases", "coverage", "sampling")}
    requested = [int(found[0]) for found in lines["cases"]]
    assert requested[0] == 150 and sum(requested) <= 200  # how sure it is depends on the machine
    assert [found[:2] for found in lines["coverage"]] == [[str(sum(requested)), "800"]]
    assert str(800 - sum(requested)) in [found[0] for found in lines["sampling"]]
    runs.command("db", "verify")  # which fails if anything is damaged
    attempts = runs.attempts()
    runs.finish()
    assert runs.attempts() == attempts
