"""Inputs, outputs and events, with torch in this process."""

from dataclasses import replace

import pytest

from collector.codec.errors import BadInput, CaseRejected
from collector.model.stack import Stack
from collector.quality.reconcile import Mark, Sentinel
from tests.unit.collector.replay.replay_cases import add_record, case_record

torch = pytest.importorskip("torch", reason="torch is needed: pip install '.[cpu]'")
pytestmark = pytest.mark.torch

from torch.profiler import ProfilerActivity, profile  # noqa: E402

from collector.replay.cases import check_outputs, find_invalid_values  # noqa: E402
from collector.replay.devices import (  # noqa: E402
    CpuDevice,
    check_gpu,
    check_npu,
    last_level_cache_bytes,
    open_kineto_device,
)
from collector.replay.kineto import operator_events  # noqa: E402
from collector.replay.loop import judge_error  # noqa: E402
from collector.replay.memory_limits import NotEnoughMemory  # noqa: E402
from collector.replay.process import session_environment  # noqa: E402
from collector.replay.recording import Marks  # noqa: E402
from collector.replay.tensors import CaseTensors, emulated_dtypes  # noqa: E402
from tests.unit.collector.naming import names, naming  # noqa: E402


def test_a_cpu_without_16_bit_arithmetic_emulates_it():
    assert emulated_dtypes(["avx2"]) == {"bfloat16", "float16"}
    assert emulated_dtypes(["avx512_bf16"]) == {"float16"}
    assert emulated_dtypes(["amx_bf16", "avx512_fp16"]) == set()


def test_emulated_dtypes_are_computed_and_recorded_as_float32():
    make = CaseTensors("cpu", 1, frozenset({"bfloat16"}))
    assert make.normal((2, 2), "FLOAT16").dtype is torch.float16
    assert make.compute_dtype == ""
    assert make.normal((2, 2), "DT_BF16").dtype is torch.float32
    assert make.compute_dtype == "float32"


@pytest.mark.parametrize("dtype", ["FLOAT", "DT_BF16", "FLOAT16", "DOUBLE"])
@pytest.mark.parametrize("shape", [(), (0, 4), (3, 5), (1025, 1025)])
def test_normal_numbers_are_finite_and_spread(dtype, shape):
    tensor = CaseTensors("cpu", 3).normal(shape, dtype)
    assert tuple(tensor.shape) == shape
    assert bool(torch.isfinite(tensor).all())
    if tensor.numel() > 1000:
        assert 0.9 < float(tensor.double().std()) < 1.1


def test_other_dtypes_have_their_ranges():
    make = CaseTensors("cpu", 3)
    assert set(make.normal((1000,), "BOOL").tolist()) == {False, True}
    assert set(make.normal((1000,), "INT64").tolist()) == set(range(1, 8))
    assert set(make.integers((1000,), "INT32", -2, 1).tolist()) == {-2, -1, 0}
    uniform = make.uniform((1000,), "FLOAT", 0.5, 0.75)
    assert 0.5 <= float(uniform.min()) < 0.52 < 0.73 < float(uniform.max()) < 0.75
    assert sorted(make.permutation(100, "INT64").tolist()) == list(range(100))
    assert make.full((2,), "INT8", 5).tolist() == [5, 5]
    assert make.empty((2, 3), "UINT8").dtype is torch.uint8
    with pytest.raises(CaseRejected, match=naming("'INT4'")):
        make.dtype("INT4")


def test_values_depend_only_on_the_seed():
    first = CaseTensors("cpu", 7).normal((3, 500_000), "FLOAT")
    assert torch.equal(first, CaseTensors("cpu", 7).normal((3, 500_000), "FLOAT"))
    assert not torch.equal(first, CaseTensors("cpu", 8).normal((3, 500_000), "FLOAT"))


def test_large_tensors_repeat_their_first_block():
    tensor = CaseTensors("cpu", 3).normal((5 * (1 << 18) + 3,), "FLOAT")
    assert torch.equal(tensor[1 << 20 :], tensor[: (1 << 18) + 3])


def _dtype(spelling):
    return CaseTensors("cpu", 0).dtype(spelling)


@pytest.mark.parametrize(
    ("outputs", "shapes"),
    [
        (torch.ones(2, 3), "2,3"),
        ([torch.ones(2, 3), torch.ones(4)], "2,3;4"),
        (torch.ones(()), "1"),
        ((torch.ones(2, 3), None), "2,3;"),
        ((None, torch.ones(2, 3)), ";2,3"),
        ((torch.ones(2, 3),), ";2,3"),
        (torch.ones(7), ""),
        ((torch.ones(2, 3), torch.ones(5)), "2,3"),
    ],
)
def test_outputs_of_the_case_are_accepted(outputs, shapes):
    check_outputs(outputs, case_record("Any", "1", shapes).case, _dtype)


