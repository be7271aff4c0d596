"""Values that a row does not contain, and on which the duration may depend: each declaration that
generates them documents them."""

import pytest
from typer.testing import CliRunner

from collector.ops.registry import all_ops, find_operator
from jobs.cli.app import app
from tests.fixtures.op_rows import cpu_rows
from tests.unit.collector.ops.conftest import CpuMaker

# Their whole numbers are operands, and not positions.
COMPUTED_WITH = {
    *("DequantSwigluQuant", "DropOutDoMask", "FloorDiv", "FloorMod", "Pow"),
    "apply_all_penalties_kernel",
    *("QuantBatchMatmulV3", "QuantBatchMatmulV4", "WeightQuantBatchMatmulV2"),
}
# Operators that select by the numbers themselves: random ones are generated for those too.
BY_NUMBERS = {
    *("ApplyTopKTopPCustom", "ApplyTopKTopPWithSorted", "ArgMaxV2", "ArgMaxWithValue"),
    *("MaskedFill", "SelectV2"),
    *("MoeGatingTopK", "MoeGatingTopKSoftmax", "Sort", "MoeInitRoutingV3"),
}


class PointingMaker(CpuMaker):
    """Records whether a declaration requests whole numbers that are not random contents of a
    tensor."""

    def __init__(self, torch):
        super().__init__(torch)
        self.points = False
        self._is_random = False

    def normal(self, shape, dtype):
        self._is_random = True
        made = super().normal(shape, dtype)
        self._is_random = False
        return made

    def integers(self, shape, dtype, low, high):
        self.points |= not self._is_random
        return super().integers(shape, dtype, low, high)

    def permutation(self, n, dtype):
        self.points = True
        return super().permutation(n, dtype)

    def tensor(self, values, dtype):
        self.points = True
        return super().tensor(values, dtype)


def test_operators_with_generated_positions_document_them(torch):
    silent = set()
    for record in cpu_rows():
        op, make = find_operator(record.kernel_type), PointingMaker(torch)
        op.build(record.case, make)
        if make.points and not op.assumes:
            silent.add(op.kernel)
    assert silent == COMPUTED_WITH


@pytest.mark.fast
def test_operators_that_depend_on_their_values_document_them():
    reported = {op.kernel for op in all_ops() if op.assumes}
    assert reported >= BY_NUMBERS
    assert not reported & COMPUTED_WITH


@pytest.mark.thorough
@pytest.mark.fast
def test_assumptions_are_shown_to_the_user():
    shown = CliRunner().invoke(app, ["ops", "GatherV2"]).output
    assert find_operator("GatherV2").assumes.split(",")[0] in shown
    assert "assumes" not in CliRunner().invoke(app, ["ops", "Neg"]).output
