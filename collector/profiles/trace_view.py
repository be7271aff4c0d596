"""What the collectives of a run were asked for: `trace_view.json`, which Ascend's profiler writes
beside `communication.json`.

It is a list of events, hundreds of MB of them where a step is long, so that it is read event by
event. That of a collective bears its name there, `hcom_allReduce__586_0_1`, and the `count` and
`data_type` that HCCL was called with; newer ones its `rank_size`, too.
"""

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from collector.errors import BadInput
from collector.profiles.small_file import open_own_file

TRACE = "trace_view.json"
_PIECE_BYTES = 1 << 20
_LONGEST_EVENT = 1 << 24  # characters; a call stack is some thousands
_NAME = re.compile(r"hcom_[A-Za-z]+__\w+")
_UNTOLD = ("N/A", "RESERVED", "INVALID_TYPE")  # of msprof, for a call that it knows too little of
_MOST_ELEMENTS = 1 << 48
_MOST_RANKS = 1 << 20
_BLANK = re.compile(r"[ \t\r\n]*")
_event_at = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Asked:
    """What HCCL was called with: elements as its function counts them, their type in its own words
    (`FP32`, `BFP16`), and the ranks of the group (None where the trace does not tell)."""

    elements: int
    data_type: str
    group_size: int | None = None


def asked_of_collectives(folder: Path) -> Mapping[str, Asked]:
    """By the collectives' names in a run's folder; a name that stands there for several things is
    left out. Nothing where there is no trace; BadInput for a file of another kind."""
    path = folder / TRACE
    if not path.exists():
        return {}
    found: dict[str, set[Asked]] = {}
    for at, event in trace_events(path):
        name = event.get("name")
        if isinstance(name, str) and _NAME.fullmatch(name):
            asked = _asked(event.get("args"), f"event {at}, {name}", path)
            if asked is not None:
                found.setdefault(name, set()).add(asked)
    return {name: next(iter(told)) for name, told in found.items() if len(told) == 1}


def trace_events(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The events of a trace and their places, from 1 on; one of them is held at a time. Raises
    BadInput, with the place, for whatever is no list of objects."""
    try:
        with open_own_file(path) as file:
            yield from _Text(file, path).events()
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", path=path) from error


class _Text:
    """The characters of a file, of which those that were read are let go."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._text, self._at, self._place = "", 0, 0
        self._is_whole = False

    def events(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        self._take("[")
        if self._next() == "]":
            self._take("]")
        else:
            yield from self._listed()
        if self._next():
            raise self._refusal("unexpected text after the list")

    def _listed(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        mark = ","
        while mark == ",":
            self._place += 1
            yield self._place, self._event()
            mark = self._take(",]")

    def _event(self) -> Mapping[str, Any]:
        if self._next() != "{":  # of anything else a beginning could be taken for the whole
            raise self._refusal("expected an object")
        while True:
            try:
                event, self._at = _event_at(self._text, self._at)
                break
            except RecursionError as error:
                raise self._refusal("nested too deeply") from error
            except ValueError as error:  # a wrong one, or the beginning of one
                if len(self._text) - self._at > _LONGEST_EVENT or not self._more():
                    told = error.msg if isinstance(error, json.JSONDecodeError) else error
                    raise self._refusal(f"invalid JSON: {told}") from error
        found: Mapping[str, Any] = event
        return found

    def _take(self, marks: str) -> str:
        """The next mark, which is one of some."""
        mark = self._next()
        if not mark or mark not in marks:
            raise self._refusal(f"expected a list of events: missing {marks[-1]}")
        self._at += 1
        return mark

    def _next(self) -> str:
        """The next character that is not blank, which stays; nothing at the end."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            assert blank is not None
            self._at = blank.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _more(self) -> bool:
        """Reads another piece; False at the end of the file."""
        if self._is_whole:
            return False
        piece = self._file.read(_PIECE_BYTES)
        self._is_whole = not piece
        try:
            text = self._decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise self._refusal("expected UTF-8 text") from error
        self._text, self._at = self._text[self._at :] + text, 0
        return True

    def _refusal(self, reason: str) -> BadInput:
        place = f"event {self._place}: " if self._place else ""
        return BadInput(f"{place}{reason}", path=self._path)


def _asked(args: object, place: str, path: Path) -> Asked | None:
    """None where an event tells nothing of its elements."""
    if args is None:
        return None
    if not isinstance(args, dict):
        raise BadInput(f"{place}: 'args': expected an object", path=path)
    count, data_type = args.get("count"), args.get("data_type")
    if count is None or data_type is None or count in _UNTOLD:
        return None
    if not isinstance(data_type, str):
        raise BadInput(f"{place}: 'data_type': expected text", path=path)
    elements = _whole(count, "count", place, path)
    if data_type in _UNTOLD or not 0 < elements < _MOST_ELEMENTS:
        return None
    size = _whole(args.get("rank_size", 0), "rank_size", place, path)
    return Asked(elements, data_type, size if 1 < size < _MOST_RANKS else None)


def _whole(value: object, name: str, place: str, path: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadInput(f"{place}: {name!r}: expected a non-negative integer", path=path)
    return value
