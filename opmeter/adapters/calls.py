"""What an operator's call may be as a case of a kernel.

Kernels record the tensors of a call in other forms: without leading batches of 1, with flattened
tokens, weights transposed or in blocks, scalars or not. A form is a candidate if a measured case
has such inputs; the more a candidate is like the call, the earlier it is tried.
"""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from collector.database.index import IndexBlock
from collector.model.vocabulary import dtype_of
from collector.ops.expression import in_blocks
from collector.ops.registry import find_operator, is_product
from opmeter.cases import Shape, spelled_dtype

# Where no case has the own dtype. TensorCast runs float16 unless a model states otherwise, serving
# software runs bfloat16: both have two bytes, and the same rate in all devices that it knows.
_LOOKED_UP_AS = {"DT_FLOAT16": "DT_BF16", "FLOAT16": "DT_BF16"}
AS_OTHER = "no case has float16: looked up as bfloat16, of the same size and rate"
ADDED = "the case has more inputs than the call"


class Tensor(NamedTuple):
    """A tensor of a call; the shape is empty for one without dimensions."""

    shape: Shape
    dtype: str

    def is_like(self, other: "Tensor") -> bool:
        """Return whether another output may be this one: as many bytes, or integers of any size."""
        if prod(self.shape) != prod(other.shape):
            return False
        one, two = dtype_of(self.dtype), dtype_of(other.dtype)
        if one is None or two is None or "BOOL" in (one.spelling, two.spelling):
            return self.dtype == other.dtype
        if one.is_floating and two.is_floating:
            return one.item_bits == two.item_bits
        return one.is_floating == two.is_floating


class Unlikeness(NamedTuple):
    """In what a case differs from a call, the worst first: another dtype, scalars that the case
    lacks, inputs that the call lacks, forms of tensors, and lengths that the call lacks."""

    relabelled: int
    dropped: int
    added: int
    reformed: int
    has_lengths: bool


class Candidate(NamedTuple):
    """Inputs of a kernel's cases that a call may be."""

    unlikeness: Unlikeness
    kernel: str
    block: IndexBlock
    inputs: list[Shape | None]

    @property
    def dtypes(self) -> list[str]:
        return [dtype for dtype, _ in self.block.inputs]

    def warnings(self, *, is_part: bool) -> tuple[str, ...]:
        """Return what an answer states; with `is_part` the call is known to lack inputs."""
        added = self.unlikeness.added and not is_part
        texts = ((self.unlikeness.relabelled, AS_OTHER), (added, ADDED))
        return tuple(text for is_so, text in texts if is_so)


def candidates(
    blocks: Sequence[IndexBlock],
    kernel: str,
    tensors: Sequence[Tensor],
    constants: Callable[[IndexBlock], Sequence[tuple[int | None, int]]],
) -> Iterator[Candidate]:
    """Yield the inputs of a kernel's cases that a call may be: of each layout that is measured, and
    for weights in each orientation. `constants` are those of `Version.constants`."""
    shaped = [tensor for tensor in tensors if tensor.shape]
    op = find_operator(kernel)
    joins = op is not None and any(lookup.joins for lookup in op.lookups)
    if joins and len(shaped) == 2:
        one, other = (tensor.shape for tensor in shaped)
        tensors = [shaped[0]._replace(shape=(*one[:-1], one[-1] + other[-1]))]
    for block in blocks:
        for filled in _filled(block.inputs, tensors, is_product(kernel)):
            left = sum(rank > 0 for _, rank in block.inputs[len(filled.shapes) :])
            is_any = any(filled.shapes) or filled.dropped < len(tensors) or not tensors
            if not is_any or (left and not any(filled.shapes)):
                continue  # the call determines no input, or not the sizes
            inputs = _completed(block, filled.shapes, constants(block))
            if inputs is not None:
                unlikeness = Unlikeness(
                    *(filled.relabelled, filled.dropped, left, filled.reformed),
                    has_lengths=bool(block.lengths),
                )
                yield Candidate(unlikeness, kernel, block, inputs)


def tensors_of(args: Any) -> Iterator[Tensor]:
    """Yield the tensors among arguments, also in lists."""
    for arg in args:
        if isinstance(arg, list | tuple):
            yield from tensors_of(arg)
        elif hasattr(arg, "shape") and hasattr(arg, "dtype"):
            yield Tensor(tuple(map(int, arg.shape)), spelled_dtype(str(arg.dtype)))


def first_tensors(tensors: Sequence[Tensor], count: int) -> list[Tensor]:
    """Return the tensors up to this number of those with dimensions."""
    found: list[Tensor] = []
    for tensor in tensors:
        if tensor.shape and sum(bool(one.shape) for one in found) == count:
            break
        found.append(tensor)
    return found


def first_output(out: Any) -> Tensor | None:
    return next(tensors_of([out]), None)


