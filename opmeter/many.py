"""Many queries at once: texts of a table are read together, and found by bisection together."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Protocol

import numpy as np
import pandas as pd

from collector.codec.errors import BadInput
from collector.codec.numbers import parse_number
from collector.database.index import Index, IndexBlock, hashes_of
from collector.model.case import normal_kernel_type, parse_shape, shape_text, split_cell
from collector.model.vocabulary import (
    BASE_CELLS,
    EP_SIZE,
    INPUT_DTYPES,
    INPUT_SHAPES,
    OUTPUT_SHAPES,
    RUNTIME_PREFIX,
    is_absent_shape,
)
from opmeter.answers import Answer, Channel, channel_of
from opmeter.arguments import bad_argument, list_of, number_argument, text_of
from opmeter.cases import (
    WEIGHT,
    Arguments,
    arguments_of,
    kernel_column,
    resolved_ranks,
    sized_shapes,
    unused_columns,
)

_DIGITS = bytes(byte if byte in b"0123456789" else ord(" ") for byte in range(256))
_ALLOWED = frozenset('0123456789,;"() ')
_SPLIT = re.compile(rb'[0-9][" ()]+[0-9]')  # two numbers without a separator
_LONG = re.compile("[0-9]{19}")
_MOST = 2**63 - 1


class Single(Protocol):
    """A version directory as it answers single queries: see `Version`."""

    differs: tuple[str, ...]
    notes: tuple[str, ...]
    index: Index

    @property
    def query(self) -> Callable[..., Answer]: ...

    def only_block(self, kernel: str, arguments: Arguments) -> IndexBlock | None: ...


def answer_many(version: Single, frame: Any, *, unambiguous: bool) -> pd.DataFrame:
    """Return the answers to the rows of a table; see `Version.query_many`."""
    names = _columns(frame)
    unused_columns([name for name in names if isinstance(name, str)])
    kernel_type = kernel_column(names)
    if kernel_type is None or INPUT_SHAPES not in names:
        lacking = "kernel_type" if kernel_type is None else INPUT_SHAPES
        raise BadInput(f"expected a column {lacking!r}, got {', '.join(map(str, names))}")
    kernels, shapes = _texts(kernel_type, frame), _texts(INPUT_SHAPES, frame)
    count = len(kernels)
    dtypes = _texts(INPUT_DTYPES, frame) if INPUT_DTYPES in names else [""] * count
    cells = {
        name: [_spelled(name, row, cell) for row, cell in enumerate(_cells(name, frame))]
        for name in names
        if isinstance(name, str) and _is_setting(name)
    }
    weights = _weights(frame) if WEIGHT in names else [1.0] * count
    forms, sizes = _read(INPUT_SHAPES, shapes)
    if OUTPUT_SHAPES in names:
        output_forms, output_sizes = _read(OUTPUT_SHAPES, _texts(OUTPUT_SHAPES, frame))
    else:
        output_forms, output_sizes = [b""] * count, lambda rows: np.empty((len(rows), 0), np.int64)
    columns: dict[str, list[Any]] = {
        INPUT_SHAPES: shapes,
        INPUT_DTYPES: dtypes,
        OUTPUT_SHAPES: output_forms,
        **cells,
    }
    for name, column in (*columns.items(), (WEIGHT, weights)):
        if len(column) != count:
            raise BadInput(f"{name}: expected {count} rows as {kernel_type}, got {len(column)}")
    for kernel in sorted(set(kernels)):
        try:
            normal_kernel_type(kernel)
        except BadInput as error:
            raise BadInput(f"{kernel_type}: row {kernels.index(kernel)}: {error}") from error
    found = _Answers(count)
    distinct: list[list[Any]] = [kernels, dtypes, forms, output_forms, *cells.values()]
    for rows in _alike(count, [column for column in distinct if len(set(column)) > 1]):
        kernel, dtype, form, output_form, *texts = (column[rows[0]] for column in distinct)
        settings = {name: text for name, text in zip(cells, texts, strict=True) if text}
        shaped = {INPUT_SHAPES: _example(form), OUTPUT_SHAPES: _example(output_form)}
        arguments = arguments_of({**settings, **shaped, INPUT_DTYPES: dtype})
        group = _Group(kernel, arguments, sizes(rows), output_sizes(rows))
        left = _answer_exact(version, found, rows, group)
        for place in left.tolist():
            row = int(rows[place])
            answer = version.query(
                kernel, **group.of_row(place), weight=weights[row], unambiguous=unambiguous
            )
            found.set(row, answer)
    index = frame.index if isinstance(frame, pd.DataFrame) else None
    return found.frame(index)


def _alike(count: int, columns: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """Yield arrays of the rows that agree in all columns."""
    if not count:
        return
    groups: dict[Any, int] = {}
    keys = zip(*columns, strict=True) if len(columns) != 1 else columns[0]
    numbers = np.array([groups.setdefault(key, len(groups)) for key in keys], np.int64)
    if len(groups) < 2:
        yield np.arange(count)
        return
    order = np.argsort(numbers, kind="stable")
    yield from np.split(order, np.cumsum(np.bincount(numbers))[:-1])


def _columns(frame: Any) -> list[Any]:
    """Return the names of the columns of a table. Raises BadInput for anything else."""
    for name in ("column_names", "columns", "keys"):
        found = getattr(frame, name, None)
        found = found() if callable(found) else found
        if isinstance(found, Iterable) and hasattr(frame, "__getitem__"):
            names = list(found)
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise BadInput(f"expected each column once, got {twice[0]!r} more often")
            return names
    raise bad_argument("queries", "a table, or a mapping of lists", frame)


def _example(form: bytes) -> str:
    """Return shapes with the slots of a form, whatever their sizes."""
    return form.replace(b"#", b"1").decode()


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one kernel type, dtypes, ranks and settings, which differ in sizes (rows, sizes).

    `arguments` are those of a row like them."""

    kernel: str
    arguments: Arguments
    sizes: Any
    output_sizes: Any

    def of_row(self, place: int) -> Arguments:
        """Return the arguments of a row."""
        found = self.arguments.copy()
        ranks = resolved_ranks(found["inputs"])
        found["inputs"] = sized_shapes(ranks, self.sizes[place].tolist())
        if self.output_sizes.shape[1]:
            slots = split_cell(found["outputs"][OUTPUT_SHAPES])
            ranks = resolved_ranks(list(map(parse_shape, slots)))
            shapes = sized_shapes(ranks, self.output_sizes[place].tolist())
            text = ";".join(map(shape_text, shapes))
            found["outputs"] = {**found["outputs"], OUTPUT_SHAPES: text}
        return found


