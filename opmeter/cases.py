"""What a query names: kernel type, shapes, dtypes, settings and lengths, in the index's words."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, zip_longest
from math import fsum, isfinite
from operator import index
from typing import TypedDict

from collector.codec.errors import BadInput
from collector.codec.numbers import number_of
from collector.database.index import Index, IndexBlock, Sizes
from collector.model.case import (
    NO_TENSOR,
    Slot,
    normal_kernel_type,
    parse_shape,
    split_cell,
    tensor_cells,
)
from collector.model.vocabulary import (
    BASE_CELLS,
    EP_SIZE,
    INPUT_CELLS,
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    LENGTH_COLUMNS,
    NOT_KNOWN,
    OP_STATE,
    OUTPUT_CELLS,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    RUNTIME_PREFIX,
    RUNTIME_PROVENANCE,
    dtype_of,
    is_absent_dtype,
    normal_dtype,
    normal_format,
    torch_dtype_of,
)
from collector.ranks.collective import MESSAGE_BYTES, with_message_bytes

Shape = tuple[int, ...]
Lengths = Sequence[float] | Mapping[str, Sequence[float]] | None

KEY_LENGTHS = RUNTIME_PREFIX + "actual_seq_lengths_kv_values"
MEAN_LENGTH = RUNTIME_PREFIX + "avg_seq_len"


@dataclass(frozen=True, slots=True)
class Query:
    """A query in the words of the index. `dtypes` has one entry for all inputs, one for each, or
    none; `cells` are the settings that must be equal; `lengths` are lists by column."""

    kernel: str
    ranks: tuple[int, ...]
    sizes: list[int]
    dtypes: tuple[str, ...]
    cells: Mapping[str, str]
    lengths: Mapping[str, list[float]] | None

    def of_dtypes(self, blocks: Sequence[IndexBlock]) -> list[IndexBlock]:
        """Return the blocks with the dtypes of the query."""
        if not self.dtypes:
            return list(blocks)
        if len(self.dtypes) == 1:
            return [one for one in blocks if _first_dtype(one) == self.dtypes[0]]
        return [one for one in blocks if tuple(dtype for dtype, _ in one.inputs) == self.dtypes]

    def is_of_one_dtype(self, block: IndexBlock) -> bool:
        """Return whether every tensor of a block has the query's only dtype."""
        named = (dtype for dtype, _ in block.inputs if not is_absent_dtype(dtype))
        return all(dtype == self.dtypes[0] for dtype in named)

    def allows(self, settings: Mapping[str, str]) -> bool:
        """Return whether settings have the texts that the query names."""
        return all(settings.get(name, "") == text for name, text in self.cells.items())


def _first_dtype(block: IndexBlock) -> str:
    named = (dtype for dtype, _ in block.inputs if not is_absent_dtype(dtype))
    return next(named, "")


def query_of(
    kernel: str,
    inputs: Sequence[Shape | None],
    dtype: str | Sequence[str],
    formats: str | Sequence[str],
    op_state: str | None,
    settings: Mapping[str, str] | None,
    lengths: Lengths,
) -> Query:
    """Return a query from the arguments of a caller. Raises BadInput for invalid ones."""
    cells = {name: text for name, text in (settings or {}).items() if name != MESSAGE_BYTES}
    if len(formats):
        texts = formats.split(";") if isinstance(formats, str) else formats
        cells[INPUT_FORMATS] = ";".join(map(normal_format, texts))
    if op_state is not None:
        cells[OP_STATE] = op_state.strip().lower()
    names = dtype.split(";") if isinstance(dtype, str) else list(dtype)
    dtypes = tuple(map(spelled_dtype, names)) if len(dtype) else ()
    ranks, sizes = resolved_ranks(inputs), resolved_sizes(inputs)
    check_sizes(sizes)
    if len(dtypes) > 1 and len(dtypes) != len(ranks):
        raise BadInput(f"dtype: expected one, or one for each of {len(ranks)} inputs")
    return Query(
        normal_kernel_type(kernel),
        ranks,
        sizes,
        dtypes,
        cells,
        None if lengths is None else _lists(lengths),
    )


def resolved_ranks(inputs: Sequence[Shape | None]) -> tuple[int, ...]:
    """Return the rank of each input, -1 for one without a shape or without dimensions. Raises
    BadInput for others."""
    try:
        return tuple([-1 if shape is None else len(shape) or -1 for shape in inputs])
    except TypeError as error:
        raise BadInput(_no_shapes(inputs)) from error


def resolved_sizes(inputs: Sequence[Shape | None]) -> list[int]:
    """Return the sizes of all inputs, of any type of integers. Raises BadInput for others."""
    try:
        return [index(size) for shape in inputs if shape is not None for size in shape]
    except TypeError as error:
        raise BadInput(_no_shapes(inputs)) from error


