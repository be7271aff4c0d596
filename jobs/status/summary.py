"""The summary at the end of a run: the database, its coverage, and the failures with reasons."""

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.text import whole_in_one_line
from collector.database.curves import Envelope
from collector.database.query import good_rows, measured_rows
from collector.database.shard_commits import shard_usage
from collector.database.state import TEXT, State
from collector.database.version_quality import (
    ShownVersion,
    VersionQuality,
    quality_of,
    shown_version,
)
from collector.environment import map_concurrently
from collector.model.case import normal_kernel_type
from collector.model.manifest import Usage, total_usage
from collector.model.measurement import Disturbance
from collector.model.plan import Plan
from collector.model.record import CaseRecord
from collector.model.row import value_of
from collector.quality.gates import DISTURBED, gate_of_warning
from collector.store.base import AT_ONCE, Store
from jobs.planning.candidates import Weight, weigh

_INTERVAL = ("mean_us", "ci_low_us", "ci_high_us")
NEVER_TRIED = "missing"  # the outcome of a case that was never tried


@dataclass(frozen=True, slots=True)
class Failure:
    """Cases of one kernel type without a duration, and their weight in the sources."""

    kernel_type: str
    outcome: str
    reason: str
    cases: int
    rows: int
    time_us: float


@dataclass(frozen=True, slots=True)
class NewMeasurements:
    """The good measurements of the newest plans, from plan `since` on. `disturbed` of them are; the
    cases of `unused` of these show an earlier duration. So do `warned` further cases, whose new
    measurements have another warning."""

    since: int
    count: int = 0
    disturbed: int = 0
    unused: int = 0
    warned: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """The results of the plan's cases.

    `rows` and `time_us` count the sources' invocations, `measured_*` those with a duration.
    `in_tree` cases were not requested, because their tree has a duration. `warned` counts the
    measured cases with a warning, `suspect` the same by gate: a case may have several."""

    cases: int
    measured_cases: int
    in_tree: int
    warned: int
    suspect: Mapping[str, int]
    disturbed: int  # measured, and another process used the device in every repeat
    precise: int  # measured, and the session's interval is as narrow as requested
    busy: float  # the share of all repeats with another process on the device, if that is recorded
    rows: int
    measured_rows: int
    time_us: float
    measured_time_us: float
    usage: Usage
    failures: tuple[Failure, ...]
    envelope: Envelope  # measured durations longer than those of larger cases
    new: NewMeasurements
    quality: VersionQuality | None = None  # of the stack, if anything is measured on it

    def lacking(self, left_out: int) -> int:
        """Return how many cases have no duration, except those that a plan left out.

        `left_out` is the number of cases that the plan leaves out. A case that was tried and failed
        counts."""
        never_tried = sum(found.cases for found in self.failures if found.outcome == NEVER_TRIED)
        return self.cases - self.measured_cases - min(left_out, never_tried)


def summarise_state(
    state: State,
    plan: Plan,
    sources: Sequence[Sequence[CaseRecord]],
    usage: Usage,
    *,
    since: int | None = None,
) -> Summary:
    """Return the summary of the cases of a plan's sources in the head, on the plan's stack.

    `since` is the number of the first plan whose measurements are new, by default the plan's."""
    shown = None
    if state.shows(plan.stack):
        shown = shown_version(state, plan.stack.version_path, cache=plan.measure.cache)
    outcomes = _case_outcomes(shown) if shown else {}
    found = _records(sources, plan.operators)
    weights = {case: weigh(records) for case, records in found.items()}
    in_tree = {case for case, w in weights.items() if w.in_tree and case not in outcomes}
    if plan.update != "all":
        weights = {case: w for case, w in weights.items() if case not in in_tree}
    good = {case for case in weights if case in outcomes and outcomes[case].is_good}
    known = (outcomes[case].disturbance for case in good)
    disturbances = [disturbance for disturbance in known if disturbance is not None]
    watched = sum(known.watched for known in disturbances)
    clean = sum(known.clean for known in disturbances)
    not_measured = _LEFT_OUT if plan.forecast.left_out else _NOT_MEASURED
    if plan.upgrade_from is not None and plan.forecast.left_out:
        not_measured = _WAITING if plan.forecast.unsure else _REUSED
    failures: dict[tuple[str, str, str], list[Weight]] = defaultdict(list)
    for case, weight in weights.items():
        if case not in good:
            outcome_of_case = outcomes.get(case, not_measured)
            kernel_type = normal_kernel_type(found[case][0].kernel_type)
            failures[kernel_type, outcome_of_case.outcome, outcome_of_case.reason].append(weight)
    return Summary(
        cases=len(weights),
        measured_cases=len(good),
        in_tree=len(in_tree),
        warned=sum(bool(outcomes[case].warnings) for case in good),
        suspect=Counter(gate for case in good for gate in outcomes[case].warnings),
        disturbed=sum(disturbance.is_total for disturbance in disturbances),
        precise=sum(outcomes[case].reach <= (plan.measure.precision or 0) for case in good),
        busy=1 - clean / watched if watched else 0.0,
        rows=sum(w.rows for w in weights.values()),
        measured_rows=sum(weights[case].rows for case in good),
        time_us=fsum(w.time_us for w in weights.values()),
        measured_time_us=fsum(weights[case].time_us for case in good),
        usage=usage,
        failures=tuple(
            sorted(
                (
                    Failure(*key, len(of), sum(w.rows for w in of), fsum(w.time_us for w in of))
                    for key, of in failures.items()
                ),
                key=lambda f: (-f.time_us, -f.rows, f.kernel_type, f.reason),
            )
        ),
        envelope=_envelope(shown, good, {found[case][0].kernel_type for case in good}),
        new=_new_measurements(state, plan, plan.number if since is None else since, shown),
        quality=quality_of(shown) if shown else None,
    )


