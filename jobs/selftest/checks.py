"""The checks in the order in which they run: those that others depend on come first."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from collector.codec.errors import BadInput, OpmeterError
from jobs.doctor.machine import Check
from jobs.selftest import attribution, timing
from jobs.selftest.bench import Bench, check_long, check_marks, check_parser, check_profiler
from jobs.selftest.environment import check_environment, check_libraries
from jobs.selftest.peaks import check_peaks

SelfCheck = Callable[[Bench], Check]
_PROFILE = "profile"
CHECKS: Mapping[str, SelfCheck] = MappingProxyType(
    {
        "environment": check_environment,
        "libraries": check_libraries,
        "profiler": check_profiler,
        "parser": check_parser,
        "marks": check_marks,
        "long": check_long,
        "attribution": attribution.check_attribution,
        "failures": attribution.check_failures,
        "operators": attribution.check_operators,
        "layouts": attribution.check_layouts,
        "outputs": attribution.check_outputs,
        "physics": timing.check_physics,
        "peaks": check_peaks,
        "cache": timing.check_cache,
        "lengths": timing.check_lengths,
        "sessions": timing.check_sessions,
        _PROFILE: partial(timing.check_profile, profile=None),
    }
)
# Checks of parts that a CPU or a GPU lacks: msprof, task ids, formats, libraries of CANN.
OF_NPUS = frozenset({"libraries", "parser", "long", "layouts"})
_OF_CPUS = frozenset({"peaks"})  # peaks of other devices are published


def run_checks(
    bench: Bench, *, only: tuple[str, ...] = (), profile: Path | None = None
) -> Iterator[Check]:
    """Yield the verdict of each check as it is available. Raise BadInput for an unknown name."""
    if unknown := [name for name in only if name not in CHECKS]:
        raise BadInput(f"--only: expected one of {', '.join(CHECKS)}, got {unknown[0]!r}")
    return (_verdict(bench, name, profile) for name in only or CHECKS)


def _verdict(bench: Bench, name: str, profile: Path | None) -> Check:
    if name in OF_NPUS and bench.backend != "npu":
        return Check(name, True, f"does not apply to {bench.backend}", skipped=True)
    if name in _OF_CPUS and bench.backend != "cpu":
        return Check(name, True, f"the peaks of {bench.backend} are published", skipped=True)
    check = partial(timing.check_profile, profile=profile) if name == _PROFILE else CHECKS[name]
    try:
        return check(bench)
    except OpmeterError as error:
        words = " ".join(str(error).split())
        return Check(name, False, words, "the report contains the log of its session")
