"""Recordings: what the passes of a model launch, as the serving software itself launched them.

A pass has tables of its distinct launches, messages and copies, and the order of all calls, which
refers to them. The file is JSON, compressed with gzip; `opmeter model record` writes it.
"""

import gzip
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from collector.codec.canonical import decode_value, json_object, readable_json
from collector.codec.errors import BadInput, NewerFormat, file_errors
from collector.codec.files import read_small_file
from collector.model.record import CaseRecord
from collector.model.vocabulary import ACCELERATOR_CORE, OP_STATE
from collector.ranks.gangs import with_ep_size
from collector.workloads.call_order import CallKind, CallOrder

FORMAT, VERSION = "opmeter recording", 2
TOKENS_OF_A_KEY = 4  # the fewest of a compressed key
_DYNAMIC = "dynamic"
_LARGEST_FILE = 1 << 24
_LARGEST_BYTES = 1 << 28  # when it is not compressed
# A recording has 10 to 30 times its compressed size, and a value in 25 bytes.
_MOST_RATIO, _ALWAYS_BYTES = 200, 1 << 24
_MOST_VALUES = 4_000_000


@dataclass(frozen=True, slots=True)
class RecordedLaunch:
    """A launch of a kernel.

    call      the call as the runtime recorded it (the format of `collector.engine.calls`)
    kernel    kernel type
    cells     tensor cells of a profile's row; empty where the kernel's tensors are unknown
    extra     further columns of the row
    in_graph  whether a captured graph launches it"""

    call: str
    kernel: str
    cells: Mapping[str, str]
    extra: Mapping[str, str]
    in_graph: bool

    def record(self) -> CaseRecord:
        cells = {OP_STATE: _DYNAMIC, ACCELERATOR_CORE: "", **self.cells}
        return CaseRecord(self.kernel, cells, self.extra)


@dataclass(frozen=True, slots=True)
class RecordedMessage:
    """A collective: `operation` and `message_bytes` as in `collector.ranks.collective`."""

    call: str
    operation: str
    message_bytes: int
    dtype: str
    group_size: int
    in_graph: bool


@dataclass(frozen=True, slots=True)
class RecordedCopy:
    """A copy between memories, or the filling of memory.

    direction    as in `DIRECTIONS`
    is_blocking  whether the host waits for its end"""

    direction: str
    size_bytes: int
    is_blocking: bool


# As CANN numbers them; a copy that follows the two addresses is without a direction.
DIRECTIONS = ("host to host", "host to device", "device to host", "device to device", "fill")


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts of a mixed pass: their number, and of each its new tokens and tokens in total."""

    requests: int
    queries: int
    keys: int


@dataclass(frozen=True, slots=True)
class RecordedPass:
    """A forward pass, and what it calls: tables, in the order of the first call, and the order.

    phase     prefill, decode or mixed
    requests  number of requests; of a mixed pass, of those that decode
    queries   new tokens of each request
    keys      tokens of each request in total
    order     every call of the host in order; subjects are positions in the tables
    calls     calls that launch no kernel, as the runtime recorded them"""

    phase: str
    requests: int
    queries: int
    keys: int
    prompts: Prompts | None
    launches: tuple[RecordedLaunch, ...]
    messages: tuple[RecordedMessage, ...]
    copies: tuple[RecordedCopy, ...]
    calls: tuple[str, ...]
    order: CallOrder

    def __str__(self) -> str:
        groups = (self, self.prompts) if self.prompts else (self,)
        tokens = [f"{one.requests} x {one.queries} new tokens of {one.keys}" for one in groups]
        return f"{self.phase} of {' and '.join(tokens)}"

    def launched(self) -> Iterator[tuple[RecordedLaunch, int]]:
        """Yield the launches, each with its number."""
        times = self._times(CallKind.LAUNCH)
        yield from ((one, times[at]) for at, one in enumerate(self.launches))

    def sent(self) -> Iterator[tuple[RecordedMessage, int]]:
        """Yield the messages, each with its number."""
        times = self._times(CallKind.MESSAGE)
        yield from ((one, times[at]) for at, one in enumerate(self.messages))

    def places(self) -> Mapping[tuple[CallKind, int], Mapping[str, int]]:
        """Return the places of each kind of call and subject, with the number of calls there: the
        blocks that repeat, which are the layers of a model, and outside of them."""
        found: dict[tuple[CallKind, int], Counter[str]] = defaultdict(Counter)
        for (kind, _, subject), place, times in self.order.places():
            found[kind, subject][place] += times
        return found

    def _times(self, kind: CallKind) -> Mapping[int, int]:
        found = Counter[int]()
        for (of_kind, _, subject), times in self.order.counts().items():
            if of_kind is kind:
                found[subject] += times
        return found


@dataclass(frozen=True, slots=True)
class Recording:
    """The passes of a model on one rank.

    config_sha256  hash of the model's config.json
    release        release of the serving stack
    layout         ranks: tp, dp, ep, and pcp and dcp where ranks share a context
    device         device generation for which the software chose its launches
    environment    environment variables that the user set
    settings       settings of the engine on which launches depend
    wheels         versions of all installed distributions
    host           processor of the machine whose host times the orders have"""

    model: str
    config_sha256: str
    release: str
    layout: Mapping[str, int]
    device: str
    environment: Mapping[str, str]
    settings: Mapping[str, Any]
    wheels: Mapping[str, str]
    host: str
    passes: tuple[RecordedPass, ...]

    def record_of(self, launch: RecordedLaunch) -> CaseRecord:
        """Return the record of one of its launches, with the number of ranks of experts."""
        return with_ep_size(launch.record(), self.layout.get("ep"))

    def launches(self) -> Iterator[tuple[RecordedPass, RecordedLaunch, int]]:
        """Yield the launches of all passes with their numbers."""
        for one in self.passes:
            yield from ((one, launch, times) for launch, times in one.launched())

    def messages(self) -> Iterator[tuple[RecordedPass, RecordedMessage, int]]:
        for one in self.passes:
            yield from ((one, message, times) for message, times in one.sent())


def write_recording(recording: Recording) -> bytes:
    """Return the bytes of a recording's file; equal recordings give equal bytes."""
    value = {"format": FORMAT, "version": VERSION, **recording_value(recording)}
    return gzip.compress(readable_json(value), mtime=0)


