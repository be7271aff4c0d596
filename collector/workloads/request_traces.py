"""Traces of requests, as they are published:

- Mooncake (github.com/kvcache-ai/Mooncake, FAST25-release/traces): JSON Lines;
- the LLM inference traces of Azure (github.com/Azure/AzurePublicDataset, 2023 and 2024): CSV, with
  the time of day, in 2024 with its zone;
- BurstGPT (github.com/HPMLL/BurstGPT, releases 1 and 2): CSV, with requests that failed, which have
  no response.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from collector.codec.errors import BadInput, file_errors
from collector.codec.numbers import integer_of, parse_number
from collector.codec.table import csv_rows
from collector.workloads.served_requests import ServedRequest

logger = logging.getLogger(__name__)

_MOST_TOKENS = 1 << 24
_MOST_REQUESTS = 10_000
_MOST_BYTES = 1 << 22  # of a line: prompts of some 10^6 tokens have 10^4 hashes
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class _Format:
    """Where a trace has the arrival of a request and its tokens. `least` is the least number of
    tokens; a request with none failed, and is left out."""

    arrival: str
    prompt: str
    produced: str
    arrival_ns: Callable[[str], int]
    least: int = 1

    @property
    def names(self) -> tuple[str, str, str]:
        return self.arrival, self.prompt, self.produced


def _time_ns(text: str) -> int:
    at = datetime.fromisoformat(text.strip())
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
    return since // timedelta(microseconds=1) * 1000


def _in(unit_ns: float) -> Callable[[str], int]:
    return lambda text: round(parse_number(text) * unit_ns)


_JSON = _Format("timestamp", "input_length", "output_length", _in(1e6))
_TABLES = (
    _Format("TIMESTAMP", "ContextTokens", "GeneratedTokens", _time_ns),
    _Format("Timestamp", "Request tokens", "Response tokens", _in(1e9), least=0),
)
_IMAGES = "NumImages"  # of Azure's trace of requests with images
_ALTERNATIVES = "; ".join(", ".join(one.names) for one in _TABLES)


def read_requests(path: Path, most: int | None = None) -> tuple[ServedRequest, ...]:
    """Return the requests of a trace in their order of arrival, the first one at the begin; with
    `most`, the first of the file.

    Raises BadInput for a line that is none, and for more requests than can be served."""
    failed = 0
    found: list[ServedRequest] = []
    limit = _MOST_REQUESTS if most is None else most
    with file_errors(path, "read"), path.open("rb") as file:
        for one in _requests(file, path):
            if one is None:
                failed += 1
                continue
            if len(found) == limit:
                if most is not None:
                    break
                what = f"expected at most {limit:,} requests: --count serves the first ones"
                raise BadInput(what, path=path)
            found.append(one)
    if failed:
        logger.warning("%s: left out %d requests that failed: they have no tokens", path, failed)
    if not found:
        raise BadInput("expected at least one request, got an empty trace", path=path)
    begin_ns = min(one.arrival_ns for one in found)
    found.sort(key=lambda one: one.arrival_ns)
    return tuple(
        ServedRequest(one.arrival_ns - begin_ns, one.prompt, one.produced) for one in found
    )


def _requests(file: BinaryIO, path: Path) -> Iterator[ServedRequest | None]:
    """Yield the requests of a trace in either form, and None for each that failed."""
    lines = _lines(file, path)
    first = next(((at, line) for at, line in lines if line.strip()), None)
    if first is None:
        return
    if first[1].lstrip().startswith("{"):
        for number, line in chain([first], lines):
            if line.strip():
                yield _request(_JSON, _members(line, path, number), path, number)
        return
    rows = csv_rows(chain([first[1]], (line for _, line in lines)), path=path)
    _, header = next(rows)
    table = next((one for one in _TABLES if {*one.names} <= {*header}), None)
    if table is None or _IMAGES in header:
        what = f"expected lines of JSON, or a table with the columns {_ALTERNATIVES}"
        raise BadInput(f"{what}, got {first[1].strip()[:60]!r}", path=path, line=first[0])
    for line_number, row in rows:
        number = line_number + first[0] - 1
        if len(row) == len(header):
            yield _request(table, dict(zip(header, row, strict=True)), path, number)
        elif row:
            what = f"expected {len(header)} cells, got {len(row)}"
            raise BadInput(what, path=path, line=number)


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, str]]:
    number = 1
    while line := file.readline(_MOST_BYTES):
        if len(line) == _MOST_BYTES:
            what = f"expected lines of less than {_MOST_BYTES:,} bytes"
            raise BadInput(what, path=path, line=number)
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadInput("expected text in UTF-8", path=path, line=number) from error
        number += 1


def _members(line: str, path: Path, number: int) -> Mapping[str, str]:
    """Return the members of a line of JSON that a request needs, as texts."""
    try:
        value: Any = json.loads(line)
        return {name: json.dumps(value[name]) for name in _JSON.names}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        what = f"expected an object with {', '.join(_JSON.names)}"
        raise BadInput(f"{what}, got {line[:60]!r}", path=path, line=number) from error


def _request(
    form: _Format, cells: Mapping[str, str], path: Path, number: int
) -> ServedRequest | None:
    """Return the request of a line; None for one that failed."""
    name = form.arrival
    try:
        arrival_ns = form.arrival_ns(cells[name])
        tokens = []
        for name in (form.prompt, form.produced):
            tokens.append(count := integer_of(cells[name]))
            if not form.least <= count <= _MOST_TOKENS:
                raise ValueError(count)
    except (ValueError, OverflowError) as error:
        expected = "a time" if name == form.arrival else f"tokens from {form.least} on"
        what = f"{name}: expected {expected}, got {cells[name][:40]!r}"
        raise BadInput(what, path=path, line=number) from error
    return ServedRequest(arrival_ns, *tokens) if all(tokens) else None
