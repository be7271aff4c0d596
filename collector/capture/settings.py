"""What a capture records, and the combinations of options that would record something else.

torch_npu resets or ignores an option that does not fit, with a line in its log. Here such a
combination is refused before anything starts. The rules are those of torch_npu 2.9.0 to 2.13.0
(`torch_npu/profiler/experimental_config.py` and `torch_npu/utils/_path_manager.py` of the wheels)
and of the documentation of its profiler.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from collector.codec.errors import BadInput
from collector.host.version_pairs import known_pairs


class Export(StrEnum):
    """The files that the analysis of an NPU's capture writes."""

    TEXT = "text"  # CSV and JSON
    DB = "db"  # one SQLite database


class Level(StrEnum):
    """How much an NPU records. Only LEVEL1 and LEVEL2 record shapes and counters of kernels."""

    NONE = "Level_none"
    LEVEL0 = "Level0"
    LEVEL1 = "Level1"
    LEVEL2 = "Level2"


class Activity(StrEnum):
    """What torch_npu records: the operators of the host, and the kernels of the device."""

    CPU = "CPU"
    NPU = "NPU"


class CoreMetrics(StrEnum):
    """The counters of an AI core; one set for each capture."""

    NONE = "AiCoreNone"
    PIPE_UTILIZATION = "PipeUtilization"
    ARITHMETIC_UTILIZATION = "ArithmeticUtilization"
    MEMORY = "Memory"
    MEMORY_L0 = "MemoryL0"
    MEMORY_UB = "MemoryUB"
    RESOURCE_CONFLICT_RATIO = "ResourceConflictRatio"
    L2_CACHE = "L2Cache"
    MEMORY_ACCESS = "MemoryAccess"


# Names as torch_npu accepts them: letters, digits, Chinese, and `. / _ - ~` and spaces.
_PATH = re.compile(r"[./_\-\s~0-9a-zA-Z\u4e00-\u9fa5]+")
_LONGEST_PATH, _LONGEST_NAME = 4096, 255
# torch_npu adds the process and the time to this name, for the folder of a run.
_WORKER = re.compile(r"[_\-~0-9a-zA-Z\u4e00-\u9fa5][._\-~0-9a-zA-Z\u4e00-\u9fa5]{0,199}")
TRACE_FILE = "trace_view.json"
TRIAL_STEPS = 2  # a warmup, and one that is kept
_SHAPE_LEVELS = (Level.LEVEL1, Level.LEVEL2)
_MONITORS = ("MSMONITOR_USE_DAEMON", "KINETO_USE_DAEMON")  # they start and stop the profiler


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """What to record of which steps.

    Of each of `repeat` rounds, `wait` steps are not recorded, `warmup` steps are recorded and
    dropped, and `steps` are kept; `skip_first` steps precede the first round. `total_steps` is the
    number of steps that the program runs, if it is known. A `trial` records and judges one of two
    steps before that, and `max_bytes` ends the capture before its files are larger. The options
    from `activities` on are those of an NPU, and other devices ignore them. `activities` may also
    be a text, such as "CPU,NPU"."""

    folder: Path
    steps: int = 1
    warmup: int = 1
    wait: int = 0
    skip_first: int = 0
    repeat: int = 1
    total_steps: int | None = None
    trial: bool = False
    max_bytes: int | None = None
    shapes: bool = True
    calls: bool = True  # log the arguments of custom operators, which profilers drop
    stack: bool = False
    modules: bool = False
    flops: bool = False
    memory: bool = False
    worker_name: str | None = None  # instead of the host's, in the names of the folders of runs
    activities: tuple[Activity, ...] = (Activity.CPU, Activity.NPU)
    export: Export = Export.TEXT
    level: Level = Level.LEVEL1
    metrics: CoreMetrics = CoreMetrics.PIPE_UTILIZATION
    marks: bool = False  # mstx, formerly msprof_tx
    l2_cache: bool = False
    op_attr: bool = False
    record_op_args: bool = False
    static_kernels: bool = False  # the program runs kernels that are compiled for its shapes
    gc_threshold_ms: float | None = None
    data_simplification: bool = False
    analyse: bool = True

    def __post_init__(self) -> None:
        for name, kind in (("export", Export), ("level", Level), ("metrics", CoreMetrics)):
            value = getattr(self, name)
            if value not in list(kind):
                raise BadInput(f"{name}: expected one of {', '.join(kind)}, got {value!r}")
            object.__setattr__(self, name, kind(value))
        object.__setattr__(self, "activities", _activities(self.activities))
        for name in ("steps", "warmup", "wait", "skip_first", "repeat"):
            if type(value := getattr(self, name)) is not int:
                raise BadInput(f"{name}: expected an integer, got {value!r}")

    @property
    def least_steps(self) -> int:
        """The number of steps after which all rounds are recorded."""
        rounds = (self.wait + self.warmup + self.steps) * self.repeat
        return self.skip_first + TRIAL_STEPS * self.trial + rounds

    def check(self, environment: Mapping[str, str] = os.environ) -> None:
        """Raise BadInput that names every combination that cannot be recorded as requested."""
        if faults := [*_faults(self), *_faults_of_environment(self, environment)]:
            raise BadInput("; ".join(faults), path=self.folder)


