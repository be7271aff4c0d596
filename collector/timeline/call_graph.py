"""What each call of a pass has to wait for, as a graph of the work of its host and its streams.

The host issues calls in order. Work of a stream begins when the host has issued it, the work before
it in the stream has ended, and the events for which the stream waits were reached. A captured graph
is issued by one call. The graph depends on the calls alone, not on durations: a pass is simulated
with many durations at once.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from graphlib import TopologicalSorter

from collector.workloads.call_order import EARLIER, CallKind, PassCall

HOST = -1  # the lane of the host; other lanes are streams
_START = -1  # the node before all others
NO_WORK = -1  # the row of a node that takes no time


class Cause(StrEnum):
    """What a part of the time of a pass is spent on.

    - `computing`: kernels.
    - `communication`: messages, once all ranks have arrived.
    - `waiting`: messages, until the other ranks arrive.
    - `host`: calls of the host that the device waits for.
    - `unknown`: launches and copies whose duration is a range."""

    COMPUTING = "computing"
    COMMUNICATION = "communication"
    WAITING = "waiting"
    HOST = "host"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """A duration with its 95 % interval, in us. Each object is one quantity, however often it
    occurs in a pass.

    group     quantities of one group are wrong together, as cases on one surface are
    samples   of a distribution instead: each occurrence has a sample of its own"""

    name: str
    cause: Cause
    value_us: float
    low_us: float
    high_us: float
    group: str
    samples: tuple[float, ...] = ()


def scaled(one: Quantity, times: float) -> Quantity:
    """Return a quantity of the same group that is so many times as long."""
    if times == 1:
        return one
    value_us, low_us, high_us = (times * us for us in (one.value_us, one.low_us, one.high_us))
    name = f"{one.name} x {times:.4g}"
    return Quantity(name, one.cause, value_us, low_us, high_us, one.group)


@dataclass(frozen=True, slots=True)
class TimedCall:
    """A call with what it takes: of the host, of its stream, and before a message the wait for the
    other ranks. `is_blocking`: the host waits for the end of the work.

    `library` is what the host computes in the device's library, in addition to `host`."""

    call: PassCall
    host: Quantity | None = None
    work: Quantity | None = None
    wait: Quantity | None = None
    is_blocking: bool = False
    library: Quantity | None = None


@dataclass(frozen=True, slots=True)
class CallGraph:
    """Nodes of work, each after those that it waits for.

    quantities  the quantity of each row of durations; one with samples has a row per occurrence
    before      the nodes that end before a node begins
    rows        the row of its duration, or NO_WORK
    lanes       its stream, or HOST
    ends        the last nodes of the host and of each stream"""

    quantities: tuple[Quantity, ...]
    before: Sequence[tuple[int, ...]]
    rows: Sequence[int]
    lanes: Sequence[int]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, calls: Iterable[TimedCall]) -> "CallGraph":
        """Return the graph of calls. Raises ValueError for calls that wait for each other."""
        return _Builder().built(calls)


def _in_order(graph: CallGraph) -> CallGraph:
    """Return a graph with each node after those that it waits for."""
    order = tuple(TopologicalSorter(dict(enumerate(graph.before))).static_order())
    place = {node: at for at, node in enumerate(order)}
    return CallGraph(
        graph.quantities,
        [tuple(place[one] for one in graph.before[node]) for node in order],
        [graph.rows[node] for node in order],
        [graph.lanes[node] for node in order],
        tuple(place[node] for node in graph.ends),
    )


