"""Whether numbers go to the cases they belong to, whatever runs beside them or dies among them."""

from dataclasses import replace
from math import inf
from statistics import median

from collector.measurement import Outcome
from collector.ops.references import reference_record
from collector.record import CaseRecord
from collector.vocabulary import ACCELERATOR_CORE, AI_CPU
from jobs.doctor.machine import Check
from jobs.selftest.bench import Bench, Wanted
from jobs.selftest.decoding import decoding_case
from jobs.selftest.recording import adding, unmeasured

_CATALOG = "jobs.selftest.failing_operators"
_SIZES, _ROUNDS = (64, 4096, 65536), 4
_KEYS = 512  # of its decode step, which no other check has at this length
# Of one size: how far a reading may lie from the others. A cpu does other things too.
_TOLERANCE = {"npu": 0.25, "cuda": 0.25, "cpu": inf}
_FAILURES = (
    (None, Outcome.OK),
    ("OpmeterTooLarge", Outcome.OOM),
    ("OpmeterBadArgument", Outcome.FAILED),
    (None, Outcome.OK),
    ("OpmeterKilled", Outcome.CRASHED),
)


def check_attribution(bench: Bench) -> Check:
    """Three sizes of one kernel by turns, a kernel of the AI CPU, one of both cores, and one
    beside which another stream is busy."""
    sums = tuple(adding(rows) for _ in range(_ROUNDS) for rows in _SIZES)
    beside = reference_record("Mul", "512,64;512,64", "512,64", "FLOAT")
    records = (*sums, _of_the_ai_cpu(bench.backend), decoding_case(_KEYS), beside)
    session = bench.session(Wanted("interleaved", records, catalog=_CATALOG))
    fault = unmeasured(session, len(records))
    if not fault:
        times = [m.timing.median_us for m in session.answers if m.timing]
        fault = _mixed(times[: len(sums)], _TOLERANCE[bench.backend])
    found = f"{len(sums)} cases in turn, a second stream busy: each has its own launches"
    fix = "durations would be recorded for other cases: do not measure, report an issue"
    return Check("attribution", not fault, fault or found, fix)


def check_failures(bench: Bench) -> Check:
    """Too little memory, a bad argument and a kill: each is the answer of its own case."""
    records = tuple(_failing(kernel, number) for number, (kernel, _) in enumerate(_FAILURES))
    session = bench.session(Wanted("failures", records, catalog=_CATALOG))
    wanted = {record.case_id: o for record, (_, o) in zip(records, _FAILURES, strict=True)}
    told = {m.case_id: m for m in session.answers}
    wrong = [m for case, m in told.items() if m.outcome is not wanted[case]]
    # What was recorded of good cases may die with the session: those are measured again.
    silent = [o for case, o in wanted.items() if o is not Outcome.OK and case not in told]
    words = [f"{m.kernel_type}: expected {wanted[m.case_id]}, got {m.outcome}" for m in wrong]
    words += [f"no case ended as {outcome}" for outcome in silent]
    found = "oom, a bad argument and a killed session: each is the outcome of its own case"
    return Check(
        "failures",
        not words,
        "; ".join(words) or found,
        "report an issue, with the report attached",
    )


def _of_the_ai_cpu(backend: str) -> CaseRecord:
    """A difference of DOUBLE: no core of A2 and A3 has it, so that CANN launches the AI CPU's
    kernel of the same type (ops-math, sub.cpp). Elsewhere it is a case like any other."""
    record = reference_record("Sub", "32,64;32,64", "32,64", "DOUBLE")
    core = {ACCELERATOR_CORE: AI_CPU} if backend == "npu" else {}
    return replace(record, cells={**record.cells, **core})


def _failing(kernel: str | None, number: int) -> CaseRecord:
    shape = f"{8 + number},64"
    if kernel is None:
        return adding(8 + number)
    return reference_record(kernel, f"{shape};{shape}", shape, "FLOAT")


def _mixed(times: list[float], tolerance: float) -> str:
    """What is wrong with the times of several sizes by turns: those of one size agree, and the
    largest takes longer than the smallest."""
    of_size = [times[i :: len(_SIZES)] for i in range(len(_SIZES))]
    middles = [median(own) for own in of_size]
    for rows, own, middle in zip(_SIZES, of_size, middles, strict=True):
        worst = max(own) if max(own) - middle > middle - min(own) else min(own)
        if abs(worst - middle) > tolerance * middle:
            return f"Add of {rows} rows took {worst:.3f} us once, and {middle:.3f} us otherwise"
    shortest, longest = middles[0], middles[-1]
    if longest <= shortest:
        return f"{_SIZES[-1]} rows take {longest:.3f} us, and {_SIZES[0]} take {shortest:.3f} us"
    return ""
