"""A decoder of four layers on this CPU, each of whose kernels is called as a replay calls it.

One step answers one token of each request: its keys and values lie there already, as they do in a
cache. A kernel is filed as a profile of an NPU would, and takes as long as its operators, gaps
between them excluded, which is how the cpu backend measures.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function

from collector.case import Slot, slot_cells
from collector.ops.registry import find
from collector.record import CaseRecord, ProfileStatistics
from collector.replay.events import operator_events
from collector.vocabulary import ACCELERATOR_CORE, INPUT_CELLS, OP_STATE, OUTPUT_CELLS

LAYERS, HIDDEN, HEADS, INTERMEDIATE, VOCABULARY, KEYS = 4, 512, 8, 1408, 8192, 256
_LABEL = "kernel "
_DTYPES = {torch.float32: "FLOAT", torch.int64: "INT64", torch.int32: "INT32"}

Run = Callable[[str, tuple[Any, ...], Sequence[Slot]], Any]


@dataclass
class Launches:
    """The kernels of a step in their order, as records; `run` calls one."""

    records: list[CaseRecord] = field(default_factory=list)

    def run(self, kernel: str, args: tuple[Any, ...], more: Sequence[Slot] = ()) -> Any:
        """What the kernel gives; `more` are inputs of its row that are no tensors of the call."""
        with record_function(f"{_LABEL}{len(self.records)}"):
            out = _call(kernel, args)
        self.records.append(_record(kernel, args, more, out))
        return out


class SmallDecoder:
    """Weights of FLOAT, each in memory of its own."""

    def __init__(self, requests: int, seed: int = 0):
        draw = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=draw) / shape[0] ** 0.5

        size = HIDDEN // HEADS
        self.embedding, self.head = normal(VOCABULARY, HIDDEN), normal(HIDDEN, VOCABULARY)
        self.layers = [
            {
                "norms": (torch.ones(HIDDEN), torch.ones(HIDDEN)),
                "q": normal(HIDDEN, HIDDEN),
                "o": normal(HIDDEN, HIDDEN),
                "gate_up": normal(HIDDEN, 2 * INTERMEDIATE),
                "down": normal(INTERMEDIATE, HIDDEN),
                "keys": normal(requests * HEADS, size, KEYS),
                "values": normal(requests * HEADS, KEYS, size),
            }
            for _ in range(LAYERS)
        ]
        self.last = torch.ones(HIDDEN)
        self.tokens = torch.randint(0, VOCABULARY, (requests,), generator=draw)

    def step(self, run: Run) -> Any:
        """One forward pass: the next token of each request."""
        scalar = (Slot((1,), "INT64", "ND"),)
        x = run("GatherV2", (self.embedding, self.tokens), scalar)
        for layer in self.layers:
            x = run("Add", (x, self._attention(run, layer, x)), ())
            normed = run("RmsNorm", (x, layer["norms"][1]), ())[0]
            wide = run("MatMulV2", (normed, layer["gate_up"]), ())
            gated = run("SwiGlu", (wide,), ())
            x = run("Add", (x, run("MatMulV2", (gated, layer["down"]), ())), ())
        logits = run("MatMulV2", (run("RmsNorm", (x, self.last), ())[0], self.head), ())
        return run("ArgMaxV2", (logits, False, torch.int32), (Slot((), "INT64", "ND"),))

    def _attention(self, run: Run, layer: dict[str, Any], x: Any) -> Any:
        normed = run("RmsNorm", (x, layer["norms"][0]), ())[0]
        queries = run("MatMulV2", (normed, layer["q"]), ()).view(len(x) * HEADS, 1, -1)
        scores = run("BatchMatMulV2", (queries, layer["keys"]), ())
        shares = run("SoftmaxV2", (scores,), ())
        heads = run("BatchMatMulV2", (shares, layer["values"]), ())
        return run("MatMulV2", (heads.view(len(x), -1), layer["o"]), ())


def profiled_steps(decoder: SmallDecoder, steps: int) -> tuple[list[CaseRecord], float]:
    """Each case of so many steps with how long its launches took in them, and the seconds of a step
    that nobody watches, in the middle of as many."""
    with torch.inference_mode():
        for _ in range(3):
            decoder.step(_plain)
        seconds = []
        for _ in range(steps):
            started = time.perf_counter()
            decoder.step(_plain)
            seconds.append(time.perf_counter() - started)
        launches = Launches()
        with profile(use_device=None, use_kineto=True) as watched:
            for _ in range(steps):
                decoder.step(launches.run)
    return _with_times(launches.records, watched.kineto_results.events()), median(seconds)


def _plain(kernel: str, args: tuple[Any, ...], more: Sequence[Slot] = ()) -> Any:
    return _call(kernel, args)


def _call(kernel: str, args: tuple[Any, ...]) -> Any:
    op = find(kernel)
    assert op is not None and op.reference is not None
    return op.reference(torch, *args)


def _record(kernel: str, args: tuple[Any, ...], more: Sequence[Slot], out: Any) -> CaseRecord:
    inputs = [*map(_slot, filter(torch.is_tensor, args)), *more]
    outputs = [_slot(one) for one in (out if isinstance(out, tuple) else (out,))]
    cells = {
        OP_STATE: "dynamic",
        ACCELERATOR_CORE: "AI_CORE" if "MatMul" in kernel else "AI_VECTOR_CORE",
        **slot_cells(INPUT_CELLS, inputs),
        **slot_cells(OUTPUT_CELLS, outputs),
    }
    return CaseRecord(kernel, cells, {})


def _slot(tensor: Any) -> Slot:
    return Slot(tuple(tensor.shape), _DTYPES[tensor.dtype], "ND")


def _with_times(records: Sequence[CaseRecord], raw: Sequence[Any]) -> list[CaseRecord]:
    """Each case once, with the times of its launches: of the operators within each label."""
    labels = {
        int(one.name().removeprefix(_LABEL)): (one.start_ns(), one.start_ns() + one.duration_ns())
        for one in raw
        if one.name().startswith(_LABEL)
    }
    assert sorted(labels) == list(range(len(records)))
    events, at = operator_events(raw), 0
    times_us: dict[str, list[float]] = {}
    kept: dict[str, CaseRecord] = {}
    for number, record in enumerate(records):
        start, end = labels[number]
        duration_ns = 0
        while at < len(events) and events[at].start_ns < end:
            duration_ns += events[at].duration_ns if events[at].start_ns >= start else 0
            at += 1
        kept.setdefault(record.case_id, record)
        times_us.setdefault(record.case_id, []).append(duration_ns / 1000)
    return [_timed(record, times_us[case_id]) for case_id, record in kept.items()]


def _timed(record: CaseRecord, times_us: Sequence[float]) -> CaseRecord:
    told = ProfileStatistics(len(times_us), fmean(times_us), median(times_us), stdev(times_us))
    return CaseRecord(record.kernel_type, record.cells, record.extra, told)
