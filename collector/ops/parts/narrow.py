"""Numbers of Ascend 950 in eight bits: FLOAT8, and the scales of MX quantisation.

MX numbers have one FLOAT8_E8M0 scale, a power of two, for each group of 32 neighbours. The scales
of two groups are next to each other: of (.., K) numbers they are (.., K / 64, 2), rounded up.
torch_npu takes these scales as bytes, with their dtype by its number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from collector.model.case import Case, Shape, Slot
from collector.ops import rules
from collector.ops.slots import output_slot, spelling
from collector.ops.spec import TensorMaker

GROUP = 32
SCALES = "FLOAT8_E8M0"
E8M0 = 293  # torch_npu.float8_e8m0fnu
PAIR = 2 * GROUP
_BIAS = 127  # of an E8M0 exponent


@dataclass(frozen=True, slots=True)
class _Kind:
    """`emax` is the exponent of the largest number, `most` that number; `low` and `high` are the
    bits of 1/4 and of 2."""

    emax: int
    most: float
    low: int
    high: int


KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "FLOAT8_E4M3FN": _Kind(8, 448.0, 0x28, 0x40),
        "FLOAT8_E5M2": _Kind(15, 57344.0, 0x34, 0x40),
    }
)
DTYPES = tuple(KINDS)


def is_narrow(case: Case, position: int = 0) -> bool:
    """Return whether an input has FLOAT8 numbers."""
    inputs = case.inputs or ()
    return position < len(inputs) and spelling(inputs[position]) in KINDS


def pairs(count: int) -> int:
    """Return the pairs of groups of this many neighbours."""
    return -(-count // PAIR)


def scales_shape(shape: Shape) -> Shape:
    """Return the shape of the scales of MX numbers (.., K)."""
    return (*shape[:-1], pairs(shape[-1]), 2)


def output_type(case: Case, make: TensorMaker) -> Any:
    """Return the dtype of the first output, as the functions that quantise take it."""
    return make.dtype(rules.accepted(output_slot(case)).dtype)


def numbers(shape: Shape, dtype: str, make: TensorMaker) -> Any:
    """Return numbers from 1/4 to 2 of both signs, made as bytes: few devices convert FLOAT8."""
    kind = KINDS[dtype]
    bits = make.integers(shape, "INT8", kind.low, kind.high)
    bits.add_(make.integers(shape, "INT8", 0, 2).mul_(-128))
    return bits.view(make.dtype(dtype))


def numbers_like(slot: Slot, make: TensorMaker) -> Any:
    return numbers(slot.shape or (), spelling(slot), make)


def scales_like(slot: Slot, make: TensorMaker) -> Any:
    """Return the bytes of scales from 1/8 to 1."""
    return make.integers(slot.shape or (), "UINT8", _BIAS - 3, _BIAS + 1)


def decoded(torch: Any, scales: Any) -> Any:
    """Return the FLOAT values of scales in bytes."""
    return torch.exp2(scales.float() - _BIAS)


def scaled(torch: Any, tensor: Any, scales: Any) -> Any:
    """Return the FLOAT values (.., K) of MX numbers with their scales (.., K / 64, 2) in bytes."""
    each = decoded(torch, scales).flatten(-2).repeat_interleave(GROUP, -1)
    return tensor.float().mul_(each[..., : tensor.shape[-1]])


def quantised(torch: Any, wide: Any, dtype: Any) -> tuple[Any, Any]:
    """Return MX numbers of FLOAT (.., K), and their scales (.., K / 64, 2) in bytes.

    A scale is the power of two that brings the largest number of its group to the largest exponent
    (scale_alg 0 of CANN's operators); numbers beyond the largest are clipped."""
    kind = KINDS["FLOAT8_E4M3FN" if dtype is torch.float8_e4m3fn else "FLOAT8_E5M2"]
    k = wide.shape[-1]
    padded = torch.nn.functional.pad(wide, (0, pairs(k) * PAIR - k))
    groups = padded.unflatten(-1, (pairs(k) * 2, GROUP))
    largest = groups.abs().amax(-1)
    _, exponent = torch.frexp(largest)
    bits = (exponent.int() - 1 - kind.emax + _BIAS).clamp_(0, 254).masked_fill_(largest == 0, 0)
    steps = torch.exp2((_BIAS - bits).float()).unsqueeze(-1)
    values = (groups * steps).clamp_(-kind.most, kind.most).flatten(-2)[..., :k].to(dtype)
    scales = bits.to(torch.uint8).unflatten(-1, (pairs(k), 2))
    return values.contiguous(), scales
