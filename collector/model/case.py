"""A case: one operator call to measure, and the properties that identify it.

The identity covers everything that changes the kernel: the type; shapes, dtypes and formats of
every argument, by name where an operator declares it and by position otherwise
(`collector.ops.reading`); OP State; and the attributes that a profile or a tree names. Dimensions
that do not change the kernel, such as the number of pages of a pool, do not count. An output of
`N/A` with known inputs makes a separate case. The accelerator core is not part of the identity,
because the runtime chooses among cube and vector units. AI_CPU is an exception: it is another
kernel, many times as slow, and is one of the attributes. Outer quotes, blanks, trailing empty slots
and the names of dtypes and formats are normalised here; the spelling of the source is stored with
the case (`record.py`), for writing.

A release may not record the OP State. Among cases that are read together, one of unknown state is
the only one of known state that otherwise equals it, if there is exactly one (`known_states`).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import zip_longest
from math import prod

from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput
from collector.codec.numbers import integer_of
from collector.model import vocabulary
from collector.model.vocabulary import Dtype

Shape = tuple[int, ...]

# The two names that a profile writes with the index of a compiled variant.
_RENAMED = {
    "split_qkv_rmsnorm_rope_kernel_0": "split_qkv_rmsnorm_rope_kernel",
    "muls_add_kernel_1": "muls_add_kernel",
}
_MOST_DESCRIBED = 32  # tensors: operators of optimizers have hundreds
_MOST_ELEMENTS = 2**63 - 1  # a tensor counts its elements as int64
_OUTER, _MARKS = ' \t\r\n"', re.compile("[=+@-]")
_NEGATIVE = re.compile(r"-|-[0-9][0-9.,;]*")
_KERNEL_TYPE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor position. `shape` is None if the cell is empty: a scalar or an absent argument;
    only the operator's declaration can distinguish them. The sizes of the `free` dimensions do not
    change the kernel."""

    shape: Shape | None
    dtype: str
    format: str
    free: tuple[int, ...] = ()

    @property
    def fixed_shape(self) -> tuple[int | None, ...] | None:
        """Return the shape with None for each free dimension."""
        if self.shape is None or not self.free:
            return self.shape
        return tuple(None if at in self.free else size for at, size in enumerate(self.shape))

    @property
    def is_blank(self) -> bool:
        """Return whether nothing is known of the slot, so that it has no meaning at the end of a
        row."""
        return (
            self.shape is None
            and vocabulary.is_absent_dtype(self.dtype)
            and vocabulary.is_absent_format(self.format)
        )

    @property
    def known_dtype(self) -> Dtype | None:
        return vocabulary.dtype_of(self.dtype)

    @property
    def numel(self) -> int:
        """Return the number of elements of the tensor; 1 for an empty slot, as for a scalar."""
        return prod(self.shape) if self.shape is not None else 1

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the dense tensor; 0 if the dtype is unknown or absent."""
        dtype = self.known_dtype
        return dtype.bytes_of(self.numel) if dtype else 0


NO_TENSOR = Slot(None, "DT_UNDEFINED", "NULL")  # as profilers write an absent argument


@dataclass(frozen=True, slots=True)
class Case:
    """One operator call. `inputs` or `outputs` is None if the profiler wrote `N/A`. `notes` are
    attributes that describe the call without distinguishing it from others."""

    kernel_type: str
    inputs: tuple[Slot, ...] | None
    outputs: tuple[Slot, ...] | None
    op_state: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    @property
    def case_id(self) -> str:
        """Return 20 hex digits that are equal exactly if the identity is equal."""
        return short_hash(self._identity())

    def _identity(self) -> object:
        return [
            self.kernel_type,
            _slots_as_json(self.inputs),
            _slots_as_json(self.outputs),
            self.op_state,
            [list(pair) for pair in self.attributes],
        ]

    def attribute(self, name: str) -> str | None:
        return dict((*self.attributes, *self.notes)).get(name)

    def describe(self) -> str:
        """Return a text for messages and logs: `Add 4096,1024;4096,1024 FLOAT;DT_BF16`."""
        if self.inputs is None:
            return f"{self.kernel_type} {vocabulary.NOT_KNOWN}"
        shown = self.inputs[:_MOST_DESCRIBED]
        shapes = ";".join(shape_text(slot.shape) for slot in shown)
        more = len(self.inputs) - len(shown)
        rest = f" and {more} more" if more else ""
        return f"{self.kernel_type} {shapes or '-'} {';'.join(s.dtype for s in shown)}{rest}"


def case_from_cells(kernel_type: str, cells: Mapping[str, str]) -> Case:
    """Return the case of a row. `cells` may have more columns than the identity needs.

    Raises BadInput for an invalid kernel type or shape, and for a formula of a spreadsheet."""
    names = _text_names(tuple(cells))
    if _MARKS.search("".join([cells[name] for name in names])):  # few cells have any
        for name in names:
            if is_formula(cells[name]):
                raise BadInput(f"{name}: expected a value, got a formula of a spreadsheet")
    # The declarations of operators are written in terms of cases, and a case is read by them.
    from collector.ops.reading import as_declared

    return as_declared(
        Case(
            kernel_type=normal_kernel_type(kernel_type),
            inputs=_slots(cells, vocabulary.INPUT_CELLS),
            outputs=_slots(cells, vocabulary.OUTPUT_CELLS),
            op_state=_op_state(cells.get(vocabulary.OP_STATE, "")),
            attributes=tuple(sorted(_attributes(cells))),
        )
    )


def is_formula(text: str) -> bool:
    """Return whether a spreadsheet would compute a cell with this text instead of showing it.

    The CSVs of trees and databases are opened with spreadsheets, and some of their texts come from
    profiles of other people. No valid cell but a negative number begins like a formula."""
    inner = text.lstrip(_OUTER)
    return bool(_MARKS.match(inner)) and not _NEGATIVE.fullmatch(inner.rstrip(_OUTER))


def known_states(cases: Iterable[Case]) -> dict[Case, Case]:
    """Return, by each case of unknown state, the only one of known state that otherwise equals it.

    A kernel of a graph is known by its state, so that what launched it is unknown as well."""
    found: dict[Case, set[Case]] = {}
    for case in cases:
        if case.op_state:
            rest = tuple(pair for pair in case.attributes if pair[0] != vocabulary.LAUNCHED_BY)
            unknown = replace(case, op_state="", attributes=rest)
            found.setdefault(unknown, set()).add(case)
    return {unknown: known.pop() for unknown, known in found.items() if len(known) == 1}


def in_each_state(case: Case) -> tuple[Case, ...]:
    """Return the cases of known state that a case of unknown state may be."""
    by_graph = tuple(sorted((*case.attributes, (vocabulary.LAUNCHED_BY, vocabulary.GRAPH))))
    return (
        replace(case, op_state=vocabulary.DYNAMIC),
        replace(case, op_state=vocabulary.STATIC),
        replace(case, op_state=vocabulary.STATIC, attributes=by_graph),
    )


def is_kernel_type(text: str) -> bool:
    """Return whether a cell names a kernel: `N/A` and `0` do not."""
    return bool(_KERNEL_TYPE.fullmatch(text.strip())) and not text.strip().isdecimal()


def normal_kernel_type(text: str) -> str:
    """Return the kernel type of the identity. Raises BadInput if it cannot be a file name."""
    name = _RENAMED.get(text.strip(), text.strip())
    if not _KERNEL_TYPE.fullmatch(name):
        raise BadInput(
            "expected a kernel type of 1 to 200 letters, digits, '_', '.', '+', '-', "
            "which begins with a letter, a digit or '_'"
        )
    return name


def split_cell(text: str) -> list[str]:
    """Return the slots of a cell, without outer quotes and blanks, with empty ones: `"a;;b"` has
    three."""
    inner = text.strip()
    if len(inner) >= 2 and inner[0] == inner[-1] == '"':
        inner = inner[1:-1]
    return [part.strip().strip('"') for part in inner.split(";")]


@lru_cache(maxsize=65536)
def parse_shape(text: str) -> Shape | None:
    """Return a shape: `4096,1` or `(4096, 1)` gives (4096, 1); an empty or missing slot gives None.

    The message does not quote the text: its reader may not be allowed to read the file."""
    if vocabulary.is_absent_shape(text):
        return None
    try:
        shape = _numbers(text)
    except ValueError as error:
        raise BadInput("expected a shape, a list of integers such as 4096,1024") from error
    if min(shape, default=0) < 0:
        raise BadInput("expected a shape of dimensions >= 0, got a negative dimension")
    if prod(filter(None, shape)) > _MOST_ELEMENTS:
        raise BadInput("expected a shape of at most 2**63 - 1 elements, got more")
    return shape


def _numbers(text: str) -> Shape:
    """Return the integers of a text, separated by commas, also in the form of a Python tuple."""
    stripped = text.strip(" ")
    if stripped.startswith("(") and stripped.endswith(")"):
        stripped = stripped[1:-1].removesuffix(",")
    return tuple(map(integer_of, stripped.split(",")))


def tensor_cells(inputs: Iterable[Slot], outputs: Iterable[Slot]) -> dict[str, str]:
    """Return the cells of a row's tensors, quoted as profilers do: shapes, dtypes and formats."""
    return {
        **_slot_cells(vocabulary.INPUT_CELLS, inputs),
        **_slot_cells(vocabulary.OUTPUT_CELLS, outputs),
    }