@pytest.mark.parametrize(
    ("outputs", "given"),
    [
        (torch.ones(3, 2), "3,2 torch.float32"),
        (torch.ones(2, 3).half(), "2,3 torch.float16"),
        (None, "none"),
        ((), "none"),
    ],
)
def test_other_outputs_are_refused(outputs, given):
    with pytest.raises(CaseRejected, match=naming("output 0", given, "2,3 FLOAT")):
        check_outputs(outputs, case_record("Any", "1", "2,3").case, _dtype)


def test_private_format_has_another_layout():
    record = case_record("Any", "1", "1,1,16,16", formats="FRACTAL_NZ")
    check_outputs(torch.ones(16, 16), record.case, _dtype)


def test_values_that_are_not_finite_are_found():
    bad = torch.ones(100)
    bad[40] = float("nan")
    assert find_invalid_values((torch.ones(3), torch.arange(4), torch.ones(0))) == ""
    assert names(find_invalid_values([torch.ones(3), bad]), "output 1")


def test_outputs_that_a_device_cannot_check_are_accepted():
    odd = torch.ones(4).to(torch.float8_e4m3fn)
    with pytest.raises(NotImplementedError):
        torch.isfinite(odd)
    assert find_invalid_values((odd, torch.ones(3))) == ""
    assert find_invalid_values((odd, torch.tensor([float("inf")]))).startswith("output 1 has")


def test_only_outermost_operators_are_events():
    tensor = torch.ones(4, 4)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        torch.nn.functional.rms_norm(tensor, (4,))
        torch.bitwise_not(torch.zeros(3, 7, 1, 2, 5, dtype=torch.uint8))
        torch.mm(tensor, tensor)
    events = operator_events(profiler.profiler.kineto_results.events())
    assert [event.name for event in events] == [
        "aten::rms_norm",
        "aten::zeros",
        "aten::bitwise_not",
        "aten::mm",
    ]
    assert [event.shape for event in events] == [None, None, (3, 7, 1, 2, 5), None]
    assert all(event.duration_ns > 0 for event in events)
    assert all(a.start_ns < b.start_ns for a, b in zip(events, events[1:], strict=False))


def test_sentinel_is_one_launch():
    device = CpuDevice(1)
    marks = Marks(device, 40, cold=False)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        marks.open(37)
        marks.next_launch()
        marks.close(37)
    shapes = [e.shape for e in device.events(profiler.profiler.kineto_results.events())]
    assert shapes[0] == Sentinel(Mark.OPEN, 37).shape
    assert shapes[2] == Sentinel(Mark.CLOSE, 37).shape
    assert len(shapes) == 3


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (NotEnoughMemory("no"), "oom"),
        (MemoryError("no"), "oom"),
        (torch.OutOfMemoryError("no"), "oom"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "oom"),
        (RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB"), "oom"),
        (RuntimeError("NPU out of memory. NPUWorkspaceAllocator tried to allocate 9"), "oom"),
        (RuntimeError("shapes"), "failed"),
        (CaseRejected("no"), "rejected"),
    ],
)
def test_error_is_mapped_to_an_outcome(error, outcome):
    assert judge_error(error)[0] == outcome


def test_the_last_level_cache_is_the_largest(tmp_path):
    for index, size in enumerate(["32K", "4096K", "480M"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(f"{size}\n")
    assert last_level_cache_bytes(tmp_path) == 480 << 20
    assert last_level_cache_bytes(tmp_path / "none") == 64 << 20


def test_unknown_backend_is_refused(session_of):
    with pytest.raises(BadInput, match=naming("'tpu'", "cpu", "cuda", "npu")):
        open_kineto_device(replace(session_of(add_record(1)), backend="tpu"))


def test_another_gpu_than_that_of_the_plan_is_refused(session_of):
    spec = replace(
        session_of(add_record(1)), device=3, stack=Stack("CUDA_NVIDIA_H100_80GB_HBM3", "2.9.0")
    )
    check_gpu(spec, "NVIDIA H100 80GB HBM3")
    check_gpu(replace(spec, stack=None), "any")
    with pytest.raises(BadInput, match=naming("cuda device 3", "'NVIDIA A10'", spec.stack.device)):
        check_gpu(spec, "NVIDIA A10")


def test_npu_that_is_another_device_or_a_virtual_slice_is_refused(session_of):
    stack = Stack("ATLAS_800_A2_313T_64G", "2.9.0")
    spec = replace(session_of(add_record(1)), device=3, stack=stack)
    check_npu(spec, "Ascend910B3", 60.97, 20)
    check_npu(spec, "Ascend910_9372", 61.0, 20)  # the campaign has named it
    named = ("npu device 3", "'Ascend910B2'", "ATLAS_800_A2_376T_64G", stack.device)
    with pytest.raises(BadInput, match=naming(*named)):
        check_npu(spec, "Ascend910B2", 60.97, 24)
    with pytest.raises(BadInput, match=naming("npu device 3", "Ascend910B3", "5 cube cores")):
        check_npu(spec, "Ascend910B3", 60.97, 5)


def test_sessions_use_the_gpu_numbers_of_nvidia_smi(monkeypatch):
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
    assert session_environment("cuda")["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
