"""Which launches of a profile belong to which rows of a tree. Pure.

A row takes the launches of its own case. Where there are none, it takes those that msmodeling's
coarser signature finds, as long as nothing that both say differs; and where the runtime may launch
one of several kernels for the same call (MatMul), those of another of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from collector.case import Case
from collector.record import CaseRecord, ProfileStatistics
from collector.singlehost.signature import MATMUL_FAMILY, Signature, agrees, signature_of
from collector.singlehost.version_files import Place, TreeRow


class How(StrEnum):
    """What brought launches to a row."""

    CASE = "case"
    SIGNATURE = "signature"
    FAMILY = "family"  # another kernel of the MatMul family ran


@dataclass(frozen=True, slots=True)
class Match:
    """The launches of one row, a record for each distinct case of the profile."""

    row: TreeRow
    how: How
    launches: tuple[CaseRecord, ...]


@dataclass(frozen=True, slots=True)
class Matches:
    """`ambiguous` are launches that fit rows of several cases, which their attributes tell apart
    and the profile does not; `unmatched` fit no row, `alone` are rows that no launch fits."""

    found: tuple[Match, ...]
    ambiguous: tuple[tuple[CaseRecord, tuple[TreeRow, ...]], ...]
    unmatched: tuple[CaseRecord, ...]
    alone: tuple[TreeRow, ...]


def match(rows: Sequence[TreeRow], launches: Sequence[CaseRecord]) -> Matches:
    """Bring the launches of a profile to the rows of a tree."""
    matching = _Matching(rows)
    left = matching.by_case(launches)
    left, ambiguous = matching.by_signature(left)
    used = matching.by_family(launches)
    return Matches(
        found=tuple(matching.found[row.place] for row in rows if row.place in matching.found),
        ambiguous=tuple(ambiguous),
        unmatched=tuple(record for record in left if record.case_id not in used),
        alone=tuple(row for row in rows if row.place not in matching.found),
    )


def pooled(launches: Sequence[CaseRecord]) -> ProfileStatistics:
    """The plain mean over all launches of several records. Median and spread are those of the
    first: they cannot be had of a pool."""
    profiles = [record.profile for record in launches if record.profile is not None]
    if len(profiles) == 1:
        return profiles[0]
    count = sum(profile.count for profile in profiles)
    mean_us = sum(profile.total_us for profile in profiles) / count
    sums: dict[str, tuple[float, int]] = {}
    for profile in profiles:
        for name, value in profile.counters:
            total, n = sums.get(name, (0.0, 0))
            sums[name] = (total + value * profile.count, n + profile.count)
    counters = tuple((name, total / n) for name, (total, n) in sums.items())
    return replace(profiles[0], count=count, mean_us=mean_us, counters=counters)


class _Matching:
    """Rows, and the launches found for them so far."""

    def __init__(self, rows: Sequence[TreeRow]) -> None:
        self.found: dict[Place, Match] = {}
        self._by_case: dict[Case, list[TreeRow]] = defaultdict(list)
        self._by_signature: dict[tuple[str, Signature], list[TreeRow]] = defaultdict(list)
        for row in rows:
            self._by_case[row.case].append(row)
            if row.case.inputs is None:  # it says nothing that could be like something else
                continue
            self._by_signature[row.case.kernel_type, signature_of(row.case)].append(row)

    def by_case(self, launches: Iterable[CaseRecord]) -> list[CaseRecord]:
        """Take launches by their full identity, and give back those that are left."""
        left = []
        for record in launches:
            rows = self._by_case.get(record.case, [])
            for row in rows:
                self._take(row, How.CASE, record)
            if not rows:
                left.append(record)
        return left

    def by_signature(
        self, launches: Iterable[CaseRecord]
    ) -> tuple[list[CaseRecord], list[tuple[CaseRecord, tuple[TreeRow, ...]]]]:
        """Take launches by the coarser signature: what is left, and what cannot be decided."""
        taken = frozenset(self.found)
        left, ambiguous = [], []
        for record in launches:
            rows = [row for row in self._similar(record.case) if row.place not in taken]
            if len({row.case.attributes for row in rows}) > 1:
                ambiguous.append((record, tuple(rows)))
                continue
            for row in rows:
                self._take(row, How.SIGNATURE, record)
            if not rows:
                left.append(record)
        return left, ambiguous

    def by_family(self, launches: Iterable[CaseRecord]) -> set[str]:
        """Give the MatMul rows that nothing fitted what another kernel of the family took. Says
        which cases of the profile were used."""
        taken, used = frozenset(self.found), set()
        for record in launches:
            if record.case.kernel_type not in MATMUL_FAMILY:
                continue
            for other in sorted(MATMUL_FAMILY - {record.case.kernel_type}):
                asked = replace(record.case, kernel_type=other)
                rows = self._by_case.get(asked) or self._similar(asked)
                for row in (row for row in rows if row.place not in taken):
                    self._take(row, How.FAMILY, record)
                    used.add(record.case_id)
        return used

    def _similar(self, case: Case) -> list[TreeRow]:
        if case.inputs is None:
            return []
        rows = self._by_signature.get((case.kernel_type, signature_of(case)), [])
        return [row for row in rows if agrees(row.case, case)]

    def _take(self, row: TreeRow, how: How, record: CaseRecord) -> None:
        known = self.found.get(row.place)
        launches = (*known.launches, record) if known else (record,)
        self.found[row.place] = Match(row, how, launches)
