"""A capture: a profiler around the steps of a running program, and the verdict on what it wrote.

    with capture("prof/qwen", steps=3) as session:
        for batch in loader:
            step(batch)
            session.step()

The same program is captured on an NPU by torch_npu.profiler, on a GPU and on a CPU by
torch.profiler and the dispatcher. Each profiler gets the arguments that it has; none is passed as
None in the hope that it is ignored.
"""

import errno
import importlib
import json
import logging
import os
import shutil
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import torch

from collector.capture import own_profilers
from collector.capture.custom_calls import CustomCalls, load_operators, triton_launches
from collector.capture.dispatched import (
    DispatchedCalls,
    Step,
    load_kernels,
    modes_of_torch,
    write_profile,
)
from collector.capture.kept_code import kept_code
from collector.capture.settings import (
    TRACE_FILE,
    TRIAL_STEPS,
    Activity,
    CaptureSettings,
    Export,
    faults_of_exports,
    faults_of_versions,
)
from collector.capture.verdict import CAPTURE_FILE, RankVerdict, is_run_of, verdicts
from collector.codec.canonical import readable_json
from collector.codec.errors import BadInput, OpmeterError, file_errors
from collector.codec.text import counted, did_you_mean
from collector.host.version_pairs import npu_versions
from collector.model.stack import BACKEND_SYNONYMS, PROFILED
from collector.profiles.logged_calls import LOG_FILE
from collector.store.atomic import write_whole

_LOG = logging.getLogger(__name__)
_SHARE_OF_DISK = 0.9  # of the free bytes, that a capture may take
_PROFILES_ITSELF = "the program profiles itself: its profiler was left alone, and the capture"


class _Profiler(Protocol):
    """The part of a profiler that a session uses."""

    def step(self) -> None: ...

    def add_metadata_json(self, key: str, value: str) -> None: ...

    def export_stacks(self, path: str, metric: str) -> None: ...


