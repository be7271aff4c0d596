"""How well a version of the database covers the launches of a model or a profile. Pure."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum

import numpy as np
import numpy.typing as npt

from collector.codec.numbers import number_of
from collector.model.case import Case, Slot
from collector.model.record import CaseRecord
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops.registry import find
from jobs.planning.workload import WorkloadCase

# The position of a case among the cases that serving makes with the same weights: the properties
# that select its curve, and the sizes that follow from tokens, requests and lengths. Pure.
#
# A duration can be interpolated between two measured cases if tokens or lengths lie between theirs.
# With other weights, heads or experts the kernel behaves differently. Sizes that follow from the
# memory of a host, for example the number of pages of a cache, do not affect a launch.

# The slot and dimension that hold an operator's tokens, if not the first.
_TOKENS: Mapping[str, tuple[int, int]] = {
    "GatherV2": (1, 0),
    "GatherV3": (1, 0),
    "BatchMatMulV2": (0, 1),
    "TransposeBatchMatMul": (0, 1),
    "ScatterNdUpdate": (1, 0),
}
# Slots whose first dimension is the pages of a cache, and the slot of the table that lists pages.
_POOLS: Mapping[str, tuple[int, ...]] = {
    "FusedInferAttentionScore": (1, 2, 25),
    "ReshapeAndCacheNdKernel": (2, 3),
    "KvRmsNormRopeCache": (5, 6),
    "PagedCacheLoadNdKernel": (0, 1),
    "ScatterNdUpdate": (0,),
    "mla_preprocess_0_mix_aic": (11, 12),
    "LightningIndexer": (1,),
    "LightningIndexerVllm": (1,),
    "SparseFlashAttention": (1, 2, 8),
}
_TABLES: Mapping[str, int] = {
    "FusedInferAttentionScore": 14,
    "PagedCacheLoadNdKernel": 2,
    "LightningIndexer": 5,
    "LightningIndexerVllm": 5,
    "SparseFlashAttention": 4,
}
_REQUESTS: Mapping[str, tuple[int, ...]] = {
    "FusedInferAttentionScore": (5, 6),
    "PagedCacheLoadNdKernel": (3, 6),
    "LightningIndexer": (3, 4),
    "LightningIndexerVllm": (3, 4),
    "SparseFlashAttention": (5, 6),
}


def _columns(*names: str) -> frozenset[str]:
    return frozenset(RUNTIME_PREFIX + name for name in names)


_LENGTHS = (
    _columns("actual_seq_lengths_kv_values", "avg_seq_len"),
    _columns("actual_seq_lengths_values"),
    _columns("group_list_values"),
    _columns("message_bytes"),
)
# Columns that only describe the origin of a row or its placement in memory.
_DESCRIPTIVE_COLUMNS = _columns(
    *("actual_seq_lengths_shape", "actual_seq_lengths_kv_shape", "block_table_shape"),
    *("block_table_valid_blocks", "source_profile", "metadata_completeness", "attn_state"),
    *("kv_cache_mode", "launched_by"),
)
_IS_LENGTH = frozenset().union(*_LENGTHS)


@dataclass(frozen=True, slots=True)
class CurvePosition:
    """The position of a case on its curve.

    Cases with the same `curve` can be interpolated; `sizes` is the position on the curve. `exact`
    is equal for two cases that launch the same work."""

    curve: Hashable
    exact: Hashable
    sizes: tuple[float, ...]


def curve_position(case: Case) -> CurvePosition:
    """Return the position of a case. Twins, among which the runtime chooses, share one position."""
    kernel = _one_of_twins(case.kernel_type)
    tokens = _tokens(case, kernel)
    kept: list[Hashable] = [kernel]
    sizes: list[float] = []
    for at, slot in enumerate(case.inputs or ()):
        kept.append((slot.dtype, slot.format, tuple(_kept(kernel, at, slot, tokens, case, sizes))))
    # Rows of profiles disagree on whether attention also returns its softmax sums.
    given = slice(0, 1) if kernel in _TABLES else slice(None)
    pools = [_shape(case, at) for at in _POOLS.get(kernel, ()) if at < len(case.inputs or ())]
    for slot in (case.outputs or ())[given]:
        is_pool = slot.shape in pools
        kept.append((slot.dtype, slot.format, tuple(_kept_of_output(kernel, slot, is_pool, sizes))))
    values = [(name, text) for name, text in case.attributes if name not in _DESCRIPTIVE_COLUMNS]
    settings = tuple(pair for pair in values if pair[0] not in _IS_LENGTH)
    lengths = tuple(pair for pair in values if pair[0] in _IS_LENGTH)
    curve = (*kept, settings)
    exact = (curve, tuple(sizes), lengths)
    return CurvePosition(curve, exact, (*sizes, *_means(dict(lengths))))


def _one_of_twins(kernel_type: str) -> str:
    """Return the name that represents all twins: one with an entry in the tables above, if any."""
    op = find(kernel_type)
    names = sorted((kernel_type, *(op.twins if op is not None else ())))
    return next((name for name in names if name in _TOKENS or name in _POOLS), names[0])


def _tokens(case: Case, kernel: str) -> int | None:
    at, dimension = _TOKENS.get(kernel, (0, 0))
    shape = _shape(case, at) or ()
    return shape[dimension] if dimension < len(shape) else None


def _kept(
    kernel: str, at: int, slot: Slot, tokens: int | None, case: Case, sizes: list[float]
) -> Iterator[Hashable]:
    """Yield the dimensions of an input that its curve fixes.

    Sizes that serving sets are appended to `sizes`."""
    op = find(kernel)
    weights = op.npu.nz if op is not None else frozenset()
    is_paged = kernel not in _TABLES or _shape(case, _TABLES[kernel]) is not None
    for dimension, size in enumerate(slot.shape or ()):
        if at in _POOLS.get(kernel, ()) and dimension == 0:
            if not is_paged:
                sizes.append(float(size))
            yield "pages"
        elif at == _TABLES.get(kernel):
            yield "table"
        elif at in _REQUESTS.get(kernel, ()):
            sizes.append(float(size))
            yield "requests"
        elif (at, dimension) == _TOKENS.get(kernel, (0, 0)) or (
            dimension == 0 and size == tokens and at not in weights and kernel not in _TOKENS
        ):
            sizes.append(float(size))
            yield "tokens"
        else:
            yield size


def _kept_of_output(
    kernel: str, slot: Slot, is_pool: bool, sizes: list[float]
) -> Iterator[Hashable]:
    """Yield the same for an output; a kernel that writes into a cache returns the cache."""
    for dimension, size in enumerate(slot.shape or ()):
        if dimension not in (0, _TOKENS.get(kernel, (0, 0))[1]):
            yield size
            continue
        yield "tokens"
        if not is_pool:
            sizes.append(float(size))


def _shape(case: Case, at: int) -> tuple[int, ...] | None:
    inputs = case.inputs or ()
    return inputs[at].shape if at < len(inputs) else None


def _means(values: Mapping[str, str]) -> Iterator[float]:
    """Yield the mean of each kind of length: bytes of a message, keys of requests, group ends."""
    for names in _LENGTHS:
        text = next((values[name] for name in sorted(names) if name in values), "0")
        try:
            numbers = [number_of(part) for part in text.split(",")]
        except ValueError:
            numbers = [0.0]
        yield fsum(numbers) / len(numbers)


Floats = npt.NDArray[np.float64]

NEAR = 4.0  # largest ratio of a size to that of a neighbour, up or down
_BLOCK = 1024  # cases compared at a time: most find their neighbours among the first few


class CoverageStatus(StrEnum):
    """The coverage status of a case.

    - `exact`: the case has a duration.
    - `reused`: the case has none, and that of an older stack is reused for it.
    - `between`: the case is between measured cases of its curve (same weights, heads and settings).
      One has nowhere more tokens, requests and lengths and at least a quarter of each; another has
      nowhere fewer and at most four times as many.
    - `outside`: the curve has measured cases, but the case is not between them.
    - `missing`: the curve has no measured case.
    - `failed`: the case was tried and has no duration.
    - `unsupported`: no operator measures the case."""

    EXACT = "exact"
    REUSED = "reused"
    BETWEEN = "between"
    OUTSIDE = "outside"
    MISSING = "missing"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class CoveredCase:
    workload: WorkloadCase
    status: CoverageStatus


@dataclass(frozen=True, slots=True)
class Share:
    """The share that is `exact`: of the cases, of the launches and of the time."""

    cases: float
    launches: float
    time: float


@dataclass(frozen=True, slots=True)
class UserMetrics:
    """Hit rates as the users of a lookup count them, with kernel types as operators.

    - M1: launches.
    - M2: kernel types; one missed case makes the kernel type a miss.
    - M3: kernel types without the free ones.
    - M4: distinct cases without those of free kernel types.
    - M5: time.

    None if there is nothing to count."""

    m1: float | None
    m2: float | None
    m3: float | None
    m4: float | None
    m5: float | None


def covered_cases(
    workload: Sequence[WorkloadCase],
    measured: Mapping[str, Case],
    failed: Collection[str],
    reused: Collection[str] = (),
    unsupported: Collection[str] = (),
) -> tuple[CoveredCase, ...]:
    """Return the coverage status of each case. `measured` has the cases with a duration, by id;
    `failed`, `reused` and `unsupported` are ids."""
    exact: set[Hashable] = set()
    sizes_of: dict[Hashable, list[tuple[float, ...]]] = defaultdict(list)
    for position in map(curve_position, measured.values()):
        exact.add(position.exact)
        sizes_of[position.curve].append(position.sizes)
    known = {curve: _Measured.of(sizes) for curve, sizes in sizes_of.items()}

    def coverage_status(record: CaseRecord) -> CoverageStatus:
        position = curve_position(record.case)
        if record.case_id in measured or position.exact in exact:
            return CoverageStatus.EXACT
        if record.case_id in reused:
            return CoverageStatus.REUSED
        if record.case_id in unsupported:
            return CoverageStatus.UNSUPPORTED
        if record.case_id in failed:
            return CoverageStatus.FAILED
        if (curve := known.get(position.curve)) is None:
            return CoverageStatus.MISSING
        return CoverageStatus.BETWEEN if curve.bracket(position.sizes) else CoverageStatus.OUTSIDE

    return tuple(CoveredCase(one, coverage_status(one.record)) for one in workload)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The sizes of a curve's measured cases, as an array (cases, sizes).

    `axes` has, for each size that differs among the cases, its index, its sorted values and the
    cases that they belong to."""

    all: Floats
    axes: tuple[tuple[int, Floats, npt.NDArray[np.intp]], ...]

    @classmethod
    def of(cls, sizes: Sequence[Sequence[float]]) -> "_Measured":
        found = np.unique(np.array(sizes, np.float64), axis=0)
        values = [at for at in range(found.shape[1]) if np.ptp(found[:, at]) > 0] or [0]
        orders = [np.argsort(found[:, at], kind="stable") for at in values]
        axes = ((at, found[order, at], order) for at, order in zip(values, orders, strict=True))
        return cls(found, tuple(axes))

    def bracket(self, sizes: Sequence[float]) -> bool:
        """Return whether one near case is nowhere larger and another is nowhere smaller."""
        position = np.array(sizes, np.float64)
        return self._is_one(position / NEAR, position) and self._is_one(position, position * NEAR)

    def _is_one(self, least: Floats, most: Floats) -> bool:
        """Return whether a case is within these bounds in all its sizes.

        Only the cases within the bounds of the most selective size are compared."""
        near = min((self._within(*axis, least, most) for axis in self.axes), key=len)
        for at in range(0, len(near), _BLOCK):
            block = self.all[near[at : at + _BLOCK]]
            if ((least <= block) & (block <= most)).all(axis=1).any():
                return True
        return False

    @staticmethod
    def _within(
        at: int, values: Floats, whose: npt.NDArray[np.intp], least: Floats, most: Floats
    ) -> npt.NDArray[np.intp]:
        start, end = np.searchsorted(values, [least[at], np.nextafter(most[at], np.inf)])
        return whose[start:end]


