"""The quality of a version's numbers: which of its durations are usable, their warnings, how far
its sessions and devices differ, the coverage and the width of its intervals, and what is not shown.

Every count of durations with a warning, and every row that names its warnings, comes from
`warnings_of_durations`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from math import expm1, log1p

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.errors import BadInput
from collector.database.curves import Envelope, cases_of, envelope_of
from collector.database.intervals import (
    CaseInterval,
    VersionEvidence,
    VersionIntervals,
    blind_pairs,
    evidence_of_versions,
    joint_intervals,
)
from collector.database.query import best_rows
from collector.database.state import TEXT, State
from collector.model.case import Case
from collector.model.measurement import IMPORTED, Outcome
from collector.model.row import value_of
from collector.quality.canaries import DeviceFactor, device_factors
from collector.quality.gates import (
    ENVELOPE,
    gate_of_outcome,
    gate_of_warning,
    is_of_disturbed_session,
    is_of_repeats,
    warnings_cell,
)
from collector.quality.pooled import (
    Coverage,
    SessionDifferences,
    coverage_of_intervals,
    session_differences,
)
from collector.quality.precision import sessions_to_narrow
from collector.quality.variance_parts import Origin
from collector.ranks.collective import collective_case_of, is_collective

WIDTHS = (0.02, 0.05, 0.10)


def warnings_of_durations(good: pa.Table, envelope: Envelope) -> dict[str, frozenset[str]]:
    """Return the gates that warn of the durations that a version directory shows, by case; cases
    without a warning are left out.

    `good` are the shown measurements, with the warnings of suspect sessions (`best_rows`), and
    `envelope` is that of the shown durations."""
    warned = good.filter(pc.not_equal(good["warnings"], ""))
    texts = zip(warned["case"].to_pylist(), warned["warnings"].to_pylist(), strict=True)
    found = {
        case: frozenset(map(gate_of_warning, value_of("warnings", text))) for case, text in texts
    }
    for one in envelope.above:
        case = one.case.case_id
        found[case] = found.get(case, frozenset()) | {ENVELOPE}
    return found


@dataclass(frozen=True, slots=True)
class VersionQuality:
    """The quality of one version directory.

    The durations, of which some are of collectives, are counted by their number of sessions
    (`of_several_sessions`; none for `imported` ones), by the main source of their variance
    (`origins`), by having a warning (`warned`), and by how well records prove what ran, if the
    profiler reports it (`proofs`). `median_reach` is the median half-width of the intervals,
    `wider` the share of intervals with a half-width above each of WIDTHS. By gate, `refused` counts
    the withheld cases, and `suspect` the durations with a warning; a duration may have several.
    `sessions`, `devices` and `reliability` are those of kernels alone: collectives have another
    model. `reliability` is computed from second sessions that were chosen blindly (`is_blind`), or
    from all second sessions if there are none."""

    version_path: str
    durations: int
    collectives: int
    of_several_sessions: int
    imported: int
    sessions: SessionDifferences | None  # pairs of sessions on one device
    devices: SessionDifferences | None  # pairs of sessions on two devices
    reliability: tuple[Coverage, ...]
    is_blind: bool
    median_reach: float
    wider: tuple[float, ...]
    origins: Mapping[str, int]
    warned: int
    refused: Mapping[str, int]
    suspect: Mapping[str, int]
    canaries: tuple[DeviceFactor, ...]  # how fast each device was, the slowest first
    proofs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ShownVersion:
    """The shown data of a version directory: the best measurement of each case, with a column
    `good`, and the intervals of the good ones. `cases` are its records, sorted by id. `evidence` is
    that of its kernels, `of_collectives` that of its collectives. `mean_us` are the shown
    durations, by case: the mean over a case's sessions, if there is one; `warnings` are the gates
    that warn of them."""

    path: str
    cases: pa.Table
    best: pa.Table
    intervals: VersionIntervals
    evidence: VersionEvidence
    of_collectives: VersionEvidence
    mean_us: Mapping[str, float]
    envelope: Envelope
    warnings: Mapping[str, frozenset[str]]


def shown_version(state: State, path: str, *, cache: str | None = None) -> ShownVersion:
    """Return the shown data of one version directory of the state; with `cache`, of measurements in
    that state of the caches."""
    evidence = evidence_of_versions(state)[path]
    over_ranks = evidence_of_versions(state, collectives=True)[path]
    return _shown(state, path, evidence, over_ranks, cache)


def shown_versions(state: State) -> Iterator[ShownVersion]:
    """Yield the shown data of each version directory, in order."""
    over_ranks = evidence_of_versions(state, collectives=True)
    for path, evidence in sorted(evidence_of_versions(state).items()):
        yield _shown(state, path, evidence, over_ranks[path], None)


def _shown(
    state: State,
    path: str,
    evidence: VersionEvidence,
    over_ranks: VersionEvidence,
    cache: str | None,
) -> ShownVersion:
    found = joint_intervals(evidence, over_ranks)
    best = best_rows(state, path, cache=cache, suspects=found.suspects, faults=found.faults)
    cases = state.cases.filter(pc.equal(state.cases["version_path"], path))
    good = best.filter(best["good"])
    rows = zip(*(good[n].to_pylist() for n in ("case", "measurement", "mean_us")), strict=True)
    mean_us = {
        case: float(own_us) if (known := found.of.get(name)) is None else known.mean_us
        for case, name, own_us in rows
    }
    of_tools = zip(good["case"].to_pylist(), good["timed_by"].to_pylist(), strict=True)
    measured_us = {case: mean_us[case] for case, by in of_tools if by != IMPORTED}
    envelope = envelope_of(cases, measured_us, state.versions[path].shown_stack.device)
    warnings = warnings_of_durations(good, envelope)
    return ShownVersion(path, cases, best, found, evidence, over_ranks, mean_us, envelope, warnings)


def quality_of(version: ShownVersion) -> VersionQuality:
    """Return the quality of one version directory."""
    best, intervals, evidence = version.best, version.intervals, version.evidence
    good = best.filter(best["good"])
    known = (intervals.of.get(measurement) for measurement in good["measurement"].to_pylist())
    shown = [one for one in known if one is not None]
    reaches = np.array([expm1(one.reach) for one in shown])
    pairs, blind = evidence.evidence.pairs, blind_pairs(evidence)
    of_collectives = pa.concat_arrays(
        [
            rows["measurement"].combine_chunks()
            for rows in (version.of_collectives.rows, version.of_collectives.imported)
        ]
    )
    outcomes = zip(best["outcome"].to_pylist(), best["reason"].to_pylist(), strict=True)
    gates = (gate_of_outcome(Outcome(outcome), reason) for outcome, reason in outcomes)
    return VersionQuality(
        version_path=version.path,
        durations=good.num_rows,
        collectives=pc.sum(pc.is_in(good["measurement"], value_set=of_collectives)).as_py() or 0,
        of_several_sessions=sum(one.sessions > 1 for one in shown),
        imported=sum(not one.sessions for one in shown),
        sessions=session_differences(pairs.only(pairs.is_same_device)),
        devices=session_differences(pairs.only(~pairs.is_same_device)),
        reliability=tuple(
            coverage_of_intervals(evidence.evidence, evidence.prior, blind if len(blind) else pairs)
        ),
        is_blind=len(blind) > 0,
        median_reach=float(np.median(reaches)) if len(reaches) else 0.0,
        wider=tuple(float(np.mean(reaches > w)) if len(reaches) else 0.0 for w in WIDTHS),
        origins=Counter(one.variance for one in shown),
        warned=len(version.warnings),
        refused=Counter(filter(None, gates)),
        suspect=Counter(gate for gates in version.warnings.values() for gate in gates),
        canaries=tuple(device_factors(evidence.canaries, evidence.prior)),
        proofs=Counter(filter(None, good["identity"].to_pylist())),
    )


TOLERANCE = 0.10  # of a duration that is used, unless another one is requested


class Need(StrEnum):
    """What a duration needs before it is usable: the first of these that applies."""

    MEASUREMENT = "a measurement of its own"  # it is imported
    UNDISTURBED = "an undisturbed machine"  # its session was disturbed, or the device changed
    STEADY = "more and steadier repeats"
    CHECK = "a check of the warning"
    ALONE = "a measurement without other launches"  # others have no interval over sessions
    SECOND_SESSION = "a second session"  # the variance is assumed, not measured
    MORE_SESSIONS = "more sessions"  # the interval is wider than the tolerance


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many durations of a version directory are usable at a tolerance, and how many of the
    others have each need.

    A duration is usable if it has no warning, if sessions of its stack were compared, and if the
    half-width of its interval is at most `tolerance`, as a share of the mean. Among those that need
    more sessions, the one in the middle needs `more_sessions` on other devices, or
    `more_sessions_here` on the same device; None if 1,000 are not enough, or if none needs any."""

    tolerance: float
    durations: int
    usable: int
    needs: Mapping[Need, int]
    more_sessions: int | None = None
    more_sessions_here: int | None = None


