"""Whether the cells of measurements' rows can be what their columns say, a column at a time: a
merge reads hundreds of thousands of them."""

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from collector.errors import BadInput
from collector.measurement import CACHES, LISTS, WHOLE_NUMBER, Outcome, list_of
from collector.stack import Runtime

_WHOLE_NUMBERS = (
    *("plan", "head_commit", "session", "rank"),
    *("n_expected", "n_observed", "n_accepted"),
)
_WHOLE = f"^({WHOLE_NUMBER})$"
_STATES = tuple(
    f"{when}_{what}" for when in ("opened", "closed") for what in ("clock_mhz", "temperature_c")
)
_WORDS: tuple[tuple[str, Collection[str]], ...] = (
    ("outcome", frozenset(Outcome)),
    ("runtime", frozenset(Runtime)),
    ("cache", CACHES),
)
# Lists that need no closer look: what is written of names without escapes and of numbers that are
# far from having no end. All others are decoded.
_NUMBER = r"-?(?:0|[1-9][0-9]{0,19})(?:\.[0-9]{1,30})?(?:[eE](?:\+?[0-9]{1,2}|-[0-9]{1,3}))?"
_PAIR = rf'\["[^"\\\x00-\x1f]*",{_NUMBER}\]'
_PLAIN = {"counters": rf"^(?:\[{_PAIR}(?:,{_PAIR})*\])?$"}


def check_values(table: pa.Table, key: str) -> None:
    """Raises BadInput, naming the key and the column, for a cell of another kind, and for a
    measurement that is there twice."""
    for name in _WHOLE_NUMBERS:
        _refuse(table[name], pc.match_substring_regex(table[name], _WHOLE), name, key)
    for name in _STATES:
        told = table[name].filter(pc.not_equal(table[name], ""))
        _refuse(told, _are_finite(told, name, key), name, key)
    for name, words in _WORDS:
        if unknown := set(pc.unique(table[name]).to_pylist()) - set(words):
            raise BadInput(f"{name} {min(unknown)!r} is not known", path=key)
    for name in LISTS:
        _check_lists(table[name], name, key)
    if pc.count_distinct(table["measurement"]).as_py() < table.num_rows:
        raise BadInput("it holds a measurement twice", path=key)


def _refuse(column: pa.ChunkedArray, is_well: pa.ChunkedArray, name: str, key: str) -> None:
    wrong = column.filter(pc.invert(is_well))
    if len(wrong):
        raise BadInput(f"{name} {wrong[0].as_py()!r} is no such number", path=key)


def _are_finite(column: pa.ChunkedArray, name: str, key: str) -> pa.ChunkedArray:
    try:
        return pc.is_finite(column.cast(pa.float64()))
    except pa.ArrowInvalid as error:
        raise BadInput(f"{name}: {error}", path=key) from error


def _check_lists(column: pa.ChunkedArray, name: str, key: str) -> None:
    is_plain = pc.match_substring_regex(column, _PLAIN.get(name, "^$"))
    for text in pc.unique(column.filter(pc.invert(is_plain))).to_pylist():
        try:
            list_of(name, text)
        except BadInput as error:
            raise BadInput(str(error), path=key) from error
