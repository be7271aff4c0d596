"""Events of a trace file as rows: what ran on devices, read in bounded memory.

A trace is a JSON list of events, or an object with `traceEvents` (the Trace Event Format, which
Ascend's and torch's profilers and simulators write). Files of gigabytes are usual, so that events
are decoded one by one, twice: first the names of processes, which may come last, then the rest.
"""

import gzip
import json
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from math import isfinite
from pathlib import Path
from typing import IO, Any

import numpy as np

from collector.codec.errors import BadInput, file_errors
from collector.codec.numbers import parse_number
from collector.profiles.impossible_durations import (
    MOST_OVERLAP_US,
    impossible_text,
    longest_us,
)

_CHUNK = 1 << 20
_MOST_EVENT = 64 << 20  # characters of one event
_SPACE = re.compile(r"[\s,]*")
_DEVICE_PROCESSES = ("Ascend Hardware",)  # of torch_npu's and msprof's trace_view.json
_MESSAGE_PROCESSES = ("HCCL", "Communication")  # until CANN 8.0, and later
_MESSAGE = "COMMUNICATION"  # the task type of its rows
# Of torch.profiler; until torch 1.11 they had other names.
_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})
_XLA_PROCESSES = ("/device:", "/host:")  # of JAX and TensorFlow
# The columns that msmodeling's trace_to_csv writes of a simulation; all but the first and `dur_us`
# are arguments of the event.
SIMULATION_COLUMNS = (
    *("op_name", "kernel_type", "simulation_shapes", "dur_us", "source", "confidence"),
    *("composite", "sub_kernel_durations", "kernel_shapes", "shape_match_rule"),
    "sub_kernel_shapes",
)
_SIMULATED = frozenset(SIMULATION_COLUMNS)
DEVICE_COLUMNS = (
    *("name", "task_type", "process", "stream", "start_us", "duration_us", "connection"),
    "device",
)
# Of a trace without a device, as torch.profiler writes it on a CPU.
HOST_COLUMNS = (
    *("name", "thread", "start_us", "duration_us", "external_id", "input_shapes"),
    "input_types",
)
_LATEST_US = 1e18
_MOST_SHOWN = 40  # characters of a wrong time
_HOST_CATEGORIES = frozenset({"cpu_op", "Operator"})
_DEVICE_LABEL = re.compile(r"[A-Z]+ ?(\d+)")  # of a process: NPU 0
_EXACT_DIGITS = 15  # every decimal number of so many digits is a float's
_Queue = tuple[object, str]  # process and stream


