"""Where a case stands among those that serving makes with the same weights: what decides its curve,
and the sizes that tokens, requests and lengths decide. Pure.

A duration between two measured ones may be told from them where tokens or lengths lie between; with
other weights, heads or experts it is another kernel's. What a host's memory decides, as how many
pages a cache has, tells nothing of a launch.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from math import fsum

from collector.case import Case, Slot
from collector.ops.registry import find
from collector.vocabulary import RUNTIME_PREFIX

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
