"""The cases of a summary whose durations lie above those of larger ones."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from collector.case import Case
from collector.quality.envelope import larger_and_faster
from collector.record import CaseRecord
from collector.stack import backend_of
from jobs.planning.surfaces import alike, sizes

# Case ids are hashes: the first so many of a kernel type are a fair part of it.
_MOST_OF_KERNEL = 2000
# Of all cases of a group, from so many on. Of 731 parts of clean published tables one has more.
_FEWEST, _MOST_ABOVE = 40, 0.05


@dataclass(frozen=True, slots=True)
class AboveEnvelope:
    """A case that takes more than twice as long as one that is at least as large in every shape."""

    case: Case
    mean_us: float
    larger: Case
    larger_us: float


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """A kernel type of which more cases lie above than tiles and alignment ever make: a host
    delayed some of its launches, or its records are mixed up."""

    kernel_type: str
    above: int
    cases: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """The cases above, the farthest first, and the kernel types that have too many of them."""

    above: tuple[AboveEnvelope, ...] = ()
    out_of_order: tuple[OutOfOrder, ...] = ()


def above_envelope(measured: Iterable[tuple[CaseRecord, float]], device: str) -> Envelope:
    """What lies above; `measured` are records and durations, by case id. On a cpu, where threads
    come in at a size, none is asked."""
    if backend_of(device) == "cpu":
        return Envelope()
    asked = Counter[str]()
    groups: dict[Hashable, list[tuple[Case, float]]] = defaultdict(list)
    for record, mean_us in measured:
        asked[record.kernel_type] += 1
        if asked[record.kernel_type] <= _MOST_OF_KERNEL:
            groups[alike(record.case)].append((record.case, mean_us))
    found = [(group, list(_of_group(group))) for group in groups.values()]
    above = (one for _, ones in found for one in ones)
    return Envelope(
        tuple(sorted(above, key=lambda one: one.larger_us / one.mean_us)),
        tuple(_out_of_order(found)),
    )


def _out_of_order(
    found: Iterable[tuple[list[tuple[Case, float]], list[AboveEnvelope]]],
) -> Iterator[OutOfOrder]:
    cases, above = Counter[str](), Counter[str]()
    for group, ones in found:
        cases[group[0][0].kernel_type] += len(group)
        above[group[0][0].kernel_type] += len(ones)
    for kernel_type, count in sorted(cases.items()):
        if count >= _FEWEST and above[kernel_type] > _MOST_ABOVE * count:
            yield OutOfOrder(kernel_type, above[kernel_type], count)


def _of_group(group: list[tuple[Case, float]]) -> Iterator[AboveEnvelope]:
    lengths = np.array([sizes(case) for case, _ in group], np.float64)
    faster = larger_and_faster(lengths, np.array([us for _, us in group], np.float64))
    for (case, mean_us), at in zip(group, faster.tolist(), strict=True):
        if at >= 0:
            yield AboveEnvelope(case, mean_us, *group[at])
