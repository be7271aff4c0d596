"""The log of a cut model's passes as launches with counts, and their numbers per layer."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path

from collector.codec.errors import OpmeterError
from collector.model.vocabulary import EP_SIZE, RUNTIME_PREFIX
from collector.ops.parts.tensors import cumulative_ends, equal_parts
from collector.recording.calls import Recorded, parse_call, parse_tensor
from collector.recording.cells import cells_of
from collector.recording.converted import kernels_of
from collector.recording.kernels import kernel_of
from collector.shapes.recorded_step import (
    MTP,
    TOKENS_OF_A_KEY,
    Occurrences,
    Prompts,
    RecordedLaunch,
    RecordedMessage,
    RecordedPass,
)

_MARK, _GRAPH = "CUSTOM MARK(", "CUSTOM GRAPH("
_DRAFT = f'{_MARK}"draft", '
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
# The columns of attention, by the position of the argument.
_ATTENTION = {
    "input_layout": 30,
    "num_heads": 27,
    "num_key_value_heads": 31,
    "sparse_mode": 32,
    "block_size": 34,
}
_PLACES_CALL, _PAGE = "triton._compute_slot_mapping_kernel", 6
_USUAL_PAGE = "128"  # which rows without the column have
_BEFORE, _BAND = 28, "4"  # keys before its own that a query sees, in this sparse mode
_QUERY_ENDS, _KEY_LENGTHS = 5, 6
_RECEIVED = -7  # of a dispatch to experts: its rows
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


# The text of a call, whether a graph launched it, and whether it drafts tokens.
Calls = Counter[tuple[str, bool, bool]]


def read_step(log: Path, number: int) -> Calls:
    """Return the calls of a step of a log, in the order of their first launch."""
    found: Calls = Counter()
    is_inside = in_graph = is_draft = False
    begin = f'{_MARK}"step", {number})'
    with log.open() as lines:
        for line in lines:
            text = _FREED.sub(r"\1ints(?)", line.rstrip("\n").split(" ", 3)[3])
            if text.startswith(_DRAFT):
                is_draft = text == f"{_DRAFT}1)"
            elif text.startswith(_MARK):
                if is_inside:
                    return found
                is_inside = text == begin
            elif text.startswith(_GRAPH):
                in_graph = text == f"{_GRAPH}1)"
            elif is_inside:
                found[text, in_graph, is_draft] += 1
    raise OpmeterError(f"{log}: step {number} is not complete")


def per_layer(
    cuts: Sequence[Mapping[str, int]], calls: Sequence[Calls]
) -> Iterator[tuple[str, bool, Occurrences]]:
    """Yield every call with its numbers outside of layers and per layer of each kind; calls that
    draft tokens are those of a layer of the kind MTP.

    The first cut has the fewest layers; each other one has more layers of one kind. Raises
    OpmeterError for a call whose arguments depend on the number of layers."""
    least, first = cuts[0], calls[0]
    others = list(zip(cuts[1:], calls[1:], strict=True))
    numbers: dict[tuple[str, bool], Occurrences] = {}
    for call in dict.fromkeys(key for one in calls for key in one):
        text, in_graph, is_draft = call
        slopes: dict[str, int] = {}
        for cut, counts in others:
            (kind,) = (name for name in cut if cut[name] != least[name])
            slopes[kind] = counts[call] - first[call]
        if min(slopes.values(), default=0) < 0 or (is_draft and any(slopes.values())):
            raise OpmeterError(
                f"a call depends on the number of layers, so that it cannot be scaled: {text}"
            )
        outside = first[call] - sum(n * least[kind] for kind, n in slopes.items())
        inside = {MTP: outside} if is_draft else {k: n for k, n in slopes.items() if n}
        known = numbers.get((text, in_graph), Occurrences(0, {}))
        numbers[text, in_graph] = Occurrences(
            known.outside + (0 if is_draft else outside), {**known.per_layer, **inside}
        )
    for (text, in_graph), occurrences in numbers.items():
        yield text, in_graph, occurrences


def recorded_pass(
    tokens: PassTokens, counted: Iterable[tuple[str, bool, Occurrences]]
) -> RecordedPass:
    """Return a pass of calls with their numbers."""
    launches: list[RecordedLaunch] = []
    messages: list[RecordedMessage] = []
    calls = [(parse_call(text), in_graph, number) for text, in_graph, number in counted]
    used_rows = dict(_used_rows(call for call, _, _ in calls))
    for call, in_graph, occurrences in calls:
        if call.kind == "HCCL":
            messages.append(_message(call, occurrences, in_graph))
            continue
        if _writes_nothing(call):
            continue
        for part in kernels_of(call):
            if kernel := kernel_of(part):  # "" where no kernel runs
                columns = _columns(part, tokens, used_rows)
                launches.append(
                    RecordedLaunch(call.text, kernel, _cells(part), columns, occurrences, in_graph)
                )
    sizes = (tokens.requests, tokens.queries, tokens.keys)
    joined = tuple(joined_launches(launches))
    return RecordedPass(tokens.phase, *sizes, joined, tuple(messages), tokens.prompts)


def _writes_nothing(call: Recorded) -> bool:
    """Whether aclnn launches nothing: what is written has no elements, or no index has."""
    if call.name == "aclnnIndexPutImpl":
        return all(0 in tensor.shape for tensor in call.tensors[1:-1])
    return call.name.startswith("aclnnInplace") and 0 in call.tensors[0].shape


def joined_launches(launches: Iterable[RecordedLaunch]) -> Iterator[RecordedLaunch]:
    """Yield launches; one that is fewer than none outside of layers counts with an equal one.

    Their calls differ in an argument that no cell has, such as a list whose numbers are unknown in
    one cut only."""
    found: dict[str, RecordedLaunch] = {}
    for number, one in enumerate(launches):
        key = repr((one.kernel, one.cells, one.extra, one.in_graph))
        known = found.get(key)
        if known is None:
            found[key] = one
            continue
        first, second = known.occurrences, one.occurrences
        if min(first.outside, second.outside) >= 0:
            found[f"{number} {key}"] = one
            continue
        layers = dict(Counter(first.per_layer) + Counter(second.per_layer))
        both = Occurrences(first.outside + second.outside, layers)
        found[key] = replace(known, occurrences=both)
    yield from found.values()


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


def _message(call: Recorded, occurrences: Occurrences, in_graph: bool) -> RecordedMessage:
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
    return RecordedMessage(call.text, operation, size, dtype, group, occurrences, in_graph)


def _used_rows(calls: Iterable[Recorded]) -> Iterator[tuple[int, int]]:
    """Yield the rows that a dispatch to experts allocates, and those that it fills: all ranks send
    as many, and each expert receives as many."""
    for call in calls:
        if call.name.startswith(_DISPATCH_CALL):
            _, chosen, *_ = call.tensors  # (tokens, choices)
            received = parse_tensor(call.arguments[_RECEIVED])
            assert received is not None
            yield received.shape[0], prod(chosen.shape)


def _columns(call: Recorded, tokens: PassTokens, used_rows: Mapping[int, int]) -> Mapping[str, str]:
    """Return the columns on which the time of attention, of places in its cache, of experts'
    products, and of messages to experts depends."""
    if call.name == _PLACES_CALL:
        page = call.arguments[_PAGE]
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
    arguments = call.arguments
    more = 2 if call.name.endswith("V4") else 0  # scales of queries and sinks come before
    found = {name: arguments[at + more].strip('"') for name, at in _ATTENTION.items()}
    if parse_tensor(arguments[14]) is None:  # no block table: the keys are no pages
        del found["block_size"]
    if found["sparse_mode"] == _BAND:
        found["pre_tokens"] = arguments[_BEFORE + more]
    if tokens.phase == "decode":  # in a graph with further requests
        first, following = _listed(arguments[_KEY_LENGTHS])
        more = max(0, len(first) + following - len(ends))
        ends += [ends[-1] + tokens.queries * (1 + at) for at in range(more)]
        keys += [0] * more
    found["actual_seq_lengths_values"] = _lengths(arguments[_QUERY_ENDS], ends)
    if text := found["actual_seq_lengths_values"]:
        ends = [*map(int, text.split(","))]
    lengths = _lengths(arguments[_KEY_LENGTHS], keys)
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
