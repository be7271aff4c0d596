"""One operation on each tensor of a list, in place and in one kernel, as optimizers use it.

A row has the lists one after the other, and then the number that all share, an empty cell. Real
rows of ForeachAddList and ForeachMulScalar show each output in one dimension; the same is assumed
for the others.

    4,3,2;5;4,3,2;5;  FLOAT x5  ->  24;5  FLOAT x2      x + alpha * y of two tensors
"""

from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any

from collector.model.case import Case, Shape, Slot
from collector.ops.launching import As, arguments_at
from collector.ops.parts import like
from collector.ops.slots import spelling
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker

_FLOATS = frozenset({"FLOAT", "FLOAT16", "DT_BF16"})
_NUMBER = 0.125


@dataclass(frozen=True, slots=True)
class _Lists:
    """The tensors of a row: `lists` lists of equal length, and whether a number follows."""

    lists: int
    has_number: bool

    def tensors(self, case: Case) -> tuple[Slot, ...]:
        slots = case.inputs or ()
        return slots[:-1] if self.has_number else slots

    def count(self, case: Case) -> int:
        return len(self.tensors(case)) // self.lists

    def shapes(self, case: Case) -> list[Shape]:
        """Return the shapes of the first list."""
        return [slot.shape or () for slot in self.tensors(case)[: self.count(case)]]

    def is_flat(self, case: Case) -> bool:
        """Return whether the row shows its outputs in one dimension each."""
        outputs = [slot.shape for slot in case.outputs or ()]
        return bool(outputs) and outputs != self.shapes(case)

    def are_alike(self, case: Case) -> bool:
        """Return whether the lists have the same shapes, and a number follows if needed."""
        shapes = [slot.shape for slot in self.tensors(case)]
        number = (case.inputs or ())[-1:] if self.has_number else ()
        is_number = all(slot.shape is None for slot in number)
        return is_number and shapes == self.shapes(case) * self.lists != []

    def fit(self, case: Case) -> bool:
        """Return whether the outputs have the shapes of the first list, unchanged or flattened."""
        first, outputs = self.shapes(case), [slot.shape for slot in case.outputs or ()]
        return not outputs or outputs in (first, [(prod(shape),) for shape in first])

    def have_one_dtype(self, case: Case) -> bool:
        slots = (*self.tensors(case), *(case.outputs or ()))
        return len(found := {spelling(slot) for slot in slots}) == 1 and found <= _FLOATS


def foreach(
    kernel: str,
    function: str,
    *,
    most: int,
    lists: int = 1,
    number: str | None = None,
    cost: int = 1,
    is_kept: bool = False,
) -> OpSpec:
    """Declare torch's `function` of this many lists and, unless `number` is None, of a number.

    `number` is the name of the argument; if it is empty, the number follows the lists. torch_npu
    launches more than `most` tensors per list in several parts (recorded with 2.13.0, call by
    call). `cost` is the number of operations per element. Each repeat updates the result of the
    last one, as in an optimizer: with `is_kept` the number, or the second list, is 1, since powers
    of another value would become 0 or infinity."""
    row = _Lists(lists, number is not None)

    def build(case: Case, make: TensorMaker) -> Call:
        tensors = iter([like.uniform_like(slot, make, 0.5, 2.0) for slot in row.tensors(case)])
        first, *others = ([*islice(tensors, row.count(case))] for _ in range(lists))
        if is_kept:
            others = [[tensor.fill_(1) for tensor in part] for part in others]
        value = 1.0 if is_kept else _NUMBER
        last = (value,) if number == "" else ()
        named = {number: value} if number else {}
        return Call(first, *others, *last, is_flat=row.is_flat(case), **named)

    return OpSpec(
        kernel=kernel,
        call=f"torch.{function}",
        signature="x+ -> y+",
        build=build,
        flops=lambda case: cost * sum(map(prod, row.shapes(case))),
        constraints=(
            Constraint(
                f"expected lists of tensors of the same shapes, {lists} in all"
                + (", and then a number" if row.has_number else ""),
                row.are_alike,
            ),
            Constraint(
                "expected an output for each tensor of the first list, like it or in one dimension",
                row.fit,
            ),
            Constraint(
                f"expected at most {most} tensors per list: more are launched in several parts",
                lambda case: row.count(case) <= most,
            ),
            Constraint(
                "expected one dtype of FLOAT, FLOAT16, DT_BF16 for all tensors", row.have_one_dtype
            ),
        ),
        npu=NpuCall(run=_launch),
        launched_by=dict.fromkeys((f"aclnn{kernel}", f"aclnn{kernel}V2"), arguments_at(outputs=-1)),
        shown={"x": As.LISTS, "y": As.FLAT},
    )


def _launch(api: Any, tensors: Any, *args: Any, is_flat: bool, **kwargs: Any) -> Any:
    """Run the function and return the updated tensors as the row shows them: views."""
    api(tensors, *args, **kwargs)
    return tuple(tensor.view(-1) for tensor in tensors) if is_flat else tuple(tensors)


FOREACH_ADD_LIST = foreach(
    "ForeachAddList", "_foreach_add_", most=24, lists=2, number="alpha", cost=2
)
FOREACH_ADD_SCALAR = foreach("ForeachAddScalar", "_foreach_add_", most=48, number="")
FOREACH_ADDCDIV_SCALAR = foreach(
    "ForeachAddcdivScalar", "_foreach_addcdiv_", most=16, lists=3, number="value", cost=3
)
FOREACH_ADDCMUL_SCALAR = foreach(
    "ForeachAddcmulScalar", "_foreach_addcmul_", most=16, lists=3, number="value", cost=3
)
FOREACH_DIV_LIST = foreach("ForeachDivList", "_foreach_div_", most=24, lists=2, is_kept=True)
FOREACH_DIV_SCALAR = foreach("ForeachDivScalar", "_foreach_div_", most=50, number="", is_kept=True)
FOREACH_LERP_SCALAR = foreach(
    "ForeachLerpScalar", "_foreach_lerp_", most=24, lists=2, number="", cost=3
)
FOREACH_MUL_LIST = foreach("ForeachMulList", "_foreach_mul_", most=48, lists=2, is_kept=True)
FOREACH_MUL_SCALAR = foreach("ForeachMulScalar", "_foreach_mul_", most=48, number="", is_kept=True)
FOREACH_NEG = foreach("ForeachNeg", "_foreach_neg_", most=48)
FOREACH_SQRT = foreach("ForeachSqrt", "_foreach_sqrt_", most=48)
FOREACH_SUB_LIST = foreach(
    "ForeachSubList", "_foreach_sub_", most=24, lists=2, number="alpha", cost=2
)
