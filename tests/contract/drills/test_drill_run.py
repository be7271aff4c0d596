"""The whole command on a small campaign: its output, its exit, and a second run."""

import csv
import os
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from tests.contract.drills.runs import CASES, Runs
from tests.unit.jobs.printed import numbers
from tests.waiting import wait_for

pytestmark = [pytest.mark.torch, pytest.mark.slow]

_SMALL = """campaign: drill
sources: [{SOURCE}]
operators: [Sub, Pows, Equal, NotEqual, Abs, OnesLike, Greater, NonZero, RmsNorm]
target: here
backend: cpu
measure: {repeats: REPEATS, cache: warm}
shards: {target_s: TARGET, session_s: 60}
limits: {case_s: 240, memory_gb: 12}
quality: {repeat_share: SHARE}
"""
_CASES = 11


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
    return small(tmp_path, "{bundled: quickstart}")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, str]:
    """A finished run, and its output: for tests that only read it."""
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
    folder = tmp_path_factory.mktemp("finished")
    runs = small(folder, "{bundled: quickstart}", repeats="[3, 5], budget_s: 0.02", share=0.1)
    return runs, runs.finish()


def small(
    folder: Path, source: str, target_s: float = 60, repeats: str = "4", share: float = 0
) -> Runs:
    """Its repeats are fixed by default: a busy machine would be waited for, seconds per case. No
    share of its cases is measured in a second session, which takes as long as the first."""
    campaign = folder / "small.yaml"
    text = _SMALL.replace("{SOURCE}", source).replace("TARGET", str(target_s))
    text = text.replace("REPEATS", repeats).replace("SHARE", str(share))
    campaign.write_text(text)
    return Runs(folder, f"file://{folder}/data", {"TMPDIR": str(folder)}, campaign)


def test_run_ends_with_a_readable_database(finished: tuple[Runs, str]):
    runs, output = finished
    assert re.search(rf"^coverage\D+{_CASES}\D+({CASES}|{_CASES})\b", output, flags=re.MULTILINE)
    for line in ("database +file://", "stack +CPU_", "efficiency .*%", "time .*%"):
        assert re.search(f"^{line}", output, flags=re.MULTILINE), line
    (where,) = runs.command("db", "path").splitlines()
    folder = Path(where.removeprefix("file://"))
    with (folder / "RmsNorm.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 and all(float(row["Average Duration(us)"]) > 0 for row in rows)
    (head,) = [
        line for line in runs.command("status", "drill").splitlines() if "drill plan" in line
    ]
    assert numbers(head)[:3] == ["1", "1", "1"]  # the plan, shards committed, and all of them
    runs.command("db", "verify")  # which fails if anything is damaged
    assert runs.wait_until_alone() == []


def test_second_run_of_a_campaign_measures_nothing(finished: tuple[Runs, str]):
    runs, _ = finished
    attempts = set(runs.uploaded().values())
    runs.finish()
    assert set(runs.uploaded().values()) == attempts


def test_again_makes_the_next_version(finished: tuple[Runs, str], tmp_path: Path):
    before, _ = finished
    runs = small(tmp_path, "{bundled: quickstart}")
    shutil.copytree(before.folder / "data", tmp_path / "data")
    assert "version 2" in runs.finish("--again")
    differ, compared, *versions = numbers(
        runs.command("db", "diff", "1", "2").splitlines()[-1].partition(";")[0]
    )
    # If the machine was busy only the second time, with a warning, a case shows as before.
    assert int(differ) <= int(compared) <= _CASES and versions == ["1", "2"]
    quality = runs.command("db", "quality")
    assert re.search(rf"^durations +{_CASES}\b", quality, flags=re.MULTILINE)
    assert len(runs.command("db", "log").splitlines()) == 2
    runs.command("db", "verify")


def test_pulled_version_is_a_tree(finished: tuple[Runs, str], tmp_path: Path):
    runs, _ = finished
    runs.command("db", "pull", str(tmp_path / "tree"))
    runs.command("db", "pull", str(tmp_path / "tree"))  # replaces its own output
    (csv_file,) = (tmp_path / "tree").glob("CPU_*/vllm_ascend/vllm0_torch*_cann0/Sub.csv")
    assert '""";"""' in csv_file.read_text()  # two scalars, quoted as the profiler does


def test_tree_with_durations_leaves_nothing_to_measure(finished: tuple[Runs, str], tmp_path: Path):
    runs, _ = finished
    runs.command("db", "pull", str(tmp_path / "tree"))
    (version,) = (tmp_path / "tree").glob("CPU_*/vllm_ascend/*")
    other = tmp_path / "other"
    other.mkdir()
    from_tree = small(other, f"{{tree: {version}}}")
    (cases,) = [line for line in from_tree.plan().splitlines() if line.startswith("cases ")]
    assert numbers(cases) == ["0", "0", "0", "11"]  # in shards, refused, and measured already
    everything = from_tree.campaign.read_text().replace("target: here", "target: here\nupdate: all")
    from_tree.campaign.write_text(everything)
    from_tree.finish()
    before, after = (_durations(r, "RmsNorm") for r in (runs, from_tree))
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())  # measured again, not copied