class _Recording:
    """One run of the profiler, from the first step that it counts to the files that it leaves."""

    def __init__(
        self, settings: CaptureSettings, backend: str, give_way: Callable[[], None]
    ) -> None:
        self.settings = settings
        self.steps_seen = 0
        self._backend, self._faults = backend, list[str]()
        self._rounds = 0  # of which a trace is written
        self._ranks = ranks()
        with file_errors(settings.folder, "written"):
            settings.folder.mkdir(parents=True, exist_ok=True)
            self._earlier = _own_folders(settings)  # of an earlier capture of this process
            self._write_facts(is_complete=False)  # now, while the disk has space
        self._run = _run_folder(settings)
        self._thread = threading.get_ident()
        self.has_given_way = False  # to a profiler of the program
        self._is_lost = False  # the events of torch's profiler, to one of another thread
        self._calls: DispatchedCalls | None = None
        self._code: object = None
        self._custom: CustomCalls | None = None
        self.modes = self._modes_before = modes_of_torch()
        with ExitStack() as stack, own_profilers.of_capture():
            if backend != "npu":
                load_kernels()
                if settings.stack:
                    self._code = stack.enter_context(kept_code())  # as long as the profiler
                self._calls = stack.enter_context(DispatchedCalls(is_marked=backend == "cuda"))
            if settings.calls:
                if backend == "npu":
                    load_operators()
                self._custom = stack.enter_context(CustomCalls(self.ranks[0]))
                stack.enter_context(triton_launches(self._custom.launched))
            if is_kept(settings, 0):
                self._wait_for_device()
            self._profiling = stack.enter_context(ExitStack())
            self.profiler: _Profiler = self._profiling.enter_context(
                _npu_profiler(settings)
                if backend == "npu"
                else _torch_profiler(settings, backend, self._end_round)
            )
            stack.enter_context(own_profilers.before_each(give_way))
            self._stack = stack.pop_all()
        self.modes = modes_of_torch()
        self._steps: list[Step] = []
        self._began_ns = 0
        self._mark()

    def step(self) -> None:
        with self._noting_errors(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the events of a round are cleared after it
            if is_kept(self.settings, self.steps_seen) != is_kept(
                self.settings, self.steps_seen + 1
            ):
                self._wait_for_device()
            if is_kept(self.settings, self.steps_seen):
                self._steps.append(Step(self.steps_seen, self._began_ns, time.time_ns()))
            with own_profilers.of_capture():
                self.profiler.step()
        self.steps_seen += 1
        self._mark()
        self._ranks = _ranks_now() or self._ranks  # the group may be destroyed before the end

    @property
    def ranks(self) -> tuple[int, int]:
        """The rank of this process and their number, as far as they were known."""
        return self._ranks

    @property
    def faults(self) -> Sequence[str]:
        """What failed, or was noted for the verdict."""
        return self._faults

    @property
    def has_failed(self) -> bool:
        return bool(self._faults)

    @property
    def steps_kept(self) -> int:
        return sum(is_kept(self.settings, step) for step in range(self.steps_seen))

    def end(self, faults: Sequence[str] = ()) -> None:
        """Stop the profiler, and write the tables and facts of this rank."""
        self._note(None)
        self._faults += faults
        self._ranks = _ranks_now() or self._ranks
        with self._noting_errors():
            self._close()
        with self._noting_errors():
            if self._calls is not None:
                write_profile(self._calls.launches, self._run, self._steps)
            if self._custom is not None and self._custom.lines:
                for folder in self.folders:
                    (folder / LOG_FILE).write_bytes(self._custom.as_bytes())
        with self._noting_errors():
            self._write_facts(is_complete=True)

    def give_way(self) -> bool:
        """Stop the profiler, since the program is about to start its own. Return whether nothing of
        this recording runs any more, so that it can `end` at once."""
        self._note(None)
        self.has_given_way = True
        kept = counted(self.steps_kept, "step")
        self._faults.append(f"{_PROFILES_ITSELF} ended before that, with {kept}")
        _LOG.warning("%s: %s", self.settings.folder, self._faults[-1])
        is_same_thread = threading.get_ident() == self._thread
        if self._backend != "npu" and not is_same_thread:
            self._is_lost = True  # torch's profilers are of their threads, and its trace is not
            return False
        with self._noting_errors(), own_profilers.of_capture():
            self._profiling.close()
        # The modes of torch are a stack: inside of one of the program, these end with the step.
        return is_same_thread and modes_of_torch() == self.modes

    def _close(self) -> None:
        if self._is_lost:
            self._profiling.pop_all()  # to stop it would stop the program's, or end the process
        with own_profilers.of_capture():
            self._stack.close()
        self.modes = self._modes_before

    def _wait_for_device(self) -> None:
        """Let the launches of a step end, where recorded steps begin or end: a profiler records
        what runs, so that those still queued would be rows of the next step, or be lost."""
        if self._backend != "cpu":
            getattr(torch, self._backend).synchronize()

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """Note an error of the profiler or of the disk for the verdict: the program runs on."""
        try:
            yield
        except Exception as error:
            is_full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            fault = "the disk is full" if is_full else f"the profiler failed: {error}"
            _LOG.error("%s: %s", self.settings.folder, fault)
            self._faults.append(fault)

    def _end_round(self, done: Any) -> None:
        """Write the trace of a round of torch's profiler, and take the times of its kernels."""
        output = self._run / "ASCEND_PROFILER_OUTPUT"
        output.mkdir(parents=True, exist_ok=True)
        self._rounds += 1
        path = output / TRACE_FILE
        if self._rounds > 1:
            path = path.with_stem(f"{path.stem}_{self._rounds}")
        done.export_chrome_trace(str(path))
        if self._calls is not None:
            self._calls.take_message_times(done.profiler.kineto_results.events())
        if self._calls is not None and self._backend == "cuda":
            self._calls.take_device_times(done.events())

    def _mark(self) -> None:
        self._note(self.steps_seen if is_kept(self.settings, self.steps_seen) else None)
        self._began_ns = time.time_ns()

    def _note(self, step: int | None) -> None:
        for calls in (self._calls, self._custom):
            if calls is not None:
                calls.step = step

    @property
    def folders(self) -> list[Path]:
        """The folders that this capture has written; torch_npu chooses their names."""
        return [one for one in _own_folders(self.settings) if one not in self._earlier]

    def _write_facts(self, *, is_complete: bool) -> None:
        recorded = {
            "steps_seen": self.steps_seen,
            "steps_kept": self.steps_kept,
            "earlier": [one.name for one in self._earlier],
            "faults": self._faults,
            "is_complete": is_complete,
        }
        _write_facts(self.settings, self._backend, self._ranks, recorded)


class CaptureSession:
    """A running capture. Call `step` after each step of the program.

    With a trial, the first steps are recorded in `FOLDER_trial_PID` and judged there. The capture
    begins only if they can be used."""

    def __init__(self, settings: CaptureSettings, backend: str, declined: str = "") -> None:
        self.settings = settings
        self.verdicts: tuple[RankVerdict, ...] = ()  # of all ranks so far, when the capture ended
        self._backend = backend
        self._bytes_of_step = 0
        self._notes: list[str] = []
        self.gave_way_at_once = False  # to a profiler of the program, before a step was kept
        self.on_gave_way: Callable[[], None] = lambda: None  # it has ended before such a profiler
        self._recording: _Recording | None = None
        self._last: _Recording | None = None
        if not declined and own_profilers.is_running():
            declined = f"{_PROFILES_ITSELF} did not begin"
        if declined:
            self._give_up(declined)
        else:
            first = _of_trial(settings) if settings.trial else settings
            self._recording = self._last = self._recorded(first)

    @property
    def is_ended(self) -> bool:
        """Whether further steps add nothing: all rounds are recorded, or something stopped it."""
        one = self._recording
        return one is None or (not self._is_trial and one.steps_seen >= one.settings.least_steps)

    def step(self) -> None:
        """End the step that has run since the last call."""
        one = self._recording
        if one is None:
            return
        if not one.has_failed:  # else it gave way to a profiler of the program
            one.step()
        if one.has_failed:
            self._end_failed(one)
        elif self._is_trial and one.steps_seen >= one.settings.least_steps:
            self._end_trial(one)
        elif not self._is_trial and not self.is_ended:
            self._keep_within_budget(one)

    @property
    def modes(self) -> int:
        """The modes of torch outside of those that the program enters and leaves in its steps."""
        return self._last.modes if self._last is not None else modes_of_torch()

    def note(self, text: str) -> None:
        """Have the verdict of this rank end with a text."""
        self._notes.append(text)

    def _recorded(self, settings: CaptureSettings) -> _Recording:
        return _Recording(settings, self._backend, self._give_way)

    def _give_way(self) -> None:
        """End before a profiler of the program starts, as far as this is possible here."""
        one = self._recording
        if one is not None and not one.has_failed and one.give_way():
            self._end_failed(one)
            self.on_gave_way()

    def _end_failed(self, one: _Recording) -> None:
        is_trial, self._recording = self._is_trial, None
        fault = f"the capture did not begin: {'; '.join(one.faults)}"
        one.end(self._notes)
        self.gave_way_at_once = one.has_given_way and (is_trial or not one.steps_kept)
        if self.gave_way_at_once:
            self._remove(one)
        if is_trial or self.gave_way_at_once:
            self._give_up(fault)

    def add_metadata(self, key: str, value: object) -> None:
        """Store a value with the capture, as JSON."""
        if self._recording is not None:
            self._recording.profiler.add_metadata_json(key, json.dumps(value))

    def export_stacks(self, path: str | Path, metric: str) -> None:
        """Write the stacks of a capture with `stack` that has ended, for flame graphs.

        Args:
            metric: self_cpu_time_total, self_npu_time_total or self_cuda_time_total."""
        self._check_export("export_stacks")
        path = Path(path)
        metrics = ("self_cpu_time_total", f"self_{self._backend}_time_total")
        if metric not in metrics:
            expected = " or ".join(dict.fromkeys(metrics))
            raise BadInput(f"export_stacks: metric: expected {expected}, got {metric!r}")
        if path.suffix != ".log" and self._backend == "npu":
            raise BadInput("export_stacks: expected a file of kind .log", path=path)
        if self._last is None:
            raise BadInput("export_stacks: nothing was captured", path=self.settings.folder)
        path.unlink(missing_ok=True)
        self._last.profiler.export_stacks(str(path), metric)
        if not path.is_file():  # torch_npu raises nothing
            logs = ", ".join(str(one / "logs") for one in self._last.folders)
            raise BadInput(
                f"export_stacks: torch_npu wrote no file: no operator with a stack has a {metric}, "
                f"or its analysis failed; its logs: {logs}",
                path=path,
            )

    def export_chrome_trace(self, path: str | Path) -> None:
        """Raise BadInput: a capture writes its trace by itself."""
        self._check_export("export_chrome_trace")

    def _check_export(self, name: str) -> None:
        if faults := list(faults_of_exports(self.settings, name)):
            raise BadInput("; ".join(faults), path=self.settings.folder)
        if not self.is_ended:
            raise BadInput(f"{name}: expected a capture that has ended", path=self.settings.folder)

    def end(self, *, judge: bool = True) -> None:
        """Stop the capture, and judge it if requested. A second call does nothing."""
        one = self._recording
        if one is not None and one.has_failed:
            self._end_failed(one)
            one = None
        self._recording = None
        if one is not None:
            one.end(self._notes)
            if one.settings.folder != self.settings.folder:
                self._give_up(f"the program ended in the trial, after {one.steps_seen} steps")
        if judge and not self.verdicts:
            self.verdicts = _judged(self.settings.folder, self._ranks, self._last)

    @property
    def _ranks(self) -> tuple[int, int]:
        return self._last.ranks if self._last is not None else ranks()

    @property
    def _is_trial(self) -> bool:
        one = self._recording
        return one is not None and one.settings.folder != self.settings.folder

    def _end_trial(self, one: _Recording) -> None:
        """Begin the capture if the trial can be used; a trial that can be used is removed."""
        one.end()
        self._recording = None
        found = _judged(one.settings.folder, one.ranks, one)
        judged = [verdict for verdict in found if verdict.rank == one.ranks[0]]
        if fault := next((str(found) for found in judged if found.is_empty), ""):
            where = f"its files are in {one.settings.folder}"
            self._give_up(f"the capture did not begin: the trial cannot be used: {fault}; {where}")
            return
        self._bytes_of_step = sum(map(_size_of, one.folders))
        self._remove(one)
        kept = self.settings.steps * self.settings.repeat
        budget, estimate = self._budget(), self._bytes_of_step * kept
        _LOG.log(
            logging.WARNING if estimate > budget else logging.INFO,
            "the trial can be used; a step of this rank has %s bytes, %d steps about %s of the %s "
            "that it may have",
            *(f"{self._bytes_of_step:,}", kept, f"{estimate:,}", f"{budget:,}"),
        )
        if self._bytes_of_step > budget:
            what = f"a step has about {self._bytes_of_step:,} bytes, expected at most {budget:,}"
            self._give_up(f"the capture did not begin: {what}")
            return
        # The trial skipped the first steps; these two options require one that is skipped.
        skipped = int(self.settings.record_op_args and self.settings.static_kernels)
        main = replace(self.settings, skip_first=skipped, trial=False)
        self._recording = self._last = self._recorded(main)

    def _budget(self, written: int = 0) -> int:
        """Return the bytes that the capture may have, of which it has `written` some: `max_bytes`,
        and what the disk has for this rank; the others of this machine write there too."""
        ranks_here = os.environ.get("LOCAL_WORLD_SIZE", "")  # set by torchrun
        local = max(1, int(ranks_here)) if ranks_here.isdecimal() else 1
        folder = self.settings.folder.absolute().parent
        free = written + int(shutil.disk_usage(folder).free * _SHARE_OF_DISK) // local
        return min(free, self.settings.max_bytes or free)

    def _keep_within_budget(self, one: _Recording) -> None:
        """Stop a capture that the next step would make larger than its budget."""
        if not self.settings.trial or not one.steps_kept:
            return
        written = sum(map(_size_of, one.folders))
        size = max(written, self._bytes_of_step * one.steps_kept) + self._bytes_of_step
        budget = self._budget(written)
        if size > budget:
            self._recording = None
            kept = f"stopped after {counted(one.steps_kept, 'step')}"
            fault = f"{kept}: the next one would exceed {budget:,} bytes"
            one.end([fault, *self._notes])

    def _give_up(self, fault: str) -> None:
        """Write facts without a capture, so that the verdict has the reason."""
        _LOG.warning("%s", fault)
        try:
            self.settings.folder.mkdir(parents=True, exist_ok=True)
            recorded = {"faults": [fault, *self._notes]}
            _write_facts(self.settings, self._backend, self._ranks, recorded)
        except (OSError, OpmeterError) as error:  # a full disk: the program runs on
            _LOG.error("%s: the reason cannot be written: %s", self.settings.folder, error)

    def _remove(self, one: _Recording) -> None:
        folder = one.settings.folder
        for run in one.folders:
            shutil.rmtree(run, ignore_errors=True)
        facts = CAPTURE_FILE.format(worker=_worker(one.settings))
        (folder / facts).unlink(missing_ok=True)
        with suppress(OSError):  # other ranks have files there
            folder.rmdir()


def _judged(
    folder: Path, of_ranks: tuple[int, int], one: _Recording | None
) -> tuple[RankVerdict, ...]:
    """Return the verdicts on a folder; one with the reason if there is nothing to judge."""
    try:
        return verdicts(folder)
    except OpmeterError as error:
        faults = one.faults if one is not None else ()
        return (RankVerdict(of_ranks[0], folder, faults=(*faults, str(error))),)


def _of_trial(settings: CaptureSettings) -> CaptureSettings:
    # One for each process: a rank that ends its trial removes the folder, which others still read.
    main = Path(os.path.abspath(settings.folder))
    folder = main.with_name(f"{main.name}_trial_{os.getpid()}")
    once = replace(settings, steps=1, warmup=TRIAL_STEPS - 1, wait=0, repeat=1)
    return replace(once, folder=folder, analyse=True, trial=False, max_bytes=None)


def _size_of(folder: Path) -> int:
    files = (file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
    return sum(file.stat().st_size for file in files)


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
    folder: str | Path, device: str | None, options: Mapping[str, Any], declined: str = ""
) -> CaptureSession:
    """Start a capture that its `end` ends: `capture` without a block. One that is `declined` for a
    reason writes it for the verdict, and captures nothing."""
    known = [one.name for one in fields(CaptureSettings) if one.name != "folder"]
    if unknown := sorted(set(options) - set(known)):
        raise BadInput(f"unknown option {unknown[0]!r}; expected one of {', '.join(known)}")
    settings = CaptureSettings(Path(folder), **options)
    backend = device or available_backend()
    if backend not in PROFILED:
        hint = did_you_mean(backend, PROFILED, BACKEND_SYNONYMS)
        raise BadInput(f"device: expected one of {', '.join(PROFILED)}, got {backend!r}{hint}")
    settings.check()
    own_profilers.watch()
    if backend == "npu":
        faults = [*faults_of_versions(settings, npu_versions()), *_unsupported(settings)]
        if faults:
            raise BadInput("; ".join(faults), path=folder)
    return CaptureSession(settings, backend, declined)


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
    return _ranks_now() or (
        int(os.environ.get("RANK", "0")),
        int(os.environ.get("WORLD_SIZE", "1")),
    )


def _ranks_now() -> tuple[int, int] | None:
    """Return the rank and the number of ranks while torch.distributed is initialized."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None


def _worker(settings: CaptureSettings) -> str:
    """Return how torch_npu's trace handler names this process in the names of its folders."""
    return f"{settings.worker_name or socket.gethostname()}_{os.getpid()}"


def _run_folder(settings: CaptureSettings) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%d%H%M%S%f")[:-3]
    return settings.folder / f"{_worker(settings)}_{stamp}_ascend_pt"


def _own_folders(settings: CaptureSettings) -> list[Path]:
    """Return the folders of runs that this process has written here, now or earlier."""
    found = settings.folder.glob("*_ascend_pt")
    return sorted(one for one in found if is_run_of(one.name, _worker(settings)))


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
    settings: CaptureSettings, backend: str, end_round: Callable[[Any], None]
) -> AbstractContextManager[_Profiler]:
    profiler: Any = torch.profiler
    activities = [profiler.ProfilerActivity.CPU]
    if backend == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)

    more = {}
    if settings.stack:  # else torch drops the stacks of the events (pytorch issue 100253)
        extended = torch._C._profiler._ExperimentalConfig(verbose=True)
        more["experimental_config"] = extended
    made: AbstractContextManager[_Profiler] = profiler.profile(
        activities=activities, on_trace_ready=end_round, **_common(settings, profiler), **more
    )
    return made


