"""Cases as users write them: text, JSON, or a file of these, of a table's rows or of a profile.

    MatMulV2 4096,5120;5120,6400 bf16
    Cast 4096,5120 bf16 output=4096,5120 output_dtype=fp32
    {"kernel_type": "Add", "Input Shapes": "8,8;8,8", "Input Data Types": "bf16"}

Text is a kernel type, the shapes of its inputs, their dtypes and their formats; further columns
follow as `name=value`. JSON names columns as text does, as a tree, or as manifests and files of
misses do.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import MOST_TABLE_BYTES, read_small_file
from collector.codec.text import did_you_mean
from collector.model.demand import record_of_cells
from collector.model.record import KERNEL_TYPE, CaseRecord
from collector.model.vocabulary import (
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    RUNTIME_PREFIX,
    dtype_of,
    is_absent_dtype,
    torch_dtype_of,
)
from collector.ops.own import find_operator, own_operators
from collector.ops.registry import all_ops
from collector.ranks.collective import is_collective
from opmeter.cases import (
    WEIGHT,
    Arguments,
    arguments_of,
    column_called,
    kernel_column,
    query_cells,
    query_of,
    unused_columns,
)

EXAMPLE = "MatMulV2 4096,5120;5120,6400 bf16"
_SHAPES = re.compile(r"""[0-9,;()\[\]"]*[0-9;][0-9,;()\[\]"]*""")
_WITHOUT_BRACKETS = str.maketrans("", "", '()[]"')
_FORMAT = re.compile(r"[A-Za-z0-9_;]+")
_OF_DEMAND = ("query", "cells")  # members of manifests and of files of misses that have the columns
_OF_TABLES = (".csv", ".tsv")
_PROFILED = frozenset({"Duration(us)", "Task Duration(us)"})  # columns of profiles


@dataclass(frozen=True, slots=True)
class WrittenCase:
    """A case with the cells that its writer gave; `line` is its line in a file, 0 without one."""

    kernel: str
    cells: Mapping[str, str] = field(default_factory=dict)
    line: int = 0

    @property
    def shapes(self) -> str:
        return self.cells.get(INPUT_SHAPES, "").strip('"')

    @property
    def arguments(self) -> Arguments:
        """Return the arguments of a query. Raises BadInput for an invalid cell."""
        return arguments_of({INPUT_SHAPES: "", **self.cells})

    def record(self) -> CaseRecord:
        """Return the case to measure. One dtype is that of all inputs. Raises BadInput for a case
        that lacks dtypes."""
        query = query_of(self.kernel, **self.arguments)
        if any(rank >= 0 for rank in query.ranks) and not query.dtypes:
            raise BadInput(f"dtype: expected that of the inputs, as in '{EXAMPLE}', got none")
        return record_of_cells(query.kernel, query_cells(query, (), {}))


def case_of_text(text: str, line: int = 0) -> WrittenCase:
    """Return the case of one text. Raises BadInput for another text."""
    if text.lstrip().startswith("{"):
        return _case_of_json(text, line)
    kernel, *words = text.split() or [""]
    if not kernel:
        raise BadInput(f"expected a case, such as '{EXAMPLE}', got an empty text")
    cells: dict[str, str] = {}
    while words and "=" not in words[0] and _SHAPES.fullmatch(words[0]):
        shape = words.pop(0).replace("],[", "];[").replace("),(", ");(").strip(",")
        before = f"{cells[INPUT_SHAPES]};" if INPUT_SHAPES in cells else ""
        cells[INPUT_SHAPES] = before + shape.translate(_WITHOUT_BRACKETS)
    for word in words:
        name, is_named, value = word.partition("=")
        column = _column_named(name) if is_named else _column_of(word, cells)
        if column in cells:
            raise BadInput(f"{column}: expected it once, got {cells[column]!r} and {word!r}")
        cells[column] = value if is_named else word
    if INPUT_DTYPES in cells:
        inputs = cells.get(INPUT_SHAPES, "").count(";") + 1
        cells[INPUT_DTYPES] = _checked_dtypes(cells[INPUT_DTYPES], inputs)
    return WrittenCase(kernel, cells, line)


def _column_of(word: str, before: Mapping[str, str]) -> str:
    """Return the column of a word without a name: the dtypes, then the formats."""
    if INPUT_SHAPES not in before:
        raise BadInput(f"shapes: expected numbers, as in '{EXAMPLE}', got {word[:40]!r}")
    if INPUT_DTYPES not in before:
        return INPUT_DTYPES
    if INPUT_FORMATS in before or not _FORMAT.fullmatch(word):
        raise BadInput(f"expected name=value after the dtypes and formats, got {word[:40]!r}")
    return INPUT_FORMATS


def _checked_dtypes(text: str, inputs: int) -> str:
    parts = text.strip('"').replace(",", ";").split(";")
    if len(parts) not in (1, inputs):
        raise BadInput(f"dtype: expected one, or one for each of {inputs} inputs, got {len(parts)}")
    for part in parts:
        if not (dtype_of(part) or is_absent_dtype(part) or torch_dtype_of(_of_torch(part))):
            hint = did_you_mean(part.lower(), ("bf16", "fp16", "fp32", "int8", "int32", "int64"))
            raise BadInput(f"dtype: expected one such as bf16, got {part[:40]!r}{hint}")
    return ";".join(parts)


def _of_torch(text: str) -> str:
    return text.strip().lower().removeprefix("torch.")


def _column_named(name: str) -> str:
    """Return the column that a user calls so; `sparse_mode` is that of `Runtime sparse_mode`."""
    column = column_called(name)
    if column:
        return column
    if name and name == name.lower() and name.isidentifier():
        return RUNTIME_PREFIX + name
    known = ("dtype", "format", "output", "output_dtype", "lengths", "state")
    raise BadInput(f"expected one of {', '.join(known)}, or a runtime value, got {name[:40]!r}")


def _case_of_json(text: str, line: int) -> WrittenCase:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"expected a JSON object, got {text[:40]!r}: {error}") from error
    return _case_of_object(value, line)


def _case_of_object(value: Any, line: int) -> WrittenCase:
    if not isinstance(value, dict):
        raise BadInput(f"expected a JSON object for a case, got {str(value)[:40]!r}")
    named = {**value}
    for name in _OF_DEMAND:
        if isinstance(value.get(name), dict):
            named = {**value[name]} | {k: value[k] for k in ("kernel_type",) if k in value}
            break
    kernel, cells = "", {}
    for name, given in named.items():
        column = KERNEL_TYPE if name == "kernel_type" else _column_of_json(name)
        text = _cell(name, given, is_shape="Shapes" in column)
        if column == KERNEL_TYPE:
            kernel = text
        elif text and column != WEIGHT:
            cells[column] = text
    if not kernel:
        raise BadInput("kernel_type: expected the name of a kernel, got none")
    return WrittenCase(kernel, cells, line)


def _column_of_json(name: str) -> str:
    return name if name.startswith(RUNTIME_PREFIX) or name == WEIGHT else _column_named(name)


def _cell(name: str, given: Any, *, is_shape: bool) -> str:
    """Return the text of a value: lists of sizes are shapes, other lists are joined as cells."""
    if isinstance(given, str):
        return given
    if isinstance(given, int | float) and not isinstance(given, bool):
        return str(given)
    if given is None:
        return ""
    if isinstance(given, list):
        if is_shape:
            shapes = given if any(isinstance(one, list) for one in given) else [given]
            return ";".join(",".join(map(str, one or ())) for one in shapes)
        is_numbers = all(isinstance(one, int | float) for one in given)
        return ("," if is_numbers else ";").join(map(str, given))
    raise BadInput(f"{name}: expected text, a number or a list, got {str(given)[:40]!r}")


# Files.


def cases_of_file(
    path: Path, kernel: str = "", cells: Mapping[str, str] | None = None
) -> tuple[list[WrittenCase], list[str]]:
    """Return the cases of a file, and the columns of it that have no meaning. `kernel` and `cells`
    are those of rows without them. Raises BadInput, with the line, for other data."""
    given = cells or {}
    with file_errors(path):
        is_table = path.is_file() and path.suffix.lower() in _OF_TABLES
    if is_table:
        return _cases_of_table(path, kernel, given)
    text = None if path.is_dir() else _text_of(path)
    if text is None:
        return _cases_of_profile(path), []
    return [
        WrittenCase(one.kernel, {**given, **one.cells}, one.line)
        for one in _cases_of_lines(text, path)
    ], []


def _text_of(path: Path) -> str | None:
    """Return a file's text; None if it is none, such as an archive of a profile."""
    with file_errors(path):
        data = read_small_file(path, MOST_TABLE_BYTES)
    try:
        return None if b"\0" in data else data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def _cases_of_lines(text: str, path: Path) -> Iterator[WrittenCase]:
    """Yield the cases of a JSON list, or of lines of text or JSON; `#` begins a comment."""
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"expected a JSON list of cases: {error}", path=path) from error
        for number, value in enumerate(listed, start=1):
            yield _at(path, 0, f"case {number}: ", lambda one=value: _case_of_object(one, 0))
        return
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield _at(path, number, "", lambda one=line, at=number: case_of_text(one, at))


