"""Data about fused attention in a profile beyond the row of its kernel.

The duration of the kernel depends on the lengths of the requests and on the table of
their cache blocks. The kernel's row has the shapes of those tensors if the profiler saw them.
Otherwise the host's record of the same call, `operator_details.csv` in the same folder, may have
them. The two files have no common key, so their rows are paired in file order.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import prod
from pathlib import Path

from collector.codec.errors import BadInput
from collector.model.case import is_formula, parse_shape, shape_text, split_cell
from collector.model.vocabulary import COMPLETENESS, INPUT_SHAPES, RUNTIME_PREFIX
from collector.ops.registry import fused_attention
from collector.profiles.rows import open_rows

OPERATOR_DETAILS = "operator_details.csv"

SOURCE_PROFILE = RUNTIME_PREFIX + "source_profile"
LENGTHS_SHAPE = RUNTIME_PREFIX + "actual_seq_lengths_shape"
LENGTHS_KV_SHAPE = RUNTIME_PREFIX + "actual_seq_lengths_kv_shape"
BLOCK_TABLE_SHAPE = RUNTIME_PREFIX + "block_table_shape"
SHAPES_ONLY = "profile_shapes_only"

_TABLE = "block_table"
_SHAPES = {
    "actual_seq_lengths": LENGTHS_SHAPE,
    "actual_seq_lengths_kv": LENGTHS_KV_SHAPE,
    _TABLE: BLOCK_TABLE_SHAPE,
}
# Columns that may name an operator, in files of several tools.
_NAME_COLUMNS = ("Type", "Name", "Op Type", "Op Name", "Operator Type", "Operator Name")
# Functions with the same name prefix that launch no kernel: they prepare a captured graph.
_NO_LAUNCH = ("getmaxworkspace", "inferoutput")
# Folders with the same name in every profile.
_INNER_FOLDERS = frozenset({"ASCEND_PROFILER_OUTPUT", "mindstudio_profiler_output"})

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One call as recorded by the host: the shapes of its arguments, by position."""

    name: str
    shapes: tuple[Shape | None, ...]

    @property
    def facts(self) -> dict[str, str]:
        """Return the shapes of lengths and block table in the row, by their columns."""
        op = fused_attention()
        if len(self.shapes) <= len(op.slots):
            return _kernel_facts(self.shapes)
        letters, kernel = _letters(self.name), op.kernel.lower()
        suffix = max((one for one in op.npu.recorded if kernel + one in letters), key=len)
        return _facts(self.shapes, op.npu.recorded[suffix])


@dataclass(frozen=True, slots=True)
class Pairing:
    """The pairing of the rows of one folder. `warning` is the evidence against it."""

    folder: Path
    kernel_rows: int
    operator_rows: int
    paired: int
    warning: str = ""


class AttentionFacts:
    """The `Runtime ...` cells of fused attention, by the kernel's own `Input Shapes`.

    A cell is used only if all calls with the same `Input Shapes` agree on it. Their durations form
    one group, so a cell of some of them would be wrong for the others."""

    def __init__(
        self, files: Iterable[tuple[Path, Sequence[str]]], unusable: list[str] | None = None
    ) -> None:
        """Take the `Input Shapes` of the fused attention of each file, in order of its rows.

        A bad file of operators is added to `unusable`, or raises BadInput without it."""
        self.pairings: list[Pairing] = []
        self._sources: dict[str, str] = {}
        self._reported: dict[str, dict[str, set[str]]] = {}
        for path, shapes in files:
            try:
                self._take(path, shapes)
            except BadInput as error:
                if unusable is None:
                    raise
                unusable.append(str(error))

    def of(self, cell: str) -> dict[str, str]:
        """Return the cells of a kernel row; empty if no file has such a row."""
        shapes = _plain(cell)
        if shapes not in self._sources:
            return {}
        cells = _kernel_facts(_parsed(shapes))
        for name, values in self._reported[shapes].items():
            if len(values) == 1:
                cells[name] = next(iter(values))
        return {
            SOURCE_PROFILE: self._sources[shapes],
            **{name: cells[name] for name in _SHAPES.values() if name in cells},
            COMPLETENESS: SHAPES_ONLY,
        }

    @property
    def disputed(self) -> tuple[str, ...]:
        """Return the cells on which calls with the same `Input Shapes` disagree.

        Only the kernel's row gives these cells."""
        return tuple(
            f"{name} of {shapes}: {' or '.join(sorted(values))}"
            for shapes, reported in self._reported.items()
            for name, values in reported.items()
            if len(values) > 1
        )

    def _take(self, path: Path, cells: Sequence[str]) -> None:
        # The folder that names the profile, such as `rank0_ascend_pt`, not a standard folder.
        folders = (folder.name for folder in path.absolute().parents)
        profile = next((name for name in folders if name not in _INNER_FOLDERS), "")
        profile = "" if is_formula(profile) else profile
        for shapes in map(_plain, cells):
            self._sources.setdefault(shapes, profile)
            self._reported.setdefault(shapes, {})
        details = path.with_name(OPERATOR_DETAILS)
        operators = read_operator_rows(details) if cells and details.is_file() else []
        if not operators:
            return
        pairs, pairing = pair(path.parent, cells, operators)
        self.pairings.append(pairing)
        for cell, operator in pairs:
            shapes = _plain(cell)
            for name, value in operator.facts.items():
                self._reported[shapes].setdefault(name, set()).add(value)


