"""`opmeter comm probe-dfc` as a user calls it; the ranks are real ones, over gloo."""

import csv
import importlib.util
import re

import pytest

from tests.unit.jobs.cli.in_process import opmeter_here
from tests.unit.jobs.cli.test_jobs_command import opmeter
from tests.unit.jobs.printed import missing, numbers

SMALL = "--backend cpu --ep-size 2 --hidden 64 --intermediate 32"


def probe(words, cwd=None, run=opmeter):
    return run("comm", "probe-dfc", *words.split(), cwd=cwd)


@pytest.mark.parametrize(
    ("words", "data"),
    [
        ("--backend tpu", ["--backend", "'tpu'"]),
        ("--backend cpu --ep-size 2 --nnodes 2 --nproc-per-node 2", ["2", "4"]),
        ("--backend cpu --ep-size 2 --tokens 0 1", ["tokens", "(0, 1)", "1"]),
        ("--backend cpu --ep-size 3 --experts 4 8", ["3 ranks"]),
        (f"{SMALL} --dtype FLOAT", ["2 ranks"]),
        ("--backend cpu --ep-size 2 --nnodes 2", ["--master-port"]),
    ],
)
def test_invalid_option_is_refused_in_one_line(words, data):
    done = probe(words, run=opmeter_here)
    assert done.returncode == 2, done.stderr
    assert missing(done.stderr, data) == []
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="pip install '.[cpu]'")
def test_memory_limits_are_printed_and_written(tmp_path):
    grid = "--tokens 8 16 32 64 --experts 2 4 8 --top-k 1 2"
    done = probe(f"{SMALL} {grid} --memory-limit-mb 0.03 --output-csv limits.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    first, *lines = done.stdout.splitlines()
    assert numbers(first)[:2] == ["24", "2"]  # points, and ranks
    of_grid = [numbers(line) for line in lines if line.startswith("experts ")]
    assert ["2", "1", "32", "64"] in of_grid  # experts, top-k, accepted up to, refused from
    assert ["8", "2", "8"] in of_grid
    assert re.search(r"\b4 experts\b.*INT8.*\brank 0\b.*\b0\.0", done.stdout)
    with (tmp_path / "limits.csv").open() as file:
        rows = {(row["experts"], row["top_k"]): row for row in csv.DictReader(file)}
    assert len(rows) == 6
    assert rows["2", "1"]["accepted_tokens"] == "32"
    assert rows["2", "1"]["refused_tokens"] == "64"
    assert rows["8", "2"]["accepted_tokens"] == ""
    assert {row["EP Size"] for row in rows.values()} == {"2"}