class _FewTexts:
    """A column of few distinct texts, as their numbers; each row has the first at the beginning."""

    def __init__(self, count: int, first: str) -> None:
        self._texts = {first: 0}
        self.numbers = np.zeros(count, np.int64)

    def number_of(self, text: str) -> int:
        """Return the number of a text, a new one for a new text."""
        return self._texts.setdefault(text, len(self._texts))

    def series(self, index: Any) -> pd.Series:
        """Return the texts, with the dtype that pandas has for texts."""
        return pd.Series(pd.Series(list(self._texts)).array.take(self.numbers), index=index)


class _Answers:
    """The columns of the answers."""

    def __init__(self, count: int) -> None:
        self.value_us = np.full(count, np.nan)
        self.low_us = np.full(count, np.nan)
        self.high_us = np.full(count, np.nan)
        self.support = np.zeros(count, np.int64)
        self.channel = _FewTexts(count, Channel.MISS.value)
        self.warnings = _FewTexts(count, "")
        self.reason = _FewTexts(count, "")

    def set(self, row: int, answer: Answer) -> None:
        self.value_us[row], self.low_us[row], self.high_us[row] = answer[:3]
        self.support[row] = answer.support
        self.channel.numbers[row] = self.channel.number_of(answer.channel.value)
        self.warnings.numbers[row] = self.warnings.number_of(";".join(answer.warnings))
        self.reason.numbers[row] = self.reason.number_of(answer.reason or "")

    def frame(self, index: Any) -> pd.DataFrame:
        index = pd.RangeIndex(len(self.value_us)) if index is None else index
        columns = {
            "value_us": self.value_us,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "channel": self.channel.series(index),
            "support": self.support,
            "warnings": self.warnings.series(index),
            "reason": self.reason.series(index),
        }
        return pd.DataFrame(columns, index=index)


def _answer_exact(version: Single, found: _Answers, rows: Any, group: _Group) -> Any:
    """Answer the rows of a group that are measured, if only one block has any; return the places of
    the others among them."""
    block = version.only_block(group.kernel, group.arguments)
    if block is None or block.free:
        return np.arange(len(rows))
    index = version.index
    own = index.arrays["hash"][block.begin : block.end]
    hashes = hashes_of(group.sizes)
    at = np.searchsorted(own, hashes)
    last = len(own) - 1
    here = np.minimum(at, last)
    # A hash that occurs twice may be two cases: the single query decides between them.
    is_own = (own[here] == hashes) & ((here == last) | (own[np.minimum(here + 1, last)] != hashes))
    given = np.hstack([group.sizes, group.output_sizes])  # the sizes of outputs follow in an index
    is_own &= (index.sizes_of(block)[here, : given.shape[1]] == given).all(axis=1)
    exact, places = rows[is_own], here[is_own] + block.begin
    found.value_us[exact] = index.arrays["mean_us"][places]
    found.low_us[exact] = index.arrays["low_us"][places]
    found.high_us[exact] = index.arrays["high_us"][places]
    found.support[exact] = index.arrays["sessions"][places]
    channels = [Channel.REUSED if version.differs else channel_of(n) for n in range(3)]
    numbers = np.array([found.channel.number_of(channel.value) for channel in channels])
    found.channel.numbers[exact] = numbers[np.minimum(index.arrays["sessions"][places], 2)]
    warned, which = np.unique(index.arrays["warnings"][places], return_inverse=True)
    texts = [";".join(filter(None, (index.text("warnings", n), *version.notes))) for n in warned]
    numbers = np.array([found.warnings.number_of(text) for text in texts], np.int64)
    found.warnings.numbers[exact] = numbers[which]
    return np.flatnonzero(~is_own)


