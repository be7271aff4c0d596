"""Numbers of Ascend 950 in eight or four bits: FLOAT8, HIFLOAT8, FLOAT4, and the scales of MX
quantisation.

MX numbers have one FLOAT8_E8M0 scale, a power of two, for each group of 32 neighbours. The scales
of two groups are next to each other: of (.., K) numbers they are (.., K / 64, 2), rounded up.
torch_npu takes these scales as bytes, with their dtype by its number. So it takes HIFLOAT8, and
FLOAT4, two of a row in a byte, the first in the low bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any

from collector.model.case import Case, Shape, Slot
from collector.ops import rules
from collector.ops.slots import given, output_shape, output_slot, spelling
from collector.ops.spec import Constraint, TensorMaker

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


@dataclass(frozen=True, slots=True)
class _Coded:
    """Numbers that torch has no arithmetic for: `levels` are the values without sign, in the order
    of their codes; `number` is torch_npu's of the dtype."""

    number: int
    emax: int
    levels: tuple[float, ...]

    @property
    def is_paired(self) -> bool:
        """Return whether two numbers share a byte."""
        return len(self.levels) < _SIGN


def _hifloat8(code: int) -> float:
    """Return the value of seven bits: a prefix tells the number of bits of the exponent, which has
    a sign and a leading one that is not stored; the rest is the mantissa."""
    if code == 0x6F:
        return inf
    if code < 8:  # below the least exponent
        return 2.0 ** (code - 23) if code else 0.0
    size, rest = next((size, rest) for least, size, rest in _PREFIXES if code >= least)
    exponent, mantissa = code >> rest & (1 << size) - 1, code & (1 << rest) - 1
    high = 1 << size >> 1
    power = (high | exponent & ~high) * (-1 if exponent & high else 1) if size else 0
    return float((1 + mantissa / (1 << rest)) * 2.0**power)


_SIGN = 1 << 7
# The least code with each number of bits of an exponent, and the bits of the mantissa.
_PREFIXES = ((0x60, 4, 1), (0x40, 3, 2), (0x20, 2, 3), (0x10, 1, 3), (0x08, 0, 3))


_FLOAT8: Mapping[str, _Kind] = MappingProxyType(
    {
        "FLOAT8_E4M3FN": _Kind(8, 448.0, 0x28, 0x40),
        "FLOAT8_E5M2": _Kind(15, 57344.0, 0x34, 0x40),
    }
)
_FLOAT4: Mapping[str, _Coded] = MappingProxyType(
    {
        "FLOAT4_E2M1": _Coded(296, 2, (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)),
        "FLOAT4_E1M2": _Coded(297, 0, (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75)),
    }
)
HIF8 = "HIFLOAT8"
_OF_BYTES = {**_FLOAT4, HIF8: _Coded(290, 15, tuple(map(_hifloat8, range(_SIGN))))}
_CODED = MappingProxyType({kind.number: kind for kind in _OF_BYTES.values()})
_FROM_HALF, _TO_FOUR = 0x08, 0x20  # the codes of HIFLOAT8 of these sizes
DTYPES = tuple(_FLOAT8)
E4M3, E2M1 = "FLOAT8_E4M3FN", "FLOAT4_E2M1"
PAIRED = tuple(_FLOAT4)
MX_DTYPES = (*DTYPES, *PAIRED)
BYTE_DTYPES = (*DTYPES, HIF8)


def is_narrow(case: Case, position: int = 0) -> bool:
    """Return whether an input has numbers of this module."""
    return spelling(given(case, position)) in (*MX_DTYPES, HIF8)


def is_paired(slot: Slot | None) -> bool:
    """Return whether two numbers of a slot share a byte."""
    return spelling(slot) in PAIRED


