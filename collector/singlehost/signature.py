"""The coarser signature by which msmodeling's own tool matches rows: five parts of a row, some of
them brought into one form.

It is wider than a case: no OP State, no output formats, no attributes; a MatMul's layout and bias
do not count. It serves only to find the row that a launch belongs to in a tree that says less than
a profile does, and `agrees` keeps it from joining what both of them say differently.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest

from collector.case import Case, Slot
from collector.vocabulary import ACCELERATOR_CORE, EP_SIZE, is_absent_dtype, is_absent_format

MATMUL_FAMILY = frozenset({"MatMulV2", "MatMulV3", "MatMulCommon"})
_FIRST_AND_OUTPUT = frozenset({"Index"})
_FIRST_ONLY = frozenset({"Slice", "SliceAiCore", "Transpose", "TransposeAiCore"})
_DISPATCH = "DispatchFFNCombine"

Shape = tuple[int, ...]
Shapes = tuple[Shape | None, ...]
Words = tuple[str, ...]

# Input shapes, dtypes, formats; output shapes, dtypes; EP Size where it belongs to the kernel.
Signature = tuple[Shapes, Words, Words, Shapes, Words, str]


def signature_of(case: Case) -> Signature:
    """The signature of a case, within its own kernel type."""
    ep_size = case.attribute(EP_SIZE) or "" if case.kernel_type == _DISPATCH else ""
    inputs, outputs = _trimmed(case.inputs), _trimmed(case.outputs)
    if case.kernel_type in MATMUL_FAMILY and (matmul := _matmul(inputs, outputs)):
        return (*matmul, ep_size)
    if case.kernel_type in _FIRST_AND_OUTPUT and inputs and outputs:
        index = Slot((outputs[0].shape or ())[:1], inputs[-1].dtype, inputs[-1].format)
        inputs = [inputs[0], index]
    if case.kernel_type in _FIRST_ONLY and inputs:
        inputs = [Slot(inputs[0].shape, inputs[0].dtype, "ND")]
    return (*_parts(inputs), *_parts(outputs)[:2], ep_size)


def agrees(row: Case, launch: Case) -> bool:
    """Whether nothing that both say, and the signature leaves out, is said differently."""
    if row.op_state and launch.op_state and row.op_state != launch.op_state:
        return False
    told = dict(launch.attributes)
    if any(told.get(name, value) != value for name, value in row.attributes):
        return False
    if row.attribute(ACCELERATOR_CORE) != launch.attribute(ACCELERATOR_CORE):
        return False
    if any(_contradict(*pair, is_absent_format) for pair in _formats(row, launch)):
        return False
    if row.kernel_type in MATMUL_FAMILY | _FIRST_AND_OUTPUT | _FIRST_ONLY:
        return True
    empty = (
        (ours.dtype, theirs.dtype)
        for ours, theirs in zip(row.inputs or (), launch.inputs or (), strict=False)
        if ours.shape is None and theirs.shape is None
    )
    return not any(_contradict(*pair, is_absent_dtype) for pair in empty)


def _trimmed(slots: tuple[Slot, ...] | None) -> list[Slot]:
    """The slots up to the last that has a shape; what an empty slot says besides is left out."""
    kept = [slot if slot.shape is not None else Slot(None, "", "") for slot in slots or ()]
    while kept and kept[-1].shape is None:
        kept.pop()
    return kept


def _parts(slots: Sequence[Slot]) -> tuple[Shapes, Words, Words]:
    return (
        tuple(slot.shape for slot in slots),
        tuple(slot.dtype for slot in slots),
        tuple(slot.format for slot in slots),
    )


def _matmul(
    inputs: Sequence[Slot], outputs: Sequence[Slot]
) -> tuple[Shapes, Words, Words, Shapes, Words] | None:
    """`M,K;N,K -> M,N`, whichever way the right side lies; None where that cannot be told."""
    if len(inputs) < 2 or not outputs:
        return None
    left, right, out = inputs[0].shape, inputs[1].shape, outputs[0].shape
    if not left or not right or not out or {len(left), len(right), len(out)} != {2}:
        return None
    rows, columns = out
    inner = _inner(left, right, rows, columns)
    if inner is None:
        return None
    shapes = ((rows, inner), (columns, inner))
    _, dtypes, formats = _parts(inputs[:2])
    return shapes, dtypes, formats, (out,), _parts(outputs)[1]


def _inner(left: Shape, right: Shape, rows: int, columns: int) -> int | None:
    if left[0] == rows and right in ((columns, left[1]), (left[1], columns)):
        return left[1]
    shared = set(left) & set(right)
    for candidates in (shared - {rows, columns}, shared):
        if len(candidates) == 1:
            return next(iter(candidates))
    return None


def _formats(row: Case, launch: Case) -> list[tuple[str, str]]:
    """The formats of both sides' outputs, slot by slot."""
    slots = zip_longest(row.outputs or (), launch.outputs or ())
    return [(_format(ours), _format(theirs)) for ours, theirs in slots]


def _format(slot: Slot | None) -> str:
    return slot.format if slot is not None else ""


def _contradict(ours: str, theirs: str, is_absent: Callable[[str], bool]) -> bool:
    return ours != theirs and not is_absent(ours) and not is_absent(theirs)
