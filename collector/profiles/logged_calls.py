"""Rows of a profile completed from a log of the calls that launched them.

A capture writes `opmeter_calls.jsonl` into the folder of a run: the custom operators of each kept
step, in order, with their cells and lengths (`collector.capture.custom_calls`). The rows of a
kernel and its calls in the same step are paired in order, if their numbers are equal and no known
shape contradicts it. Then rows without inputs get the cells of their calls, and rows of fused
attention the lengths with which they were launched.
"""

import csv
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import read_small_file
from collector.codec.text import counted
from collector.model.case import case_from_cells
from collector.model.vocabulary import (
    BASE_CELLS,
    CALL_VALUES,
    COMPLETENESS,
    INPUT_CELLS,
    OUTPUT_CELLS,
)
from collector.ops.registry import fused_attention
from collector.profiles.attention_values import DUMPED, is_cut, values_of
from collector.profiles.headers import START, TYPE, Header, read_header
from collector.profiles.row_values import has_unknown_inputs
from collector.profiles.rows import open_rows

LOG_FILE = "opmeter_calls.jsonl"
_MOST_BYTES = 1 << 30
_STEP = "Step Id"
_CELLS = frozenset((*INPUT_CELLS, *OUTPUT_CELLS))
_WHOLE = ""  # the step of tables without steps

_Row = list[str]


@dataclass(frozen=True, slots=True)
class LoggedCall:
    """One line: the kernels that the call may launch, its cells, and its `Runtime ...` cells."""

    step: str
    kernels: tuple[str, ...]
    cells: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Completed:
    """What the log of a table gave. `unpaired` has the kernels that were left alone, and why."""

    table: Path
    rows: int = 0
    unpaired: tuple[str, ...] = ()

    def __str__(self) -> str:
        line = f"{self.table}: {counted(self.rows, 'row')} completed by {LOG_FILE}"
        return "; ".join([line, *self.unpaired])


def log_of(table: Path) -> Path | None:
    """Return the log of the run that a table belongs to, if there is one."""
    for folder in (table.parent, table.parent.parent):
        if (folder / LOG_FILE).is_file():
            return folder / LOG_FILE
    return None


def complete_table(table: Path, log: Path, output: Path) -> Completed:
    """Write a table completed by a log to `output`. Its rows keep their lines.

    Raises BadInput, with the line, for a log or a table that is none."""
    names, numbered = open_rows(table)
    header = read_header(names, path=table)
    rows = [row for _, row in numbered]
    step_at = next((at for at, name in enumerate(names) if name.strip() == _STEP), None)
    calls = list(read_calls(log))
    values: dict[int, str] = {}
    unpaired: list[str] = []
    completed = set[int]()
    for pairs in _paired(rows, header, step_at, calls, unpaired):
        for at, call in pairs:
            if _fill(rows[at], header, call):
                completed.add(at)
            if call.values:
                values[at] = json.dumps(dict(call.values), sort_keys=True)
                completed.add(at)
    if CALL_VALUES in names:  # the capture of a CPU has some by itself
        at_values, columns = names.index(CALL_VALUES), list(names)
        wide = [
            [*row[:at_values], values.get(at) or row[at_values], *row[at_values + 1 :]]
            for at, row in enumerate(rows)
        ]
    else:
        columns = [*names, CALL_VALUES]
        wide = [[*row, values.get(at, "")] for at, row in enumerate(rows)]
    # Bytes that are no UTF-8 stay, so that the reader of the table refuses them with their line.
    with output.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        csv.writer(file).writerows([columns, *wide])
    return Completed(table, len(completed), tuple(unpaired))


def read_calls(path: Path) -> Iterator[LoggedCall]:
    """Yield the calls of a log that may launch a kernel. Raises BadInput with the line."""
    with file_errors(path):
        text = read_small_file(path, _MOST_BYTES).decode("utf-8", "replace")
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            if (call := _call(number, json.loads(line))) is not None:
                yield call
        except json.JSONDecodeError as error:
            if is_cut(number, lines, text):
                return  # its row has no call, and is not paired
            raise BadInput(f"expected a logged call: {error}", path=path, line=number) from error
        except (BadInput, ValueError, RecursionError) as error:
            raise BadInput(f"expected a logged call: {error}", path=path, line=number) from error


