"""Sessions of a check: they belong to no campaign, and their measurements enter no database."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from collector.codec.errors import OpmeterError
from collector.model.measurement import Provenance
from collector.model.plan import Limits, MeasureSettings
from collector.model.record import CaseRecord
from collector.model.stack import Runtime, Stack
from collector.ops.references import REFERENCES, reference_record
from collector.ops.registry import find_operator
from collector.replay.results import SessionResult, collect_session
from collector.replay.spec import DEFAULT_CATALOG, SessionCase, SessionSpec
from collector.replay.supervisor import SessionReport, run_session, why_it_ended

_LIMIT_S = 120.0
_NOWHERE = Provenance(
    "check", 0, "", 0, "check", "0", 0, "", "here", None, 0, Runtime.REAL, None, "", None
)


def check_spec(
    backend: str,
    device: int,
    records: Iterable[CaseRecord],
    measure: MeasureSettings,
    *,
    limits: Limits | None = None,
    catalog: str = DEFAULT_CATALOG,
    stack: Stack | None = None,
) -> SessionSpec:
    """Return the specification of a session that measures these cases, none of which has a
    forecast."""
    return SessionSpec(
        backend=backend,
        device=device,
        cases=tuple(SessionCase(record, 1.0, _LIMIT_S) for record in records),
        measure=measure,
        limits=limits or Limits(),
        catalog=catalog,
        stack=stack,
    )


def check_result(spec: SessionSpec, folder: Path, report: SessionReport) -> SessionResult:
    """Return the results of a session from its records."""
    return collect_session(spec, folder, report, _NOWHERE)


# Test whether the devices of one machine disturb each other when they measure at the same time.
#
# A dozen reference cases run alone on one device, then on all of them at once. The increase of that
# device's durations is caused by the others: power, memory or links that they share, or a host that
# launches too slowly.

_REPEATS = 30

Medians = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Interference:
    """One reference case: its median alone and concurrently with the other devices, in
    microseconds."""

    case: str
    alone_us: float
    together_us: float

    @property
    def slowdown(self) -> float:
        """Return the relative increase: 0.05 for 5 % longer."""
        return self.together_us / self.alone_us - 1


def concurrency_test(
    backend: str, devices: Sequence[int], scratch: Path, limits: Limits, *, repeats: int = _REPEATS
) -> list[Interference]:
    """Return the effect of the other devices on the first one, the largest slowdown first.

    Raises OpmeterError if too few cases were measured."""

    records = [
        reference_record(*shapes) for shapes in REFERENCES if find_operator(shapes[0]) is not None
    ]

    def measure(device: int, round_name: str) -> Medians:
        folder = scratch / f"{round_name}_{device}"
        folder.mkdir(parents=True)
        settings = MeasureSettings(repeat_count=repeats)
        spec = check_spec(backend, device, records, settings, limits=limits)
        return _medians(spec, folder)

    return compare_devices(measure, devices)


def compare_devices(
    measure: Callable[[int, str], Medians], devices: Sequence[int]
) -> list[Interference]:
    """Measure on the first device alone, then on all at once; `measure` returns medians by case."""
    first = devices[0]
    alone = measure(first, "alone")
    with ThreadPoolExecutor(len(devices)) as pool:
        rounds = {device: pool.submit(measure, device, "together") for device in devices}
        together = {device: future.result() for device, future in rounds.items()}
    found = [
        Interference(case, us, together[first][case])
        for case, us in alone.items()
        if case in together[first]
    ]
    if not found:
        raise OpmeterError(
            f"device {first}: no reference case was measured both alone and "
            "concurrently with the others"
        )
    return sorted(found, key=lambda case: case.slowdown, reverse=True)


def _medians(spec: SessionSpec, folder: Path) -> Medians:
    report = run_session(spec, folder)
    result = check_result(spec, folder, report)
    if not result.began:
        raise OpmeterError(f"device {spec.device}: {why_it_ended(report, began=False)}")
    names = {case.record.case_id: case.record.case.describe() for case in spec.cases}
    # The runtime chooses the same kernel for a case in both rounds.
    return {
        names[m.asked or m.case_id]: m.timing.median_us
        for m in result.measurements
        if m.timing is not None
    }
