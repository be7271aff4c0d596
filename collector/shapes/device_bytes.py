"""What a case takes on a device while it is replayed."""

from collector.case import Case, Slot
from collector.collective_case import is_collective
from collector.errors import BadInput
from collector.expert_call import largest_buffsize_mb
from collector.gang_case import is_of_gangs, routed_call
from collector.shapes.blocks import in_blocks
from collector.vocabulary import FRACTAL_NZ, dtype_of

_BUFFERS = 2
_DIMS_OF_BLOCKS = 4  # at least: a row that tells fewer tells a plain matrix


def case_bytes(case: Case) -> int:
    """All of its tensors at once, in whole blocks where they lie in FRACTAL_NZ; such a one twice,
    as it is made of a plain one; and the buffers of experts over ranks. What other kernels take
    beside their tensors nobody knows: a reserve is for that."""
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    return sum(_slot_bytes(slot) for slot in slots) + _buffers_bytes(case)


def _buffers_bytes(case: Case) -> int:
    """Ranks of experts write into each other's buffers: HCCL keeps one of HCCL_BUFFSIZE for what
    comes and one for what goes."""
    if is_collective(case.kernel_type) or not is_of_gangs(case):
        return 0
    try:
        return _BUFFERS * (largest_buffsize_mb([routed_call(case)]) << 20)
    except BadInput:  # a row that does not say its ranks, which nobody replays
        return 0


def _slot_bytes(slot: Slot) -> int:
    if slot.format != FRACTAL_NZ or not slot.shape or dtype_of(slot.dtype) is None:
        return slot.size_bytes
    is_plain = 2 <= len(slot.shape) < _DIMS_OF_BLOCKS
    return 2 * (in_blocks(slot.dtype, slot.shape) if is_plain else slot).size_bytes
