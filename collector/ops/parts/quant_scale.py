"""Scales of quantised products: small enough that results stay finite, and the packed form.

An INT64 scale holds the bits of a FLOAT in its lower half, as npu_trans_quant_param makes it. aclnn
calls it UINT64 before it launches the kernel, so that real profiles say so; the bits are the same.
"""

from typing import Any

from collector.ops.slots import Shape
from collector.ops.spec import TensorMaker
from collector.vocabulary import dtype_of

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
