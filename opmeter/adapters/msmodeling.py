"""A version directory as a data source of msmodeling's TensorCast.

    runner = ModelRunner(user_input)
    source = OpmeterDataSource(version)
    runner.perf_models = [EmpiricalPerformanceModel(runner.device_profile, source)]

`OpmeterDataSource` is a subclass of TensorCast's `DataSourcePerformanceModel`, and returns its
`QueryResult` and `QuerySource`, where `tensor_cast` can be imported; otherwise it has the same
methods and own classes of results. The op_mapping names the kernel of an operator; without one it
is that of a pulled tree, from the declarations of opmeter. A call is answered by the case with its
own tensors, scalars and outputs included; then kernels are matched as msmodeling matches them:
leading batches of 1, transposed and blocked weights, flattened tokens, float16 as bfloat16.
Operators that are made of several kernels are passed to `fallback`, such as msmodeling's
`ProfilingDataSource` of the pulled tree. Messages between ranks are those of the nearest ranks,
unless `tier_of` returns the tier of a group.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from importlib import import_module
from itertools import chain, product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import yaml

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import MOST_YAML_BYTES, read_small_file
from collector.database.index import IndexBlock
from collector.database.op_mapping import check_op_mapping
from collector.database.op_mapping_writing import written_mapping
from collector.model.record import CaseRecord
from collector.model.vocabulary import (
    INPUT_DTYPES,
    KEY_LENGTHS,
    MEAN_LENGTH,
    OUTPUT_DTYPES,
    RUNTIME_PREFIX,
    dtype_of,
)
from collector.ops.registry import ops_of
from collector.ranks.collective import ENVIRONMENT, CollectiveCase
from opmeter.adapters.attention import PagedKey, cells_for_requests, fused, paged_cases
from opmeter.adapters.calls import (
    Candidate,
    Output,
    Tensor,
    candidates,
    dtypes_of,
    first_output,
    first_tensors,
    flat,
    tensors_of,
)
from opmeter.adapters.collectives import collectives_alone, with_message
from opmeter.answers import EXACT, Answer, Channel, Reason
from opmeter.cases import (
    Shape,
    arguments_of,
    mean_of,
)
from opmeter.misses import MissLog
from opmeter.version import Version

_OTHER_OUTPUT = "the case has another output"
_CONVERSION = "prims.convert_element_type.default"  # to the dtype of its output
_NEAREST_LENGTH = 16.0  # msmodeling takes a row whose mean length is at most this far
_REASONS = {
    Reason.NO_KERNEL: "csv_not_found",
    Reason.NO_DTYPE: "dtype_unmapped",
    Reason.NO_LAYOUT: "input_count_mismatch",
    Reason.NO_LENGTH: "shape_mismatch",
    Reason.OUTSIDE: "shape_mismatch",
    Reason.AMBIGUOUS: "shape_mismatch",
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


class DataSourcePerformanceModel:
    """The base of data sources, for a program without msmodeling."""


class Types(Protocol):
    """The classes of results: msmodeling's module `data_source`."""

    @property
    def QueryResult(self) -> Any: ...
    @property
    def QuerySource(self) -> Any: ...


class OwnTypes:
    """The classes of this module."""

    QueryResult = QueryResult
    QuerySource = QuerySource
    DataSourcePerformanceModel = DataSourcePerformanceModel


def _consumer() -> Any:
    """Return TensorCast's module `data_source` if it can be imported, else the classes here."""
    try:
        return import_module("tensor_cast.performance_model.profiling_database.data_source")
    except ImportError:
        return OwnTypes


_CONSUMER = _consumer()
if TYPE_CHECKING:
    _Base = DataSourcePerformanceModel
else:
    _Base = _CONSUMER.DataSourcePerformanceModel


class Invocation(Protocol):
    """What is used of msmodeling's `OpInvokeInfo`."""

    func: Any
    args: Any
    out: Any


class DataSource(Protocol):
    """What is used of msmodeling's `DataSourcePerformanceModel`."""

    def lookup(self, op_invoke_info: Any) -> Any: ...


class _Attention(NamedTuple):
    """A case of attention: its row, the mean length of its keys, and all lengths."""

    row: int
    mean: float
    lengths: Sequence[float]


