"""Whether the devices of one machine disturb each other when they measure at the same time.

A dozen reference cases run alone on one device, then on all of them at once. What that device
takes longer then is what its neighbours cost it: power, memory or links that they share, or a host
that launches too slowly.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from collector.errors import OpmeterError
from collector.ops.references import REFERENCES, reference_record
from collector.ops.registry import find
from collector.plan import Limits, MeasureSettings
from collector.replay.check_session import check_result, check_spec
from collector.replay.spec import SessionSpec
from collector.replay.supervisor import run_session, why_it_ended

_REPEATS = 30

Medians = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One reference case: its median alone, and with the neighbours at work, in microseconds."""

    case: str
    alone_us: float
    together_us: float

    @property
    def slowdown(self) -> float:
        """0.05 where it takes 5 % longer together."""
        return self.together_us / self.alone_us - 1


def concurrency_test(
    backend: str, devices: Sequence[int], scratch: Path, limits: Limits, *, repeats: int = _REPEATS
) -> list[Disturbance]:
    """What the other devices cost the first one, the largest slowdown first.

    Raises OpmeterError where too little could be measured to tell.
    """

    def measure(device: int, round_name: str) -> Medians:
        folder = scratch / f"{round_name}_{device}"
        folder.mkdir(parents=True)
        return _medians(_session(backend, device, limits, repeats), folder)

    return compare(measure, devices)


def compare(measure: Callable[[int, str], Medians], devices: Sequence[int]) -> list[Disturbance]:
    """The first device alone, then all at once; `measure` gives medians by case."""
    first = devices[0]
    alone = measure(first, "alone")
    with ThreadPoolExecutor(len(devices)) as pool:
        rounds = {device: pool.submit(measure, device, "together") for device in devices}
        together = {device: future.result() for device, future in rounds.items()}
    found = [
        Disturbance(case, us, together[first][case])
        for case, us in alone.items()
        if case in together[first]
    ]
    if not found:
        raise OpmeterError(
            f"device {first}: no reference case was measured both alone and "
            "concurrently with the others"
        )
    return sorted(found, key=lambda case: case.slowdown, reverse=True)


def _session(backend: str, device: int, limits: Limits, repeats: int) -> SessionSpec:
    records = [reference_record(*shapes) for shapes in REFERENCES if find(shapes[0]) is not None]
    measure = MeasureSettings(repeat_count=repeats)
    return check_spec(backend, device, records, measure, limits=limits)


def _medians(spec: SessionSpec, folder: Path) -> Medians:
    report = run_session(spec, folder)
    result = check_result(spec, folder, report)
    if not result.began:
        raise OpmeterError(f"device {spec.device}: {why_it_ended(report, began=False)}")
    names = {case.record.case_id: case.record.case.describe() for case in spec.cases}
    # Whatever kernel the runtime chose for a case, it is the same one in both rounds.
    return {
        names[m.asked or m.case_id]: m.timing.median_us
        for m in result.measurements
        if m.timing is not None
    }
