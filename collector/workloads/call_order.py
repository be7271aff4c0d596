"""Calls of a host to its device in a forward pass, in order, and the repetitions among them.

A layer of a model is not a concept here: calls that repeat are found in the order, so that 64 equal
layers are a block of calls, 64 times. A file has each distinct call once, and the order as numbers
of distinct calls, in which a block that repeats is written once:

    {"distinct": [["launch", 0, 3], ["record", 0, 0]], "order": [0, [64, [0, 1]]],
     "host_ns": [12000, 9100, 800]}
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MOST_CALLS = 1_000_000
_MOST_LEVELS = 16  # blocks in blocks
_FEWEST_SAVED = 4  # calls that a block must save by its repetitions
_LONGEST_BLOCK = 8192  # calls
OUTSIDE = "outside of blocks"
EARLIER = 0  # the number of every event of an earlier pass


class CallKind(StrEnum):
    """What a call does. The subject is a number of the table of the pass, or what is named here.

    LAUNCH              a kernel; `launches`
    CALL                a call of a library that launches no kernel; `calls`
    MESSAGE             a collective; `messages`
    COPY                bytes between memories, or a value into them; `copies`
    RECORD              an event, after the calls of the stream so far; the number of the event
    WAIT                the stream waits for the event
    SYNCHRONIZE_EVENT   the host waits for the event
    SYNCHRONIZE_STREAM  the host waits for the stream; 0
    SYNCHRONIZE_DEVICE  the host waits for all streams; 0
    REPLAY, REPLAY_END  a captured graph runs on the stream: the calls between; 0
    AWAIT_UPDATE        of a graph: its stream waits for the next UPDATE after the graph; 0
    UPDATE              the host updated arguments of a graph that runs: the first UPDATE after a
                        graph is of its first AWAIT_UPDATE, and so on; 0
    CAPTURE, CAPTURE_END  a graph is captured; 0. Its calls are where it runs
    DRAFT, DRAFT_END    the calls between draft tokens; 0

    A graph begins when its stream comes to REPLAY, and the stream continues when all calls up to
    REPLAY_END have run. The host calls REPLAY alone: what is between has no host time, and the
    streams of the capture."""

    LAUNCH = "launch"
    CALL = "call"
    MESSAGE = "message"
    COPY = "copy"
    RECORD = "record"
    WAIT = "wait"
    SYNCHRONIZE_EVENT = "synchronize_event"
    SYNCHRONIZE_STREAM = "synchronize_stream"
    SYNCHRONIZE_DEVICE = "synchronize_device"
    REPLAY = "replay"
    REPLAY_END = "replay_end"
    AWAIT_UPDATE = "await_update"
    UPDATE = "update"
    CAPTURE = "capture"
    CAPTURE_END = "capture_end"
    DRAFT = "draft"
    DRAFT_END = "draft_end"


EVENT_KINDS = (CallKind.RECORD, CallKind.WAIT, CallKind.SYNCHRONIZE_EVENT)


@dataclass(frozen=True, slots=True)
class PassCall:
    """A call of the host.

    stream   numbered by first use in the pass; of a call without one, 0
    subject  as `CallKind` says. Events are numbered from 1, and a number is free again after the
             last wait for its event; EARLIER is an event that an earlier pass recorded
    host_ns  time of the host since the previous call, on the machine that recorded. Of a block that
             repeats, the mean of its repetitions"""

    kind: CallKind
    stream: int
    subject: int
    host_ns: int = 0

    @property
    def what(self) -> tuple[CallKind, int, int]:
        """Return what is equal for calls that only their time distinguishes."""
        return (self.kind, self.stream, self.subject)


@dataclass(frozen=True, slots=True)
class Block:
    """Calls that follow each other several times: positions of distinct calls, and blocks."""

    times: int
    parts: "tuple[int | Block, ...]"

    @property
    def size(self) -> int:
        """Return the number of calls, with all repetitions."""
        return self.times * sum(map(_size, self.parts))


@dataclass(frozen=True)
class CallOrder:
    """The calls of a pass, in order: `distinct` ones, and the parts of the order."""

    distinct: tuple[tuple[CallKind, int, int], ...] = ()
    parts: tuple[int | Block, ...] = ()
    host_ns: tuple[int, ...] = ()

    @classmethod
    def of(cls, calls: Iterable[PassCall]) -> "CallOrder":
        """Return an order of calls, with the mean time of those that repeat."""
        listed = list(calls)
        numbers: dict[tuple[CallKind, int, int], int] = {}
        order = [numbers.setdefault(call.what, len(numbers)) for call in listed]
        parts = find_blocks(order)
        host_ns = iter([call.host_ns for call in listed])
        return cls(tuple(numbers), parts, tuple(_means(parts, host_ns)))

    @cached_property
    def calls(self) -> tuple[PassCall, ...]:
        """Return every call, in order."""
        times = iter(self.host_ns)
        return tuple(
            PassCall(*self.distinct[at], host_ns) for at, host_ns in _flat(self.parts, times)
        )

    def __len__(self) -> int:
        return sum(map(_size, self.parts))

    def counts(self) -> Mapping[tuple[CallKind, int, int], int]:
        """Return how often each distinct call is made."""
        found = dict.fromkeys(self.distinct, 0)
        for at, times in _leaves(self.parts):
            found[self.distinct[at]] += times
        return found

    def places(self) -> Iterator[tuple[tuple[CallKind, int, int], str, int]]:
        """Yield the written calls, each with its place and how often it is made there: a block that
        repeats, or OUTSIDE. A block has several kernels, as a layer does, and its own blocks."""
        number = 0
        for part in self.parts:
            place, leaves = OUTSIDE, list(_leaves((part,)))
            if isinstance(part, Block) and self._launches(at for at, _ in leaves) > 1:
                number += 1
                place = f"block {number}, {part.times} times"
            yield from ((self.distinct[at], place, times) for at, times in leaves)

    def _launches(self, numbers: Iterable[int]) -> int:
        return sum(self.distinct[at][0] is CallKind.LAUNCH for at in set(numbers))

    def to_json(self) -> dict[str, Any]:
        return {
            "distinct": list(map(list, self.distinct)),
            "order": _written(self.parts),
            "host_ns": list(self.host_ns),
        }

    @classmethod
    def from_json(cls, members: Mapping[str, Any]) -> "CallOrder":
        """Return the order of a file. Raises TypeError for another value."""
        _check(members.keys() == {"distinct", "order", "host_ns"}, "distinct, order and host_ns")
        distinct = tuple(map(_distinct, members["distinct"]))
        parts = _read(members["order"], len(distinct), 0)
        host_ns = tuple(members["host_ns"])
        _check(sum(map(_size, parts)) <= _MOST_CALLS, f"at most {_MOST_CALLS:,} calls")
        _check(all(type(ns) is int and ns >= 0 for ns in host_ns), "host_ns of at least 0")
        written = sum(1 for _ in _leaves(parts))
        _check(len(host_ns) == written, "a host_ns for each written call")
        return cls(distinct, parts, host_ns)


def find_blocks(order: Sequence[int]) -> tuple[int | Block, ...]:
    """Return numbers in order, with what follows itself as blocks.

    First the block that saves most by its repetitions is taken, the shortest of equal ones, then
    the same is done before it, after it, and in it."""
    import numpy as np  # only here: commands that read orders start faster without it

    return tuple(_parts(np.asarray(order, np.int64)))


def _parts(values: "npt.NDArray[np.int64]") -> Iterator[int | Block]:
    found = _best(values)
    if found is None:
        yield from values.tolist()
        return
    begin, length, times = found
    yield from _parts(values[:begin])
    yield Block(times, tuple(_parts(values[begin : begin + length])))
    yield from _parts(values[begin + length * times :])


def _best(values: "npt.NDArray[np.int64]") -> tuple[int, int, int] | None:
    """Return the begin, the length and the times of the block that saves most."""
    import numpy as np

    best, saved = None, _FEWEST_SAVED - 1
    for length in range(1, min(len(values) // 2, _LONGEST_BLOCK) + 1):
        if len(values) - length <= saved:
            break
        differs = np.flatnonzero(values[length:] != values[:-length])
        edges = np.concatenate(([-1], differs, [len(values) - length]))
        runs = np.diff(edges) - 1  # of equal calls at this distance
        at = int(runs.argmax())
        repeated = int(runs[at]) // length * length
        if repeated > saved:
            saved = repeated
            best = (int(edges[at]) + 1, length, repeated // length + 1)
    return best


def number_events(calls: Iterable[PassCall]) -> Iterator[PassCall]:
    """Yield calls with events numbered so that equal layers have equal numbers.

    An event has the smallest number that is free, from the call that records it to the last call
    that waits for it."""
    listed = list(calls)
    last = _last_uses(listed)
    numbers: dict[int, int] = {}
    taken: set[int] = set()
    for at, call in enumerate(listed):
        if call.kind not in EVENT_KINDS:
            yield call
            continue
        if call.kind is CallKind.RECORD:
            taken.discard(numbers.get(call.subject, EARLIER))
            numbers[call.subject] = _free(taken)
            taken.add(numbers[call.subject])
        number = numbers.get(call.subject, EARLIER)
        if at in last:
            taken.discard(numbers.pop(call.subject, EARLIER))
        yield PassCall(call.kind, call.stream, number, call.host_ns)


def _last_uses(calls: Sequence[PassCall]) -> frozenset[int]:
    """Return the positions of the calls after which no call waits for what their event recorded."""
    waited: set[int] = set()
    found = set()
    for at in range(len(calls) - 1, -1, -1):
        call = calls[at]
        if call.kind not in EVENT_KINDS:
            continue
        if call.subject not in waited:
            found.add(at)
        if call.kind is CallKind.RECORD:
            waited.discard(call.subject)
        else:
            waited.add(call.subject)
    return frozenset(found)


def _free(taken: set[int]) -> int:
    number = EARLIER + 1
    while number in taken:
        number += 1
    return number


def number_streams(calls: Iterable[PassCall]) -> Iterator[PassCall]:
    """Yield calls with streams numbered by first use."""
    numbers: dict[int, int] = {}
    for call in calls:
        stream = numbers.setdefault(call.stream, len(numbers))
        yield PassCall(call.kind, stream, call.subject, call.host_ns)


def _size(part: int | Block) -> int:
    return part.size if isinstance(part, Block) else 1


def _means(parts: Iterable[int | Block], host_ns: Iterator[int]) -> Iterator[int]:
    """Yield the time of each written call: the mean of its repetitions."""
    for part in parts:
        if not isinstance(part, Block):
            yield next(host_ns)
            continue
        each = [list(_means(part.parts, host_ns)) for _ in range(part.times)]
        yield from (round(sum(one) / part.times) for one in zip(*each, strict=True))


def _flat(parts: Iterable[int | Block], host_ns: Iterator[int]) -> Iterator[tuple[int, int]]:
    for part in parts:
        if isinstance(part, Block):
            yield from list(_flat(part.parts, host_ns)) * part.times
        else:
            yield part, next(host_ns)


def _leaves(parts: Iterable[int | Block], times: int = 1) -> Iterator[tuple[int, int]]:
    for part in parts:
        if isinstance(part, Block):
            yield from _leaves(part.parts, times * part.times)
        else:
            yield part, times


def _written(parts: Iterable[int | Block]) -> list[Any]:
    return [
        [part.times, _written(part.parts)] if isinstance(part, Block) else part for part in parts
    ]


def _read(value: object, distinct: int, level: int) -> tuple[int | Block, ...]:
    _check(isinstance(value, list) and level <= _MOST_LEVELS, "lists of calls and of blocks")
    assert isinstance(value, list)
    return tuple(_part(one, distinct, level) for one in value)


def _part(value: object, distinct: int, level: int) -> int | Block:
    match value:
        case bool():
            pass
        case int() if 0 <= value < distinct:
            return value
        case [int(times), list(parts)] if type(times) is int and 2 <= times <= _MOST_CALLS:
            return Block(times, _read(parts, distinct, level + 1))
    raise TypeError("expected the number of a distinct call, or a block: its times and its calls")


def _distinct(value: object) -> tuple[CallKind, int, int]:
    match value:
        case [str(kind), int(stream), int(subject)] if kind in set(CallKind):
            if min(stream, subject) >= 0 and type(stream) is type(subject) is int:
                return CallKind(kind), stream, subject
    raise TypeError("distinct: expected a kind of call, a stream and a subject")


def _check(holds: bool, expected: str) -> None:
    if not holds:
        raise TypeError(f"expected {expected}")
