"""What a rank's device needs that differs: how it is chosen, waited for and timed."""

import importlib
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.autograd.profiler import profile

from collector.codec.errors import BadInput, HostFault
from collector.comm.kernels import KERNEL_DETAILS, Span, nccl_spans, npu_spans
from collector.host import imports
from collector.replay.kineto import kernel_events
from collector.replay.recording import SACRIFICES_OF_A_WINDOW, Launching, sacrifice

# A profiler around some calls: when their kernels ran. One window a case, whose lossy head is not
# theirs.


def nccl_window(device: Launching, kernel_type: str, calls: Callable[[], object]) -> list[Span]:
    """By torch's own profiler; every kernel of nccl is the call's, since nothing else runs."""
    recorder = profile(use_device="cuda", use_kineto=True)
    recorder.__enter__()
    try:
        sacrifice(device, SACRIFICES_OF_A_WINDOW)
        calls()
        device.synchronize()
    finally:
        recorder.__exit__(None, None, None)
    events = recorder.kineto_results.events()
    return nccl_spans(kernel_events(events, torch.autograd.DeviceType.CUDA))


def npu_window(device: Launching, kernel_type: str, calls: Callable[[], object]) -> list[Span]:
    """By torch_npu's, whose tables are read and thrown away; no span where it wrote none.

    Level1, since communication has no rows of its own below.
    """
    profiler: Any = importlib.import_module("torch_npu.profiler")
    settings = profiler._ExperimentalConfig(
        profiler_level=profiler.ProfilerLevel.Level1,
        aic_metrics=profiler.AiCMetrics.PipeUtilization,
        data_simplification=True,
    )
    with tempfile.TemporaryDirectory(prefix="opmeter-comm-") as folder:
        with profiler.profile(
            activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
            experimental_config=settings,
            on_trace_ready=profiler.tensorboard_trace_handler(folder),
        ):
            sacrifice(device, SACRIFICES_OF_A_WINDOW)
            calls()
            device.synchronize()
        tables = sorted(Path(folder).rglob(KERNEL_DETAILS))
        return npu_spans(tables[0], kernel_type) if tables else []


class RankDevice(Protocol):
    """The device of one rank."""

    name: str  # torch's: cpu, cuda:0, npu:0

    def free_bytes(self) -> int | None:
        """What a case may use of its memory; None where that is the machine's."""

    def timed(self, before: Callable[[], object], call: Callable[[], object]) -> float:
        """Run both, one after the other; how long the second took, in us."""

    def kernels(self, kernel_type: str, calls: Callable[[], object]) -> list[Span]:
        """Run calls and wait for them; when their kernels of a type ran. BadInput where a call runs
        none."""


class HostRank:
    """A rank on the cpu: a call returns when it is over."""

    name = "cpu"

    def free_bytes(self) -> int | None:
        return None

    def timed(self, before: Callable[[], object], call: Callable[[], object]) -> float:
        before()
        began = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - began) / 1e3

    def kernels(self, kernel_type: str, calls: Callable[[], object]) -> list[Span]:
        raise BadInput("expected a device that runs kernels of collectives, got cpu")


class AcceleratorRank:
    """A gpu or an NPU: calls are queued, and timed by events of its own stream."""

    def __init__(self, kind: str, local_rank: int) -> None:
        self._module: Any = getattr(torch, kind)
        count = self._module.device_count()
        if local_rank >= count:
            raise BadInput(
                f"local rank: expected less than {count}, the {kind} devices of this node, got "
                f"{local_rank}"
            )
        self._module.set_device(local_rank)
        self.name = f"{kind}:{local_rank}"
        self._window = npu_window if kind == "npu" else nccl_window

    def free_bytes(self) -> int | None:
        self._module.empty_cache()  # what torch keeps of tensors that are gone is free, too
        return int(self._module.mem_get_info()[0])

    def synchronize(self) -> None:
        """Wait for all that was queued."""
        self._module.synchronize()

    def timed(self, before: Callable[[], object], call: Callable[[], object]) -> float:
        first, last = (self._module.Event(enable_timing=True) for _ in range(2))
        before()
        first.record()
        call()
        last.record()
        self.synchronize()
        return float(first.elapsed_time(last)) * 1e3

    def kernels(self, kernel_type: str, calls: Callable[[], object]) -> list[Span]:
        return self._window(self, kernel_type, calls)


def open_rank_device(backend: str, local_rank: int) -> RankDevice:
    """The device of a rank. BadInput and HostFault where it is not there."""
    if backend == "cpu":
        return HostRank()
    if backend == "npu":
        try:
            with imports.for_good():  # a profiler forks a dozen processes a window of what is here
                importlib.import_module("torch_npu")  # which adds torch.npu
        except ImportError as error:
            raise HostFault(f"--backend npu requires torch_npu and CANN: {error}") from error
    return AcceleratorRank(backend, local_rank)
