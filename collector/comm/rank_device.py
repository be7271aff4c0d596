"""The device of a rank: how it is selected, synchronized and timed on each backend."""

import importlib
import os
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.profiler import profile

from collector.codec.errors import BadInput, HostFault
from collector.codec.scratch import scratch_folder
from collector.comm.kernels import KERNEL_DETAILS, Span, nccl_spans, npu_spans
from collector.host import imports
from collector.host.space import available_memory_bytes
from collector.replay.kineto import kernel_events
from collector.replay.recording import SACRIFICES_OF_A_WINDOW, Launching, sacrifice

# A profiler around some calls records when their kernels ran. There is one window per case; the
# calls come after its lossy head.


Call = Callable[[], object]


def nccl_window(device: Launching, kernel_type: str, calls: Call) -> list[Span]:
    """Profile with torch; every nccl kernel belongs to the calls, since nothing else runs."""
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


def npu_window(device: Launching, kernel_type: str, calls: Call) -> list[Span]:
    """Profile with torch_npu; read its tables and delete them. Return no span if it wrote none.

    Level1 is required: below it, communication has no rows of its own."""
    profiler: Any = importlib.import_module("torch_npu.profiler")
    settings = profiler._ExperimentalConfig(
        profiler_level=profiler.ProfilerLevel.Level1,
        aic_metrics=profiler.AiCMetrics.PipeUtilization,
        data_simplification=True,
    )
    with scratch_folder("comm") as folder:
        with profiler.profile(
            activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
            experimental_config=settings,
            on_trace_ready=profiler.tensorboard_trace_handler(str(folder)),
        ):
            sacrifice(device, SACRIFICES_OF_A_WINDOW)
            calls()
            device.synchronize()
        tables = sorted(folder.rglob(KERNEL_DETAILS))
        return npu_spans(tables[0], kernel_type) if tables else []


class HostRank:
    """A rank on the cpu: a call returns when it has finished."""

    name = "cpu"  # torch's

    def free_bytes(self) -> int:
        """Return the memory that a case may use: ranks of one machine share its memory."""
        ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        return (available_memory_bytes() or 1 << 40) // ranks_here

    def timed(self, call: Call, before: Call | None = None) -> float:
        """Run `before`, then the call, without waiting in between; return the duration of the call,
        in us."""
        if before is not None:
            before()
        began = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - began) / 1e3

    def kernels(self, kernel_type: str, calls: Call) -> list[Span]:
        """Run calls, wait for them, and return the times of their kernels of a type. Raises
        BadInput if a call runs none."""
        raise BadInput("expected a device that runs kernels of collectives, got cpu")


class AcceleratorRank:
    """A gpu or an NPU: calls are queued, and events of its own stream time them."""

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

    def free_bytes(self) -> int:
        self._module.empty_cache()  # memory that torch caches for deleted tensors is free, too
        return int(self._module.mem_get_info()[0])

    def synchronize(self) -> None:
        """Wait for all queued work."""
        self._module.synchronize()

    def timed(self, call: Call, before: Call | None = None) -> float:
        first, last = (self._module.Event(enable_timing=True) for _ in range(2))
        if before is not None:
            before()
        first.record()
        call()
        last.record()
        self.synchronize()
        return float(first.elapsed_time(last)) * 1e3

    def kernels(self, kernel_type: str, calls: Call) -> list[Span]:
        return self._window(self, kernel_type, calls)


RankDevice = HostRank | AcceleratorRank


def open_rank_device(backend: str, local_rank: int) -> RankDevice:
    """Return the device of a rank. Raises BadInput and HostFault if the device is missing."""
    if backend == "cpu":
        return HostRank()
    if backend == "npu":
        try:
            with imports.permanent():  # a profiler forks a dozen such processes per window
                importlib.import_module("torch_npu")  # which adds torch.npu
        except ImportError as error:
            raise HostFault(f"--backend npu requires torch_npu and CANN: {error}") from error
    return AcceleratorRank(backend, local_rank)
