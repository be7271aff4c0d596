"""How far a version of the database covers what a model or a profile launches. Pure."""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import fsum

import numpy as np
import numpy.typing as npt

from collector.model.case import Case, Slot
from collector.model.record import CaseRecord
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.ops.registry import find

# Where a case stands among those that serving makes with the same weights: what decides its curve,
# and the sizes that tokens, requests and lengths decide. Pure.
#
# A duration between two measured ones may be told from them where tokens or lengths lie between;
# with other weights, heads or experts it is another kernel's. What a host's memory decides, as how
# many pages a cache has, tells nothing of a launch.

# Where an operator's tokens stand, by slot and dimension, if not first.
_TOKENS: Mapping[str, tuple[int, int]] = {
    "GatherV2": (1, 0),
    "GatherV3": (1, 0),
    "BatchMatMulV2": (0, 1),
    "TransposeBatchMatMul": (0, 1),
    "ScatterNdUpdate": (1, 0),
}
# Slots whose first dimension is a cache's pages, and the one of the table that names them.
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
# What else a row says of how it came to be, or of the memory it lay in.
_BESIDE = _columns(
    *("actual_seq_lengths_shape", "actual_seq_lengths_kv_shape", "block_table_shape"),
    *("block_table_valid_blocks", "source_profile", "metadata_completeness", "attn_state"),
    *("kv_cache_mode", "launched_by"),
)
_IS_LENGTH = frozenset().union(*_LENGTHS)


@dataclass(frozen=True, slots=True)
class Place:
    """`curve` is what cases share of which one may be told from others, `sizes` where on it a case
    stands. `exact` is equal where two cases launch the same."""

    curve: Hashable
    exact: Hashable
    sizes: tuple[float, ...]


def place_of(case: Case) -> Place:
    """The place of a case. That of twins, among which the runtime chooses, is one."""
    kernel = _one_of_twins(case.kernel_type)
    tokens = _tokens(case, kernel)
    kept: list[Hashable] = [kernel]
    sizes: list[float] = []
    for at, slot in enumerate(case.inputs or ()):
        kept.append((slot.dtype, slot.format, tuple(_kept(kernel, at, slot, tokens, case, sizes))))
    # Whether attention tells the sums of its softmax as well, rows of a profile do not agree on.
    given = slice(0, 1) if kernel in _TABLES else slice(None)
    for slot in (case.outputs or ())[given]:
        is_pool = any(slot.shape == pool.shape for pool in _pools(case, kernel))
        kept.append((slot.dtype, slot.format, tuple(_kept_of_output(kernel, slot, is_pool, sizes))))
    told = [(name, text) for name, text in case.attributes if name not in _BESIDE]
    settings = tuple(pair for pair in told if pair[0] not in _IS_LENGTH)
    lengths = tuple(pair for pair in told if pair[0] in _IS_LENGTH)
    curve = (*kept, settings)
    exact = (curve, tuple(sizes), lengths)
    return Place(curve, exact, (*sizes, *_means(dict(lengths))))


def _one_of_twins(kernel_type: str) -> str:
    """The name that stands for all of them: one that is known above, if any is."""
    op = find(kernel_type)
    names = sorted((kernel_type, *(op.twins if op is not None else ())))
    return next((name for name in names if name in _TOKENS or name in _POOLS), names[0])


def _tokens(case: Case, kernel: str) -> int | None:
    at, dimension = _TOKENS.get(kernel, (0, 0))
    inputs = case.inputs or ()
    shape = inputs[at].shape or () if at < len(inputs) else ()
    return shape[dimension] if dimension < len(shape) else None


def _kept(
    kernel: str, at: int, slot: Slot, tokens: int | None, case: Case, sizes: list[float]
) -> Iterator[Hashable]:
    """The dimensions of an input that its curve fixes; those that serving decides go to `sizes`."""
    op = find(kernel)
    weights = op.npu.nz if op is not None else frozenset()
    is_paged = kernel not in _TABLES or _is_given(case, _TABLES[kernel])
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


def _pools(case: Case, kernel: str) -> Iterator[Slot]:
    inputs = case.inputs or ()
    yield from (inputs[at] for at in _POOLS.get(kernel, ()) if at < len(inputs))


def _kept_of_output(
    kernel: str, slot: Slot, is_pool: bool, sizes: list[float]
) -> Iterator[Hashable]:
    """The same of an output; a kernel that writes into a cache gives that."""
    for dimension, size in enumerate(slot.shape or ()):
        if dimension not in (0, _TOKENS.get(kernel, (0, 0))[1]):
            yield size
            continue
        yield "tokens"
        if not is_pool:
            sizes.append(float(size))


def _is_given(case: Case, at: int) -> bool:
    inputs = case.inputs or ()
    return at < len(inputs) and inputs[at].shape is not None


def _means(told: Mapping[str, str]) -> Iterator[float]:
    """The mean of each kind of lengths: a message's bytes, keys of requests, ends of groups."""
    for names in _LENGTHS:
        texts = [told[name] for name in sorted(names) if name in told]
        yield _mean(texts[0]) if texts else 0.0


def _mean(text: str) -> float:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        return 0.0
    return fsum(numbers) / len(numbers)


Floats = npt.NDArray[np.float64]