def _at(path: Path, line: int, what: str, read: Any) -> WrittenCase:
    try:
        found: WrittenCase = read()
    except BadInput as error:
        raise BadInput(f"{what}{error}", path=path, line=line or None) from error
    return found


def _cases_of_profile(path: Path) -> list[WrittenCase]:
    from collector.profiles.kernel_details import read_profile

    records = read_profile([path]).records
    return [WrittenCase(one.kernel_type, {**one.extra, **one.cells}) for one in records]


def _cases_of_table(
    path: Path, kernel: str, given: Mapping[str, str]
) -> tuple[list[WrittenCase], list[str]]:
    from collector.database.tree import columns_and_rows

    with file_errors(path):
        if _PROFILED & set(_header(path)):
            return _cases_of_profile(path), []
        columns, read = columns_and_rows(path)
        rows = [(line, {name: text for name, text in row.items() if text}) for line, row in read]
    try:
        unused, column = unused_columns(columns), kernel_column(columns)
    except BadInput as error:
        raise BadInput(str(error), path=path, line=1) from error
    usual = kernel or (path.stem if find_operator(path.stem) is not None else "")
    if not usual and column is None:
        what = "expected a column 'kernel_type', or the name of a kernel before --file"
        raise BadInput(what, path=path, line=1)
    return [
        WrittenCase(row.get(column, usual) if column else usual, {**given, **row}, line)
        for line, row in rows
    ], unused


def _header(path: Path) -> Sequence[str]:
    from collector.profiles.rows import open_rows

    names, rows = open_rows(path)
    del rows
    return [name.strip() for name in names]


def records_of(cases: Iterable[WrittenCase], path: Path | None = None) -> list[CaseRecord]:
    """Return the cases to measure, each once, in their order. Raises BadInput, with the line."""
    found: dict[str, CaseRecord] = {}
    for one in cases:
        try:
            if is_collective(one.kernel):
                what = "is a collective, which `opmeter comm --do-run` measures over several ranks"
                raise BadInput(f"{one.kernel} {what}")
            if find_operator(one.kernel) is None:
                known = [op.kernel for op in (*all_ops(), *own_operators())]
                hint = did_you_mean(one.kernel, known) or "; `opmeter ops` lists all"
                raise BadInput(f"no operator is declared for {one.kernel[:80]!r}{hint}")
            record = one.record()
        except BadInput as error:
            if path is None:
                raise
            raise BadInput(str(error), path=path, line=one.line or None) from error
        found.setdefault(record.case_id, record)
    return list(found.values())
