"""Which cases a plan measures after an upgrade: a sample of each kernel that the older stack has
measured, then all cases of the kernels that are not shown equal. The other cases are reused.

Pure and stateless: the next round follows from the results so far. Cases are of one kernel if they
agree in kernel type, in dtypes and formats of the inputs, and in OP State.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput
from collector.database.intervals import CaseInterval
from collector.database.reuse import ReusedKernel
from collector.model.stack import Stack, backend_of
from collector.model.vocabulary import INPUT_DTYPES, INPUT_FORMATS
from collector.quality.changes import KnownMeans
from collector.quality.upgrades import (
    FEWEST_CASES,
    expected_variance,
    power,
    ratio_estimate,
    sample_size,
)
from collector.ranks.gangs import is_of_gangs
from jobs.campaign.campaign_file import Campaign
from jobs.planning.candidates import Candidate, HeadResult, OldDurations

_KernelKey = tuple[str, str, str, str]
_LEAST_TIMES = 3  # a kernel with fewer times as many cases as its sample is measured in full


@dataclass(frozen=True, slots=True)
class KernelSample:
    """The cases of a kernel that a round measures to decide about the `waiting` ones. `power` is
    the probability that the kernel is shown equal if it has not changed."""

    kernel_type: str
    dtypes: str
    formats: str
    op_state: str
    power: float
    cases: frozenset[str]
    waiting: frozenset[str]


@dataclass(frozen=True, slots=True)
class UpgradeRound:
    """The kernels of a round after an upgrade: those of which a sample is measured, so that a later
    round can measure or reuse the other cases, and those that are shown equal."""

    samples: tuple[KernelSample, ...] = ()
    kernels: tuple[ReusedKernel, ...] = ()

    @property
    def sample(self) -> frozenset[str]:
        return frozenset(case for kernel in self.samples for case in kernel.cases)

    @property
    def waiting(self) -> frozenset[str]:
        return frozenset(case for kernel in self.samples for case in kernel.waiting)

    @property
    def reused(self) -> frozenset[str]:
        return frozenset(case for kernel in self.kernels for case in kernel.cases)


def check_upgrade(campaign: Campaign, stack: Stack, old_path: str, there: Sequence[str]) -> None:
    """Raise BadInput if a campaign on a stack cannot reuse durations of a version directory."""
    others = [
        path for path in there if _is_alike(path, stack.device) and path != stack.version_path
    ]
    if old_path not in others:
        known = ", ".join(others) or "none; a campaign must have measured it under another stack"
        raise BadInput(
            f"--upgrade-from: expected another version directory of {stack.device} ({known}), "
            f"got {old_path!r}"
        )
    for is_wrong, text in (
        (campaign.update != "missing-only", f"`update: missing-only`, got {campaign.update!r}"),
        (campaign.sampling is not None, "a campaign without `sampling`"),
        (campaign.measure.cache != "warm", f"`cache: warm`, got {campaign.measure.cache!r}"),
    ):
        if is_wrong:
            raise BadInput(f"--upgrade-from: campaign {campaign.name}: expected {text}")


def _is_alike(path: str, device: str) -> bool:
    """Return whether a directory is of this device, or of a CPU with other threads."""
    other = path.partition("/")[0]
    return other == device or backend_of(other) == backend_of(device) == "cpu"


def upgrade_round(
    candidates: Sequence[Candidate], results: Mapping[str, HeadResult], old: OldDurations
) -> UpgradeRound:
    """Return the next round for these candidates. Cases without a duration on the older stack, and
    cases of several ranks, are in none of its parts: they are planned as usual."""
    kernels: dict[_KernelKey, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        known = candidate.record.case_id in old.intervals
        if known and not candidate.weight.in_tree and not is_of_gangs(candidate.record.case):
            kernels[_key(candidate)].append(candidate)
    rounds = [_of_kernel(key, cases, results, old) for key, cases in sorted(kernels.items())]
    return UpgradeRound(
        tuple(kernel for one in rounds for kernel in one.samples),
        tuple(kernel for one in rounds for kernel in one.kernels),
    )


def _key(candidate: Candidate) -> _KernelKey:
    case, cells = candidate.record.case, candidate.record.cells
    return case.kernel_type, cells[INPUT_DTYPES], cells[INPUT_FORMATS], case.op_state


def _of_kernel(
    key: _KernelKey,
    candidates: Sequence[Candidate],
    results: Mapping[str, HeadResult],
    old: OldDurations,
) -> UpgradeRound:
    cases = [candidate.record.case_id for candidate in candidates]
    left = [case for case in cases if case not in results]
    before, after = _pairs(cases, results, old.intervals)
    if not left:
        return UpgradeRound()
    if len(before.mean_us) >= FEWEST_CASES:
        estimate = ratio_estimate(before, after)
        if estimate.is_within(old.source.margin):
            return UpgradeRound(kernels=(ReusedKernel(*key, estimate, tuple(left)),))
    known = [old.intervals[case] for case in cases]
    sessions = np.array([one.sessions for one in known], np.float64)
    expected = expected_variance(_means(known), sessions)
    size = sample_size(*expected, old.source.margin)
    missing = size - (len(cases) - len(left))
    if missing <= 0 or _LEAST_TIMES * size > len(cases):
        return UpgradeRound()
    sample = _sample(left, missing, old.intervals)
    chance = float(power(*expected, np.array([float(size)]), old.source.margin)[0])
    return UpgradeRound((KernelSample(*key, chance, sample, frozenset(left) - sample),))


def _pairs(
    cases: Sequence[str],
    results: Mapping[str, HeadResult],
    intervals: Mapping[str, CaseInterval],
) -> tuple[KnownMeans, KnownMeans]:
    """Return the means of the cases that both stacks have measured well, before and after."""
    both = [
        (intervals[case], found.interval)
        for case in cases
        if (found := results.get(case)) is not None and found.is_good and not found.is_suspect
        if found.interval is not None
    ]
    return _means([old for old, _ in both]), _means([new for _, new in both])


def _means(intervals: Sequence[CaseInterval]) -> KnownMeans:
    columns = [(one.mean_us, one.high_us, one.degrees) for one in intervals]
    return KnownMeans(*np.array(columns, np.float64).reshape(-1, 3).T)


def _sample(
    cases: Sequence[str], size: int, intervals: Mapping[str, CaseInterval]
) -> frozenset[str]:
    """Return one case of each of `size` ranges of durations with equally many cases. The choice
    within a range follows from the ids, which are hashes."""
    ordered = sorted(cases, key=lambda case: (intervals[case].mean_us, case))
    count = min(size, len(ordered))
    ends = [len(ordered) * end // count for end in range(count + 1)]
    ranges = (ordered[begin:end] for begin, end in zip(ends, ends[1:], strict=False))
    return frozenset(min(one, key=lambda case: short_hash([case, "sample"])) for one in ranges)
