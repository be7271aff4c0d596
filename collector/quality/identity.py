"""Whether a recorded launch is the call that a case asks for: its tensors, slot by slot.

One profiler writes the profile that a case comes from and the record of its replay, so both spell
a kernel alike. What may differ and is the same all the same is a rule here, each with its source;
whatever else differs is another call. What the profiler did not tell, or the case does not say,
proves nothing in either direction.

    asked     Sort     16,64 DT_BF16 ND
    recorded  Sort     16,64 FLOAT   ND     input 1: FLOAT came, DT_BF16 was asked for
    recorded  Sort     N/A                  its inputs are not told (unverified)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from collector.case import Case, Slot, case_from_cells, logical_shape, shape_text
from collector.errors import BadInput
from collector.vocabulary import (
    FRACTAL_NZ,
    INPUT_CELLS,
    INPUT_SHAPES,
    OUTPUT_CELLS,
    OUTPUT_SHAPES,
    is_absent_dtype,
    is_absent_format,
    is_absent_shape,
    is_plain_format,
)

_NOTHING = Slot(None, "", "")
# aclnnQuantMatmul and GroupedMatmul take scales that were packed into 64 bits as INT64 from torch,
# and hand them to the kernel as UINT64: the same bytes (op-plugin, QuantBatchMatmulV3 of CANN's
# ops-nn; every profile of a static W8A8 layer shows UINT64).
_PACKED = frozenset({"INT64", "UINT64"})
# Elements of a block's side: CANN pads the last two dimensions of FRACTAL_NZ to whole blocks, 16
# by 32 bytes.
_BLOCK_ROWS, _BLOCK_BITS = 16, 256


Cells = tuple[tuple[str, str], ...]  # what a row says of its tensors, by column


@dataclass(frozen=True, slots=True)
class Identity:
    """How the record of a launch compares with a case. `differences` make it another call;
    `untold` is what neither proves nor disproves that it is this one."""

    differences: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()

    @property
    def is_proved(self) -> bool:
        return not self.differences and not self.untold


class Comparison:
    """Compares launches with one case: most launches of a window say the same, so that each
    wording is read once."""

    def __init__(self, asked: Case):
        self._asked = asked
        self._known: dict[Cells, Identity] = {}

    def of(self, cells: Mapping[str, str]) -> Identity:
        told = tensor_cells(cells)
        if told not in self._known:
            self._known[told] = identity_of(self._asked, cells)
        return self._known[told]


def tensor_cells(cells: Mapping[str, str]) -> Cells:
    """What a row says of inputs and outputs."""
    return tuple((name, cells.get(name, "")) for name in (*INPUT_CELLS, *OUTPUT_CELLS))


def are_told(cells: Cells) -> bool:
    """Whether they tell every tensor of a launch."""
    shapes = (text for name, text in cells if name in (INPUT_SHAPES, OUTPUT_SHAPES))
    return bool(cells) and not any(is_absent_shape(text.strip('" ')) for text in shapes)


def identity_of(asked: Case, cells: Mapping[str, str]) -> Identity:
    """Compare the tensors of a case with the cells of a recorded launch."""
    try:
        recorded = case_from_cells(asked.kernel_type, cells)
    except BadInput as error:
        return Identity(untold=(f"what was recorded cannot be read: {error}",))
    sides = (
        _side("input", asked.inputs, recorded.inputs),
        _side("output", asked.outputs, recorded.outputs),
    )
    return Identity(
        tuple(text for side in sides for text in side.differences),
        tuple(text for side in sides for text in side.untold),
    )


def _side(name: str, asked: Sequence[Slot] | None, recorded: Sequence[Slot] | None) -> Identity:
    if not asked:
        # N/A, or columns that the case's source did not have: nothing is asked of this side.
        return Identity()
    if not recorded:
        return Identity(untold=(f"its {name}s are not told",))
    if name == "output":
        asked, recorded = _returned(asked, len(recorded)), _returned(recorded, len(asked))
    differences = _differences(name, asked, recorded)
    # Where a graph made the kernel its row leaves absent inputs out, elsewhere they keep their
    # place: tables of static W8A8 layers hold rows of QuantBatchMatmulV3 of either kind.
    if differences and not _differences(name, _present(asked), _present(recorded)):
        return Identity()
    return Identity(differences)


def _returned(slots: Sequence[Slot], others: int) -> Sequence[Slot]:
    """The outputs without those at the end that were not asked for: CANN gives such a one a tensor
    of no elements, which some rows show as an empty cell and others leave out."""
    kept = list(slots)
    while len(kept) > others and kept[-1].shape is None:
        kept.pop()
    return kept


def _present(slots: Sequence[Slot]) -> Sequence[Slot]:
    return [slot for slot in slots if not slot.is_blank]


def _differences(name: str, asked: Sequence[Slot], recorded: Sequence[Slot]) -> tuple[str, ...]:
    pairs = zip_longest(asked, recorded, fillvalue=_NOTHING)
    return tuple(
        f"{name} {number}: {_text(came)} came, {_text(wanted)} was asked for"
        for number, (wanted, came) in enumerate(pairs, 1)
        if _is_other(wanted, came)
    )


def _is_other(asked: Slot, recorded: Slot) -> bool:
    return not (
        _is_same_dtype(asked.dtype, recorded.dtype)
        and _is_same_format(asked, recorded)
        and _is_same_shape(asked, recorded)
    )


def _is_same_dtype(asked: str, recorded: str) -> bool:
    if is_absent_dtype(asked) or is_absent_dtype(recorded):
        return is_absent_dtype(asked) == is_absent_dtype(recorded)
    one, other = _plain_name(asked), _plain_name(recorded)
    return one == other or {one, other} == _PACKED


def _plain_name(dtype: str) -> str:
    """Without `DT_`, which some releases write before every dtype and others before BF16 alone."""
    return dtype.strip().upper().removeprefix("DT_")


def _is_same_format(asked: Slot, recorded: Slot) -> bool:
    """All formats in which a tensor lies as torch has it are one; what a tree leaves out, or an
    absent tensor has, is none."""
    if is_absent_format(asked.format) or is_absent_format(recorded.format):
        return True
    if is_plain_format(asked.format):
        return is_plain_format(recorded.format)
    return asked.format.upper() == recorded.format.upper()


def _is_same_shape(asked: Slot, recorded: Slot) -> bool:
    if asked.shape == recorded.shape:
        return True
    if asked.shape is None or recorded.shape is None:
        # msprof writes an empty cell for a tensor without dimensions, as for one of no elements;
        # where aclnn makes a tensor of a number of the host it has one element.
        shape = asked.shape if recorded.shape is None else recorded.shape
        return shape is not None and _is_written_empty(shape, asked, recorded)
    if asked.format.upper() == FRACTAL_NZ:
        return _in_blocks(asked) == _in_blocks(recorded)
    return False


def _is_written_empty(shape: tuple[int, ...], asked: Slot, recorded: Slot) -> bool:
    is_a_tensor = not is_absent_dtype(asked.dtype) and not is_absent_dtype(recorded.dtype)
    return is_a_tensor and (0 in shape or set(shape) <= {1} and len(shape) <= 1)


def _in_blocks(slot: Slot) -> tuple[int, ...]:
    """The shape that whole blocks have: of one that is written as it lies in memory, and of one
    that is written as torch has it, as those of grouped weights."""
    *outer, rows, columns = (1, 1, *logical_shape(slot))
    width = _BLOCK_BITS // slot.known_dtype.item_bits if slot.known_dtype else _BLOCK_ROWS
    return tuple(n for n in outer if n != 1) + (_padded(rows, _BLOCK_ROWS), _padded(columns, width))


def _padded(size: int, block: int) -> int:
    return -(-size // block) * block


def _text(slot: Slot) -> str:
    if slot.is_blank:
        return "nothing"
    shape = "()" if slot.shape is None else shape_text(slot.shape)
    return " ".join(filter(None, (shape, slot.dtype, slot.format)))
