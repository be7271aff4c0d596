"""What a query names: kernel type, shapes, dtypes, settings and lengths, in the index's words."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice, zip_longest
from math import fsum
from operator import index
from typing import TypedDict, TypeVar

from collector.codec.errors import BadInput
from collector.codec.numbers import parse_number
from collector.database import layout
from collector.database.index import Index, IndexBlock, Sizes
from collector.model.case import (
    NO_TENSOR,
    Case,
    Slot,
    normal_kernel_type,
    parse_shape,
    split_cell,
    tensor_cells,
    without_blanks,
)
from collector.model.record import KERNEL_TYPE, TABLE_COLUMNS
from collector.model.vocabulary import (
    ACCELERATOR_CORE,
    AI_CPU,
    BASE_CELLS,
    EP_SIZE,
    INPUT_CELLS,
    INPUT_DTYPES,
    INPUT_FORMATS,
    INPUT_SHAPES,
    KEY_LENGTHS,
    LENGTH_COLUMNS,
    MEAN_LENGTH,
    NOT_KNOWN,
    OP_STATE,
    OUTPUT_CELLS,
    OUTPUT_DTYPES,
    OUTPUT_FORMATS,
    OUTPUT_SHAPES,
    RUNTIME_PREFIX,
    RUNTIME_PROVENANCE,
    core_class,
    dtype_of,
    is_absent_dtype,
    is_absent_format,
    is_absent_shape,
    normal_dtype,
    normal_format,
    plain_format,
    torch_dtype_of,
)
from collector.ops.reading import describing
from collector.ops.registry import find_operator
from collector.ops.spec import as_printed
from collector.ranks.collective import MESSAGE_BYTES, with_message_bytes
from opmeter.arguments import (
    MOST_SIZE,
    bad_argument,
    list_of,
    number_argument,
    size_of,
    text_of,
    texts_of,
)

Shape = tuple[int, ...]
Lengths = Sequence[float] | Mapping[str, Sequence[float]] | None
Outputs = Sequence[Shape | None] | Mapping[str, str] | None

_SHAPES = "a shape for each tensor, such as [(32, 5120), (5120, 3200)]"
_Size = TypeVar("_Size", int, str)
_OF_OUTPUTS = (OUTPUT_DTYPES, OUTPUT_FORMATS)
_FORMATS = frozenset({INPUT_FORMATS, OUTPUT_FORMATS})


@dataclass(frozen=True, slots=True)
class Query:
    """A query in the words of the index. `dtypes` has one entry for all inputs, one for each, or
    none; `cells` are the settings that must be equal; `lengths` are lists by column; `outputs` are
    the shapes of the outputs, if they are given."""

    kernel: str
    ranks: tuple[int, ...]
    sizes: list[int]
    dtypes: tuple[str, ...]
    cells: Mapping[str, str]
    lengths: Mapping[str, list[float]] | None
    outputs: tuple[Shape | None, ...] | None

    @property
    def output_sizes(self) -> list[int] | None:
        """Return the sizes of all outputs, if these are given."""
        return None if self.outputs is None else resolved_sizes(self.outputs)

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

    def is_of_ranks(self, block: IndexBlock) -> bool:
        """Return whether a block has the ranks of the query's inputs, and of its outputs if they
        are given."""
        return block_ranks(block) == self.ranks and self._is_of_outputs(block)

    def without_absent(self, blocks: Sequence[IndexBlock]) -> list[IndexBlock]:
        """Return the blocks that have the tensors of the query, in this order, with absent ones
        before, between or after them: callers and profilers leave these out."""
        is_named = len(self.dtypes) > 1
        dtypes = self.dtypes if is_named else ("?",) * len(self.ranks)
        own = _present(zip(dtypes, self.ranks, strict=True))
        found = []
        for block in blocks:
            present = _present(block.inputs)
            if not is_named:
                present = [("?", rank) for _, rank in present]
            if present == own and self._is_of_outputs(block):
                found.append(block)
        return found if is_named else self.of_dtypes(found)

    def _is_of_outputs(self, block: IndexBlock) -> bool:
        return self.outputs is None or block.outputs == resolved_ranks(self.outputs)

    def allows(self, settings: Mapping[str, str]) -> bool:
        """Return whether settings have the texts that the query names. One dtype or format of
        outputs is that of all."""
        for name, text in self.cells.items():
            own = settings.get(name, "")
            if own == text or (name in _OF_OUTPUTS and _is_of_all(text, own)):
                continue
            if name not in _FORMATS or _present_formats(text) != _present_formats(own):
                return False
        return True


def _present(tensors: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the dtypes and ranks of the tensors that are not absent."""
    return [one for one in tensors if one[1] >= 0 or not is_absent_dtype(one[0])]


