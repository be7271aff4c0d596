"""`opmeter measure`: one case, or two stacks in turns, without a campaign file."""

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.executor.alternating import SessionCount
from tests.unit.jobs.cli.in_process import opmeter_here

CASE = "Add 64,64;64,64 fp32"


@pytest.mark.torch
@pytest.mark.slow
def test_measured_case_is_answered_by_a_query(tmp_path: Path) -> None:
    """Twice two short sessions, three seconds of a processor each."""
    words = ("--backend", "cpu", "--sessions", "2")
    done = opmeter_here("measure", CASE, *words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (side,), (case,) = found["sides"], found["cases"]
    assert side["sessions"] == case["support"] == 2 and case["channel"] == "pooled"
    assert 0 < case["low_us"] < case["value_us"] < case["high_us"]
    queried = json.loads(opmeter_here("query", CASE, "--json", cwd=tmp_path).stdout)
    assert queried[0]["value_us"] == case["value_us"] and queried[0]["support"] == 2
    again = opmeter_here("measure", CASE, *words, "--compare", "1:torch", cwd=tmp_path)
    line = again.stdout.splitlines()[-1]
    assert again.returncode == 0 and line.startswith("Add 64,64;64,64: "), again.stderr
    assert any(f": {kind}, " in line for kind in ("changed", "equal", "inconclusive"))


@pytest.mark.torch
@pytest.mark.slow
def test_two_environments_take_turns(tmp_path: Path) -> None:
    """Two pairs of sessions, in environments of the same versions: the results of the second are
    stored apart."""
    script = tmp_path / "set_env.sh"
    script.write_text("export ATEN_CPU_CAPABILITY=default\n")
    sides = ("--environment", sys.executable, "--environment", script)
    found = _pair_of(tmp_path, *sides, "--margin", "99%")
    (first, last), (second, third) = map(_begins, found["sides"])
    assert first < second < third < last  # AB BA
    stores = [Path(side["store"]).name for side in found["sides"]]
    assert stores == ["opmeter-data", "opmeter-data-b"]


@pytest.mark.torch
@pytest.mark.slow
def test_two_kernels_take_turns(tmp_path: Path) -> None:
    found = _pair_of(tmp_path, "--against", "Mul 64,64;64,64 fp32")
    assert [side["name"] for side in found["sides"]] == ["Add", "Mul"]
    (pair,) = found["pairs"]
    assert (pair["kernel_type"], pair["other kernel_type"]) == ("Add", "Mul")
    queried = opmeter_here("query", "Mul 64,64;64,64 fp32", cwd=tmp_path)
    assert queried.returncode == 0


def _pair_of(folder: Path, *words: object) -> dict[str, Any]:
    """Return what two pairs of sessions found."""
    few = ("--backend", "cpu", "--sessions", "2", "--json")
    done = opmeter_here("measure", CASE, *words, *few, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    (pair,) = found["pairs"]
    assert pair["pairs"] == 2 and pair["low"] < pair["ratio"] < pair["high"]
    assert pair["ratio"] == pytest.approx(pair["after_us"] / pair["before_us"])
    assert pair["finding"] in ("changed", "equal", "inconclusive")
    return found


def _begins(side: dict[str, str]) -> list[str]:
    """Return when each session of a side began."""
    folder = Path(side["store"].removeprefix("file://"), "campaigns", side["campaign"])
    parts = folder.glob("attempts/*/*/part-1.csv")
    return sorted(
        next(csv.DictReader(part.read_text().splitlines()))["started_at"] for part in parts
    )


@pytest.mark.fast
@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((), "--file"),
        (("Add",), "shapes"),
        (("Add", "8,8;8,8", "fp32"), "quotes"),
        (("",), "empty"),
        (("hcom_allReduce_ 8 fp32",), "ranks"),
        (("Add 64,64;64,64",), "dtype"),
        (("Add 64,64;64,64 bf17",), "'bf17'"),
        (("Ad 64,64;64,64 bf16",), "'Add'"),
        (("MatMulV2 64,32;48,16 bf16",), "MatMulV2"),
        (("Cast 64,64 bf16",), "Cast"),
        ((CASE, "--file", "none.txt"), "--file"),
        (("--file", "none.txt"), "none.txt"),
        ((CASE, "--backend", "gpu"), "'cuda'"),
        ((CASE, "--margin", "120%"), "--margin"),
        ((CASE, "--environment", "none"), "none"),
        ((CASE, *("--environment", sys.executable) * 3), "--environment"),
        ((CASE, "--against", CASE), "--against"),
        ((CASE, "--against", "Add"), "shapes"),
        ((CASE, "Add 8,8;8,8 fp32", "--against", "Mul 8,8;8,8 fp32"), "--against"),
        ((CASE, "--compare", "3"), "3"),
        ((CASE, "--root", "ftp://x"), "--root"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, words: tuple[str, ...], named: str) -> None:
    device = () if "--backend" in words else ("--backend", "cpu")
    done = opmeter_here("measure", *words, *device, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1 and named in done.stderr
    assert not (tmp_path / "opmeter-data").exists()


@pytest.mark.fast
def test_number_of_pairs_follows_from_the_time_and_is_even() -> None:
    count = SessionCount(True, 90.0)
    assert [count.after(each_s) for each_s in (1.0, 9.0, 13.0, 18.0, 80.0)] == [12, 10, 6, 4, 4]
    single = SessionCount(False, 90.0)
    assert [single.after(each_s) for each_s in (1.0, 30.0, 80.0)] == [5, 3, 2]
    assert SessionCount(True, 90.0, given=7).after(1.0) == 7
