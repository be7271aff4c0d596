"""How CANN copies a view and makes it dense (CANN's open sources, ops-math, for A2 and A3).

Profiles show TensorMove and Slice by InplaceCopy, and Transpose and BroadcastTo where EqTensor
makes a view dense.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod

from collector.engine.calls import RecordedTensor

Dim = tuple[int, int]  # stride and size
Shape = tuple[int, ...]

_LINE = 64


def copied(target: RecordedTensor, source: RecordedTensor) -> str:
    """What a copy launches: where dtypes differ, a Cast; else the kernel that makes a view dense.
    Of several kernels the last is named."""
    if target.dtype != source.dtype:
        return "Cast"
    dims = _dims(target)
    if not _is_dense(dims):
        return "Transpose" if _is_dense(_ordered(dims)) else "ViewCopy"
    return made_dense(source) if target.shape == source.shape else "BroadcastTo"


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel that makes a view dense, with the shapes that it reads and writes: Slice, Transpose
    or BroadcastTo. The shapes of others are unknown, and empty."""

    kernel: str
    before: Shape = ()
    after: Shape = ()


def made_dense(view: RecordedTensor) -> str:
    """What CANN's `Contiguous` launches for a view, and TensorMove for what is dense already."""
    steps = dense_steps(view)
    return steps[-1].kernel if steps else "TensorMove"


def dense_steps(view: RecordedTensor) -> tuple[Step, ...]:
    """The kernels that CANN's `Contiguous` launches for a view. Slice and Transpose get neither
    dimensions of size 1 nor repeated ones."""
    dims = _dims(view)
    ordered, steps = _ordered(dims), list[Step]()
    if not _is_dense(ordered):
        memory = prod(view.storage)
        cut = _cut(ordered, view.offset, memory)
        takes_lines = view.strides[-1:] == (1,) and view.shape[-1] % _LINE == 0
        if cut == "Slice" and dims != ordered and takes_lines:
            cut = "AsStrided"
        if cut == "AsStrided":
            return (Step(cut),)
        steps.append(_sliced(ordered, memory) if cut == "Slice" else Step(cut))
    if dims != ordered:
        steps.append(Step("Transpose", _sizes(ordered), _sizes(dims)))
    if any(stride == 0 for stride, _ in _long(view)):
        pairs = zip(view.strides, view.shape, strict=True)
        before = tuple(size if stride else 1 for stride, size in pairs)
        steps.append(Step("BroadcastTo", before, tuple(view.shape)))
    return tuple(steps)


def _sliced(ordered: list[Dim], memory: int) -> Step:
    """The tensor of a memory out of which a block is cut; a line of numbers apart is a column."""
    dims = [*ordered, (1, 1)] if len(ordered) == 1 else ordered
    inner = tuple(outer[0] // inner[0] for outer, inner in pairwise(dims))
    return Step("Slice", (memory // prod(inner), *inner), _sizes(dims))


def _sizes(dims: list[Dim]) -> Shape:
    return tuple(size for _, size in dims)


def _cut(ordered: list[Dim], offset: int, memory: int) -> str:
    """Slice where the strides are those of a larger dense tensor, in which the view lies;
    StridedSlice where they have a common divisor that holds a line (its bounds are not looked
    at here)."""
    dims = [*ordered, (1, 1)] if len(ordered) == 1 else ordered
    if any(outer[0] < inner[0] * (inner[1] - 1) for outer, inner in pairwise(dims)):
        return "AsStrided"
    last, length = dims[-1]
    if last == 1 and all(outer[0] % inner[0] == 0 for outer, inner in pairwise(dims)):
        return "Slice" if _lies_within(dims, offset, memory) else "AsStrided"
    common = gcd(*(stride for stride, _ in dims[:-1]))
    return "StridedSlice" if common > 1 and common >= last * length else "AsStrided"


def _lies_within(dims: list[Dim], offset: int, memory: int) -> bool:
    whole = memory
    for stride, size in dims:
        if offset // stride + size > whole // stride:
            return False
        offset, whole = offset % stride, stride
    return True


def _long(tensor: RecordedTensor) -> list[Dim]:
    return [d for d in zip(tensor.strides, tensor.shape, strict=True) if d[1] != 1]


def _dims(tensor: RecordedTensor) -> list[Dim]:
    """The dimensions that decide: neither of size 1 nor repeated."""
    return [(stride, size) for stride, size in _long(tensor) if stride]


def _ordered(dims: list[Dim]) -> list[Dim]:
    return sorted(dims, reverse=True)


def _is_dense(dims: list[Dim]) -> bool:
    sizes = [size for _, size in dims]
    return all(stride == prod(sizes[i + 1 :]) for i, (stride, _) in enumerate(dims))