def test_interrupted_run_stops_cleanly_and_continues(tmp_path: Path):
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
    runs = small(tmp_path, "{bundled: quickstart}", target_s=0.01)
    process = runs.start("--again", "--no-collectives")
    deadline = time.monotonic() + 120
    while not runs.finals() and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=300)[0].decode()
    assert process.returncode == 3, output
    # the command that continues: with --again, or another root, it would be another plan
    (continuing,) = re.findall(r"opmeter run .*small\.yaml .*", output)
    assert continuing.split()[3:] == ["--root", runs.root, "--no-collectives"]
    assert runs.wait_until_alone() == []
    before, earlier = runs.believed(), runs.attempts()
    assert 0 < len(runs.uploaded()) < _CASES
    runs.finish("--no-collectives")
    assert set(runs.finals().values()) == {1} and len(runs.finals()) == _CASES
    assert not before & runs.launched(but_not=earlier)


@pytest.fixture(scope="module")
def contended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runs, int, int, str]:
    """A run by a single writer, its process, and the exit of a second one in the meantime."""
    pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")
    folder = tmp_path_factory.mktemp("contended")
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    first = small(folder / "a", "{bundled: quickstart}")
    second = small(folder / "b", "{bundled: quickstart}")
    locks = {"OPMETER_LOCKS": str(folder / "locks")}
    holder = first.start("--single-writer", **locks)
    wait_for(lambda: any("drill" in lock.read_text() for lock in folder.glob("locks/*")))
    os.kill(holder.pid, signal.SIGSTOP)  # it holds the lock until the other has ended
    other = second.start(**locks)
    output = other.communicate(timeout=120)[0].decode()
    os.kill(holder.pid, signal.SIGCONT)
    holder.communicate(timeout=300)
    assert holder.returncode == 0
    return first, holder.pid, other.returncode, output


def test_concurrent_run_is_refused_with_the_holder(contended: tuple[Runs, int, int, str]):
    _, holder, code, output = contended
    assert code == 1, output
    assert re.search(rf"\bcpu0\b.*\b{holder}\b.*\bdrill\b.*\bplan 1\b", output)


def test_single_writer_option_is_recorded(contended: tuple[Runs, int, int, str]):
    runs, *_ = contended
    assert "guard single-writer" in runs.command("db", "log")
    runs.command("db", "verify")


def test_real_profile_gives_the_same_cases(runs: Runs, tmp_path: Path, real_profiles: Path):
    (tmp_path / "real").mkdir()
    real = small(
        tmp_path / "real", f"{{profile: {real_profiles}/train_cann8.3rc1_rank0_ascend_pt}}"
    )
    runs.plan_for_good()
    real.plan_for_good()
    assert runs.source_cases() == real.source_cases()
    assert len(real.source_cases()) == CASES


def _durations(runs: Runs, kernel: str) -> dict[str, str]:
    (where,) = runs.command("db", "path").splitlines()
    with (Path(where.removeprefix("file://")) / f"{kernel}.csv").open(newline="") as file:
        return {row["Input Shapes"]: row["Average Duration(us)"] for row in csv.DictReader(file)}