def check_sizes(sizes: Sequence[int]) -> None:
    """Raise BadInput for a negative size."""
    if min(sizes, default=0) < 0:
        raise BadInput(f"inputs: expected sizes of at least 0, got {min(sizes)}")


def _no_shapes(inputs: object) -> str:
    shown = repr(inputs)[:80]
    return (
        f"inputs: expected a shape for each input, such as [(32, 5120), (5120, 3200)], got {shown}"
    )


@lru_cache(maxsize=1024)
def spelled_dtype(text: str) -> str:
    """Return the profiler's spelling of a dtype that a user or torch names: `DT_BF16` for `bf16`
    and for `bfloat16`."""
    known = dtype_of(text) or torch_dtype_of(text.strip().lower().removeprefix("torch."))
    return known.spelling if known else normal_dtype(text)


class Arguments(TypedDict):
    """The arguments of a query, without its kernel type."""

    inputs: list[Shape | None]
    dtype: str
    formats: str
    op_state: str | None
    settings: dict[str, str]
    lengths: dict[str, list[float]] | None


def arguments_of(cells: Mapping[str, str]) -> Arguments:
    """Return the arguments of a query for the cells of a row of a tree; an empty cell leaves them
    open. Raises BadInput for an invalid cell."""
    lengths = {
        name: _numbers(name, text)
        for name, text in cells.items()
        if name in LENGTH_COLUMNS and text.strip()
    }
    settings = {
        name: text.strip()
        for name, text in cells.items()
        if (name == EP_SIZE or name.startswith(RUNTIME_PREFIX))
        and name not in LENGTH_COLUMNS | RUNTIME_PROVENANCE
        and text.strip()
    }
    inputs = [parse_shape(part) for part in split_cell(cells[INPUT_SHAPES])]
    dtypes, formats = (split_cell(cells.get(name, "")) for name in (INPUT_DTYPES, INPUT_FORMATS))
    if not any((cells[INPUT_SHAPES].strip(' "'), *dtypes, *formats)):
        inputs = []  # a case without inputs; `N/A` is one of unknown inputs
    elif len(dtypes) > 1:  # one dtype is that of all slots
        inputs, dtypes, formats = _without_blanks(inputs, dtypes, formats)
    return Arguments(
        inputs=inputs,
        dtype=";".join(dtypes[: max(len(inputs), 1)]),
        formats=";".join(formats[: max(len(inputs), 1)]),
        op_state=cells.get(OP_STATE) or None,
        settings=settings,
        lengths=lengths or None,
    )


def _without_blanks(
    inputs: list[Shape | None], dtypes: list[str], formats: list[str]
) -> tuple[list[Shape | None], list[str], list[str]]:
    """Return the slots as a case has them: those of which nothing is known are absent tensors, and
    have no meaning at the end."""
    slots = [
        Slot(shape, dtype or "", fmt or "")
        for shape, dtype, fmt in zip_longest(inputs, dtypes, formats)
    ]
    slots = [NO_TENSOR if slot.is_blank else slot for slot in slots]
    while slots and slots[-1] == NO_TENSOR:
        slots.pop()
    shapes = [slot.shape for slot in slots]
    named = [slot.format for slot in slots] if any(formats) else []
    return shapes, [slot.dtype for slot in slots], named


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [number_of(part) for part in text.split(",")]
    except ValueError as error:
        raise BadInput(f"{name}: {error}") from error


def ranks_of(block: IndexBlock) -> tuple[int, ...]:
    return tuple(rank for _, rank in block.inputs)


def outputs_like(sizes: Sequence[int], block: IndexBlock, known: Sizes) -> list[Shape | None]:
    """Return the shapes of the outputs of a case with these input sizes, if each of their sizes is
    constant in the rows of a block (rows, sizes) or equal to the same input size in all of them;
    otherwise none. Input sizes that are equal in all rows, such as the depth of both matrices of a
    product, must be equal here too: else the case has another orientation."""
    found: list[Shape | None] = []
    at = block.key_width
    for n, own in enumerate(sizes):
        alike = (other for other in range(n) if (known[:, other] == known[:, n]).all())
        if (first := next(alike, None)) is not None and sizes[first] != own:
            return []
    for rank in block.outputs:
        shape = []
        for column in known[:, at : at + max(rank, 0)].T:
            equal = (n for n in range(block.key_width) if (known[:, n] == column).all())
            if (same := next(equal, None)) is not None:
                shape.append(sizes[same])
            elif (column == column[0]).all():
                shape.append(int(column[0]))
            else:
                return []
        found.append(None if rank < 0 else tuple(shape))
        at += max(rank, 0)
    return found


