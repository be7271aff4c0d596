"""A version directory as a data source of msmodeling's TensorCast.

    from tensor_cast.performance_model.profiling_database import data_source
    source = OpmeterDataSource(version, types=data_source)
    EmpiricalPerformanceModel(device_profile, source)

The source has the methods of msmodeling's `DataSourcePerformanceModel`, and returns its own
`QueryResult` and `QuerySource`, taken from `types`; neither msmodeling nor torch is imported. The
op_mapping names the kernel of an operator; without one it is that of a pulled tree, from the
declarations of opmeter. Kernels are matched as msmodeling matches them:
leading batches of 1, transposed and blocked weights, flattened tokens. Operators that are made of
several kernels are passed to `fallback`, such as msmodeling's `ProfilingDataSource` of the pulled
tree. Messages between ranks are those of the nearest ranks, unless `tier_of` returns the tier of a
group.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import product
from math import exp, log, prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import MOST_YAML_BYTES, read_small_file
from collector.database.index import IndexBlock
from collector.database.op_mapping import check_op_mapping
from collector.database.op_mapping_writing import written_mapping
from collector.model.record import CaseRecord
from collector.model.vocabulary import RUNTIME_PREFIX, dtype_of, is_absent_dtype
from collector.ranks.collective import CollectiveCase
from collector.shapes.expression import in_blocks
from opmeter.adapters.attention import FUSED, PagedKey, cells_for_requests, paged_cases
from opmeter.adapters.collectives import collectives_of, with_message
from opmeter.answers import Answer, Channel, Reason
from opmeter.cases import KEY_LENGTHS, MEAN_LENGTH, Shape, mean_of, spelled_dtype
from opmeter.misses import MissLog
from opmeter.version import Version

_PRODUCTS = frozenset(
    (
        *("MatMulV2", "MatMulV3", "MatMulCommon", "MatMul", "QuantBatchMatmulV3", "BatchMatMulV2"),
        *("TransposeBatchMatMul", "GroupedMatmul", "GroupedMatmulSwigluQuant"),
    )
)
_LOOKED_UP_AS = {"DT_FLOAT16": "DT_BF16", "FLOAT16": "DT_BF16"}  # where no case has the own dtype
_NEAREST_LENGTH = 16.0  # msmodeling takes a row whose mean length is at most this far
_REASONS = {
    Reason.NO_KERNEL: "csv_not_found",
    Reason.NO_DTYPE: "dtype_unmapped",
    Reason.NO_LAYOUT: "input_count_mismatch",
    Reason.NO_LENGTH: "shape_mismatch",
    Reason.OUTSIDE: "shape_mismatch",
}


class QuerySource(Enum):
    """How a latency was obtained; the names are msmodeling's."""

    MEASURED = auto()
    INTERPOLATED = auto()
    EXTRAPOLATED = auto()
    PARTIAL = auto()


@dataclass
class QueryResult:
    """The result of a lookup, with msmodeling's fields."""

    latency_us: float
    confidence: float
    source: Any
    details: dict[str, Any] = field(default_factory=dict)


class Types(Protocol):
    """The classes of results: msmodeling's module `data_source`."""

    @property
    def QueryResult(self) -> Any: ...
    @property
    def QuerySource(self) -> Any: ...


class OwnTypes:
    """The classes of this module, for a program without msmodeling."""

    QueryResult = QueryResult
    QuerySource = QuerySource


class Invocation(Protocol):
    """What is used of msmodeling's `OpInvokeInfo`."""

    func: Any
    args: Any
    out: Any


class DataSource(Protocol):
    """What is used of msmodeling's `DataSourcePerformanceModel`."""

    def lookup(self, op_invoke_info: Any) -> Any: ...


class _Tensor(NamedTuple):
    shape: Shape
    dtype: str


# Cases of attention by their queries, key heads and number of requests (empty and 0 where a case
# does not record them): the row, and the mean length of its keys.
_Attentions = dict[tuple[Shape, str, int], list[tuple[int, float]]]


