"""A general plugin of vLLM: the calls of custom operators, while an instance is being profiled.

vLLM runs the entry point `vllm.general_plugins` in each of its processes, so that an image needs
nothing but opmeter installed. A worker of vLLM-Ascend logs its calls between the start and the stop
of its profiler, and writes them into the folder of its run. A captured graph calls no operators
when it is replayed: profile with `--enforce-eager`.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from collector.capture.after_import import after_import
from collector.profiles.logged_calls import LOG_FILE

WORKERS = "vllm_ascend.worker.worker"  # 0.18 and 0.23
_RUNS = ("execute_model", "sample_tokens")  # methods that launch; the first one begins a step
_LOG = logging.getLogger(__name__)


def register() -> None:
    """Have the workers of this process log their calls. vLLM calls it, maybe several times."""
    after_import(WORKERS, _attach)


class ServedCalls:
    """The log of one process of a server while its profiler runs. `runs` is the pattern of the
    folders that torch_npu makes for this process."""

    def __init__(self, folder: Path, runs: str, rank: int) -> None:
        from collector.capture.custom_calls import CustomCalls

        self._folder, self._pattern, self._rank = folder, runs, rank
        self._earlier = set(self._runs())  # names decide: a file server has its own clock
        self._calls = CustomCalls(rank)
        self._steps = 0

    def run(self, launch: Callable[[], Any], *, begins_step: bool) -> Any:
        """Run a method that launches in the log's mode, which is of this thread alone."""
        from collector.capture.custom_calls import triton_launches

        self._steps += begins_step
        self._calls.step = self._steps
        with self._calls, triton_launches(self._calls.launched):
            return launch()

    def _runs(self) -> list[Path]:
        return sorted(self._folder.glob(self._pattern))

    def write(self) -> None:
        """Write the calls into the folder that torch_npu has made for this process."""
        runs = [run for run in self._runs() if run not in self._earlier]
        for run in runs:
            (run / LOG_FILE).write_bytes(self._calls.as_bytes())
        _LOG.info("rank %d: logged %d calls in %d folders", self._rank, len(self._calls), len(runs))


def _attach(module: ModuleType) -> None:
    worker = module.NPUWorker
    if hasattr(worker, "_opmeter_calls"):
        return
    worker._opmeter_calls = None
    profile = worker.profile

    def logged_profile(self: Any, is_start: bool = True, *args: Any, **kwargs: Any) -> Any:
        begun = guarded(lambda: _calls_of(self)) if is_start else None
        done = profile(self, is_start, *args, **kwargs)
        if is_start:
            self._opmeter_calls = begun
        elif self._opmeter_calls is not None:
            calls, self._opmeter_calls = self._opmeter_calls, None
            guarded(calls.write)
        return done

    worker.profile = logged_profile
    for name in _RUNS:
        if original := getattr(worker, name, None):
            setattr(worker, name, _logged(name, original))


def _calls_of(worker: Any) -> ServedCalls:
    folder, rank = Path(worker.profiler_config.torch_profiler_dir), int(worker.rank)
    return ServedCalls(folder, f"*rank{rank}_*_ascend_pt", rank)


def _logged(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._opmeter_calls is None:
            return original(self, *args, **kwargs)
        launch = partial(original, self, *args, **kwargs)
        return self._opmeter_calls.run(launch, begins_step=name == _RUNS[0])

    return run


def guarded(action: Callable[[], Any]) -> Any:
    """Return the result of an action; None, and a line of the log, if it fails."""
    try:
        return action()
    except Exception:  # an instance serves on whatever becomes of its log
        _LOG.exception("the calls of this profile are not logged")
        return None
