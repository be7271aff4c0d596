"""The cases of a summary whose durations lie above those of larger ones."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from collector.case import Case
from collector.quality.envelope import larger_and_faster
from collector.record import CaseRecord
from jobs.planning.surfaces import alike, sizes

# Case ids are hashes: the first so many of a kernel type are a fair part of it.
_MOST_OF_KERNEL = 2000


@dataclass(frozen=True, slots=True)
class AboveEnvelope:
    """A case that takes more than twice as long as one that is at least as large in every shape."""

    case: Case
    mean_us: float
    larger: Case
    larger_us: float


def above_envelope(
    measured: Iterable[tuple[CaseRecord, float]], device: str
) -> list[AboveEnvelope]:
    """The cases above, the farthest first; `measured` are records and durations, by case id. On a
    cpu, where threads come in at a size, none is asked."""
    if device.startswith("CPU_"):
        return []
    asked = Counter[str]()
    groups: dict[Hashable, list[tuple[Case, float]]] = defaultdict(list)
    for record, mean_us in measured:
        asked[record.kernel_type] += 1
        if asked[record.kernel_type] <= _MOST_OF_KERNEL:
            groups[alike(record.case)].append((record.case, mean_us))
    found = [one for group in groups.values() for one in _of_group(group)]
    return sorted(found, key=lambda one: one.larger_us / one.mean_us)


def _of_group(group: list[tuple[Case, float]]) -> Iterator[AboveEnvelope]:
    lengths = np.array([sizes(case) for case, _ in group], np.float64)
    faster = larger_and_faster(lengths, np.array([us for _, us in group], np.float64))
    for (case, mean_us), at in zip(group, faster.tolist(), strict=True):
        if at >= 0:
            yield AboveEnvelope(case, mean_us, *group[at])