class OpmeterDataSource:
    """See the module. `last_miss_reason` has why the last lookup had no result, in msmodeling's
    words. Misses of single kernels are counted in `misses`, one launch each; those of attention
    only over a paged cache, and if a case with these heads and queries of a request is measured,
    those of messages if the grid of a measured one has such a group."""

    def __init__(
        self,
        version: Version,
        op_mapping: str | Path | Mapping[str, Any] | None = None,
        *,
        types: Types = OwnTypes,
        misses: MissLog | None = None,
        fallback: DataSource | None = None,
        tier_of: Callable[[Sequence[int]], int] | None = None,
        extrapolate: bool = False,
    ) -> None:
        self.version = version
        self.last_miss_reason = ""
        self._types = types
        self._misses = misses
        self._fallback = fallback
        self._tier_of = tier_of
        self._extrapolate = extrapolate
        if op_mapping is None:
            op_mapping = yaml.safe_load(written_mapping(version.kernels, version.path))
        mapping = op_mapping if isinstance(op_mapping, Mapping) else _read(Path(op_mapping))
        self._operators: Mapping[str, Mapping[str, Any]] = mapping["operator_mappings"]
        # Found once for each block, by the number of its first row.
        self._constants: dict[int, Sequence[tuple[int | None, int]]] = {}
        self._outputs: dict[int, dict[tuple[Shape | None, str], int]] = {}
        self._messages: dict[str, list[tuple[CollectiveCase, Answer]]] = {}
        self._attentions: dict[int, _Attentions] = {}
        self._paged: Mapping[PagedKey, CaseRecord] | None = None

    def lookup(self, op_invoke_info: Invocation) -> Any:
        """Return the result for an operator's call, or None for a miss.

        The confidence is 1 minus the half-width of the 95 % interval as a share of the latency, and
        at least 0. The details have the kernel type, the channel, the interval and warnings."""
        self.last_miss_reason = ""
        name = str(op_invoke_info.func).removeprefix("torch.ops.")
        mapping = self._operators.get(name)
        if mapping is None:
            return self._passed_on(op_invoke_info, "unmapped")
        for mark in ("zero_cost", "accepted_miss"):
            if mapping.get(mark):
                kernel = str(mapping.get("kernel_type", "")) if mark == "zero_cost" else mark
                details = {"kernel_type": kernel, "zero_cost": True}
                return self._types.QueryResult(
                    0.0, 1.0, self._types.QuerySource.MEASURED, details=details
                )
        mode = mapping.get("query_mode", "")
        if mapping.get("composite"):
            return self._passed_on(op_invoke_info, "composite")
        if mapping.get("category") == "communication":
            return self._message(op_invoke_info, str(mapping["kernel_type"]))
        if mode == "attention_special":
            return self._attention(op_invoke_info, mapping)
        if mode == "elementwise" and (found := self._elementwise(op_invoke_info, mapping)):
            return found
        if mode not in ("", "elementwise"):
            return self._passed_on(op_invoke_info, f"query_mode {mode}")
        return self._compute(op_invoke_info, mapping)

    def store(self, op_invoke_info: Invocation, result: Any) -> None:
        """Raise NotImplementedError: a database version never changes."""
        raise NotImplementedError("a database version is read-only")

    def _passed_on(self, call: Invocation, reason: str) -> Any:
        self.last_miss_reason = reason
        if self._fallback is None:
            return None
        found = self._fallback.lookup(call)
        self.last_miss_reason = (
            "" if found is not None else getattr(self._fallback, "last_miss_reason", reason)
        )
        return found

    def _compute(self, call: Invocation, mapping: Mapping[str, Any]) -> Any:
        tensors = list(_tensors(call.args))
        tensors = tensors[: int(mapping.get("tc_input_count", len(tensors)))]
        found: list[tuple[str, Answer]] = []
        missed: Answer | None = None
        for kernel in _kernels(mapping):
            for inputs, dtypes in self._candidates(kernel, tensors):
                answer = self.version.query(kernel, inputs, dtypes, extrapolate=self._extrapolate)
                if answer.channel in (Channel.MEASURED, Channel.POOLED, Channel.REUSED):
                    return self._result(kernel, answer)
                if answer.reason is None:
                    found.append((kernel, answer))
                else:
                    missed = answer
        if found:  # the first kernel that has one, as msmodeling tries them in order
            return self._result(*found[0])
        kernels = _kernels(mapping)
        kernel = next((one for one in kernels if self.version.blocks(one)), kernels[0])
        return self._missed(call, kernel, tensors, missed)

    def _missed(
        self, call: Invocation, kernel: str, tensors: Sequence[_Tensor], answer: Answer | None
    ) -> Any:
        reason = answer.reason if answer is not None and answer.reason else Reason.NO_LAYOUT
        if not self.version.blocks(kernel):
            reason = Reason.NO_KERNEL
        if self._misses is not None:
            shapes = next((inputs for inputs, _ in self._candidates(kernel, tensors)), None)
            shapes = shapes or [tensor.shape for tensor in tensors]
            dtypes = [tensor.dtype for tensor in tensors]
            same = dtypes if len(dtypes) == len(shapes) else dtypes[:1]
            self._misses.add_case(self.version.missed(kernel, shapes, same, reason=reason))
        return self._passed_on(call, _REASONS[reason])

    def _candidates(
        self, kernel: str, tensors: Sequence[_Tensor]
    ) -> Iterator[tuple[list[Shape | None], list[str]]]:
        """Yield the inputs of the kernel's cases that a call may be: of each layout that is
        measured, and for weights in each orientation."""
        if kernel == "SwiGlu" and len(tensors) == 2:  # gate and up are one input there
            one, other = (tensor.shape for tensor in tensors)
            tensors = [tensors[0]._replace(shape=(*one[:-1], one[-1] + other[-1]))]
        for block in self.version.blocks(kernel):
            for relabelled in (False, True):
                filled = list(_filled(kernel, block, tensors, relabelled))
                known = self._constants_of(block) if filled else ()
                for shapes in filled:
                    inputs = _completed(block, shapes, known)
                    if inputs is not None:
                        yield inputs, [dtype for dtype, _ in block.inputs]
                if filled:
                    break

    def _elementwise(self, call: Invocation, mapping: Mapping[str, Any]) -> Any:
        """Return the result of a measured case with this output; None without one."""
        out = call.out[0] if isinstance(call.out, list | tuple) and call.out else call.out
        tensor = next(_tensors([out]), None)
        if tensor is None:
            return None
        for kernel in _kernels(mapping):
            for block in self.version.blocks(kernel):
                known = self._outputs_of(block)
                for shape in _flat(tensor.shape):
                    if (row := known.get((shape, tensor.dtype))) is not None:
                        return self._result(kernel, self.version.measured(row))
        return None

    def _constants_of(self, block: IndexBlock) -> Sequence[tuple[int | None, int]]:
        known = self._constants.get(block.begin)
        if known is None:
            known = self._constants[block.begin] = self.version.constants(block)
        return known

    def _outputs_of(self, block: IndexBlock) -> Mapping[tuple[Shape | None, str], int]:
        """Return the first row of a block by the shape and the dtype of its first output."""
        known = self._outputs.get(block.begin)
        if known is None:
            known = {}
            for row, (shapes, dtypes) in self.version.outputs(block):
                if shapes:
                    known.setdefault((shapes[0], dtypes.partition(";")[0]), row)
            self._outputs[block.begin] = known
        return known

    def _attention(self, call: Invocation, mapping: Mapping[str, Any]) -> Any:
        """Look up attention by the query, the heads and the mean length of the keys."""
        if len(call.args) < 7:
            return self._passed_on(call, "insufficient_args")
        query, key = (next(_tensors([arg]), None) for arg in call.args[:2])
        if query is None or key is None:
            return self._passed_on(call, "query_not_tensor")
        if call.args[6] is None:
            return self._passed_on(call, "missing_seq_lens")
        lengths = [float(one) for one in call.args[6].tolist()]
        shape = _of_queries(query.shape, key.shape[-1])
        if shape is None or not lengths:
            return self._passed_on(call, "q_shape_normalize_failed")
        length = mean_of(lengths)
        near: list[tuple[float, str, Answer]] = []
        for kernel in _kernels(mapping):
            heads = str(key.shape[-2])
            for row, at in self._rows_of(kernel, shape, heads, len(lengths), query.dtype):
                near.append((at - length, kernel, self.version.measured(row)))
        if not near:
            self._missed_attention(mapping, shape, key.shape[-2], query.dtype, lengths)
            return self._passed_on(call, _REASONS[Reason.OUTSIDE])
        gap, kernel, answer = min(near, key=lambda one: abs(one[0]))
        if abs(gap) <= _NEAREST_LENGTH:
            return self._result(kernel, answer, mean_length=length, length_gap=abs(gap))
        of_kernel = [(gap, answer) for gap, name, answer in near if name == kernel]
        below = max((one for one in of_kernel if one[0] < 0), default=None)
        above = min((one for one in of_kernel if one[0] > 0), default=None)
        if below is None or above is None:
            self._missed_attention(mapping, shape, key.shape[-2], query.dtype, lengths)
            return self._passed_on(call, _REASONS[Reason.OUTSIDE])
        ends = [(length + gap, answer) for gap, answer in (below, above)]
        return self._result(kernel, _between(length, *ends), mean_length=length)

    def _missed_attention(
        self,
        mapping: Mapping[str, Any],
        shape: Shape,
        key_heads: int,
        dtype: str,
        lengths: Sequence[float],
    ) -> None:
        """Count a miss of attention over a paged cache, if a case of its kind is measured."""
        if self._misses is None or FUSED not in _kernels(mapping):
            return
        if self._paged is None:
            self._paged = paged_cases(self.version)
        tokens, heads, width = shape
        queries, left = divmod(tokens, len(lengths))
        like = self._paged.get(PagedKey(heads, width, key_heads, dtype, queries))
        if like is not None and not left and min(lengths) >= 1:
            cells = cells_for_requests(like, list(map(round, lengths)))
            self._misses.add(FUSED, cells, Reason.NO_LENGTH, 1.0)

    def _rows_of(
        self, kernel: str, shape: Shape, heads: str, requests: int, dtype: str
    ) -> Iterator[tuple[int, float]]:
        """Yield the cases with these queries, heads and requests, and the mean length of their
        keys."""
        for block in self.version.blocks(kernel):
            if block.inputs and block.inputs[0][0] == dtype:
                known = self._attentions_of(block, shape[-1])
                for key in product([shape], [heads, ""], [requests, 0]):
                    yield from known.get(key, ())

    def _attentions_of(self, block: IndexBlock, head_dim: int) -> _Attentions:
        known = self._attentions.get(block.begin)
        if known is None:
            known = {}
            rank = block.inputs[0][1]
            for row, sizes, settings, lengths in self.version.rows_of(block):
                values = lengths.get(MEAN_LENGTH) or lengths.get(KEY_LENGTHS)
                own = _of_queries(tuple(sizes[: max(rank, 0)]), head_dim)
                if own is not None and values:
                    heads = settings.get(RUNTIME_PREFIX + "num_key_value_heads", "")
                    ends = lengths.get(RUNTIME_PREFIX + "actual_seq_lengths_values", [])
                    requests = len(ends or lengths.get(KEY_LENGTHS, []))
                    known.setdefault((own, heads, requests), []).append((row, mean_of(values)))
            self._attentions[block.begin] = known
        return known

    def _message(self, call: Invocation, kernel: str) -> Any:
        """Look up a message by its bytes, as msmodeling counts them, and its number of ranks."""
        tensor, group = next(_tensors(call.args[:1]), None), call.args[-1] if call.args else None
        dtype = dtype_of(tensor.dtype) if tensor is not None else None
        if tensor is None or dtype is None or not isinstance(group, list | tuple):
            return self._passed_on(call, "invalid_args")
        size_bytes = dtype.bytes_of(prod(tensor.shape))
        if "reduce_scatter" in str(call.func):  # there, the output of one rank
            size_bytes //= max(len(group), 1)
        if kernel not in self._messages:
            self._messages[kernel] = list(collectives_of(self.version, kernel))
        cases = self._messages[kernel]
        of_group = [
            (one.collective, answer)
            for one, answer in cases
            if one.collective.group_size == len(group)
        ]
        tiers = {one.tier for one, _ in of_group}
        tier = self._tier_of(group) if self._tier_of else max(tiers, default=None)
        known = [(one.message_bytes, answer) for one, answer in of_group if one.tier == tier]
        below = max((one for one in known if one[0] <= size_bytes), default=None)
        above = min((one for one in known if one[0] >= size_bytes), default=None)
        if below is None or above is None:
            if self._misses is not None:
                measured = (one for one, _ in cases)
                like = with_message(measured, size_bytes, len(group), tier)
                if like is not None:
                    cells = {**like.cells, **like.extra}
                    self._misses.add(like.kernel_type, cells, Reason.OUTSIDE, 1.0)
            return self._passed_on(call, _REASONS[Reason.OUTSIDE])
        answer = below[1]
        if below[0] != size_bytes:
            answer = _between(size_bytes, below, above)
        return self._result(kernel, answer, topology_tier=tier)

    def _result(self, kernel: str, answer: Answer, **details: object) -> Any:
        sources = self._types.QuerySource
        source = {
            Channel.INTERPOLATED: sources.INTERPOLATED,
            Channel.EXTRAPOLATED: sources.EXTRAPOLATED,
        }.get(answer.channel, sources.MEASURED)
        half_width = (answer.high_us - answer.low_us) / 2 / answer.value_us
        more = {
            "kernel_type": kernel,
            "channel": answer.channel.value,
            "low_us": answer.low_us,
            "high_us": answer.high_us,
            "support": answer.support,
            "warnings": list(answer.warnings),
            **details,
        }
        return self._types.QueryResult(
            answer.value_us, max(0.0, 1.0 - half_width), source, details=more
        )