def _activities(given: object) -> tuple[Activity, ...]:
    names = given.split(",") if isinstance(given, str) else given
    known = list(Activity)
    if not isinstance(names, (list, tuple)) or not names or any(one not in known for one in names):
        raise BadInput(f"activities: expected CPU, NPU or CPU,NPU, got {given!r}")
    return tuple(one for one in known if one in names)


def _faults(one: CaptureSettings) -> Iterator[str]:
    """Yield what is wrong with the settings, one sentence each."""
    if one.steps < 1 or one.repeat < 1 or min(one.warmup, one.wait, one.skip_first) < 0:
        yield (
            "steps and repeat: expected at least 1, warmup, wait and skip_first at least 0, got "
            f"{one.steps}, {one.repeat}, {one.warmup}, {one.wait} and {one.skip_first}"
        )
    elif one.total_steps is not None and one.total_steps < one.least_steps:
        yield (
            f"the program runs {one.total_steps} steps, expected at least {one.least_steps} = "
            f"skip_first + (wait + warmup + steps) * repeat, and {TRIAL_STEPS} for a trial"
        )
    if one.max_bytes is not None and not one.trial:
        yield "max_bytes: expected a trial, which measures the bytes of a step"
    if one.max_bytes is not None and one.max_bytes < 1:
        yield f"max_bytes: expected at least 1, got {one.max_bytes}"
    if one.trial and one.level not in _SHAPE_LEVELS:
        yield f"trial: expected Level1 or Level2, whose shapes it judges, got {one.level}"
    if one.level is Level.NONE and not one.marks:
        yield "level Level_none records marks alone: enable marks, or use Level1"
    if one.op_attr and one.export is not Export.DB:
        yield "op_attr is only in databases: use export db"
    if one.op_attr and one.level is Level.NONE:
        yield "op_attr: expected a level from Level0 on, got Level_none"
    if one.metrics is not CoreMetrics.NONE and one.level not in _SHAPE_LEVELS:
        yield f"metrics {one.metrics}: expected Level1 or Level2, got {one.level}"
    if one.shapes and one.level not in _SHAPE_LEVELS:
        yield f"shapes of kernels: expected Level1 or Level2, got {one.level}"
    if one.record_op_args and one.static_kernels and not one.skip_first:
        yield "record_op_args with static kernels: expected skip_first of at least 1, got 0"
    if one.gc_threshold_ms is not None and one.gc_threshold_ms < 0:
        yield f"gc_threshold_ms: expected at least 0, got {one.gc_threshold_ms:g}"
    yield from _faults_of_activities(one)
    yield from _faults_of_path(one.folder)
    if one.worker_name is not None and not _WORKER.fullmatch(one.worker_name):
        yield (
            "worker_name: expected at most 200 letters, digits and `._-~`, which begin with no "
            f"dot, got {one.worker_name!r:.60}"
        )