def plan_usage(store: Store, plan: Plan) -> Usage:
    """Return the device and wall time of a plan's committed attempts."""
    shards = [shard.shard_id for shard in plan.shards]
    usages = map_concurrently(partial(shard_usage, store, plan.campaign), shards, AT_ONCE)
    return total_usage(usages)


def _envelope(shown: ShownVersion | None, cases: Container[str], kernels: set[str]) -> Envelope:
    """Return the part of a version's envelope that concerns some cases and kernel types."""
    if shown is None:
        return Envelope()
    kernels = set(map(normal_kernel_type, kernels))
    whole = shown.envelope
    return Envelope(
        tuple(one for one in whole.above if one.case.case_id in cases),
        tuple(one for one in whole.out_of_order if normal_kernel_type(one.kernel_type) in kernels),
    )


def _new_measurements(
    state: State, plan: Plan, since: int, shown: ShownVersion | None
) -> NewMeasurements:
    if shown is None:
        return NewMeasurements(since)
    rows = state.measurements
    numbers = pa.array(map(str, range(since, plan.number + 1)), TEXT)
    is_new = pc.and_(pc.equal(rows["campaign"], plan.campaign), rows["final"])
    rows = rows.filter(pc.and_(is_new, pc.is_in(rows["plan"], value_set=numbers)))
    rows = good_rows(rows, state.versions[shown.path], shown.path)
    texts = rows["warnings"].to_pylist()
    is_disturbed = [DISTURBED in map(gate_of_warning, value_of("warnings", t)) for t in texts]
    disturbed = set(rows["case"].filter(pa.array(is_disturbed, pa.bool_())).to_pylist())
    is_used = pc.is_in(shown.best["measurement"], rows["measurement"].combine_chunks())
    used = set(shown.best["case"].filter(is_used).to_pylist())
    has_warning = pc.not_equal(rows["warnings"], "")
    unused = set(rows["case"].filter(has_warning).to_pylist()) - used
    counts = len(unused & disturbed), len(unused - disturbed)
    return NewMeasurements(since, rows.num_rows, sum(is_disturbed), *counts)


@dataclass(frozen=True, slots=True)
class _CaseOutcome:
    outcome: str
    reason: str
    is_good: bool
    warnings: frozenset[str] = frozenset()
    disturbance: Disturbance | None = None
    reach: float = 0.0  # half-width of its session's interval, as a share of the mean


_NOT_MEASURED = _CaseOutcome(NEVER_TRIED, "not measured", False)
_LEFT_OUT = replace(_NOT_MEASURED, reason="not measured: `sampling` leaves cases of curves out")
_REUSED = replace(_NOT_MEASURED, reason="not measured: reused from the older stack")
_WAITING = replace(_NOT_MEASURED, reason="not measured: it waits for the results of a sample")


def _records(
    sources: Sequence[Sequence[CaseRecord]], operators: Collection[str] | None
) -> dict[str, list[CaseRecord]]:
    found: dict[str, list[CaseRecord]] = defaultdict(list)
    for records in sources:
        for record in records:
            if operators is None or record.case.kernel_type in operators:
                found[record.case_id].append(record)
    return found


def _case_outcomes(shown: ShownVersion) -> dict[str, _CaseOutcome]:
    names = ("case", "outcome", "reason", "good", "disturbance")
    best = measured_rows(shown.best)
    columns = (best[name].to_pylist() for name in (*names, *_INTERVAL))
    return {
        case: _CaseOutcome(
            outcome,
            whole_in_one_line(reason),
            good,
            shown.warnings.get(case, frozenset()),
            value_of("disturbance", known),
            *((_reach(*interval),) if good else ()),
        )
        for case, outcome, reason, good, known, *interval in zip(*columns, strict=True)
    }


def _reach(mean: str, low: str, high: str) -> float:
    """Return the half-width of an interval as a share of the mean, from their cells."""
    return (float(high) - float(low)) / 2 / float(mean) if float(mean) else 0.0
