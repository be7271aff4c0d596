"""Finds the slots of a row in a recorded call, independently of the golden file."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

from collector.engine.calls import Recorded, RecordedTensor, parse_tensor
from collector.model.case import Case, Slot, logical_shape
from collector.model.vocabulary import is_plain_format
from tests.npu.passed_otherwise import How, Way


def missing(case: Case, call: Recorded, ways: Mapping[str, Way]) -> tuple[list[str], set[str]]:
    """Return the slots of the row that are not in the call, and which of the ways were needed.

    Slots are `i1`, `o1` ... Each tensor is one slot at most. A slot is a tensor if dtype and kind
    of format are equal, and its shape is that of the view, or that in memory, or the view's in
    another order: a transposed weight has its dimensions swapped and matching strides. A kernel
    that Python registered returns its outputs, so that the call does not contain them.
    """
    left, absent, needed = list(call.tensors), [], set()
    for name, slot in _slots(case, with_outputs=call.kind != "CUSTOM"):
        tensor = _find(slot, left)
        if tensor is not None:
            left.remove(tensor)
        elif name in ways and _is_passed(slot, call, ways[name]):
            needed.add(name)
        else:
            absent.append(f"{name} {slot.shape} {slot.dtype} {slot.format}")
    return absent, needed


def _slots(case: Case, *, with_outputs: bool) -> Iterator[tuple[str, Slot]]:
    """Return those with a shape."""
    sides = [("i", case.inputs), ("o", case.outputs if with_outputs else ())]
    for side, slots in sides:
        for number, slot in enumerate(slots or (), 1):
            if slot.shape is not None:
                yield f"{side}{number}", slot


def _find(slot: Slot, tensors: Sequence[RecordedTensor]) -> RecordedTensor | None:
    alike = [tensor for tensor in tensors if _is_of_kind(slot, tensor)]
    for likeness in (_is_view, _is_memory, _is_permuted):
        for tensor in alike:
            if likeness(slot, tensor):
                return tensor
    return None


def _is_of_kind(slot: Slot, tensor: RecordedTensor) -> bool:
    known = slot.known_dtype
    is_plain = is_plain_format(slot.format) and is_plain_format(tensor.format)
    return tensor.dtype == (known.spelling if known else slot.dtype) and (
        is_plain or slot.format == tensor.format
    )


def _is_view(slot: Slot, tensor: RecordedTensor) -> bool:
    return tensor.shape == slot.shape


def _is_memory(slot: Slot, tensor: RecordedTensor) -> bool:
    """Return the shape in memory, as a profile shows a private format, or that of a flat view's
    storage."""
    return tensor.storage == slot.shape or tensor.shape == logical_shape(slot)


def _is_permuted(slot: Slot, tensor: RecordedTensor) -> bool:
    shape = logical_shape(slot)
    if len(shape) != len(tensor.shape) or tensor.is_dense:
        return False
    return any(order == shape for order in permutations(tensor.shape))


def _is_passed(slot: Slot, call: Recorded, way: Way) -> bool:
    shape = slot.shape or ()
    match way.how:
        case How.INTS:
            return any(_ints(argument) == shape[0] for argument in call.arguments)
        case How.NUMBER:
            return slot.numel == 1 and any(_is_number(argument) for argument in call.arguments)
        case How.UPDATED:
            return _find(slot, call.tensors) is not None
        case How.DTYPE:
            return any(tensor.shape == shape for tensor in call.tensors)
        case How.ELSEWHERE:
            return True


def _ints(argument: str) -> int | None:
    """Return the length of an array of the host."""
    if not argument.startswith("ints("):
        return None
    listed = argument[len("ints(") : -1].split(",")
    more = int(listed.pop()) if listed[-1].startswith("+") else 0
    return len(listed) + more


def _is_number(argument: str) -> bool:
    return parse_tensor(argument) is None and not argument.startswith(('"', "{", "ints("))
