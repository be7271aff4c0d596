"""Runtime values of fused attention, as a serving process dumps them: one JSON object a line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from collector.case import shape_text
from collector.database.columns import number_text
from collector.errors import BadInput
from collector.table import is_text
from collector.vocabulary import RUNTIME_PREFIX

Shape = tuple[int, ...]

# query, key, value; number of kv lengths; attention mask; block table. An absent tensor is ().
JoinKey = tuple[Shape, Shape, Shape, int, Shape, Shape]

_SHAPES = ("query_shape", "key_shape", "value_shape", "atten_mask_shape", "block_table_shape")
_MANDATORY = (*_SHAPES, "actual_seq_lengths_kv")
_LISTS = ("actual_seq_lengths", "block_table_valid_blocks")
_NUMBERS = ("num_heads", "num_key_value_heads", "sparse_mode", "block_size")
_TEXTS = ("input_layout", "attn_state", "kv_cache_mode")


@dataclass(frozen=True, slots=True)
class RuntimeValues:
    """One line: the rows it belongs to, and the `Runtime ...` cells it tells."""

    line: int
    key: JoinKey
    cells: Mapping[str, str]


def read_runtime_values(path: Path) -> list[RuntimeValues]:
    """The objects of a file. Raises BadInput, with the line, for anything else."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").splitlines()
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", path=path) from error
    except UnicodeDecodeError as error:
        raise BadInput("expected UTF-8 text with one JSON object per line", path=path) from error
    values = list(_values(lines, path))
    if not values:
        raise BadInput("expected one JSON object per line, got an empty file", path=path)
    return values


def _values(lines: Sequence[str], path: Path) -> Iterator[RuntimeValues]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _of(number, json.loads(line))
        except json.JSONDecodeError as error:
            message = f"expected one JSON object per line: {error}"
            raise BadInput(message, path=path, line=number) from error
        except RecursionError as error:
            raise BadInput("nested too deeply", path=path, line=number) from error
        except ValueError as error:
            raise BadInput(str(error), path=path, line=number) from error


def _of(line: int, value: Any) -> RuntimeValues:
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {value!r:.60}")
    missing = [name for name in _MANDATORY if name not in value]
    if missing:
        raise ValueError(f"missing {', '.join(missing)}")
    query, key, val, mask, table = (_integers(value[name], name) for name in _SHAPES)
    lengths_kv = _integers(value["actual_seq_lengths_kv"], "actual_seq_lengths_kv")
    if not query or not lengths_kv:
        raise ValueError("query_shape and actual_seq_lengths_kv must not be empty")
    cells = {
        "actual_seq_lengths_kv_shape": str(len(lengths_kv)),
        "actual_seq_lengths_kv_values": shape_text(lengths_kv),
        "avg_seq_len": number_text(fmean(lengths_kv)),
        "block_table_shape": shape_text(table),
        **_optional(value),
    }
    told = {RUNTIME_PREFIX + name: text for name, text in cells.items() if text}
    return RuntimeValues(line, (query, key, val, len(lengths_kv), mask, table), told)


def _optional(value: Mapping[str, Any]) -> dict[str, str]:
    """The cells of what may be left out, or be null."""
    given = {name: entry for name, entry in value.items() if entry is not None}
    cells = {}
    for name in _NUMBERS:
        if name in given:
            cells[name] = str(_integer(given[name], name))
    for name in _TEXTS:
        if name in given:
            cells[name] = _text(given[name], name)
    for name in _LISTS:
        if name in given:
            cells[name] = shape_text(_integers(given[name], name))
    if "actual_seq_lengths" in cells:
        lengths = cells.pop("actual_seq_lengths")
        cells["actual_seq_lengths_values"] = lengths
        cells["actual_seq_lengths_shape"] = str(lengths.count(",") + 1) if lengths else ""
    return cells


def _integers(value: Any, name: str) -> Shape:
    """`[4, 128]`, `4` or `"4,128"`; null and an empty list are ()."""
    if value is None:
        return ()
    if isinstance(value, str):
        value = [part for part in value.replace(";", ",").split(",") if part.strip()]
    parts = value if isinstance(value, list) else [value]
    return tuple(_integer(part, name) for part in parts)


def _integer(value: Any, name: str) -> int:
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            raise ValueError(f"{name}: expected non-negative integers, got {value!r}") from None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name}: expected non-negative integers, got {value!r}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value.strip() or not is_text(value):
        raise ValueError(f"{name}: expected text, got {value!a}")
    return value.strip()