def dtypes_of(dtype: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the dtypes under which a call is looked up, with what an answer states of it."""
    yield dtype, ()
    if (other := _LOOKED_UP_AS.get(dtype)) is not None:
        yield other, (AS_OTHER,)


class Output(NamedTuple):
    """The first output of a call, None if it is not known, and which cases it allows: with `is_any`
    those of another output too, with `is_conversion` only those of its dtype, or of the one under
    which that is looked up."""

    tensor: Tensor | None
    is_any: bool = False
    is_conversion: bool = False

    def is_own(self, of_case: Tensor | None) -> bool:
        """Return whether a case has this output, as far as both are known."""
        if self.tensor is None or of_case is None:
            return True
        is_dtype = of_case.dtype == self.tensor.dtype
        return is_dtype and of_case.shape in flat(self.tensor.shape)

    def is_like(self, of_case: Tensor | None) -> bool:
        """Return whether a case with another output may be the call's."""
        if self.tensor is None or of_case is None:
            return False
        if not self.is_conversion:
            return self.tensor.is_like(of_case)
        dtypes = [dtype for dtype, _ in dtypes_of(self.tensor.dtype)]
        return prod(self.tensor.shape) == prod(of_case.shape) and of_case.dtype in dtypes


def flat(shape: Shape) -> Iterator[Shape]:
    """Yield the shapes that a kernel may record for a tensor: without leading ones, and with the
    leading dimensions as one."""
    yield shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
        yield shape
    if len(shape) > 2:
        yield (prod(shape[:-1]), shape[-1])
        yield (shape[0], prod(shape[1:]))


class _Filled(NamedTuple):
    """Shapes for the first inputs of a block. `relabelled` if a tensor has another dtype, `dropped`
    scalars have no input, and `reformed` tensors have another form."""

    shapes: list[Shape | None]
    relabelled: bool = False
    dropped: int = 0
    reformed: int = 0

    def after(self, shape: Shape | None, relabelled: bool, reformed: bool) -> "_Filled":
        return _Filled(
            [shape, *self.shapes],
            self.relabelled or relabelled,
            self.dropped,
            self.reformed + reformed,
        )


def _filled(
    inputs: Sequence[tuple[str, int]], tensors: Sequence[Tensor], is_product: bool, at: int = 0
) -> Iterator[_Filled]:
    """Yield shapes for the first inputs of a block: one for each tensor, besides absent inputs and
    scalars that are no tensors in the call. Profilers leave out some scalars."""
    if not tensors:
        yield _Filled([])
        return
    tensor, left = tensors[0], tensors[1:]
    dtype, rank = inputs[at] if at < len(inputs) else ("", 0)
    if rank < 0:
        if not tensor.shape and dtype == tensor.dtype:
            for one in _filled(inputs, left, is_product, at + 1):
                yield one.after(None, relabelled=False, reformed=False)
        for one in _filled(inputs, tensors, is_product, at + 1):
            yield one.after(None, relabelled=False, reformed=False)
    elif not tensor.shape:
        for one in _filled(inputs, left, is_product, at):
            yield one._replace(dropped=one.dropped + 1)
    elif dtype in (tensor.dtype, _LOOKED_UP_AS.get(tensor.dtype)):
        shapes = _of_rank(tensor.shape, dtype, rank, at > 0 and is_product)
        for one in _filled(inputs, left, is_product, at + 1) if shapes else ():
            for shape in shapes:
                yield one.after(shape, dtype != tensor.dtype, shape != tensor.shape)


def _of_rank(shape: Shape, dtype: str, rank: int, is_weight: bool) -> list[Shape]:
    """Return the shapes with this rank that a kernel may record for a tensor."""
    forms = list(flat(shape))
    if is_weight and len(shape) >= 2:
        forms += [(*one[:-2], one[-1], one[-2]) for one in forms[:1] + [shape]]
        if dtype_of(dtype) is not None:
            forms += [in_blocks(dtype, one).shape or () for one in forms if len(one) >= 2]
    return list(dict.fromkeys(one for one in forms if len(one) == rank))


def _completed(
    block: IndexBlock, shapes: list[Shape | None], known: Sequence[tuple[int | None, int]]
) -> list[Shape | None] | None:
    """Return all inputs of a case with these first ones. `known` has for each input size of the
    block the earlier size that it equals in all rows, or its constant value; None if an input that
    is left follows from neither."""
    sizes = [size for shape in shapes for size in shape or ()]
    found = list(shapes)
    for _, rank in block.inputs[len(shapes) :]:
        made = []
        for _ in range(max(rank, 0)):
            place, value = known[len(sizes)]
            if place is None and value < 0:
                return None
            made.append(value if place is None else sizes[place])
            sizes.append(made[-1])
        found.append(None if rank < 0 else tuple(made))
    return found
