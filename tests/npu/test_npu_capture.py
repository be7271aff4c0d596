"""A capture with the stock torch_npu.profiler, on a runtime that records launches."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from collector.capture.verdict import captured_on, verdicts
from collector.model.case import Case, Slot
from collector.ops.registry import all_ops
from collector.profiles.kernel_details import read_profile
from tests.npu.fakecann.build import FakeCann, environment

pytestmark = [pytest.mark.npu, pytest.mark.torch, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0


def run(fake: FakeCann, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=environment(fake),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_steps_of_the_stock_profiler_become_cases_immediately_or_after_analysis(
    fake: FakeCann, tmp_path: Path
) -> None:
    done = run(fake, "tests.npu.captured", str(tmp_path), "analysed", "raw")
    assert done.returncode == 0, done.stderr
    (analysed,), (raw,) = verdicts(tmp_path / "analysed"), verdicts(tmp_path / "raw")
    assert (analysed.rows, analysed.share, analysed.faults) == (12, 1.0, ())
    assert raw.is_empty and "opmeter capture analyse" in raw.faults[0]
    done = run(fake, "jobs.cli", "capture", "analyse", str(tmp_path / "raw"))
    assert done.returncode == 0, done.stdout + done.stderr
    (again,) = verdicts(tmp_path / "raw")
    assert (again.rows, again.share, again.faults) == (12, 1.0, ())
    kernels = {one.case.kernel_type for one in read_profile([tmp_path / "analysed"]).records}
    assert kernels == {"MatMulV2", "Swish", "Muls", "ZerosLike"}
    assert captured_on(tmp_path / "analysed") == "npu"


def test_each_level_and_export_records_its_data_in_one_process(
    fake: FakeCann, tmp_path: Path
) -> None:
    kinds = ("database", "marked_database", "level2", "level0", "marks", "device", "host")
    done = run(fake, "tests.npu.captured", str(tmp_path), *kinds)
    assert done.returncode == 0, done.stderr
    cases = {one.case for one in read_profile([tmp_path / "level2"]).records}
    for name in kinds[:3]:
        (verdict,) = verdicts(tmp_path / name)
        assert (verdict.rows, verdict.share, verdict.faults) == (12, 1.0, ()), name
        assert {one.case for one in read_profile([tmp_path / name]).records} == cases, name
    for name in kinds[3:5]:
        (verdict,) = verdicts(tmp_path / name)
        assert verdict.is_empty, name
    (device,), (host,) = verdicts(tmp_path / "device"), verdicts(tmp_path / "host")
    assert (device.rows, device.rows_with_inputs, device.steps) == (12, 12, 0)
    assert "activities NPU" in device.faults[0]
    assert host.is_empty and "activities CPU" in host.faults[0]
    (written,) = (tmp_path / "marked_database").glob("*_ascend_pt")
    assert written.name.startswith("trainer_0_")


def test_stacks_of_a_capture_are_exported_by_torch_npu(fake: FakeCann, tmp_path: Path) -> None:
    done = run(fake, "tests.npu.captured", str(tmp_path), "stacks")
    assert done.returncode == 0, done.stderr
    assert "captured.py" in (tmp_path / "stacks.log").read_text(encoding="utf-8")


def test_each_of_two_ranks_is_judged(fake: FakeCann, tmp_path: Path) -> None:
    env = {**environment(fake, devices=2), "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "tests.npu.captured", str(tmp_path), "analysed"]
    ranks = [
        subprocess.Popen(command, cwd=ROOT, env={**env, "RANK": rank}, stderr=subprocess.PIPE)
        for rank in "01"
    ]
    for one in ranks:
        _, error = one.communicate(timeout=LIMIT_S)
        assert one.returncode == 0, error.decode()
    found = verdicts(tmp_path / "analysed")
    assert [(one.rank, one.rows, one.faults) for one in found] == [(0, 12, ()), (1, 12, ())]


def test_a_program_is_captured_unchanged_after_a_trial(fake: FakeCann, tmp_path: Path) -> None:
    folder = tmp_path / "prof"
    command = ["capture", "run", "--output", str(folder), "--steps", "2", "--"]
    done = run(fake, "jobs.cli", *command, sys.executable, "-m", "tests.npu.trained")
    assert done.returncode == 0, done.stderr
    (verdict,) = verdicts(folder)
    assert verdict.rows and verdict.rows % 2 == 0 and verdict.share == 1.0 and not verdict.faults
    assert [one.name for one in tmp_path.iterdir()] == [folder.name]  # the trial is removed


def test_a_program_that_profiles_itself_keeps_its_profile(fake: FakeCann, tmp_path: Path) -> None:
    alone, own, folder = (tmp_path / name for name in ("alone", "own", "prof"))
    done = run(fake, "tests.npu.profiled", str(alone))
    assert done.returncode == 0, done.stderr
    command = ["capture", "run", "--output", str(folder), "--steps", "2", "--"]
    done = run(fake, "jobs.cli", *command, sys.executable, "-m", "tests.npu.profiled", str(own))
    assert done.returncode == 0, done.stderr
    (expected,), (got,), (captured,) = verdicts(alone), verdicts(own), verdicts(folder)
    assert (got.rows, got.share, got.faults) == (expected.rows, 1.0, ())
    assert captured.rows == expected.rows and "profiles itself" in captured.faults[0]


def test_logged_calls_give_the_cells_of_the_rows_of_their_kernels(
    fake: FakeCann, tmp_path: Path
) -> None:
    out, log = tmp_path / "out.json", tmp_path / "calls"
    command = [sys.executable, "-m", "tests.npu.logged_rows", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(fake, log=log), capture_output=True, timeout=LIMIT_S
    )
    assert out.exists(), done.stderr.decode()
    found = json.loads(out.read_text())
    others = {kernel: one["first"] for kernel, one in found.items() if one.get("other")}
    declared = {op.kernel for op in all_ops() if op.is_shown_otherwise}
    assert set(others) == declared & found.keys(), others
    assert sum(one.get("equal", 0) for one in found.values()) > 100
    for kernel in ("FusedInferAttentionScore", "MoeGatingTopK", "MoeInitRoutingV3", "MlaPrologV2"):
        assert found[kernel].get("equal"), kernel


def tensors_of(case: Case) -> tuple[str, tuple[Slot, ...]]:
    """Return the kernel type and the inputs; whether the width of a table counts depends on the
    lengths."""
    return case.kernel_type, tuple(replace(slot, free=()) for slot in case.inputs or ())


def test_cells_that_the_profiler_drops_come_from_the_log_of_calls(
    fake: FakeCann, tmp_path: Path
) -> None:
    done = run(fake, "tests.npu.served", str(tmp_path / "prof"))
    assert done.returncode == 0, done.stderr
    (verdict,) = verdicts(tmp_path / "prof")
    assert verdict.rows_with_inputs == verdict.rows and not verdict.faults, verdict
    profile = read_profile([tmp_path / "prof"])
    cases = {}
    for one in profile.records:
        cases.setdefault(one.case.kernel_type, []).append(one.case)
    lengths = [
        case.attribute("Runtime actual_seq_lengths_kv_values")
        for case in cases["FusedInferAttentionScore"]
    ]
    assert lengths == ["201,301", "202,302", "203,303"]  # the first step is a warmup
    (score,) = cases["FlashAttentionScore"]  # whose row has no tensors
    assert score.inputs is not None and score.inputs[0].shape == (2, 4, 64)
    for log in (tmp_path / "prof").rglob("opmeter_calls.jsonl"):
        log.unlink()
    without = read_profile([tmp_path / "prof"])
    plain = {tensors_of(one.case) for one in without.records if one.case.inputs}
    assert plain <= {tensors_of(one.case) for one in profile.records}
    assert ("FlashAttentionScore", 3) in without.report.unknown_input_rows