def pair(
    folder: Path, cells: Sequence[str], operators: Sequence[OperatorRow]
) -> tuple[list[tuple[str, OperatorRow]], Pairing]:
    """Return kernel rows paired with operator rows, in order.

    With equal counts all rows are paired. If the counts differ, a row is missing somewhere. Then
    only the common beginning is paired, up to the first pair whose queries differ in size: there,
    at the latest, one list has shifted against the other."""
    pairs = list(zip(cells, operators, strict=False))
    agreeing = list(takewhile(lambda pair: _same_query(*pair), pairs))
    warning = ""
    if len(cells) != len(operators):
        if len(agreeing) < len(pairs):
            warning = f"the query sizes differ from pair {len(agreeing) + 1} on"
        pairs = agreeing
    elif len(agreeing) < len(pairs):
        others = sum(not _same_query(*pair) for pair in pairs)
        warning = f"the query sizes differ in {others} pairs"
    pairing = Pairing(folder, len(cells), len(operators), len(pairs), warning)
    return pairs, pairing


def read_operator_rows(path: Path) -> list[OperatorRow]:
    """Return the calls of fused attention with shapes in an operator_details.csv, in order.

    Slots are joined by `;` and a line break; rows need no output shapes. Raises BadInput for a file
    that is no CSV."""
    names, rows = open_rows(path)
    columns = {name.strip(): at for at, name in enumerate(names)}
    if INPUT_SHAPES not in columns:
        return []
    called = [columns[name] for name in _NAME_COLUMNS if name in columns]
    at, found, kernel = columns[INPUT_SHAPES], [], fused_attention().kernel.lower()
    for line, row in rows:
        name = " ".join(row[place] for place in called if place < len(row))
        letters = _letters(name)
        is_call = kernel in letters and not any(word in letters for word in _NO_LAUNCH)
        if not is_call or at >= len(row):
            continue
        try:
            shapes = _parsed(row[at])
        except BadInput as error:
            raise BadInput(str(error), path=path, line=line) from error
        if any(shape is not None for shape in shapes):
            found.append(OperatorRow(name, shapes))
    return found


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _plain(cell: str) -> str:
    """Return a cell without the text that its writer put around the slots."""
    return ";".join(split_cell(cell))


def _parsed(cell: str) -> tuple[Shape | None, ...]:
    return tuple(parse_shape(slot) for slot in split_cell(cell))


def _kernel_facts(shapes: Sequence[Shape | None]) -> dict[str, str]:
    positions = zip(_SHAPES, fused_attention().positions(*_SHAPES), strict=True)
    return _facts(shapes, {name: (at,) for name, at in positions})


def _facts(
    shapes: Sequence[Shape | None], positions: Mapping[str, tuple[int, ...]]
) -> dict[str, str]:
    found = {}
    for name, places in positions.items():
        given = filter(None, (_at(shapes, at) for at in places))
        if shape := next((one for one in given if name != _TABLE or len(one) == 2), None):
            found[_SHAPES[name]] = shape_text(shape)
    return found


def _at(shapes: Sequence[Shape | None], at: int) -> Shape | None:
    return shapes[at] if at < len(shapes) else None


def _same_query(shapes: str, operator: OperatorRow) -> bool:
    """Return whether both queries have the same number of elements; layouts may differ."""
    ours, theirs = _parsed(shapes)[0], operator.shapes[0]
    return ours is None or theirs is None or prod(ours) == prod(theirs)