def _call(number: int, line: Any) -> LoggedCall | None:
    if not isinstance(line, dict):
        raise ValueError(f"expected a JSON object, got {line!r:.60}")
    kernels, cells = line.get("kernels", []), line.get("cells", {})
    if not isinstance(kernels, list) or not all(isinstance(one, str) for one in kernels):
        raise ValueError("kernels: expected a list of texts")
    if not kernels:
        return None
    if not isinstance(cells, dict) or not set(cells) <= _CELLS:
        raise ValueError("cells: expected shapes, dtypes and formats of inputs and outputs")
    if cells:
        case_from_cells(kernels[0], {name: str(text) for name, text in cells.items()})
    values: dict[str, str] = {}
    if fused_attention().kernel in kernels and line.get("actual_seq_lengths_kv"):
        values = {**values_of(number, line).cells, COMPLETENESS: DUMPED}
    found = {name: str(text) for name, text in cells.items()}
    return LoggedCall(str(line.get("step", _WHOLE)), tuple(kernels), found, values)


def _paired(
    rows: Sequence[_Row],
    header: Header,
    step_at: int | None,
    calls: Sequence[LoggedCall],
    unpaired: list[str],
) -> Iterator[list[tuple[int, LoggedCall]]]:
    """Yield the positions of rows with their calls, by step and kernel."""
    in_table = (
        [] if step_at is None else [row[step_at].strip() for row in rows if len(row) > step_at]
    )
    steps = _aligned({call.step for call in calls}, set(in_table))
    if steps is None:
        step_at = None
    by_kernels: dict[tuple[str, ...], dict[str, list[LoggedCall]]] = defaultdict(dict)
    for call in calls:
        step = _WHOLE if steps is None else steps[call.step]
        by_kernels[call.kernels].setdefault(step, []).append(call)
    places = _places(rows, header, step_at)
    for kernels, of_steps in by_kernels.items():
        differing: Counter[str] = Counter()
        launching = {step for kernel in kernels for step in places.get(kernel, {})}
        for step in sorted(launching | set(of_steps)):
            found = sorted(at for one in kernels for at in places.get(one, {}).get(step, ()))
            found.sort(key=lambda at: _start(rows[at], header))
            launched = of_steps.get(step, [])
            pairs = list(zip(found, launched, strict=False))
            if len(found) != len(launched):
                differing[f"{len(found)} rows and {len(launched)} calls"] += 1
            elif any(_contradicts(rows[at], header, call) for at, call in pairs):
                differing["other shapes than their calls"] += 1
            else:
                yield pairs
        unpaired += [
            f"{kernels[0]} has {what} in {counted(n, 'step')}" for what, n in differing.items()
        ]


def _aligned(logged: set[str], in_table: set[str]) -> dict[str, str] | None:
    """Return the step of the table for each step of the log: the same, or in order where as many
    are counted from another number; None if the steps cannot be distinguished."""
    if logged <= in_table:
        return {step: step for step in logged}
    if len(logged) != len(in_table):
        return None
    return dict(zip(sorted(logged, key=_number), sorted(in_table, key=_number), strict=True))


def _number(step: str) -> tuple[int, str]:
    return len(step), step


def _places(
    rows: Sequence[_Row], header: Header, step_at: int | None
) -> dict[str, dict[str, list[int]]]:
    """Return the positions of the rows of each kernel, by step."""
    places: dict[str, dict[str, list[int]]] = {}
    for at, row in enumerate(rows):
        if len(row) != len(header.names):
            continue  # the reader of the table refuses it
        step = _WHOLE if step_at is None else row[step_at].strip()
        kernel = header.cell(row, TYPE).strip()
        places.setdefault(kernel, {}).setdefault(step, []).append(at)
    return places


def _start(row: _Row, header: Header) -> tuple[int, str]:
    text = header.cell(row, START).strip()
    return len(text.partition(".")[0]), text


def _contradicts(row: _Row, header: Header, call: LoggedCall) -> bool:
    """Return whether a row's known inputs are not those of the call."""
    cells = header.base_cells(row)
    if has_unknown_inputs(cells) or not call.cells:
        return False
    kernel = call.kernels[0]
    try:
        return case_from_cells(kernel, cells).inputs != case_from_cells(kernel, call.cells).inputs
    except BadInput:
        return False  # the reader of the table refuses the row


def _fill(row: _Row, header: Header, call: LoggedCall) -> bool:
    if not call.cells or not has_unknown_inputs(header.base_cells(row)):
        return False
    for name in BASE_CELLS:
        if name in call.cells:
            row[header.positions[name]] = call.cells[name]
    return True
