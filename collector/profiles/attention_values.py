"""Runtime values of fused attention, as dumped by a serving process: one JSON object per line.

A capture logs its calls in the same form (`logged_calls`), among those of other operators.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any

from collector.codec.errors import BadInput, file_errors
from collector.codec.files import read_small_file
from collector.codec.table import is_text
from collector.model.case import is_formula, shape_text
from collector.model.vocabulary import RUNTIME_PREFIX

DUMPED = "runtime_values_dumped"
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
_NUMBERS = ("num_heads", "num_key_value_heads", "sparse_mode", "pre_tokens", "block_size")
_BAND = "4"  # the sparse mode in which a query sees `pre_tokens` keys before its own
_TEXTS = ("input_layout", "attn_state", "kv_cache_mode")


@dataclass(frozen=True, slots=True)
class AttentionValues:
    """One line: the key of the rows it belongs to, and its `Runtime ...` cells."""

    line: int
    key: JoinKey
    cells: Mapping[str, str]


def read_attention_values(
    path: Path, without_values: list[int] | None = None
) -> list[AttentionValues]:
    """Return the objects of a file; calls of other operators are left out.

    `without_values` gets the lines of logged calls without lengths, and that of a last line that a
    killed writer cut. Raises BadInput, with the line, for any other content."""
    without_values = [] if without_values is None else without_values
    try:
        with file_errors(path):
            text = read_small_file(path, _MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput("expected UTF-8 text with one JSON object per line", path=path) from error
    lines = text.splitlines()
    values = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_int=_number, object_pairs_hook=_members)
            if _is_logged(value) and "query_shape" not in value:
                continue  # of another operator
            if _is_logged(value) and not value.get("actual_seq_lengths_kv"):
                without_values.append(number)
            else:
                values.append(values_of(number, value))
        except json.JSONDecodeError as error:
            if is_cut(number, lines, text):
                without_values.append(number)
                continue
            message = f"expected one JSON object per line: {error}"
            raise BadInput(message, path=path, line=number) from error
        except RecursionError as error:
            raise BadInput("nested too deeply", path=path, line=number) from error
        except ValueError as error:
            raise BadInput(str(error), path=path, line=number) from error
    if not values:
        raise BadInput("expected one JSON object per line, got an empty file", path=path)
    return values


def is_cut(number: int, lines: Sequence[str], text: str) -> bool:
    """Return whether a line of a log is the last one, and a killed writer may have cut it."""
    return number == len(lines) > 1 and not text.endswith("\n")


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


def _is_logged(value: Any) -> bool:
    """Return whether a line is a call in the log of a capture, which has all custom operators."""
    return isinstance(value, dict) and "operator" in value


def values_of(line: int, value: Any) -> AttentionValues:
    """Return the values of an object. Raises ValueError for anything else."""
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
        "avg_seq_len": f"{fmean(lengths_kv):.6f}",
        "block_table_shape": shape_text(table),
        **_optional(value),
    }
    recorded = {RUNTIME_PREFIX + name: text for name, text in cells.items() if text}
    return AttentionValues(line, (query, key, val, len(lengths_kv), mask, table), recorded)


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
    if numbers.get("sparse_mode") != _BAND:
        numbers.pop("pre_tokens", None)
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