def share(found: Iterable[CoveredCase], status: CoverageStatus) -> Share:
    """Return the share of cases, launches and time that has this status; 0 if there are none."""
    rows = tuple(found)
    counts = (
        [1.0 for _ in rows],
        [float(one.workload.launches) for one in rows],
        [one.workload.time_us for one in rows],
    )
    return Share(*(_ratio(rows, of, status) or 0.0 for of in counts))


def user_metrics(found: Sequence[CoveredCase], free: Collection[str]) -> UserMetrics:
    """Return M1 to M5. `free` has the kernel types that an op_mapping counts as zero_cost."""
    paid = [one for one in found if one.workload.record.case.kernel_type not in free]
    return UserMetrics(
        m1=_ratio(found, [float(one.workload.launches) for one in found]),
        m2=_of_kernels(found),
        m3=_of_kernels(paid),
        m4=_ratio(paid, [1.0] * len(paid)),
        m5=_ratio(found, [one.workload.time_us for one in found]),
    )


def _of_kernels(found: Sequence[CoveredCase]) -> float | None:
    hit: dict[str, bool] = {}
    for one in found:
        kernel = one.workload.record.case.kernel_type
        hit[kernel] = hit.get(kernel, True) and one.status is CoverageStatus.EXACT
    return sum(hit.values()) / len(hit) if hit else None


def _ratio(
    found: Sequence[CoveredCase], of: Sequence[float], status: CoverageStatus = CoverageStatus.EXACT
) -> float | None:
    whole = fsum(of)
    part = fsum(x for one, x in zip(found, of, strict=True) if one.status is status)
    return part / whole if whole else None
