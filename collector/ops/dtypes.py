"""Rules about dtypes that declarations share, and torch's promotion without torch.

A row whose output has another dtype than the reference gives would be measured as something it
is not, so it is refused. An output of N/A refuses nothing.
"""

from collector.model.case import Case, Slot
from collector.model.vocabulary import Dtype, dtype_of
from collector.ops.slots import output_slot
from collector.ops.spec import Constraint


def spelling(slot: Slot | None) -> str:
    """`INT8` for INT8 and DT_INT8; empty for no slot, and for what is not known."""
    return slot.known_dtype.spelling if slot and slot.known_dtype else ""


def one_dtype(inputs: tuple[int, ...], outputs: tuple[int, ...] = (0,)) -> Constraint:
    """The slots at these positions share a dtype."""
    return Constraint(
        f"one dtype is wanted for {_names(inputs, outputs)}",
        lambda case: len(_dtypes(case, inputs, outputs)) <= 1,
    )


def floating(inputs: tuple[int, ...]) -> Constraint:
    """The inputs at these positions hold floating-point numbers."""
    return Constraint(
        f"floating-point numbers are wanted for {_names(inputs, ())}",
        lambda case: all(dtype.is_floating for dtype in _dtypes(case, inputs, ())),
    )


def not_bool(inputs: tuple[int, ...], outputs: tuple[int, ...] = ()) -> Constraint:
    """torch has no such arithmetic for truth values."""
    return Constraint(
        f"BOOL is not replayed for {_names(inputs, outputs)}",
        lambda case: all(dtype.spelling != "BOOL" for dtype in _dtypes(case, inputs, outputs)),
    )


def outputs_are(spellings: tuple[str, ...], outputs: tuple[int, ...]) -> Constraint:
    """The outputs at these positions have one of these dtypes."""
    return Constraint(
        f"{' or '.join(spellings)} is wanted for {_names((), outputs)}",
        lambda case: all(dtype.spelling in spellings for dtype in _dtypes(case, (), outputs)),
    )


def inputs_are(spellings: tuple[str, ...], inputs: tuple[int, ...]) -> Constraint:
    """The inputs at these positions have one of these dtypes."""
    return Constraint(
        f"{' or '.join(spellings)} is wanted for {_names(inputs, ())}",
        lambda case: all(dtype.spelling in spellings for dtype in _dtypes(case, inputs, ())),
    )


def promoted(slots: tuple[Slot, ...]) -> Dtype | None:
    """The dtype of what torch computes from these tensors: a scalar counts only where its kind
    of number is the higher one. None where a dtype is unknown."""
    result: dict[bool, Dtype] = {}
    for slot in slots:
        dtype, is_scalar = slot.known_dtype, not slot.shape
        if dtype is None:
            return None
        result[is_scalar] = _wider(result[is_scalar], dtype) if is_scalar in result else dtype
    tensors, scalars = result.get(False), result.get(True)
    if tensors is None or scalars is None:
        return tensors or scalars
    return _wider(tensors, scalars) if _kind(scalars) > _kind(tensors) else tensors


def _wider(a: Dtype, b: Dtype) -> Dtype:
    if a == b or _kind(a) != _kind(b):
        return max(a, b, key=_kind)
    if a.item_bits != b.item_bits:
        return max(a, b, key=lambda dtype: dtype.item_bits)
    # Only these share a size: BF16 and FLOAT16, INT8 and UINT8; neither holds the other.
    return dtype_of("FLOAT" if a.is_floating else "INT16") or a


def _kind(dtype: Dtype) -> int:
    """Truth values, integers, floating-point numbers."""
    return 2 if dtype.is_floating else 0 if dtype.spelling == "BOOL" else 1


def _dtypes(case: Case, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> set[Dtype]:
    """The dtypes of the slots that the row has at these positions."""
    slots = [slot for i, slot in enumerate(case.inputs or ()) if i in inputs]
    named = [output_slot(case, i) for i in outputs]
    known = (slot.known_dtype for slot in (*slots, *named) if slot)
    return {dtype for dtype in known if dtype}


def _names(inputs: tuple[int, ...], outputs: tuple[int, ...]) -> str:
    """`inputs 1, 2 and output 1`, counted as people do."""
    sides = []
    for side, positions in (("input", inputs), ("output", outputs)):
        if positions:
            numbers = ", ".join(str(i + 1) for i in positions)
            sides.append(f"{side}{'s' if len(positions) > 1 else ''} {numbers}")
    return " and ".join(sides)