def recording_value(recording: Recording) -> dict[str, Any]:
    """Return a recording as JSON values."""
    value = asdict(recording)
    for found, one in zip(value["passes"], recording.passes, strict=True):
        found["order"] = one.order.to_json()
    return value


def read_recording(path: Path) -> Recording:
    """Return the recording of a file. Raises BadInput, with the file, for another one."""
    with file_errors(path):
        data = read_small_file(path, _LARGEST_FILE)
    text = _unpacked(data, path)
    found = json_object(text, what="a recording", key=str(path), has_unique_names=True)
    if found.pop("format", None) != FORMAT:
        raise BadInput("expected a recording of `opmeter model record`", path=path)
    version = found.pop("version", None)
    if isinstance(version, int) and version > VERSION:
        raise NewerFormat(f"{path}: format version {version} requires a later opmeter")
    recording = decode_value(Recording, found, what="a recording", key=str(path))
    for reason in _faults(recording):
        raise BadInput(reason, path=path)
    return recording


def _unpacked(data: bytes, path: Path) -> bytes:
    """Return the JSON of a recording's file, bounded in size, in ratio and in values."""
    unpacker = zlib.decompressobj(wbits=31)  # gzip
    allowed = min(_LARGEST_BYTES, max(_ALWAYS_BYTES, _MOST_RATIO * len(data)))
    try:
        text = unpacker.decompress(data, allowed)
    except zlib.error as error:
        raise BadInput("expected a recording of `opmeter model record`", path=path) from error
    if not unpacker.eof and not unpacker.unconsumed_tail:
        raise BadInput("expected a whole recording, got one that is cut off", path=path)
    if unpacker.unconsumed_tail:
        raise BadInput(f"expected at most {allowed:,} bytes of JSON when unpacked", path=path)
    if unpacker.unused_data:
        raise BadInput("expected one recording, got further data after it", path=path)
    if text.count(b",") > _MOST_VALUES:
        raise BadInput(f"expected at most {_MOST_VALUES:,} values", path=path)
    return text


def _faults(recording: Recording) -> Iterator[str]:
    """Yield what no run can have recorded."""
    counts = {f"layout.{name}": ranks for name, ranks in recording.layout.items()}
    for one in recording.passes:
        yield from _order_faults(one)
        groups = (one, one.prompts) if one.prompts else (one,)
        for group in groups:
            counts |= {f"{one}": min(group.requests, group.queries, group.keys)}
    for name, count in counts.items():
        if count < 0:
            yield f"{name}: expected numbers of at least 0, got {count}"
    for one, message, _ in recording.messages():
        if message.message_bytes < 0 or message.group_size < 1:
            what = f"messages of {message.message_bytes} bytes of {message.group_size} ranks"
            yield f"{one}: {message.operation}: expected numbers of at least 0, got {what}"


def _order_faults(one: RecordedPass) -> Iterator[str]:
    """Yield the calls whose subject is not in the tables of the pass."""
    sizes = {
        CallKind.LAUNCH: len(one.launches),
        CallKind.MESSAGE: len(one.messages),
        CallKind.COPY: len(one.copies),
        CallKind.CALL: len(one.calls),
    }
    called: dict[CallKind, set[int]] = {kind: set() for kind in sizes}
    for kind, _, subject in one.order.distinct:
        called.get(kind, set()).add(subject)
    for kind, size in sizes.items():
        if called[kind] != set(range(size)):
            yield f"{one}: order: expected every {kind} of its table of {size}"
    for copy in one.copies:
        if copy.direction not in DIRECTIONS or copy.size_bytes < 0:
            yield f"{one}: expected a copy, got {copy.size_bytes} bytes from {copy.direction!r}"
