"""Looks at what an operator gave: a launch that computes something else measures nothing."""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import torch

from collector.case import Case, Slot, shape_text
from collector.errors import CaseRejected
from collector.vocabulary import is_plain_format

logger = logging.getLogger(__name__)

_SAMPLE = 1 << 16


def check_outputs(outputs: Any, case: Case, dtype: Callable[[str], Any]) -> None:
    """Raises CaseRejected where shapes or dtypes are not those the case names.

    A slot without a shape may be a scalar or absent, and a shape in a private format is laid out
    otherwise than torch says: neither is compared. `dtype` gives torch's dtype for a spelling.
    """
    slots = case.outputs or ()
    tensors = list(_leaves(outputs))
    if len(tensors) != len(slots):
        tensors = [tensor for tensor in tensors if tensor is not None]
        slots = tuple(slot for slot in slots if slot.shape is not None)
    for position, (tensor, slot) in enumerate(zip_longest(tensors, slots)):
        if slot is None:
            return
        if slot.shape is not None and not _agrees(tensor, slot, dtype):
            got = "none" if tensor is None else f"{shape_text(tuple(tensor.shape))} {tensor.dtype}"
            raise CaseRejected(
                f"output {position}: expected {shape_text(slot.shape)} {slot.dtype}, got {got}"
            )


def find_doubt(
    outputs: Any, infinite: frozenset[int] = frozenset(), written: int | None = None
) -> str:
    """What is odd about the numbers of the outputs; empty where nothing is.

    Of large outputs an evenly spaced sample is checked. An output whose dtype or layout a device
    cannot check is not suspect: it was measured all the same. In the outputs at `infinite`
    infinities are right. Where only the first rows were `written` only these are checked.
    """
    for position, tensor in enumerate(_leaves(outputs)):
        if tensor is None or not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        rows = tensor if written is None else tensor[:written]
        try:
            is_right = _is_finite(rows, or_infinite=position in infinite)
        except RuntimeError as error:  # NotImplementedError is one
            logger.warning("output %d was not checked: %s", position, error)
            continue
        if not is_right:
            return f"output {position} has non-finite values"
    return ""


def _is_finite(tensor: Any, *, or_infinite: bool) -> bool:
    sample = _sample(tensor)
    wrong = torch.isnan(sample) if or_infinite else ~torch.isfinite(sample)
    return not bool(wrong.any())


def _sample(tensor: Any) -> Any:
    """Evenly spaced elements, in one row."""
    flat = tensor.reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)]


def find_difference(outputs: Any, expected: Any) -> str:
    """Where outputs are not what the reference gives, in one line; empty where they agree.

    The largest difference of an evenly spaced sample counts, against the largest number in it; a
    quantised output may be one step off. What cannot be compared is passed over.
    """
    for position, (one, other) in enumerate(zip(_leaves(outputs), _leaves(expected), strict=False)):
        if one is None or other is None or one.shape != other.shape or not one.numel():
            continue
        a, b = _sample(one).double().cpu(), _sample(other).double().cpu()
        both = torch.isfinite(a) & torch.isfinite(b)
        if not bool(both.any()):
            continue
        largest = float((a[both] - b[both]).abs().max())
        if largest > _allowed(one.dtype, float(b[both].abs().max())):
            return f"output {position} is up to {largest:.3g} away from the reference"
    return ""


def _allowed(dtype: Any, largest: float) -> float:
    """How far rounding may lead from numbers up to `largest`; one step of a quantised output."""
    if not dtype.is_floating_point:
        return 1.0 if dtype is torch.int8 else 0.0
    return 32 * float(torch.finfo(dtype).eps) * max(1.0, largest)


def _agrees(tensor: Any, slot: Slot, dtype: Callable[[str], Any]) -> bool:
    if tensor is None:
        return False
    known = slot.known_dtype
    if known is not None and not known.torch_name:
        return True  # packed numbers, which torch holds in a form of its own
    if known is not None and tensor.dtype is not dtype(slot.dtype):
        return False
    if not is_plain_format(slot.format):
        return True
    return tuple(tensor.shape) == slot.shape or tensor.numel() == slot.numel == 1


def _leaves(outputs: Any) -> Iterator[Any]:
    """Tensors in order, with None where an optional output is absent."""
    if outputs is None or isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, Sequence):
        for output in outputs:
            yield from _leaves(output)
