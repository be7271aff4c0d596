"""Arithmetic of quantised operators in plain torch: exact products of INT8, and rounding to it."""

from typing import Any

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
