"""The speed of a pass's simulation, against one longest path in plain Python in the same process.

    PYTHONPATH=. python tests/bench/bench_timeline.py [launches]

A pass of layers with twelve launches and two messages each, on two streams. Prints processor times,
and their ratios to the baseline; exits with 1 above a limit.
"""

import sys
import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

from collector.timeline.call_graph import NO_WORK, CallGraph, Cause, Quantity, TimedCall
from collector.timeline.pass_time import simulate, widths
from collector.workloads.call_order import CallKind, PassCall

_LAUNCHES, _PER_LAYER, _RUNS = 2000, 14, 15
_BARS = {"graph": 3.0, "simulation": 5.0, "widths": 4.0}  # times the baseline


def main(launches: int) -> int:
    calls = list(chain.from_iterable(repeat(list(_layer()), launches // _PER_LAYER)))
    graph = CallGraph.of(calls)
    baseline = _fastest_ms(lambda: _longest_path(graph))
    found = {
        "graph": _fastest_ms(lambda: CallGraph.of(calls)),
        "simulation": _fastest_ms(lambda: simulate(graph)),
        "widths": _fastest_ms(lambda: widths(graph)),
    }
    print(f"{len(calls):,} calls, {len(graph.rows):,} nodes; longest path {baseline:.2f} ms")
    for name, ms in found.items():
        ratio = ms / baseline
        print(f"{name:12} {ms:6.2f} ms, {ratio:4.1f} longest paths, at most {_BARS[name]:g}")
    return int(any(ms / baseline > _BARS[name] for name, ms in found.items()))


def _layer() -> Any:
    host = Quantity("host", Cause.HOST, 70, 35, 140, "host")
    wait = Quantity("wait", Cause.WAITING, 30, 0, 120, "wait")
    message = Quantity("message", Cause.COMMUNICATION, 20, 15, 30, "message")
    for at in range(_PER_LAYER - 2):
        kernel = Quantity(f"kernel {at}", Cause.COMPUTING, 10 + at, 9, 20 + at, str(at % 7))
        yield TimedCall(PassCall(CallKind.LAUNCH, 1, at), host, kernel)
        if at % 6 == 5:
            yield TimedCall(PassCall(CallKind.RECORD, 1, 1))
            yield TimedCall(PassCall(CallKind.WAIT, 2, 1))
            yield TimedCall(PassCall(CallKind.MESSAGE, 2, 0), host, message, wait)
            yield TimedCall(PassCall(CallKind.RECORD, 2, 1))
            yield TimedCall(PassCall(CallKind.WAIT, 1, 1))


def _longest_path(graph: CallGraph) -> float:
    durations = [one.value_us for one in graph.quantities]
    ends: list[float] = []
    for before, row in zip(graph.before, graph.rows, strict=True):
        begin = max((ends[node] for node in before), default=0.0)
        ends.append(begin + (0.0 if row == NO_WORK else durations[row]))
    return max(ends)


def _fastest_ms(run: Callable[[], object]) -> float:
    found = []
    for _ in range(_RUNS):
        began = time.process_time()
        run()
        found.append(time.process_time() - began)
    return 1e3 * min(found)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else _LAUNCHES))
