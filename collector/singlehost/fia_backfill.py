"""`opmeter tree fia-backfill`: runtime values of fused attention from a running model.

The lengths of requests decide the duration of FusedInferAttentionScore, and no profile has them. A
file of dumped values is joined to the rows of the kernel by the shapes that both have.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from collector.codec.errors import BadInput, file_errors
from collector.database import layout
from collector.database.tree import Cells, KernelFile, read_kernel_file, upsert
from collector.model.case import Case, case_from_cells, is_formula
from collector.model.vocabulary import (
    COMPLETENESS,
    KEY_LENGTHS,
    MEAN_LENGTH,
    QUERY_LENGTHS,
    RUNTIME_PREFIX,
)
from collector.ops.registry import fused_attention
from collector.profiles.attention import BLOCK_TABLE_SHAPE, LENGTHS_KV_SHAPE
from collector.profiles.attention_values import (
    DUMPED,
    AttentionValues,
    JoinKey,
    Shape,
    read_attention_values,
)
from collector.store.atomic import write_through

# The marker that a replay writes for assumed (likeliest) values, and the cells that follow from
# lengths.
_ASSUMED = "runtime_values"
_ASSUMED_CELLS = frozenset(
    {QUERY_LENGTHS, KEY_LENGTHS, MEAN_LENGTH, RUNTIME_PREFIX + "block_table_valid_blocks"}
)
_JOINED = ("query", "key", "value", "actual_seq_lengths_kv", "atten_mask", "block_table")
_PROFILE = (*layout.PROFILING_DURATIONS, layout.PROFILING_COUNT, layout.PROFILING)


class Backfilled:
    """The rows of a file, joined with their values, and the result for a user.

    `filled` rows became `made` new rows; `known` rows existed already, and `blanked` rows lost a
    number of another case. `complete` rows already had their values; `rows_alone` and
    `values_alone` (their lines) had no match. `without_values` are lines of a log without lengths.
    """

    def __init__(
        self,
        path: Path,
        file: KernelFile,
        values: Sequence[AttentionValues],
        without_values: Sequence[int],
        tag: str,
    ) -> None:
        self.path = path
        self.without_values = without_values
        self._by_key: dict[JoinKey, list[Cells]] = defaultdict(list)
        for value in values:
            if value.cells not in self._by_key[value.key]:
                self._by_key[value.key].append(value.cells)
        self._tag, self._kernel = tag, file.kernel_type
        self._held: dict[Case, dict[str, str]] = {}
        self.filled = self.made = self.known = self.blanked = self.complete = 0
        self.rows_alone: list[Case] = []
        met: set[JoinKey] = set()
        rows = [dict(row) for row in file.rows]
        for row in rows:
            if row.get(KEY_LENGTHS):
                self._held.setdefault(case_from_cells(file.kernel_type, row), row)
        self.rows: list[Cells] = []  # a row without values becomes one row per value
        for row in rows:
            case = case_from_cells(file.kernel_type, row)
            met.add(key_of(case))
            self.rows += self._rows_for(row, case)
        self.values_alone = [value.line for value in values if value.key not in met]

    def _rows_for(self, row: dict[str, str], case: Case) -> list[dict[str, str]]:
        found = self._by_key.get(key_of(case), [])
        # Assumed values give way to other values that are known now.
        agrees = [all(row.get(name) == text for name, text in cells.items()) for cells in found]
        is_replaced = row.get(COMPLETENESS) == _ASSUMED and found and not any(agrees)
        if row.get(KEY_LENGTHS) and not is_replaced:
            self.complete += 1
            return [row]
        if not found:
            self.rows_alone.append(case)
            return [row]
        made = self._expanded(row, found)
        self.filled += bool(made)
        return made

    def _expanded(self, row: dict[str, str], found: Sequence[Cells]) -> list[dict[str, str]]:
        assumed = _ASSUMED_CELLS if row.get(KEY_LENGTHS) else frozenset()
        cells = {name: text for name, text in row.items() if name not in assumed}
        # A microbenchmark had assumed the values. The source run's own mean stays if all its
        # launches had these values, and is removed if it is the mean over several.
        gone = (layout.AVERAGE_DURATION, layout.MICROBENCH, *(_PROFILE if len(found) > 1 else ()))
        base = {name: "" if name.startswith(gone) else text for name, text in cells.items()}
        self.blanked += base != cells
        rows = []
        for values in found:
            new = {**base, **values, COMPLETENESS: self._tag}
            case = case_from_cells(self._kernel, new)
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
    kernel = fused_attention().kernel
    path = csv_path / layout.kernel_file_name(kernel) if csv_path.is_dir() else csv_path
    file = replace(read_kernel_file(path), kernel_type=kernel)
    if output is not None and output.exists() and not output.samefile(path):
        copy = replace(read_kernel_file(output), kernel_type=kernel)
        file = upsert(copy, file.rows).file
    without_values: list[int] = []
    values = read_attention_values(values_path, without_values)
    if not tag.strip() or is_formula(tag):
        raise BadInput("tag: expected text such as runtime_values_dumped")
    done = Backfilled(output or path, file, values, without_values, tag.strip())
    columns = layout.inserted(file.columns, layout.ATTENTION_COLUMNS)
    data = KernelFile(kernel, columns, tuple(done.rows)).as_bytes()
    if done.rows != list(file.rows) or output is not None:
        with file_errors(done.path, "written"):
            write_through(done.path, data)
    return done


def key_of(case: Case) -> JoinKey:
    """Return the shapes of a row by which values are joined."""
    lengths = case.attribute(LENGTHS_KV_SHAPE)
    table = case.attribute(BLOCK_TABLE_SHAPE)
    slots = (_slot(case, at) for at in fused_attention().positions(*_JOINED))
    query, key, value, of_lengths, mask, of_table = slots
    count = next(iter(_shape(lengths) if lengths else of_lengths), 0)
    return query, key, value, count, mask, _shape(table) if table else of_table


def _slot(case: Case, at: int) -> Shape:
    inputs = case.inputs or ()
    return inputs[at].shape or () if at < len(inputs) else ()


def _shape(text: str) -> Shape:
    return tuple(int(part) for part in text.split(",") if part.strip().isdigit())