def verdict_of(version: ShownVersion, tolerance: float = TOLERANCE) -> Verdict:
    """Return how many durations of a version directory are usable at this tolerance, a share of the
    mean."""
    good = version.best.filter(version.best["good"])
    rows = list(zip(good["case"].to_pylist(), good["measurement"].to_pylist(), strict=True))
    found = Counter[Need | None]()
    wide: list[tuple[float, str]] = []
    for case, measurement in rows:
        known = version.intervals.of.get(measurement)
        need = _need(version.warnings.get(case, frozenset()), known, tolerance)
        found[need] += 1
        if need is Need.MORE_SESSIONS and known is not None:
            wide.append((known.reach, measurement))
    usable = found.pop(None, 0)
    needs = {need: found[need] for need in Need if need in found}
    if not wide:
        return Verdict(tolerance, len(rows), usable, needs)
    middle = sorted(wide)[len(wide) // 2][1]
    known = version.intervals.of[middle]
    of_collectives = version.of_collectives.rows["measurement"]
    is_of_ranks = pc.index(of_collectives, pa.scalar(middle, TEXT)).as_py() >= 0
    evidence = version.of_collectives if is_of_ranks else version.evidence
    interval, to = (known.reach, known.degrees, known.sessions), log1p(tolerance)
    here = sessions_to_narrow(*interval, to=to, device_spread=evidence.prior.device_spread)
    more = sessions_to_narrow(*interval, to=to)
    return Verdict(tolerance, len(rows), usable, needs, more, here)


def _need(warnings: frozenset[str], interval: CaseInterval | None, tolerance: float) -> Need | None:
    """Return what a duration with these warnings and this interval needs; None if it is usable."""
    if interval is not None and not interval.sessions:
        return Need.MEASUREMENT
    if warnings:
        if is_of_disturbed_session(warnings_cell(warnings)):
            return Need.UNDISTURBED
        return Need.STEADY if is_of_repeats(warnings) else Need.CHECK
    if interval is None:
        return Need.ALONE
    if interval.variance == Origin.PRIOR:
        return Need.SECOND_SESSION
    return Need.MORE_SESSIONS if interval.reach > log1p(tolerance) else None


@dataclass(frozen=True, slots=True)
class SuspectCase:
    """A case whose duration has a warning, or that a gate withholds.

    `mean_us` is None if it is withheld. `half_width` is that of its interval, as a share of the
    mean; None if it has no interval. `warnings` are the names of the gates, `reasons` their
    texts."""

    version_path: str
    case_id: str
    description: str
    mean_us: float | None
    half_width: float | None
    warnings: tuple[str, ...]
    reasons: tuple[str, ...]


def warned_cases(version: ShownVersion) -> list[SuspectCase]:
    """Return the cases of a version directory with a warning, the widest interval first, then those
    that a gate withholds."""
    larger = {
        one.case.case_id: f"{one.larger.describe()} took {one.larger_us:.6g} us"
        for one in version.envelope.above
    }
    found = list(_suspects(version, larger))
    is_listed = pc.is_in(
        version.cases["case"], value_set=pa.array([one.case_id for one in found], TEXT)
    )
    rows = version.cases.filter(is_listed)
    described = {
        case: kernel if known is None else _description(known)
        for case, kernel, known in zip(
            *(rows[name].to_pylist() for name in ("case", "kernel_type")),
            cases_of(rows),
            strict=True,
        )
    }
    found = [replace(one, description=described.get(one.case_id, "")) for one in found]
    return sorted(
        found,
        key=lambda one: (one.mean_us is None, -(one.half_width or 0.0), one.description),
    )


def _suspects(version: ShownVersion, larger: Mapping[str, str]) -> Iterator[SuspectCase]:
    """Yield the cases without their descriptions; `larger` are the texts of the envelope."""
    names = ("case", "measurement", "good", "outcome", "reason", "warnings")
    columns = (version.best[name].to_pylist() for name in names)
    for case, measurement, is_good, outcome, reason, text in zip(*columns, strict=True):
        if is_good and case in version.warnings:
            known = version.intervals.of.get(measurement)
            reasons = (*value_of("warnings", text), *([larger[case]] if case in larger else []))
            yield SuspectCase(
                *(version.path, case, "", version.mean_us[case]),
                None if known is None else expm1(known.reach),
                tuple(sorted(version.warnings[case])),
                reasons,
            )
        elif not is_good and (gate := gate_of_outcome(Outcome(outcome), reason)):
            yield SuspectCase(version.path, case, "", None, None, (gate,), (reason,))


def _description(case: Case) -> str:
    if is_collective(case.kernel_type):
        with suppress(BadInput):
            return str(collective_case_of(case).collective)
    return case.describe()
