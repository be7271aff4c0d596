"""Journal of a session: its steps, one JSON line each, written before the next step begins.

It is all that the supervisor sees of a running session, and all that remains of a killed one. Times
are of the monotonic clock, which both processes share, except where a field is named `time`.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collector.model.measurement import Condition, ConditionReading, Library
from collector.model.stack import Runtime
from collector.quality.disturbances import Lap, Watch

logger = logging.getLogger(__name__)

JOURNAL = "journal.jsonl"
MEASURED = "measured"  # the outcome of a case whose launches were all issued
# Phases of a case. What its operator requires is imported once a session, by the first case that
# requires it, and is not part of that case's time. Its launches run between the last two.
IMPORTING, BUILDING = "importing", "building"
LAUNCHING, CHECKING = "launching", "looking"
HEARTBEAT_S = 1.0


class JournalWriter:
    """Appends lines; safe to use from several threads, since each line is one write."""

    def __init__(self, path: Path):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)

    def write(self, event: str, **values: object) -> None:
        line = json.dumps({"event": event, "at_s": round(time.monotonic(), 6), **values})
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)

    def beat(self, on_beat: Callable[[], object] = lambda: None) -> Callable[[], None]:
        """Write a heartbeat every second, from a separate thread, until the returned function is
        called or the process ends. `on_beat` is called with each heartbeat."""
        over = threading.Event()

        def beats() -> None:
            while not over.is_set():
                self.write("heartbeat")
                on_beat()
                over.wait(HEARTBEAT_S)

        thread = threading.Thread(target=beats, name="heartbeat", daemon=True)
        thread.start()

        def end() -> None:
            over.set()
            thread.join()

        return end


@dataclass(frozen=True, slots=True)
class CaseEntry:
    """Journal entry of one case that was begun.

    `outcome` is empty while the case is in flight, `measured` if its launches were all issued, else
    what stopped it. `launches` is the sum of warm-ups, pilots and repeats."""

    ordinal: int
    began_s: float
    began_time: str
    phase: str = BUILDING
    outcome: str = ""
    reason: str = ""
    ended_time: str = ""
    warm_ups: int = 0
    pilots: int = 0
    repeats: int = 0
    compute_dtype: str = ""
    doubt: str = ""  # what is wrong with the outputs
    differs: str = ""  # how they differ from the reference's
    family: tuple[str, ...] = ()  # the kernel types among which the runtime chose
    library: Library = Library.NONE  # library of the launched kernel
    assumes: str = ""  # what its inputs were assumed to hold
    is_pass: bool = False  # whether each launch was timed as a whole, by the host's clock
    launching_s: float = 0.0  # when the first launch was issued, and when the last one had run
    looking_s: float = 0.0
    watch: Watch = Watch()  # disturbances while the repeats ran
    context: str = ""  # what ran before each launch, as a certificate records it
    before: tuple[frozenset[str], ...] = ()  # the kernel types that each launch of it may have

    @property
    def launches(self) -> int:
        return self.warm_ups + self.pilots + self.repeats

    @property
    def in_flight(self) -> bool:
        return not self.outcome


@dataclass(frozen=True, slots=True)
class WindowEntry:
    """One closed profiler window: its slice of the op_summary, and the cases it holds."""

    slice: str
    sha256: str
    ordinals: tuple[int, ...]


@dataclass
class Journal:
    """State of a journal, updated line by line."""

    process: tuple[int, int] | None = None  # the session's own: its id, and when it started
    refused: str = ""  # why the session did not begin
    runtime: Runtime = Runtime.REAL
    cases: dict[int, CaseEntry] = field(default_factory=dict)
    windows: list[WindowEntry] = field(default_factory=list)
    readings: list[ConditionReading] = field(default_factory=list)  # of the device, in their order
    queries: int = 0  # how often the session requested the device's condition of its supervisor
    ended: bool = False
    last_s: float = 0.0  # when the last line was written, heartbeats included
    step_s: float = 0.0  # when the last line that is not a heartbeat was

    @property
    def in_flight(self) -> CaseEntry | None:
        """Return the case that was begun and not ended: the last one, if any."""
        last = next(reversed(self.cases.values()), None)
        return last if last is not None and last.in_flight else None

    @property
    def launches(self) -> int:
        """Return the launches of all cases whose launches were all issued, with those before
        them."""
        return sum(case.launches * (1 + len(case.before)) for case in self.cases.values())

    @property
    def recorded(self) -> frozenset[int]:
        """Return the cases whose window is closed."""
        return frozenset(ordinal for window in self.windows for ordinal in window.ordinals)

    def add(self, line: Mapping[str, Any]) -> None:
        """Apply one line; unknown events, of another version, are skipped."""
        at_s = float(line["at_s"])
        if line["event"] == "condition":  # an NPU's is written by the supervisor: no sign of life
            values = _known(line, Condition)
            if values.get("held") is not None:
                values["held"] = tuple(values["held"])
            self.readings.append(ConditionReading(at_s, Condition(**values)))
            return
        self.last_s = at_s
        match line["event"]:
            case "query":
                self.queries += 1
            case "start":
                self.process = (line["pid"], line["started"])
            case "refused":
                self.refused = line["reason"]
            case "ready":
                self.runtime = Runtime(line.get("runtime", self.runtime))
            case "begin":
                self.cases[line["ordinal"]] = CaseEntry(line["ordinal"], self.last_s, line["time"])
            case "phase":
                entry, phase = self.cases[line["ordinal"]], line["phase"]
                is_timed = phase in (LAUNCHING, CHECKING)
                times: dict[str, Any] = {f"{phase}_s": self.last_s} if is_timed else {}
                if phase == BUILDING:  # after its imports
                    times["began_s"] = self.last_s
                self.cases[entry.ordinal] = replace(entry, phase=phase, **times)
            case "end":
                entry = self.cases[line["ordinal"]]
                values = _decoded(_known(line, CaseEntry))
                self.cases[entry.ordinal] = replace(entry, **values, ended_time=line["time"])
            case "window":
                ordinals = tuple(line["ordinals"])
                self.windows.append(WindowEntry(line["slice"], line["sha256"], ordinals))
            case "finish":
                self.ended = True
            case str():
                return
            case other:
                raise TypeError(f"event: expected text, got {other!r}")
        self.step_s = self.last_s


def _decoded(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of an entry that has ended, of their types."""
    if "watch" in values:
        laps, *rest = values["watch"]
        values["watch"] = Watch(tuple(Lap(*lap) for lap in laps), *rest)
    if "family" in values:
        values["family"] = tuple(values["family"])
    if "before" in values:
        values["before"] = tuple(map(frozenset, values["before"]))
    if "library" in values:
        values["library"] = Library(values["library"])
    return values


