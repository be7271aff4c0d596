"""The page of a model: what its passes launch, by layer, with the time of each launch."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from collector.report.pages import Folder, Page, Table, short_row
from collector.timeline.pass_time import PassTime

_MOST_KERNELS = 12
_LAUNCHES = (
    *("pass", "phase", "layer", "kernel", "launches", "size", "dtypes", "value_us", "low_us"),
    *("high_us", "channel", "reason", "warnings", "estimate_us", "source", "total_us", "least_us"),
)
# How the time of a launch is known, best first.
EXACT, IMPORTED, BETWEEN, ESTIMATED, UNKNOWN = SOURCES = (
    *("exact", "imported", "interpolated", "estimated", "unknown"),
)
_EXACT_CHANNELS = {"measured": EXACT, "pooled": EXACT, "reused": EXACT, "imported": IMPORTED}


@dataclass(frozen=True, slots=True)
class PredictedLaunch:
    """Launches of a case in a layer. `value_us` is the duration of one by the database, with its
    95 % interval, None if it has none, with the `reason`. Then `estimate_us` is the time at the
    rates that kernels usually reach on the device, which is no bound; 0 if the work is unknown.
    `least_us` is the lower bound that every measurement must pass, 0 for a message."""

    layer: str
    kernel_type: str
    times: int
    size: str
    dtypes: str
    value_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    channel: str = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()
    estimate_us: float = 0.0
    least_us: float = 0.0

    @property
    def source(self) -> str:
        if self.value_us is not None:
            return _EXACT_CHANNELS.get(self.channel, BETWEEN)
        return ESTIMATED if self.estimate_us else UNKNOWN

    @property
    def total_us(self) -> float:
        """Time of all its launches: by the database, else the estimate."""
        return self.times * (self.estimate_us if self.value_us is None else self.value_us)


@dataclass(frozen=True, slots=True)
class SimulatedPass:
    """The time of a pass, as `opmeter step` predicts it.

    metric  TPOT, TTFT or pass
    mode    eager or graph
    order   where the order of its calls is from"""

    metric: str
    mode: str
    order: str
    time: PassTime


@dataclass(frozen=True, slots=True)
class PredictedPass:
    """`narrow` is the command that writes the cases which narrow its time most."""

    phase: str
    title: str
    launches: tuple[PredictedLaunch, ...]
    simulated: SimulatedPass | None = None
    narrow: str = ""


@dataclass(frozen=True, slots=True)
class ModelSubject:
    """What a page is about: the model with its layout, and the version directory (`place`), or the
    device of a stack without a version."""

    name: str
    release: str
    place: str
    has_version: bool = True


def write_model(
    folder: Folder, subject: ModelSubject, passes: Sequence[PredictedPass]
) -> tuple[float, int]:
    """Write the page of a model; return the share of its known time that is from the database, and
    the number of launches of unknown time."""
    data = {
        "name": subject.name,
        "release": subject.release,
        "place": subject.place,
        "has_version": subject.has_version,
        "sources": list(SOURCES),
        "passes": [_pass(one) for one in passes],
    }
    rows = (
        [number, one.phase, *_cells(launch)]
        for number, one in enumerate(passes, 1)
        for launch in one.launches
    )
    title = f"{subject.name} · {subject.place}"
    folder.write(Page("index", "model", title, data, {"index": Table(_LAUNCHES, rows)}))
    every = [launch for one in passes for launch in one.launches]
    known_us = fsum(one.total_us for one in every if one.value_us is not None)
    unknown = sum(one.times for one in every if one.source == UNKNOWN)
    return known_us / (fsum(one.total_us for one in every) or 1.0), unknown


def _pass(one: PredictedPass) -> dict[str, Any]:
    known = [launch for launch in one.launches if launch.value_us is not None]
    kernels = _times(one.launches, lambda launch: launch.kernel_type)
    order = sorted(kernels, key=lambda name: (-fsum(kernels[name].values()), name))
    return {
        "phase": one.phase,
        "title": one.title,
        "times": _by_source(one.launches),
        "low_us": fsum(x.times * (x.low_us or x.value_us or 0.0) for x in known),
        "high_us": fsum(x.times * (x.high_us or x.value_us or 0.0) for x in known),
        "launches": sum(launch.times for launch in one.launches),
        "unknown": sum(launch.times for launch in one.launches if launch.source == UNKNOWN),
        "layers": _times(one.launches, lambda launch: launch.layer),
        "kernels": {name: kernels[name] for name in order[:_MOST_KERNELS]},
        "simulated": one.simulated and _simulated(one.simulated),
        "narrow": one.narrow,
        "rows": [short_row(_cells(x)) for x in sorted(one.launches, key=lambda x: -x.total_us)],
    }


def _simulated(one: SimulatedPass) -> dict[str, Any]:
    return {
        "metric": one.metric,
        "mode": one.mode,
        "order": one.order,
        "time_us": one.time.value_us,
        "low_us": one.time.low_us,
        "high_us": one.time.high_us,
        "parts": {cause.value: us for cause, us in one.time.parts.items()},
        "hidden_us": one.time.hidden_us,
    }


def _times(
    launches: Iterable[PredictedLaunch], name_of: Callable[[PredictedLaunch], str]
) -> dict[str, dict[str, float]]:
    """Return the time of each name, by source, in the order of first launch."""
    found: dict[str, list[PredictedLaunch]] = defaultdict(list)
    for one in launches:
        found[name_of(one)].append(one)
    return {name: _by_source(of) for name, of in found.items()}


def _by_source(launches: Iterable[PredictedLaunch]) -> dict[str, float]:
    times = dict.fromkeys(SOURCES, 0.0)
    for one in launches:
        times[one.source] += one.total_us
    return times


def _cells(x: PredictedLaunch) -> list[Any]:
    """Return the cells of a launch by _LAUNCHES, without its pass and phase."""
    return [
        *(x.layer, x.kernel_type, x.times, x.size, x.dtypes, x.value_us, x.low_us, x.high_us),
        *(
            x.channel,
            x.reason,
            "; ".join(x.warnings),
            x.estimate_us,
            x.source,
            x.total_us,
            x.least_us,
        ),
    ]
