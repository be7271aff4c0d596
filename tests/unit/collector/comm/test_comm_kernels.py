"""Kernels of a profiler as the calls of a collective."""

import time

import pytest
import torch.distributed as dist

from collector.codec.errors import BadInput
from collector.comm.bench_plan import BenchPlan, Mode
from collector.comm.kernels import Span, nccl_spans, npu_spans, spans_of_calls
from collector.comm.measuring_rank import MeasuringRank
from collector.comm.rank_device import HostRank
from collector.comm.timed_calls import TimedCalls
from collector.ranks.collective import Collective
from collector.ranks.topology import Grid
from collector.replay.kineto import Event
from tests.unit.collector.naming import names, naming

HEADER = "Step Id,Device_id,Name,Type,Accelerator Core,Start Time(us),Duration(us)\n"


def details(tmp_path, *rows):
    path = tmp_path / "kernel_details.csv"
    path.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return path


def row(name, kind, start_us, took_us, core="COMMUNICATION"):
    return f"7,0,{name},{kind},{core},{start_us}\t,{took_us}"


def test_operation_has_only_its_own_rows_and_each_once(tmp_path):
    path = details(
        tmp_path,
        row("hcom_allGather__097_2_1", "hcom_allGather_", "1764246877843030.125", "12.500"),
        row("hcom_allGather__097_1_1", "hcom_allGather_", "1764246877843020.800", "12.000"),
        row("hcom_allGather__097_1_1", "hcom_allGather_", "1764246877843020.800", "11.900"),
        row("hcom_allGather_AivKernel_3", "hcom_allGather_", "1764246877843020.900", "9"),
        row("hcom_allGather__097_3_1", "hcom_allGather_", "1764246877843050.000", "0"),
        row("hcom_allReduce__097_3_1", "hcom_allReduce_", "1764246877843060.000", "5"),
        row("aclnnAdd_1", "Add", "1764246877843070.000", "5", "AI_VECTOR_CORE"),
    )
    assert npu_spans(path, "hcom_allGather_") == [
        Span(1764246877843020800, 12000),
        Span(1764246877843030125, 12500),
    ]
    assert npu_spans(path, "hcom_alltoall_") == []


@pytest.mark.parametrize(("start", "took"), [("N/A", "1"), ("1", "x"), ("1", "Infinity")])
def test_invalid_time_is_refused_with_its_line(tmp_path, start, took):
    path = details(tmp_path, row("hcom_allReduce__1", "hcom_allReduce_", start, took))
    with pytest.raises(BadInput, match=naming("kernel_details.csv:2:")):
        npu_spans(path, "hcom_allReduce_")


def test_a_table_without_times_is_refused(tmp_path):
    path = tmp_path / "kernel_details.csv"
    path.write_text("Name,Type\n")
    with pytest.raises(BadInput, match=naming("kernel_details.csv:1:", "Start Time(us)")):
        npu_spans(path, "hcom_allReduce_")


def test_only_nccl_kernels_of_a_gpu_are_counted():
    names = (
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "Memcpy DtoD (Device -> Device)",
        "ncclSymkDevKernel_AllGather_LL",
        "void at::native::vectorized_elementwise_kernel<4>",
        "ncclKernel_SendRecv",
    )
    kernels = [Event(name, 1000 * at, 10 + at) for at, name in enumerate(names)]
    assert nccl_spans(reversed(kernels)) == [Span(0, 10), Span(2000, 12), Span(4000, 14)]


def test_a_call_lasts_from_its_first_kernel_to_its_last():
    spans = [Span(0, 10), Span(5, 20), Span(100, 10), Span(105, 3)]
    assert spans_of_calls(spans, 4) == spans
    assert spans_of_calls(spans, 2) == [Span(0, 25), Span(100, 10)]


def test_kernels_that_cannot_be_divided_among_calls_are_ignored():
    assert spans_of_calls([Span(0, 10)] * 7, 10) == []
    assert spans_of_calls([Span(0, 10)] * 15, 10) == []
    assert spans_of_calls([], 10) == []


class ProfiledRank(HostRank):
    """A rank whose profiler reports kernels of 3 us, a planted number per call."""

    def __init__(self, kernels_of_a_call):
        self.kernels_of_a_call, self.calls_at_once = kernels_of_a_call, 0

    def timed(self, call, before=None):
        assert not self.calls_at_once  # no rank waits for a call of a window
        return super().timed(call, before)

    def kernels(self, kernel_type, calls):
        self.calls_at_once += 1
        calls()
        self.calls_at_once -= 1
        count = round(5 * self.kernels_of_a_call)
        now_ns = time.time_ns()
        return [Span(now_ns + 10_000 * at, 3000) for at in range(count)]


@pytest.fixture
def world_of_one():
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield dist.group.WORLD
    dist.destroy_process_group()


def measured(world, device):
    case = Collective("all_reduce", 64, "bfloat16", 1, 0)
    plan = BenchPlan("cuda", Grid((1,)), 1, Mode.KERNEL, 1, 0.0, (5, 9), (case,))
    return MeasuringRank(plan, device, TimedCalls(device, world), {(0,): world}).measure(case)


def test_calls_of_a_window_are_timed_by_their_kernels(world_of_one):
    seen = measured(world_of_one, ProfiledRank(1))
    ((rank, starts, took),) = seen.ranks
    assert rank == 0
    assert took == (3.0,) * 5
    gaps = [second - first for first, second in zip(starts, starts[1:], strict=False)]
    assert gaps == pytest.approx([10.0] * 4, abs=0.01)
    assert measured(world_of_one, ProfiledRank(2)).ranks[0][2] == (13.0,) * 5


def test_window_with_a_wall_clock_step_gives_no_timing(world_of_one, monkeypatch):
    class ClockSetter(ProfiledRank):
        def kernels(self, kernel_type, calls):
            spans = super().kernels(kernel_type, calls)
            monkeypatch.setattr(time, "time_ns", lambda real=time.time_ns: real() + self.step_ns)
            return spans

    for step_ns, is_timed in ((1_000, True), (200_000_000, False), (-3_600 * 10**9, False)):
        with monkeypatch.context():
            device = ClockSetter(1)
            device.step_ns = step_ns
            seen = measured(world_of_one, device)
            assert bool(seen.ranks) == is_timed and bool(seen.left_out) != is_timed, step_ns
        monkeypatch.undo()


@pytest.mark.parametrize("kernels_of_a_call", [0, 1.2])
def test_window_with_lost_kernels_gives_no_timing(world_of_one, kernels_of_a_call):
    seen = measured(world_of_one, ProfiledRank(kernels_of_a_call))
    assert seen.ranks == ()
    kernels = f"{5 * kernels_of_a_call:g} kernels"
    assert names(seen.left_out, "rank 0", kernels, "5 calls")
