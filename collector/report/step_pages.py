"""The page of a step: its time in the profile, next to the times measured apart and in context."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from collector.model.case import shape_text
from collector.profiles.step_trace import StepTrace
from collector.report.comparison import (
    M6,
    ComparedCase,
    Isolated,
    StaticGain,
    StepSum,
    by_kernel,
)
from collector.report.pages import Folder, Page, Table, short_row

_MOST_CASES, _MOST_KERNELS = 4000, 10
_CASES = (
    *("kernel", "case", "input_shapes", "launches", "in_situ_us", "isolated_us", "isolated_low_us"),
    *("isolated_high_us", "in_context_us", "in_situ_total_us", "ratio", "why", "warnings"),
)
_KERNELS = (
    *("kernel", "cases", "launches", "in_situ_us", "compared_us", "isolated_us", "in_context_us"),
    *("ratio_p10", "ratio_p50", "ratio_p90"),
)
_BARS: Mapping[str, Callable[[ComparedCase], float]] = {
    "apart": lambda one: one.isolated_us,
    "context": lambda one: one.isolated_us + one.neighbours_us,
    "profile": lambda one: one.in_situ.total_us,
}


@dataclass(frozen=True, slots=True)
class ComparedStep:
    """A profile next to the durations of a version directory: `place`. `trace`, `parts` and `known`
    are None for a profile that does not record its steps."""

    profile: str
    place: str
    cases: Sequence[ComparedCase]
    trace: StepTrace | None
    parts: StepSum | None
    known: M6 | None
    other_device: str = ""  # why the durations are not of the profile's device, if so
    gains: tuple[StaticGain, ...] = ()


def write_step(folder: Folder, step: ComparedStep) -> int:
    """Write the page of a step; return the number of its cases with an isolated duration."""
    rows = sorted((_case(one) for one in step.cases), key=lambda row: -row[9])
    kernels = _kernels(step.cases)
    data = {
        "profile": step.profile,
        "place": step.place,
        "other_device": step.other_device,
        "steps": step.trace.steps if step.trace else 0,
        "cases": len(rows),
        "compared": sum(one.isolated is not None for one in step.cases),
        "warned": sum(bool(one.warnings) for one in step.cases),
        "in_context": sum(one.in_context is not None for one in step.cases),
        "bars": _bars(step),
        "parts": dict(step.parts.parts) | {"measured": step.parts.measured_us}
        if step.parts
        else {},
        "m6": [step.known.covered, step.known.forecast, step.known.isolated] if step.known else [],
        "kernels": kernels,
        "rows": [short_row(row) for row in rows[:_MOST_CASES]],
    }
    parts = step.parts.parts if step.parts else ()
    tables = {
        "index": Table(_CASES, rows),
        "kernels": Table(_KERNELS, kernels),
        "causes": Table(("cause", "time_us"), parts),
    }
    folder.write(Page("index", "step", f"{step.profile} · {step.place}", data, tables))
    return sum(one.isolated is not None for one in step.cases)


def _case(one: ComparedCase) -> list[Any]:
    known, case = one.isolated or Isolated(0.0), one.record.case
    apart = [known.mean_us, known.low_us, known.high_us] if one.isolated else [None] * 3
    return [
        *(case.kernel_type, case.case_id),
        ";".join(shape_text(slot.shape) for slot in case.inputs or ()),
        *(one.in_situ.count, one.in_situ.mean_us, *apart),
        one.in_context.mean_us if one.in_context else None,
        *(one.in_situ.total_us, one.ratio, one.why, one.warnings),
    ]


def _kernels(cases: Sequence[ComparedCase]) -> list[list[Any]]:
    """Return the kernel types by _KERNELS, the longest in the profile first."""
    context_us: dict[str, float] = defaultdict(float)
    for one in cases:
        context_us[one.record.case.kernel_type] += one.isolated_us + one.neighbours_us
    return [
        [
            *(one.kernel_type, one.cases, one.launches, one.in_situ_us, one.compared_us),
            *(one.isolated_us, context_us[one.kernel_type], *(one.ratios or [None] * 3)),
        ]
        for one in by_kernel(cases)
    ]


def _bars(step: ComparedStep) -> list[dict[str, Any]]:
    """Return the parts of three bars: the time apart, in context and in the profile, by kernel
    type (an empty name for the shorter ones), and what is no kernel."""
    kernels = [one for one in step.cases if not one.is_message]
    named = [row[0] for row in _kernels(kernels)[:_MOST_KERNELS]]
    rows = []
    known = {bar for bar in _BARS if bar != "context" or any(one.in_context for one in kernels)}
    unmeasured_us = fsum(one.in_situ.total_us for one in kernels if one.isolated is None)
    for bar, time_us in _BARS.items():
        if bar not in known:
            continue
        sums: dict[str, float] = defaultdict(float)
        for one in kernels:
            name = one.record.case.kernel_type
            sums[name if name in named else ""] += time_us(one)
        rows += [{"bar": bar, "part": part, "us": sums[part]} for part in (*named, "")]
        if bar != "profile":
            rows.append({"bar": bar, "part": "#unmeasured", "us": unmeasured_us})
        if step.trace is not None and step.parts is not None:
            if bar == "profile":
                rows.append({"bar": bar, "part": "#waiting", "us": step.trace.communication_us})
                rows.append({"bar": bar, "part": "#idle", "us": step.trace.free_us})
            else:
                rows.append({"bar": bar, "part": "#messages", "us": step.parts.messages_us})
    return [row for row in rows if row["us"] > 0]