def _present_formats(cell: str) -> list[str]:
    """Return the formats of the tensors that are not absent."""
    return [one for one in cell.split(";") if not is_absent_format(one)]


def _is_of_all(word: str, words: str) -> bool:
    """Return whether all words of a cell but absent ones are this one."""
    return {one for one in words.split(";") if not is_absent_dtype(one)} == {word}


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
    outputs: Outputs = None,
) -> Query:
    """Return a query from the arguments of a caller. Raises BadInput for invalid ones."""
    given = {} if settings is None else _texts_by_column("settings", settings)
    given.pop(MESSAGE_BYTES, None)
    shapes, of_outputs = _given_outputs(outputs)
    cells = {**given, **of_outputs}
    if op_state is not None:
        cells[OP_STATE] = text_of("op_state", op_state).strip().lower()
    dtypes = tuple(map(spelled_dtype, _words("dtype", dtype)))
    ranks, sizes = resolved_ranks(inputs), resolved_sizes(inputs)
    check_sizes(sizes)
    if len(dtypes) > 1 and len(dtypes) != len(ranks):
        raise BadInput(f"dtype: expected one, or one for each of {len(ranks)} inputs")
    while len(dtypes) > 1 and ranks[-1] < 0 and is_absent_dtype(dtypes[-1]):
        ranks, dtypes = ranks[:-1], dtypes[:-1]  # absent tensors at the end, which no case has
    if words := _words("formats", formats):
        named = words[: max(len(ranks), 1)] if len(words) == len(inputs) else words
        cells[INPUT_FORMATS] = ";".join(map(normal_format, named))
    query = Query(
        normal_kernel_type(text_of("kernel", kernel)),
        ranks,
        sizes,
        dtypes,
        cells,
        None if lengths is None else _lists(lengths),
        shapes,
    )
    return _as_declared(query) if len(dtypes) > 1 or cells else query


def _as_declared(query: Query) -> Query:
    """Return the query as the index has its cases: by the declaration of the operator."""
    op = find_operator(query.kernel)
    if op is None:
        return query
    idle = describing((*query.cells, *(query.lengths or ())))
    cells = {name: text for name, text in query.cells.items() if name not in idle}
    for name in _FORMATS & cells.keys():
        cells[name] = ";".join(map(plain_format, cells[name].split(";")))
    query = replace(query, cells=cells)
    if op.placed is as_printed or len(query.dtypes) != len(query.ranks):
        return query
    inputs = _slots_of(
        sized_shapes(query.ranks, query.sizes), query.dtypes, cells.get(INPUT_FORMATS)
    )
    named = cells.get(OUTPUT_DTYPES, "").split(";")
    outputs = None
    if query.outputs is not None:
        outputs = _slots_of(query.outputs, named, cells.get(OUTPUT_FORMATS))
    placed = op.placed(Case(query.kernel, inputs, outputs))
    if (placed.inputs, placed.outputs) == (inputs, outputs):
        return query
    slots, made = without_blanks(placed.inputs or ()), placed.outputs
    columns = {
        INPUT_FORMATS: ";".join(slot.format for slot in slots),
        OUTPUT_DTYPES: ";".join(slot.dtype for slot in made or ()),
        OUTPUT_FORMATS: ";".join(slot.format for slot in made or ()),
    }
    return replace(
        query,
        ranks=tuple(-1 if slot.shape is None else len(slot.shape) for slot in slots),
        dtypes=tuple(slot.dtype for slot in slots),
        outputs=None if made is None else tuple(slot.shape for slot in made),
        cells={name: columns.get(name, text) for name, text in cells.items()},
    )


