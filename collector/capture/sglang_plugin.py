"""A general plugin of SGLang on NPUs: profiles with shapes, and the calls of custom operators.

SGLang from 0.5.12 on runs the entry point `sglang.srt.plugins` in each of its schedulers, so that
an image needs nothing but opmeter installed. While `/start_profile` is active, the scheduler logs
its calls, and writes them into the folder of its run. A captured graph calls no operators when it
is replayed: profile with `--disable-cuda-graph`.

SGLang before 0.5.13 starts torch_npu's profiler without its settings, at Level0, whose rows have
neither types nor shapes: then it is started at Level1.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from collector.capture.vllm_plugin import ServedCalls, guarded

# Where a scheduler's profiler is: the module, its class, and the methods that start and stop it.
PROFILERS = (
    (  # 0.5.13 to 0.5.23
        "sglang.srt.managers.scheduler_components.profiler_manager",
        *("SchedulerProfilerManager", "_start_profile", "_stop_profile"),
    ),
    (  # 0.5.12
        "sglang.srt.managers.scheduler_profiler_mixin",
        *("SchedulerProfilerMixin", "start_profile", "stop_profile"),
    ),
)
RUNNERS = "sglang.srt.model_executor.model_runner"  # its ModelRunner.forward is a step
_calls: ServedCalls | None = None  # a process has one scheduler, which profiles once at a time


def register() -> None:
    """Have the scheduler of this process profile with shapes, and log its calls. SGLang calls it
    once the scheduler is imported; in a process without one there is nothing to do."""
    runners = sys.modules.get(RUNNERS)
    for name, profiler, start, stop in PROFILERS:
        module = sys.modules.get(name)
        if module is not None and runners is not None and getattr(module, "_is_npu", False):
            _attach(getattr(module, profiler), start, stop, runners)
            return


def _attach(profiler: Any, start: str, stop: str, runners: ModuleType) -> None:
    if hasattr(runners.ModelRunner, "_opmeter_forward"):
        return
    begin, end = getattr(profiler, start), getattr(profiler, stop)
    forward = runners.ModelRunner._opmeter_forward = runners.ModelRunner.forward

    def started(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _calls
        begun = guarded(lambda: _calls_into(self.torch_profiler_output_dir))
        with _at_level1():
            done = begin(self, *args, **kwargs)
        _calls = begun if getattr(self, "profile_in_progress", False) else None
        return done

    def stopped(self: Any, *args: Any, **kwargs: Any) -> Any:
        global _calls
        done = end(self, *args, **kwargs)
        if _calls is not None:
            calls, _calls = _calls, None
            guarded(calls.write)
        return done

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        launch = partial(forward, self, *args, **kwargs)
        return launch() if _calls is None else _calls.run(launch, begins_step=True)

    setattr(profiler, start, started)
    setattr(profiler, stop, stopped)
    runners.ModelRunner.forward = run


def _calls_into(folder: Path) -> ServedCalls:
    """Return the log of a profile. torch_npu names its folders by host and process."""
    from torch import distributed

    rank = distributed.get_rank() if distributed.is_initialized() else 0
    return ServedCalls(Path(folder), f"*_{os.getpid()}_*_ascend_pt", rank)


@contextmanager
def _at_level1() -> Iterator[None]:
    """Give a profiler that is started without settings of torch_npu those that have shapes."""
    import torch

    begin: Callable[..., Any] = torch.profiler.profile

    def profile(*args: Any, experimental_config: Any = None, **kwargs: Any) -> Any:
        return begin(*args, experimental_config=experimental_config or _level1(), **kwargs)

    torch.profiler.profile = profile
    try:
        yield
    finally:
        torch.profiler.profile = begin


def _level1() -> Any:
    import torch_npu

    return torch_npu.profiler._ExperimentalConfig(
        profiler_level=torch_npu.profiler.ProfilerLevel.Level1,
        aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization,
    )
