"""Arithmetic of quantised operators in plain torch: exact INT8 products, and rounding to INT8."""

from typing import Any

from collector.model.case import Shape, Slot
from collector.model.vocabulary import dtype_of
from collector.ops.slots import spelling
from collector.ops.spec import TensorMaker

# cuBLAS requires more than 16 rows, and multiples of 8 in the other sizes.
_CUDA_ROWS = 17
_CUDA_MULTIPLE = 8


def int8_product(torch: Any, a: Any, b: Any) -> Any:
    """Return the exact product of two INT8 matrices as INT32."""
    if a.device.type != "cuda":
        return torch._int_mm(a, b)
    if a.shape[1] % _CUDA_MULTIPLE or b.shape[1] % _CUDA_MULTIPLE or not b.numel():
        return torch.mm(a.double(), b.double()).to(torch.int32)
    rows = a.shape[0]
    if rows < _CUDA_ROWS:
        a = torch.nn.functional.pad(a, (0, 0, 0, _CUDA_ROWS - rows))
    return torch._int_mm(a, b)[:rows]


def to_int8(torch: Any, wide: Any) -> Any:
    """Round to the nearest (halves to even), clip, and return INT8. Overwrites `wide`."""
    return wide.round_().clamp_(-128, 127).to(torch.int8)


def quantise_rows(torch: Any, wide: Any) -> tuple[Any, Any]:
    """Quantise each row by its own absolute maximum: return INT8 and the FLOAT scale of each row.

    Overwrites `wide`."""
    scale = wide.abs().amax(-1, keepdim=True).div_(127)
    return to_int8(torch, wide.div_(scale)), scale.squeeze(-1)


def dequantised(weight: Any, scale: Any, offset: Any) -> Any:
    """Dequantise an INT8 weight to the scale's dtype: (weight + offset) * scale."""
    wide = weight.to(scale.dtype)
    return (wide if offset is None else wide.add_(offset)).mul_(scale)


# Scales of quantised products: small enough that results stay finite, and the packed form.
#
# An INT64 scale holds the bits of a FLOAT in its lower half, as npu_trans_quant_param makes it.
# aclnn changes its dtype to UINT64 before it launches the kernel, so real profiles record UINT64;
# the bits are the same.

# A sum of K products of numbers up to 127 is about 5400 * sqrt(K).
_RANGE = (1e-5, 1e-4)
_HALF_RANGE = (1e-4, 1e-3)  # FLOAT16 has only subnormal numbers below 6.1e-5


PACKED = ("INT64", "UINT64")


def small_scale(shape: Shape, dtype: str, make: TensorMaker) -> Any:
    """Return a scale per column that brings sums of products near 1, and for FLOAT16 near 10."""
    low, high = _HALF_RANGE if dtype_of(dtype) is dtype_of("FLOAT16") else _RANGE
    return make.uniform(shape, dtype, low, high)


def scale_like(slot: Slot, make: TensorMaker) -> Any:
    """Return such scales in the form of a slot, packed or plain."""
    shape = slot.shape or ()
    if spelling(slot) in PACKED:
        return packed_scale(shape, make)
    return small_scale(shape, slot.dtype, make)


def packed_scale(shape: Shape, make: TensorMaker) -> Any:
    """Return the same scale packed as INT64, the dtype that the function requires."""
    return small_scale(shape, "FLOAT", make).view(make.dtype("INT32")).to(make.dtype("INT64"))


def scale_values(torch: Any, scale: Any) -> Any:
    """Return the FLOAT values of a scale in any form."""
    if scale.dtype != torch.int64:
        return scale.float()
    return scale.to(torch.int32).view(torch.float32)
