"""Which durations that a version shows lie above those of larger cases, by `quality/envelope`.

It decides nothing, and no certificate has it: what is larger may be measured later.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.case import Case
from collector.database.case_work import cases_of, lengths_of_forms
from collector.database.row_sets import places_alike
from collector.database.state import TEXT
from collector.ops.together import Whole
from collector.quality.curve import Floats
from collector.quality.envelope import larger_and_faster
from collector.stack import backend_of

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


def envelope_of(cases: pa.Table, mean_us: Mapping[str, float], device: str) -> Envelope:
    """What lies above; `cases` are records, sorted by id, and `mean_us` the durations of those that
    are asked. On a cpu, where threads come in at a size, none is."""
    if backend_of(device) == "cpu":
        return Envelope()
    cases = cases.filter(pc.is_in(cases["case"], value_set=pa.array(mean_us, TEXT)))
    kernels = [places[:_MOST_OF_KERNEL] for places in places_alike(cases, ("kernel_type",))]
    cases = cases.take(pa.array(np.sort(np.concatenate(kernels))))
    duration_us = np.array([mean_us[case] for case in cases["case"].to_pylist()], np.float64)
    larger = _larger(cases, duration_us)
    above = np.flatnonzero(larger >= 0)
    told = _told(cases, duration_us, above, larger[above])
    return Envelope(
        tuple(sorted(told, key=lambda one: one.larger_us / one.mean_us)),
        tuple(_out_of_order(cases["kernel_type"], above)),
    )


def _larger(cases: pa.Table, duration_us: Floats) -> Whole:
    """For each case the place of a larger and faster one; -1 where there is none."""
    larger = np.full(cases.num_rows, -1, np.int64)
    for places, lengths in lengths_of_forms(cases):
        found = larger_and_faster(lengths.astype(np.float64), duration_us[places])
        larger[places] = np.where(found >= 0, places[found], -1)
    return larger


def _told(
    cases: pa.Table, duration_us: Floats, above: Whole, larger: Whole
) -> Iterator[AboveEnvelope]:
    pairs = (cases_of(cases.take(pa.array(places))) for places in (above, larger))
    for at, than, case, other in zip(above.tolist(), larger.tolist(), *pairs, strict=True):
        if case is not None and other is not None:  # one that is none has no lengths
            yield AboveEnvelope(case, float(duration_us[at]), other, float(duration_us[than]))


def _out_of_order(kernel_types: pa.ChunkedArray, above: Whole) -> Iterator[OutOfOrder]:
    asked = Counter(kernel_types.to_pylist())
    found = Counter(kernel_types.take(pa.array(above)).to_pylist())
    for kernel_type, count in sorted(asked.items()):
        if count >= _FEWEST and found[kernel_type] > _MOST_ABOVE * count:
            yield OutOfOrder(kernel_type, found[kernel_type], count)
