"""Messages between ranks that a program of torch sends, as Ascend's profiler records them.

torch.distributed, DDP and FSDP dispatch an operator of `c10d` for each collective. It becomes a row
of communication, and an entry of `communication.json` with the elements that HCCL would count, so
that the messages of a CPU or a GPU are cases of `comm` in the same way as those of an NPU.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from collector.profiles.transfers import CALL, GROUPS, METADATA, TIMES, group_number
from collector.ranks.collective import OPERATIONS

_HCCL_DTYPES = {
    torch.bfloat16: "BFP16",
    torch.float16: "FP16",
    torch.float32: "FP32",
    torch.float64: "FP64",
    **{getattr(torch, f"int{bits}"): f"INT{bits}" for bits in (8, 16, 32, 64)},
    torch.uint8: "UINT8",
}
_LIBRARY = "c10d::"
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Message:
    """The call of a collective: `elements` as HCCL counts them, the name of its group, and its
    ranks."""

    kernel_type: str
    elements: int
    dtype: str
    group: str
    ranks: tuple[int, ...]

    def row_name(self, number: int) -> str:
        """Return the name of the row of the call with this number."""
        return f"{self.kernel_type}_{group_number(self.group)}_{number}_1"


def _sent(args: Sequence[Any], at: int) -> Sequence[torch.Tensor]:
    value = args[at]
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _of_first(args: Sequence[Any]) -> Sequence[torch.Tensor]:
    return _sent(args, 0)


def _of_second(args: Sequence[Any]) -> Sequence[torch.Tensor]:
    return _sent(args, 1)


# The operation of a call, and the tensors that are its message.
_OPERATIONS: Mapping[str, tuple[str, Callable[[Sequence[Any]], Sequence[torch.Tensor]]]] = {
    "allreduce_": ("all_reduce", _of_first),
    "allreduce_coalesced_": ("all_reduce", _of_first),
    "broadcast_": ("broadcast", _of_first),
    "allgather_": ("all_gather", _of_second),
    "_allgather_base_": ("all_gather", _of_second),
    "allgather_into_tensor_coalesced_": ("all_gather", _of_second),
    "reduce_scatter_": ("reduce_scatter", _of_first),
    "_reduce_scatter_base_": ("reduce_scatter", _of_first),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", _of_first),
    "alltoall_": ("all_to_all", _of_second),
    "alltoall_base_": ("all_to_all_single", _of_second),
}
_SPLITS = 3  # of `alltoall_base_`, by output and by input: HCCL has another kernel for these
# How torch's profiler names the call of a backend: `gloo:all_reduce`.
_PROFILED = {
    "hcom_allReduce_": ("all_reduce",),
    "hcom_broadcast_": ("broadcast",),
    "hcom_allGather_": ("all_gather", "_allgather_base", "_all_gather_base", "allgather_into"),
    "hcom_reduceScatter_": ("reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor"),
    **dict.fromkeys(("hcom_alltoallv_", "hcom_alltoall_"), ("all_to_all",)),
}


def message_of(func: Any, args: Sequence[Any]) -> Message | None:
    """Return the message of an operator; None for one that is no call of a group of ranks."""
    name: str = func._schema.name
    if not name.startswith(_LIBRARY):
        return None
    group = next(filter(None, map(_group_in, args)), None)
    if group is None:
        return None
    name = name.removeprefix(_LIBRARY)
    ranks = tuple(sorted(torch.distributed.get_process_group_ranks(group)))
    if name not in _OPERATIONS:
        return Message(f"hcom_{name.replace('_', '')}_", 0, "", str(group.group_name), ranks)
    operation, message = _OPERATIONS[name]
    tensors = message(args)
    elements = sum(one.numel() for one in tensors)
    if operation == "all_to_all_single":
        if any(args[_SPLITS : _SPLITS + 2]):
            operation = "all_to_all"
        else:
            elements //= len(ranks)  # HCCL counts the part of one rank
    dtype = tensors[0].dtype
    called = (elements, _HCCL_DTYPES.get(dtype, str(dtype)), str(group.group_name), ranks)
    return Message(OPERATIONS[operation].kernel_type, *called)


def _group_in(value: Any) -> Any:
    """Return the group of ranks that an argument is; None for others."""
    if not isinstance(value, torch.ScriptObject):
        return None
    try:
        return torch.distributed.ProcessGroup.unbox(value)
    except (RuntimeError, TypeError):  # an operation of a reduction
        return None


def profiled_spans(kernel_types: Iterable[str], events: Iterable[Any]) -> list[Span | None]:
    """Return when each call ran by the events of torch's profiler, in nanoseconds: the program
    dispatches a call and may go on. None where the events do not have as many calls."""
    requested = list(kernel_types)
    found: dict[str, list[Span]] = {}
    for event in events:
        _, mark, operation = event.name().partition(":")
        for kernel_type, names in _PROFILED.items():
            if mark and operation.startswith(names):
                span = (event.start_ns(), event.start_ns() + event.duration_ns())
                found.setdefault(kernel_type, []).append(span)
    spans = {
        kernel_type: iter(sorted(of))
        for kernel_type, of in found.items()
        if len(of) == requested.count(kernel_type)
    }
    return [next(spans.get(one, iter(())), None) for one in requested]


def exposed_ns(messages: Iterable[Span], operators: Iterable[Span], within: Span) -> int:
    """Return how long messages ran within a span while no operator did."""
    busy = list(_joined(operators))
    starts = [start for start, _ in busy]
    exposed = 0
    for start, end in _joined(messages):
        start, end = max(start, within[0]), min(end, within[1])
        at = max(0, bisect_left(starts, start) - 1)
        covered = sum(
            max(0, min(end, other[1]) - max(start, other[0]))
            for other in busy[at : bisect_left(starts, end)]
        )
        exposed += max(0, end - start - covered)
    return exposed


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Yield spans that do not overlap, and cover the same time."""
    current: Span | None = None
    for start, end in sorted(spans):
        if current is None or start > current[1]:
            if current is not None:
                yield current
            current = (start, end)
        else:
            current = (current[0], max(current[1], end))
    if current is not None:
        yield current


def write_messages(messages: Iterable[tuple[int, str, Message, Span]], output: Path) -> None:
    """Write the messages of a run next to its tables: their step, name, call and span. Nothing is
    written if there are none."""
    steps: dict[str, dict[str, dict[str, object]]] = {}
    groups: dict[str, object] = {}
    for step, name, one, (start_ns, end_ns) in messages:
        groups[one.group] = {"global_ranks": list(one.ranks)}
        members = steps.setdefault(f"step{step}", {"p2p": {}, "collective": {}})
        members["collective"][f"{name}@{group_number(one.group)}"] = {
            "Communication Time Info": {
                "Start Timestamp(us)": start_ns / 1000,
                "Elapse Time(ms)": (end_ns - start_ns) / 1e6,
            },
            "Communication Bandwidth Info": {
                carrier: {"Transit Size(MB)": 0} for carrier in ("SDMA", "RDMA")
            },
            CALL: {"count": one.elements, "data_type": one.dtype, "rank_size": len(one.ranks)},
        }
    if not steps:
        return
    (output / TIMES).write_text(json.dumps(steps), "utf-8")
    (output.parent / METADATA).write_text(json.dumps({GROUPS: groups}), "utf-8")