def group_pairs(count: int) -> int:
    """Return the pairs of groups of this many neighbours."""
    return -(-count // PAIR)


def dtype_number(slot: Slot | None) -> int | None:
    """Return torch_npu's number of a slot's dtype, if its tensors are bytes; None for FLOAT8."""
    coded = _OF_BYTES.get(spelling(slot))
    return coded.number if coded else None


def numbers_of(case: Case, names: Mapping[str, int]) -> dict[str, int]:
    """Return the arguments, by these names, that tell the dtypes of inputs whose tensors are
    bytes."""
    found = {name: dtype_number(given(case, position)) for name, position in names.items()}
    return {name: number for name, number in found.items() if number is not None}


def output_type(case: Case, make: TensorMaker) -> Any:
    """Return the dtype of the first output, as the functions that quantise take it."""
    slot = rules.accepted(output_slot(case))
    return dtype_number(slot) or make.dtype(slot.dtype)


def narrow_numbers(shape: Shape, dtype: str, make: TensorMaker) -> Any:
    """Return FLOAT8 from 1/4 to 2 of both signs, HIFLOAT8 from 1/2 to 4, or all FLOAT4, made as
    bytes: few devices convert to any."""
    if dtype in _FLOAT4:
        return make.integers((*shape[:-1], shape[-1] // 2), "UINT8", 0, 256)
    if dtype == HIF8:
        codes = make.integers(shape, "UINT8", _FROM_HALF, _TO_FOUR)
        return codes.add_(make.integers(shape, "UINT8", 0, 2).mul_(_SIGN))
    kind = _FLOAT8[dtype]
    bits = make.integers(shape, "INT8", kind.low, kind.high)
    bits.add_(make.integers(shape, "INT8", 0, 2).mul_(-128))
    return bits.view(make.dtype(dtype))


def numbers_like(slot: Slot, make: TensorMaker) -> Any:
    return narrow_numbers(slot.shape or (), spelling(slot), make)


def scales_like(slot: Slot, make: TensorMaker) -> Any:
    """Return the bytes of scales from 1/8 to 1."""
    return make.integers(slot.shape or (), "UINT8", _BIAS - 3, _BIAS + 1)


def decode_scales(torch: Any, scales: Any) -> Any:
    """Return the FLOAT values of scales in bytes."""
    return torch.exp2(scales.float() - _BIAS)


def values(torch: Any, tensor: Any, number: int | None = None) -> Any:
    """Return the FLOAT values (.., K) of numbers, of which `number` tells the dtype if they are
    bytes."""
    if number is None:
        return tensor.float()
    coded = _CODED[number]
    levels = tensor.new_tensor(coded.levels, dtype=torch.float32)
    if coded.is_paired:
        tensor = torch.stack((tensor & 15, tensor >> 4), -1).flatten(-2)
    return torch.cat((levels, -levels))[tensor.int()]


def scaled_numbers(torch: Any, tensor: Any, scales: Any, number: int | None = None) -> Any:
    """Return the FLOAT values (.., K) of MX numbers with their scales (.., K / 64, 2) in bytes."""
    each = decode_scales(torch, scales).flatten(-2).repeat_interleave(GROUP, -1)
    wide = values(torch, tensor, number)
    return wide * each[..., : wide.shape[-1]]


def quantised(
    torch: Any, wide: Any, dtype: Any, away: bool = False, dim: int = -1
) -> tuple[Any, Any]:
    """Return MX numbers of FLOAT (.., K), and their scales (.., K / 64, 2) in bytes; K may be
    another dimension of the numbers than the last.

    A scale is the power of two that brings the largest number of its group to the largest exponent
    (scale_alg 0 of CANN's operators); numbers beyond the largest are clipped. FLOAT4 halfway
    between two numbers are rounded to the even code, or `away` from zero."""
    coded, wide = _CODED.get(dtype) if isinstance(dtype, int) else None, wide.transpose(dim, -1)
    k = wide.shape[-1]
    kind = _FLOAT8[E4M3 if dtype is torch.float8_e4m3fn else "FLOAT8_E5M2"]
    padded = torch.nn.functional.pad(wide, (0, group_pairs(k) * PAIR - k))
    groups = padded.unflatten(-1, (group_pairs(k) * 2, GROUP))
    largest = groups.abs().amax(-1)
    _, exponent = torch.frexp(largest)
    emax = coded.emax if coded else kind.emax
    bits = (exponent.int() - 1 - emax + _BIAS).clamp_(0, 254).masked_fill_(largest == 0, 0)
    steps = torch.exp2((_BIAS - bits).float()).unsqueeze(-1)
    stepped = (groups * steps).flatten(-2)[..., :k].transpose(dim, -1)
    if coded:
        made = _paired(_codes(torch, stepped, coded, away))
    else:
        made = stepped.clamp_(-kind.most, kind.most).to(dtype).contiguous()
    return made, bits.to(torch.uint8).unflatten(-1, (group_pairs(k), 2))


def most_of(torch: Any, dtype: Any) -> float:
    """Return the largest number of a dtype of eight bits."""
    if isinstance(dtype, int):
        return max(level for level in _CODED[dtype].levels if level < inf)
    most: float = torch.finfo(dtype).max
    return most


def rounded_narrow(torch: Any, wide: Any, dtype: Any) -> Any:
    """Return FLOAT as numbers of eight bits, clipped; HIFLOAT8 halfway between two are rounded away
    from zero."""
    if isinstance(dtype, int):
        return _codes(torch, wide, _CODED[dtype], True)
    most = most_of(torch, dtype)
    return wide.clamp(-most, most).to(dtype)


def _codes(torch: Any, wide: Any, coded: _Coded, away: bool) -> Any:
    """Return the nearest codes."""
    levels, codes = wide.new_tensor(coded.levels).sort()
    levels = levels[levels < inf]
    middles, sizes = (levels[1:] + levels[:-1]) / 2, wide.abs().contiguous()
    below, above = (torch.bucketize(sizes, middles, right=right) for right in (False, True))
    places = above if away else torch.where(below % 2 == 0, below, above)
    return (codes[places] + torch.signbit(wide) * len(coded.levels)).to(torch.uint8)


def _paired(codes: Any) -> Any:
    return codes[..., ::2] + codes[..., 1::2] * 16


def _pairs_fit(case: Case) -> bool:
    width = (output_shape(case) or (0,))[-1]
    return not is_paired(output_slot(case)) or width % 2 == 0


OF_MX = frozenset((*MX_DTYPES, SCALES))  # the dtypes of MX numbers and of their scales


# For signatures: the dtypes of MX numbers, and of numbers of eight bits.
MX, BYTES = "|".join(MX_DTYPES), "|".join(BYTE_DTYPES)
PAIRS_FIT = Constraint("expected an even last dimension of FLOAT4", _pairs_fit)