def _read(path: Path) -> Mapping[str, Any]:
    """Return a checked op_mapping. Raises BadInput, with the line, for an invalid one."""
    with file_errors(path):
        data = read_small_file(path, MOST_YAML_BYTES)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput("the op_mapping is not valid UTF-8", path=path) from error
    check_op_mapping(text, path=path)
    found: Mapping[str, Any] = yaml.safe_load(text)
    return found


def _kernels(mapping: Mapping[str, Any]) -> list[str]:
    names = [mapping["kernel_type"], *mapping.get("alternate_kernel_types", ())]
    return list(dict.fromkeys(map(str, names)))


def _tensors(args: Any) -> Iterator[_Tensor]:
    """Yield the tensors among arguments, also in lists; scalars have no slot of a kernel."""
    for arg in args:
        if isinstance(arg, list | tuple):
            yield from _tensors(arg)
        elif hasattr(arg, "shape") and hasattr(arg, "dtype") and len(arg.shape):
            yield _Tensor(tuple(map(int, arg.shape)), spelled_dtype(str(arg.dtype)))


def _flat(shape: Shape) -> Iterator[Shape]:
    """Yield the shapes that a kernel may record for a tensor: without leading ones, and with the
    leading dimensions as one."""
    yield shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
        yield shape
    if len(shape) > 2:
        yield (prod(shape[:-1]), shape[-1])
        yield (shape[0], prod(shape[1:]))


