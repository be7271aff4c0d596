"""Confidence intervals of a state: for each good measurement the interval of the mean of its case
over sessions and devices.

This is a pure function of the set of measurements: the order of merges does not matter. The data of
other version directories with the same kind of device is the prior of each. Collectives have their
own model, of their medians, because the CSVs show medians: their sessions differ by effects of the
network, which give no information about kernels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.database import query
from collector.database.curves import Faults
from collector.database.layout import INTERVAL_COLUMNS, IntervalRow
from collector.database.lent import LentPairs, Priors, digest
from collector.database.query import DEVICE, SESSION, SuspectSessions
from collector.database.state import TEXT, State
from collector.model.row import value_of
from collector.ops.registry import family_of
from collector.quality.canaries import SessionFactor
from collector.quality.evidence import (
    Evidence,
    Floats,
    Pairs,
    SessionMeans,
    Trust,
    Whole,
    evidence_of,
)
from collector.quality.imported import TAIL_DEGREES, imported_interval
from collector.quality.pooled import StackIntervals, stack_intervals
from collector.quality.profiler_limits import lowered_us
from collector.quality.statistics import student_t_factor
from collector.quality.variance import fit
from collector.quality.variance_parts import Origin
from collector.quality.variance_prior import VariancePrior, prior_of
from collector.ranks.collective import is_collective

# The columns that the intervals depend on. To filter all columns takes longer than the rest of the
# computation.
_USED = (
    *("measurement", "case", "kernel_type", "cache", *SESSION, "plan", *DEVICE),
    *("mean_us", "median_us"),
    *("ci_low_us", "ci_high_us", "n_accepted", "warnings", "profiler_floor_us"),
    *("final", "version_path", "stack_id", "outcome", "timed_by"),
)


# The table of a snapshot with the interval of each case that its CSVs show, sorted by the key.
# Those of collectives are of medians.

INTERVAL_KEY = ("version_path", "case")
_TYPES = {float: pa.float64(), int: pa.int64(), str: TEXT}
INTERVAL_SCHEMA = pa.schema(
    [
        *(pa.field(name, TEXT) for name in INTERVAL_KEY),
        *(
            pa.field(c.name, _TYPES[c.type], metadata={"description": c.description})
            for c in INTERVAL_COLUMNS
        ),
    ]
)


def interval_table(path: str, cases: pa.ChunkedArray, rows: Sequence[IntervalRow]) -> pa.Table:
    """Return the table of the intervals of cases of one version directory."""
    if not rows:
        return INTERVAL_SCHEMA.empty_table()
    # A list for each column: `zip(*rows)` of as many rows takes twice as long.
    values = ([row[at] for row in rows] for at in range(len(INTERVAL_COLUMNS)))
    columns = (pa.repeat(pa.scalar(path, TEXT), len(rows)), cases, *values)
    return pa.table(dict(zip(INTERVAL_SCHEMA.names, columns, strict=True)), schema=INTERVAL_SCHEMA)


class CaseInterval(NamedTuple):  # a merge makes hundreds of thousands
    """The mean of a case over its sessions and the 95 % interval of that mean.

    For a collective it is the mean of the sessions' medians. An imported duration has no session.
    `variance` names the data that contributes most to the variance. The lower end is further down
    if the profiler could not record a shorter duration."""

    mean_us: float
    sessions: int
    low_us: float
    high_us: float
    degrees: float
    variance: str

    @property
    def reach(self) -> float:
        """Return the half-width as the logarithm of a ratio.

        It is that of the upper end: the profiler's lower bound extends only the lower end, and no
        further session narrows that."""
        return log(self.high_us) - log(self.mean_us)


@dataclass(frozen=True, slots=True)
class VersionIntervals:
    """The intervals of a version directory by measurement, its suspect sessions, and the
    measurements that are held back.

    `model` is everything else that the widths and the displayed measurements depend on, besides the
    measurements of each case. Equal models with equal measurements of a case give equal intervals.
    """

    of: Mapping[str, CaseInterval]
    suspects: SuspectSessions
    faults: Faults
    model: object
    lent: LentPairs
    prior: str  # a hash of what the intervals depend on in other version directories


@dataclass(frozen=True, slots=True)
class VersionEvidence:
    """The data from which the intervals of a version directory are computed.

    `rows` are its good measurements, without those on curves that are held back (`faults`), and
    `imported` those of other tools, from which nothing is learnt. The prior is from other version
    directories with the same kind of device."""

    rows: pa.Table  # the columns _USED
    imported: pa.Table
    faults: Faults
    canaries: Sequence[SessionFactor]
    evidence: Evidence
    prior: VariancePrior


def intervals_of(state: State) -> dict[str, VersionIntervals]:
    """Return the intervals of each version directory."""
    over_ranks = evidence_of_versions(state, collectives=True)
    return {
        path: joint_intervals(evidence, over_ranks[path])
        for path, evidence in evidence_of_versions(state).items()
    }


def joint_intervals(
    of_kernels: VersionEvidence, of_collectives: VersionEvidence
) -> VersionIntervals:
    """Return the intervals of one version directory, of kernels and of collectives."""
    kernels, ranks = _model_intervals(of_kernels), _model_intervals(of_collectives)
    return VersionIntervals(
        {**kernels.of, **ranks.of},
        kernels.suspects,
        kernels.faults,
        (kernels.model, ranks.model),
        LentPairs.of(of_kernels.evidence.pairs, of_collectives.evidence.pairs),
        digest(of_kernels.prior, of_collectives.prior),
    )


def evidence_of_versions(state: State, *, collectives: bool = False) -> dict[str, VersionEvidence]:
    """Return the evidence of each version directory, from which its model is made.

    It is that of the kernels of one device and of experts or, if requested, of collectives."""
    devices = {path: version.shown_stack.device for path, version in state.versions.items()}
    priors = {path: prior_of(name, over_ranks=collectives) for path, name in devices.items()}
    # Sessions of ranks have no canaries, and their cases are on no curve.
    canaries = {path: () if collectives else query.session_canaries(state, path) for path in priors}
    faults = {path: {} if collectives else query.faults_of(state, path) for path in priors}
    rows = {
        path: _rows(
            state, path, (query.suspect_sessions(canaries[path]), faults[path]), collectives
        )
        for path in priors
    }
    shown = "median_us" if collectives else "mean_us"
    found = {
        path: evidence_of(_means(rows[path], shown), repeat_spread=prior.repeat_spread)
        for path, prior in priors.items()
    }
    known = {
        path: LentPairs.of(one.pairs, one.pairs) for path, one in found.items()
    }  # of which one half is used
    priors_learnt = Priors({**state.elsewhere, **known})
    return {
        path: VersionEvidence(
            rows[path],
            _of_kind(query.imported_rows(state.measurements.select(_USED), path), collectives),
            faults[path],
            canaries[path],
            found[path],
            priors_learnt.prior(path, over_ranks=collectives),
        )
        for path in priors
    }


def blind_pairs(evidence_of_version: VersionEvidence) -> Pairs:
    """Return the pairs of sessions of a case within one plan, numbered as in the evidence.

    A plan chooses the cases that it measures twice without knowledge of them. Another plan may have
    chosen a case because of its earlier measurement."""
    means, counts = evidence_of_version.evidence.means, evidence_of_version.evidence.again.places
    cases = _numbered(evidence_of_version.rows, ("case", "cache", "campaign", "plan"))
    first = np.zeros(int(cases.max(initial=-1)) + 1, np.int64)
    first[cases] = means.cases
    alone = np.setdiff1d(np.arange(len(cases)), counts)
    cases[alone] = len(first) + np.arange(len(alone))
    by_plan = replace(means, cases=cases)
    pairs = evidence_of(by_plan, repeat_spread=evidence_of_version.prior.repeat_spread).pairs
    return replace(pairs, cases=first[pairs.cases])


@dataclass(frozen=True, slots=True)
class _ModelIntervals:
    of: Mapping[str, CaseInterval]
    suspects: SuspectSessions
    faults: Faults
    model: object


def _model_intervals(evidence_of_version: VersionEvidence) -> _ModelIntervals:
    """Return the intervals of the kernels or of the collectives of one version directory."""
    evidence = evidence_of_version.evidence
    variance = fit(evidence, evidence_of_version.prior)
    found = stack_intervals(evidence, variance)
    columns = (
        _means_us(found, evidence.means.mean_us),
        found.sessions.tolist(),
        _digits(_lowered(found, evidence_of_version.rows)),
        _digits(found.high_us),
        [float(f"{value:.1f}") for value in found.degrees.tolist()],
    )
    names = evidence_of_version.rows["measurement"].to_pylist()
    # Plain texts, because the garbage collector does not track tuples of atomic objects.
    cases = map(CaseInterval, *columns, [origin.value for origin in found.origins])
    suspects = query.suspect_sessions(evidence_of_version.canaries)
    model = (
        tuple(sorted((session, suspect.is_beyond_band) for session, suspect in suspects.items())),
        variance.learnt,
        tuple(variance.degrees.tolist()),
        variance.is_of_prior,
        evidence.group_names,
        tuple(evidence.group_spread.tolist()),
        tuple(variance.ratios.tolist()),
    )
    known = dict(zip(names, cases, strict=True)) | _imported_intervals(evidence_of_version.imported)
    return _ModelIntervals(known, suspects, evidence_of_version.faults, model)


def _imported_intervals(rows: pa.Table) -> dict[str, CaseInterval]:
    """Return the intervals of imported rows, of kernels or of collectives."""
    found = {}
    columns = (rows[name].to_pylist() for name in ("measurement", "kernel_type", "mean_us"))
    for name, kernel, text in zip(*columns, strict=True):
        mean_us = float(text)
        low_us, high_us = imported_interval(mean_us, over_ranks=is_collective(kernel))
        ends = (float(f"{low_us:.5g}"), float(f"{high_us:.5g}"))
        found[name] = CaseInterval(mean_us, 0, *ends, TAIL_DEGREES, Origin.IMPORTED.value)
    return found


def _lowered(found: StackIntervals, rows: pa.Table) -> Floats:
    texts = rows["profiler_floor_us"].to_pylist()  # of the lower bound of each profiler
    if not any(texts):
        return found.low_us
    bounds_us = [value_of("profiler_floor_us", text) for text in texts]
    ends = zip(found.low_us.tolist(), found.mean_us.tolist(), bounds_us, strict=True)
    return np.array([lowered_us(*end) for end in ends], np.float64)


def _means_us(found: StackIntervals, measured_us: Floats) -> list[float]:
    rows = zip(found.mean_us.tolist(), measured_us.tolist(), found.sessions.tolist(), strict=True)
    return [own if count == 1 else float(f"{mean:.6g}") for mean, own, count in rows]


def _digits(values: Floats) -> list[float]:
    """Return the values to five digits.

    Further digits differ between machines, and every machine must render the same bytes."""
    return [float(f"{value:.5g}") for value in values.tolist()]


def _rows(
    state: State, path: str, judged: tuple[SuspectSessions, Faults], collectives: bool
) -> pa.Table:
    """Return the good measurements of the displayed stack, sorted by id as in the state.

    They are those of collectives or all others, without those after other launches, which have no
    interval over sessions."""
    rows = _of_kind(query.judged_rows(state, path, *judged).select(_USED), collectives)
    return _most_trusted(query.isolated(query.good_rows(rows, state.versions[path], path)))


def _of_kind(rows: pa.Table, collectives: bool) -> pa.Table:
    """Return the rows of collectives, or all others."""
    kinds = pc.unique(rows["kernel_type"]).to_pylist()
    kinds_to_show = [kind for kind in kinds if is_collective(kind) == collectives]
    if len(kinds_to_show) < len(kinds):  # mostly all or none are collectives
        rows = rows.filter(pc.is_in(rows["kernel_type"], pa.array(kinds_to_show, TEXT)))
    return rows


def _most_trusted(rows: pa.Table) -> pa.Table:
    """Return the rows without the disturbed ones of cases that also have others, so that another
    program next to a later run changes no interval."""
    trust = query.trust_of_rows(rows).to_numpy()
    is_quiet = trust != Trust.DISTURBED
    if is_quiet.all():
        return rows
    cases = _numbered(rows, ("case", "cache"))
    has_quiet = np.bincount(cases, is_quiet) > 0
    return rows.filter(pa.array(is_quiet | ~has_quiet[cases], pa.bool_()))


def _means(rows: pa.Table, shown: str) -> SessionMeans:
    """Return the durations in column `shown` with what the variance model needs.

    Collectives have no family in the catalogue: each operation is a family."""
    kernels = rows["kernel_type"].to_pylist()
    families = {k: family_of(k) or (k if is_collective(k) else "") for k in set(kernels)}
    mean_us, repeats = _floats(rows, shown), _floats(rows, "n_accepted")
    return SessionMeans(
        cases=_numbered(rows, ("case", "cache")),
        families=[families[kernel] for kernel in kernels],
        sessions=_numbered(rows, SESSION),
        devices=_numbered(rows, DEVICE),
        mean_us=mean_us,
        spreads=_spreads(rows, mean_us, repeats),
        repeats=repeats,
        trust=query.trust_of_rows(rows).to_numpy(),
    )


def _spreads(rows: pa.Table, mean_us: Floats, repeats: Floats) -> Floats:
    """Return the relative standard deviation of single repeats, from the session's interval.

    It is that of the same number of independent repeats, or NaN for a single repeat."""
    half_us = (_floats(rows, "ci_high_us") - _floats(rows, "ci_low_us")) / 2
    counts, count = np.unique(repeats, return_inverse=True)
    factors = [student_t_factor(n - 1) / n**0.5 if n > 1 else np.nan for n in counts.tolist()]
    spreads: Floats = half_us / np.array(factors, np.float64)[count] / mean_us
    return spreads


def _floats(rows: pa.Table, name: str) -> Floats:
    values: Floats = rows[name].cast(pa.float64()).to_numpy()
    return values


def _numbered(rows: pa.Table, names: tuple[str, ...]) -> Whole:
    """Return a number for each row that is equal for rows with equal cells in these columns."""
    joined = pc.binary_join_element_wise(*(rows[name] for name in names), pa.scalar("|", TEXT))
    numbers = joined.combine_chunks().dictionary_encode().indices
    return np.asarray(numbers.to_numpy(zero_copy_only=False), np.int64)
