"""How well the numbers of a state are known: for each good measurement the interval of the mean
that its stack would show over sessions and devices.

A pure function of the set of measurements: whoever merged what, in whatever order, gets the same.
What the stacks of other version directories tell of the same kind of device is the prior of each.
Collectives have a model of their own, of their medians, which are what shows of them: sessions of
theirs differ by what a network does, and tell nothing of kernels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.database.canaries import DEVICE, SESSION, Doubts, doubts_of, session_canaries
from collector.database.curves import Faults
from collector.database.query import faults_of, good_rows, isolated, judged_rows
from collector.database.state import TEXT, State
from collector.model.row import value_of
from collector.ops.registry import family_of
from collector.quality.canaries import SessionFactor
from collector.quality.disturbances import lowered_us
from collector.quality.pooled import StackIntervals, stack_intervals
from collector.quality.statistics import student_factor
from collector.quality.variance import (
    Evidence,
    Floats,
    Pairs,
    SessionMeans,
    VariancePrior,
    Whole,
    evidence_of,
    fit,
    learn,
    prior_of,
)
from collector.ranks.collective import is_collective

# What decides which measurements tell, and what they tell: to filter all columns takes longer than
# all the rest.
_TOLD = (
    *("measurement", "case", "kernel_type", "cache", *SESSION, "plan", *DEVICE),
    *("mean_us", "median_us"),
    *("ci_low_us", "ci_high_us", "n_accepted", "warnings", "profiler_floor_us"),
    *("final", "version_path", "stack_id", "outcome"),
)


class CaseInterval(NamedTuple):  # of which a merge makes hundreds of thousands
    """The mean of a case over so many sessions (of a collective that of their medians), as their
    measurements tell it, where it lies with 95 %, and `variance`: what tells of it most closely.
    The lower end is below that where the profiler could tell no shorter duration."""

    mean_us: float
    sessions: int
    low_us: float
    high_us: float
    degrees: float
    variance: str

    @property
    def reach(self) -> float:
        """How far it goes to each side, as the logarithm of a ratio; without what the profiler
        cannot tell, which no further session narrows."""
        return log(self.high_us) - log(self.mean_us)


@dataclass(frozen=True, slots=True)
class VersionIntervals:
    """The intervals of a version directory by measurement, its doubtful sessions, and what of it
    is held back. `model` is what decides how wide they are, and what shows, beside the measurements
    of each case: equal where it is the same."""

    of: Mapping[str, CaseInterval]
    doubts: Doubts
    faults: Faults
    model: object


@dataclass(frozen=True, slots=True)
class VersionEvidence:
    """The good measurements of a version directory, what they and its canaries tell, and the prior
    that stacks of other directories make of their kind of device; and the measurements on curves
    that are held back, which are none of them."""

    rows: pa.Table  # the columns _TOLD
    faults: Faults
    canaries: Sequence[SessionFactor]
    evidence: Evidence
    prior: VariancePrior


def intervals_of(state: State) -> dict[str, VersionIntervals]:
    """The intervals of each version directory."""
    kernels = evidence_of_versions(state)
    over_ranks = evidence_of_versions(state, collectives=True)
    return {
        path: _both(version_intervals(told), version_intervals(over_ranks[path]))
        for path, told in kernels.items()
    }


def _both(kernels: VersionIntervals, over_ranks: VersionIntervals) -> VersionIntervals:
    of = {**kernels.of, **over_ranks.of}
    model = (kernels.model, over_ranks.model)
    return VersionIntervals(of, kernels.doubts, kernels.faults, model)


def evidence_of_versions(state: State, *, collectives: bool = False) -> dict[str, VersionEvidence]:
    """What is known of each version directory before its model is made: of what one device runs,
    and of kernels of experts; or of its collectives."""
    devices = {path: version.shown_stack.device for path, version in state.versions.items()}
    priors = {path: prior_of(name, over_ranks=collectives) for path, name in devices.items()}
    # Sessions of ranks have no canaries.
    canaries = {path: () if collectives else session_canaries(state, path) for path in priors}
    # Nor are they on a curve.
    faults = {path: {} if collectives else faults_of(state, path) for path in priors}
    rows = {
        path: _rows(state, path, (doubts_of(canaries[path]), faults[path]), collectives)
        for path in priors
    }
    shown = "median_us" if collectives else "mean_us"
    found = {
        path: evidence_of(_means(rows[path], shown), repeat_spread=prior.repeat_spread)
        for path, prior in priors.items()
    }
    told = {}
    for path, prior in priors.items():
        others = [e.pairs for p, e in found.items() if p != path and priors[p].kind == prior.kind]
        learnt = learn(others, prior)
        told[path] = VersionEvidence(rows[path], faults[path], canaries[path], found[path], learnt)
    return told


def blind_pairs(told: VersionEvidence) -> Pairs:
    """The pairs of sessions that one plan has of a case, in the evidence's numbers: a plan measures
    twice only what it chose blindly. What another plan measured once more may have been chosen for
    what was known of it."""
    means, counts = told.evidence.means, told.evidence.again.places
    cases = _numbered(told.rows, ("case", "cache", "campaign", "plan"))
    first = np.zeros(int(cases.max(initial=-1)) + 1, np.int64)
    first[cases] = means.cases
    alone = np.setdiff1d(np.arange(len(cases)), counts)
    cases[alone] = len(first) + np.arange(len(alone))
    by_plan = replace(means, cases=cases)
    pairs = evidence_of(by_plan, repeat_spread=told.prior.repeat_spread).pairs
    return replace(pairs, cases=first[pairs.cases])


def version_intervals(told: VersionEvidence) -> VersionIntervals:
    """The intervals of one version directory."""
    evidence = told.evidence
    variance = fit(evidence, told.prior)
    found = stack_intervals(evidence, variance)
    columns = (
        _means_us(found, evidence.means.mean_us),
        found.sessions.tolist(),
        _digits(_lowered(found, told.rows)),
        _digits(found.high_us),
        found.degrees.tolist(),
    )
    names = told.rows["measurement"].to_pylist()
    # As plain texts: a garbage collector does not look into rows of nothing else.
    cases = map(CaseInterval, *columns, [origin.value for origin in found.origins])
    doubts = doubts_of(told.canaries)
    model = (
        tuple(sorted((session, doubt.is_withheld) for session, doubt in doubts.items())),
        variance.learnt,
        tuple(variance.degrees.tolist()),
        variance.is_of_prior,
        evidence.group_names,
        tuple(evidence.group_spread.tolist()),
        tuple(variance.ratios.tolist()),
    )
    return VersionIntervals(dict(zip(names, cases, strict=True)), doubts, told.faults, model)


def _lowered(found: StackIntervals, rows: pa.Table) -> Floats:
    """The lower ends, with what the profiler of each measurement cannot tell."""
    texts = rows["profiler_floor_us"].to_pylist()
    if not any(texts):
        return found.low_us
    ends = zip(
        found.low_us.tolist(),
        found.mean_us.tolist(),
        (value_of("profiler_floor_us", text) for text in texts),
        strict=True,
    )
    return np.array([lowered_us(*end) for end in ends], np.float64)


def _means_us(found: StackIntervals, measured_us: Floats) -> list[float]:
    """That of a single session as it was measured, that of several to a millionth."""
    rows = zip(found.mean_us.tolist(), measured_us.tolist(), found.sessions.tolist(), strict=True)
    return [own if count == 1 else float(f"{mean:.6g}") for mean, own, count in rows]


def _digits(values: Floats) -> list[float]:
    """To five digits: the last ones are those of a machine's arithmetic, and every machine that
    reads a database shall find the same bytes in it."""
    return [float(f"{value:.5g}") for value in values.tolist()]


def _rows(state: State, path: str, judged: tuple[Doubts, Faults], collectives: bool) -> pa.Table:
    """The good measurements of the stack that a version shows, sorted by id, as a state has them:
    those of collectives, or all others; without those behind other launches, of which each has its
    own interval."""
    rows = judged_rows(state, path, *judged).select(_TOLD)
    kinds = pc.unique(rows["kernel_type"]).to_pylist()
    wanted = [kind for kind in kinds if is_collective(kind) == collectives]
    if len(wanted) < len(kinds):  # mostly all are, or none
        rows = rows.filter(pc.is_in(rows["kernel_type"], pa.array(wanted, TEXT)))
    return isolated(good_rows(rows, state.versions[path], path))


def _means(rows: pa.Table, shown: str) -> SessionMeans:
    """What `shown` has of each measurement. Collectives are of no family of the catalogue: each
    operation is one by itself."""
    kernels = rows["kernel_type"].to_pylist()
    families = {kernel: family_of(kernel) or _operation(kernel) for kernel in set(kernels)}
    mean_us, repeats = _floats(rows, shown), _floats(rows, "n_accepted")
    return SessionMeans(
        cases=_numbered(rows, ("case", "cache")),
        families=[families[kernel] for kernel in kernels],
        sessions=_numbered(rows, SESSION),
        devices=_numbered(rows, DEVICE),
        mean_us=mean_us,
        spreads=_spreads(rows, mean_us, repeats),
        repeats=repeats,
        is_clean=pc.equal(rows["warnings"], "").to_numpy(),
    )


def _spreads(rows: pa.Table, mean_us: Floats, repeats: Floats) -> Floats:
    """The relative standard deviation of single repeats, as their interval tells it: that of as
    many which know nothing of each other. NaN for a single one."""
    half_us = (_floats(rows, "ci_high_us") - _floats(rows, "ci_low_us")) / 2
    counts, count = np.unique(repeats, return_inverse=True)
    factors = [student_factor(n - 1) / n**0.5 if n > 1 else np.nan for n in counts.tolist()]
    spreads: Floats = half_us / np.array(factors, np.float64)[count] / mean_us
    return spreads


def _operation(kernel_type: str) -> str:
    return kernel_type if is_collective(kernel_type) else ""


def _floats(rows: pa.Table, name: str) -> Floats:
    values: Floats = rows[name].cast(pa.float64()).to_numpy()
    return values


def _numbered(rows: pa.Table, names: tuple[str, ...]) -> Whole:
    """What columns say together, as a number: equal where they are, in the order of the rows."""
    joined = pc.binary_join_element_wise(*(rows[name] for name in names), pa.scalar("|", TEXT))
    numbers = joined.combine_chunks().dictionary_encode().indices
    return np.asarray(numbers.to_numpy(zero_copy_only=False), np.int64)
