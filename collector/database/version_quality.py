"""The quality of a version's numbers: how far its sessions and devices differ, the coverage and the
width of its intervals, and what is not shown."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import expm1

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.database.curves import envelope_of
from collector.database.intervals import (
    VersionEvidence,
    VersionIntervals,
    blind_pairs,
    evidence_of_versions,
    version_intervals,
)
from collector.database.query import best_rows
from collector.database.state import State
from collector.model.measurement import Outcome
from collector.model.row import value_of
from collector.quality.canaries import DeviceFactor, device_factors
from collector.quality.gates import ENVELOPE, gate_of_outcome, gate_of_warning
from collector.quality.pooled import (
    Coverage,
    SessionDifferences,
    coverage_of_intervals,
    session_differences,
)

WIDTHS = (0.02, 0.05, 0.10)


@dataclass(frozen=True, slots=True)
class VersionQuality:
    """The quality of one version directory.

    The durations are counted by their number of sessions (`of_several_sessions`), by the main
    source of their variance (`origins`), by having a warning (`warned`), and by how well records
    prove what ran, if the profiler reports it (`proofs`). `median_reach` is the median half-width
    of the intervals, `wider` the share of intervals with a half-width above each of WIDTHS. By
    gate, `refused` counts the withheld cases, and `suspect` the suspect durations; a duration may
    be suspect by several gates. `reliability` is computed from second sessions that were chosen
    blindly (`is_blind`), or from all second sessions if there are none."""

    version_path: str
    durations: int
    of_several_sessions: int
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
    `good`, and the intervals of the good ones. `cases` are its records, sorted by id."""

    path: str
    device: str
    cases: pa.Table
    best: pa.Table
    intervals: VersionIntervals
    evidence: VersionEvidence

    def mean_us(self, measurement: str, own_us: str) -> float:
        """Return the duration that is shown for a good measurement, whose own duration is `own_us`:
        the mean over its case's sessions, if there is one."""
        known = self.intervals.of.get(measurement)
        return float(own_us) if known is None else known.mean_us


def shown_version(state: State, path: str, *, cache: str | None = None) -> ShownVersion:
    """Return the shown data of one version directory of the state; with `cache`, of measurements in
    that state of the caches."""
    return _shown(state, path, evidence_of_versions(state)[path], cache)


def _shown(state: State, path: str, evidence: VersionEvidence, cache: str | None) -> ShownVersion:
    found = version_intervals(evidence)
    best = best_rows(state, path, cache=cache, suspects=found.suspects, faults=found.faults)
    cases = state.cases.filter(pc.equal(state.cases["version_path"], path))
    return ShownVersion(path, state.versions[path].shown_stack.device, cases, best, found, evidence)


def version_qualities(state: State) -> list[VersionQuality]:
    """Return the quality of each version directory, in order; without collectives, whose intervals
    have another model."""
    found = sorted(evidence_of_versions(state).items())
    return [quality_of(_shown(state, path, evidence, None)) for path, evidence in found]


def quality_of(version: ShownVersion) -> VersionQuality:
    """Return the quality of one version directory."""
    best, intervals, evidence = version.best, version.intervals, version.evidence
    good = best.filter(best["good"])
    known = (intervals.of.get(measurement) for measurement in good["measurement"].to_pylist())
    shown = [one for one in known if one is not None]
    reaches = np.array([expm1(one.reach) for one in shown])
    pairs, blind = evidence.evidence.pairs, blind_pairs(evidence)
    warned = _warned(version, good)
    outcomes = zip(best["outcome"].to_pylist(), best["reason"].to_pylist(), strict=True)
    gates = (gate_of_outcome(Outcome(outcome), reason) for outcome, reason in outcomes)
    return VersionQuality(
        version_path=version.path,
        durations=len(shown),
        of_several_sessions=sum(one.sessions > 1 for one in shown),
        sessions=session_differences(pairs.only(pairs.is_same_device)),
        devices=session_differences(pairs.only(~pairs.is_same_device)),
        reliability=tuple(
            coverage_of_intervals(evidence.evidence, evidence.prior, blind if len(blind) else pairs)
        ),
        is_blind=len(blind) > 0,
        median_reach=float(np.median(reaches)) if len(reaches) else 0.0,
        wider=tuple(float(np.mean(reaches > w)) if len(reaches) else 0.0 for w in WIDTHS),
        origins=Counter(one.variance for one in shown),
        warned=sum(map(bool, warned)),
        refused=Counter(filter(None, gates)),
        suspect=Counter(gate for suspects in warned for gate in suspects),
        canaries=tuple(device_factors(evidence.canaries, evidence.prior)),
        proofs=Counter(filter(None, good["identity"].to_pylist())),
    )


def _warned(version: ShownVersion, good: pa.Table) -> list[set[str]]:
    columns = (good[n].to_pylist() for n in ("case", "measurement", "mean_us", "warnings"))
    rows = [row for row in zip(*columns, strict=True) if row[1] in version.intervals.of]
    shown_us = {case: version.mean_us(name, own_us) for case, name, own_us, _ in rows}
    found = envelope_of(version.cases, shown_us, version.device).above
    above = {one.case.case_id for one in found}
    return [
        {gate_of_warning(warning) for warning in value_of("warnings", warnings)}
        | ({ENVELOPE} if case in above else set())
        for case, _, _, warnings in rows
    ]