def logical_shape(slot: Slot) -> Shape:
    """Return the logical shape of the tensor in a slot. FRACTAL_NZ stores (.., R, C) as blocks (..,
    C / c, R / r, r, c): 320,48,16,16 is (768, 5120). Fewer than four dimensions are logical
    already, as profilers write grouped weights. NC1HWC0 stores (N, C, H, W) as (N, C / c, H, W, c):
    32,8,55,55,8 is (32, 64, 55, 55), including padded channels."""
    shape = slot.shape or ()
    if slot.format.startswith(vocabulary.NC1HWC0) and len(shape) == 5:
        n, blocks, height, width, channel = shape
        return (n, blocks * channel, height, width)
    if slot.format != vocabulary.FRACTAL_NZ or len(shape) < 4:
        return shape
    *outer, columns, rows, row, column = shape
    return (*outer, rows * row, columns * column)


def shape_text(shape: tuple[int | None, ...] | None) -> str:
    """Return `4096,1`; `*` for a dimension that does not count."""
    return "" if shape is None else ",".join("*" if size is None else str(size) for size in shape)


def _slot_cells(names: tuple[str, str, str], slots: Iterable[Slot]) -> dict[str, str]:
    cells = tuple(slots)
    shapes = ";".join(shape_text(slot.shape) for slot in cells)
    texts = (f'"{shapes}"', ";".join(s.dtype for s in cells), ";".join(s.format for s in cells))
    return dict(zip(names, texts, strict=True))


