"""Identity check: whether a recorded launch is the call that a case requests, tensor by tensor.

One profiler writes both the profile that a case comes from and the record of its replay, so both
spell a kernel alike. Differences that have no meaning are rules here, each with its source; any
other difference means another call. What the profiler did not record, or the case does not specify,
proves nothing in either direction.

    requested Sort     16,64 DT_BF16 ND
    recorded  Sort     16,64 FLOAT   ND     input 1: expected DT_BF16, got FLOAT
    recorded  Sort     N/A                  its inputs are not recorded (unverified)
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol

from collector.codec.errors import BadInput
from collector.model import vocabulary
from collector.model.case import (
    Case,
    Slot,
    case_from_cells,
    is_kernel_type,
    logical_shape,
    normal_kernel_type,
    shape_text,
    split_cell,
)

_NOTHING = Slot(None, "", "")
# aclnnQuantMatmul and GroupedMatmul take scales that were packed into 64 bits as INT64 from torch,
# and pass them to the kernel as UINT64: the same bytes (op-plugin, QuantBatchMatmulV3 of CANN's
# ops-nn; every profile of a static W8A8 layer shows UINT64). Valid only next to quantised numbers:
# for an Add the two are different kernels.
_PACKED = frozenset({"INT64", "UINT64"})
_QUANTISED = ("INT8", "INT4", "FLOAT8", "HIFLOAT8", "FLOAT4")
# Elements of a block's side: CANN pads the last two dimensions of FRACTAL_NZ to whole blocks, 16 by
# 32 bytes.
_BLOCK_ROWS, _BLOCK_BITS = 16, 256


Slots = tuple[Slot, ...]
Cells = tuple[tuple[str, str], ...]  # a row's tensor cells, by column


@dataclass(frozen=True, slots=True)
class Identity:
    """Result of comparing the record of a launch with a case. `differences` prove that it is
    another call; `unverified` lists what leaves the identity unverified."""

    differences: tuple[str, ...] = ()
    unverified: tuple[str, ...] = ()

    @property
    def is_proved(self) -> bool:
        return not self.differences and not self.unverified


class Comparison:
    """Compares launches with one case. Most launches of a window have equal cells, so each
    variant is compared once."""

    def __init__(self, requested: Case):
        self._requested = requested
        self._known: dict[Cells, Identity] = {}

    def of(self, cells: Mapping[str, str]) -> Identity:
        recorded = identifying_cells(cells)
        if recorded not in self._known:
            self._known[recorded] = identity_of(self._requested, cells)
        return self._known[recorded]


def identifying_cells(cells: Mapping[str, str]) -> Cells:
    """Return the cells of a row that describe inputs and outputs."""
    return tuple(
        (name, cells.get(name, "")) for name in (*vocabulary.INPUT_CELLS, *vocabulary.OUTPUT_CELLS)
    )


def describe_all_tensors(cells: Cells) -> bool:
    """Return whether the cells describe every tensor of a launch."""
    shapes = (
        text for name, text in cells if name in (vocabulary.INPUT_SHAPES, vocabulary.OUTPUT_SHAPES)
    )
    is_whole = not any(vocabulary.is_absent_shape(text.strip('" ')) for text in shapes)
    return bool(cells) and is_whole and have_dtypes(cells)


def have_dtypes(cells: Cells) -> bool:
    """Return whether the cells have a dtype for every shape."""
    recorded = dict(cells)
    pairs = (
        (vocabulary.INPUT_SHAPES, vocabulary.INPUT_DTYPES),
        (vocabulary.OUTPUT_SHAPES, vocabulary.OUTPUT_DTYPES),
    )
    return not any(
        not vocabulary.is_absent_shape(shape) and vocabulary.is_absent_dtype(dtype)
        for shapes, dtypes in pairs
        for shape, dtype in zip_longest(
            split_cell(recorded.get(shapes, "")), split_cell(recorded.get(dtypes, "")), fillvalue=""
        )
    )


def identity_of(requested: Case, cells: Mapping[str, str]) -> Identity:
    """Compare the tensors of a case with the cells of a recorded launch."""
    try:
        recorded = case_from_cells(requested.kernel_type, cells)
    except BadInput as error:
        return Identity(unverified=(f"cannot read the recorded launch: {error}",))
    inputs = [requested.inputs, recorded.inputs]
    if any(_plain_name(slot.dtype).startswith(_QUANTISED) for slot in requested.inputs or ()):
        inputs = list(map(_unpacked, inputs))
    sides = (_side("input", *inputs), _side("output", requested.outputs, recorded.outputs))
    return Identity(
        tuple(text for side in sides for text in side.differences),
        tuple(text for side in sides for text in side.unverified),
    )


def _unpacked(slots: Slots | None) -> Slots | None:
    return slots and tuple(
        replace(slot, dtype="INT64") if _plain_name(slot.dtype) in _PACKED else slot
        for slot in slots
    )


def _side(name: str, requested: Slots | None, recorded: Slots | None) -> Identity:
    if not requested:
        # N/A, or columns that the case's source did not have: this side requires nothing.
        return Identity()
    if not recorded:
        return Identity(unverified=(f"its {name}s are not recorded",))
    if name == "output":
        requested, recorded = (
            _returned(requested, len(recorded)),
            _returned(recorded, len(requested)),
        )
    differences = _differences(name, requested, recorded)
    if not differences:
        return Identity(unverified=tuple(_unverified(name, requested, recorded)))
    # Rows may omit absent inputs. Only a declaration knows which inputs those are: a bias and a
    # scale of one size look alike.
    present = _present(requested), _present(recorded)
    is_left_out = _is_compact(requested) or _is_compact(recorded)
    if not is_left_out or _differences(name, *present):
        return Identity(differences)
    return Identity(unverified=(f"it is not recorded which of its {name}s are absent",))


def _is_compact(slots: Sequence[Slot]) -> bool:
    present = len(_present(slots))
    return not any(slot.is_blank for slot in slots[:present])


def _unverified(name: str, requested: Sequence[Slot], recorded: Sequence[Slot]) -> Iterator[str]:
    """Yield what the case specifies of recorded tensors and the row does not record."""
    for number, (expected, got) in enumerate(zip(requested, recorded, strict=False), 1):
        if got.shape is None:
            continue
        for what, is_absent, pair in (
            ("dtype", vocabulary.is_absent_dtype, (got.dtype, expected.dtype)),
            ("format", vocabulary.is_absent_format, (got.format, expected.format)),
        ):
            if is_absent(pair[0]) and not is_absent(pair[1]):
                yield f"the {what} of {name} {number} is not recorded"


def _returned(slots: Slots, others: int) -> Slots:
    """Return the outputs without the trailing ones that were not requested: CANN makes such an
    output a tensor with no elements, which some rows show as an empty cell and others omit."""
    kept = list(slots)
    while len(kept) > others and kept[-1].shape is None:
        kept.pop()
    return tuple(kept)


def _present(slots: Sequence[Slot]) -> Sequence[Slot]:
    return [slot for slot in slots if not slot.is_blank]


def _differences(name: str, requested: Sequence[Slot], recorded: Sequence[Slot]) -> tuple[str, ...]:
    pairs = zip_longest(requested, recorded, fillvalue=_NOTHING)
    return tuple(
        f"{name} {number}: expected {_text(expected)}, got {_text(got)}"
        for number, (expected, got) in enumerate(pairs, 1)
        if not _is_same_dtype(expected, got)
        or not _is_same_format(expected, got)
        or not _is_same_shape(expected, got)
    )


def _is_same_dtype(requested: Slot, recorded: Slot) -> bool:
    """Return whether dtypes agree; a recorded tensor without a dtype is no difference."""
    lacks, is_absent = map(vocabulary.is_absent_dtype, (requested.dtype, recorded.dtype))
    if lacks or is_absent:
        return lacks == is_absent or (is_absent and recorded.shape is not None)
    return _plain_name(requested.dtype) == _plain_name(recorded.dtype)


def _plain_name(dtype: str) -> str:
    """Return a dtype without `DT_`, which some releases write before every dtype and others
    before BF16 only."""
    return dtype.strip().upper().removeprefix("DT_")


def _is_same_format(requested: Slot, recorded: Slot) -> bool:
    """Return whether formats agree. All formats with torch's memory layout are equal; a format
    that a tree omits, or of an absent tensor, is no difference."""
    formats = (requested.format, recorded.format)
    if any(map(vocabulary.is_absent_format, formats)):
        return True
    if vocabulary.is_plain_format(requested.format):
        return vocabulary.is_plain_format(recorded.format)
    return requested.format.upper() == recorded.format.upper()


def _is_same_shape(requested: Slot, recorded: Slot) -> bool:
    if requested.shape == recorded.shape:
        return True
    if requested.shape is None or recorded.shape is None:
        # msprof writes an empty cell for a tensor without dimensions, as for one with no elements;
        # if aclnn makes a tensor from a number on the host, it has one element.
        shape = requested.shape if recorded.shape is None else recorded.shape
        absent = (vocabulary.is_absent_dtype(slot.dtype) for slot in (requested, recorded))
        if shape is None or any(absent):
            return False
        return 0 in shape or (set(shape) <= {1} and len(shape) <= 1)
    if requested.format.upper() == vocabulary.FRACTAL_NZ and (
        _is_in_memory_layout(requested) or _is_in_memory_layout(recorded)
    ):
        return _are_same_blocks(requested, recorded)
    return False


def _is_in_memory_layout(slot: Slot) -> bool:
    """Return whether a shape is written in its memory layout. Two shapes in torch's layout are
    compared exactly: 4,8 and 8,4 are both stored in one block."""
    return logical_shape(slot) != slot.shape


def _are_same_blocks(requested: Slot, recorded: Slot) -> bool:
    """Compare shapes by the blocks of the dtype, and by the written blocks: 2,1,16,16 of INT8,
    whose blocks are 16 by 32, is not a layout of 4,8."""
    written = {
        (slot.shape or ())[-2:] for slot in (requested, recorded) if _is_in_memory_layout(slot)
    }
    known = requested.known_dtype
    width = _BLOCK_BITS // known.item_bits if known else _BLOCK_ROWS
    sides = {(_BLOCK_ROWS, width), *written}
    return len(written) == 1 and all(
        _in_blocks(requested, block) == _in_blocks(recorded, block) for block in sides
    )


def _in_blocks(slot: Slot, block: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that whole blocks have, for a shape in its memory layout and for one in
    torch's layout, as of grouped weights."""
    *outer, rows, columns = (1, 1, *logical_shape(slot))
    return tuple(n for n in outer if n != 1) + (_padded(rows, block[0]), _padded(columns, block[1]))


