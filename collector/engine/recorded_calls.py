"""The log of a pass as its tables and its order, and the tables made again of the same calls."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from typing import TypeVar

from collector.codec.errors import BadInput, OpmeterError
from collector.engine.calls import Recorded, parse_call, parse_tensor
from collector.engine.cells import argument_of, cells_of
from collector.engine.converted import kernels_of
from collector.engine.kernels import kernel_of
from collector.model.vocabulary import EP_SIZE, RUNTIME_PREFIX
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.workloads.call_order import (
    EVENT_KINDS,
    CallKind,
    CallOrder,
    PassCall,
    number_events,
    number_streams,
)
from collector.workloads.recorded_step import (
    DIRECTIONS,
    TOKENS_OF_A_KEY,
    Prompts,
    RecordedCopy,
    RecordedLaunch,
    RecordedMessage,
    RecordedPass,
)

_MARK, _HOST = "CUSTOM MARK(", "HOST "
_DRAFT = {
    f'{_MARK}"draft", 1)': CallKind.DRAFT,
    f'{_MARK}"draft", 0)': CallKind.DRAFT_END,
}
_OPERATIONS = {
    "HcclAllReduce": "all_reduce",
    "HcclAllGather": "all_gather",
    "HcclReduceScatter": "reduce_scatter",
    "HcclAlltoAll": "all_to_all_single",
    "HcclAlltoAllV": "all_to_all",
    "HcclBroadcast": "broadcast",
    "HcclBatchSendRecv": "send_recv",
}
_DTYPES = {"DT_BF16": "bfloat16", "FLOAT": "float32"}
_BYTES = {"INT64": 8, "DOUBLE": 8, "INT32": 4, "FLOAT": 4, "DT_BF16": 2, "FLOAT16": 2}
# The settings of attention that its rows have as columns.
_ATTENTION = ("input_layout", "num_heads", "num_key_value_heads", "sparse_mode")
_PLACES_CALL = "triton._compute_slot_mapping_kernel"
_USUAL_PAGE = "128"  # which rows without the column have
_BAND = "4"  # the sparse mode in which a query sees some keys before its own
_ATTENTION_CALL = "aclnnFusedInferAttentionScore"
# Attention to chosen keys, and what chooses them; the ranks of a group may share its tokens.
_SHARED = (
    *("aclnnSparseFlashAttention", "aclnnLightningIndexer", "aclnnLightningIndexerVllm"),
    *("aclnnLightningIndexerQuant", "aclnnQuantLightningIndexer"),
)
# Attention to compressed keys, and what chooses and compresses them.
_COMPRESSED = (
    *("aclnnVllmQuantLightningIndexer", "aclnnCompressor"),
    *("aclnnSparseAttnSharedkv", "aclnnKvQuantSparseAttnSharedkv"),
)
_DISPATCH_CALL = "aclnnMoeDistributeDispatch"
_BETWEEN_RANKS = "aclnnMoeDistribute"  # the number of ranks follows the name of their group
# Products by expert that end at the rows of its group list.
_GROUPED_CALLS = tuple(f"aclnnGroupedMatmul{name}" for name in ("V", "WeightNz", "SwigluQuant"))
GROUP_ENDS = RUNTIME_PREFIX + "group_list_values"
_ND_ONLY = (_ATTENTION_CALL, "aclnnRmsNorm")  # as the profiles at hand show them
_PLAIN = ("NCL", "NCHW")
_CELLS = ("Data Types", "Formats")
# A number that torch_npu reads out of memory that it has freed (`restore_shape` of
# MoeTokenUnpermute, until 2.10).
_FREED = re.compile(r"(?<=aclnnMoeTokenUnpermute\()(.*)ints\([\d,]*\)")


@dataclass(frozen=True, slots=True)
class PassTokens:
    """A pass: its phase, requests, and of each its new tokens and its tokens in total.

    In a mixed pass these requests decode, and `prompts` are processed with them."""

    phase: str
    requests: int
    queries: int
    keys: int
    prompts: Prompts | None = None

    def each(self) -> Sequence[tuple[int, int]]:
        """Return the new tokens and the tokens in total of each request, prompts last."""
        found = [(self.queries, self.keys)] * self.requests
        if self.prompts is not None:
            found += [(self.prompts.queries, self.prompts.keys)] * self.prompts.requests
        return found


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """A line of the log: its text, its stream, and the time of the host since the previous one."""

    text: str
    stream: int = 0
    host_ns: int = 0


def read_step(lines: Iterable[str], number: int) -> Sequence[LoggedCall]:
    """Return the calls of a step of a log, in order; a log that is read on has later steps."""
    found, _ = next(read_steps(lines, [number]))
    return found


def read_steps(
    lines: Iterable[str], numbers: Sequence[int]
) -> Iterator[tuple[Sequence[LoggedCall], int]]:
    """Yield the calls of each of these steps of a log, in order, and the time of the host from the
    last of them to the end of the step, in ns. The numbers ascend."""
    expected = deque(numbers)
    found: list[LoggedCall] = []
    is_inside, last_ns = False, 0
    for line in lines:
        ns, _, stream, text = line.rstrip("\n").split(" ", 3)
        spent_ns = max(0, int(ns) - last_ns)
        if text.startswith(_MARK) and text not in _DRAFT:
            if is_inside:
                yield found, spent_ns
                found, _ = [], expected.popleft()
            if not expected:
                return
            is_inside = text == f'{_MARK}"step", {expected[0]})'
        elif is_inside:
            text = _FREED.sub(r"\1ints(?)", text)
            found.append(LoggedCall(text, int(stream), spent_ns))
        last_ns = max(last_ns, int(ns))
    raise OpmeterError(f"the log of calls: step {expected[0]} is not complete")


def recorded_pass(tokens: PassTokens, logged: Sequence[LoggedCall]) -> RecordedPass:
    """Return a pass of the calls of a step. Raises OpmeterError where a graph is updated in another
    order than it waits."""
    _check_updates(logged)
    tables = _Tables(tokens, dict.fromkeys(one.text for one in logged))
    order = CallOrder.of(number_streams(number_events(tables.calls(logged))))
    return RecordedPass(
        *(tokens.phase, tokens.requests, tokens.queries, tokens.keys, tokens.prompts),
        *(tuple(tables.launches), tuple(tables.messages), tuple(tables.copies)),
        *(tuple(tables.others), order),
    )


def pass_of_call(text: str) -> RecordedPass:
    """Return a pass that has this call alone; `HOST name` is one, too. Raises BadInput for a call
    whose lengths are in the memory of the device."""
    if text.startswith(_HOST) and not text.endswith(")"):
        text += "(0)"
    elif parse_call(text).name.startswith((*_SHARED, *_COMPRESSED)):
        name = parse_call(text).name
        raise BadInput(f"{name}: its duration depends on lengths that only the device has")
    ends = [f"{_HOST}{CallKind.REPLAY_END}(0)"] if text == f"{_HOST}{CallKind.REPLAY}(0)" else []
    return recorded_pass(PassTokens("mixed", 0, 1, 1), [LoggedCall(one) for one in (text, *ends)])


def derived_again(found: RecordedPass) -> RecordedPass:
    """Return a pass with its tables made again of the calls that it was recorded from."""
    sizes = (found.phase, found.requests, found.queries, found.keys, found.prompts)
    return recorded_pass(PassTokens(*sizes), list(logged_calls(found)))


def logged_calls(found: RecordedPass) -> Iterator[LoggedCall]:
    """Yield the calls of which a pass was made. A call of several kernels is its first launch."""
    parts = {(one.call, one.in_graph): at for at, one in reversed([*enumerate(found.launches)])}
    for call in found.order.calls:
        match call.kind:
            case CallKind.LAUNCH:
                launch = found.launches[call.subject]
                if parts[launch.call, launch.in_graph] != call.subject:
                    continue
                text = launch.call
            case CallKind.MESSAGE:
                text = found.messages[call.subject].call
            case CallKind.CALL:
                text = found.calls[call.subject]
            case CallKind.COPY:
                copy = found.copies[call.subject]
                direction = DIRECTIONS.index(copy.direction)
                text = f"{_HOST}copy({direction}, {copy.size_bytes}, {int(copy.is_blocking)})"
            case CallKind.DRAFT | CallKind.DRAFT_END:
                text = next(text for text, kind in _DRAFT.items() if kind is call.kind)
            case _:
                text = f"{_HOST}{call.kind}({call.subject})"
        yield LoggedCall(text, call.stream, call.host_ns)


class _Tables:
    """The tables of a pass, which grow as its calls are read."""

    def __init__(self, tokens: PassTokens, texts: Iterable[str]):
        self.launches: list[RecordedLaunch] = []
        self.messages: list[RecordedMessage] = []
        self.copies: list[RecordedCopy] = []
        self.others: list[str] = []
        self._tokens = tokens
        self._used_rows = dict(_used_rows(parse_call(text) for text in texts if text not in _DRAFT))
        self._known: dict[tuple[str, bool], Sequence[tuple[CallKind, int]]] = {}
        self._in_graph = False

    def calls(self, logged: Iterable[LoggedCall]) -> Iterator[PassCall]:
        """Yield the calls of a pass; the kernels of one call follow each other."""
        for one in logged:
            host_ns = one.host_ns
            for kind, subject in self._subjects(one.text):
                yield PassCall(kind, one.stream, subject, host_ns)
                host_ns = 0

    def _subjects(self, text: str) -> Sequence[tuple[CallKind, int]]:
        if text in _DRAFT:
            return ((_DRAFT[text], 0),)
        if text.startswith(_HOST):
            return (self._of_host(text),)
        key = (text, self._in_graph)
        if key not in self._known:
            self._known[key] = tuple(self._entered(parse_call(text)))
        return self._known[key]

    def _of_host(self, text: str) -> tuple[CallKind, int]:
        call = parse_call(text)
        numbers = [int(argument) for argument in call.arguments]
        kind = CallKind(call.name)
        if kind is CallKind.COPY:
            direction, size_bytes, is_blocking = numbers
            copy = RecordedCopy(DIRECTIONS[direction], size_bytes, bool(is_blocking))
            return kind, _position(self.copies, copy)
        if kind in (CallKind.REPLAY, CallKind.REPLAY_END):
            self._in_graph = kind is CallKind.REPLAY
        return kind, numbers[0] if kind in EVENT_KINDS else 0

    def _entered(self, call: Recorded) -> Iterator[tuple[CallKind, int]]:
        """Enter the launches or the message of a call in the tables, and yield where they are."""
        if call.kind == "HCCL":
            self.messages.append(_message(call, self._in_graph))
            yield CallKind.MESSAGE, len(self.messages) - 1
            return
        first = len(self.launches)
        for part in () if _writes_nothing(call) else kernels_of(call):
            if kernel := kernel_of(part):  # "" where no kernel runs
                columns = _columns(part, self._tokens, self._used_rows)
                self.launches.append(
                    RecordedLaunch(call.text, kernel, _cells(part), columns, self._in_graph)
                )
        if first == len(self.launches):
            yield CallKind.CALL, _position(self.others, call.text)
        for at in range(first, len(self.launches)):
            yield CallKind.LAUNCH, at


_Entry = TypeVar("_Entry")


def _position(table: list[_Entry], entry: _Entry) -> int:
    if entry not in table:
        table.append(entry)
    return table.index(entry)


def _check_updates(logged: Sequence[LoggedCall]) -> None:
    """Raise OpmeterError unless a graph is updated in the order in which it waits for updates."""
    awaited: list[str] = []
    for one in logged:
        name, _, event = one.text.removeprefix(_HOST).partition("(")
        if name == CallKind.REPLAY:
            awaited = []
        elif name == CallKind.AWAIT_UPDATE:
            awaited.append(event)
        elif name == CallKind.UPDATE and awaited and awaited.pop(0) != event:
            raise OpmeterError("a graph is updated in another order than it waits for updates")


def _writes_nothing(call: Recorded) -> bool:
    """Whether aclnn launches nothing: what is written has no elements, or no index has."""
    if call.name == "aclnnIndexPutImpl":
        return all(0 in tensor.shape for tensor in call.tensors[1:-1])
    return call.name.startswith("aclnnInplace") and 0 in call.tensors[0].shape


def _cells(call: Recorded) -> Mapping[str, str]:
    """Return the tensors of a call as a profile shows them.

    Kernels that accept only ND show it for any number of dimensions; an output without elements,
    such as the statistics of attention, is absent."""
    cells = cells_of(call)
    if not call.name.startswith(_ND_ONLY):
        return cells
    found = {}
    for name, text in cells.items():
        slots = text.split(";")
        if name.endswith("Formats"):
            slots = ["ND" if slot in _PLAIN else slot for slot in slots]
        found[name] = ";".join(slots)
    shapes = found.get("Output Shapes", "").strip('"').split(";")
    if call.name.startswith(_ATTENTION_CALL) and shapes[1:] == [""]:
        found |= {f"Output {cell}": found[f"Output {cell}"].split(";")[0] for cell in _CELLS}
        found["Output Shapes"] = f'"{shapes[0]}"'
    return found


def _message(call: Recorded, in_graph: bool) -> RecordedMessage:
    operation = _OPERATIONS.get(call.name, call.name)
    (ranks,) = (a for a in call.arguments if a.startswith("ranks="))
    dtypes = {tensor.dtype for tensor in call.tensors}
    recorded = next(iter(dtypes), "INT8")
    dtype = _DTYPES.get(recorded, recorded.lower())
    elements = sum(prod(tensor.shape) for tensor in call.tensors)
    if operation == "send_recv":
        elements //= max(1, sum(a.startswith(("to=", "from=")) for a in call.arguments))
    group = int(ranks.removeprefix("ranks="))
    if operation == "all_to_all_single":  # HCCL takes the number of elements that go to each rank
        elements *= group
    size = elements * _BYTES.get(recorded, 1)
    return RecordedMessage(call.text, operation, size, dtype, group, in_graph)


def _used_rows(calls: Iterable[Recorded]) -> Iterator[tuple[int, int]]:
    """Yield the rows that a dispatch to experts allocates, and those that it fills: all ranks send
    as many, and each expert receives as many."""
    for call in calls:
        if call.name.startswith(_DISPATCH_CALL):
            _, chosen, *_ = call.tensors  # (tokens, choices)
            received = parse_tensor(argument_of(call, "expand_x"))
            assert received is not None
            yield received.shape[0], prod(chosen.shape)


def _columns(call: Recorded, tokens: PassTokens, used_rows: Mapping[int, int]) -> Mapping[str, str]:
    """Return the columns on which the time of attention, of places in its cache, of experts'
    products, and of messages to experts depends."""
    if call.name == _PLACES_CALL:
        page = argument_of(call, "block_size")
        return {} if page == _USUAL_PAGE else {RUNTIME_PREFIX + "block_size": page}
    if call.name.startswith(_BETWEEN_RANKS):
        names = [at for at, argument in enumerate(call.arguments) if argument.startswith('"')]
        return {EP_SIZE: call.arguments[names[0] + 1]}
    if call.name.startswith(_GROUPED_CALLS):
        rows, weight, *_ = call.tensors
        used = used_rows.get(rows.shape[0], 0)
        groups = cumulative_ends(equal_parts(used, weight.shape[0]))
        return {GROUP_ENDS: ",".join(map(str, groups))} if used else {}
    ends = [*accumulate(queries for queries, _ in tokens.each())]
    keys = [keys for _, keys in tokens.each()]
    if call.name in (*_SHARED, *_COMPRESSED):  # its lengths are tensors of the device
        if call.name in _SHARED:
            ends, keys = _of_first_rank(call, ends, keys)
        else:
            ends, keys = _of_rows(call, tokens)
        named = {"actual_seq_lengths_values": ends, "actual_seq_lengths_kv_values": keys}
        return {RUNTIME_PREFIX + name: ",".join(map(str, n)) for name, n in named.items()}
    if not call.name.startswith(_ATTENTION_CALL):
        return {}
    queries, cached = (argument_of(call, f"actual_seq_lengths{of}") for of in ("", "_kv"))
    found = {name: argument_of(call, name).strip('"') for name in _ATTENTION}
    if parse_tensor(argument_of(call, "block_table")):  # the keys are in pages
        found["block_size"] = argument_of(call, "block_size")
    if found["sparse_mode"] == _BAND:
        found["pre_tokens"] = argument_of(call, "pre_tokens")
    if tokens.phase == "decode":  # in a graph with further requests
        first, following = _listed(cached)
        more = max(0, len(first) + following - len(ends))
        ends += [ends[-1] + tokens.queries * (1 + at) for at in range(more)]
        keys += [0] * more
    found["actual_seq_lengths_values"] = _lengths(queries, ends)
    if text := found["actual_seq_lengths_values"]:
        ends = [*map(int, text.split(","))]
    lengths = _lengths(cached, keys)
    found["actual_seq_lengths_kv_values"] = _with_new(lengths, ends)
    return {RUNTIME_PREFIX + name: text for name, text in found.items() if text}


def _of_rows(call: Recorded, tokens: PassTokens) -> tuple[list[int], list[int]]:
    """Return the ends and the keys of the requests whose new tokens are the rows of a call: of all
    requests, or in a mixed pass of those that decode or of the prompts alone. A row that pads a
    decode is a request of one new token, and of one compressed key."""
    rows, each = call.tensors[0].shape[0], [*tokens.each()]
    groups = [each, each[: tokens.requests], each[tokens.requests :]]
    found = next((one for one in groups if sum(new for new, _ in one) == rows), each)
    if tokens.phase == "decode":
        found = [*found, *[(1, TOKENS_OF_A_KEY)] * (rows - sum(new for new, _ in found))]
    return [*accumulate(new for new, _ in found)], [keys for _, keys in found]


def _of_first_rank(
    call: Recorded, ends: Sequence[int], keys: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the ends of requests among the first tokens, as many as a call has, and the keys that
    the last of them attends to: 0 of a request that other ranks have, or that pads."""
    rows = call.tensors[0].shape[0]
    slots = next(one.shape[0] for one in call.tensors if len(one.shape) == 1)
    padding = slots - len(ends)
    ends = [*ends, *range(ends[-1] + 1, ends[-1] + 1 + padding)]
    starts, keys = (0, *ends[:-1]), (*keys, *[0] * padding)
    held = [
        max(0, key - max(0, end - rows)) if start < rows else 0
        for start, end, key in zip(starts, ends, keys, strict=True)
    ]
    return [min(end, rows) for end in ends], held


def _with_new(lengths: str, ends: Sequence[int]) -> str:
    """Return lengths of keys where requests that pad have as many keys as new tokens, instead of
    none: an operator's lengths are at least 1."""
    each = lengths.split(",")
    if "0" not in each or len(each) != len(ends):
        return lengths
    new = (end - start for start, end in pairwise((0, *ends)))
    return ",".join(str(int(keys) or n) for keys, n in zip(each, new, strict=True))


def _listed(argument: str) -> tuple[list[int], int]:
    """Return the first numbers of a list that the log has, and how many follow."""
    if not argument.startswith("ints(") or argument == "ints()":
        return [], 0
    *listed, last = argument[len("ints(") : -1].split(",")
    is_cut = last.startswith("+")
    return [*map(int, listed if is_cut else (*listed, last))], int(last) if is_cut else 0


def _lengths(argument: str, expected: Sequence[int]) -> str:
    """Return the numbers of a list; of a long one the log has the first and their number."""
    first, following = _listed(argument)
    if following:
        is_as_long = len(first) + following == len(expected)
        first = [*expected] if is_as_long and first == list(expected[: len(first)]) else []
    return ",".join(map(str, first))