class GrowingFile:
    """The lines of a file that another process writes."""

    def __init__(self, path: Path):
        self._path, self._offset = path, 0

    def new(self) -> list[bytes]:
        """Return the complete lines since the last call; none if there is no file yet."""
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        return complete.splitlines()


class JournalTail:
    """Follows a journal while it is written; `journal` is its state so far."""

    def __init__(self, path: Path):
        self.journal = Journal()
        self.path, self._lines = path, GrowingFile(path)
        self._is_broken = False

    def read(self) -> Journal:
        """Apply the new lines, and return the state.

        An incomplete last line is left for the next call. After an unreadable line, which a full
        disk may leave in the middle, nothing more is read: the steps after it count as not done,
        and the session as silent."""
        for line in () if self._is_broken else self._lines.new():
            try:
                self.journal.add(json.loads(line))
            except (LookupError, TypeError, ValueError, RecursionError) as error:
                logger.warning("%s: skipping an unreadable line: %r", self.path, error)
                self._is_broken = True
                break
        return self.journal


def read_journal(path: Path) -> Journal:
    """Return the final state of a journal; an incomplete last line is ignored."""
    return JournalTail(path).read()


def time_now() -> str:
    """Return the wall clock time, for display."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _known(line: Mapping[str, Any], record: type) -> dict[str, Any]:
    return {f.name: line[f.name] for f in fields(record) if f.name in line}