def _read(column: str, texts: list[str]) -> tuple[list[bytes], Callable[[Any], Any]]:
    """Return the form of each text, with a mark for each number; and a function that returns the
    numbers of rows of one form (rows, numbers). Raises BadInput, with the row, for a text that is
    no shape."""
    whole = "\n".join(texts).encode(errors="replace")
    joined = whole.translate(None, b'" ()')
    data = np.frombuffer(joined, np.uint8)
    is_digit = data - np.uint8(ord("0")) < 10  # smaller bytes have wrapped around
    is_first = is_digit.copy()
    is_first[1:] &= ~is_digit[:-1]
    marked = np.where(is_first, np.uint8(ord("#")), data)[is_first | ~is_digit].tobytes()
    forms = marked.split(b"\n")
    quotes = 0
    if b'"' in whole:
        quotes = whole.count(b'\n"') + whole.count(b'"\n')
        quotes += (whole[:1] == b'"') + (whole[-1:] == b'"')
    is_split = len(joined) + quotes != len(whole) and _SPLIT.search(whole) is not None
    numbers = np.fromstring(joined.translate(_DIGITS), np.int64, sep=" ")
    is_long = numbers.max(initial=0) == _MOST  # greater ones are read as this
    others = marked.translate(None, b"#,;\n")
    if others and (known := list(map(_without_absent, texts))) != texts:
        return _read(column, known)
    if len(forms) != max(len(texts), 1) or others or is_split or is_long:
        row = next(at for at, text in enumerate(texts) if not _is_shapes(text))
        raise BadInput(f"{column}: row {row}: expected shapes such as 32,5120;5120,3200")
    forms = forms[: len(texts)]
    counts = {form: form.count(b"#") for form in set(forms)}
    if len(counts) == 1:
        lengths = np.full(len(forms), counts[forms[0]], np.int64)
    else:
        lengths = np.array([counts[form] for form in forms], np.int64)
    starts = np.append(0, np.cumsum(lengths))[:-1]
    return forms, lambda rows: numbers[starts[rows][:, None] + np.arange(lengths[rows[0]])]


def _without_absent(text: str) -> str:
    """Return shapes without names of absent ones, such as `N/A`."""
    parts = text.strip().strip('"').split(";")
    return ";".join("" if is_absent_shape(part.strip()) else part for part in parts)


def _is_shapes(text: str) -> bool:
    is_split = _SPLIT.search(text.encode(errors="replace")) is not None
    return _ALLOWED.issuperset(text) and not is_split and not _LONG.search(text)


def _is_setting(name: str) -> bool:
    is_cell = name in BASE_CELLS or name == EP_SIZE or name.startswith(RUNTIME_PREFIX)
    return is_cell and name not in (INPUT_SHAPES, INPUT_DTYPES, OUTPUT_SHAPES)


def _texts(name: str, frame: Any) -> list[str]:
    """Return a column of texts, empty for missing cells. Raises BadInput for other cells."""
    found = _cells(name, frame)
    if set(map(type, found)) <= {str} and "".join(set(found)).isprintable():
        return found
    return [
        "" if _is_missing(text) else text_of(f"{name}: row {row}", text)
        for row, text in enumerate(found)
    ]


def _weights(frame: Any) -> list[float]:
    """Return the weights, 1 for a missing one. Raises BadInput for others that are no numbers."""
    found = _cells(WEIGHT, frame)
    for row, weight in enumerate(found):
        what = f"{WEIGHT}: row {row}"
        given = _number_of(weight) if isinstance(weight, str) else weight  # of a CSV
        found[row] = 1.0 if _is_missing(given) else number_argument(what, given)
    return found


def _number_of(text: str) -> float | str:
    try:
        return parse_number(text)
    except ValueError:
        return text


def _spelled(name: str, row: int, cell: Any) -> str:
    """Return a setting as a tree has it, and an empty text for a missing one. pandas reads a column
    of integers with gaps as numbers with a point. Raises BadInput for what is no setting."""
    if isinstance(cell, str):
        return text_of(f"{name}: row {row}", cell)
    if _is_missing(cell):
        return ""
    if not isinstance(cell, Real):
        raise bad_argument(f"{name}: row {row}", "a text or a number", cell)
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


def _is_missing(cell: Any) -> bool:
    if isinstance(cell, Real):
        return bool(cell != cell)
    return cell is None or cell is pd.NA or cell is pd.NaT


def _cells(name: str, frame: Any) -> list[Any]:
    """Return the cells of a column. Raises BadInput if it is none."""
    column = frame[name]
    for convert in ("to_pylist", "tolist", "to_list"):
        if hasattr(column, convert):
            column = getattr(column, convert)()
            break
    return list(list_of(name, "a list of cells", column))