def cells_of(
    query: Query, outputs: Sequence[Shape | None], settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the cells of a case of a query, with the outputs and settings of a case like it."""
    named = {**settings, **query.cells}
    formats = named.get(INPUT_FORMATS, "").split(";")
    slots, sizes = [], iter(query.sizes)
    for at, rank in enumerate(query.ranks):
        shape = None if rank < 0 else tuple(next(sizes) for _ in range(rank))
        dtype = query.dtypes[at if len(query.dtypes) > 1 else 0] if query.dtypes else ""
        fmt = formats[at] if at < len(formats) else "ND"
        is_absent = shape is None and (len(query.dtypes) < 2 or is_absent_dtype(dtype))
        slots.append(NO_TENSOR if is_absent else Slot(shape, dtype, fmt or "ND"))
    if outputs:
        pairs = zip_longest(
            *(named.get(name, "").split(";") for name in (OUTPUT_DTYPES, OUTPUT_FORMATS)),
            fillvalue="",
        )
        made = [Slot(shape, *pair) for shape, pair in zip(outputs, pairs, strict=False)]
    else:
        made = []
    cells = tensor_cells(slots, made)
    if not made:
        cells |= dict.fromkeys(OUTPUT_CELLS, NOT_KNOWN)
    lengths = {name: _spelled(name, values) for name, values in (query.lengths or {}).items()}
    further = {n: t for n, t in named.items() if n not in (*INPUT_CELLS, *OUTPUT_CELLS)}
    return with_message_bytes(query.kernel, {**further, **cells, **lengths})


def output_cells(cells: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of outputs as a tree has them; none if their shapes are not known. Raises
    BadInput for invalid ones."""
    texts = [cells.get(name, "") for name in OUTPUT_CELLS]
    if texts[0].strip().upper() in ("", NOT_KNOWN):
        return {}
    shapes = split_cell(texts[0])
    columns = zip_longest(shapes, *map(split_cell, texts[1:]), fillvalue="")
    slots = [Slot(parse_shape(shape), dtype, fmt) for shape, dtype, fmt in columns]
    made = tensor_cells([], slots)
    return {name: made[name] for name in OUTPUT_CELLS}


def cells_of_rows(
    index: Index, block: IndexBlock, rows: Iterable[int] | None = None
) -> Iterator[dict[str, str]]:
    """Yield the cells of the case of each row of a block, or of some of them, as a row of a tree
    has them.

    Lists of lengths are written as numbers, whatever their spelling was."""
    settings: dict[int, dict[str, str]] = {}
    known = index.sizes_of(block)
    for row in range(block.begin, block.end) if rows is None else rows:
        number = index.settings[row]
        if number not in settings:
            settings[number] = json.loads(index.text("settings", number))
        lengths = json.loads(index.text("lengths", index.lengths[row]) or "{}")
        named, left = settings[number], iter(known[row - block.begin].tolist())
        dtypes = (*(one for one, _ in block.inputs), *_padded(named, OUTPUT_DTYPES, block))
        formats = (*_padded(named, INPUT_FORMATS, block), *_padded(named, OUTPUT_FORMATS, block))
        ranks = (*ranks_of(block), *block.outputs)
        slots = [
            Slot(None if rank < 0 else tuple(islice(left, rank)), dtype, fmt)
            for rank, dtype, fmt in zip(ranks, dtypes, formats, strict=True)
        ]
        count = len(block.inputs)
        cells = {
            **{name: text for name, text in named.items() if name not in BASE_CELLS},
            OP_STATE: named.get(OP_STATE, ""),
            **tensor_cells(slots[:count], slots[count:]),
            **{name: _spelled(name, list(map(float, of))) for name, of in lengths.items()},
        }
        yield with_message_bytes(block.kernel, cells)


def _padded(settings: Mapping[str, str], column: str, block: IndexBlock) -> list[str]:
    count = len(block.inputs if column == INPUT_FORMATS else block.outputs)
    found = settings.get(column, "").split(";")
    return [*found, *[""] * count][:count]


def _spelled(column: str, values: Sequence[float]) -> str:
    if column == MEAN_LENGTH:  # as profiles are parsed
        return ",".join(f"{value:.6f}" for value in values)
    return ",".join(str(int(value)) if value.is_integer() else repr(value) for value in values)


def _lists(lengths: Sequence[float] | Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    given = lengths if isinstance(lengths, Mapping) else {KEY_LENGTHS: lengths}
    found = {}
    for name, values in given.items():
        column = name if name.startswith(RUNTIME_PREFIX) else RUNTIME_PREFIX + name
        if column not in LENGTH_COLUMNS:
            known = ", ".join(sorted(LENGTH_COLUMNS))
            raise BadInput(f"lengths: expected one of {known}, got {name!r}")
        try:
            found[column] = [float(value) for value in values]
        except (TypeError, ValueError) as error:
            raise BadInput(f"lengths: {column}: expected numbers: {error}") from error
        if not all(map(isfinite, found[column])):
            raise BadInput(f"lengths: {column}: expected finite numbers")
    return found


def mean_of(values: Sequence[float]) -> float:
    return fsum(values) / len(values) if values else 0.0