def _slots_of(
    shapes: Sequence[Shape | None], dtypes: Sequence[str], formats: str | None
) -> tuple[Slot, ...]:
    """Return slots of these shapes; a dtype or a format that is not given is empty."""
    layouts = (formats or "").split(";")

    def at(texts: Sequence[str], position: int) -> str:
        return texts[position] if position < len(texts) else ""

    return tuple(
        Slot(shape or None, at(dtypes, n), at(layouts, n)) for n, shape in enumerate(shapes)
    )


def _words(what: str, given: str | Sequence[str]) -> Sequence[str]:
    """Return the texts of a list, or those of a text that `;` separates; none of an empty one."""
    texts = texts_of(what, given)
    return texts.split(";") if isinstance(texts, str) and texts else tuple(texts)


def _texts_by_column(what: str, given: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise bad_argument(what, "texts by column", given)
    names = {text_of(f"{what}: column", name) for name in given}
    return {name: text_of(f"{what}: {name}", given[name]) for name in names}


def _given_outputs(
    outputs: Outputs,
) -> tuple[tuple[Shape | None, ...] | None, dict[str, str]]:
    """Return the shapes of outputs, None if they are open, and the cells of their dtypes and
    formats. Raises BadInput for invalid ones."""
    if outputs is None:
        return None, {}
    if not isinstance(outputs, Mapping):
        if not len(list_of("outputs", _SHAPES, outputs)):
            return None, {}
        ranks = resolved_ranks(outputs, "outputs")
        check_sizes(resolved_sizes(outputs, "outputs"), "outputs")
        pairs = zip(ranks, outputs, strict=True)
        return tuple(None if rank < 0 else shape for rank, shape in pairs), {}
    outputs = _texts_by_column("outputs", outputs)
    if unknown := set(outputs) - set(OUTPUT_CELLS):
        known = ", ".join(OUTPUT_CELLS)
        raise BadInput(f"outputs: expected shapes, or the columns {known}; got {min(unknown)!r}")
    texts = [outputs.get(name, "") for name in OUTPUT_CELLS]
    is_given = [not is_absent_shape(text.strip(' "')) for text in texts]  # `N/A` leaves it open
    own, dtypes, formats = (
        split_cell(text) if given else [] for text, given in zip(texts, is_given, strict=True)
    )
    dtypes, formats = list(map(spelled_dtype, dtypes)), list(map(normal_format, formats))
    parsed = [parse_shape(part) for part in own]
    if parsed and len(dtypes) > 1:
        parsed, dtypes, formats = _without_blanks(parsed, dtypes, formats)
    cells = {OUTPUT_DTYPES: ";".join(dtypes), OUTPUT_FORMATS: ";".join(formats)}
    return tuple(parsed) or None, {name: text for name, text in cells.items() if text}


def resolved_ranks(shapes: Sequence[Shape | None], what: str = "inputs") -> tuple[int, ...]:
    """Return the rank of each tensor, -1 for one without a shape or without dimensions. Raises
    BadInput for others."""
    given = shapes if type(shapes) is list else list_of(what, _SHAPES, shapes)
    try:
        return tuple([len(one) or -1 if type(one) is tuple else _rank(one, what) for one in given])
    except TypeError as error:
        raise bad_argument(what, _SHAPES, shapes) from error


def _rank(shape: Shape | None, what: str) -> int:
    return -1 if shape is None else len(list_of(what, _SHAPES, shape)) or -1


def resolved_sizes(shapes: Sequence[Shape | None], what: str = "inputs") -> list[int]:
    """Return the sizes of all tensors, of any type of integers. Raises BadInput for others."""
    try:
        return [
            index(size) if type(size) is not bool else size_of(size)
            for shape in shapes
            if shape is not None
            for size in shape
        ]
    except (TypeError, OverflowError) as error:
        raise bad_argument(what, _SHAPES, shapes) from error


def sized_shapes(ranks: Sequence[int], sizes: Iterable[_Size]) -> list[tuple[_Size, ...] | None]:
    """Return shapes of these ranks, -1 for one without a shape, from all of their sizes, or texts
    of these."""
    left = iter(sizes)
    return [None if rank < 0 else tuple(islice(left, rank)) for rank in ranks]


def check_sizes(sizes: Sequence[int], what: str = "inputs") -> None:
    """Raise BadInput for a size that no tensor has."""
    for size in (min(sizes, default=0), max(sizes, default=0)):
        if not 0 <= size <= MOST_SIZE:
            raise bad_argument(what, f"sizes from 0 to {MOST_SIZE}", size)


@lru_cache(maxsize=1024)
def spelled_dtype(text: str) -> str:
    """Return the profiler's spelling of a dtype that a user or torch names: `DT_BF16` for `bf16`
    and for `bfloat16`."""
    known = dtype_of(text) or torch_dtype_of(text.strip().lower().removeprefix("torch."))
    return known.spelling if known else normal_dtype(text)


# The columns of a table of queries.

WEIGHT = "weight"
_KERNELS = ("kernel_type", KERNEL_TYPE)
_OF_A_TREE = frozenset({*layout.DATABASE_COLUMNS, layout.PROFILING_COUNT})
_OF_RECORDS = frozenset(TABLE_COLUMNS)
_OF_STEPS = frozenset({"layer", "phase", "times", "source", "case_id"})  # of `opmeter model show`
# Other names of the same, as profilers and the options of `opmeter query` have them.
_CALLED = {
    **dict.fromkeys(("kernel", "op", "optype", "type", "kernelname"), KERNEL_TYPE),
    **dict.fromkeys(("operator", "operatortype"), KERNEL_TYPE),
    **dict.fromkeys(("shape", "shapes", "inputshape", "inputs", "input"), INPUT_SHAPES),
    **dict.fromkeys(("dtype", "dtypes", "datatype", "datatypes", "inputdtypes"), INPUT_DTYPES),
    **dict.fromkeys(("inputdtype", "inputtype", "inputtypes"), INPUT_DTYPES),
    **dict.fromkeys(("format", "formats"), INPUT_FORMATS),
    **dict.fromkeys(("state",), OP_STATE),
    **dict.fromkeys(("lengths", "keys"), KEY_LENGTHS),
    **dict.fromkeys(("output", "outputs"), OUTPUT_SHAPES),
    **dict.fromkeys(("outputdtype", "outputdtypes"), OUTPUT_DTYPES),
}


def column_called(name: str) -> str:
    """Return the column of a case that users, profilers or options call so; empty for none."""
    letters = _letters(name)
    own = {_letters(column): column for column in (*BASE_CELLS, EP_SIZE, *LENGTH_COLUMNS)}
    return own.get(letters) or _CALLED.get(letters, "")


def kernel_column(names: Sequence[str]) -> str | None:
    """Return the column of a table of queries that has the kernel type of each row, if any. Raises
    BadInput for two."""
    found = [name for name in _KERNELS if name in names]
    if len(found) > 1:
        raise BadInput(f"expected one column of kernel types, got {' and '.join(map(repr, found))}")
    return found[0] if found else None


def check_columns(names: Sequence[str]) -> None:
    """Raise BadInput for a column of a tree that is another spelling of one that its cases have:
    its cells would have no meaning."""
    of_cases = (*BASE_CELLS, EP_SIZE, *sorted(LENGTH_COLUMNS))
    _unused(names, of_cases, [name for name in of_cases if name not in names])


def unused_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of a table of queries that no query uses, besides those of trees and of
    opmeter's own tables. Raises BadInput for one that is another spelling of one that is used: its
    cells would be left open."""
    used = (*_KERNELS, WEIGHT, *BASE_CELLS, EP_SIZE, *sorted(LENGTH_COLUMNS))
    return _unused(names, used, used)


def _unused(names: Sequence[str], used: Sequence[str], expected: Sequence[str]) -> list[str]:
    """Return the columns that are neither used nor of a table that opmeter writes. Raises BadInput
    for another spelling of one that is expected."""
    spelled = {_letters(name): name for name in expected}
    unused = []
    for name in names:
        if name in used or name.startswith((RUNTIME_PREFIX, layout.MICROBENCH, "Profiling ")):
            continue
        if name in _OF_A_TREE | _OF_RECORDS | _OF_STEPS:
            continue
        letters = _letters(name)
        close = get_close_matches(letters, spelled, n=1, cutoff=0.85)
        called = _CALLED.get(letters)
        meant = called if called in expected else spelled[close[0]] if close else ""
        if meant:
            raise BadInput(f"unknown column {name[:80]!r}; did you mean {meant!r}?")
        unused.append(name)
    return unused


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))


class Arguments(TypedDict):
    """The arguments of a query, without its kernel type."""

    inputs: list[Shape | None]
    dtype: str
    formats: str
    op_state: str | None
    settings: dict[str, str]
    lengths: dict[str, list[float]] | None
    outputs: dict[str, str]


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
    if core := core_class(cells.get(ACCELERATOR_CORE, "")):  # only AI_CPU distinguishes cases
        settings[ACCELERATOR_CORE] = core if core == AI_CPU else ""
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
        outputs={name: cells[name] for name in OUTPUT_CELLS if cells.get(name, "").strip(' "')},
    )


def _without_blanks(
    inputs: list[Shape | None], dtypes: list[str], formats: list[str]
) -> tuple[list[Shape | None], list[str], list[str]]:
    """Return the slots as a case has them: those of which nothing is known are absent tensors, and
    have no meaning at the end."""
    slots = without_blanks(
        Slot(shape, dtype or "", fmt or "")
        for shape, dtype, fmt in zip_longest(inputs, dtypes, formats)
    )
    shapes = [slot.shape for slot in slots]
    named = [slot.format for slot in slots] if any(formats) else []
    return shapes, [slot.dtype for slot in slots], named


def _numbers(name: str, text: str) -> list[float]:
    try:
        return [parse_number(part) for part in text.split(",")]
    except ValueError as error:
        raise BadInput(f"{name}: {error}") from error


def block_ranks(block: IndexBlock) -> tuple[int, ...]:
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


def query_cells(
    query: Query, outputs: Sequence[Shape | None], settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the cells of a case of a query. What the query leaves open of outputs and settings is
    as in a case like it."""
    named = {**settings, **query.cells}
    formats = named.get(INPUT_FORMATS, "").split(";")
    slots = []
    for at, shape in enumerate(sized_shapes(query.ranks, query.sizes)):
        dtype = query.dtypes[at if len(query.dtypes) > 1 else 0] if query.dtypes else ""
        fmt = formats[at] if at < len(formats) else "ND"
        is_absent = shape is None and (len(query.dtypes) < 2 or is_absent_dtype(dtype))
        slots.append(NO_TENSOR if is_absent else Slot(shape, dtype, fmt or "ND"))
    shapes = query.outputs or outputs
    words = [
        _of_each(named.get(name, ""), len(shapes), name in query.cells) for name in _OF_OUTPUTS
    ]
    made = [Slot(*slot) for slot in zip(shapes, *words, strict=True)]
    cells = tensor_cells(slots, made)
    if not made:
        cells |= dict.fromkeys(OUTPUT_CELLS, NOT_KNOWN)
    lengths = {name: _spelled(name, values) for name, values in (query.lengths or {}).items()}
    further = {n: t for n, t in named.items() if n not in (*INPUT_CELLS, *OUTPUT_CELLS)}
    return with_message_bytes(query.kernel, {**further, **cells, **lengths})


def _of_each(cell: str, count: int, is_given: bool) -> list[str]:
    """Return the word of each slot; one that is given is that of all."""
    words = cell.split(";")
    return (words * count if is_given and len(words) == 1 else [*words, *[""] * count])[:count]


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
        named = settings[number]
        dtypes = (*(one for one, _ in block.inputs), *_padded(named, OUTPUT_DTYPES, block))
        formats = (*_padded(named, INPUT_FORMATS, block), *_padded(named, OUTPUT_FORMATS, block))
        ranks = (*block_ranks(block), *block.outputs)
        shapes = sized_shapes(ranks, known[row - block.begin].tolist())
        slots = [Slot(*slot) for slot in zip(shapes, dtypes, formats, strict=True)]
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
        name = text_of("lengths: column", name)
        column = name if name.startswith(RUNTIME_PREFIX) else RUNTIME_PREFIX + name
        if column not in LENGTH_COLUMNS:
            known = ", ".join(sorted(LENGTH_COLUMNS))
            raise BadInput(f"lengths: expected one of {known}, got {name!r}")
        what = f"lengths: {column}"
        numbers = list_of(what, "a list of numbers", values)
        found[column] = [number_argument(what, value) for value in numbers]
    return found


def mean_of(values: Sequence[float]) -> float:
    return fsum(values) / len(values) if values else 0.0