def supported_options() -> dict[str, tuple[str, ...]]:
    """Return the activities, levels, metrics and exports that the installed torch_npu supports, by
    the names of `CaptureSettings`. Raises ImportError without torch_npu."""
    profiler: Any = importlib.import_module("torch_npu.profiler")
    kinds = {
        "level": (profiler.ProfilerLevel, profiler.supported_profiler_level()),
        "metrics": (profiler.AiCMetrics, profiler.supported_ai_core_metrics()),
        "export": (profiler.ExportType, profiler.supported_export_type()),
    }
    found = {
        option: tuple(name for name, value in vars(kind).items() if value in supported)
        for option, (kind, supported) in kinds.items()
    }
    activities = profiler.supported_activities()
    found["activities"] = tuple(
        name.value for name in Activity if getattr(profiler.ProfilerActivity, name) in activities
    )
    return found | {"export": tuple(name.lower() for name in found["export"])}


def _unsupported(settings: CaptureSettings) -> Iterator[str]:
    """Yield the options that the installed torch_npu does not support."""
    for option, known in supported_options().items():
        value = getattr(settings, option)
        for name in value if option == "activities" else [value]:
            if name.value not in known:
                yield f"{option} {name}: expected one that torch_npu supports ({', '.join(known)})"


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
        activities=[getattr(profiler.ProfilerActivity, one) for one in settings.activities],
        on_trace_ready=profiler.tensorboard_trace_handler(
            str(settings.folder), settings.worker_name, analyse_flag=settings.analyse
        ),
        experimental_config=extended,
        **_common(settings, profiler),
    )
    return made


def _write_facts(
    settings: CaptureSettings,
    backend: str,
    of_ranks: tuple[int, int],
    recorded: Mapping[str, object],
) -> None:
    """Write what this process should record and what it did, for the verdict. On a full disk, what
    it wrote before remains."""
    rank, world = of_ranks
    facts = {
        **asdict(settings),
        "folder": str(settings.folder),
        "worker": _worker(settings),
        "backend": backend,
        "torch": torch.__version__,
        "rank": rank,
        "world_size": world,
        **recorded,
    }
    path = settings.folder / CAPTURE_FILE.format(worker=_worker(settings))
    write_whole(path, readable_json(facts))