def _filled(
    kernel: str, block: IndexBlock, tensors: Sequence[_Tensor], relabelled: bool
) -> Iterator[list[Shape | None]]:
    """Yield shapes for the first inputs of a block, one for each tensor besides absent ones."""
    slots: list[list[Shape | None]] = []
    left = list(tensors)
    for at, (dtype, rank) in enumerate(block.inputs):
        if not left:
            break
        if rank < 0 or is_absent_dtype(dtype):
            slots.append([None])
            continue
        tensor = left.pop(0)
        own = _LOOKED_UP_AS.get(tensor.dtype, "") if relabelled else tensor.dtype
        shapes = _of_rank(tensor.shape, dtype, rank, at > 0 and kernel in _PRODUCTS)
        if own != dtype or not shapes:
            return
        slots.append([*shapes])
    if not left:
        yield from map(list, product(*slots))


def _of_rank(shape: Shape, dtype: str, rank: int, is_weight: bool) -> list[Shape]:
    """Return the shapes with this rank that a kernel may record for a tensor."""
    forms = list(_flat(shape))
    if is_weight and len(shape) >= 2:
        forms += [(*one[:-2], one[-1], one[-2]) for one in forms[:1] + [shape]]
        if dtype_of(dtype) is not None:
            forms += [in_blocks(dtype, one).shape or () for one in forms if len(one) >= 2]
    return list(dict.fromkeys(one for one in forms if len(one) == rank))


