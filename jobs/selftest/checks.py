"""The checks in the order in which they run: those that others depend on come first."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from collector.codec.errors import BadInput, OpmeterError
from collector.codec.text import counted
from collector.host.custom_operators import with_custom_opp
from collector.ops.registry import all_ops
from collector.ops.releases import why_unsupported
from collector.replay.custom_opp import mismatched_function
from collector.replay.resolved_calls import ResolvedCalls, resolve_calls
from jobs.doctor.machine import Check, check_machine
from jobs.doctor.npu import check_npus
from jobs.selftest import attribution, timing
from jobs.selftest.bench import Bench, check_long, check_marks, check_parser, check_profiler
from jobs.selftest.peaks import check_peaks

# The requirements of measuring, and the libraries of declared calls.

_NAMED = 5


def check_environment(backend: str) -> Check:
    """Run the checks of `opmeter doctor` for this machine, without a store."""
    return gathered([*check_machine(), *(check_npus() if backend == "npu" else ())])


def gathered(checks: Iterable[Check]) -> Check:
    """Return several checks as one, which names those that failed."""
    seen = list(checks)
    failed = [check for check in seen if not check.ok]
    found = "; ".join(f"{check.name}: {check.found}" for check in failed)
    fix = failed[0].fix if failed else ""
    words = f"{counted(len(seen), 'check')} of `opmeter doctor`"
    return Check("environment", not failed, found or words, fix)


def check_libraries(bench: Bench) -> Check:
    """Check which library has each declared call, in a separate process."""
    environment = {**os.environ, **with_custom_opp(os.environ, bench.stack.vllm)}
    unserved = (op.kernel for op in all_ops() if not op.npu.served)
    foreign = [kernel for kernel in unserved if mismatched_function(kernel, environment)]
    release = f"torch_npu-{bench.stack.torch_npu}"
    return verdict_on_libraries(resolve_calls(), release, foreign)


def verdict_on_libraries(
    resolved: ResolvedCalls, release: str, foreign: Sequence[str] = ()
) -> Check:
    """Return the verdict on the libraries.

    `foreign` kernels have functions of the custom OPP with other arguments, which sessions refuse.
    A call that torch or torch_npu lacks is a failure, unless this release is known to lack it; only
    some operators require those of vLLM-Ascend."""
    away = [call for call in resolved.calls if call.lacks and call.library != "vllm-ascend"]
    lacking = [call for call in away if not why_unsupported(call.kernel, release)]
    known = len(away) - len(lacking)
    there = [call.library for call in resolved.calls if not call.lacks]
    counts = ", ".join(f"{there.count(name)} of {name}" for name in sorted(set(there)))
    words = f"calls found: {counts}"
    if known:
        words += f"; {known} more are not in {release}, a known gap"
    if resolved.in_both:
        names = ", ".join(resolved.in_both[:_NAMED])
        words += f"; CANN and the custom OPP both have {names}: the custom OPP is used"
    if foreign:
        words += f"; it has other arguments for {', '.join(foreign[:_NAMED])}: not measured"
    if not lacking:
        return Check("libraries", True, words)
    named = ", ".join(f"{call.kernel} ({call.call})" for call in lacking[:_NAMED])
    more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
    fix = (
        "these kernels cannot be measured on this release: use another torch_npu, or leave them out"
    )
    return Check("libraries", False, f"not found: {named}{more}", fix)


# All checks.

SelfCheck = Callable[[Bench], Check]
ENVIRONMENT, _PROFILE = "environment", "profile"
CHECKS: Mapping[str, SelfCheck] = MappingProxyType(
    {
        ENVIRONMENT: lambda bench: check_environment(bench.backend),
        "libraries": check_libraries,
        "profiler": check_profiler,
        "parser": check_parser,
        "marks": check_marks,
        "long": check_long,
        "attribution": attribution.check_attribution,
        "failures": attribution.check_failures,
        "operators": attribution.check_operators,
        "layouts": attribution.check_layouts,
        "outputs": attribution.check_reference_outputs,
        "physics": timing.check_physics,
        "peaks": check_peaks,
        "cache": timing.check_cache_effect,
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
    return _in_turn(bench, only or tuple(CHECKS), profile)


def _in_turn(bench: Bench, names: Sequence[str], profile: Path | None) -> Iterator[Check]:
    """Yield the verdicts. What fails on a machine that is not fit to measure follows from that."""
    is_fit = True
    for name in names:
        check = _verdict(bench, name, profile)
        if not check.ok and not is_fit:
            words = f"not passed: follows from `{ENVIRONMENT}` ({check.found})"
            check = Check(name, True, words, skipped=True)
        is_fit = is_fit and (check.ok or name != ENVIRONMENT)
        yield check


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