def _slots(cells: Mapping[str, str], names: tuple[str, str, str]) -> tuple[Slot, ...] | None:
    shapes, dtypes, formats = (cells.get(name, "") for name in names)
    if shapes.strip().strip('"').upper() == vocabulary.NOT_KNOWN:
        return None
    slots = [
        Slot(_shape(names[0], shape), dtype, fmt)
        for shape, dtype, fmt in zip_longest(
            split_cell(shapes),
            _words(dtypes, vocabulary.normal_dtype),
            _words(formats, vocabulary.normal_format),
            fillvalue="",
        )
    ]
    return without_blanks(slots)


def without_blanks(slots: Iterable[Slot]) -> tuple[Slot, ...]:
    """Return the slots with absent tensors spelled alike, and without those at the end."""
    found = [NO_TENSOR if slot.is_blank else slot for slot in slots]
    while found and found[-1] is NO_TENSOR:
        found.pop()
    return tuple(found)


def _shape(column: str, text: str) -> Shape | None:
    try:
        return parse_shape(text)
    except BadInput as error:
        raise BadInput(f"{column}: {error}") from error


@lru_cache(maxsize=4096)
def _words(cell: str, normal: Callable[[str], str]) -> tuple[str, ...]:
    """Return the slots of a cell of dtypes or formats in the spelling of today's profiles.

    Releases and tools differ in it. Many rows share few such cells."""
    return tuple(map(normal, split_cell(cell)))


def _op_state(text: str) -> str:
    state = text.strip().lower()
    return "" if state == vocabulary.NOT_KNOWN.lower() else state


def _attributes(cells: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in _attribute_names(tuple(cells)):
        if text := cells[name].strip():
            yield name, text
    if vocabulary.core_class(cells.get(vocabulary.ACCELERATOR_CORE, "")) == vocabulary.AI_CPU:
        yield vocabulary.ACCELERATOR_CORE, vocabulary.AI_CPU


@lru_cache(maxsize=4096)
def _text_names(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of a table's columns that describe the case."""
    return tuple(
        name
        for name in columns
        if name in vocabulary.BASE_CELLS
        or name == vocabulary.EP_SIZE
        or name.startswith(vocabulary.RUNTIME_PREFIX)
    )


@lru_cache(maxsize=4096)
def _attribute_names(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of a table's columns that, in addition to the tensors, distinguish cases."""
    return tuple(
        name
        for name in columns
        if name == vocabulary.EP_SIZE
        or (
            name.startswith(vocabulary.RUNTIME_PREFIX) and name not in vocabulary.RUNTIME_PROVENANCE
        )
    )


def _slots_as_json(slots: tuple[Slot, ...] | None) -> object:
    if slots is None:
        return None
    return [
        [None if s.shape is None else shape_text(s.fixed_shape), s.dtype, s.format] for s in slots
    ]
