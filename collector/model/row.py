"""A measurement as a row of text and back, as parts (CSV) and the database (Parquet) store it.

The columns follow from the declaration of `Measurement`. How a value is written follows from its
type: numbers as Python writes them, None and empty tuples as empty text, tuples of values as
canonical JSON lists, a `Disturbance` as a list of `[name, value]` pairs of its known fields.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import StrEnum
from math import isfinite
from types import NoneType
from typing import Any, get_args, get_type_hints

from collector.codec.canonical import canonical_json, decode_value, json_value
from collector.codec.errors import BadInput
from collector.codec.table import as_text
from collector.model.measurement import Measurement
from collector.model.vocabulary import INPUT_CELLS, OUTPUT_CELLS

WHOLE_NUMBER = "0|[1-9][0-9]{0,17}"  # as a row spells one


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a measurement's row: the value of a dataclass `field`. `type` is that of its
    values: str, int, float, a StrEnum, or the type of a JSON list. `words` are the allowed texts,
    if they are few. `absent` is the text of the default, which is read where a row has no such
    column; it is None where every row has it."""

    name: str
    field: str
    description: str
    unit: str
    type: Any
    is_list: bool
    absent: str | None
    words: tuple[str, ...]
    text: Callable[[Any], str]
    value: Callable[[str], Any]


def to_row(measurement: Measurement) -> dict[str, str]:
    """Return the cells of a measurement by ROW_COLUMNS. Texts from elsewhere are kept whatever they
    contain: an unpaired surrogate in a message does not cost a session's part."""
    row = {ID: measurement.measurement_id}
    for name, columns, inner, _ in _FIELDS:
        value = getattr(measurement, name)
        if inner is None:
            row[columns[0].name] = columns[0].text(value)
        else:
            for column in columns:
                row[column.name] = (
                    "" if value is None else column.text(getattr(value, column.field))
                )
    return row


def from_row(row: Mapping[str, str]) -> Measurement:
    """Return the measurement of a row; `from_row(to_row(m)) == m`. Raises BadInput for any other
    row, also for an equal value in another spelling and for further cells."""
    try:
        measurement = _from_row(row)
        written = to_row(measurement)
    except (BadInput, KeyError, ValueError, TypeError) as error:
        raise BadInput(f"expected a row of measurements: {error!r}") from error
    if row.keys() != written.keys():
        raise BadInput(f"expected a row of measurements of {len(written)} cells, got {len(row)}")
    if written[ID] != row[ID]:
        raise BadInput(f"{ID}: expected {written[ID]!r}, the id of this row, got {row[ID]!r}")
    for name, text in written.items():
        if row[name] != text:  # also None, for a cell that is missing
            raise BadInput(f"{name}: expected the form {text!r}, got {row[name]!r}")
    return measurement


def value_of(name: str, text: str) -> Any:
    """Return the value of the cell of a column. Raises BadInput, with the name, for other text; of
    lists also for equal values in another spelling."""
    column = BY_NAME[name]
    try:
        value = column.value(text)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{name}: {error}") from error
    if column.is_list and (written := column.text(value)) != text:
        raise BadInput(f"{name}: expected the form {written!r}, got {text!r}")
    return value


def is_header(names: Sequence[str]) -> bool:
    """Whether these are the columns of a part: ROW_COLUMNS in their order, without some of those
    that have a default."""
    present = set(names)
    expected = [name for name in ROW_COLUMNS if name in present or name not in ABSENT]
    return list(names) == expected


def _from_row(row: Mapping[str, str]) -> Measurement:
    found: dict[str, Any] = {}
    for name, columns, inner, is_optional in _FIELDS:
        if inner is None:
            found[name] = columns[0].value(row[columns[0].name])
        elif is_optional and not row[columns[0].name]:
            found[name] = None
        else:
            found[name] = inner(*(column.value(row[column.name]) for column in columns))
    return Measurement(**found)


def _whole(text: str) -> int:
    if not re.fullmatch(WHOLE_NUMBER, text):
        raise ValueError(f"expected an integer >= 0, got {text!r}")
    return int(text)


