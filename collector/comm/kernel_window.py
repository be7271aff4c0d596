"""A profiler around some calls: when their kernels ran. One window a case, whose lossy head is not
theirs."""

import importlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler import profile

from collector.comm.kernels import KERNEL_DETAILS, Span, nccl_spans, npu_spans
from collector.replay.events import kernel_events
from collector.replay.recording import SACRIFICES_OF_A_WINDOW, Launching, sacrifice


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