@dataclass(frozen=True, slots=True)
class TraceKind:
    """What a trace is of: `columns` of its rows, the names of the processes of kernels and of
    messages by their pid, the numbers of devices by pid, and of events with an impossible duration
    the reason by their place in the file."""

    columns: tuple[str, ...]
    processes: Mapping[object, str]
    messages: Mapping[object, str] = field(default_factory=dict)
    devices: Mapping[object, str] = field(default_factory=dict)
    impossible: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_simulation(self) -> bool:
        return self.columns == SIMULATION_COLUMNS

    @property
    def row_name(self) -> str:
        """Return what a row is, for a message."""
        if self.is_simulation:
            return "event of a simulation"
        return "host operator" if self.columns == HOST_COLUMNS else "device event"

    def is_device(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event is of a device, and no message."""
        named = _hashable(event.get("pid")) in self.processes
        return named or event.get("cat") in _DEVICE_CATEGORIES

    def is_row(self, event: Mapping[str, Any]) -> bool:
        """Return whether a complete event is a row of the table."""
        if self.columns == HOST_COLUMNS:
            return is_host_operator(event)
        return self.is_simulation or self.is_device(event) or self.is_message(event)

    def is_message(self, event: Mapping[str, Any]) -> bool:
        """Return whether an event is a whole message. The tasks that it consists of, which name
        their type, are in its process too; tables of kernels have none of them."""
        is_named = _hashable(event.get("pid")) in self.messages
        return is_named and "task type" not in _arguments(event)


def events_of(path: Path, others: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, also of a gzip file; `others` gets the other members of its
    object. Raises BadInput, with the path, for another file, and for one that ends early."""
    with file_errors(path), _opened(path) as file:
        try:
            yield from _events(file, others)
        except (ValueError, RecursionError, EOFError, gzip.BadGzipFile) as error:
            raise BadInput(f"expected a trace (JSON): {error}", path=path) from error


def trace_kind(path: Path) -> TraceKind:
    """Return the kind of a trace: of devices if it has their events, of a host if it has only its
    operators, else of a simulation.

    Raises BadInput for a trace of none of these, and for a row whose duration or start is no
    number."""
    processes: dict[object, str] = {}
    messages: dict[object, str] = {}
    devices: dict[object, str] = {}
    has_devices = has_operators = has_events = is_simulated = False
    times = _Times()
    for place, event in enumerate(events_of(path)):
        if event.get("ph") == "M":
            _name_process(event, path, processes, messages, devices)
        if event.get("ph") != "X":
            continue
        has_events = True
        times.add(place, event)
        has_devices = has_devices or event.get("cat") in _DEVICE_CATEGORIES
        has_operators = has_operators or is_host_operator(event)
        is_simulated = is_simulated or not _SIMULATED.isdisjoint(_arguments(event))
    if not has_events:
        raise BadInput("expected a trace with complete events (ph: X), got none", path=path)
    if processes or has_devices:
        kind = TraceKind(DEVICE_COLUMNS, processes, messages, devices)
        return replace(kind, impossible=times.impossible(kind, path))
    if not (has_operators or is_simulated):
        what = "expected events of devices, operators of torch or events of a simulation, got none"
        raise BadInput(f"{what}: traces of torch, torch_npu and msprof have them", path=path)
    kind = TraceKind(HOST_COLUMNS if has_operators else SIMULATION_COLUMNS, processes)
    times.check(kind, path)
    return kind


def _name_process(
    event: Mapping[str, Any],
    path: Path,
    processes: dict[object, str],
    messages: dict[object, str],
    devices: dict[object, str],
) -> None:
    """Read the name or the label of a process from an event with metadata."""
    pid, arguments = _hashable(event.get("pid")), _arguments(event)
    if event.get("name") == "process_labels":
        if label := _DEVICE_LABEL.fullmatch(str(arguments.get("labels"))):
            devices[pid] = label[1]
        return
    name = arguments.get("name")
    if event.get("name") != "process_name" or not isinstance(name, str):
        return
    if name.startswith(_XLA_PROCESSES):
        what = "expected a trace of torch, torch_npu, msprof or a simulation, got one of XLA"
        raise BadInput(f"{what} (JAX or TensorFlow), whose kernels have no shapes", path=path)
    if name.startswith(_DEVICE_PROCESSES):
        processes[pid] = name
    if name in _MESSAGE_PROCESSES:
        messages[pid] = name


class _Times:
    """The starts and the durations of the events of a trace, by their queue, as far as they are
    needed to find durations that are no numbers, or that no launch can have.

    Which processes are devices is known at the end: 8 bytes are kept for each event that may be of
    one, and the whole events that are suspect."""

    def __init__(self) -> None:
        self._starts: dict[_Queue, array[int]] = defaultdict(lambda: array("q"))
        self._long: dict[_Queue, list[tuple[int, int, float, str]]] = defaultdict(list)
        self._wrong: list[tuple[dict[str, Any], str]] = []

    def add(self, place: int, event: dict[str, Any]) -> None:
        start_us, duration_us = event.get("ts"), duration_us_of(event)
        if duration_us is None or "dur" not in event:
            self._wrong.append((event, "dur"))
        if duration_us is None:
            return
        category = event.get("cat")
        is_device = category is None or category in _DEVICE_CATEGORIES
        start_ns = nanoseconds_of(start_us) if is_device else None
        if (is_device and start_ns is None and "ts" in event) or start_us != start_us:
            self._wrong.append((event, "ts"))
        arguments = _arguments(event)
        if start_ns is None or arguments.get("graph node id"):  # nodes of a graph run concurrently
            return
        queue = (_hashable(event.get("pid")), _stream_of(event, arguments))
        self._starts[queue].append(start_ns)
        if duration_us > MOST_OVERLAP_US:
            self._long[queue].append((place, start_ns, duration_us, _text(event.get("name", ""))))

    def check(self, kind: TraceKind, path: Path) -> None:
        """Raise BadInput for the first row whose duration or start is no number. Only events of a
        simulation may lack a duration."""
        for event, name in self._wrong:
            if kind.is_row(event) and (name in event or not kind.is_simulation):
                got = repr(event.get(name))[:_MOST_SHOWN]
                what = f"{_text(event.get('name', ''))} at {str(event.get('ts'))[:_MOST_SHOWN]}"
                raise BadInput(f"{what}: {name}: expected microseconds, got {got}", path=path)

    def impossible(self, kind: TraceKind, path: Path) -> dict[int, str]:
        """Return the reasons for the device's events with impossible durations, by place."""
        self.check(kind, path)
        pids = kind.processes.keys() | kind.messages.keys()
        queues = {
            queue: np.sort(np.frombuffer(starts, np.int64))
            for queue, starts in self._starts.items()
            if not pids or queue[0] in pids
        }
        span_ns = max((int(np.ptp(one)) for one in queues.values()), default=0)
        found: dict[int, str] = {}
        for queue, starts in queues.items():
            if queue[0] in kind.messages or not (suspects := self._long.get(queue)):
                continue
            first = int(starts[0])
            at_us = np.array([start_ns - first for _, start_ns, *_ in suspects]) / 1e3
            limits_us = longest_us((starts - first) / 1e3, at_us, span_ns / 1e3)
            for (place, start_ns, duration_us, name), limit in zip(
                suspects, limits_us.tolist(), strict=True
            ):
                if duration_us > limit:
                    what = f"{name} at {start_ns // 1000}.{start_ns % 1000:03d}: dur"
                    found[place] = f"{what}: expected {impossible_text(limit)}, got {duration_us:g}"
        return found


def duration_us_of(event: Mapping[str, Any]) -> float | None:
    """Return the duration of an event in microseconds; None if it is not a number of at least 0."""
    took = event.get("dur", 0)
    if isinstance(took, bool):
        return None
    try:
        took_us = parse_number(took) if isinstance(took, str) else float(took)
    except (TypeError, ValueError, OverflowError):
        return None
    return took_us if isfinite(took_us) and took_us >= 0 else None


def is_host_operator(event: Mapping[str, Any]) -> bool:
    """Return whether an event is an operator of torch on the host."""
    return event.get("cat") in _HOST_CATEGORIES


def inputs_of(event: Mapping[str, Any]) -> tuple[str, str]:
    """Return the shapes and the dtypes of a host operator's inputs, as in a row: `16,64;64,32`;
    empty texts if they were not recorded."""
    arguments = _arguments(event)
    return _joined(arguments.get("Input Dims", "")), _joined(arguments.get("Input type", ""))


def _joined(value: object) -> str:
    if isinstance(value, list):  # of torch.profiler: [[16, 64], [64, 32], []]
        return ";".join(
            ",".join(map(str, one)) if isinstance(one, list) else str(one) for one in value
        )
    return "".join(str(value).split())  # of torch_npu: "16,64;\r\n64,32;\r\n"


def trace_rows(path: Path, kind: TraceKind) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a trace by the columns of its kind: complete events (`ph` X) only, in the
    order of the file."""
    row = _host_row if kind.columns == HOST_COLUMNS else _device_row
    row = _simulation_row if kind.is_simulation else row
    for place, event in enumerate(events_of(path)):
        if event.get("ph") == "X" and kind.is_row(event) and place not in kind.impossible:
            yield row(event, kind)


def _device_row(event: Mapping[str, Any], kind: TraceKind) -> tuple[str, ...]:
    is_message = kind.is_message(event)
    pid = _hashable(event.get("pid"))
    process = kind.messages.get(pid) if is_message else kind.processes.get(pid)
    arguments = _arguments(event)
    connection = arguments.get("connection_id", arguments.get("correlation", ""))
    task = _MESSAGE if is_message else arguments.get("Task Type", event.get("cat", ""))
    cells = (event.get("name", ""), task, process or "", _stream_of(event, arguments))
    times = (event.get("ts", ""), event.get("dur", 0))
    device = arguments.get("device", kind.devices.get(pid, ""))
    return tuple(map(_text, (*cells, *times, connection, device)))


def _stream_of(event: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    stream = arguments.get("Physic Stream Id", arguments.get("stream", event.get("tid", "")))
    return _text(stream)


def _host_row(event: Mapping[str, Any], _: TraceKind) -> tuple[str, ...]:
    number = _arguments(event).get("External id", "")
    cells = (event.get("name", ""), event.get("tid", ""), event.get("ts", ""), event.get("dur", 0))
    return (*map(_text, (*cells, number)), *inputs_of(event))


def _simulation_row(event: Mapping[str, Any], _: TraceKind) -> tuple[str, ...]:
    arguments = _arguments(event)
    first = {"op_name": event.get("name", ""), "dur_us": event.get("dur", 0)}
    return tuple(
        _text(first[name] if name in first else arguments.get(name, ""))
        for name in SIMULATION_COLUMNS
    )


def nanoseconds_of(value: object) -> int | None:
    """Return microseconds, a number or a text, in nanoseconds; None for anything else. Times of
    the day have more digits than a float."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = Decimal(str(value).strip())
        return round(found * 1000) if abs(found) < _LATEST_US else None
    except (InvalidOperation, ValueError, TypeError):
        return None


def _arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("args")
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def _hashable(value: object) -> object:
    return value if isinstance(value, int | str) else repr(value)


def _opened(path: Path) -> IO[str]:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _number(text: str) -> float | str:
    """Return a number, or its text if a float has not all of its digits, as times of the day."""
    number = float(text)
    if len(text) <= _EXACT_DIGITS or Decimal(repr(number)) == Decimal(text):
        return number
    return text


class _JsonStream:
    """A text that is read in chunks: `value` decodes the JSON value at the current place."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._text, self._at, self._is_end = "", 0, False
        decoder = json.JSONDecoder(parse_float=_number)
        self._decode: Callable[[str, int], tuple[Any, int]] = decoder.raw_decode

    def next(self) -> str:
        """Return the next character that is no blank or comma; empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def skip(self) -> None:
        self._at += 1

    def value(self) -> Any:
        while True:
            try:
                value, end = self._decode(self._text, self._at)
            except ValueError:
                if len(self._text) - self._at > _MOST_EVENT:
                    raise ValueError(f"a value of more than {_MOST_EVENT:,} characters") from None
                if not self._more():
                    raise
                continue
            # A number at the end of a chunk may go on in the next.
            if end == len(self._text) and not isinstance(value, dict | list | str) and self._more():
                continue
            self._at = end
            return value

    def _more(self) -> bool:
        if self._is_end:
            return False
        chunk = self._file.read(_CHUNK)
        self._is_end = not chunk
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)


def _events(file: IO[str], others: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    text = _JsonStream(file)
    first = text.next()
    if first == "[":
        yield from _listed(text)
        _end(text)
        return
    if first != "{":
        raise ValueError(f"expected [ or {{, got {first!r}")
    text.skip()
    while (sign := text.next()) != "}":
        if sign != '"':
            raise ValueError(f"expected a key, got {sign!r}" if sign else "the file ends early")
        key = text.value()
        if text.next() != ":":
            raise ValueError(f"expected : after {key!r}")
        text.skip()
        if key == "traceEvents" and text.next() == "[":
            yield from _listed(text)
        else:
            text.next()
            value = text.value()
            if others is not None:
                others[str(key)] = value
    text.skip()
    _end(text)


def _end(text: _JsonStream) -> None:
    if sign := text.next():
        raise ValueError(f"expected one list or object, got {sign!r} after it")


def _listed(text: _JsonStream) -> Iterator[dict[str, Any]]:
    text.skip()
    while (sign := text.next()) != "]":
        if not sign:
            raise ValueError("the file ends early")
        value = text.value()
        if isinstance(value, dict):
            yield value
    text.skip()
