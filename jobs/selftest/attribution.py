"""Checks that durations are attributed to the right cases, despite concurrent work and crashes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from math import inf
from statistics import median

from collector.codec.text import counted
from collector.model.measurement import UNMEASURABLE, Measurement, Outcome, Proof
from collector.model.record import CaseRecord, read_table
from collector.model.stack import Runtime
from collector.ops.references import (
    addition,
    decode_attention,
    multiplication,
    of_the_ai_cpu,
    reference_record,
)
from collector.ops.refusals import refusal
from collector.ops.registry import find_operator
from collector.quality.gates import OUTLIERS, OUTPUTS, gate_of_outcome
from jobs.doctor.machine import Check
from jobs.selftest.bench import Bench, Session, SessionRequest, unmeasured

_CATALOG = "jobs.selftest.failing_operators"
_SIZES, _ROUNDS = (64, 4096, 65536), 4
_KEYS = 512  # keys of its decode step; no other check uses this length
# Largest relative deviation of a reading from others of its size. A CPU also runs other processes.
_TOLERANCE = {"npu": 0.25, "cuda": 0.25, "cpu": inf}
_FAILURES = (
    (None, Outcome.OK),
    ("OpmeterTooLarge", Outcome.OOM),
    ("OpmeterBadArgument", Outcome.FAILED),
    (None, Outcome.OK),
    ("OpmeterKilled", Outcome.CRASHED),
)


def check_attribution(bench: Bench) -> Check:
    """Measure three sizes of one kernel in turn, with an AI CPU kernel and a busy stream.

    The cases also include a kernel of both cores."""
    sums = tuple(addition(rows) for _ in range(_ROUNDS) for rows in _SIZES)
    records = (
        *(*sums, of_the_ai_cpu(bench.backend), decode_attention(_KEYS)),
        multiplication(512),  # by `failing_operators`, with a busy stream
    )
    session = bench.session(SessionRequest("interleaved", records, catalog=_CATALOG))
    # Whose launches they are does not depend on how far apart their durations are.
    fault = unmeasured(session, len(records), but=OUTLIERS)
    if not fault:
        times = [m.timing.median_us for m in session.results if m.timing]
        fault = _mixed(times[: len(sums)], _TOLERANCE[bench.backend])
    found = f"{len(sums)} cases in turn, a second stream busy: each has its own launches"
    fix = "durations would be recorded for other cases: do not measure, report an issue"
    return Check("attribution", not fault, fault or found, fix)


def check_failures(bench: Bench) -> Check:
    """Check that out of memory, a bad argument and a kill are outcomes of their own case."""
    records = tuple(_failing(kernel, number) for number, (kernel, _) in enumerate(_FAILURES))
    session = bench.session(SessionRequest("failures", records, catalog=_CATALOG))
    expected = {record.case_id: o for record, (_, o) in zip(records, _FAILURES, strict=True)}
    measurements = {m.case_id: m for m in session.results}
    wrong = [m for case, m in measurements.items() if m.outcome is not expected[case]]
    # Records of good cases may be lost with the session: those cases are measured again.
    silent = [o for case, o in expected.items() if o is not Outcome.OK and case not in measurements]
    words = [f"{m.kernel_type}: expected {expected[m.case_id]}, got {m.outcome}" for m in wrong]
    words += [f"no case ended as {outcome}" for outcome in silent]
    found = "oom, a bad argument and a killed session: each is the outcome of its own case"
    return Check(
        "failures",
        not words,
        "; ".join(words) or found,
        "report an issue, with the report attached",
    )


def _failing(kernel: str | None, number: int) -> CaseRecord:
    shape = f"{8 + number},64"
    if kernel is None:
        return addition(8 + number)
    return reference_record(kernel, f"{shape};{shape}", shape, "FLOAT")


def _mixed(times: list[float], tolerance: float) -> str:
    """Return the fault in the times of several sizes measured in turn; empty without a fault.

    Times of one size must agree, and the largest size must take longer than the smallest."""
    of_size = [times[i :: len(_SIZES)] for i in range(len(_SIZES))]
    middles = [median(own) for own in of_size]
    for rows, own, middle in zip(_SIZES, of_size, middles, strict=True):
        worst = max(own) if max(own) - middle > middle - min(own) else min(own)
        if abs(worst - middle) > tolerance * middle:
            return (
                f"a sum of {rows} rows took {worst:.3f} us once, and {middle:.3f} us in the median"
            )
    shortest, longest = middles[0], middles[-1]
    if longest <= shortest:
        return f"{_SIZES[-1]} rows take {longest:.3f} us, and {_SIZES[0]} take {shortest:.3f} us"
    return ""


# Checks that the requested kernel ran: one row of every operator, and layouts of NPUs.

_REPEATS = 3
_MOST_SESSIONS = 12  # each operator that ends a session costs one more
_NAMED = 3
_NOT_HERE = UNMEASURABLE  # a required package is not installed


def check_operators(bench: Bench) -> Check:
    """Check that one row of every operator is measured.

    On an NPU, no other kernel may run in its place."""
    measurements = _measurements(bench)
    twins = _ran_as_twins(_sessions(bench))
    fine = (Outcome.OK, Outcome.GATED, *_NOT_HERE)
    wrong = [m for m in measurements if m.outcome not in fine and m.case_id not in twins]
    found = _summary(measurements, len(twins))
    if wrong:
        named = "; ".join(f"{m.kernel_type}: {m.outcome}, {m.reason}" for m in wrong[:_NAMED])
        more = f"; and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        found = f"{named}{more}"
    fix = "leave these kernels out of campaigns (operators:), and report an issue with the report"
    return Check("operators", not wrong, found, fix)


def check_layouts(bench: Bench) -> Check:
    """Check that weights in FRACTAL_NZ and packed scales reach the kernel unchanged."""
    records = packaged_rows("layouts")
    session = bench.session(SessionRequest("layouts", records, repeats=_REPEATS))
    bad = [m for m in session.results if m.identity is not Proof.PROVED]
    if len(session.results) < len(records):
        bad_words = f"{len(session.results)} of {len(records)} rows are measured"
    else:
        bad_words = "; ".join(f"{m.kernel_type}: {_measurements_of(m)}" for m in bad[:_NAMED])
    found = f"{counted(len(records), 'row')} in FRACTAL_NZ or with packed scales, all proved"
    fix = "durations of these weights are those of another layout: leave quantised rows out"
    return Check("layouts", not bad_words, bad_words or found, fix)


def check_reference_outputs(bench: Bench) -> Check:
    """Check that the outputs of all operators are finite and equal to the reference."""
    if {session.runtime for session in _sessions(bench)} != {Runtime.REAL}:
        return Check("outputs", True, "this runtime computes nothing", skipped=True)
    return verdict_on_outputs(_measurements(bench))


def verdict_on_outputs(measurements: Sequence[Measurement]) -> Check:
    """Return the verdict on measurements whose outputs were checked."""
    refused = ((m, gate_of_outcome(m.outcome, m.reason)) for m in measurements)
    bad = [(m, m.reason) for m, gate in refused if gate == OUTPUTS]
    bad += [(m, w) for m in measurements for w in m.warnings if "away from the reference" in w]
    named = "; ".join(f"{m.kernel_type}: {words}" for m, words in bad[:_NAMED])
    seen = sum(m.outcome is Outcome.OK for m in measurements)
    found = f"outputs of {counted(seen, 'operator')} are finite and close to their references"
    fix = "a kernel computes something else than declared: report an issue, with the report"
    return Check("outputs", not bad, named or found, fix)


def proved(sessions: Iterable[Session]) -> list[str]:
    """Return the kernel types that are proved, by their tensors, to be the requested ones."""
    measurements = (m for session in sessions for m in session.results)
    return sorted({m.kernel_type for m in measurements if m.is_good and m.identity is Proof.PROVED})


@cache
def packaged_rows(name: str) -> tuple[CaseRecord, ...]:
    """Return a table of rows that is part of the package."""
    path = files("collector") / "data" / "selftest" / f"{name}.csv"
    return tuple(read_table(path.read_bytes(), path=f"{name}.csv"))


def _measurements(bench: Bench) -> list[Measurement]:
    return [m for session in _sessions(bench) for m in session.results]


def _sessions(bench: Bench) -> list[Session]:
    """Return sessions over the rows that this backend replays.

    It is one session, and another for the remaining rows each time that an operator ends it."""
    todo = [
        r
        for r in packaged_rows("operators")
        if refusal(r.case, find_operator, bench.backend) is None
    ]
    sessions: list[Session] = []
    while todo and len(sessions) < _MOST_SESSIONS:
        name = f"operators-{len(sessions)}"
        sessions.append(bench.session(SessionRequest(name, tuple(todo), repeats=_REPEATS)))
        measured = {m.case_id for m in sessions[-1].results}
        left = [record for record in todo if record.case_id not in measured]
        todo = left if len(left) < len(todo) else []
    return sessions


def _ran_as_twins(sessions: Iterable[Session]) -> set[str]:
    """Return the rows for which the runtime chose another kernel of the same call.

    This is allowed if all tensors were recorded; the duration is filed under the kernel that ran.
    """
    filed = (m for session in sessions for m in session.result.measurements if m.is_filed)
    requested = {record.case_id: record.kernel_type for record in packaged_rows("operators")}
    return {
        m.asked
        for m in filed
        if m.is_good
        and m.asked in requested
        and (op := find_operator(requested[m.asked])) is not None
        and m.kernel_type in op.twins
        and m.identity is not Proof.UNVERIFIED
    }


def _summary(measurements: Sequence[Measurement], twins: int) -> str:
    good = [m for m in measurements if m.timing is not None]
    counts = Counter(m.identity.value for m in good if m.identity)
    words = [f"{counted(len(good), 'operator')} measured"]
    words += [f"{count} {proof}" for proof, count in sorted(counts.items())]
    words += [f"{twins} measured as a twin"] if twins else []
    lacking = sum(m.outcome in _NOT_HERE for m in measurements)
    return ", ".join(words) + (
        f"; {lacking} require packages that are not installed" if lacking else ""
    )


def _measurements_of(m: Measurement) -> str:
    return f"{m.outcome}, {m.reason}" if m.reason else f"identity {m.identity or 'not recorded'}"
