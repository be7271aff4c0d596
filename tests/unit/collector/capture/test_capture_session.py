"""A capture of a program on a CPU is a profile that the other commands read."""

import errno
import json
import os
import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install '.[cpu]'")

from collector.capture import capture, supported_options  # noqa: E402
from collector.capture import session as session_module  # noqa: E402
from collector.capture.dispatched import DispatchedCalls  # noqa: E402
from collector.capture.session import is_kept  # noqa: E402
from collector.capture.settings import CaptureSettings  # noqa: E402
from collector.capture.verdict import captured_on  # noqa: E402
from collector.codec.errors import BadInput  # noqa: E402
from collector.profiles.kernel_details import read_profile  # noqa: E402
from collector.profiles.step_trace import read_step_trace  # noqa: E402

pytestmark = pytest.mark.fast


def captured(folder, steps=5, **options):
    """Run a small model for some steps in a capture; return its session."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU()).to(torch.bfloat16)
    x = torch.ones(4, 8, dtype=torch.bfloat16)
    with torch.no_grad(), capture(folder, device="cpu", steps=3, **options) as session:
        for _ in range(steps):
            torch.softmax(model(x) * 2, -1)[1:3].clone()
            session.step()
    return session


def test_operators_of_recorded_steps_are_cases_of_npu_kernels(tmp_path):
    (verdict,) = captured(tmp_path).verdicts
    assert (verdict.rows, verdict.steps, verdict.share, verdict.faults) == (15, 3, 1.0, ())
    records = {one.case.kernel_type: one for one in read_profile([tmp_path]).records}
    assert set(records) == {"MatMulV2", "Swish", "Muls", "SoftmaxV2", "TensorMove"}
    assert {one.profile.count for one in records.values()} == {3}
    product = records["MatMulV2"].case  # the bias is the third input
    assert [slot.shape for slot in product.inputs] == [(4, 8), (16, 8), (16,)]
    assert [slot.dtype for slot in product.inputs[:2]] == ["DT_BF16"] * 2
    assert captured_on(tmp_path) == "cpu"
    (trace,) = tmp_path.rglob("trace_view.json")
    assert json.loads(trace.read_text())["traceEvents"]


def test_recorded_steps_have_their_time_and_that_of_their_operators(tmp_path):
    captured(tmp_path)
    found = read_step_trace(tmp_path)
    assert found.steps == 3 and found.communication_us == 0
    assert 0 < found.computing_us < found.whole_us
    (record, *_) = records = read_profile([tmp_path]).records
    spent_us = sum(one.profile.total_us for one in records)
    assert record.profile.count == 3 and found.computing_us == pytest.approx(spent_us)


def test_a_second_capture_of_a_process_is_independent(tmp_path):
    for name in ("first", "second"):
        (verdict,) = captured(tmp_path / name).verdicts
        assert verdict.rows == 15 and not verdict.faults
    assert len(list(tmp_path.rglob("kernel_details.csv"))) == 2


def test_two_rounds_have_their_steps_and_traces(tmp_path):
    (verdict,) = captured(tmp_path, steps=8, repeat=2).verdicts
    assert (verdict.rows, verdict.steps, verdict.faults) == (30, 6, ())
    assert len(list(tmp_path.rglob("trace_view*.json"))) == 2


def test_a_full_disk_stops_the_capture_and_not_the_program(tmp_path, monkeypatch):
    def full(launches, run, steps):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(session_module, "write_profile", full)
    (verdict,) = captured(tmp_path / "end").verdicts
    assert verdict.is_empty and "the disk is full" in verdict.faults

    def failing(profiler):
        raise RuntimeError("the trace cannot be written")

    monkeypatch.setattr(torch.profiler.profile, "step", failing)
    session = captured(tmp_path / "step")
    assert session.is_ended and "cannot be written" in " ".join(session.verdicts[0].faults)


def test_a_disk_that_is_full_from_the_start_is_named(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(session_module, "write_whole", full)
    with pytest.raises(BadInput, match="No space left") as error:
        captured(tmp_path / "full")
    assert error.value.path == tmp_path / "full"


def test_a_full_disk_in_the_trial_does_not_reach_the_program(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(session_module, "write_profile", full)
    (verdict,) = captured(tmp_path / "trial", steps=6, trial=True).verdicts
    assert verdict.is_empty and "did not begin" in verdict.faults[0]
    monkeypatch.setattr(session_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    (verdict,) = captured(tmp_path / "small", steps=6, trial=True, max_bytes=1 << 40).verdicts
    assert verdict.is_empty and verdict.faults


def test_a_rank_is_kept_when_its_group_ends_before_the_capture(tmp_path):
    distributed = torch.distributed
    with capture(tmp_path, device="cpu") as session, torch.no_grad():
        store = distributed.HashStore()
        distributed.init_process_group("fake", rank=1, world_size=2, store=store)
        for _ in range(2):
            torch.ones(4) + 1
            session.step()
        distributed.destroy_process_group()
    assert sorted((one.rank, one.is_empty) for one in session.verdicts) == [(0, True), (1, False)]


def test_operators_on_a_gpu_have_the_times_of_their_kernels():
    with DispatchedCalls(is_marked=True) as calls, torch.profiler.profile() as profiler:
        calls.step = 1
        one = torch.ones(8) + 1
        one.exp()
    names = [event.name for event in profiler.events() if event.name.startswith("opmeter ")]
    assert len(names) == len(calls.launches) == 3
    host = torch.autograd.DeviceType.CPU
    # No GPU here: the times of the ranges as torch would report them.
    calls.take_device_times(
        SimpleNamespace(name=name, device_time_total=us + at, device_type=device)
        for name, us in zip(sorted(names), (0.0, 2.5, 4.0), strict=True)
        for at, device in enumerate((host, torch.autograd.DeviceType.CUDA))
    )
    assert [one.duration_ns for one in calls.launches] == [2500, 4000]


def test_a_program_that_ends_early_is_reported_with_its_steps(tmp_path):
    (verdict,) = captured(tmp_path, steps=3).verdicts
    assert "expected 3 steps, got 2" in verdict.faults


def test_a_trial_of_two_steps_comes_before_the_capture(tmp_path):
    folder = tmp_path / "prof"
    session = captured(folder, steps=6, trial=True)  # two, a warmup, and three
    (verdict,) = session.verdicts
    assert (verdict.rows, verdict.steps, verdict.faults) == (15, 3, ()) and session.is_ended
    assert list(tmp_path.iterdir()) == [folder]
    (verdict,) = captured(tmp_path / "early", steps=1, trial=True).verdicts
    assert verdict.is_empty and "in the trial" in verdict.faults[0]


def test_capture_does_not_start_after_an_unusable_trial(tmp_path):
    with capture(tmp_path / "prof", device="cpu", steps=3, trial=True) as session:
        for step in range(6):
            assert session.is_ended is (step > 1)
            session.step()  # without an operator
    (verdict,) = session.verdicts
    assert verdict.is_empty and "no row of a device" in verdict.faults[0]
    assert len(list(tmp_path.rglob("kernel_details.csv"))) == 1  # of the trial, for inspection


def test_capture_stays_within_its_byte_limit(tmp_path):
    captured(tmp_path / "whole", trial=True, steps=6)
    run = next((tmp_path / "whole").glob("*_ascend_pt"))
    of_step = sum(file.stat().st_size for file in run.rglob("*") if file.is_file()) / 3
    (verdict,) = captured(
        tmp_path / "part", steps=6, trial=True, max_bytes=int(of_step * 3)
    ).verdicts
    assert 1 <= verdict.steps < 3 and "expected 3 steps" in verdict.faults[0]
    assert "stopped after" in verdict.faults[1] and not verdict.is_empty
    (verdict,) = captured(tmp_path / "none", steps=6, trial=True, max_bytes=10).verdicts
    assert verdict.is_empty and "expected at most 10" in verdict.faults[0]


def test_stacks_have_the_names_of_code_that_is_freed_within_a_step(tmp_path):
    """The code of an imported module is freed, and torch reads its names later."""
    names, texts = [f"a_module_that_is_imported_in_step_{step}.py" for step in range(5)], []
    with capture(tmp_path / "prof", device="cpu", steps=3, stack=True) as session:
        for name in names:
            exec(compile("torch.ones(256, 256).exp()", name, "exec"), {"torch": torch})
            texts += [f"{number:0{len(name)}}" for number in range(2000)]  # in its memory
            session.step()
    session.export_stacks(str(tmp_path / "stacks.log"), "self_cpu_time_total")
    stacks = (tmp_path / "stacks.log").read_text(encoding="utf-8")
    (trace,) = tmp_path.rglob("trace_view.json")
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    traced = " ".join(event["name"] for event in events)
    for name in names[1:4]:  # the first step is a warmup
        assert name in stacks and name in traced, name


def test_stacks_are_exported_and_a_trace_by_hand_is_refused(tmp_path):
    session = captured(tmp_path / "prof", stack=True, worker_name="trainer")
    session.export_stacks(tmp_path / "stacks.log", "self_cpu_time_total")
    assert "test_capture_session.py" in (tmp_path / "stacks.log").read_text()
    (run,) = tmp_path.glob("prof/*_ascend_pt")
    assert run.name.startswith(f"trainer_{os.getpid()}_") and not session.verdicts[0].faults
    with pytest.raises(BadInput):
        session.export_stacks(tmp_path / "stacks.log", "self_npu_time_total")
    with pytest.raises(BadInput):
        session.export_chrome_trace(tmp_path / "trace.json")
    with pytest.raises(BadInput):  # without stacks
        captured(tmp_path / "bare").export_stacks(tmp_path / "bare.log", "self_cpu_time_total")


def test_recorded_steps_equal_the_schedule_of_the_torch_profiler(tmp_path):
    settings = CaptureSettings(tmp_path, steps=2, warmup=1, wait=1, skip_first=2, repeat=2)
    action = torch.profiler.ProfilerAction
    recorded = torch.profiler.schedule(skip_first=2, wait=1, warmup=1, active=2, repeat=2)
    for step in range(settings.least_steps + 4):
        expected = recorded(step) in (action.RECORD, action.RECORD_AND_SAVE)
        assert is_kept(settings, step) is expected


def test_options_that_torch_npu_does_not_support_start_nothing(tmp_path, monkeypatch):
    level = SimpleNamespace(Level1="l1", Level2="l2")
    older = SimpleNamespace(
        ProfilerLevel=level,
        AiCMetrics=SimpleNamespace(PipeUtilization=1),
        ExportType=SimpleNamespace(Text="text"),
        ProfilerActivity=SimpleNamespace(CPU="c", NPU="n"),
        supported_activities=lambda: {"n"},
        supported_profiler_level=lambda: {"l1"},
        supported_ai_core_metrics=lambda: {1},
        supported_export_type=lambda: {"text"},
    )
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(profiler=older))
    monkeypatch.setitem(sys.modules, "torch_npu.profiler", older)
    for options, words in (
        ({"level": "Level2"}, "Level2"),
        ({"metrics": "MemoryAccess"}, "MemoryAccess"),
        ({"export": "db"}, "export db"),
        ({}, "activities CPU"),
    ):
        supported = supported_options()
        assert (supported["level"], supported["activities"]) == (("Level1",), ("NPU",))
        with pytest.raises(BadInput, match=words), capture(tmp_path / "p", device="npu", **options):
            raise AssertionError("the profiler started")
    assert not (tmp_path / "p").exists()


def test_invalid_capture_options_start_no_recording(tmp_path):
    for options in ({"level": "Level0"}, {"stepz": 1}, {"device": "tpu"}, {"steps": "2"}):
        with pytest.raises(BadInput), capture(tmp_path / "prof", **options):
            raise AssertionError("the profiler started")
    assert not (tmp_path / "prof").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput), capture(tmp_path / "file" / "prof", device="cpu"):
        raise AssertionError("the profiler started")
