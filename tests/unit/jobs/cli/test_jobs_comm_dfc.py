"""`opmeter comm dfc` as a user types it; its ranks are real ones, over gloo."""

import csv
import importlib.util

import pytest

from tests.unit.jobs.cli.test_jobs_command import opmeter

SMALL = "--backend cpu --ep-size 2 --hidden 64 --intermediate 32 --experts 16 --top-k 2"


def dfc(words, cwd=None):
    return opmeter("comm", "dfc", *words.split(), cwd=cwd)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--backend tpu --tokens 8", "--backend 'tpu'"),
        (SMALL, "--tokens, or a --database-path"),
        (f"{SMALL} --database-path empty", "no row of 2 ranks"),
        (f"{SMALL} --tokens 8 --imbalance 0.5 9", "imbalance 9: "),
        (f"{SMALL} --tokens 8 --expert-loads 1 2", "counts of 2 experts: 16 are wanted"),
        (f"{SMALL} --tokens 8 --experts 15", "experts 15 on ep_size 2"),
        (f"{SMALL} --tokens 8 --bench-mode kernel", "experts on cpu are timed by event"),
        (f"{SMALL} --tokens 8 --bench-mode often", "--bench-mode 'often': auto, event"),
    ],
)
def test_a_mistake_is_one_line(words, said, tmp_path):
    done = dfc(words, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_without_do_run_the_cases_are_said():
    done = dfc(f"{SMALL} --tokens 8 16 --imbalance 0 0.9")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" tokens of 64 to 2 of 16 experts of 32 (INT8) on 2 ranks") == 4
    assert "nothing is measured without --do-run" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="pip install '.[cpu]'")
def test_rows_are_measured_written_and_measured_again(tmp_path):
    quick = "--do-run --rounds 2 --budget-s 0.01 --database-path v"
    done = dfc(f"{SMALL} --tokens 8 --imbalance 0.9 0 {quick}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "DispatchFFNCombine.csv: 2 rows added, 0 changed" in done.stdout
    done = dfc(f"--backend cpu --ep-size 2 {quick}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "DispatchFFNCombine.csv: 0 rows added, 2 changed" in done.stdout
    with (tmp_path / "v" / "DispatchFFNCombine.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["Runtime imbalance"], second["Runtime imbalance"]) == ("", "0.9")
    assert float(first["Imbalance"]) == 0.0
    assert float(second["Imbalance"]) == pytest.approx(0.9, abs=0.05)
    assert min(float(row["Average Duration(us)"]) for row in (first, second)) > 0
