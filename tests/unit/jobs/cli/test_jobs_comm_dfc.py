"""`opmeter comm dfc` as a user calls it; the ranks are real ones, over gloo."""

import csv
import importlib.util

import pytest

from tests.unit.jobs.cli.in_process import opmeter_here
from tests.unit.jobs.cli.test_jobs_command import opmeter
from tests.unit.jobs.printed import missing, numbers

SMALL = "--backend cpu --ep-size 2 --hidden 64 --intermediate 32 --experts 16 --top-k 2"


def dfc(words, cwd=None):
    run = opmeter if "--do-run" in words else opmeter_here
    return run("comm", "dfc", *words.split(), cwd=cwd)


@pytest.mark.parametrize(
    ("words", "data"),
    [
        ("--backend tpu --tokens 8", ["--backend", "'tpu'"]),
        (SMALL, ["--tokens", "--database-path"]),
        (f"{SMALL} --database-path empty", ["empty: ", "2"]),
        (f"{SMALL} --tokens 8 --imbalance 0.5 9", ["imbalance", "9", "2.65"]),
        (f"{SMALL} --tokens 8 --expert-loads 1 2", ["2", "16"]),
        (f"{SMALL} --tokens 8 --experts 15", ["experts", "15", "2"]),
        (f"{SMALL} --tokens 8 --bench-mode kernel", ["kernel", "cpu", "event"]),
        (f"{SMALL} --tokens 8 --bench-mode often", ["--bench-mode", "'often'", "auto, event"]),
    ],
)
def test_invalid_option_is_refused_in_one_line(words, data, tmp_path):
    done = dfc(words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert missing(done.stderr, data) == []
    assert "Traceback" not in done.stderr


def test_cases_are_printed_without_do_run():
    done = dfc(f"{SMALL} --tokens 8 16 --imbalance 0 0.9")
    assert done.returncode == 0, done.stderr
    *cases, last = done.stdout.splitlines()
    # Tokens, their width, the experts per token, their width, ranks, imbalance and seed.
    assert list(map(numbers, cases)) == [
        [tokens, "64", "2", "16", "32", "2", imbalance, "0"]
        for tokens in ("8", "16")
        for imbalance in ("0", "0.9")
    ]
    assert "--do-run" in last


def rows_of(printed):
    """Return how many rows of the table were added, and how many changed."""
    (line,) = [line for line in printed.splitlines() if "DispatchFFNCombine.csv" in line]
    return numbers(line)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="pip install '.[cpu]'")
def test_rows_are_measured_written_and_measured_again(tmp_path):
    quick = "--do-run --rounds 2 --budget-s 0.01 --database-path v"
    done = dfc(f"{SMALL} --tokens 8 --imbalance 0.9 0 {quick}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows_of(done.stdout) == ["2", "0"]
    done = dfc(f"--backend cpu --ep-size 2 {quick}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert rows_of(done.stdout) == ["0", "2"]
    with (tmp_path / "v" / "DispatchFFNCombine.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["Runtime imbalance"], second["Runtime imbalance"]) == ("", "0.9")
    assert float(first["Imbalance"]) == 0.0
    assert float(second["Imbalance"]) == pytest.approx(0.9, abs=0.05)
    assert min(float(row["Average Duration(us)"]) for row in (first, second)) > 0