NEAR = 4.0  # how many times as large or as small a neighbour may be
_BLOCK = 1024  # cases looked at together: most find their neighbours among a few


class Standing(StrEnum):
    """Of a case: `exact` has a duration. `between` measured cases of its curve, which has the same
    weights, heads and settings: of tokens, requests and lengths one has nowhere more and at least a
    quarter of each, another nowhere less and at most four times. `outside` of those that its curve
    has. `missing` without any. `failed` was tried, and has none."""

    EXACT = "exact"
    BETWEEN = "between"
    OUTSIDE = "outside"
    MISSING = "missing"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A case, how often it is launched, and what all of that takes: by the profile it is of, or by
    the roofline of the device."""

    record: CaseRecord
    launches: int
    time_us: float


@dataclass(frozen=True, slots=True)
class Covered:
    wanted: Wanted
    standing: Standing


@dataclass(frozen=True, slots=True)
class Share:
    """What of something is `exact`, by three counts of all."""

    cases: float
    launches: float
    time: float


@dataclass(frozen=True, slots=True)
class UserMetrics:
    """As those who look rows up count them, with kernel types for operators: M1 of launches, M2 of
    kernel types, of which one missed case makes a miss, M3 of those without what counts as free,
    M4 of distinct cases without it, M5 of the time. None where there is nothing to count."""

    m1: float | None
    m2: float | None
    m3: float | None
    m4: float | None
    m5: float | None


def covered(
    wanted: Sequence[Wanted], measured: Mapping[str, Case], failed: Collection[str]
) -> tuple[Covered, ...]:
    """The standing of each case. `measured` are the cases with a duration, by id."""
    exact: set[Hashable] = set()
    sizes_of: dict[Hashable, list[tuple[float, ...]]] = defaultdict(list)
    for place in map(place_of, measured.values()):
        exact.add(place.exact)
        sizes_of[place.curve].append(place.sizes)
    known = {curve: _Measured.of(sizes) for curve, sizes in sizes_of.items()}

    def standing(record: CaseRecord) -> Standing:
        place = place_of(record.case)
        if record.case_id in measured or place.exact in exact:
            return Standing.EXACT
        if record.case_id in failed:
            return Standing.FAILED
        if (curve := known.get(place.curve)) is None:
            return Standing.MISSING
        return Standing.BETWEEN if curve.bracket(place.sizes) else Standing.OUTSIDE

    return tuple(Covered(one, standing(one.record)) for one in wanted)


@dataclass(frozen=True, slots=True)
class _Measured:
    """The sizes of a curve's measured cases (cases, sizes); of each size that differs among them,
    where it stands, its values in order, and whose they are."""

    all: Floats
    axes: tuple[tuple[int, Floats, npt.NDArray[np.intp]], ...]

    @classmethod
    def of(cls, sizes: Sequence[Sequence[float]]) -> "_Measured":
        found = np.unique(np.array(sizes, np.float64), axis=0)
        told = [at for at in range(found.shape[1]) if np.ptp(found[:, at]) > 0] or [0]
        orders = [np.argsort(found[:, at], kind="stable") for at in told]
        axes = ((at, found[order, at], order) for at, order in zip(told, orders, strict=True))
        return cls(found, tuple(axes))

    def bracket(self, sizes: Sequence[float]) -> bool:
        """Whether one of them is nowhere larger, and another nowhere smaller, both near."""
        place = np.array(sizes, np.float64)
        return self._is_one(place / NEAR, place) and self._is_one(place, place * NEAR)

    def _is_one(self, least: Floats, most: Floats) -> bool:
        """Whether one lies between these, all sizes of it. Only those are looked at which do in
        the size in which fewest do."""
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


def share(found: Iterable[Covered], standing: Standing) -> Share:
    """What of all cases, launches and time has a standing; 0 of nothing."""
    rows = tuple(found)
    counts = (
        [1.0 for _ in rows],
        [float(one.wanted.launches) for one in rows],
        [one.wanted.time_us for one in rows],
    )
    return Share(*(_ratio(rows, of, standing) or 0.0 for of in counts))


def user_metrics(found: Sequence[Covered], free: Collection[str]) -> UserMetrics:
    """M1 to M5; `free` are the kernel types that an op_mapping counts as zero_cost."""
    paid = [one for one in found if one.wanted.record.case.kernel_type not in free]
    return UserMetrics(
        m1=_ratio(found, [float(one.wanted.launches) for one in found]),
        m2=_of_kernels(found),
        m3=_of_kernels(paid),
        m4=_ratio(paid, [1.0] * len(paid)),
        m5=_ratio(found, [one.wanted.time_us for one in found]),
    )


def _of_kernels(found: Sequence[Covered]) -> float | None:
    hit: dict[str, bool] = {}
    for one in found:
        kernel = one.wanted.record.case.kernel_type
        hit[kernel] = hit.get(kernel, True) and one.standing is Standing.EXACT
    return sum(hit.values()) / len(hit) if hit else None


def _ratio(
    found: Sequence[Covered], of: Sequence[float], standing: Standing = Standing.EXACT
) -> float | None:
    whole = fsum(of)
    part = fsum(x for one, x in zip(found, of, strict=True) if one.standing is standing)
    return part / whole if whole else None
