"""A small case of an operator, made from its signature: to run it once, not to measure it."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

from collector.codec.errors import BadInput
from collector.model.case import NO_TENSOR, Slot, tensor_cells
from collector.model.record import CaseRecord
from collector.model.vocabulary import ACCELERATOR_CORE, OP_STATE, dtype_of
from collector.ops.runtime import with_runtime_columns
from collector.ops.signature import Tensor, Variant, parse_signature
from collector.ops.spec import OpSpec

_GROUP = (2, 3)
_STEP = 16
_SIZES = (16, 1, 2, 4, 8, 32, 64)
_MOST_TRIES = 20_000


def small_record(op: OpSpec) -> CaseRecord:
    """Return a record of small sizes that the signature accepts, with every optional tensor.

    Sizes of different names differ if they may. Raises BadInput if none are found."""
    signature = parse_signature(op.signature)
    variant = signature.variants[0]
    problem = ""
    for sizes in _tries(_names(variant)):
        try:
            inputs, outputs = _slots(variant, sizes)
        except (ArithmeticError, LookupError) as error:
            problem = repr(error)
            continue
        cells = {OP_STATE: "", ACCELERATOR_CORE: "", **tensor_cells(inputs, outputs)}
        record = with_runtime_columns(CaseRecord(op.kernel, cells, {}), op)
        problem = op.rejection_reason(record.case, "cpu")
        if not problem:
            return record
    raise BadInput(f"found no small sizes that fit the signature; give `examples` ({problem})")


def _names(variant: Variant) -> list[str]:
    """Return the names of sizes, in the order in which they occur."""
    dims = (dim for one in (*variant.inputs, *variant.outputs) for dim in one.dims or ())
    return list(dict.fromkeys(dim.name for dim in dims if dim.name))


def _tries(names: Sequence[str]) -> Iterator[Mapping[str, int]]:
    yield {name: _STEP * (at + 1) for at, name in enumerate(names)}
    for sizes in islice(product(_SIZES, repeat=len(names)), _MOST_TRIES):
        yield dict(zip(names, sizes, strict=True))


def _slots(variant: Variant, names: Mapping[str, int]) -> tuple[list[Slot], list[Slot]]:
    sizes = {**names, **variant.presence}
    tensors = (*variant.inputs, *variant.outputs)
    sizes |= {f"has_{one.name}": int(not one.is_refused) for one in tensors}
    for dim in (dim for one in tensors for dim in one.dims or () if dim.group):
        sizes |= {f"{dim.group}": _GROUP[0] * _GROUP[1], f"{dim.group}_rank": len(_GROUP)}
    letters: dict[str, str] = {}
    inputs = [_slot(one, sizes, letters) for one in variant.inputs]
    return inputs, [_slot(one, sizes, letters) for one in variant.outputs]


def _slot(tensor: Tensor, sizes: Mapping[str, int], letters: dict[str, str]) -> Slot:
    if tensor.is_refused:
        return NO_TENSOR
    dtype = letters.get(tensor.letter) or _dtype(tensor, letters)
    if tensor.letter:
        letters[tensor.letter] = dtype
    if tensor.dims is None:
        return Slot(None if tensor.is_number else _GROUP, dtype, "ND")
    shape: list[int] = []
    for dim in tensor.dims:
        if dim.group is not None:
            shape += _GROUP
        elif dim.ones:
            shape += [1] * len(_GROUP)
        elif dim.computed is not None:
            shape.append(dim.computed.compute(sizes))
        else:
            shape.append(dim.size if dim.size is not None else sizes[dim.name])
    return Slot(tuple(shape) or None, dtype, "ND")


def _dtype(tensor: Tensor, letters: Mapping[str, str]) -> str:
    """Return FLOAT if the tensor may have it: every device computes it."""
    if not tensor.dtypes or "FLOAT" in tensor.accepted:
        return "FLOAT"
    first = next((letters.get(one, one) for one in tensor.dtypes), "FLOAT")
    return first if dtype_of(first) else "INT32"