def _padded(size: int, block: int) -> int:
    return -(-size // block) * block if block else 0


def _text(slot: Slot) -> str:
    if slot.is_blank:
        return "nothing"
    shape = "()" if slot.shape is None else shape_text(slot.shape)
    return " ".join(filter(None, (shape, slot.dtype, slot.format)))


# Substitution: what ran in place of the call that a case requests: another kernel, or the kernel on
# other tensors, in another state, on another core.
#
# Its launches are a measurement too if it is known what they measured: they are filed under the
# kernel and the tensors that were recorded. For a call of K = 1 that CANN turns into Mul, or a Sort
# of BF16 whose kernel receives FLOAT, the results are measurements of Mul and of Sort in FLOAT.


class DeviceRow(Protocol):
    """A row of op_summary, as far as attribution reads it."""

    @property
    def op_type(self) -> str: ...

    @property
    def duration_us(self) -> float: ...

    @property
    def cells(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Expectation:
    """The launches that a session issued for a case.

    `launches` is the number of all launches (warm-ups, pilot, repeats, in this order), of which the
    last `repeats` count. `family` has the kernel types among which the runtime chooses, `op_state`
    the one that the case names, if any, and `core` the one it names: AI_CPU, AI_CORE or empty.
    `case` is None if records do not show what a launch was given: records that a session wrote
    itself only repeat its request. `before` are the launches before each launch of the case, in
    order, as the kernel types that each may have."""

    ordinal: int
    kernel_type: str
    launches: int
    repeats: int
    family: frozenset[str] = frozenset()
    op_state: str = ""
    core: str = ""
    case: Case | None = None
    before: tuple[frozenset[str], ...] = ()


@dataclass(frozen=True, slots=True)
class Substitution:
    """What ran instead of the requested kernel.

    Its launches are measurements of `kernel_type` on the tensors of `cells` (the case's own if
    empty), if those are known (`is_filed`); for another operator only if all its tensors were
    recorded."""

    kernel_type: str
    is_filed: bool
    reason: str
    cells: Cells = ()


def substitute_types(
    expected: Expectation, by_type: Mapping[str, Sequence[DeviceRow]]
) -> tuple[str, ...]:
    """Return the other types that were recorded exactly as often as launches were issued; those
    of the family only, if there are any."""
    as_often = [name for name, rows in by_type.items() if len(rows) == expected.launches]
    family = [name for name in as_often if name in expected.family]
    return tuple(sorted(family or as_often))


def substitution_of(
    expected: Expectation, requested: str, instead: Sequence[str], counted: Sequence[DeviceRow]
) -> tuple[Substitution | None, Identity | None]:
    """Return what ran in place of the case, in all its repeats, and how well the launches are
    proved; the substitution is None if the case itself ran."""
    identity, cells = _identity(expected, counted)
    differs = identity.differences if identity else ()
    states = {state_of(row) for row in counted}
    recorded_cores = (row.cells.get(vocabulary.ACCELERATOR_CORE, "") for row in counted)
    cores = set(map(vocabulary.core_class, recorded_cores))
    reasons = (
        f"{' and '.join(instead)} ran instead of {requested}" if instead else "",
        _difference(vocabulary.OP_STATE, states, "" if instead else expected.op_state),
        _difference(vocabulary.ACCELERATOR_CORE, cores, "" if instead else expected.core),
        *differs,
    )
    reason = "; ".join(filter(None, reasons))
    if not reason:
        return None, identity
    ran = instead[0] if instead else requested
    if instead and ran not in expected.family:
        # The tensors of the case do not apply to another operator: all must have been recorded.
        recorded = {identifying_cells(row.cells) for row in counted}
        is_one_call = is_kernel_type(ran) and expected.case is not None and len(recorded) == 1
        cells = recorded.pop() if is_one_call else ()
        cells = cells if describe_all_tensors(cells) else ()
        is_known = bool(cells)
    else:
        is_known = bool(cells) or not differs
    is_one = len(instead) <= 1 and len(cores - {""}) <= 1 and len(states) == 1
    is_filed = is_known and is_one
    more = ", which is not measured for it" if instead and not is_filed else ""
    return Substitution(ran, is_filed, reason + more, cells), identity


def _identity(expected: Expectation, counted: Sequence[DeviceRow]) -> tuple[Identity | None, Cells]:
    """Return how the tensors of all counted launches compare with the case's, and the recorded
    tensors if they differ and are equal in all launches."""
    if expected.case is None:
        return None, ()
    recorded = Comparison(expected.case)
    found = list(dict.fromkeys(recorded.of(row.cells) for row in counted))
    if not any(identity.differences for identity in found):
        return next((identity for identity in found if identity.unverified), found[0]), ()
    if len(found) > 1:
        return Identity(differences=("its launches differ from each other",)), ()
    cells = {identifying_cells(row.cells) for row in counted}
    recorded_cells = cells.pop() if len(cells) == 1 else ()
    return found[0], recorded_cells if have_dtypes(recorded_cells) else ()


def _difference(what: str, got: set[str], requested: str) -> str:
    """Return the difference as text. Launches of two kinds have no common mean, whatever the
    case specifies."""
    recorded = sorted(got - {""})
    others = " and ".join(name for name in recorded if name != requested)
    if requested and others:
        return f"{what}: expected {requested}, got {others}"
    return f"{what}: got {others} in different launches" if len(recorded) > 1 else ""


def type_of(row: DeviceRow) -> str:
    return normal_type(row.op_type)


def normal_type(kernel_type: str) -> str:
    """Return the type as cases spell it; a text that is no type (`N/A`) is unchanged."""
    try:
        return normal_kernel_type(kernel_type)
    except BadInput:
        return kernel_type


def state_of(row: DeviceRow) -> str:
    state = row.cells.get(vocabulary.OP_STATE, "").strip().lower()
    return "" if state == vocabulary.NOT_KNOWN.lower() else state
