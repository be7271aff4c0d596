"""Rules about dtypes that declarations share, and torch's type promotion without torch.

A row is refused if its output has another dtype than the output of the reference: the measurement
would be of another operation. An output of N/A is accepted.
"""

from collector.model.case import Case, Slot
from collector.model.vocabulary import Dtype, dtype_of
from collector.ops.slots import output_slot
from collector.ops.spec import Constraint


def spelling(slot: Slot | None) -> str:
    """Return `INT8` for INT8 and DT_INT8; empty for no slot and for an unknown dtype."""
    return slot.known_dtype.spelling if slot and slot.known_dtype else ""


def one_dtype(inputs: tuple[int, ...], outputs: tuple[int, ...] = (0,)) -> Constraint:
    """Require one dtype for the slots at these positions."""
    return Constraint(
        f"expected one dtype for {_names(inputs, outputs)}",
        lambda case: len(_dtypes(case, inputs, outputs)) <= 1,
    )


def floating(inputs: tuple[int, ...]) -> Constraint:
    """Require floating-point numbers in the inputs at these positions."""
    return Constraint(
        f"expected floating-point numbers for {_names(inputs, ())}",
        lambda case: all(dtype.is_floating for dtype in _dtypes(case, inputs, ())),
    )


def not_bool(inputs: tuple[int, ...], outputs: tuple[int, ...] = ()) -> Constraint:
    """Refuse BOOL, for which torch does not define this arithmetic."""
    return Constraint(
        f"BOOL is not replayed for {_names(inputs, outputs)}",
        lambda case: all(dtype.spelling != "BOOL" for dtype in _dtypes(case, inputs, outputs)),
    )


def outputs_are(spellings: tuple[str, ...], outputs: tuple[int, ...]) -> Constraint:
    """Require one of these dtypes for the outputs at these positions."""
    return Constraint(
        f"expected {' or '.join(spellings)} for {_names((), outputs)}",
        lambda case: all(dtype.spelling in spellings for dtype in _dtypes(case, (), outputs)),
    )


def inputs_are(spellings: tuple[str, ...], inputs: tuple[int, ...]) -> Constraint:
    """Require one of these dtypes for the inputs at these positions."""
    return Constraint(
        f"expected {' or '.join(spellings)} for {_names(inputs, ())}",
        lambda case: all(dtype.spelling in spellings for dtype in _dtypes(case, inputs, ())),
    )


def promoted(slots: tuple[Slot, ...]) -> Dtype | None:
    """Return the dtype of torch's result for these tensors; None if a dtype is unknown.

    A scalar counts only if its kind of number (bool, integer, float) is higher than the tensors'
    kind."""
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
    # Only these pairs have the same size: BF16 and FLOAT16, INT8 and UINT8; neither contains the
    # other.
    return dtype_of("FLOAT" if a.is_floating else "INT16") or a


def _kind(dtype: Dtype) -> int:
    """Return 0 for truth values, 1 for integers, 2 for floating-point numbers."""
    return 2 if dtype.is_floating else 0 if dtype.spelling == "BOOL" else 1


def _dtypes(case: Case, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> set[Dtype]:
    """Return the dtypes of the slots that the row has at these positions."""
    slots = [slot for i, slot in enumerate(case.inputs or ()) if i in inputs]
    named = [output_slot(case, i) for i in outputs]
    known = (slot.known_dtype for slot in (*slots, *named) if slot)
    return {dtype for dtype in known if dtype}


def _names(inputs: tuple[int, ...], outputs: tuple[int, ...]) -> str:
    """Return `inputs 1, 2 and output 1`: positions counted from 1."""
    sides = []
    for side, positions in (("input", inputs), ("output", outputs)):
        if positions:
            numbers = ", ".join(str(i + 1) for i in positions)
            sides.append(f"{side}{'s' if len(positions) > 1 else ''} {numbers}")
    return " and ".join(sides)
