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
import warnings
from collections.abc import Iterator, Mapping, Sequence
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


class _Recording:
    """One run of the profiler, from the first step that it counts to the files that it leaves."""

    def __init__(self, settings: CaptureSettings, backend: str) -> None:
        self.settings = settings
        self.steps_seen = 0
        self._backend, self._began_s = backend, time.time()
        settings.folder.mkdir(parents=True, exist_ok=True)
        self._run = _run_folder(settings.folder)
        self._stack = ExitStack()
        self._calls = self._stack.enter_context(DispatchedCalls()) if backend == "cpu" else None
        self.profiler = self._stack.enter_context(_profiler(settings, backend, self._run))
        self._mark()

    def step(self) -> None:
        self.profiler.step()
        self.steps_seen += 1
        self._mark()

    @property
    def steps_kept(self) -> int:
        return sum(is_kept(self.settings, step) for step in range(self.steps_seen))

    def end(self, faults: Sequence[str] = ()) -> None:
        """Stop the profiler, and write the tables and facts of this rank."""
        if self._calls is not None:
            self._calls.step = None
        self._stack.close()
        if self._calls is not None:
            write_profile(self._calls.launches, self._run)
        _write_facts(self.settings, self._facts(faults))

    def _mark(self) -> None:
        if self._calls is not None:
            kept = is_kept(self.settings, self.steps_seen)
            self._calls.step = self.steps_seen if kept else None

    def _facts(self, faults: Sequence[str]) -> dict[str, object]:
        return {
            "backend": self._backend,
            "pid": os.getpid(),
            "steps_seen": self.steps_seen,
            "steps_kept": self.steps_kept,
            "began_s": self._began_s,
            "faults": list(faults),
            "torch": torch.__version__,
        }


class CaptureSession:
    """A running capture. Call `step` after each step of the program."""

    def __init__(self, settings: CaptureSettings, backend: str) -> None:
        self.settings = settings
        self.verdicts: tuple[RankVerdict, ...] = ()  # of all ranks so far, when the capture ended
        self.steps_seen = 0
        self._recording: _Recording | None = _Recording(settings, backend)

    @property
    def is_recorded(self) -> bool:
        """Whether all rounds are recorded, so that further steps add nothing."""
        return self.steps_seen >= self.settings.least_steps

    def step(self) -> None:
        """End the step that has run since the last call."""
        self.steps_seen += 1
        if self._recording is not None:
            self._recording.step()

    def add_metadata(self, key: str, value: object) -> None:
        """Store a value with the capture, as JSON."""
        if self._recording is not None:
            self._recording.profiler.add_metadata_json(key, json.dumps(value))

    def end(self, *, judge: bool = True) -> None:
        """Stop the capture, and judge it if requested. A second call does nothing."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.end()
            if judge:
                self.verdicts = verdicts(self.settings.folder)


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
    session = begin_capture(folder, device, options)
    try:
        yield session
    finally:
        session.end()


def begin_capture(
    folder: str | Path, device: str | None, options: Mapping[str, Any]
) -> CaptureSession:
    """Start a capture that its `end` ends: `capture` without a block."""
    try:
        settings = CaptureSettings(Path(folder), **options)
    except TypeError as error:
        raise BadInput(f"capture: {error}", path=folder) from error
    backend = device or available_backend()
    if backend not in BACKENDS:
        raise BadInput(f"device: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    settings.check()
    return CaptureSession(settings, backend)


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


def ranks() -> tuple[int, int]:
    """Return the rank of this process and their number: those of torch.distributed, else those that
    torchrun sets, else (0, 1)."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _run_folder(folder: Path) -> Path:
    stamp = time.strftime("%Y%m%d%H%M%S", time.gmtime()) + f"{time.time_ns() // 1000 % 1000:03d}"
    return folder / f"{socket.gethostname()}_{os.getpid()}_{stamp}_ascend_pt"


def _profiler(
    settings: CaptureSettings, backend: str, run: Path
) -> AbstractContextManager[_Profiler]:
    return _npu_profiler(settings) if backend == "npu" else _torch_profiler(settings, backend, run)


def _common(settings: CaptureSettings, profiler: Any) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a schedule has no warmup, which a user chose
        schedule = profiler.schedule(
            skip_first=settings.skip_first,
            wait=settings.wait,
            warmup=settings.warmup,
            active=settings.steps,
            repeat=settings.repeat,
        )
    return {
        "schedule": schedule,
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


def _write_facts(settings: CaptureSettings, recorded: Mapping[str, object]) -> None:
    """Write what this rank was asked for and what it recorded, for the verdict."""
    rank, world = ranks()
    facts = {
        **asdict(settings),
        "folder": str(settings.folder),
        "rank": rank,
        "world_size": world,
        **recorded,
    }
    path = settings.folder / CAPTURE_FILE.format(rank=rank)
    path.write_bytes(readable_json(facts))
