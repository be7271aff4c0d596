"""Checks of the requirements of measuring, and of the libraries of declared calls."""

import os
from collections.abc import Iterable, Sequence

from collector.codec.text import counted
from collector.host.cann import with_custom_opp
from collector.ops.registry import all_ops
from collector.ops.releases import why_unsupported
from collector.replay.calls import mismatched_function
from collector.replay.resolved_calls import ResolvedCalls, resolve_calls
from jobs.doctor.machine import Check, check_machine
from jobs.doctor.npu import check_npus
from jobs.selftest.bench import Bench

_NAMED = 5
# Sessions and `libraries` find the same faults, with better messages.
_CHECKED_ELSEWHERE = frozenset({"torch_npu"})


def check_environment(bench: Bench) -> Check:
    """Run the checks of `opmeter doctor` for this machine, without a store."""
    checks = [*check_machine(), *(check_npus() if bench.backend == "npu" else ())]
    return gathered(check for check in checks if check.name not in _CHECKED_ELSEWHERE)


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