# Cases of attention by their queries, key heads and number of requests (empty and 0 where a case
# does not record them).
_Attentions = dict[tuple[Shape, str, int], list[_Attention]]


class OpmeterDataSource(_Base):
    """See the module. `types` has other classes of results than TensorCast's. `last_miss_reason`
    has why the last lookup had no result, in msmodeling's words. Misses of single kernels are
    counted in `misses`, one launch each; those of attention only over a paged cache, and if a case
    with these heads and queries of a request is measured, those of messages if the grid of a
    measured one has such a group."""

    def __init__(
        self,
        version: Version,
        op_mapping: str | Path | Mapping[str, Any] | None = None,
        *,
        types: Types | None = None,
        misses: MissLog | None = None,
        fallback: DataSource | None = None,
        tier_of: Callable[[Sequence[int]], int] | None = None,
        extrapolate: bool = False,
    ) -> None:
        self.version = version
        self.last_miss_reason = ""
        self._types = _CONSUMER if types is None else types
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
        self._outputs: dict[int, list[Tensor | None]] = {}
        self._output_dtypes: dict[int, list[str]] = {}
        self._messages: dict[str, list[tuple[CollectiveCase, Answer]]] = {}
        self._attentions: dict[int, _Attentions] = {}
        self._paged: Mapping[PagedKey, CaseRecord] | None = None

    def lookup(self, op_invoke_info: Invocation) -> Any:
        """Return the result for an operator's call, or None for a miss.

        The confidence is 1 minus the half-width of the 95 % interval as a share of the latency, and
        at least 0. The details have the kernel type, the channel, the interval and warnings, such
        as that a float16 call is answered by a case of bfloat16."""
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
        tensors, made = list(tensors_of(call.args)), first_output(call.out)
        if is_part := "tc_input_count" in mapping:
            tensors = first_tensors(tensors, int(mapping["tc_input_count"]))
        kernels = _kernels(mapping)
        found_by_kernel = (self._candidates(kernel, tensors) for kernel in kernels)
        # Of equal ones, the first kernel's come first.
        ordered = sorted(chain.from_iterable(found_by_kernel), key=lambda one: one.unlikeness)
        # The kernel of an operator that is looked up by some inputs may have other outputs.
        is_conversion = any(op.kernel in kernels for op in ops_of(_CONVERSION))
        output = Output(made, is_any=is_part and not is_conversion, is_conversion=is_conversion)
        found = self._exact(ordered, output, is_part=is_part)
        if found is None and mapping.get("query_mode") == "elementwise" and made is not None:
            found = self._of_output(kernels, made)
        answer: Answer | None = None
        if found is None:
            found, answer = self._interpolated(ordered, output, is_part=is_part)
        if found is not None:
            return found
        kernel = next((one for one in kernels if self.version.blocks(one)), kernels[0])
        return self._missed(call, kernel, tensors, answer, output, is_part=is_part)

    def _candidates(self, kernel: str, tensors: Sequence[Tensor]) -> Iterator[Candidate]:
        return candidates(self.version.blocks(kernel), kernel, tensors, self._constants_of)

    def _exact(self, ordered: Sequence[Candidate], output: Output, *, is_part: bool) -> Any:
        """Return the result of the case that is most like the call, with exactly its inputs and
        its output; None without one."""
        others: list[tuple[Candidate, list[int]]] = []
        for one in ordered:
            sizes = [size for shape in one.inputs for size in shape or ()]
            rows = list(self.version.index.find(one.block, sizes))
            if not rows:
                continue
            outputs = self._outputs_of(one.block)
            made = [(row, outputs[row - one.block.begin]) for row in rows]
            if own := [row for row, out in made if output.is_own(out)]:
                return self._of_rows(one.kernel, own, one.warnings(is_part=is_part))
            like = [row for row, out in made if output.is_like(out)]
            if like or output.is_any:
                others.append((one, like or rows))
        if not others:
            return None
        one, rows = others[0]
        warnings = (*one.warnings(is_part=is_part), _OTHER_OUTPUT)
        return self._of_rows(one.kernel, rows, warnings)

    def _interpolated(
        self, ordered: Sequence[Candidate], output: Output, *, is_part: bool
    ) -> tuple[Any, Answer | None]:
        """Return the result of a reused case or between cases, or the answer of the last miss."""
        between: tuple[str, Answer, tuple[str, ...]] | None = None
        missed: Answer | None = None
        for one in ordered:
            for settings, of_output in self._settings_with(one.block, output):
                answer = self.version.query(
                    *(one.kernel, one.inputs, one.dtypes),
                    settings=settings,
                    extrapolate=self._extrapolate,
                )
                if answer.reason is not None:
                    missed = answer
                    continue
                warnings = (*one.warnings(is_part=is_part), *of_output)
                found = (one.kernel, answer, warnings)
                if answer.channel in EXACT:
                    return self._result(*found), None
                between = between or found
        if between is not None:
            return self._result(*between), None
        return None, missed

    def _settings_with(
        self, block: IndexBlock, output: Output
    ) -> Iterator[tuple[dict[str, str] | None, tuple[str, ...]]]:
        """Yield the settings of a block with this dtype of the first output, None for any, and
        what an answer states of them."""
        known = self._output_dtypes.get(block.begin)
        if known is None:
            rows = self.version.rows_of(block)
            known = sorted({settings.get(OUTPUT_DTYPES, "") for _, _, settings, _ in rows})
            self._output_dtypes[block.begin] = known
        if output.tensor is None or output.is_any:
            yield None, ()
            return
        for text in known:
            first = Tensor(output.tensor.shape, text.partition(";")[0])
            if not text:
                yield None, ()
            elif output.is_own(first) or output.is_like(first):
                yield {OUTPUT_DTYPES: text}, () if output.is_own(first) else (_OTHER_OUTPUT,)

    def _of_rows(
        self, kernel: str, rows: Sequence[int], warnings: tuple[str, ...], **details: object
    ) -> Any:
        """Return the result of the first of some rows that match a call."""
        means = sorted({self.version.measured(row).value_us for row in rows})
        if len(means) > 1:
            what = f"{len(rows)} cases match, {means[0]:.6g} to {means[-1]:.6g} us"
            warnings = (*warnings, f"{what}: the first is used")
        return self._result(kernel, self.version.measured(rows[0]), warnings, **details)

    def _missed(
        self,
        call: Invocation,
        kernel: str,
        tensors: Sequence[Tensor],
        answer: Answer | None,
        output: Output,
        *,
        is_part: bool,
    ) -> Any:
        reason = answer.reason if answer is not None and answer.reason else Reason.NO_LAYOUT
        if not self.version.blocks(kernel):
            reason = Reason.NO_KERNEL
        if self._misses is not None:
            known = self._candidates(kernel, tensors)
            alike = (one for one in known if is_part or not one.unlikeness.added)
            like = min(alike, key=lambda one: one.unlikeness, default=None)
            shapes = like.inputs if like else [tensor.shape for tensor in tensors]
            dtypes = like.dtypes if like else [tensor.dtype for tensor in tensors]
            made = output.tensor if output.is_conversion else None
            outputs = None if made is None else {OUTPUT_DTYPES: made.dtype}
            missed = self.version.missed(kernel, shapes, dtypes, reason=reason, outputs=outputs)
            self._misses.add_case(missed)
        return self._passed_on(call, _REASONS[reason])

    def _of_output(self, kernels: Sequence[str], output: Tensor) -> Any:
        """Return the result of the measured case with this output; None without one."""
        for kernel in kernels:
            for shape in flat(output.shape):
                for dtype, warnings in dtypes_of(output.dtype):
                    own = Tensor(shape, dtype)
                    rows = [
                        row
                        for block in self.version.blocks(kernel)
                        for row, out in enumerate(self._outputs_of(block), start=block.begin)
                        if out == own
                    ]
                    if rows:
                        return self._of_rows(kernel, rows, warnings)
        return None

    def _constants_of(self, block: IndexBlock) -> Sequence[tuple[int | None, int]]:
        known = self._constants.get(block.begin)
        if known is None:
            known = self._constants[block.begin] = self.version.constants(block)
        return known

    def _outputs_of(self, block: IndexBlock) -> Sequence[Tensor | None]:
        """Return the first output of each row of a block; None where it is not known."""
        known = self._outputs.get(block.begin)
        if known is None:
            known = self._outputs[block.begin] = [
                Tensor(shapes[0] or (), dtypes.partition(";")[0]) if shapes and dtypes else None
                for _, (shapes, dtypes) in self.version.outputs(block)
            ]
        return known

    def _attention(self, call: Invocation, mapping: Mapping[str, Any]) -> Any:
        """Look up attention by the query, the heads and the mean length of the keys."""
        if len(call.args) < 7:
            return self._passed_on(call, "insufficient_args")
        query, key = (next(tensors_of([arg]), None) for arg in call.args[:2])
        if query is None or key is None:
            return self._passed_on(call, "query_not_tensor")
        if call.args[6] is None:
            return self._passed_on(call, "missing_seq_lens")
        try:
            lengths = [float(one) for one in call.args[6].tolist()]
        except (NotImplementedError, RuntimeError):  # a tensor without data
            return self._passed_on(call, "invalid_seq_lens")
        shape = _of_queries(query.shape, key.shape[-1])
        if shape is None or not lengths:
            return self._passed_on(call, "q_shape_normalize_failed")
        heads = str(key.shape[-2])
        for dtype, warnings in dtypes_of(query.dtype):
            near = [
                (kernel, one)
                for kernel in _kernels(mapping)
                for one in self._cases_of(kernel, shape, heads, len(lengths), dtype)
            ]
            if near and (found := self._of_lengths(near, lengths, warnings)) is not None:
                return found
        kinds = (shape, key.shape[-2], query.dtype, lengths)
        kernel, _ = fused()
        cells = self._paged_cells(*kinds) if kernel in _kernels(mapping) else None
        if cells is not None:
            answer = self.version.query(
                kernel, **arguments_of(cells), extrapolate=self._extrapolate
            )
            if answer.reason is None:
                return self._result(kernel, answer, mean_length=mean_of(lengths))
            if self._misses is not None:
                self._misses.add(kernel, cells, Reason.NO_LENGTH, 1.0)
        return self._passed_on(call, _REASONS[Reason.OUTSIDE])

    def _of_lengths(
        self,
        near: Sequence[tuple[str, _Attention]],
        lengths: Sequence[float],
        warnings: tuple[str, ...],
    ) -> Any:
        """Return the result of the case with these lengths, of that with the nearest mean, or
        between cases; None if it is between none."""
        length = mean_of(lengths)
        exact = [(kernel, one) for kernel, one in near if list(one.lengths) == list(lengths)]
        kernel, nearest = min(exact or near, key=lambda one: abs(one[1].mean - length))
        gap = abs(nearest.mean - length)
        if gap <= _NEAREST_LENGTH:
            rows = [
                one.row
                for name, one in exact or near
                if name == kernel and one.mean == nearest.mean
            ]
            return self._of_rows(kernel, rows, warnings, mean_length=length, length_gap=gap)
        cells = self.version.cells(nearest.row)
        given = {KEY_LENGTHS: lengths, MEAN_LENGTH: [length]}
        listed = {name: ",".join(map(str, own)) for name, own in given.items() if name in cells}
        arguments = arguments_of({**cells, **listed})
        answer = self.version.query(kernel, **arguments, extrapolate=self._extrapolate)
        if answer.reason is not None:
            return None
        return self._result(kernel, answer, warnings, mean_length=length)

    def _paged_cells(
        self, shape: Shape, key_heads: int, dtype: str, lengths: Sequence[float]
    ) -> dict[str, str] | None:
        """Return attention over a paged cache with these lengths, like a measured case; None if no
        case of its kind is measured."""
        if self._paged is None:
            self._paged = paged_cases(self.version)
        tokens, heads, width = shape
        queries, left = divmod(tokens, len(lengths))
        kinds = (PagedKey(heads, width, key_heads, one, queries) for one, _ in dtypes_of(dtype))
        like = next(filter(None, map(self._paged.get, kinds)), None)
        if like is None or left or min(lengths) < 1:
            return None
        return cells_for_requests(like, list(map(round, lengths)))

    def _cases_of(
        self, kernel: str, shape: Shape, heads: str, requests: int, dtype: str
    ) -> Iterator[_Attention]:
        """Yield the cases of attention with these queries, heads and requests."""
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
                keys = lengths.get(KEY_LENGTHS, [])
                values = lengths.get(MEAN_LENGTH) or keys
                own = _of_queries(tuple(sizes[: max(rank, 0)]), head_dim)
                if own is not None and values:
                    heads = settings.get(RUNTIME_PREFIX + "num_key_value_heads", "")
                    ends = lengths.get(RUNTIME_PREFIX + "actual_seq_lengths_values", [])
                    one = _Attention(row, mean_of(values), keys)
                    known.setdefault((own, heads, len(ends or keys)), []).append(one)
            self._attentions[block.begin] = known
        return known

    def _message(self, call: Invocation, kernel: str) -> Any:
        """Look up a message by its bytes, as msmodeling counts them, and its number of ranks."""
        tensor, group = next(tensors_of(call.args[:1]), None), call.args[-1] if call.args else None
        dtype = dtype_of(tensor.dtype) if tensor is not None else None
        if tensor is None or dtype is None or not isinstance(group, list | tuple):
            return self._passed_on(call, "invalid_args")
        size_bytes = dtype.bytes_of(prod(tensor.shape))
        if "reduce_scatter" in str(call.func):  # there, the output of one rank
            size_bytes //= max(len(group), 1)
        if kernel not in self._messages:
            self._messages[kernel] = list(collectives_alone(self.version, kernel))
        cases = [
            one for one, _ in self._messages[kernel] if one.collective.group_size == len(group)
        ]
        nearest = max((one.collective.tier for one in cases), default=None)
        tier = self._tier_of(group) if self._tier_of else nearest
        answers = list(self._answers(cases, size_bytes, tier, tensor.dtype))
        found = next((one for one in answers if one[1].channel in EXACT), None) or next(
            iter(answers), None
        )
        if found is not None:
            dtype_text = found[0].collective.dtype
            return self._result(kernel, found[1], topology_tier=tier, dtype=dtype_text)
        if self._misses is not None:
            measured = (one for one, _ in self._messages[kernel])
            like = with_message(measured, size_bytes, len(group), tier)
            if like is not None:
                cells = {**like.cells, **like.extra}
                self._misses.add(like.kernel_type, cells, Reason.OUTSIDE, 1.0)
        return self._passed_on(call, _REASONS[Reason.OUTSIDE])

    def _answers(
        self, cases: Sequence[CollectiveCase], size_bytes: int, tier: int | None, dtype: str
    ) -> Iterator[tuple[CollectiveCase, Answer]]:
        """Yield what cases of one group and tier have for a message of this size, once for each
        setting: its own dtype first, and those without an environment."""
        alike: dict[str, tuple[CaseRecord, CollectiveCase]] = {}
        for one in cases:
            group_size = one.collective.group_size
            record = with_message([one], size_bytes, group_size, one.collective.tier)
            if record is not None and one.collective.tier == tier:
                alike.setdefault(record.case_id, (record, one))
        order = sorted(
            alike.values(),
            key=lambda pair: (pair[0].cells[INPUT_DTYPES] != dtype, pair[1].environment),
        )
        for record, one in order:
            arguments = arguments_of({**record.cells, **record.extra})
            arguments["settings"] |= {ENVIRONMENT: one.environment}
            answer = self.version.query(
                record.kernel_type, **arguments, extrapolate=self._extrapolate
            )
            if answer.reason is None:
                yield one, answer

    def _result(
        self, kernel: str, answer: Answer, warnings: tuple[str, ...] = (), **details: object
    ) -> Any:
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
            "warnings": [*answer.warnings, *warnings],
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


def _of_queries(shape: Shape, head_dim: int) -> Shape | None:
    """Return queries as tokens, heads and width of a head."""
    if len(shape) == 4 and shape[2] == 1:
        return (shape[0], shape[1], shape[3])
    if len(shape) == 3:
        return shape
    if len(shape) == 2 and head_dim and shape[1] % head_dim == 0:
        return (shape[0], shape[1] // head_dim, head_dim)
    return None