class _Builder:
    """The state of the host, the streams and the events after the calls so far."""

    def __init__(self) -> None:
        self.quantities: list[Quantity] = []
        self.numbers: dict[Quantity, int] = {}
        self.before: list[tuple[int, ...]] = []
        self.rows: list[int] = []
        self.lanes: list[int] = []
        self.host = _START
        self.last: dict[int, int] = {}  # node of each stream
        self.issued: dict[int, int] = {}  # node of the host that this one is known to follow
        self.events: dict[int, int] = {EARLIER: _START}
        self.replayed: dict[int, int] | None = None  # last nodes of the streams of a graph
        self.begin = _START  # of the graph
        self.awaiting: deque[int] = deque()  # nodes of graphs, for the updates that follow
        self.is_updated = False

    def built(self, calls: Iterable[TimedCall]) -> CallGraph:
        run = {
            CallKind.LAUNCH: self._work,
            CallKind.MESSAGE: self._work,
            CallKind.COPY: self._work,
            CallKind.RECORD: self._record,
            CallKind.WAIT: self._wait,
            CallKind.SYNCHRONIZE_EVENT: self._synchronize_event,
            CallKind.SYNCHRONIZE_STREAM: self._synchronize_stream,
            CallKind.SYNCHRONIZE_DEVICE: self._synchronize_device,
            CallKind.REPLAY: self._replay,
            CallKind.REPLAY_END: self._replay_end,
            CallKind.AWAIT_UPDATE: self._await_update,
            CallKind.UPDATE: self._update,
        }
        is_capturing = False
        for one in calls:
            kind = one.call.kind
            is_capturing = kind is CallKind.CAPTURE or is_capturing
            if not is_capturing:
                self._issue(one)
                if kind in run:
                    run[kind](one)
            is_capturing = is_capturing and kind is not CallKind.CAPTURE_END
        ends = tuple({self.host, *self.last.values()} - {_START})
        found = CallGraph(tuple(self.quantities), self.before, self.rows, self.lanes, ends)
        return _in_order(found) if self.is_updated else found

    def _issue(self, one: TimedCall) -> None:
        for quantity in (one.host, one.library):
            if quantity is not None and self.replayed is None:
                self.host = self._node((self.host,), quantity, HOST)

    def _record(self, one: TimedCall) -> None:
        self.events[one.call.subject] = self._joined(one.call.stream)

    def _wait(self, one: TimedCall) -> None:
        self._joined(one.call.stream, self.events.get(one.call.subject, _START))

    def _synchronize_event(self, one: TimedCall) -> None:
        self._hold(self.events.get(one.call.subject, _START))

    def _synchronize_stream(self, one: TimedCall) -> None:
        self._hold(self.last.get(one.call.stream, _START))

    def _synchronize_device(self, _: TimedCall) -> None:
        self._hold(*self.last.values())

    def _replay(self, one: TimedCall) -> None:
        self.begin = self._joined(one.call.stream)
        self.replayed = {}

    def _replay_end(self, one: TimedCall) -> None:
        ends = tuple((self.replayed or {}).values())
        self.replayed = None
        self._joined(one.call.stream, *ends)

    def _await_update(self, one: TimedCall) -> None:
        """Add a node of its own: the host has not made the update yet."""
        node = self._node(self._earlier(one.call.stream), None, one.call.stream)
        self._reach(one.call.stream, node)
        self.awaiting.append(node)

    def _update(self, _: TimedCall) -> None:
        if self.awaiting and self.host != _START:
            self.before[self.awaiting.popleft()] += (self.host,)
            self.is_updated = True

    def _work(self, one: TimedCall) -> None:
        stream = one.call.stream
        for quantity in (one.wait, one.work):
            if quantity is not None:
                self._reach(stream, self._node(self._earlier(stream), quantity, stream))
        if one.is_blocking and one.work is not None:
            self._hold(self.last[stream])

    def _earlier(self, stream: int) -> tuple[int, ...]:
        """Return the nodes after which the next work of a stream begins."""
        if self.replayed is not None:
            return (self.replayed.get(stream, self.begin),)
        last = self.last.get(stream, _START)
        is_issued = self.issued.get(stream, _START) == self.host
        return (last,) if is_issued else (last, self.host)

    def _reach(self, stream: int, node: int) -> None:
        if self.replayed is not None:
            self.replayed[stream] = node
        else:
            self.last[stream], self.issued[stream] = node, self.host

    def _joined(self, stream: int, *more: int) -> int:
        """Return a node after the work of a stream and more, which the stream then follows."""
        node = self._after((*self._earlier(stream), *more), stream)
        self._reach(stream, node)
        return node

    def _hold(self, *nodes: int) -> None:
        self.host = self._after((self.host, *nodes), HOST)

    def _after(self, nodes: tuple[int, ...], lane: int) -> int:
        distinct = set(nodes) - {_START}
        if len(distinct) < 2:
            return distinct.pop() if distinct else _START
        return self._node(tuple(distinct), None, lane)

    def _node(self, before: tuple[int, ...], quantity: Quantity | None, lane: int) -> int:
        if _START in before:
            before = tuple(node for node in before if node != _START)
        self.before.append(before)
        self.rows.append(NO_WORK if quantity is None else self._row(quantity))
        self.lanes.append(lane)
        return len(self.rows) - 1

    def _row(self, quantity: Quantity) -> int:
        row = self.numbers.get(quantity, NO_WORK)
        if row == NO_WORK or quantity.samples:
            self.numbers[quantity] = row = len(self.quantities)
            self.quantities.append(quantity)
        return row
