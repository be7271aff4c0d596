"""`opmeter comm probe-dfc` as a user types it; its ranks are real ones, over gloo."""

import csv
import importlib.util

import pytest

from tests.unit.jobs.cli.test_jobs_command import opmeter

SMALL = "--backend cpu --ep-size 2 --hidden 64 --intermediate 32"


def probe(words, cwd=None):
    return opmeter("comm", "probe-dfc", *words.split(), cwd=cwd)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--backend tpu", "--backend 'tpu'"),
        (
            "--backend cpu --ep-size 2 --nnodes 2 --nproc-per-node 2",
            "2 x 2 are 4",
        ),
        ("--backend cpu --ep-size 2 --tokens 0 1", "tokens (0, 1): numbers from 1 on"),
        ("--backend cpu --ep-size 3 --experts 4 8", "no point of the grid is a call of 3 ranks"),
        (f"{SMALL} --dtype FLOAT", "no point of the grid is a call"),
        ("--backend cpu --ep-size 2 --nnodes 2", "--master-port is wanted"),
    ],
)
def test_a_mistake_is_one_line(words, said):
    done = probe(words)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="pip install '.[cpu]'")
def test_the_limits_of_a_memory_are_said_and_written(tmp_path):
    grid = "--tokens 8 16 32 64 --experts 2 4 8 --top-k 1 2"
    done = probe(f"{SMALL} {grid} --memory-limit-mb 0.03 --output-csv limits.csv", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "24 points with 2 ranks" in done.stdout
    assert "experts 2, top-k 1: up to 32 tokens of a rank; refused from 64 on" in done.stdout
    assert "experts 8, top-k 2: refused from 8 on" in done.stdout
    assert "of 4 experts of 32 (INT8) on 2 ranks: rank 0: 0.0" in done.stdout
    with (tmp_path / "limits.csv").open() as file:
        rows = {(row["experts"], row["top_k"]): row for row in csv.DictReader(file)}
    assert len(rows) == 6
    assert rows["2", "1"]["accepted_tokens"] == "32"
    assert rows["2", "1"]["refused_tokens"] == "64"
    assert rows["8", "2"]["accepted_tokens"] == ""
    assert {row["EP Size"] for row in rows.values()} == {"2"}
