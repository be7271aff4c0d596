"""Creation of a case's tensors on the device, from a seed that the case determines.

If a CPU has no arithmetic for a 16-bit type, torch emulates it, up to 45 times slower in one layout
than in another; such tensors are float32, and the measurement records this.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch

from collector.codec.errors import CaseRejected
from collector.model.vocabulary import dtype_of

# Random numbers beyond this many are copies of the first ones: values do not change a kernel's time
# here, and a CPU generates them more slowly than it adds them.
_BLOCK = 1 << 20
_ONE_OF_THESE_FLAGS = {
    "bfloat16": frozenset({"avx512_bf16", "amx_bf16"}),
    "float16": frozenset({"avx512_fp16", "amx_fp16"}),
}


def emulated_dtypes(cpu_flags: Sequence[str]) -> frozenset[str]:
    """Return the 16-bit types, by torch's names, for which a CPU with these flags has no
    arithmetic."""
    have = set(cpu_flags)
    return frozenset(name for name, flags in _ONE_OF_THESE_FLAGS.items() if not flags & have)


class CaseTensors:
    """The TensorMaker of one case. Dtypes in `emulated` become float32; `compute_dtype` records
    whether any did. `cast` converts a tensor to a slot's format."""

    def __init__(
        self,
        device: str,
        seed: int,
        emulated: frozenset[str] = frozenset(),
        cast: Callable[[Any, str], Any] = lambda tensor, format: tensor,
    ):
        self.torch = torch
        self._cast = cast
        self.compute_dtype = ""
        self._device = device
        self._emulated = emulated
        # Where random numbers are made: on the host, if the device has no generator.
        self._source = device
        try:
            self._generator = torch.Generator(device).manual_seed(seed)
        except (RuntimeError, NotImplementedError):
            self._source = "cpu"
            self._generator = torch.Generator(self._source).manual_seed(seed)

    def dtype(self, spelling: str) -> Any:
        known = dtype_of(spelling)
        if known is None or not known.torch_name:
            raise CaseRejected(f"torch has no dtype for {spelling!r}")
        if known.torch_name in self._emulated:
            self.compute_dtype = "float32"
            return torch.float32
        return getattr(torch, known.torch_name)

    def normal(self, shape: Sequence[int], dtype: str) -> Any:
        real = self.dtype(dtype)
        if real is torch.bool:
            return self.integers(shape, dtype, 0, 2)
        if not real.is_floating_point:
            return self.integers(shape, dtype, 1, 8)
        return self._tiled(shape, real, lambda block: block.normal_(generator=self._generator))

    def uniform(self, shape: Sequence[int], dtype: str, low: float, high: float) -> Any:
        return self._tiled(
            shape,
            self.dtype(dtype),
            lambda block: block.uniform_(low, high, generator=self._generator),
        )

    def integers(self, shape: Sequence[int], dtype: str, low: int, high: int) -> Any:
        return self._tiled(
            shape,
            self.dtype(dtype),
            lambda block: block.random_(low, high, generator=self._generator),
        )

    def permutation(self, n: int, dtype: str) -> Any:
        made = torch.randperm(
            n, generator=self._generator, dtype=self.dtype(dtype), device=self._source
        )
        return made.to(self._device)

    def full(self, shape: Sequence[int], dtype: str, value: float) -> Any:
        return torch.full(tuple(shape), value, dtype=self.dtype(dtype), device=self._device)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        return torch.empty(tuple(shape), dtype=self.dtype(dtype), device=self._device)

    def tensor(self, values: Sequence[Any], dtype: str) -> Any:
        return torch.tensor(values, dtype=self.dtype(dtype)).to(self._device)

    def stored(self, tensor: Any, format: str) -> Any:
        return self._cast(tensor, format)

    def _tiled(self, shape: Sequence[int], dtype: Any, fill: Any) -> Any:
        """Return a tensor whose first block `fill` makes, and whose other blocks repeat it."""
        tensor = torch.empty(tuple(shape), dtype=dtype, device=self._device)
        if prod(shape) <= _BLOCK:
            return self._filled(tensor, fill)
        flat = tensor.view(-1)
        block = self._filled(flat[:_BLOCK], fill)
        whole = flat.numel() // _BLOCK * _BLOCK
        flat[_BLOCK:whole].view(-1, _BLOCK).copy_(block)
        flat[whole:].copy_(block[: flat.numel() - whole])
        return tensor

    def _filled(self, tensor: Any, fill: Any) -> Any:
        if self._source == self._device:
            return fill(tensor)
        return tensor.copy_(fill(torch.empty(tensor.shape, dtype=tensor.dtype)))