def _completed(
    block: IndexBlock, shapes: list[Shape | None], known: Sequence[tuple[int | None, int]]
) -> list[Shape | None] | None:
    """Return all inputs of a case with these first ones. `known` has for each input size of the
    block the earlier size that it equals in all rows, or its constant value; None if an input that
    is left follows from neither."""
    sizes = [size for shape in shapes for size in shape or ()]
    found = list(shapes)
    for _, rank in block.inputs[len(shapes) :]:
        made = []
        for _ in range(max(rank, 0)):
            place, value = known[len(sizes)]
            if place is None and value < 0:
                return None
            made.append(value if place is None else sizes[place])
            sizes.append(made[-1])
        found.append(None if rank < 0 else tuple(made))
    return found


def _of_queries(shape: Shape, head_dim: int) -> Shape | None:
    """Return queries as tokens, heads and width of a head."""
    if len(shape) == 4 and shape[2] == 1:
        return (shape[0], shape[1], shape[3])
    if len(shape) == 3:
        return shape
    if len(shape) == 2 and head_dim and shape[1] % head_dim == 0:
        return (shape[0], shape[1] // head_dim, head_dim)
    return None


def _between(place: float, below: tuple[float, Answer], above: tuple[float, Answer]) -> Answer:
    """Return the duration between two lengths or sizes, linear in the logarithms; its interval
    spans the two cases."""
    (low_at, low), (high_at, high) = below, above
    first, last = log(max(low_at, 1.0)), log(max(high_at, 1.0))
    share = (log(max(place, 1.0)) - first) / (last - first or 1.0)
    value_us = exp((1 - share) * log(low.value_us) + share * log(high.value_us))
    low_us = min(low.low_us, high.low_us)
    high_us = max(low.high_us, high.high_us)
    warnings = tuple(dict.fromkeys((*low.warnings, *high.warnings)))
    return Answer(value_us, low_us, high_us, Channel.INTERPOLATED, 2, warnings)
