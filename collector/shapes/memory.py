"""What the tensors of a case take on a device while it is replayed."""

from collector.case import Case, Slot
from collector.shapes.blocks import in_blocks
from collector.vocabulary import FRACTAL_NZ, dtype_of

_DIMS_OF_BLOCKS = 4  # at least: a row that tells fewer tells a plain matrix


def case_bytes(case: Case) -> int:
    """All of its tensors at once, in whole blocks where they lie in FRACTAL_NZ; such a one twice,
    as it is made of a plain one. What kernels take beside them nobody knows: a reserve is for that.
    """
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    return sum(_slot_bytes(slot) for slot in slots)


def _slot_bytes(slot: Slot) -> int:
    if slot.format != FRACTAL_NZ or not slot.shape or dtype_of(slot.dtype) is None:
        return slot.size_bytes
    is_plain = 2 <= len(slot.shape) < _DIMS_OF_BLOCKS
    return 2 * (in_blocks(slot.dtype, slot.shape) if is_plain else slot).size_bytes