def _faults_of_activities(one: CaptureSettings) -> Iterator[str]:
    """Yield the options that torch_npu ignores without one of both activities."""
    of_device = ("trial", "marks", "l2_cache", "op_attr", "record_op_args")
    of_host = ("stack", "modules", "flops")
    for activity, names in ((Activity.NPU, of_device), (Activity.CPU, of_host)):
        used = [name for name in names if getattr(one, name)]
        if activity is Activity.CPU and one.gc_threshold_ms is not None:
            used.append("gc_threshold_ms")
        if used and activity not in one.activities:
            yield f"{', '.join(used)}: expected activities with {activity}, got " + ",".join(
                one.activities
            )


def _faults_of_path(folder: Path) -> Iterator[str]:
    path = os.path.abspath(folder)
    if not _PATH.fullmatch(path):
        odd = "".join(sorted({letter for letter in path if not _PATH.fullmatch(letter)}))
        yield f"a path that torch_npu refuses for {odd!r}: expected letters, digits and `._-~/`"
    if len(path) > _LONGEST_PATH or any(len(name) > _LONGEST_NAME for name in path.split("/")):
        yield f"a path of more than {_LONGEST_PATH} bytes, or {_LONGEST_NAME} in one name"
    for one in (folder, *folder.parents):
        if one.is_symlink():
            yield f"{one} is a link, which torch_npu refuses: use {one.resolve()}"
            break
    if folder.exists() and not folder.is_dir():
        yield "expected a folder, got a file"


def _faults_of_environment(one: CaptureSettings, environment: Mapping[str, str]) -> Iterator[str]:
    for name in _MONITORS:
        if environment.get(name):
            yield f"{name} is set: msMonitor controls the profiler of this process, unset it"
    ranks = environment.get("WORLD_SIZE", "1")
    if one.static_kernels and ranks != "1" and not environment.get("LOCAL_WORLD_SIZE"):
        yield "static kernels of several ranks require LOCAL_WORLD_SIZE, equal on every node"


def faults_of_versions(one: CaptureSettings, versions: Mapping[str, str]) -> Iterator[str]:
    """Yield why the versions of an NPU's software cannot record what is requested."""
    used = {name for name in ("stack", "modules", "analyse") if getattr(one, name)}
    used |= {one.level.lower(), one.export.value}
    return (str(pair) for pair in known_pairs(versions, used) if not pair.works)


def faults_of_exports(one: CaptureSettings, name: str) -> Iterator[str]:
    """Yield why a trace or stacks cannot be exported by hand from a capture: torch_npu ignores such
    a call."""
    if name == "export_chrome_trace":
        yield f"{name}: has no effect with a trace handler, which writes {TRACE_FILE}"
    if name == "export_stacks" and not one.stack:
        yield f"{name}: expected a capture with stack"


# The file by which torch_npu.profiler.dynamic_profile starts a capture in a running program.

DYNAMIC_FILE = "profiler_config.json"


def dynamic_config(one: CaptureSettings) -> dict[str, object]:
    """Return the content of `profiler_config.json` for these settings. It knows no wait, skipped
    steps or rounds.

    `start_step` -1 starts at the next step of the running program: with 0, which torch_npu's own
    template has, a program that is past its first step ignores the file
    (`torch_npu/profiler/dynamic_profile.py` of 2.9.0)."""
    return {
        "activities": list(one.activities),
        "prof_dir": os.path.abspath(one.folder),
        "analyse": one.analyse,
        "record_shapes": one.shapes,
        "profile_memory": one.memory,
        "with_stack": one.stack,
        "with_flops": one.flops,
        "with_modules": one.modules,
        "active": one.steps,
        "warmup": one.warmup,
        "start_step": -1,
        "is_rank": False,
        "rank_list": [],
        "experimental_config": {
            "profiler_level": one.level.value,
            "aic_metrics": one.metrics.value,
            "l2_cache": one.l2_cache,
            "op_attr": one.op_attr,
            "gc_detect_threshold": one.gc_threshold_ms,
            "data_simplification": one.data_simplification,
            "record_op_args": one.record_op_args,
            "export_type": [one.export.value],
            "mstx": one.marks,
        },
    }
