"""`opmeter fia-backfill`: runtime values of fused attention from a running model.

The lengths of requests decide the duration of FusedInferAttentionScore, and no profile has them. A
file of dumped values is joined to the rows of the kernel by the shapes that both have.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import read_small_file
from collector.codec.table import is_text
from collector.database import layout
from collector.database.tree import Cells, KernelFile, read_kernel_file, upsert
from collector.model.case import Case, case_from_cells, is_formula, shape_text
from collector.model.vocabulary import RUNTIME_PREFIX
from collector.profiles.attention import BLOCK_TABLE_SHAPE, COMPLETENESS, KERNEL, LENGTHS_KV_SHAPE
from collector.store.atomic import write_through

# Runtime values of fused attention, as dumped by a serving process: one JSON object per line.

Shape = tuple[int, ...]

# query, key, value; number of kv lengths; attention mask; block table. An absent tensor is ().
JoinKey = tuple[Shape, Shape, Shape, int, Shape, Shape]

_MOST = 1 << 40  # of an integer
_MOST_DIGITS = 20
_DIGITS = re.compile(rf"[0-9]{{1,{_MOST_DIGITS}}}")
_MOST_BYTES = 1 << 30  # of a file of values: a few million lines
_SHAPES = ("query_shape", "key_shape", "value_shape", "atten_mask_shape", "block_table_shape")
_MANDATORY = (*_SHAPES, "actual_seq_lengths_kv")
_LISTS = ("actual_seq_lengths", "block_table_valid_blocks")
_NUMBERS = ("num_heads", "num_key_value_heads", "sparse_mode", "block_size")
_TEXTS = ("input_layout", "attn_state", "kv_cache_mode")


@dataclass(frozen=True, slots=True)
class BackfillLine:
    """One line: the key of the rows it belongs to, and its `Runtime ...` cells."""

    line: int
    key: JoinKey
    cells: Mapping[str, str]


def read_runtime_values(path: Path) -> list[BackfillLine]:
    """Return the objects of a file. Raises BadInput, with the line, for any other content."""
    try:
        with file_errors(path):
            lines = read_small_file(path, _MOST_BYTES).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise BadInput("expected UTF-8 text with one JSON object per line", path=path) from error
    values = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_int=_number, object_pairs_hook=_members)
            values.append(_of(number, value))
        except json.JSONDecodeError as error:
            message = f"expected one JSON object per line: {error}"
            raise BadInput(message, path=path, line=number) from error
        except RecursionError as error:
            raise BadInput("nested too deeply", path=path, line=number) from error
        except ValueError as error:
            raise BadInput(str(error), path=path, line=number) from error
    if not values:
        raise BadInput("expected one JSON object per line, got an empty file", path=path)
    return values


def _number(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"expected integers of at most {_MOST_DIGITS} digits, got {len(text)}")
    return int(text)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"expected unique keys, got {twice!r:.60} more than once")
    return members


def _of(line: int, value: Any) -> BackfillLine:
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {value!r:.60}")
    missing = [name for name in _MANDATORY if name not in value]
    if missing:
        raise ValueError(f"missing {', '.join(missing)}")
    query, key, val, mask, table = (_integers(value[name], name) for name in _SHAPES)
    lengths_kv = _integers(value["actual_seq_lengths_kv"], "actual_seq_lengths_kv")
    if not query or not lengths_kv:
        raise ValueError("query_shape and actual_seq_lengths_kv must not be empty")
    block_size = _integer(value.get("block_size") or 0, "block_size")
    capacity = _capacity(key, table, block_size)
    if max(lengths_kv) > capacity:
        raise ValueError(
            f"actual_seq_lengths_kv: expected at most {capacity}, the keys that the cache can hold "
            f"for a request, got {max(lengths_kv)}"
        )
    cells = {
        "actual_seq_lengths_kv_shape": str(len(lengths_kv)),
        "actual_seq_lengths_kv_values": shape_text(lengths_kv),
        "avg_seq_len": layout.number_text(fmean(lengths_kv)),
        "block_table_shape": shape_text(table),
        **_optional(value),
    }
    recorded = {RUNTIME_PREFIX + name: text for name, text in cells.items() if text}
    return BackfillLine(line, (query, key, val, len(lengths_kv), mask, table), recorded)


def _capacity(key: Shape, table: Shape, block_size: int) -> int:
    """Return an upper bound of the keys of a request, by the shapes of the keys and of the table.

    A block of a paged cache is (tokens, heads * size), (heads, tokens, size) or, in the NZ layout,
    (heads, size / 16, tokens, 16). Without a table the layout is unknown: all sizes but the
    last may be tokens."""
    if len(key) < 3:
        return _MOST
    if len(table) != 2:
        return prod(key[:-1])
    return table[1] * (block_size or max(key[1:-1]))


def _optional(value: Mapping[str, Any]) -> dict[str, str]:
    given = {name: entry for name, entry in value.items() if entry is not None}
    numbers = {name: str(_integer(given[name], name)) for name in _NUMBERS if name in given}
    texts = {name: _text(given[name], name) for name in _TEXTS if name in given}
    lists = {name: shape_text(_integers(given[name], name)) for name in _LISTS if name in given}
    if "actual_seq_lengths" in lists:
        lengths = lists.pop("actual_seq_lengths")
        lists["actual_seq_lengths_values"] = lengths
        lists["actual_seq_lengths_shape"] = str(lengths.count(",") + 1) if lengths else ""
    return {**numbers, **texts, **lists}


def _integers(value: Any, name: str) -> Shape:
    """Return the integers of `[4, 128]`, `4` or `"4,128"`; null and an empty list give ()."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = value.replace(";", ",").split(",") if value.strip() else []
    parts = value if isinstance(value, list) else [value]
    return tuple(_integer(part, name) for part in parts)


