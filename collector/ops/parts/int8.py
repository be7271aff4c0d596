"""Arithmetic of quantised operators in plain torch: exact products of INT8, and rounding to it."""

from typing import Any

from collector.model.vocabulary import dtype_of
from collector.ops.slots import Shape
from collector.ops.spec import TensorMaker

# cuBLAS takes more than 16 rows, and multiples of 8 in the other sizes.
_CUDA_ROWS = 17
_CUDA_MULTIPLE = 8


def int8_product(torch: Any, a: Any, b: Any) -> Any:
    """The product of two INT8 matrices, exactly, as INT32."""
    if a.device.type != "cuda":
        return torch._int_mm(a, b)
    if a.shape[1] % _CUDA_MULTIPLE or b.shape[1] % _CUDA_MULTIPLE or not b.numel():
        return torch.mm(a.double(), b.double()).to(torch.int32)
    rows = a.shape[0]
    if rows < _CUDA_ROWS:
        a = torch.nn.functional.pad(a, (0, 0, 0, _CUDA_ROWS - rows))
    return torch._int_mm(a, b)[:rows]


def to_int8(torch: Any, wide: Any) -> Any:
    """Rounded to the nearest (halves to even) and clipped. Overwrites what it is given."""
    return wide.round_().clamp_(-128, 127).to(torch.int8)


def quantise_rows(torch: Any, wide: Any) -> tuple[Any, Any]:
    """Each row by its own largest number: INT8, and the FLOAT scale that gives it back.
    Overwrites what it is given."""
    scale = wide.abs().amax(-1, keepdim=True).div_(127)
    return to_int8(torch, wide.div_(scale)), scale.squeeze(-1)


def restored(weight: Any, scale: Any, offset: Any) -> Any:
    """An INT8 weight as numbers of the scale's dtype: (weight + offset) * scale."""
    wide = weight.to(scale.dtype)
    return (wide if offset is None else wide.add_(offset)).mul_(scale)


# Scales of quantised products: small enough that results stay finite, and the packed form.
#
# An INT64 scale holds the bits of a FLOAT in its lower half, as npu_trans_quant_param makes it.
# aclnn calls it UINT64 before it launches the kernel, so that real profiles say so; the bits are
# the same.

# A sum of K products of numbers up to 127 is about 5400 * sqrt(K).
_RANGE = (1e-5, 1e-4)
_HALF_RANGE = (1e-4, 1e-3)  # FLOAT16 has only subnormal numbers below 6.1e-5


PACKED = ("INT64", "UINT64")


def small_scale(shape: Shape, dtype: str, make: TensorMaker) -> Any:
    """A scale for each column, which brings sums of products near 1, and for FLOAT16 near 10."""
    low, high = _HALF_RANGE if dtype_of(dtype) is dtype_of("FLOAT16") else _RANGE
    return make.uniform(shape, dtype, low, high)


def packed_scale(shape: Shape, make: TensorMaker) -> Any:
    """The same as INT64, which is what the function takes."""
    return small_scale(shape, "FLOAT", make).view(make.dtype("INT32")).to(make.dtype("INT64"))


def decoded(torch: Any, scale: Any) -> Any:
    """The FLOAT numbers of a scale in any form."""
    if scale.dtype != torch.int64:
        return scale.float()
    return scale.to(torch.int32).view(torch.float32)
