"""Converts recorded launches into the rows of an op_summary, spelled as msprof spells them."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from collector.engine.calls import Recorded, parse_call
from collector.engine.cells import cells_of
from collector.engine.converted import kernels_of
from collector.engine.kernels import kernel_of
from tests.npu.fakecann.columns import counters, summary_columns
from tests.npu.fakecann.libraries import answered_by
from tests.npu.fakecann.physical import PhysicalTimes
from tests.npu.fakecann.static_kernels import RESELECT, installed_operators
from tests.npu.fakecann.truth import truth_us

_ON_ITS_WAY_NS = 10_000  # from the host's call to the start on the device
_CLOCK_MHZ = 1650
_NO_MODEL = "4294967295"
_NOT_KNOWN = "N/A"
# Kernels that no core of A2 and A3 computes in DOUBLE (ops-math of CANN: sub.cpp, mul.cpp).
_ON_AI_CPU = frozenset({"Sub", "Mul"})


@dataclass(frozen=True, slots=True)
class Task:
    """One launch as the device saw it."""

    call: Recorded
    kernel: str
    start_ns: int
    duration_ns: int
    shows_shapes: bool = True
    shows_counters: bool = True
    shown: Mapping[str, str] | None = None  # instead of the one that follows from the call
    state: str = "dynamic"

    @property
    def core(self) -> str:
        if self.call.kind == "HCCL":
            return "COMMUNICATION"
        if self.kernel in _ON_AI_CPU and self.call.tensors[0].dtype == "DOUBLE":
            return "AI_CPU"
        if "Attention" in self.kernel or "Grouped" in self.kernel:
            return "MIX_AIC"
        return "AI_CORE" if "MatMul" in self.kernel else "AI_VECTOR_CORE"


def tasks_of(calls: Iterable[Recorded], physical: PhysicalTimes | None = None) -> list[Task]:
    """Return the kernels of the launches: one after the other, each with its simulated or physical
    duration."""
    tasks: list[Task] = []
    free_ns: dict[int, int] = {}
    built: frozenset[str] = frozenset()
    for given, call in ((one, kernel) for one in calls for kernel in kernels_of(one)):
        if given.text == RESELECT:
            built = installed_operators()
        kernel, duration_ns = _known(call.text)
        if not kernel:
            continue
        if physical is not None:
            duration_ns = round(physical.of_us(call, kernel) * 1000)
        start_ns = max(call.ns + _ON_ITS_WAY_NS, free_ns.get(call.device, 0))
        free_ns[call.device] = start_ns + duration_ns
        state = "static" if given.text in built else "dynamic"
        tasks.append(Task(call, kernel, start_ns, duration_ns, state=state))
    return tasks


@lru_cache(maxsize=4096)
def _known(text: str) -> tuple[str, int]:
    """Return the kernel of a call, and its duration."""
    call = parse_call(text)
    kernel = kernel_of(call)
    return kernel, round(truth_us(call, answered_by(call.name, kernel)) * 1000)


def write_summary(
    tasks: Sequence[Task], path: Path, group: str, block: tuple[str, str], *, names: bool = True
) -> None:
    """Write an op_summary. Without `names` it is one of `--task-time=l0`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = summary_columns(group, block)
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(",".join(header) + "\n")
        writer = csv.writer(file, lineterminator="\n")
        ended_ns = 0
        for number, task in enumerate(tasks):
            wait_ns = max(0, task.start_ns - ended_ns) if ended_ns else 0
            ended_ns = task.start_ns + task.duration_ns
            cells = _base(task, number, wait_ns, block, names)
            if task.shows_counters:
                cells |= _counted(task.core, task.duration_ns, group)
            writer.writerow([cells.get(name, _NOT_KNOWN) for name in header])


def cells_of_task(task: Task, number: int) -> dict[str, str]:
    """The cells of a launch without its counters, by the columns of an op_summary."""
    return _base(task, number, 0, ("Block Dim", "Mix Block Dim"), names=True)


def _base(
    task: Task, number: int, wait_ns: int, block: tuple[str, str], names: bool
) -> dict[str, str]:
    cells = {
        "Device_id": str(task.call.device),
        "Model ID": _NO_MODEL,
        "Task ID": str(number % 65536),
        "Stream ID": str(task.call.stream),
        "Task Start Time(us)": _micro(task.start_ns) + "\t",
        "Task Duration(us)": _micro(task.duration_ns),
        "Task Wait Time(us)": f"{wait_ns / 1000:.6f}" if number else "0",
        block[0]: "0",
        block[1]: "0",
        "HF32 Eligible": "NO",
    }
    if not names:
        return cells
    cells |= {"Op Name": _op_name(task), "OP Type": task.kernel, "Task Type": task.core}
    if task.core == "COMMUNICATION":
        return cells | {"Task ID": _NOT_KNOWN, "Stream ID": _NOT_KNOWN}
    cells |= {"OP State": task.state, block[0]: "24"}
    if task.core == "MIX_AIC":
        cells |= {block[1]: "48", "Context ID": "0"}
    return cells | (_shown(task) if task.shows_shapes else {})


def _shown(task: Task) -> Mapping[str, str]:
    return task.shown if task.shown is not None else _shapes(task.call.text)


def _op_name(task: Task) -> str:
    return f"{task.call.name}_{task.kernel}_{task.kernel}"


@lru_cache(maxsize=4096)
def _shapes(text: str) -> Mapping[str, str]:
    return MappingProxyType(cells_of(parse_call(text)))


@lru_cache(maxsize=4096)
def _counted(core: str, duration_ns: int, group: str) -> dict[str, str]:
    """Return counters that fit the duration: those of idle cores are 0, as in msprof."""
    if core in ("COMMUNICATION", "AI_CPU"):
        return {}
    busy_us = duration_ns / 1000 * 0.9
    runs = {"aic": core != "AI_VECTOR_CORE", "aiv": core != "AI_CORE"}
    return {name: _counter(name, busy_us, runs) for name in counters(group)}


def _counter(name: str, busy_us: float, runs: Mapping[str, bool]) -> str:
    core = "aiv" if name.startswith("aiv") else "aic"
    if not runs[core]:
        return "0" if name.endswith("cycles") else "0.0"
    if name.endswith("total_cycles"):
        return str(round(busy_us * _CLOCK_MHZ * 24))
    share = (len(name) * 7 % 90 + 5) / 100  # different for most counters, always the same
    if name in ("aicore_time(us)", "aiv_time(us)"):
        return f"{busy_us:.3f}"
    return f"{busy_us * share if name.endswith('(us)') else share:.3f}"


def _micro(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
