"""The typed columns of the files that readers without opmeter use: measurements and shown cases.

A state has rows of text, because a row's id follows from its text. In a file each column has a
type, a unit and a description, from the one declaration of `Measurement` and `INTERVAL_COLUMNS`.
The conversion is exact in both directions: a number has one spelling. Columns that only help
readers (`started`, `input_shapes`, ...) are derived from others and not read back.
"""

from collections.abc import Callable, Iterator
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.errors import BadInput
from collector.database import layout
from collector.database.state import TEXT
from collector.model.case import parse_shape, split_cell
from collector.model.row import COLUMNS, Column
from collector.model.vocabulary import (
    ACCELERATOR_CORE,
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    OP_STATE,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
)

_WORDS = pa.dictionary(pa.int8(), pa.string())
_TIME = pa.timestamp("us", tz="UTC")
_SHAPES = pa.list_(pa.list_(pa.int64()))
PARTITION = ("device", "version")
_RANK = (
    ("head_commit", pa.int64(), "number of the newest commit when the plan was made"),
    ("plan", pa.int64(), "number of the plan whose spelling of the case is used"),
    ("plan_hash", pa.string(), "hash of that plan"),
)


def _field(name: str, kind: pa.DataType, description: str, unit: str = "") -> pa.Field:
    return pa.field(name, kind, metadata={"description": description, "unit": unit})


_OF_PARTITION = (
    _field("device", pa.string(), "name of the device, also in the path"),
    _field("version", pa.string(), "versions of vLLM, torch and CANN, also in the path"),
)


def _kind(column: Column) -> pa.DataType:
    if column.type is int:
        return pa.int64()
    if column.type is float:
        return pa.float64()
    if column.words or (isinstance(column.type, type) and issubclass(column.type, StrEnum)):
        return _WORDS
    return pa.string()


def _described(column: Column) -> str:
    return f"{column.description}, as JSON" if column.is_list else column.description


_BY_NAME = {column.name: column for column in COLUMNS}
_DERIVED_TIMES = {"started": "started_at", "ended": "ended_at"}
MEASUREMENTS = pa.schema(
    [
        *_OF_PARTITION,
        _field("measurement", pa.string(), "id of the measurement, which follows from its row"),
        _field("final", pa.bool_(), "whether it counts for its case in its plan"),
        *(_field(c.name, _kind(c), _described(c), c.unit) for c in COLUMNS),
        *(
            _field(name, _TIME, f"`{of}` as a time")
            for name, of in _DERIVED_TIMES.items()
            if of in _BY_NAME
        ),
    ]
)

# Names without blanks, which table formats allow. Shapes are lists next to their text.
_CELLS = {
    OP_STATE: "op_state",
    ACCELERATOR_CORE: "accelerator_core",
    INPUT_SHAPES: "input_shapes_text",
    INPUT_DTYPES: "input_dtypes",
    INPUT_FORMATS: "input_formats",
    OUTPUT_SHAPES: "output_shapes_text",
    OUTPUT_DTYPES: "output_dtypes",
    OUTPUT_FORMATS: "output_formats",
}
_SHAPES_OF = {"input_shapes": INPUT_SHAPES, "output_shapes": OUTPUT_SHAPES}
_INTERVAL_KINDS = {float: pa.float64(), int: pa.int64(), str: pa.string()}
SHOWN = pa.schema(
    [
        *_OF_PARTITION,
        _field("case", pa.string(), "id of the case"),
        _field("kernel_type", pa.string(), "kernel type"),
        *(_field(name, pa.string(), f"`{cell}` of a CSV") for cell, name in _CELLS.items()),
        *(
            _field(name, _SHAPES, f"`{cell}` as numbers, null for an absent slot")
            for name, cell in _SHAPES_OF.items()
        ),
        _field("extra", pa.string(), "further columns of the case, as JSON"),
        *(_field(*one) for one in _RANK),
        *(
            _field(c.name, _INTERVAL_KINDS[c.type], c.description, "us" if "_us" in c.name else "")
            for c in layout.INTERVAL_COLUMNS
        ),
        _field("channel", _WORDS, "`measured` in one session, `pooled` over several, `imported`"),
    ]
)


def typed_measurements(rows: pa.Table, device: str, version: str) -> pa.Table:
    """Return rows of measurements of a state by MEASUREMENTS."""
    columns = _partition(rows, device, version)
    for field in MEASUREMENTS:
        if field.name in rows.column_names:
            columns[field.name] = _typed(rows[field.name], field.type)
    for name, of in _DERIVED_TIMES.items():
        columns[name] = _times(rows[of])
    return pa.table({name: columns[name] for name in MEASUREMENTS.names}, schema=MEASUREMENTS)