def _integer(value: Any, name: str) -> int:
    if isinstance(value, str) and _DIGITS.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST:
        raise ValueError(f"{name}: expected integers from 0 to {_MOST - 1}, got {value!r:.60}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip() or not is_text(value) or is_formula(value):
        raise ValueError(f"{name}: expected text, got {value!a}")
    return value.strip()


DUMPED = "runtime_values_dumped"
LENGTHS_KV_VALUES = RUNTIME_PREFIX + "actual_seq_lengths_kv_values"
# The marker that a replay writes for assumed (likeliest) values, and the cells that follow from
# lengths.
_ASSUMED = "runtime_values"
_ASSUMED_CELLS = frozenset(
    RUNTIME_PREFIX + name
    for name in (
        *("actual_seq_lengths_values", "actual_seq_lengths_kv_values", "avg_seq_len"),
        "block_table_valid_blocks",
    )
)
_MASK_SLOT, _LENGTHS_KV_SLOT, _BLOCK_TABLE_SLOT = 4, 6, 14
_PROFILE = (*layout.PROFILING_DURATIONS, layout.PROFILING_COUNT, layout.PROFILING)


class Backfilled:
    """The rows of a file, joined with their values, and the result for a user.

    `filled` rows became `made` new rows; `known` rows existed already, and `blanked` rows lost a
    number of another case. `complete` rows already had their values; `rows_alone` and
    `values_alone` (their lines) had no match."""

    def __init__(
        self, path: Path, file: KernelFile, values: Sequence[BackfillLine], tag: str
    ) -> None:
        self.path = path
        self._by_key: dict[JoinKey, list[Cells]] = defaultdict(list)
        for value in values:
            if value.cells not in self._by_key[value.key]:
                self._by_key[value.key].append(value.cells)
        self._tag = tag
        self._held: dict[Case, dict[str, str]] = {}
        self.filled = self.made = self.known = self.blanked = self.complete = 0
        self.rows_alone: list[Case] = []
        met: set[JoinKey] = set()
        rows = [dict(row) for row in file.rows]
        for row in rows:
            if row.get(LENGTHS_KV_VALUES):
                self._held.setdefault(case_from_cells(KERNEL, row), row)
        self.rows: list[Cells] = []  # a row without values becomes one row per value
        for row in rows:
            case = case_from_cells(KERNEL, row)
            met.add(key_of(case))
            self.rows += self._rows_for(row, case)
        self.values_alone = [value.line for value in values if value.key not in met]

    def _rows_for(self, row: dict[str, str], case: Case) -> list[dict[str, str]]:
        found = self._by_key.get(key_of(case), [])
        # Assumed values give way to other values that are known now.
        agrees = [all(row.get(name) == text for name, text in cells.items()) for cells in found]
        is_replaced = row.get(COMPLETENESS) == _ASSUMED and found and not any(agrees)
        if row.get(LENGTHS_KV_VALUES) and not is_replaced:
            self.complete += 1
            return [row]
        if not found:
            self.rows_alone.append(case)
            return [row]
        made = self._expanded(row, found)
        self.filled += bool(made)
        return made

    def _expanded(self, row: dict[str, str], found: Sequence[Cells]) -> list[dict[str, str]]:
        assumed = _ASSUMED_CELLS if row.get(LENGTHS_KV_VALUES) else frozenset()
        cells = {name: text for name, text in row.items() if name not in assumed}
        # A microbenchmark had assumed the values. The source run's own mean stays if all its
        # launches had these values, and is removed if it is the mean over several.
        gone = (layout.AVERAGE_DURATION, layout.MICROBENCH, *(_PROFILE if len(found) > 1 else ()))
        base = {name: "" if name.startswith(gone) else text for name, text in cells.items()}
        self.blanked += base != cells
        rows = []
        for values in found:
            new = {**base, **values, COMPLETENESS: self._tag}
            case = case_from_cells(KERNEL, new)
            held = self._held.get(case)
            if held is not None:  # from an earlier run; add the numbers of a newer source run
                held.update(
                    {name: text for name, text in new.items() if text and name.startswith(_PROFILE)}
                )
                self.known += 1
            else:
                self._held[case] = new
                rows.append(new)
        self.made += len(rows)
        return rows


def backfill(
    csv_path: Path, values_path: Path, output: Path | None = None, *, tag: str = DUMPED
) -> Backfilled:
    """Join values into a FusedInferAttentionScore.csv, or into a copy of it at `output`.

    A copy that exists keeps its rows, which may have been measured since. Raises BadInput, with the
    line, for invalid input, and writes nothing then."""
    path = csv_path / layout.kernel_file_name(KERNEL) if csv_path.is_dir() else csv_path
    file = replace(read_kernel_file(path), kernel_type=KERNEL)
    if output is not None and output.exists() and not output.samefile(path):
        copy = replace(read_kernel_file(output), kernel_type=KERNEL)
        file = upsert(copy, file.rows).file
    values = read_runtime_values(values_path)
    if not tag.strip() or is_formula(tag):
        raise BadInput("tag: expected text such as runtime_values_dumped")
    done = Backfilled(output or path, file, values, tag.strip())
    columns = layout.inserted(file.columns, layout.ATTENTION_COLUMNS)
    data = KernelFile(KERNEL, columns, tuple(done.rows)).as_bytes()
    if done.rows != list(file.rows) or output is not None:
        with file_errors(done.path, "written"):
            write_through(done.path, data)
    return done


def key_of(case: Case) -> JoinKey:
    """Return the shapes of a row by which values are joined."""
    lengths = case.attribute(LENGTHS_KV_SHAPE)
    table = case.attribute(BLOCK_TABLE_SHAPE)
    length_shape = _shape(lengths) if lengths else _slot(case, _LENGTHS_KV_SLOT)
    return (
        _slot(case, 0),
        _slot(case, 1),
        _slot(case, 2),
        length_shape[0] if length_shape else 0,
        _slot(case, _MASK_SLOT),
        _shape(table) if table else _slot(case, _BLOCK_TABLE_SLOT),
    )


def _slot(case: Case, at: int) -> Shape:
    inputs = case.inputs or ()
    return inputs[at].shape or () if at < len(inputs) else ()


def _shape(text: str) -> Shape:
    return tuple(int(part) for part in text.split(",") if part.strip().isdigit())
