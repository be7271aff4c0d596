"""A capture: a profiler around the steps of a running program, and the verdict on what it wrote.

    with capture("prof/qwen", steps=3) as session:
        for batch in loader:
            step(batch)
            session.step()

The same program is captured on an NPU by torch_npu.profiler, on a GPU by torch.profiler, and on a
CPU by torch.profiler and the dispatcher. Each profiler gets the arguments that it has; none is
passed as None in the hope that it is ignored.
"""

import importlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import torch

from collector.capture.dispatched import DispatchedCalls, write_profile
from collector.capture.settings import CaptureSettings, Export
from collector.capture.verdict import CAPTURE_FILE, RankVerdict, verdicts
from collector.codec.canonical import readable_json
from collector.codec.errors import BadInput

BACKENDS = ("npu", "cuda", "cpu")


class _Profiler(Protocol):
    """The part of a profiler that a session uses."""

    def step(self) -> None: ...

    def add_metadata_json(self, key: str, value: str) -> None: ...


class CaptureSession:
    """A running capture. Call `step` after each step of the program."""

    def __init__(
        self, settings: CaptureSettings, profiler: _Profiler, calls: DispatchedCalls | None
    ) -> None:
        self.settings = settings
        self.verdicts: tuple[RankVerdict, ...] = ()  # of all ranks so far, when the block has ended
        self.steps_seen = 0
        self._profiler, self._calls = profiler, calls
        self._mark()

    def step(self) -> None:
        """End the step that has run since the last call."""
        self._profiler.step()
        self.steps_seen += 1
        self._mark()

    def add_metadata(self, key: str, value: object) -> None:
        """Store a value with the capture, as JSON."""
        self._profiler.add_metadata_json(key, json.dumps(value))

    def _mark(self) -> None:
        if self._calls is not None:
            kept = is_kept(self.settings, self.steps_seen)
            self._calls.step = self.steps_seen if kept else None


def is_kept(settings: CaptureSettings, step: int) -> bool:
    """Return whether a step, counted from 0, is recorded and kept."""
    at = step - settings.skip_first
    length = settings.wait + settings.warmup + settings.steps
    if at < 0 or at >= length * settings.repeat:
        return False
    return at % length >= settings.wait + settings.warmup


@contextmanager
def capture(
    folder: str | Path, *, device: str | None = None, **options: Any
) -> Iterator[CaptureSession]:
    """Capture the steps of the block into a folder, and judge the capture when the block ends.

    Args:
        folder: where each rank writes a folder of its own.
        device: npu, cuda or cpu; the first that is available if it is not given.
        options: the fields of `CaptureSettings`.

    Raises BadInput before anything starts for options that do not fit each other."""
    try:
        settings = CaptureSettings(Path(folder), **options)
    except TypeError as error:
        raise BadInput(f"capture: {error}", path=folder) from error
    backend = device or available_backend()
    if backend not in BACKENDS:
        raise BadInput(f"device: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    settings.check()
    settings.folder.mkdir(parents=True, exist_ok=True)
    run = _run_folder(settings.folder)
    began_s = time.time()
    with ExitStack() as stack:
        calls = stack.enter_context(DispatchedCalls()) if backend == "cpu" else None
        profiler = stack.enter_context(_profiler(settings, backend, run))
        session = CaptureSession(settings, profiler, calls)
        try:
            yield session
        finally:
            if calls is not None:
                calls.step = None
    if calls is not None:
        write_profile(calls.launches, run)
    _write_facts(settings, backend, session.steps_seen, began_s)
    session.verdicts = verdicts(settings.folder)


def available_backend() -> str:
    """Return npu, cuda or cpu: the first whose device is available."""
    try:
        importlib.import_module("torch_npu")  # adds torch.npu
    except ImportError:
        pass
    else:
        if torch.npu.is_available():
            return "npu"
    return "cuda" if torch.cuda.is_available() else "cpu"


def rank_of(environment: Mapping[str, str] = os.environ) -> int:
    """Return the rank of this process, which torchrun sets; 0 if it is alone."""
    return int(environment.get("RANK", "0"))


def _run_folder(folder: Path) -> Path:
    stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime()) + f"{time.time_ns() // 1000 % 1000:03d}"
    return folder / f"{socket.gethostname()}_{os.getpid()}_{stamp}_ascend_pt"


def _profiler(
    settings: CaptureSettings, backend: str, run: Path
) -> AbstractContextManager[_Profiler]:
    return _npu_profiler(settings) if backend == "npu" else _torch_profiler(settings, backend, run)


def _common(settings: CaptureSettings, profiler: Any) -> dict[str, Any]:
    return {
        "schedule": profiler.schedule(
            skip_first=settings.skip_first,
            wait=settings.wait,
            warmup=settings.warmup,
            active=settings.steps,
            repeat=settings.repeat,
        ),
        "record_shapes": settings.shapes,
        "profile_memory": settings.memory,
        "with_stack": settings.stack,
        "with_modules": settings.modules,
        "with_flops": settings.flops,
    }


def _torch_profiler(
    settings: CaptureSettings, backend: str, run: Path
) -> AbstractContextManager[_Profiler]:
    profiler: Any = torch.profiler
    activities = [profiler.ProfilerActivity.CPU]
    if backend == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)

    def write_trace(done: Any) -> None:
        output = run / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True, exist_ok=True)
        done.export_chrome_trace(str(output / "trace_view.json"))

    made: AbstractContextManager[_Profiler] = profiler.profile(
        activities=activities, on_trace_ready=write_trace, **_common(settings, profiler)
    )
    return made


def _npu_profiler(settings: CaptureSettings) -> AbstractContextManager[_Profiler]:
    profiler: Any = importlib.import_module("torch_npu.profiler")
    extended = profiler._ExperimentalConfig(
        export_type=profiler.ExportType.Db
        if settings.export is Export.DB
        else profiler.ExportType.Text,
        profiler_level=getattr(profiler.ProfilerLevel, settings.level),
        aic_metrics=getattr(profiler.AiCMetrics, settings.metrics),
        mstx=settings.marks,
        l2_cache=settings.l2_cache,
        op_attr=settings.op_attr,
        record_op_args=settings.record_op_args,
        data_simplification=settings.data_simplification,
        **(
            {}
            if settings.gc_threshold_ms is None
            else {"gc_detect_threshold": settings.gc_threshold_ms}
        ),
    )
    made: AbstractContextManager[_Profiler] = profiler.profile(
        activities=[profiler.ProfilerActivity.CPU, profiler.ProfilerActivity.NPU],
        on_trace_ready=profiler.tensorboard_trace_handler(
            str(settings.folder), analyse_flag=settings.analyse
        ),
        experimental_config=extended,
        **_common(settings, profiler),
    )
    return made


def _write_facts(settings: CaptureSettings, backend: str, steps_seen: int, began_s: float) -> None:
    """Write what this rank was asked for and what it saw, for the verdict."""
    rank, world = rank_of(), int(os.environ.get("WORLD_SIZE", "1"))
    facts = {
        **asdict(settings),
        "folder": str(settings.folder),
        "backend": backend,
        "rank": rank,
        "world_size": world,
        "pid": os.getpid(),
        "steps_seen": steps_seen,
        "steps_kept": sum(is_kept(settings, step) for step in range(steps_seen)),
        "began_s": began_s,
        "torch": torch.__version__,
    }
    path = settings.folder / CAPTURE_FILE.format(rank=rank)
    path.write_bytes(readable_json(facts))