def text_of_measurements(table: pa.Table) -> pa.Table:
    """Return the rows of such a table as the text of a state, without what is derived. A column
    that the table lacks is left out."""
    return pa.table(
        {
            name: table[name] if name == "final" else _text(table[name])
            for name in table.column_names
            if name in _BY_NAME or name in ("measurement", "final")
        }
    )


def typed_shown(rows: pa.Table, device: str, version: str) -> pa.Table:
    """Return cases of a state, with the numbers that they show, by SHOWN."""
    columns = _partition(rows, device, version)
    for name in rows.column_names:
        columns[_CELLS.get(name, name)] = rows[name]
    for name, cell in _SHAPES_OF.items():
        columns[name] = _shapes(rows[cell])
    sessions = rows["sessions"]
    words = pc.if_else(pc.greater(sessions, 1), "pooled", "measured")
    words = pc.if_else(pc.equal(sessions, 0), "imported", words)
    columns["channel"] = pc.cast(words.combine_chunks().dictionary_encode(), _WORDS)
    return pa.table(
        {field.name: columns[field.name].cast(field.type) for field in SHOWN}, schema=SHOWN
    )


def text_of_shown(table: pa.Table) -> pa.Table:
    """Return the rows of such a table by the columns of a state, without what is derived."""
    cells = {name: cell for cell, name in _CELLS.items()}
    return pa.table(
        {
            cells.get(name, name): table[name]
            for name in table.column_names
            if name not in (*PARTITION, *_SHAPES_OF, "channel")
        }
    )


def _partition(rows: pa.Table, device: str, version: str) -> dict[str, pa.ChunkedArray]:
    texts = dict(zip(PARTITION, (device, version), strict=True))
    return {name: pa.repeat(pa.scalar(text), rows.num_rows) for name, text in texts.items()}


def _typed(cells: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_boolean(cells.type):
        return cells
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        number = pc.if_else(pc.equal(cells, ""), pa.scalar(None, TEXT), cells)
        return number.cast(kind)
    if pa.types.is_dictionary(kind):
        return cells.cast(pa.string()).combine_chunks().dictionary_encode().cast(kind)
    return cells.cast(kind)


def _text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_floating(cells.type):  # in Python: Arrow spells some numbers otherwise
        texts = ["" if value is None else repr(value) for value in cells.to_pylist()]
        return pa.chunked_array([pa.array(texts, TEXT)])
    if pa.types.is_integer(cells.type):
        return pc.fill_null(cells.cast(TEXT), "")
    return cells.cast(TEXT)


def _times(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the times of texts in the form of ISO 8601; null for other texts."""
    distinct = texts.combine_chunks().dictionary_encode()
    pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?\+00:00$"
    known = pc.match_substring_regex(distinct.dictionary, pattern)
    plain = pc.if_else(known, distinct.dictionary, pa.scalar(None, distinct.dictionary.type))
    try:
        times = plain.cast(_TIME)
    except pa.ArrowInvalid:  # such as a thirteenth month
        times = pa.nulls(len(plain), _TIME)
    return pa.chunked_array([times.take(distinct.indices)])


def _shapes(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    distinct = cells.combine_chunks().dictionary_encode()
    shapes = pa.array([_parsed(text) for text in distinct.dictionary.to_pylist()], _SHAPES)
    return pa.chunked_array([shapes.take(distinct.indices)])


def _parsed(text: str) -> list[tuple[int, ...] | None] | None:
    try:
        return [parse_shape(part) for part in split_cell(text)] if text.strip('" ') else []
    except BadInput:
        return None


def described_columns(schema: pa.Schema) -> Iterator[tuple[str, str, str, str]]:
    """Yield the name, type, unit and description of each column, for the documentation."""
    for field in schema:
        metadata = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
        yield field.name, _name(field.type), metadata["unit"], metadata["description"]


_NAMES: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (pa.types.is_floating, "float"),
    (pa.types.is_integer, "int"),
    (pa.types.is_boolean, "bool"),
    (pa.types.is_timestamp, "timestamp"),
    (pa.types.is_list, "list of lists of int"),
)


def _name(kind: pa.DataType) -> str:
    return next((name for is_kind, name in _NAMES if is_kind(kind)), "text")
