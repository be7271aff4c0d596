"""A decoder of four layers on this CPU, each of whose kernels is called as a replay calls it.

One step computes one token of each request: its keys and values exist already, as in a cache. A
kernel is recorded as a profile of an NPU would, and takes as long as its operators, gaps between
them excluded, which is how the cpu backend measures.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch
from torch.autograd.profiler import profile, record_function

from collector.host.cores import ThreadWaits
from collector.model.case import Slot, tensor_cells
from collector.model.record import CaseRecord, ProfileStatistics
from collector.model.vocabulary import ACCELERATOR_CORE, OP_STATE
from collector.ops.registry import find_operator
from collector.quality.disturbances import Lap
from collector.replay.kineto import operator_events

LAYERS, HIDDEN, HEADS, INTERMEDIATE, VOCABULARY, KEYS = 4, 512, 8, 1408, 8192, 256
_LABEL = "kernel "
_MOST_TIMES = 10  # as many steps as requested
_FEWEST = 5  # undisturbed ones, preferred to all of them
_DTYPES = {torch.float32: "FLOAT", torch.int64: "INT64", torch.int32: "INT32"}

Run = Callable[[str, tuple[Any, ...], Sequence[Slot]], Any]


@dataclass
class Launches:
    """Kernels in their order: `reported` calls one and keeps its record, `watched` only labels it,
    so that as little as possible runs between two of them. The time that a single thread waited for
    a core is recorded, and not part of a kernel's time."""

    records: list[CaseRecord] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    waited_us: list[float] = field(default_factory=list)
    waits: ThreadWaits = field(default_factory=ThreadWaits)

    def reported(self, kernel: str, args: tuple[Any, ...], more: Sequence[Slot] = ()) -> Any:
        """Return the result of the kernel; `more` are inputs of its row that are not tensors of the
        call."""
        out = _call(kernel, args)
        self.records.append(_record(kernel, args, more, out))
        return out

    def watched(self, kernel: str, args: tuple[Any, ...], more: Sequence[Slot] = ()) -> Any:
        self.labels.append(f"{_LABEL}{len(self.labels)}")
        before = self.waits.read()
        with record_function(self.labels[-1]):
            out = _call(kernel, args)
        is_single = torch.get_num_threads() == 1
        self.waited_us.append(_most_waited_us(before, self.waits.read()) if is_single else 0.0)
        return out


class SmallDecoder:
    """Return weights of FLOAT, each in separate memory."""

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
        """Run one forward pass: the next token of each request."""
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


@dataclass(frozen=True, slots=True)
class Steps:
    """Return the launches of a step, in order, each with its median duration of this many profiled
    steps; and the median seconds of as many steps, with a profiler and without."""

    launches: tuple[CaseRecord, ...]
    profiled: int
    profiled_s: float
    alone: int
    step_s: float


def profiled_steps(decoder: SmallDecoder, steps: int) -> Steps:
    """Run steps until this many were undisturbed, like repeats of a case: no thread waited for a
    core that something else occupied. A machine that is never quiet gives fewer."""
    with torch.inference_mode():
        for _ in range(3):
            decoder.step(_plain)
        alone_s = _undisturbed(lambda: decoder.step(_plain), steps)
        launches = Launches()
        decoder.step(launches.reported)
        launches.waits.begin()
        with profile(use_device=None, record_shapes=True, use_kineto=True) as watched:
            profiled_s = _undisturbed(lambda: decoder.step(launches.watched), steps)
    raw = watched.kineto_results.events()
    timed = [
        took_us - waited_us
        for took_us, waited_us in zip(
            _times_us(len(launches.labels), raw), launches.waited_us, strict=True
        )
    ]
    of_step = len(launches.records)
    middle_us = [
        median(timed[step * of_step + place] for step in profiled_s) for place in range(of_step)
    ]
    return Steps(
        tuple(map(_of_step, launches.records, middle_us)),
        *(len(profiled_s), median(profiled_s.values())),
        *(len(alone_s), median(alone_s.values())),
    )


def _of_step(record: CaseRecord, took_us: float) -> CaseRecord:
    return replace(record, profile=ProfileStatistics(1, took_us, took_us, 0.0))


def _undisturbed(step: Callable[[], object], expected: int) -> dict[int, float]:
    """Return the seconds of the undisturbed steps, by their position among all; of all of them if
    too few were undisturbed. The time that a single thread waited is excluded."""
    waits = ThreadWaits()
    waits.begin()
    taken: dict[int, float] = {}
    clean: dict[int, float] = {}
    while len(clean) < expected and len(taken) < _MOST_TIMES * expected:
        before, started = waits.read(), time.perf_counter()
        step()
        seconds, after = time.perf_counter() - started, waits.read()
        waited_us = _most_waited_us(before, after)
        if torch.get_num_threads() == 1:
            clean[len(taken)] = seconds - waited_us / 1e6
        elif not Lap(1, seconds * 1e6, waited_us).is_disturbed:
            clean[len(taken)] = seconds
        taken[len(taken)] = seconds
    return clean if len(clean) >= _FEWEST else taken


def _most_waited_us(before: Sequence[float], after: Sequence[float]) -> float:
    return max((b - a for a, b in zip(before, after, strict=True)), default=0.0)


def _plain(kernel: str, args: tuple[Any, ...], more: Sequence[Slot] = ()) -> Any:
    return _call(kernel, args)


def _call(kernel: str, args: tuple[Any, ...]) -> Any:
    op = find_operator(kernel)
    assert op is not None
    return op.run_reference(torch, *args)


def _record(kernel: str, args: tuple[Any, ...], more: Sequence[Slot], out: Any) -> CaseRecord:
    inputs = [*map(_slot, filter(torch.is_tensor, args)), *more]
    outputs = [_slot(one) for one in (out if isinstance(out, tuple) else (out,))]
    cells = {
        OP_STATE: "dynamic",
        ACCELERATOR_CORE: "AI_CORE" if "MatMul" in kernel else "AI_VECTOR_CORE",
        **tensor_cells(inputs, outputs),
    }
    return CaseRecord(kernel, cells, {})


def _slot(tensor: Any) -> Slot:
    return Slot(tuple(tensor.shape), _DTYPES[tensor.dtype], "ND")


def _times_us(count: int, raw: Sequence[Any]) -> list[float]:
    """Return the duration of each of this many launches: the operators within its label."""
    labels = {
        int(one.name().removeprefix(_LABEL)): (one.start_ns(), one.start_ns() + one.duration_ns())
        for one in raw
        if one.name().startswith(_LABEL)
    }
    assert sorted(labels) == list(range(count))
    events, at = operator_events(raw), 0
    timed = []
    for number in range(count):
        start, end = labels[number]
        duration_ns = 0
        while at < len(events) and events[at].start_ns < end:
            duration_ns += events[at].duration_ns if events[at].start_ns >= start else 0
            at += 1
        timed.append(duration_ns / 1000)
    return timed