def _finite(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError(f"expected a finite number, got {text!r}")
    return value


def _positive(text: str) -> float:
    if not text:
        return 0.0
    if (value := _finite(text)) <= 0:
        raise ValueError(f"expected a number above 0, got {text!r}")
    return value


def _json(value: Sequence[object]) -> str:
    return canonical_json(list(value)).decode() if value else ""


def _fields() -> Iterator[tuple[str, tuple[Column, ...], Any, bool]]:
    """For each field of a measurement: its name, its columns, the nested dataclass that they are
    the fields of, if any, and whether that may be None."""
    hints = get_type_hints(Measurement)
    for field in fields(Measurement):
        inner, is_optional = _without_none(hints[field.name])
        if "column" not in field.metadata and "description" not in field.metadata:
            yield field.name, _columns_of(inner, ""), inner, is_optional
        elif (prefix := field.metadata.get("prefix")) is not None:
            yield field.name, _columns_of(inner, prefix), inner, is_optional
        else:
            yield field.name, (_column(field, hints[field.name], ""),), None, False


def _columns_of(inner: Any, prefix: str) -> tuple[Column, ...]:
    hints = get_type_hints(inner)
    return tuple(_column(field, hints[field.name], prefix) for field in fields(inner))


def _column(field: Field[Any], hint: Any, prefix: str) -> Column:
    declared, is_optional = _without_none(hint)
    words = tuple(field.metadata.get("words", ()))
    text: Callable[[Any], str]
    value: Callable[[str], Any]
    is_list = False
    if isinstance(declared, type) and issubclass(declared, StrEnum):
        text, value, words = str, declared, tuple(map(str, declared))
    elif declared is str:
        text, value = as_text, (lambda word: words[words.index(word)]) if words else str
    elif declared is int:
        text, value = str, _whole
    elif declared is float and field.default == 0.0:  # unknown where it is 0
        text, value = (lambda number: repr(float(number)) if number else ""), _positive
        is_optional = False
    elif declared is float:
        text, value = (lambda number: repr(float(number))), _finite
    elif is_dataclass(declared):
        text, value, is_list, is_optional = *_pairs(field.name, declared), True, False
    else:
        text, value, is_list = *_items(field.name, get_args(declared)[0]), True
    if is_optional:
        text, value = _optional(text, value)
    return Column(
        name=prefix + str(field.metadata.get("column", field.name)),
        field=field.name,
        description=str(field.metadata["description"]),
        unit=str(field.metadata.get("unit", "")),
        type=declared,
        is_list=is_list,
        absent=None if field.default is MISSING else text(field.default),
        words=words,
        text=text,
        value=value,
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    return (kinds[0], True) if NoneType in get_args(hint) else (hint, False)


def _optional(
    text: Callable[[Any], str], value: Callable[[str], Any]
) -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    return (
        lambda given: "" if given is None else text(given),
        lambda cell: value(cell) if cell else None,
    )


def _items(name: str, item: Any) -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """A tuple of texts, of tuples or of dataclasses as a JSON list."""
    hints = get_type_hints(item) if is_dataclass(item) else {}
    kinds = tuple(hints.values()) or get_args(item)
    stored: Any = tuple.__class_getitem__(kinds) if kinds else item
    as_plain = [as_text if kind is str else kind for kind in kinds]  # equal numbers: one spelling

    def text(values: Sequence[Any]) -> str:
        if not values:
            return ""
        if not kinds:
            return _json([as_text(value) for value in values])
        rows = ([getattr(value, name) for name in hints] for value in values) if hints else values
        return _json([[f(v) for f, v in zip(as_plain, row, strict=True)] for row in rows])

    def value(cell: str) -> tuple[Any, ...]:
        found = _decoded(name, stored, cell)
        if name == "recorded":
            _check_recorded(found)
        return tuple(item(*row) for row in found) if hints else found

    return text, value


def _pairs(name: str, declared: Any) -> tuple[Callable[[Any], str], Callable[[str], Any]]:
    """The known fields of a dataclass, all numbers, as a JSON list of names and values."""
    kinds = {field: _without_none(hint)[0] for field, hint in get_type_hints(declared).items()}

    def text(known: Any) -> str:
        values = [(field, getattr(known, field)) for field in kinds] if known is not None else []
        return _json([[field, float(value)] for field, value in values if value is not None])

    def value(cell: str) -> Any:
        pairs = _decoded(name, tuple[str, float], cell)
        if not pairs:
            return None
        try:
            return declared(**{field: kinds[field](number) for field, number in pairs})
        except (KeyError, TypeError) as error:
            raise BadInput(f"{name}: expected its fields, got {cell!r}: {error}") from error

    return text, value


def _decoded(name: str, item: Any, cell: str) -> tuple[Any, ...]:
    if not cell:
        return ()
    value = json_value(cell.encode(), what="a list", key=name)
    declared: Any = tuple.__class_getitem__((item, ...))
    found: tuple[Any, ...] = decode_value(declared, value, what="a list", key=name)
    return found


def _check_recorded(cells: Sequence[tuple[str, str]]) -> None:
    """Raises BadInput for columns that are not those of tensors in a row of a profile."""
    if cells and tuple(name for name, _ in cells) != (*INPUT_CELLS, *OUTPUT_CELLS):
        names = ", ".join((*INPUT_CELLS, *OUTPUT_CELLS))
        raise BadInput(f"recorded: expected the columns {names}, got {list(cells)!r}")


ID = "measurement"
_FIELDS = tuple(_fields())
COLUMNS = tuple(column for _, columns, _, _ in _FIELDS for column in columns)
BY_NAME = {column.name: column for column in COLUMNS}
ROW_COLUMNS = (ID, *BY_NAME)
# What a row written before there was such a column is read with.
ABSENT = {column.name: column.absent for column in COLUMNS if column.absent is not None}
