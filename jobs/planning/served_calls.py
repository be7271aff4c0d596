"""The times of a call of an engine that serves requests, as `opmeter step` has them: those of a
pass with this call alone."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import fsum

from collector.report.model_pages import SOURCES
from collector.timeline.call_graph import NO_WORK, Cause, Quantity
from jobs.planning.step_time import BudgetRow, Ends, KnownLaunch, TimedPass, budget_of

ASSUMED = "assumed"  # copies and waits
DEVICE_SOURCES = (*SOURCES, ASSUMED)


@dataclass(frozen=True, slots=True)
class ServedCall:
    """The times of a call in us, of the host and of the device; `source` is where most of the
    latter is from. `device` are the quantities that it consists of, `launches` those of kernels and
    messages."""

    host_us: Ends
    device_us: Ends
    source: str
    device: tuple[Quantity, ...] = ()
    launches: Mapping[Quantity, KnownLaunch] = field(default_factory=dict)


def served_call(one: TimedPass) -> ServedCall:
    """Return the times of the only call of a pass, with all its kernels."""
    found = [one.graph.quantities[row] for row in one.graph.rows if row != NO_WORK]
    host = [each for each in found if each.cause is Cause.HOST]
    device = [each for each in found if each.cause is not Cause.HOST]

    def ends(quantities: list[Quantity]) -> Ends:
        value_us, low_us, high_us = (
            fsum(getattr(each, name) for each in quantities)
            for name in ("value_us", "low_us", "high_us")
        )
        return value_us, low_us, high_us

    longest = max(one.launches, key=lambda each: each.value_us, default=None)
    source = ASSUMED if longest is None else one.launches[longest].predicted.source
    return ServedCall(ends(host), ends(device), source, tuple(device), one.launches)


def device_budget(calls: Iterable[tuple[ServedCall, int]]) -> tuple[BudgetRow, ...]:
    """Return what makes the time of the device in calls wide, each of which ran so many times."""
    times: Counter[Quantity] = Counter()
    launches: dict[Quantity, KnownLaunch] = {}
    same: dict[str, Quantity] = {}  # calls of one case, whose attributes need not be equal
    for call, count in calls:
        for quantity in call.device:
            launch = call.launches.get(quantity)
            record = launch.launch.record if launch else None
            one = quantity if record is None else same.setdefault(record.case_id, quantity)
            times[one] += count
            if launch is not None:
                launches[one] = launch
    found = {one: count * (one.high_us - one.low_us) for one, count in times.items()}
    return budget_of(found, times, launches)
