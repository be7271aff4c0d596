"""Events of a trace file as rows: what ran on devices, read in bounded memory.

A trace is a JSON list of events, or an object with `traceEvents` (the Trace Event Format, which
Ascend's and torch's profilers and simulators write). Files of gigabytes are usual, so that events
are decoded one by one, twice: first the names of processes, which may come last, then the rest.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any

from collector.codec.errors import BadInput, file_errors

_CHUNK = 1 << 20
_MOST_EVENT = 64 << 20  # characters of one event
_SPACE = re.compile(r"[\s,]*")
_DEVICE_PROCESSES = ("Ascend Hardware",)  # of torch_npu's and msprof's trace_view.json
_MESSAGE_PROCESSES = ("HCCL", "Communication")  # until CANN 8.0, and later
_MESSAGE = "COMMUNICATION"  # the task type of its rows
_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})  # of torch.profiler
# The columns that msmodeling's trace_to_csv writes of a simulation; all but the first and `dur_us`
# are arguments of the event.
SIMULATION_COLUMNS = (
    *("op_name", "kernel_type", "simulation_shapes", "dur_us", "source", "confidence"),
    *("composite", "sub_kernel_durations", "kernel_shapes", "shape_match_rule"),
    "sub_kernel_shapes",
)
DEVICE_COLUMNS = ("name", "task_type", "process", "stream", "start_us", "duration_us", "connection")
# Of a trace without a device, as torch.profiler writes it on a CPU.
HOST_COLUMNS = (
    *("name", "thread", "start_us", "duration_us", "external_id", "input_shapes"),
    "input_types",
)
_LATEST_US = 1e18
_HOST_CATEGORY = "cpu_op"


@dataclass(frozen=True, slots=True)
class TraceKind:
    """What a trace is of: `columns` of its rows, and the names of the processes of kernels and of
    messages by their pid."""

    columns: tuple[str, ...]
    processes: Mapping[object, str]
    messages: Mapping[object, str] = field(default_factory=dict)

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


def kind_of(path: Path) -> TraceKind:
    """Return the kind of a trace: of devices if it has their events, of a host if it has only its
    operators, else of a simulation."""
    processes: dict[object, str] = {}
    messages: dict[object, str] = {}
    has_devices = has_operators = has_events = False
    for event in events_of(path):
        has_events = has_events or event.get("ph") == "X"
        if event.get("ph") == "M" and event.get("name") == "process_name":
            name = _arguments(event).get("name")
            if isinstance(name, str) and name.startswith(_DEVICE_PROCESSES):
                processes[_hashable(event.get("pid"))] = name
            if name in _MESSAGE_PROCESSES:
                messages[_hashable(event.get("pid"))] = str(name)
        has_devices = has_devices or event.get("cat") in _DEVICE_CATEGORIES
        has_operators = has_operators or is_host_operator(event)
    if not has_events:
        raise BadInput("expected a trace with complete events (ph: X), got none", path=path)
    if processes or has_devices:
        return TraceKind(DEVICE_COLUMNS, processes, messages)
    return TraceKind(HOST_COLUMNS if has_operators else SIMULATION_COLUMNS, processes)


def is_host_operator(event: Mapping[str, Any]) -> bool:
    """Return whether an event is an operator of torch on the host."""
    return event.get("cat") == _HOST_CATEGORY


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


def rows_of(path: Path, kind: TraceKind) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a trace by the columns of its kind: complete events (`ph` X) only, in the
    order of the file."""
    row = _host_row if kind.columns == HOST_COLUMNS else _device_row
    row = _simulation_row if kind.is_simulation else row
    for event in events_of(path):
        if event.get("ph") == "X" and (cells := row(event, kind)) is not None:
            yield cells


def _device_row(event: Mapping[str, Any], kind: TraceKind) -> tuple[str, ...] | None:
    is_message = kind.is_message(event)
    if not (is_message or kind.is_device(event)):
        return None
    pid = _hashable(event.get("pid"))
    process = kind.messages.get(pid) if is_message else kind.processes.get(pid)
    arguments = _arguments(event)
    stream = arguments.get("Physic Stream Id", arguments.get("stream", event.get("tid", "")))
    connection = arguments.get("connection_id", arguments.get("correlation", ""))
    task = _MESSAGE if is_message else arguments.get("Task Type", event.get("cat", ""))
    cells = (event.get("name", ""), task, process or "", stream)
    return (*map(_text, cells), *map(_text, (event.get("ts", ""), event.get("dur", 0), connection)))


def _host_row(event: Mapping[str, Any], _: TraceKind) -> tuple[str, ...] | None:
    if not is_host_operator(event):
        return None
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


class _JsonStream:
    """A text that is read in chunks: `value` decodes the JSON value at the current place."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._text, self._at, self._is_end = "", 0, False
        self._decode: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().raw_decode

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


def _listed(text: _JsonStream) -> Iterator[dict[str, Any]]:
    text.skip()
    while (sign := text.next()) != "]":
        if not sign:
            raise ValueError("the file ends early")
        value = text.value()
        if isinstance(value, dict):
            yield value
    text.skip()
