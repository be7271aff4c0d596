"""Many queries at once: texts of a table are read together, and found by bisection together."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import pandas as pd

from collector.codec.errors import BadInput
from collector.database.index import Index, IndexBlock, hashes_of
from collector.model.record import KERNEL_TYPE as RECORDED_TYPE
from collector.model.vocabulary import (
    BASE_CELLS,
    EP_SIZE,
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    OP_STATE,
    RUNTIME_PREFIX,
)
from opmeter.answers import Answer, Channel
from opmeter.cases import Arguments, arguments_of, resolved_ranks

KERNEL_TYPE, WEIGHT = "kernel_type", "weight"
_DIGITS = bytes(byte if byte in b"0123456789" else ord(" ") for byte in range(256))
_NUMBERS = frozenset(b"0123456789")


class Single(Protocol):
    """A version directory as it answers single queries: see `Version`."""

    differs: tuple[str, ...]
    notes: tuple[str, ...]
    index: Index

    @property
    def query(self) -> Callable[..., Answer]: ...

    def only_block(self, kernel: str, dtype: str, ranks: tuple[int, ...]) -> IndexBlock | None: ...


def answer_many(version: Single, frame: Any) -> pd.DataFrame:
    """Return the answers to the rows of a table; see `Version.query_many`."""
    names = list(getattr(frame, "column_names", getattr(frame, "columns", frame)))
    kernel_type = KERNEL_TYPE if KERNEL_TYPE in names else RECORDED_TYPE
    for name, column in ((KERNEL_TYPE, kernel_type), (INPUT_SHAPES, INPUT_SHAPES)):
        if column not in names:
            raise BadInput(f"expected a column {name!r}, got {', '.join(map(str, names))}")
    kernels, shapes = _listed(frame[kernel_type]), _listed(frame[INPUT_SHAPES])
    count = len(kernels)
    dtypes = _listed(frame[INPUT_DTYPES]) if INPUT_DTYPES in names else [""] * count
    cells = {name: _listed(frame[name]) for name in names if _is_setting(name)}
    weights = _listed(frame[WEIGHT]) if WEIGHT in names else [1.0] * count
    forms, sizes, starts = _read(shapes)
    found = _Answers(count)
    groups: dict[Any, int] = {}
    further = list(zip(*cells.values(), strict=True)) if cells else [()] * count
    keys = zip(kernels, dtypes, forms, further, strict=True)
    numbers = np.array([groups.setdefault(key, len(groups)) for key in keys], np.int64)
    order = np.argsort(numbers, kind="stable")
    ends = np.cumsum(np.bincount(numbers, minlength=len(groups)))
    begin = 0
    for (kernel, dtype, form, texts), end in zip(groups, ends.tolist(), strict=True):
        rows = order[begin:end]
        begin = end
        width = form.count(b"#")
        own = sizes[starts[rows][:, None] + np.arange(width)]
        settings = {n: str(t) for n, t in zip(cells, texts, strict=True) if t == t and t}
        example = form.replace(b"#", b"1").decode()  # the same slots, whatever their sizes
        cells_of_group = {**settings, INPUT_SHAPES: example, INPUT_DTYPES: dtype}
        arguments = arguments_of(cells_of_group)
        _answer_group(version, found, rows, kernel, arguments, own, bool(settings), weights)
    index = frame.index if isinstance(frame, pd.DataFrame) else None
    return found.frame(index)


class _Answers:
    """The columns of the answers."""

    def __init__(self, count: int) -> None:
        self.value_us = np.full(count, np.nan)
        self.low_us = np.full(count, np.nan)
        self.high_us = np.full(count, np.nan)
        self.support = np.zeros(count, np.int64)
        self.channel = np.full(count, Channel.MISS.value, object)
        self.warnings = np.full(count, "", object)
        self.reason = np.full(count, "", object)

    def frame(self, index: Any) -> pd.DataFrame:
        columns = {
            "value_us": self.value_us,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "channel": self.channel,
            "support": self.support,
            "warnings": self.warnings,
            "reason": self.reason,
        }
        return pd.DataFrame(columns, index=index)


def _answer_group(
    version: Single,
    found: _Answers,
    rows: Any,
    kernel: str,
    arguments: Arguments,
    sizes: Any,
    has_settings: bool,
    weights: Sequence[float],
) -> None:
    """Answer the rows of one kernel type, dtypes, ranks and settings, which differ in sizes."""
    left = np.arange(len(rows))
    ranks = resolved_ranks(arguments["inputs"])
    block = None if has_settings else version.only_block(kernel, arguments["dtype"], ranks)
    if block is not None:
        index = version.index
        own = index.arrays["hash"][block.begin : block.end]
        hashes = hashes_of(sizes)
        at = np.searchsorted(own, hashes)
        last = len(own) - 1
        here = np.minimum(at, last)
        # A hash that occurs twice may be two cases: the single query decides between them.
        is_own = (own[here] == hashes) & (
            (here == last) | (own[np.minimum(here + 1, last)] != hashes)
        )
        is_own &= (index.sizes_of(block)[here, : sizes.shape[1]] == sizes).all(axis=1)
        exact, places = rows[is_own], here[is_own] + block.begin
        found.value_us[exact] = index.arrays["mean_us"][places]
        found.low_us[exact] = index.arrays["low_us"][places]
        found.high_us[exact] = index.arrays["high_us"][places]
        found.support[exact] = index.arrays["sessions"][places]
        is_pooled = index.arrays["sessions"][places] > 1
        pooled, measured = (Channel.POOLED.value, Channel.MEASURED.value)
        found.channel[exact] = np.where(is_pooled, pooled, measured)
        warned = index.arrays["warnings"][places]
        texts = np.array(index.texts("warnings"), object)
        found.warnings[exact] = texts[warned]
        if version.differs:
            found.channel[exact] = Channel.REUSED.value
        if version.notes:
            found.warnings[exact] = [
                ";".join(filter(None, (texts[w], *version.notes))) for w in warned
            ]
        left = np.flatnonzero(~is_own)
    for place in left.tolist():
        values = iter(sizes[place].tolist())
        arguments["inputs"] = [
            None if rank < 0 else tuple(next(values) for _ in range(rank)) for rank in ranks
        ]
        row = int(rows[place])
        answer = version.query(kernel, **arguments, weight=float(weights[row]))
        found.value_us[row], found.low_us[row], found.high_us[row] = answer[:3]
        found.channel[row], found.support[row] = answer.channel.value, answer.support
        found.warnings[row] = ";".join(answer.warnings)
        found.reason[row] = answer.reason.value if answer.reason else ""


def _read(texts: Sequence[str]) -> tuple[list[bytes], Any, Any]:
    """Return the form of each text, with a mark for each number; all numbers; and the position of
    the first number of each text. Raises BadInput, with the row, for a text that is no shape."""
    joined = "\n".join(texts).encode().translate(None, b'" ()')
    data = np.frombuffer(joined, np.uint8)
    is_digit = data - np.uint8(ord("0")) < 10  # smaller bytes have wrapped around
    is_first = is_digit.copy()
    is_first[1:] &= ~is_digit[:-1]
    marked = np.where(is_first, np.uint8(ord("#")), data)[is_first | ~is_digit].tobytes()
    forms = marked.split(b"\n")
    if len(forms) != len(texts) or marked.translate(None, b"#,;\n"):
        allowed = frozenset('0123456789,;"() ')
        at = next((n for n, text in enumerate(texts) if set(text) - allowed), 0)
        raise BadInput(f"{INPUT_SHAPES}: row {at}: expected shapes such as 32,5120;5120,3200")
    numbers = np.fromstring(joined.translate(_DIGITS), np.int64, sep=" ")
    counts = {form: form.count(b"#") for form in set(forms)}
    lengths = np.array([counts[form] for form in forms], np.int64)
    return forms, numbers, np.append(0, np.cumsum(lengths))[:-1]


def _is_setting(name: str) -> bool:
    is_cell = name in (INPUT_FORMATS, OP_STATE, EP_SIZE) or name.startswith(RUNTIME_PREFIX)
    return is_cell and name not in set(BASE_CELLS) - {INPUT_FORMATS, OP_STATE}


def _listed(column: Any) -> list[Any]:
    for name in ("to_pylist", "tolist", "to_list"):
        if hasattr(column, name):
            found: list[Any] = getattr(column, name)()
            return found
    return list(column)
